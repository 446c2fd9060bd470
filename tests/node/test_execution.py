"""Who computes the local steps, by `training.execution` and what the run is."""

import pytest

from decentnode.launcher.recovery.resume import refuse_changes
from decentnode.node.execution import choice
from decentnode.node.execution.batches import BatchedExecutor
from decentnode.node.experiment import Experiment
from decentnode.training.training import StepExecutor

CONFIG = """
graph: {name: ring, nodes: 32}
dataset: {name: synthetic, nodes: 32, samples_per_node: 5, features: 10, partition: natural}
model: {name: mlp, hidden: [1000]}
training: {optimizer: {name: SGD, lr: 0.1}, batch_size: 2, steps_per_round: 1, pace: instant}
sharing: gossip
communication: simulated
evaluation: {every: 0, figures: false}
rounds: 1
"""
REAL_TIME = ["communication=inproc", "training.pace=null"]


def made(tmp_path, *changes):
    (tmp_path / "run.yaml").write_text(CONFIG)
    return Experiment.from_yaml(tmp_path / "run.yaml", changes)


@pytest.mark.parametrize(
    ("changes", "workers"),
    [
        ([], 3),
        (["training.execution=auto"], 3),
        (["training.execution={workers: auto}"], 3),
        (["training.execution={workers: 50}"], 32),
        (["training.execution=alone"], 0),
        (["training.execution={batches: 4}"], 0),
        (["model=logistic_regression"], 0),
        (["graph.nodes=31", "dataset.nodes=31"], 0),
        (["sharing=gradient_tracking"], 0),
        (REAL_TIME, 0),
        ([*REAL_TIME, "training.execution={workers: auto}"], 3),
        ([*REAL_TIME, "training.execution={workers: 2}"], 2),
    ],
)
def test_workers_are_used_where_they_are_asked_for_or_pay(changes, workers, tmp_path, monkeypatch):
    monkeypatch.setattr(choice, "processors", lambda: 4)
    assert made(tmp_path, *changes).execution.workers == workers


def test_batches_are_formed_where_they_are_asked_for_and_the_model_is_small(tmp_path):
    def executor(*changes):
        return made(tmp_path, *changes).execution.executor_here(32)

    assert type(executor()) is type(executor("training.execution={workers: 2}")) is StepExecutor
    batched = executor("training.execution={batches: auto}")
    assert isinstance(batched, BatchedExecutor) and batched.news.startswith("steps of up to 32 nodes")
    large = executor("training.execution={batches: auto}", "model={name: mlp, hidden: [30000]}")
    assert type(large) is StepExecutor and "one by one" in large.news


def test_a_run_may_continue_with_another_execution(tmp_path):
    before, after = (
        made(tmp_path, f"training.execution={execution}").settings
        for execution in ("{workers: 2}", "{batches: 2}")
    )
    refuse_changes(before, after)
