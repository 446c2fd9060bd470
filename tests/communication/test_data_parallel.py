"""The all-reduce baseline against loops written by hand; all ranks are threads of this process."""

import asyncio
from pathlib import Path

import pytest
import torch
from torch import nn

from decentnode.communication.torch_distributed.backend_choice import BackendChoice, Capabilities
from decentnode.communication.torch_distributed.missing_ranks import MissingRanks
from decentnode.communication.torch_distributed.torch_groups import (
    StoreRendezvous,
    reason,
)
from decentnode.config.loader import load, resolved
from decentnode.core.rng import generator
from decentnode.errors import BadInput, RunFailed, StartError
from decentnode.node.experiment import Experiment
from tests.support.in_process import Nodes
from tests.support.in_threads import RUN_ID, Ranks, place_of
from tests.support.rank_threads import in_threads

CONFIG = """
name: baseline
rounds: 40
graph: {{name: {graph}, nodes: {nodes}}}
dataset: {{name: synthetic, nodes: 3, samples_per_node: 40, features: 6, classes: 3}}
model: {{name: mlp, hidden: [5]}}
training:
  name: ddp
  optimizer: {{name: SGD, lr: 0.1}}
  batch_size: 8
  steps_per_round: 3
sharing: {{name: none}}
evaluation: {{every: 0}}
"""


def ranks_of(tmp_path, *overrides, nodes=3, graph="ring"):
    """The nodes of a run in threads, not yet together."""
    directory = tmp_path / f"run{len(list(tmp_path.iterdir()))}"
    config = directory.with_suffix(".yaml")
    config.write_text(CONFIG.format(nodes=nodes, graph=graph if nodes > 2 else "fully_connected"))
    return Ranks(config, directory, *overrides)


def batches_of(experiment, rank, batch_size=8):
    """The minibatches of a rank as the docstrings promise them."""
    part, epoch = experiment.samples.parts[rank], 0
    while True:
        order = generator(experiment.settings.seed, "shuffle", rank, epoch).permutation(len(part))
        shuffled = part[torch.from_numpy(order)]
        for start in range(0, len(part), batch_size):
            yield experiment.samples.dataset.train.batch(shuffled[start : start + batch_size])
        epoch += 1


def by_hand(experiment, steps, make=lambda p: torch.optim.SGD(p, lr=0.1), clip=None):
    """One model that steps along the mean of the ranks' gradients."""
    module = experiment.network
    optimizer, ranks = make(module.parameters()), range(experiment.graph.num_nodes)
    batches = [batches_of(experiment, rank) for rank in ranks]
    for _ in range(steps):
        gradients = []
        for rank in ranks:
            inputs, labels = next(batches[rank])
            optimizer.zero_grad()
            nn.functional.cross_entropy(module(inputs), labels).backward()
            gradients.append([parameter.grad / len(ranks) for parameter in module.parameters()])
        for parameter, *shares in zip(module.parameters(), *gradients, strict=True):
            parameter.grad = torch.stack(shares).sum(0)
        if clip:
            nn.utils.clip_grad_norm_(module.parameters(), clip)
        optimizer.step()
    return torch.cat([parameter.detach().reshape(-1) for parameter in module.parameters()])


@pytest.mark.parametrize("nodes", [1, 2, 3])
def test_it_steps_along_the_mean_gradient(tmp_path, nodes):
    ranks = ranks_of(tmp_path, nodes=nodes).meet().run(0, 4)
    ranks.close()
    expected = by_hand(ranks.experiment, 12)
    assert all(torch.equal(model, ranks.models[0]) for model in ranks.models)
    if nodes < 3:  # no sum of three numbers, whose order would matter
        assert torch.equal(ranks.models[0], expected)
    torch.testing.assert_close(ranks.models[0], expected, atol=1e-6, rtol=0)


def test_momentum_and_clipping_see_the_mean_gradient(tmp_path):
    overrides = ["training.optimizer.momentum=0.9", "training.clip_norm=0.5"]
    ranks = ranks_of(tmp_path, *overrides).meet().run(0, 4)
    ranks.close()
    expected = by_hand(
        ranks.experiment, 12, lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9), clip=0.5
    )  # fmt: skip
    torch.testing.assert_close(ranks.models[0], expected, atol=1e-6, rtol=0)


def test_it_is_the_average_of_models_that_make_one_plain_step_each(tmp_path):
    ranks = ranks_of(tmp_path, "training.steps_per_round=1", graph="fully_connected").meet().run(0, 6)
    ranks.close()
    overrides = ["training.steps_per_round=1", "sharing=all_reduce", "training.name=local"]
    config = ranks.directory.with_suffix(".yaml")
    averaged = Nodes(Experiment.from_yaml(config, [*overrides, "communication=inproc"]), tmp_path / "a")
    torch.testing.assert_close(ranks.models, averaged.begin().run(0, 6).models, atol=1e-6, rtol=0)


