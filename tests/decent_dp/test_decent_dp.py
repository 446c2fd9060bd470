"""Decent-DP's words: its steps by dense matrices, its documented loops, what its documentation promises."""

import copy
import warnings
from functools import partial

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import StepLR

from decentnode.decent_dp import DecentralizedDataParallel
from decentnode.decent_dp.optim import (
    AccumAdam,
    lr_scheduler_fn_cosine_with_warmup,
    optim_fn_accum_adam,
    optim_fn_accum_adamw,
    optim_fn_adam,
    optim_fn_adamw,
)
from decentnode.decent_dp.topo import Edge, Topology, TopologyReg
from decentnode.errors import BadInput, RunFailed
from tests.support.wrapper_ranks import batches, flat, in_rank_threads, loss_of, small_network

RANKS, STEPS, RATE, DECAY, A = 4, 7, 0.1, 0.3, 0.5
PAIRS = {
    "complete": [[[0, 1, 2, 3]]],
    "ring": [[[0, 1], [2, 3]], [[0, 3], [1, 2]]],
    "one-peer-exp": [[[0, 1], [2, 3]], [[0, 2], [1, 3]]],
    # Two machines of two ranks: in the first step each by itself, in the second one together.
    "alternating-exp-ring": [[[0, 1], [2, 3]], [[0, 1, 2, 3]]],
}


def decayed_sgd(named):
    return torch.optim.SGD([p for _, p in named], lr=RATE, weight_decay=DECAY)


def wrap(rendezvous, optimizer=decayed_sgd, topology="complete", network=None, **more):
    network = copy.deepcopy(network or small_network())
    return DecentralizedDataParallel(
        network, optimizer, topology=topology, rendezvous=rendezvous, bucket_size_in_mb=1e-4,
        _local_world_size=min(2, rendezvous.size), **more,
    )  # fmt: skip


def matrix(groups):
    """W of a step, whose ranks average in groups."""
    W = torch.zeros(RANKS, RANKS, dtype=torch.float64)
    for group in groups:
        for i in group:
            W[i, group] = 1 / len(group)
    return W


def step_of(number, steps):
    """The edges that mix x(t): t = 1 has those of step 1, and from t = 2 on it is step t + 1."""
    return steps[(number + (number > 1)) % len(steps)]


@pytest.mark.parametrize("topology", PAIRS)
def test_a_step_starts_from_the_mix_with_the_gradient_at_the_own_model(topology):
    """x_i(t+1) = z - eta (g(x_i(t)) + lambda z), z = (1 - a) x_i + a sum_j w_ij x_j."""
    first = small_network()

    def work(rank, rendezvous):
        model = wrap(rendezvous, topology=topology, network=first)
        for step, batch in enumerate(batches(rank, STEPS)):
            if step == 4:
                model.set_adaptive_factor(A)
            loss = loss_of(model, batch)
            model.zero_grad()
            loss.backward()
        mine = flat(model.module).clone()
        distance = model.global_avg(return_d2c=True)
        mean = flat(model.module).clone()
        model.revert_global_avg()
        assert torch.equal(flat(model.module), mine)
        model.close()
        return mine, mean, distance

    results = in_rank_threads(RANKS, work)
    x = flat(first).repeat(RANKS, 1)
    every = [batches(rank, STEPS) for rank in range(RANKS)]
    for step in range(STEPS):
        a, gradients = A if step >= 4 else 1.0, []
        for rank in range(RANKS):
            network = copy.deepcopy(first)
            nn.utils.vector_to_parameters(x[rank].clone(), network.parameters())
            loss_of(network, every[rank][step]).backward()
            gradients.append(torch.cat([p.grad.reshape(-1) for p in network.parameters()]))
        z = (1 - a) * x + a * matrix(step_of(step, PAIRS[topology])) @ x
        x = z - RATE * (torch.stack(gradients) + DECAY * z)
    for rank, (mine, mean, distance) in enumerate(results):
        assert (mine - x[rank]).abs().max() < 1e-14
        assert (mean - x.mean(0)).abs().max() < 1e-14
        assert distance == pytest.approx(float((x[rank] - x.mean(0)).norm()), abs=1e-13)


def in_one(work):
    """A test on a single rank, for what needs no others."""
    return in_rank_threads(1, lambda rank, rendezvous: work(rendezvous))[0]


