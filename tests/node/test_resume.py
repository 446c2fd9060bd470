"""Nodes that stop and go on from their checkpoints in one process: bit for bit the uninterrupted run."""

import asyncio

import pytest
import torch

from decentnode.core.registry import SHARINGS
from decentnode.errors import DecentnodeError
from decentnode.node.experiment import Experiment
from tests.support.in_process import Nodes

NODES = 4
CONFIG = """
rounds: 1000
graph: {{name: {graph}, nodes: 4}}
dataset:
  name: synthetic
  nodes: 4
  samples_per_node: 30
  features: 6
  classes: 4
  partition: {{name: iid, ranks: [{ranks}]}}
model: tests.node.test_resume:Small
training:
  optimizer: {{name: SGD, lr: 0.05{momentum}}}
  scheduler: {{name: StepLR, step_size: 2, gamma: 0.9}}
  batch_size: 5
  epochs_per_round: 0.3
sharing: {{name: {sharing}{options}, transforms: [{transforms}]}}
communication: inproc
evaluation: {{every: 0}}
"""
CHANGE = "{name: top_k, fraction: 0.3, by: change}, auto"
TRANSFORMS = {
    "beer": "{name: top_k, fraction: 0.3}",
    "cesar": CHANGE.removesuffix("auto") + "rice",
    "choco": "{name: top_k, fraction: 0.3}",
    "d2": "cast",
    "deep_squeeze": "{name: qsgd, levels: 8}",
    "decent_lam": "cast",
    "exact_diffusion": "{name: cast, dtype: fp16}",
    "fed_avg": "error_feedback, {name: top_k, fraction: 0.3}",
    "gossip": CHANGE,
    "gradient_tracking": CHANGE,
    "push_sum": "cast",
    "quasi_global": CHANGE,
    "relay_sum": "cast",
    "scaffold": "{name: qsgd, levels: 64}",
}
"""Chains with a state of their own, where the scheme allows it."""
OPTIONS = {
    "balance": "limit: 100.0", "krum": "few: own", "muffliato": "noise: 0.01, generator: seeded",
    "shatter": "chunks: 3, per_neighbor: 2, generator: seeded",
    "trimmed_mean": "few: own", "zip_dl": "sigma: 0.01, generator: seeded",
}  # fmt: skip
"""Of schemes that have none that fit a chain of four nodes by default."""
SERVERS = [name for name, cls in SHARINGS.classes().items() if cls.requirements.server]
GRAPHS = {
    "all_reduce": "fully_connected", "cesar": "ring", "demo": "fully_connected", "secure_aggregation": "ring",
    "mosaic": "mosaic, degree: 2, fragments: 3", "shatter": "relayed, degree: 2",
    "sparse_loco": "fully_connected", "levels": "hierarchical, nodes_per_cluster: 2, every: 2",
} | dict.fromkeys(SERVERS, "federated, clients: 2, down: all")  # fmt: skip
"""Elsewhere a chain."""


class Small(torch.nn.Sequential):
    """A network with dropout, matrices, and buffers that are not mixed."""

    def __init__(self):
        super().__init__(
            torch.nn.Linear(6, 5), torch.nn.BatchNorm1d(5), torch.nn.Dropout(0.2), torch.nn.Linear(5, 4)
        )


def experiment_of(name, tmp_path, transforms=None, overrides=()):
    plain_sgd = SHARINGS.find(name).requirements.plain_sgd
    text = CONFIG.format(
        sharing=name,
        # Elsewhere rank 3 has no samples.
        ranks="0, 1, 2, 3" if SHARINGS.find(name).requirements.local_loss else "0, 1, 2",
        options=f", {OPTIONS[name]}" if name in OPTIONS else "",
        graph=GRAPHS.get(name, "chain"),
        momentum="" if plain_sgd else ", momentum: 0.9",
        transforms=TRANSFORMS.get(name, "") if transforms is None else transforms,
    )
    path = tmp_path / "resume.yaml"
    path.write_text(text)
    return Experiment.from_yaml(path, overrides)


