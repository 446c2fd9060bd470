"""Runs whose models are evaluated by other processes while the nodes train."""

import json
import os

import pytest

from decentnode.results import read_evaluations, read_records
from tests.integration.running import Run, run_command
from tests.integration.test_machines import machines

NETS = """
import os
import time
from pathlib import Path

from torch import nn

from decentnode.models.base import Model


class Counted(nn.Flatten):
    '''Appends a byte to a file for each forward pass of an evaluation.'''

    def forward(self, inputs):
        if not self.training:
            with open(os.environ["MARK"], "ab") as file:
                file.write(b"1")
        return super().forward(inputs)


class Normed(Model):
    def build(self, shape, num_classes):
        return nn.Sequential(
            Counted(), nn.Linear(64, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 10)
        )


class Refuses(nn.Module):
    '''The first process that evaluates it in the background ends, all others hang.'''

    def forward(self, inputs):
        if not self.training and os.nice(0) > int(os.environ["NICE"]):
            try:
                Path(os.environ["MARK"]).touch(exist_ok=False)
            except FileExistsError:
                time.sleep(600)
            raise MemoryError("no room for this evaluation")
        return inputs


class Slow(nn.Module):
    '''Evaluations of another process begin so many seconds late.'''

    def forward(self, inputs):
        if not self.training and os.nice(0) > int(os.environ["NICE"]):
            time.sleep(float(os.environ["SLOW"]))
        return inputs


class Slowed(Model):
    def build(self, shape, num_classes):
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 10), Slow())


class Refused(Model):
    def build(self, shape, num_classes):
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 10), Refuses())
"""
CONFIG = """
name: tested
rounds: 12
graph: {name: ring, nodes: 4}
dataset: digits
model: 'nets:Normed'
training: {optimizer: {name: SGD, lr: 0.1, momentum: 0.9}, batch_size: 16, steps_per_round: 2}
sharing: gossip
evaluation: {every: 2, average_model: false}
failures: {deadline: 3}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tested")
    (folder / "nets.py").write_text(NETS)
    (folder / "tested.yaml").write_text(CONFIG)
    return folder


def finished(folder, name, *overrides):
    environment = {"MARK": str(folder / f"{name}.mark"), "NICE": str(os.nice(0))}
    run = Run(folder / name, [*overrides], config=folder / "tested.yaml", environment=environment)
    assert run.wait() == 0, run.story
    return run


def rows(run):
    """What was measured, without times."""
    evaluations = read_evaluations(run.run_dir / "evaluations.jsonl")
    return [(e.round, e.metrics, e.train_loss, e.bytes_sent, e.consensus_distance) for e in evaluations]


def test_the_numbers_are_those_of_the_nodes_in_the_order_of_rounds(folder):
    """With running statistics that no vector has, and for a part of the nodes and samples."""
    held_out = "dataset.validation={source: train, size: 200}"
    # The last rank has no samples, so none to be tested on either.
    own = ("evaluation.node_test_split=true", "dataset.partition={name: sizes, sizes: [.3, .3, .4, 0]}")
    part = ("evaluation.nodes=2", "evaluation.samples=100", held_out, *own)
    here = finished(folder, "here", *part)
    there = finished(folder, "there", *part, "evaluation.background=2")
    assert rows(here) == rows(there)
    passes = [(folder / f"{name}.mark").stat().st_size for name in ("here", "there")]
    # Before the start the second one is tried in two batches as in a process that evaluates.
    assert passes[0] + 2 == passes[1]
    assert [row[0] for row in rows(there)] == [1, 3, 5, 7, 9, 11]
    assert here.summary["model_hash"] == there.summary["model_hash"]
    assert here.summary["test"] == there.summary["test"]
    assert here.summary["validation"] == there.summary["validation"]
    assert here.summary["local"] == there.summary["local"] and here.summary["local_nodes"] == 3
    *before, last = read_evaluations(there.run_dir / "evaluations.jsonl")
    assert {tuple(row.ranks) for row in before} == {(0, 2)} and last.ranks == [0, 1, 2, 3]
    assert {len(row.bytes_sent) for row in before} == {4}
    assert [[*row.metrics["local_accuracy"]] for row in (before[0], last)] == [[0, 2], [0, 1, 2]]
    of_local = here.summary["local"]["local_accuracy"]
    assert of_local["mean"] == pytest.approx(sum(last.values("local_accuracy")) / 3)
    assert {"min", "max", "std"} < of_local.keys() and of_local != here.summary["test"]["accuracy"]
    assert "from" in here.text and here.text.count("(3 nodes with test samples of their own)\n") == 2
    shown = folder / "shown.out"
    for words in (
        ["compare", str(here.run_dir), str(there.run_dir), "--no-draw"],
        ["plot", str(here.run_dir)],
    ):
        assert run_command(shown, *words, "--metric", "local_accuracy") == 0
        assert "local_accuracy" in shown.read_text(), shown.read_text()
    assert run_command(shown, "compare", str(here.run_dir), "--metric", "locl") == 2
    known = "accuracy, loss, validation_accuracy, validation_loss, local_accuracy, local_loss"
    assert shown.read_text() == f"--metric: tested has no metric locl (it has {known})\n"
    # Of 100 samples each fraction is a whole percentage, of all 360 it is not.
    hundredths = [100 * value for row in before for value in row.values("accuracy")]
    assert hundredths == pytest.approx([round(value) for value in hundredths])
    assert any(100 * value % 1 > 0.01 for value in last.values("accuracy"))
    two_hundredths = [200 * value for row in (*before, last) for value in row.values("validation_accuracy")]
    assert two_hundredths == pytest.approx([round(value) for value in two_hundredths])
    of_nodes = read_records(there.run_dir / "records" / "00000.jsonl")
    # After the last round a node tests its model itself where the evaluators are busy.
    assert not any(record.metrics for record in of_nodes[:-1])


def test_evaluators_that_end_or_hang_are_replaced_by_the_nodes(folder):
    run = finished(folder, "refused", "model='nets:Refused'", "evaluation.background=2", "rounds=8")
    events = [json.loads(line) for line in (run.run_dir / "events.jsonl").read_text().splitlines()]
    ended = [event["text"] for event in events if event["kind"] == "evaluation"]
    assert ended and "nodes evaluate their models themselves" in ended[-1], run.story
    logs = [path.read_text() for path in sorted((run.run_dir / "logs").glob("evaluator-*.log"))]
    assert any("no room for this evaluation" in log for log in logs)
    assert rows(run)[-1][0] == 7 and len(run.summary["test"]["accuracy"]) == 4
    assert [*rows(run)[-1][1]["accuracy"]] == [0, 1, 2, 3]


def test_machine_0_waits_for_the_last_evaluations_of_the_others(folder):
    """The nodes and evaluators of machine 0 have long ended."""
    where = machines(["127.0.0.1", "127.0.0.2"], [2, 2])
    options = [where, "mapping.rendezvous_port=31310", "communication={name: zeromq, base_port: 31320}"]
    options += [
        "model='nets:Slowed'",
        "evaluation={every: 10, background: 1, figures: false, batch_size: 360}",
        "failures.deadline=20",
    ]
    runs = [
        Run(
            folder / f"slowed-{machine}",
            [*options, f"machine={machine}"],
            config=folder / "tested.yaml",
            environment={"NICE": str(os.nice(0)), "SLOW": str(3 * machine)},
        )
        for machine in range(2)
    ]
    assert [run.wait() for run in runs] == [0, 0], runs[0].story
    assert [[*row[1]["accuracy"]] for row in rows(runs[0])] == [[0, 1, 2, 3]] * 2