def accumulated(pattern):
    """The parameters after two steps of two batches each, and the number of steps."""

    def work(rendezvous):
        model, mine = wrap(rendezvous), batches(0, 4)
        for pair in (mine[:2], mine[2:]):
            model.set_accumulate_grad(True)
            for i, batch in enumerate(pair):
                if i == 1 and pattern == "last batch":
                    model.set_accumulate_grad(False)
                (loss_of(model, batch) / 2).backward()
            model.set_accumulate_grad(False)
        model.eval()
        model(mine[0][0])  # an evaluation: nothing may wait any more
        assert model.step == 2
        return flat(model.module).clone()

    return in_one(work)


def test_both_loops_of_accumulation_make_one_step_of_all_batches():
    """As documented, which never makes a backward pass without accumulation, and as the code means it."""
    network = small_network()
    optimizer = torch.optim.SGD(network.parameters(), lr=RATE, weight_decay=DECAY)
    mine = batches(0, 4)
    for pair in (mine[:2], mine[2:]):
        optimizer.zero_grad()
        for batch in pair:
            (loss_of(network, batch) / 2).backward()
        optimizer.step()
    for pattern in ("documented", "last batch"):
        assert (accumulated(pattern) - flat(network)).abs().max() < 1e-15


def test_training_goes_on_from_an_average_that_nobody_reverts():
    """Where Decent-DP undoes it in the next step; one rank may save the average alone."""

    def work(rank, rendezvous):
        model = wrap(rendezvous, topology="ring")
        first, second = batches(rank, 2)
        loss_of(model, first).backward()
        assert model.global_avg() is None
        mean = flat(model.module).clone()
        if rank == 0:
            saved = model.state_dict()
            assert torch.equal(saved["module.0.weight"], model.module[0].weight)
        loss_of(model, second).backward()
        with pytest.raises(RunFailed, match=rf"^rank {rank}: no global_avg\(will_revert=True\) was made$"):
            model.revert_global_avg()
        network = copy.deepcopy(model.module)
        nn.utils.vector_to_parameters(mean.clone(), network.parameters())
        loss_of(network, second).backward()
        gradient = torch.cat([p.grad.reshape(-1) for p in network.parameters()])
        assert (flat(model.module) - (mean - RATE * (gradient + DECAY * mean))).abs().max() < 1e-14
        state = model.state_dict()
        model.load_state_dict(state)
        assert model.step == 2
        assert model.global_avg(will_revert=False, return_d2c=True) > 0
        return flat(model.module).clone()

    first, *others = in_rank_threads(RANKS, work)
    assert all(torch.equal(first, other) for other in others)


class Aware(torch.optim.SGD):
    """As in the tutorial: it sees the edge, and what arrives, before each mix."""

    def pre_average_hook(self, edge, weight):
        self.seen = edge.ranks, weight
        for group in self.param_groups:
            for p in group["params"]:
                p.comm_buffer.mul_(0.5)


