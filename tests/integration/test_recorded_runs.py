"""One run that is never evaluated and keeps its models; then what went on from a checkpoint of it."""

import hashlib
import os
import re
import shutil
import subprocess
import sys

import numpy as np
import pytest
import torch

from decentnode.cli import app as cli
from decentnode.errors import BadInput
from decentnode.formats.model_files import model_hash
from decentnode.formats.transcript import Transcript
from decentnode.results import Run as Results
from decentnode.results import model_rounds, read_model, read_records
from decentnode.results.attack_results import ATTACKS_FILE, best, read_results
from tests.integration.running import ROOT, Run

LATE = 0.5
"""Seconds that the nodes take before their first round."""
PLUGIN = f"""
import time
from decentnode.sharing import Gossip

class Late(Gossip):
    def begin(self, vector):
        time.sleep({LATE})
        super().begin(vector)
"""
CONFIG = """
name: recorded
rounds: 6
graph: {name: ring, nodes: 4}
dataset: {name: synthetic, nodes: 4, samples_per_node: 40, features: 8, classes: 3}
model: {name: mlp, hidden: [8]}
training: {optimizer: {name: SGD, lr: 0.1}, batch_size: 8, steps_per_round: 2}
sharing: {name: 'late:Late'}
evaluation: {every: 0, final: false}
checkpoint: {every: 3}
records: {models: {every: 4}}
adversaries:
  - {name: membership, ranks: [0], every: 3, samples: 20, online: true}
  - {name: record, links: [[1, 2]], every: 1}
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("recorded")
    (folder / "late.py").write_text(PLUGIN)
    (folder / "recorded.yaml").write_text(CONFIG)
    run = Run(folder / "run", config=folder / "recorded.yaml", figures=True)
    assert run.wait() == 0, run.text
    return run


def test_a_run_without_any_evaluation_shows_dashes(run, capsys):
    assert not (run.run_dir / "evaluations.jsonl").exists()
    summary = run.summary
    assert summary["test"]["accuracy"] is summary["test"]["loss"] is summary["consensus_distance"] is None
    assert summary["peak_memory_mb_per_node"]["min"] > 0
    assert re.search(r"^  test accuracy      -$", run.text, re.MULTILINE)
    commands = (["status", "."], ["plot", "."], ["compare", ".", ".", "--out", "../both"])
    lines = []
    for name, *words in commands:
        with pytest.raises(SystemExit) as ended:
            cli.main([name, *(str(run.run_dir / word) if word[0] == "." else word for word in words)])
        assert not ended.value.code
        lines.append(capsys.readouterr().out)
    assert "all 4 nodes finished 6 rounds" in lines[0]
    assert {line.rsplit("/", 1)[-1] for line in lines[1].split()} == {"overview.png", "labels.png"}
    cells = lines[2].splitlines()[2].split()
    assert cells[1:8] == ["4", "6", "-", "-", "-", "-", "-"] and cells[-3:] == ["-", "-", "-"]


def test_startup_ends_when_the_last_node_begins(run):
    shown = float(re.search(r"started in ([\d.]+) s", run.text)[1])
    assert run.summary["startup_seconds"] > shown - 0.1 + LATE
    for rank in range(4):
        first = read_records(run.run_dir / "records" / f"{rank:05d}.jsonl")[0]
        assert first.seconds > LATE


def test_the_last_models_are_those_of_the_summary_and_need_no_torch(run):
    assert model_rounds(run.run_dir) == {rank: [3, 5] for rank in range(4)}
    models = {rank: read_model(run.run_dir, rank, 5) for rank in range(4)}
    digests = {
        rank: hashlib.sha256(b"".join(array.tobytes() for array in model.values())).hexdigest()
        for rank, model in models.items()
    }
    assert model_hash(digests) == run.summary["model_hash"]
    script = (
        "import sys; from pathlib import Path; from decentnode.results import read_model;"
        f"print(len(read_model(Path({str(run.run_dir)!r}), 0, 5)), 'torch' in sys.modules)"
    )
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout == "4 False\n"


def test_the_mean_of_the_models_is_a_module_that_the_configuration_builds(run):
    results = Results(str(run.run_dir))
    state = results.model(2)
    last = {rank: read_model(run.run_dir, rank, 5) for rank in range(4)}
    assert all(np.array_equal(state[name].numpy(), array) for name, array in last[2].items())
    mean = results.mean_model()
    assert mean(torch.zeros(5, 8)).shape == (5, 3) and not mean.training
    for name, value in mean.state_dict().items():
        wanted = np.mean([last[rank][name].astype(np.float64) for rank in range(4)], axis=0)
        assert np.array_equal(value.numpy(), wanted.astype(np.float32))
    assert results.mean_model(4).state_dict()["1.weight"].ne(mean.state_dict()["1.weight"]).any()
    with pytest.raises(BadInput, match=r"after round 5, but after 2 rounds: 4, 6; records\.models\.every"):
        results.mean_model(5)
    assert len(results.records) == 4 * 6 and "no evaluation" in results._repr_html_()


def test_attacks_find_the_same_while_the_nodes_run_and_afterwards(run, capsys, monkeypatch):
    online = (run.run_dir / ATTACKS_FILE).read_bytes()
    results = read_results(run.run_dir)
    assert [(r.victim, r.round) for r in results] == [(v, r) for r in (2, 5) for v in (1, 3, None)]
    assert run.summary["attacks"] == best(results) and "\n  attack membership  auc 0." in run.text
    monkeypatch.chdir(run.run_dir.parent)  # the place of the plug-in
    with pytest.raises(SystemExit) as ended:
        cli.main(["attack", "run"])
    assert ended.value.code == 2
    refused = capsys.readouterr().err
    assert refused.endswith("to run that code, too: --with-its-code\n") and "'late:Late' is a plug" in refused
    with pytest.raises(SystemExit) as ended:
        cli.main(["attack", "run", "--with-its-code"])
    assert not ended.value.code
    assert "6 results of 2 attacks in" in capsys.readouterr().out
    assert (run.run_dir / ATTACKS_FILE).read_bytes() == online


def test_another_attack_adds_its_results_and_says_what_finds_nothing(run, capsys, monkeypatch):
    shutil.copytree(run.run_dir, more := run.run_dir.parent / "more")
    before = read_results(more)
    monkeypatch.chdir(run.run_dir.parent)
    others = "{name: attribute, ranks: [0]}, {name: linkability, ranks: [0], method: timing}"
    with pytest.raises(SystemExit) as ended:
        cli.main(["attack", "more", "--with-its-code", f"adversaries=[{others}]"])
    assert not ended.value.code
    results = read_results(more)
    assert results[: len(before)] == before and {r.attack for r in results[len(before) :]} == {"attribute"}
    output = capsys.readouterr().out
    assert (
        "linkability            ranks 0        found nothing: too few messages are recorded (every)" in output
    )


def test_models_of_rounds_that_are_done_again_are_those_of_a_straight_run(run):
    folder = run.run_dir.parent / "resumed"
    shutil.copytree(run.run_dir, folder)
    (folder / "summary.json").unlink()
    for path in folder.glob("checkpoints/*/00000005.*"):
        path.unlink()
    for path in folder.glob("models/*/00000003.safetensors"):
        shutil.copy(path, path.with_name("00000004.safetensors"))  # of a round that none is kept of
        path.write_bytes(b"")
    resumed = Run(folder, verb="resume", figures=True)
    assert resumed.wait() == 0, resumed.text
    assert "continues after round 3\n" in resumed.text
    assert resumed.summary["model_hash"] == run.summary["model_hash"]
    files = {
        folder: {path.relative_to(folder): path.read_bytes() for path in folder.glob("models/*/*")}
        for folder in (run.run_dir, folder)
    }
    attacks = [(folder_ / ATTACKS_FILE).read_bytes() for folder_ in (run.run_dir, folder)]
    assert attacks[0] == attacks[1]
    for rank in (1, 2):
        heard = Transcript(folder, rank)
        heard.advance()
        assert heard.ended and {r: len(lines) for r, lines in heard.lines.items()} == dict.fromkeys(
            range(6), 1
        )
    assert len(files[folder]) == 8 and files[folder] == files[run.run_dir]