def equal(one, other):
    """Whether two states are the same, tensors bit for bit."""
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(equal(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(equal, one, other))
    return one == other


def check_resume(experiment, tmp_path, stop=2, end=4):
    straight = Nodes(experiment, tmp_path / "straight").begin().run(0, end)
    stopped = Nodes(experiment, tmp_path / "stopped").begin().run(0, stop)
    saved = stopped.saved()
    stopped.run(stop, stop + 1)
    resumed = Nodes(experiment, tmp_path / "resumed").load(saved).run(stop, end)
    assert torch.equal(resumed.models, straight.models)
    for one, other in zip(resumed.nodes, straight.nodes, strict=True):
        assert equal(one.snapshot()["node"], other.snapshot()["node"])
        assert vars(one.exchange.endpoint.counters) == vars(other.exchange.endpoint.counters)
    return straight


@pytest.mark.parametrize("name", [n for n, cls in SHARINGS.classes().items() if not cls.asynchronous])
def test_a_run_that_stops_and_continues_is_the_same(name, tmp_path):
    experiment = experiment_of(name, tmp_path)
    straight = check_resume(experiment, tmp_path)
    assert straight.models.isfinite().all()
    assert not torch.equal(straight.models[0], straight.models[-1]) or name in {
        "all_reduce",
        "demo",
        "sparse_loco",
        *SERVERS,
    }


@pytest.mark.parametrize("stop", [1, 2, 5])
def test_it_may_stop_at_any_round(stop, tmp_path):
    check_resume(experiment_of("gradient_tracking", tmp_path), tmp_path, stop, end=7)


@pytest.mark.parametrize("forgotten", ["sharing", "training", "vector"])
def test_every_part_of_the_state_matters(forgotten, tmp_path):
    """So the test above would notice if it were left out."""
    experiment = experiment_of("gossip", tmp_path)
    straight = Nodes(experiment, tmp_path / "straight").begin().run(0, 3)
    fresh = Nodes(experiment, tmp_path / "fresh").begin()
    for node, stopped in zip(fresh.nodes, straight.nodes, strict=True):
        state = stopped.snapshot()
        state["node"][forgotten] = node.snapshot()["node"][forgotten]
        node.restore(state)
    fresh.run(3, 6)
    assert not torch.equal(fresh.models, straight.run(3, 6).models)


def test_a_node_resumed_after_its_last_round_is_tested_as_it_was_and_records_nothing_again(tmp_path):
    experiment = experiment_of("gossip", tmp_path, overrides=["rounds=3"])
    straight = Nodes(experiment, tmp_path / "straight").begin().run(0, 3)
    resumed = Nodes(experiment, tmp_path / "resumed").load(straight.saved())
    for before, node in zip(straight.nodes, resumed.nodes, strict=True):
        asyncio.run(node.run())
        assert node.evaluation.scores == before.evaluation.scores is not None
        assert node.training.loss == before.training.loss
        assert not (tmp_path / "resumed" / f"{node.rank:05d}.jsonl").exists()


def test_the_round_that_comes_next_is_known(tmp_path):
    experiment = experiment_of("gossip", tmp_path)
    saved = Nodes(experiment, tmp_path / "one").begin().run(0, 3).saved()
    nodes = Nodes(experiment, tmp_path / "two").load(saved).nodes
    assert [node.round + 1 for node in nodes] == [3] * NODES
    assert repr(nodes[1]) == "<Node 1: round 2, 0 peers missing>"


class Weighted(torch.nn.Module):
    """A loss with a state of its own."""

    def __init__(self):
        super().__init__()
        self.register_buffer("scale", torch.ones(()))
        self.reduction = "mean"

    def forward(self, outputs, labels):
        self.scale = 0.9 * self.scale
        return self.scale * torch.nn.functional.cross_entropy(outputs, labels, reduction=self.reduction)


def test_a_loss_continues_with_its_buffers(tmp_path):
    check_resume(
        experiment_of("gossip", tmp_path, overrides=["training.loss=tests.node.test_resume:Weighted"]),
        tmp_path,
    )


def damaged(state, path, value):
    """A copy of the state with another value at the path; None: without it."""
    if not path:
        return value
    key, *rest = path
    inner = damaged(state.get(key, {}), rest, value)
    return {k: v for k, v in state.items() if k != key} | ({} if inner is None else {key: inner})


DAMAGES = {
    "a shorter vector": (["vector"], torch.ones(1), r"\[vector\] is a tensor \[1\], not a tensor \[\d+\]"),
    "no schedule": (["training", "scheduler"], None, "KeyError"),
    "no place in the schedule": (["training", "scheduler", "last_epoch"], None, r"\[last_epoch\] is missing"),
    "statistics of another layer": (
        ["training", "module", "buffers", "9.running_mean"], torch.zeros(5), "AttributeError"),
    "no reference of a transform": (["sharing", "chain"], {}, r"\[chain\] is empty, not known"),
    "state that no part has": (["sharing", "extra"], torch.zeros(2), r"\[extra\] is a tensor \[2\], not"),
    "no position in the samples": (["training", "minibatches"], {}, "KeyError"),
}  # fmt: skip


def test_a_state_that_is_not_whole_is_refused_and_names_what_is_wrong(tmp_path):
    experiment = experiment_of("gossip", tmp_path)
    node = Nodes(experiment, tmp_path / "run").begin().run(0, 3).nodes[0]
    whole = node.snapshot()
    for path, value, message in DAMAGES.values():
        with pytest.raises(DecentnodeError, match=message):
            node.restore({**whole, "node": damaged(whole["node"], path, value)})
    node.restore(whole)