def test_an_optimizer_sees_and_changes_the_sum_of_its_group():
    first = small_network()

    def work(rank, rendezvous):
        model = wrap(rendezvous, lambda named: Aware([p for _, p in named], lr=0.0), "ring", first)
        own = torch.full_like(flat(first), rank + 1.0)
        nn.utils.vector_to_parameters(own, model.module.parameters())
        loss_of(model, batches(rank, 1)[0]).backward()
        assert model._engine.optimizers[0].optimizer.seen == ([2 * (rank // 2), 2 * (rank // 2) + 1], 0.5)
        model.set_adaptive_factor(0.25)
        return flat(model.module).clone()

    # Half of the sum of both ranks, each with weight 1/2.
    for rank, mixed in enumerate(in_rank_threads(RANKS, work)):
        pair = 2 * (rank // 2)
        torch.testing.assert_close(mixed, torch.full_like(mixed, 0.5 * (2 * pair + 3) / 2))


@TopologyReg.register("crossed")
class Crossed(Topology):
    def _get_topo_edges(self):
        assert (self._world_size, self._local_world_size, self._n_nodes) == (4, 2, 2)
        return [[Edge([1, 0], 0.5), Edge([2, 3], 0.75)]]


class Twice(Topology):
    def _get_topo_edges(self):
        return [[Edge([0, 1], 0.5), Edge([1, 2, 3], 1 / 3)]]


class Nobody(Topology):
    def _get_topo_edges(self):
        return [[Edge([0, 1], 0.5), Edge([2], 1.0)]]


def test_topologies_of_users_and_what_is_wrong_with_one():
    topology = TopologyReg.make("crossed", 3, RANKS, 2)
    assert topology.get_edge(5).ranks == [2, 3] and topology.get_edge(5).share == 0.25
    lines = {
        "rung": "topology: unknown 'rung'; did you mean 'ring'? DecentralizedDataParallel of decentnode has "
        "more",
        "twice": "topology: step 0: rank 1 is in two edges; it must be in one",
        "nobody": "topology: step 0: rank 3 has no edge",
    }
    TopologyReg.registry |= {"twice": Twice, "nobody": Nobody}
    try:
        for name, line in lines.items():
            with pytest.raises(BadInput) as caught:
                TopologyReg.make(name, 0, RANKS, 4)
            assert str(caught.value) == line
        for name, size, local, start in (
            ("ring", 3, 1, "topology: ring is for an even number of ranks, not 3"),
            ("one-peer-exp", 6, 1, "topology: one-peer-exp is for 1, 2, 4, 8, ... ranks, not 6"),
            ("alternating-exp-ring", 6, 2, "topology: alternating-exp-ring is for 1, 2, 4, 8, ... machines"),
            (3, 6, 1, "topology: must be one of complete, ring, one-peer-exp, alternating-exp-ring, "),
            ("complete", 6, 0, "_local_world_size: must be a whole number > 0, not 0"),
            ("complete", 6, 4, "topology: 6 ranks are no multiple of the 4 of a machine"),
        ):
            with pytest.raises(BadInput) as caught:
                TopologyReg.make(name, 0, size, local)
            assert str(caught.value).startswith(start)
    finally:
        del TopologyReg.registry["twice"], TopologyReg.registry["nobody"]
    for name in PAIRS:
        assert TopologyReg.make(name, 0, 1, 1).get_edge(3) == Edge([0], 1.0)
    assert TopologyReg.make("alternating-exp-ring", 2, 3, 3).get_edge(3) == Edge([0, 1, 2], 1 / 3)
    with pytest.raises(BadInput, match=r"^two topologies are named 'ring'$"):
        TopologyReg.register("ring")(Crossed)
    with pytest.raises(BadInput, match=r"^DecentralizedDataParallel has no option 'deadlin'; did you mean"):
        in_one(lambda rendezvous: wrap(rendezvous, deadlin=1))


@pytest.mark.parametrize(
    ("make", "kind", "decay"),
    [
        (optim_fn_adam, torch.optim.Adam, 1 / 32768),
        (optim_fn_adamw, torch.optim.AdamW, 0.1),
        (optim_fn_accum_adam, AccumAdam, 1 / 32768),
        (partial(optim_fn_accum_adamw, weight_decay=0.2, accum_iter=3), AccumAdam, 0.2),
    ],
)
def test_weights_decay_and_biases_and_norms_do_not(make, kind, decay):
    network = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
    optimizer = make([*network.named_parameters()])
    assert isinstance(optimizer, kind)
    decays = {id(p): g["weight_decay"] for g in optimizer.param_groups for p in g["params"]}
    assert [decays[id(p)] for p in network.parameters()] == [decay, 0, 0, 0]


def test_schedules_as_documented():
    def work(rendezvous):
        model = wrap(rendezvous, lr_scheduler_fn=partial(StepLR, step_size=1, gamma=0.5), grad_clip_norm=1.0)
        assert model.get_lr() == RATE
        loss_of(model, batches(0, 1)[0]).backward()
        return model.get_lr()

    assert in_one(work) == RATE / 2
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0)
    with pytest.warns(UserWarning, match="t_max=10000 and t_warmup=500 steps were not both given"):
        lr_scheduler_fn_cosine_with_warmup(optimizer)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        schedule = lr_scheduler_fn_cosine_with_warmup(optimizer, t_max=10, t_warmup=4)
    rates = []
    for _ in range(14):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    assert rates[0] == pytest.approx(0.01) and rates[4] == pytest.approx(1.0)
    assert rates[9] == pytest.approx(0.5, abs=0.01) and optimizer.param_groups[0]["lr"] < 1e-5