def test_bytes_are_those_of_a_ring_all_reduce(tmp_path):
    ranks = ranks_of(tmp_path).meet().run(0, 2)
    ranks.close()
    gradient = 4 * ranks.experiment.layout.numel
    for node in ranks.nodes:
        counters = node.exchange.endpoint.counters
        assert counters.sent == counters.received == 6 * (4 * gradient // 3)


def test_records_have_the_loss_of_all_ranks(tmp_path):
    ranks = ranks_of(tmp_path).meet()
    reports = in_threads(3, lambda rank: asyncio.run(ranks.nodes[rank].training.train(0)))
    ranks.close()
    losses = {report.loss for report in reports}
    assert len(losses) == 1
    alone = []
    for rank in range(3):
        inputs, labels = next(batches_of(ranks.experiment, rank))
        alone.append(nn.functional.cross_entropy(ranks.experiment.network(inputs), labels).item())
    assert len({round(loss, 3) for loss in alone}) == 3
    three_ranks = ranks_of(tmp_path, "training.steps_per_round=1").meet()
    (report, *_) = in_threads(3, lambda rank: asyncio.run(three_ranks.nodes[rank].training.train(0)))
    three_ranks.close()
    assert report.loss == pytest.approx(sum(alone) / 3, abs=1e-6)


def test_a_schedule_that_follows_the_loss_is_the_same_on_all_ranks(tmp_path):
    schedule = "training.scheduler={name: ReduceLROnPlateau, patience: 0, factor: 0.5, threshold: 0.02}"
    ranks = ranks_of(tmp_path, schedule, "dataset.partition=natural").meet().run(0, 12)
    ranks.close()
    rates = [node.training.learning_rate for node in ranks.nodes]
    assert len(set(rates)) == 1 and rates[0] < 0.1
    assert all(torch.equal(model, ranks.models[0]) for model in ranks.models)


def test_it_continues_bit_for_bit(tmp_path):
    """Three ranks, so that the order of a sum, and with it the pieces that gradients are sent in, matter."""
    overrides = ["training.optimizer={name: Adam, lr: 0.01}", "model.hidden=[300]"]
    straight, first, second = (ranks_of(tmp_path, *overrides) for _ in range(3))
    straight.meet().run(0, 6)
    first.meet().run(0, 2)
    for old, new in zip(first.nodes, second.nodes, strict=True):
        new.restore(old.snapshot())
    second.meet().run(2, 6)
    for ranks in (straight, first, second):
        ranks.close()
    assert torch.equal(second.models, straight.models)


def test_the_smallest_part_decides_how_many_steps_all_make(tmp_path):
    partition = "dataset.partition={name: sizes, sizes: [48, 24, 24]}"
    overrides = [partition, "training.steps_per_round=null", "training.epochs_per_round=1.0"]
    ranks = ranks_of(tmp_path, *overrides)
    assert [node.training.minibatches.per_epoch for node in ranks.nodes] == [3, 3, 3]
    ranks.meet().run(0, 2)
    ranks.close()
    assert [node.training.minibatches.state_dict()["epoch"] for node in ranks.nodes] == [0, 1, 1]


def test_reshuffled_samples_are_dealt_again_in_every_epoch(tmp_path):
    partition = "dataset.partition={name: sizes, sizes: [95, 1, 0]}"
    ranks = ranks_of(tmp_path, partition, "training.samples=reshuffled")
    shards = [node.training.shard for node in ranks.nodes]
    first, second = ([shard.order(epoch) for shard in shards] for epoch in (0, 1))
    assert all(len(order) == shard.size == 32 for order, shard in zip(first, shards, strict=True))
    for epoch in (first, second):
        assert torch.equal(torch.cat(epoch).sort().values, torch.arange(96))
    assert not any(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    assert torch.equal(shards[1].order(0), first[1])
    models = ranks.meet().run(0, 2).models
    ranks.close()
    assert all(torch.equal(model, models[0]) for model in models)


def test_what_cannot_step_together_is_refused(tmp_path):
    with pytest.raises(BadInput, match="rank 2 has no samples"):
        ranks_of(tmp_path, "dataset.partition={name: iid, ranks: [0, 1]}")


class Batchnormed(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Linear(5, 3))


class PartlyUnused(nn.Module):
    def __init__(self):
        super().__init__()
        self.used, self.unused = nn.Linear(6, 3), nn.Linear(6, 3)

    def forward(self, inputs):
        return self.used(inputs)


def test_the_rehearsal_changes_nothing(tmp_path):
    ranks = ranks_of(tmp_path, f"model='{__name__}:Batchnormed'")
    before = [copy_of(node.training.module) for node in ranks.nodes]
    ranks.meet()
    assert [copy_of(node.training.module) for node in ranks.nodes] == before
    ranks.run(0, 1)
    ranks.close()
    assert [copy_of(node.training.module) for node in ranks.nodes] != before


def copy_of(module):
    return {name: value.tolist() for name, value in module.state_dict().items()}


def test_a_network_with_unused_parameters_is_known_before_the_first_round(tmp_path):
    model = f"model='{__name__}:PartlyUnused'"
    with pytest.raises(RunFailed, match=r"before round 1: .*find_unused_parameters: true"):
        ranks_of(tmp_path, model).meet()
    ranks = ranks_of(tmp_path, model, "training.find_unused_parameters=true").meet().run(0, 2)
    ranks.close()
    assert all(torch.equal(model, ranks.models[0]) for model in ranks.models)


# Who is missing.


OWN = Capabilities(True, "", "", True)


def test_who_does_not_come_is_named(tmp_path):
    meetings = [StoreRendezvous(place_of(rank, 4, tmp_path), "test", 1, RUN_ID) for rank in (0, 2)]
    with pytest.raises(StartError, match=r"rank \d: ranks? .*1 and 3 did not arrive within 0.2 s"):
        in_threads(2, lambda i: meetings[i].facts(meetings[i].store(5), OWN, 0.2))


def roll_calls(directory, ranks, nodes):
    stores = [StoreRendezvous(place_of(rank, nodes, directory), "test", 1, RUN_ID).store(5) for rank in ranks]
    return [MissingRanks(store, rank, nodes, 1.5) for store, rank in zip(stores, ranks, strict=True)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("ranks", "progress", "expected"),
    [
        ((0, 2, 3), (7, 7, 7), ": rank 1 is lost or does not answer"),
        ((0, 2), (7, 6), ": ranks 1 and 3 are lost or do not answer"),
        ((0, 1, 2, 3), (7, 7, 6, 7), ": rank 2 is alive but makes no progress"),
        ((0, 1, 2, 3), (7, 7, 7, 7), ": every rank is there, but the links between them broke"),
    ],
)
def test_all_agree_on_who_is_missing(tmp_path, ranks, progress, expected):
    calls = roll_calls(tmp_path, ranks, 4)
    for call, steps in zip(calls, progress, strict=True):
        call.progress = steps
    # Two ask at once, the others later; one that is gone by then has answered.
    assert in_threads(2, lambda i: calls[i].verdict()) == [expected, expected]
    calls[0].close()
    assert [call.verdict() for call in calls[2:]] == [expected] * len(calls[2:])
    for call in calls[1:]:
        call.close()


def test_the_ranks_tell_each_other_what_they_have(tmp_path):
    meetings = [StoreRendezvous(place_of(rank, 2, tmp_path), "test", 1, RUN_ID) for rank in range(2)]
    has = [Capabilities(True, f"machine 0: {rank}", "2.28.9", True) for rank in range(2)]
    results = in_threads(2, lambda rank: meetings[rank].facts(meetings[rank].store(5), has[rank], 5.0))
    assert results == [dict(enumerate(has))] * 2
    assert BackendChoice("auto", False, "training.backend")(results[0]).backend == "nccl"
    plan = BackendChoice("nccl", False, "training.backend")({0: has[0], 1: has[0]})
    assert plan.error.startswith("training.backend: nccl: ranks 0, 1 share one GPU")


def test_what_torch_says_is_reported_in_one_line():
    error_text = (
        "[/a/b/gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:5297. "
        "This is typically caused by a remote worker crashing. Check the logs of the remote worker\n..."
    )
    assert reason(RuntimeError(error_text)) == "Connection closed by peer [127.0.0.1]:5297"
    assert reason(RuntimeError("")) == "RuntimeError"


def test_the_store_of_one_machine_is_a_file(tmp_path):
    rendezvous = StoreRendezvous(place_of(0, 2, tmp_path), "test", 1, RUN_ID)
    rendezvous.store(5).set("a", "b")
    assert [path.name for path in Path(tmp_path).iterdir()] == ["test.store"]


def test_the_shipped_pair_differs_in_what_is_compared_alone():
    folder = Path(__file__).parents[2] / "configs" / "resnet18"
    gossip, ddp = (resolved(load(folder / f"{name}.yaml")) for name in ("gossip", "ddp"))
    assert {key for key in gossip if gossip[key] != ddp[key]} == {"name", "training", "sharing"}
    training = gossip["training"], ddp["training"]
    assert {key for key in training[0] if training[0][key] != training[1][key]} == {"name"}
