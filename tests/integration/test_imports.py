"""What commands import and do without, in a Python of its own: the spawner's has imported more."""

import json
import subprocess
import sys

import pytest

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


WITHOUT = """
import json, mmap, os, select, signal, socket, sys, time

for name in json.loads(sys.argv[1]):
    sys.modules[name] = None
of_linux = ("eventfd", "epoll", "pidfd", "memfd", "sched_", "pipe2", "fdatasync", "madv_huge", "clock_boot")
for module in (mmap, os, select, signal, socket, time):
    for name in [name for name in vars(module) if name.lower().startswith(of_linux)]:
        if "fcntl" in sys.modules and sys.modules["fcntl"] is None:
            delattr(module, name)

from decentnode.cli import app

for words in json.loads(sys.argv[2]):
    try:
        app.main(words)
    except SystemExit as end:
        print("ended:", end.code, words[0], flush=True)
"""


def commands_without(modules, commands, folder):
    """Runs commands in one Python that lacks these modules; without fcntl it lacks what only Linux has."""
    script = [sys.executable, "-c", WITHOUT, json.dumps(modules), json.dumps(commands)]
    done = subprocess.run(
        script, cwd=folder, env={"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=200
    )
    ends = [line.split()[1:] for line in done.stdout.splitlines() if line.startswith("ended:")]
    assert [name for _, name in ends] == [words[0] for words in commands], done.stdout + done.stderr
    return [int(code) for code, _ in ends], done.stdout, done.stderr


@pytest.fixture(scope="module")
def folder_with_run(tmp_path_factory):
    """A folder with a run, and what was said where matplotlib is missing."""
    folder = tmp_path_factory.mktemp("imports")
    commands = [
        ["--help"],
        ["graph", "ring", "nodes=4", "--draw", "ring.svg"],
        ["run", "quickstart", "rounds=1", "communication=inproc", "run_dir=run"],
        ["list"],
        ["plot", "run"],
        ["compare", "run", "--no-draw"],
        ["compare", "run"],
    ]
    return folder, commands_without(["matplotlib"], commands, folder)


def test_without_matplotlib_all_but_figures_is_there(folder_with_run):
    folder, (codes, out, err) = folder_with_run
    assert codes == [0, 2, 0, 0, 2, 0, 2], out + err
    lack = "this needs matplotlib; run: pip install 'decentnode[figures]'"
    assert f"  pictures           none: {lack}\n" in out
    assert [line for line in err.splitlines() if line == lack] == [lack] * 3
    assert all(f"\u2502 {name} " in out for name in ("run", "plot", "report", "sweep", "attack", "import"))
    assert not [*folder.glob("**/*.png"), *folder.glob("*.svg")]


@pytest.mark.slow
def test_what_needs_no_nodes_works_on_systems_where_none_can_run(folder_with_run):
    folder, _ = folder_with_run
    commands = [
        ["--help"],
        ["graph", "ring", "nodes=4", "--draw", "graph.svg"],
        ["validate", "quickstart"],
        ["validate", "simulated", "--no-load"],
        ["compare", "run"],
        ["report", "run"],
        ["plot", "run"],
        ["run", "quickstart"],
    ]
    codes, out, err = commands_without(["fcntl", "resource"], commands, folder)
    assert codes == [0, 0, 0, 0, 0, 0, 0, 2], out + err
    assert {"graph.svg", "comparison", "run"} <= {path.name for path in folder.iterdir()}
    assert (folder / "run" / "report.html").exists() and (folder / "run" / "overview.png").exists()
    # Nodes need what was taken away, and say so.
    assert "has no pidfd_open" in err.splitlines()[-1]
