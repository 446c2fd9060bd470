"""What a whole run imports, in a Python of its own: the spawner's has imported more."""

import json
import subprocess
import sys

from tests.integration.spawner import ROOT

MODEL = """
import sys
from torch import nn

class Own(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Flatten(), nn.Linear(64, 10))

    def forward(self, x):
        # The last batch is one of the evaluation after the last round.
        print("compiler", "torch._dynamo" in sys.modules)
        return super().forward(x)
"""
CONFIG = """
rounds: 2
graph: {name: ring, nodes: 4}
dataset: digits
model: {name: "own:Own"}
training:
  optimizer: {name: SGD, lr: 0.1, momentum: 0.9}
  scheduler: {name: StepLR, step_size: 1}
  steps_per_round: 1
sharing: gossip
checkpoint: {every: 1}
evaluation: {every: 1, figures: false}
"""
STUDY = """
base: run.yaml
set: {model: mlp, rounds: 1}
axes: {training.optimizer.lr: [0.1, 0.2]}
"""
SCRIPT = """
import json, os, sys
import decentnode.launcher.start
from decentnode.cli import app

for words in json.loads(sys.argv[1]):
    if not os.fork():
        try:
            app.main(words)
        except SystemExit as end:
            print("ended:", end.code, "torch._dynamo" in sys.modules, flush=True)
        os._exit(0)
    os.wait()
"""


def test_no_process_of_a_run_imports_torchs_compiler_unless_it_needs_it(tmp_path):
    """The launcher at its end, and its nodes: of a run, when it is resumed, of a sweep; of private steps."""
    for name, text in {"own.py": MODEL, "run.yaml": CONFIG, "study.yaml": STUDY}.items():
        (tmp_path / name).write_text(text)
    private = "training.privacy={name: dp_sgd, clip: 1, noise: 1, delta: 1e-5}"
    commands = [
        ["run", "run.yaml", "run_dir=whole"],
        ["resume", "whole", "rounds=3"],
        ["sweep", "study.yaml", "out=swept"],
        ["run", "run.yaml", "run_dir=private", private],
    ]
    script = [sys.executable, "-c", SCRIPT, json.dumps(commands)]
    done = subprocess.run(
        script, cwd=tmp_path, env={"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=200
    )
    ends = [line.split()[1:] for line in done.stdout.splitlines() if line.startswith("ended:")]
    assert ends == [["0", "False"]] * 3 + [["0", "True"]], done.stdout + done.stderr
    logs = {path: path.read_text().split() for path in sorted(tmp_path.glob("*/logs/*.log"))}
    assert len(logs) == 8
    for path, words in logs.items():
        assert words[-2:] == ["compiler", str("private" in path.parts)], path
    assert len([*tmp_path.glob("swept/**/summary.json")]) == 2
