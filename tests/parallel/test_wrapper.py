"""DecentralizedDataParallel against the equations it promises, over ranks that are threads."""

import copy
import itertools
import math
import time

import numpy as np
import pytest
import torch
from torch import nn

from decentnode.config.type_check import REQUIRED, parameters_of
from decentnode.core.registry import GRAPHS
from decentnode.errors import BadInput, GraphError, RunFailed, StartError
from decentnode.parallel.bucket_optimizers import BY_GRADIENT_ALONE
from decentnode.parallel.mixture import MixInput
from decentnode.parallel.options import Options
from decentnode.parallel.topology import weighted_graph
from decentnode.training import optim as optimizers
from decentnode.training.optim import decay_groups
from tests.support.wrapper_ranks import Run, batches, flat, in_rank_threads, loss_of, small_network

SCHEMES = ("communicate_while_adapt", "adapt_then_combine")
ONE_BUCKET, A_LAYER, A_TENSOR = 25.0, 1e-4, 1e-6
"""Megabytes: the network has 47 numbers of 8 bytes."""


def topologies(size):
    """Every registered graph that needs nothing but the number of nodes."""
    for name, cls in GRAPHS.classes().items():
        needed = {option for option, (_, default) in parameters_of(cls).items() if default is REQUIRED}
        if needed == {"nodes"}:
            try:
                yield name, weighted_graph(name, None, size)
            except (BadInput, GraphError):
                continue


def dense(graph, a=1.0):
    size = graph.num_nodes
    return lambda step: (1 - a) * torch.eye(size).double() + a * torch.tensor(graph.matrix(step))


@pytest.mark.parametrize("size", [1, 2, 3, 5, 8])
def test_models_are_those_of_the_equations_on_every_topology(size):
    """Each graph in one of the ways to train, which the next test takes one by one."""
    cases = itertools.cycle(itertools.product(SCHEMES, (ONE_BUCKET, A_LAYER, A_TENSOR), (1, 3)))
    for (name, graph), case in zip(topologies(size), itertools.islice(cases, size, None), strict=False):
        scheme, bucket_mb, accumulation = case
        run = Run(
            topology=name, accumulation=accumulation, options={"scheme": scheme, "bucket_mb": bucket_mb}
        )
        error = (run.models(size) - run.oracle(size, dense(graph))).abs().max()
        assert error < 1e-13, (name, scheme, bucket_mb, accumulation)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_graphs_by_rounds_have_the_ranks_as_nodes(scheme):
    topology = {
        "name": "by_rounds",
        "schedule": [[0, "empty"], [1, "ring"], [3, {"name": "fully_connected"}]],
    }
    run = Run(topology=topology, options={"scheme": scheme})
    graph = weighted_graph(topology, None, 4)
    assert [len(graph.view(0, step).targets) for step in range(4)] == [0, 2, 2, 3]
    assert (run.models(4) - run.oracle(4, dense(graph))).abs().max() < 1e-13


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("bucket_mb", [ONE_BUCKET, A_LAYER, A_TENSOR])
@pytest.mark.parametrize("accumulation", [1, 3])
def test_schemes_buckets_and_accumulation(scheme, bucket_mb, accumulation):
    run = Run(accumulation=accumulation, options={"scheme": scheme, "bucket_mb": bucket_mb})
    graph = weighted_graph("ring", None, 3)
    assert torch.allclose(run.models(3), run.oracle(3, dense(graph)), rtol=0, atol=1e-13)


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize(
    "optimizer",
    [
        lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True),
        lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.3),
        lambda p: torch.optim.Adam(p, lr=0.01, weight_decay=0.3),
        lambda p: torch.optim.AdamW(p, lr=0.01, weight_decay=0.3),
    ],
    ids=["momentum", "decayed", "adam", "adamw"],
)
def test_what_an_optimizer_adds_is_computed_at_the_own_model(optimizer, scheme):
    run = Run(optimizer=optimizer, options={"scheme": scheme})
    assert torch.allclose(
        run.models(3), run.oracle(3, dense(weighted_graph("ring", None, 3))), rtol=0, atol=1e-13
    )


@pytest.mark.parametrize("name", sorted(BY_GRADIENT_ALONE))
def test_steps_that_are_made_from_the_mixed_model_do_not_depend_on_it(name):
    make = getattr(optimizers if name.startswith("Accum") else torch.optim, name)
    optimizer = lambda p: make(p, lr=0.01, weight_decay=0.0) if name != "Rprop" else make(p)
    run = Run(optimizer=optimizer, steps=3)
    assert torch.allclose(
        run.models(2), run.oracle(2, dense(weighted_graph("ring", None, 2))), rtol=0, atol=1e-13
    )


@pytest.mark.parametrize("scheme", SCHEMES)
def test_any_matrix_of_weights(scheme):
    w = torch.tensor([[0.7, 0.3, 0.0], [0.0, 0.5, 0.5], [0.25, 0.25, 0.5]]).double()
    run = Run(topology=w, options={"scheme": scheme})
    assert torch.allclose(run.models(3), run.oracle(3, lambda step: w), rtol=0, atol=1e-13)


@pytest.mark.parametrize("given", [lambda step: 0.25 * step, [(0, 0.0), (4, 1.0)]], ids=["function", "pairs"])
def test_mixing_strength_may_follow_a_schedule(given):
    run = Run(options={"mixing_strength": given})
    graph = weighted_graph("ring", None, 3)
    expected = run.oracle(3, lambda step: dense(graph, 0.25 * step)(step))
    assert torch.allclose(run.models(3), expected, rtol=0, atol=1e-13)


def test_mixing_strength_may_be_set_between_steps():
    run, graph = Run(steps=2), weighted_graph("ring", None, 3)

    def work(rank, rendezvous):
        model = run.wrap(rendezvous)
        run.train(model, rank, 0, 1)
        model.mixing_strength = 0.0
        run.train(model, rank, 1, 2)
        return flat(model)

    expected = run.oracle(3, lambda step: dense(graph, 1.0 - step)(step))
    assert torch.allclose(torch.stack(in_rank_threads(3, work)), expected, rtol=0, atol=1e-13)


def test_on_a_complete_graph_adapt_then_combine_is_the_mean_gradient():
    run = Run(topology="fully_connected", options={"scheme": "adapt_then_combine"})
    models = run.models(4)
    net = small_network()
    every = [batches(rank, run.steps) for rank in range(4)]
    for step in range(run.steps):
        net.zero_grad()
        for rank in range(4):
            (loss_of(net, every[rank][step]) / 4).backward()
        torch.optim.SGD(net.parameters(), lr=0.1).step()
    assert torch.allclose(models, flat(net).expand_as(models), rtol=0, atol=1e-13)


def test_all_ranks_begin_with_the_parameters_and_buffers_of_rank_0():
    def network(seed):
        torch.manual_seed(seed)
        net = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Linear(3, 200).bfloat16(), nn.Linear(2, 2))
        net[0].weight.requires_grad_(False)
        net[1].running_mean.normal_()
        net[1].num_batches_tracked.fill_(seed)
        return net

    networks = [network(seed) for seed in range(3)]
    expected = {name: value.clone() for name, value in networks[0].state_dict().items()}

    def keep(rank, rendezvous):
        model = Run(network=networks[rank]).wrap(rendezvous)
        return {name: value.clone() for name, value in model.module.state_dict().items()}

    for parameters in in_rank_threads(3, keep):
        assert parameters.keys() == expected.keys()
        for name, value in parameters.items():
            assert torch.equal(value, expected[name]), name


# Where others go wrong.


@pytest.mark.parametrize("order", ["before", "between", "after", "never", "to zero"])
def test_zero_grad_in_any_usual_place(order):
    run, graph = Run(), weighted_graph("ring", None, 3)

    def work(rank, rendezvous):
        model = run.wrap(rendezvous)
        for batch in batches(rank, run.steps):
            if order in ("before", "to zero"):
                model.optimizer.zero_grad(set_to_none=order == "before")
            loss = loss_of(model, batch)
            if order == "between":
                model.zero_grad()
            loss.backward()
            if order == "after":
                model.optimizer.step()  # as loops do; the backward pass has done it
                model.optimizer.zero_grad()
        return flat(model)

    models = torch.stack(in_rank_threads(3, work))
    assert torch.allclose(models, run.oracle(3, dense(graph)), rtol=0, atol=1e-13)


def test_two_forwards_per_backward_and_any_number_for_evaluation_are_one_step():
    run = Run()

    def work(rank, rendezvous):
        model = run.wrap(rendezvous)
        for inputs, wanted in batches(rank, run.steps):
            halves = model(inputs[:3]), model(inputs[3:])
            if rank == 0:  # an evaluation on one rank holds up nobody
                model.eval()
                model(inputs)
                model.train()
                with torch.no_grad():
                    model(inputs)
            (torch.cat(halves) - wanted).square().mean().backward()
        assert model.step == run.steps
        return flat(model)

    expected = run.oracle(3, dense(weighted_graph("ring", None, 3)))
    assert torch.allclose(torch.stack(in_rank_threads(3, work)), expected, rtol=0, atol=1e-13)


class Forked(nn.Module):
    """Two ways through it, and a layer that nobody uses."""

    def __init__(self):
        super().__init__()
        self.left, self.right, self.idle = (nn.Linear(4, 2).double() for _ in range(3))

    def forward(self, x, left=True):
        return (self.left if left else self.right)(x)


@pytest.mark.parametrize("bucket_mb", [ONE_BUCKET, A_TENSOR])
def test_unused_parameters_are_mixed_and_delay_no_rank(bucket_mb):
    torch.manual_seed(3)
    network = Forked()
    run = Run(network=network, options={"bucket_mb": bucket_mb}, steps=6)
    w = torch.tensor(weighted_graph("ring", None, 3).matrix())

    def goes_left(rank, step):
        return (rank + step) % 3 == 0

    def work(rank, rendezvous):
        model = run.wrap(rendezvous)
        with torch.no_grad():  # so that there is something to mix
            for p in model.module.idle.parameters():
                p.add_(rank)
        for step, (x, y) in enumerate(batches(rank, run.steps)):
            (model(x, goes_left(rank, step)) - y).square().mean().backward()
        return flat(model)

    start = flat(network)
    x = start.repeat(3, 1)
    x[:, -10:] += torch.arange(3.0).double()[:, None]
    net = Forked()
    for step in range(run.steps):
        gradients = []
        for rank in range(3):
            nn.utils.vector_to_parameters(x[rank].clone(), net.parameters())
            net.zero_grad(set_to_none=False)
            inputs, wanted = batches(rank, run.steps)[step]
            (net(inputs, goes_left(rank, step)) - wanted).square().mean().backward()
            zeros = [torch.zeros_like(p) if p.grad is None else p.grad for p in net.parameters()]
            gradients.append(torch.cat([g.reshape(-1) for g in zeros]))
        x = w @ x - 0.1 * torch.stack(gradients)
    assert torch.allclose(torch.stack(in_rank_threads(3, work)), x, rtol=0, atol=1e-13)


def test_mixed_types_in_one_module():
    torch.manual_seed(0)
    layers = [nn.Linear(4, 4), nn.Linear(4, 4).double(), nn.Linear(4, 4).bfloat16(), nn.Linear(4, 2).half()]

    class Mixed(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList(layers)

        def forward(self, x):
            for layer in self.layers:
                x = layer(x.to(layer.weight.dtype))
            return x.double()

    run = Run(network=Mixed(), options={"bucket_mb": 1e-4}, steps=3)
    models = [[p.double() for p in model] for model in in_rank_threads(2, lambda r, s: trained(run, r, s))]
    dtypes = [p.dtype for p in run.network.parameters()]
    graph = weighted_graph("ring", None, 2)
    expected = run.oracle(2, dense(graph))  # float64 is the widest of all: nothing is rounded to less there
    assert len(set(dtypes)) == 4
    for rank in range(2):
        values = torch.cat([p.reshape(-1) for p in models[rank]])
        assert (values - expected[rank]).abs().max() < 0.05


def trained(run, rank, rendezvous):
    model = run.wrap(rendezvous)
    run.train(model, rank)
    return [p.detach().clone() for p in model.parameters()]


def test_halves_are_summed_up_in_single_precision():
    class One(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.tensor([1.0], dtype=torch.bfloat16))

        def forward(self, x):
            return self.w * x

    def work(rank, rendezvous):
        model = Run(network=One(), topology="fully_connected", optimizer=sgd_of_nothing).wrap(rendezvous)
        with torch.no_grad():
            model.module.w.fill_(256.0 if rank == 0 else 1.0)
        model(torch.zeros(1, dtype=torch.bfloat16)).sum().backward()
        return float(model.module.w.detach())

    # In bfloat16, whose next number after 32 is 32.25, adding eighths to 32 one by one would change nothing.
    assert in_rank_threads(8, work) == [float(torch.tensor((256 + 7) / 8).bfloat16())] * 8


def sgd_of_nothing(parameters):
    return torch.optim.SGD(parameters, lr=0.0)


def everything(**more):
    """A run with all that depends on the whole gradient, or on steps made."""
    options = {"clip_norm": 0.2, "scheduler": lambda o: torch.optim.lr_scheduler.ExponentialLR(o, 0.8)}
    optimizer = lambda p: torch.optim.Adam(p, lr=0.05, weight_decay=0.01)
    return Run(optimizer=optimizer, options=options | more)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_results_do_not_depend_on_the_size_of_buckets(scheme):
    models = [everything(bucket_mb=mb, scheme=scheme).models(3) for mb in (ONE_BUCKET, A_LAYER, A_TENSOR)]
    assert torch.equal(models[0], models[1])
    assert torch.equal(models[0], models[2])


@pytest.mark.parametrize("in_flight", [1, 2, 100])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_results_do_not_depend_on_how_many_buckets_travel_at_a_time(scheme, in_flight):
    """On a graph that changes, with buffers that are mixed, an average, and a model that is sent anew."""
    network = Counting()

    def models(most):
        options = {"scheme": scheme, "bucket_mb": A_TENSOR, "buffers": "mix", "in_flight": most}
        run = Run(network, topology="alternating_ring", options=options)

        def work(rank, rendezvous):
            flying = []
            note_flying = lambda mixture: flying.append(len(model._engine.exchanges.handles))
            model = run.wrap(rendezvous, before_mixing=note_flying)
            run.train(model, rank, 0, 2)
            with model.averaged() as distance:
                average = flat(model)
            run.train(model, rank, 2, 3)
            model.resend()
            run.train(model, rank, 3)
            assert model.endpoint.refused == {}
            # One more has been taken out and not been released.
            assert max(flying) + 1 == min(most or 100, 3)
            return torch.cat((flat(model), average, model.module.seen, torch.tensor([distance]).double()))

        return torch.stack(in_rank_threads(3, work))

    assert torch.equal(models(in_flight), models(None))


def test_the_norm_that_is_clipped_is_that_of_the_whole_gradient():
    run = Run(optimizer=lambda p: torch.optim.SGD(p, lr=1.0), steps=1, topology=torch.eye(2).tolist())
    run.options = {"clip_norm": 0.01, "bucket_mb": A_TENSOR}
    moved = (run.models(2) - flat(run.network)).norm(dim=1)
    assert torch.allclose(moved, torch.full((2,), 0.01).double(), rtol=1e-3)


def test_updates_in_the_step_are_those_of_the_backward_pass():
    assert torch.allclose(Run(options={"update_in": "step"}).models(3), Run().models(3), rtol=0, atol=1e-15)


def test_the_usual_loop_with_a_scaler_and_clipping():
    run = Run(options={"update_in": "step"})

    def work(rank, rendezvous):
        model, scaler = run.wrap(rendezvous), torch.amp.GradScaler("cpu", init_scale=8.0)
        for batch in batches(rank, run.steps):
            model.optimizer.zero_grad()
            scaler.scale(loss_of(model, batch)).backward()
            scaler.unscale_(model.optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 0.2)
            scaler.step(model.optimizer)
            scaler.update()
        return flat(model)

    assert torch.allclose(
        torch.stack(in_rank_threads(3, work)), Run(options={"clip_norm": 0.2}).models(3), atol=1e-15
    )


@pytest.mark.parametrize("bucket_mb", [ONE_BUCKET, A_TENSOR])
def test_a_gradient_that_is_not_finite_skips_the_whole_step_and_is_mixed_all_the_same(bucket_mb):
    run = Run(topology="fully_connected", options={"bucket_mb": bucket_mb}, steps=3)

    def work(rank, rendezvous):
        scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
        model = run.wrap(rendezvous, scaler=scaler)
        for step, batch in enumerate(batches(rank, run.steps)):
            loss = loss_of(model, batch)
            if step == 1 and rank == 0:
                loss = loss + model.module[0].bias[0] * math.inf  # one element of one bucket
            scaler.scale(loss).backward()
        assert scaler.get_scale() == (4.0 if rank == 0 else 8.0)
        return flat(model)

    x = torch.stack([flat(run.network)] * 2)
    net, w = small_network(), torch.full((2, 2), 0.5).double()
    for step in range(run.steps):
        gradients = torch.zeros_like(x)
        for rank in range(2):
            if (step, rank) != (1, 0):
                nn.utils.vector_to_parameters(x[rank].clone(), net.parameters())
                net.zero_grad()
                loss_of(net, batches(rank, run.steps)[step]).backward()
                gradients[rank] = torch.cat([p.grad.reshape(-1) for p in net.parameters()])
        x = w @ x - 0.1 * gradients
    assert torch.allclose(torch.stack(in_rank_threads(2, work)), x, rtol=0, atol=1e-13)


def test_weights_decay_and_biases_do_not_in_whichever_bucket():
    optimizer = lambda p: torch.optim.SGD(decay_groups(p, 0.5), lr=0.1)
    expected = Run(optimizer=optimizer).oracle(2, dense(weighted_graph("ring", None, 2)))
    for bucket_mb in (ONE_BUCKET, A_TENSOR):
        models = Run(optimizer=optimizer, options={"bucket_mb": bucket_mb}).models(2)
        assert torch.allclose(models, expected, rtol=0, atol=1e-13)
    plain = Run(optimizer=lambda p: torch.optim.SGD(p, lr=0.1)).models(2)
    difference = (models - plain).abs()
    assert difference[:, :20].min() > 1e-6  # the first weight


def test_a_gradient_that_is_requested_by_itself_is_no_step():
    def work(rank, rendezvous):
        model = Run().wrap(rendezvous)
        inputs, wanted = batches(rank, 1)[0]
        inputs.requires_grad_(True)
        slope = torch.autograd.grad(model(inputs).sum(), inputs, create_graph=True)[0]
        assert model.step == 0
        (loss_of(model, (inputs, wanted)) + slope.square().mean()).backward()
        return model.step

    assert in_rank_threads(2, work) == [1, 1]


def test_a_second_backward_through_the_same_graph_is_refused():
    def work(rank, rendezvous):
        model = Run().wrap(rendezvous)
        loss = loss_of(model, batches(rank, 1)[0])
        loss.backward(retain_graph=True)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            loss.backward()

    in_rank_threads(1, work)


def test_a_backward_pass_that_ended_early_is_noticed():
    def work(rank, rendezvous):
        model = Run().wrap(rendezvous, bucket_mb=A_TENSOR)
        inputs = batches(rank, 1)[0][0]
        hidden = model.module[0](inputs)
        hidden.register_hook(lambda gradient: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            model.module[1:](hidden).sum().backward()
        with pytest.raises(RunFailed, match="rank 0, step 0: the last backward pass ended early"):
            model(inputs)

    in_rank_threads(1, work)


# Averages.


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("trained_before", [0, 2])
@pytest.mark.parametrize("topology", ["ring", "alternating_ring"])
def test_the_average_can_be_read_and_changes_nothing(scheme, trained_before, topology):
    run = Run(topology=topology, options={"scheme": scheme, "bucket_mb": A_LAYER})
    # So late that others would have written again what it reads, if they were allowed to.
    be_late = lambda mixture: time.sleep(0.02)

    def work(rank, rendezvous):
        model = run.wrap(rendezvous, before_mixing=be_late if rank == 0 else None)
        run.train(model, rank, 0, trained_before)
        before = flat(model)
        with model.averaged() as distance:
            average = flat(model)
            with pytest.raises(RunFailed, match="can be looked at, not trained"):
                model(batches(rank, 1)[0][0])
        assert torch.equal(flat(model), before)
        assert model.distance_to_average() == distance
        run.train(model, rank, trained_before)
        return before, average, distance, flat(model)

    results = in_rank_threads(3, work)
    mean = torch.stack([before for before, *_ in results]).mean(0)
    for before, average, distance, _ in results:
        assert torch.equal(average, results[0][1])
        assert torch.allclose(average, mean, rtol=0, atol=1e-15)
        assert distance == pytest.approx(float((before - mean).norm()), abs=1e-12)
    assert torch.equal(torch.stack([after for *_, after in results]), run.models(3))


@pytest.mark.parametrize("scheme", SCHEMES)
def test_an_average_for_good_is_not_undone(scheme):
    run = Run(options={"scheme": scheme}, optimizer=sgd_of_nothing)

    def work(rank, rendezvous):
        model = run.wrap(rendezvous)
        with torch.no_grad():
            for p in model.parameters():
                p.add_(rank)
        model.resend()
        model.average()
        average = flat(model)
        run.train(model, rank)
        return average, flat(model)

    for average, after in in_rank_threads(3, work):
        assert torch.allclose(average, flat(run.network) + 1, rtol=0, atol=1e-14)
        assert torch.allclose(after, average, rtol=0, atol=1e-14)


class Counting(nn.Module):
    """A buffer that every forward pass in training adds to."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 2).double()
        self.register_buffer("seen", torch.zeros(3).double())
        self.register_buffer("times", torch.zeros((), dtype=torch.int64))

    def forward(self, x):
        if self.training:
            self.seen += x.sum()
            self.times += 1
        return self.layer(x)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_buffers_are_mixed_with_what_the_forward_pass_has_added(scheme):
    run = Run(network=Counting(), options={"buffers": "mix", "scheme": scheme})
    w = dense(weighted_graph("ring", None, 4), 0.75)(0)

    def work(rank, rendezvous):
        model = run.wrap(rendezvous, mixing_strength=0.75)
        run.train(model, rank)
        assert int(model.module.times) == run.steps
        return model.module.seen.clone()

    x = torch.zeros(4, 3).double()
    for step in range(run.steps):
        added = torch.stack([batches(rank, run.steps)[step][0].sum().expand(3) for rank in range(4)])
        own_weights = w.diagonal().diag()  # a change that was made while neighbors got x(t)
        x = w @ x + own_weights @ added if scheme == SCHEMES[0] else w @ (x + added)
    assert torch.allclose(torch.stack(in_rank_threads(4, work)), x, rtol=0, atol=1e-12)


@pytest.mark.parametrize("own_weight", [0.0, 0.02])
def test_a_variance_that_is_mixed_stays_positive(own_weight):
    """Where the own weight is below the momentum, a batch takes more from it than the mix leaves."""
    torch.manual_seed(0)
    norm = nn.BatchNorm1d(4, track_running_stats=True)
    run = Run(nn.Sequential(norm, nn.Linear(4, 2)), optimizer=sgd_of_nothing, options={"buffers": "mix"})
    run.topology = [[own_weight, 1 - own_weight], [1 - own_weight, own_weight]]

    def work(rank, rendezvous):
        model, least = run.wrap(rendezvous), math.inf
        for step, (x, _) in enumerate(batches(rank, 6)):
            model(x.float() * (1e4 if (rank, step) == (0, 1) else 0.01)).sum().backward()
            least = min(least, float(model.module[0].running_var.min()))
        return least

    assert min(in_rank_threads(2, work)) > 0


class Replacing(Counting):
    """Puts another tensor in the place of its buffer."""

    def forward(self, x):
        if self.training:
            self.seen = self.seen.clone()
        return super().forward(x)


@pytest.mark.parametrize("buffers", ["average", "mix"])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_forward_pass_may_put_other_buffers_in_place(scheme, buffers):
    def seen(network):
        run = Run(network=network, options={"buffers": buffers, "scheme": scheme})

        def work(rank, rendezvous):
            model = run.wrap(rendezvous)
            run.train(model, rank, 0, 3)
            with model.averaged():
                average = model.module.seen.clone()
            run.train(model, rank, 3)
            return torch.cat((average, model.module.seen))

        return torch.stack(in_rank_threads(3, work))

    torch.manual_seed(0)
    network, other = Counting(), Replacing()
    other.load_state_dict(network.state_dict())
    assert torch.equal(seen(other), seen(network))


@pytest.mark.parametrize("buffers", ["local", "average", "mix"])
def test_buffers_in_the_average_come_back(buffers):
    run = Run(network=Counting(), options={"buffers": buffers})

    def work(rank, rendezvous):
        model = run.wrap(rendezvous)
        run.train(model, rank, 0, 2)
        before = model.module.seen.clone()
        with model.averaged():
            average = model.module.seen.clone()
        assert torch.equal(model.module.seen, before)
        run.train(model, rank, 2)
        return before, average

    results = in_rank_threads(3, work)
    mean = torch.stack([before for before, _ in results]).mean(0)
    for before, average in results:
        assert torch.allclose(average, before if buffers == "local" else mean, rtol=0, atol=1e-12)


# Parameters changed by hand.


@torch.no_grad()
def in_place(model, values):
    parameters = list(model.parameters())
    for p, part in zip(parameters, values.split([p.numel() for p in parameters]), strict=True):
        p.copy_(part.view_as(p))


def through_data(model, values):
    nn.utils.vector_to_parameters(values, model.parameters())


@pytest.mark.parametrize("options", [{}, {"update_in": "step"}, {"buffers": "mix", "bucket_mb": A_TENSOR}])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_parameters_may_be_given_other_memory(scheme, options):
    """At the start, before a model is sent anew, and before averages."""
    run = Run(Counting(), options={"scheme": scheme} | options, steps=6)

    def models(change):
        def work(rank, rendezvous):
            model, seen = run.wrap(rendezvous), []
            change(model, torch.arange(10.0).double() * (1 + rank))
            run.train(model, rank, 0, 2)
            change(model, torch.linspace(0, 1 + rank, 10).double())
            model.resend()
            run.train(model, rank, 2, 4)
            change(model, torch.linspace(-1, rank, 10).double())
            with model.averaged() as distance:
                seen.append(flat(model))
            run.train(model, rank, 4)
            change(model, torch.linspace(rank, 2, 10).double())
            seen.append(torch.tensor([distance, model.average()]).double())
            seen.append(flat(model))
            run.train(model, rank, 0, 2)
            return torch.cat((*seen, flat(model), model.module.seen))

        return torch.stack(in_rank_threads(3, work))

    assert torch.equal(models(through_data), models(in_place))


@pytest.mark.parametrize("act", ["step", "resend", "average"])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_parameters_that_no_longer_fit_are_refused_with_their_name(scheme, act):
    run = Run(options={"scheme": scheme})

    def work(rank, rendezvous):
        model = run.wrap(rendezvous)
        if act != "step":
            run.train(model, rank)
        model.half()
        halves = [tensor.half() for tensor in batches(rank, 1)[0]]
        step = lambda: loss_of(model, halves).backward()
        message = (
            r"'4\.bias' began as torch\.float64 \(2,\) on cpu, and is torch\.float16 \(2,\) on cpu; wrap"
        )
        with pytest.raises(BadInput, match=message):
            {"step": step, "resend": model.resend, "average": model.average}[act]()

    in_rank_threads(1, work)


# Hooks.


def test_a_hook_sees_what_is_about_to_be_mixed_and_may_change_it():
    seen = {}

    def only_own(mixture):
        seen.setdefault(mixture.rank, []).append(
            (mixture.step, sorted(mixture.received), set(mixture.named(0)))
        )
        mixture.weights.update({j: float(j == mixture.rank) for j in mixture.weights})

    run = Run(options={"before_mixing": only_own, "bucket_mb": A_LAYER}, steps=2)
    assert torch.allclose(
        run.models(3), run.oracle(3, lambda step: torch.eye(3).double()), rtol=0, atol=1e-13
    )
    names = {name for name, _ in run.network.named_parameters()}
    for rank in range(3):
        others = sorted({0, 1, 2} - {rank})
        assert {(step, tuple(heard)) for step, heard, _ in seen[rank]} == {
            (0, tuple(others)),
            (1, tuple(others)),
        }
        assert set().union(*(tensors for _, _, tensors in seen[rank])) == names


@pytest.mark.parametrize("number", [torch.tensor, np.float64])
def test_weights_that_a_hook_takes_from_tensors_and_arrays_are_plain_numbers_where_they_are_used(
    number, monkeypatch
):
    """A kernel would take a tensor for a pointer."""
    kinds = set()

    def weigh(mixture):
        mixture.weights.update({j: number(w) for j, w in mixture.weights.items()})

    def write(mixture, out, write=MixInput.write):
        kinds.update(type(w) for w in mixture.weights.values())
        write(mixture, out)

    monkeypatch.setattr(MixInput, "write", write)
    Run(options={"before_mixing": weigh}, steps=2).models(3)
    assert kinds == {float}


# Going on.


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("topology", ["ring", "exponential"])
def test_a_run_continues_exactly_from_a_saved_state(scheme, topology, tmp_path):
    def run(**more):
        made = everything(scheme=scheme, mixing_strength=lambda step: 0.5 + step / 10, **more)
        made.topology = topology
        return made

    def save(rank, rendezvous):
        model = run(bucket_mb=A_TENSOR, scaler=torch.amp.GradScaler("cpu", init_scale=4.0)).wrap(rendezvous)
        train_scaled(model, rank, 0, 2)
        torch.save(model.state_dict(), tmp_path / f"{rank}.pt")
        train_scaled(model, rank, 2, 4)
        return flat(model)

    def train_on(rank, rendezvous):
        model = run(bucket_mb=A_LAYER, scaler=torch.amp.GradScaler("cpu", init_scale=64.0)).wrap(rendezvous)
        train_scaled(model, rank, 0, 1)  # something in flight, which is not what was saved
        model.load_state_dict(torch.load(tmp_path / f"{rank}.pt"))
        assert model.step == 2
        train_scaled(model, rank, 2, 4)
        return flat(model)

    uninterrupted = torch.stack(in_rank_threads(3, save))
    assert torch.equal(torch.stack(in_rank_threads(3, train_on)), uninterrupted)


def train_scaled(model, rank, first, last):
    for batch in batches(rank, 4)[first:last]:
        model.options.scaler.scale(loss_of(model, batch)).backward()


def test_a_state_that_does_not_fit_is_refused():
    def work(rank, rendezvous):
        model = Run().wrap(rendezvous)
        state = model.state_dict()
        del state["_extra_state"]["optimizer"]["0.bias"]
        with pytest.raises(BadInput, match=r"no optimizer state of parameter '0\.bias'"):
            model.load_state_dict(state)

    in_rank_threads(1, work)


# Learning rates.


def test_learning_rates_may_be_set_on_the_whole():
    def work(rank, rendezvous):
        model = Run(options={"bucket_mb": A_TENSOR}).wrap(rendezvous)
        schedule = torch.optim.lr_scheduler.StepLR(model.optimizer, 1, 0.5)
        for batch in batches(rank, 2):
            loss_of(model, batch).backward()
            model.optimizer.step()
            schedule.step()
        return model.get_lr(), {
            g["lr"] for part in model.optimizer.optimizers for g in part.optimizer.param_groups
        }

    assert in_rank_threads(2, work) == [(0.025, {0.025})] * 2


# Losses and other ends.


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_rank_that_left_is_named_with_rank_and_step(scheme):
    def work(rank, rendezvous):
        run = Run(options={"scheme": scheme})
        model = run.wrap(rendezvous)
        run.train(model, rank, 0, 2)
        if rank == 1:
            model.close()
            return
        with pytest.raises(RunFailed, match=rf"rank {rank}, step [23]: rank 1: left after") as caught:
            run.train(model, rank, 2)
        model.close()
        assert caught.value.__cause__.peer == 1

    in_rank_threads(3, work)


def test_a_rank_that_left_is_done_without_if_requested():
    run = Run(options={"on_loss": "continue"}, optimizer=sgd_of_nothing, steps=30)

    def work(rank, rendezvous):
        model = run.wrap(rendezvous)
        with torch.no_grad():
            for p in model.parameters():
                p.fill_(rank)
        if rank == 3:
            model.close()
            return None
        run.train(model, rank)
        return flat(model)

    *left, gone = in_rank_threads(4, work)
    assert gone is None
    for values in left:
        assert torch.allclose(values, values[0].expand_as(values), rtol=0, atol=1e-12)  # the three agree
        assert torch.allclose(values, left[0], atol=1e-3)


def test_a_model_that_is_not_finite_is_named():
    def work(rank, rendezvous):
        model = Run().wrap(rendezvous)
        if rank == 1:
            with torch.no_grad():
                model.module[2].bias[1] = math.nan
        with pytest.raises(
            RunFailed, match=rf"rank {rank}, step 0: rank 1: its model is not finite: nan in 2\.bias"
        ):
            loss_of(model, batches(rank, 1)[0]).backward()
        model.close()

    in_rank_threads(2, work)


def test_ranks_that_wrap_something_else_are_named():
    def work(rank, rendezvous):
        network = small_network() if rank != 2 else nn.Linear(4, 2).double()
        with pytest.raises(
            StartError, match=rf"rank {rank}: parameters differs: \w+ on rank 0, \w+ on rank 2$"
        ):
            Run(network=network).wrap(rendezvous)

    in_rank_threads(3, work)


def test_ranks_that_would_do_something_else_after_a_loss_are_named():
    def work(rank, rendezvous):
        differ = f"rank {rank}: on_loss differs: stop on rank 0, continue on rank 1"
        with pytest.raises(StartError, match=f"^{differ}$"):
            Run().wrap(rendezvous, on_loss="continue" if rank else "stop")

    in_rank_threads(2, work)


def test_a_rank_that_never_joins_is_named():
    def work(rank, rendezvous):
        if rank == 0:
            with pytest.raises(StartError, match=r"rank 0: ranks \[1\] did not arrive within 0 s"):
                Run(options={"deadline": 0.2}).wrap(rendezvous)

    in_rank_threads(2, work)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"schema": "x"}, r"DecentralizedDataParallel has no option 'schema'; did you mean 'scheme'\?"),
        ({"scheme": "x"}, "scheme: must be .*, not 'x'"),
        ({"bucket_mb": 0}, "bucket_mb: must be a number > 0, not 0"),
        ({"bucket_mb": math.inf}, r"bucket_mb: must be at most 1e\+09, not inf"),
        ({"deadline": math.inf}, r"deadline: must be at most 1e\+09, not inf"),
        ({"in_flight": 0}, "in_flight: must be a whole number > 0 or None, not 0"),
        (
            {"mixing_strength": 2.0},
            "mixing_strength: must be a number from 0 to 1, .* or a function, not 2.0",
        ),
        (
            {"mixing_strength": "x"},
            "mixing_strength: must be a number from 0 to 1, .* or a function, not 'x'",
        ),
        ({"mixing_strength": [(3, 1), (0, 1)]}, "must be a number from 0 to 1, pairs of step and number, .*"),
        ({"mixing_strength": ((0, 1.5),)}, "must be a number from 0 to 1, pairs of step and number, .*"),
        ({"mixing_strength": None}, "mixing_strength: must be a number from 0 to 1, .* not None"),
        ({"mixing_strength": math.nan}, "mixing_strength: must be a number from 0 to 1, .* not nan"),
        ({"deadline": object()}, "deadline: must be a number > 0, not a value of type object"),
        ({"scheme": None}, "scheme: must be .*, not None"),
        ({"scaler": True}, "scaler: must be a torch.amp.GradScaler or None, not True"),
        ({"scheduler": 3}, "scheduler: must be a function that makes an LRScheduler .*, or None, not 3"),
        ({"before_mixing": []}, "before_mixing: must be a function of a MixInput, or None, not a list of 0"),
        ({"update_in": "step", "clip_norm": 1.0}, "scaler and clip_norm are for update_in='backward'"),
        ({"communication": "pigeons"}, "unknown communication 'pigeons'"),
        ({"weights": "file"}, "weights file: .*path"),
    ],
)
def test_what_cannot_be_is_reported_in_one_line(options, message):
    def work(rank, rendezvous):
        with pytest.raises(BadInput, match=message):
            Run(options=options).wrap(rendezvous)

    in_rank_threads(1, work)


@pytest.mark.parametrize(
    ("topology", "message"),
    [
        ("rign", "unknown graph 'rign'; did you mean 'ring'"),
        ({"name": "hypercube", "dimension": 3}, "topology: has 8 nodes; 2 ranks were started"),
        ({"name": "ring", "hops": 3}, "graph ring: hops: unknown option"),
        ([[1.0, 0.0]], "a matrix of weights for 2 ranks is 2 x 2"),
        ([[1.0, 0.5], [0.0, 1.0]], "the weights that rank 0 gives sum to 1.5, not to 1"),
        ([[2.0, -1.0], [0.0, 1.0]], "weights must be numbers from 0 to 1"),
        ([[1.0], [0.5, 0.5]], "topology: must be .* a matrix of numbers whose rows are of one length"),
        ([["a", "b"], ["c", "d"]], "topology: must be .* a matrix of numbers whose rows are of one length"),
        (object(), "topology: must be a name, a mapping, a Graph, or a matrix of numbers"),
    ],
)
def test_topologies_that_cannot_be(topology, message):
    with pytest.raises(BadInput, match=message):
        weighted_graph(topology, None, 2)


def test_a_module_without_shapes_is_to_be_run_once_before():
    def work(rank, rendezvous):
        with pytest.raises(BadInput, match="'weight' has no shape yet; run the module once"):
            Run(network=nn.LazyLinear(2)).wrap(rendezvous)

    in_rank_threads(1, work)


@pytest.mark.parametrize("buffers", ["average", "mix", "local"])
def test_buffers_made_by_expand_become_some_that_can_be_written_to(buffers):
    module = nn.Linear(4, 2).double()
    module.register_buffer("scale", torch.ones(1).double().expand(3))
    module.register_buffer("count", torch.zeros(1, dtype=torch.int64).expand(3))

    def work(rank, rendezvous):
        model = Run(network=module, options={"buffers": buffers}).wrap(rendezvous)
        with model.averaged():
            pass
        model.module.scale[0] = 2.0
        return model.module.scale

    for scale in in_rank_threads(2, work):
        assert scale.tolist() == [2.0, 1.0, 1.0]


@pytest.mark.parametrize("a", ["x", None, 2.0])
def test_a_mixing_strength_that_a_function_gives_is_checked(a):
    def work(rank, rendezvous):
        model = Run().wrap(rendezvous, mixing_strength=lambda step: a)
        with pytest.raises(BadInput, match=f"gives '?{a}'? for step 0; it must be from 0 to 1"):
            loss_of(model, batches(rank, 1)[0]).backward()

    in_rank_threads(1, work)


@pytest.mark.parametrize("number", [1, True, np.float32(0.5), torch.tensor(0.5)], ids=repr)
def test_a_mixing_strength_may_be_any_kind_of_number(number):
    assert Options(mixing_strength=number).strength(0) == float(number)


@pytest.mark.parametrize(
    ("factory", "message"),
    [
        (torch.optim.LBFGS, "the optimizer factory gives LBFGS, whose step needs a closure"),
        (torch.optim.SGD([nn.Parameter(torch.zeros(1))]), "optimizer: must be a function .* not .* SGD"),
        (lambda parameters: None, "the optimizer factory must return an Optimizer, not None"),
    ],
)  # fmt: skip
def test_optimizers_that_cannot_be(factory, message):
    def work(rank, rendezvous):
        only = (lambda p: factory([tensor for _, tensor in p])) if factory is torch.optim.LBFGS else factory
        with pytest.raises(BadInput, match=message):
            Run(optimizer=only).wrap(rendezvous)

    in_rank_threads(1, work)


def test_a_step_with_any_arguments_needs_no_closure():
    class Passing(torch.optim.SGD):
        def step(self, *arguments, **options):
            return super().step(*arguments, **options)

    models = Run(optimizer=lambda p: Passing(p, lr=0.1)).models(2)
    assert torch.allclose(models, Run().models(2), rtol=0, atol=1e-13)


def test_an_optimizer_of_something_else_is_refused():
    other = nn.Parameter(torch.zeros(1))

    def work(rank, rendezvous):
        with pytest.raises(BadInput, match="the optimizer factory took 1 parameters that it was not given"):
            Run(optimizer=lambda p: torch.optim.SGD([other], lr=0.1)).wrap(rendezvous)

    in_rank_threads(1, work)


def test_a_copy_of_the_wrapper_is_connected_to_nobody(tmp_path):
    def work(rank, rendezvous):
        model = Run().wrap(rendezvous)
        averaged = torch.optim.swa_utils.AveragedModel(model)
        before = flat(averaged)
        loss_of(model, batches(rank, 1)[0]).backward()
        assert torch.equal(flat(averaged), before) and not torch.equal(flat(model), before)
        averaged.update_parameters(model)
        assert torch.equal(flat(averaged), flat(model))
        assert averaged.module.state_dict().keys() == model.state_dict().keys() - {"_extra_state"}
        with pytest.raises(BadInput, match="cannot be pickled; save its state_dict"):
            copy.copy(model)
        model.close()

    in_rank_threads(2, work)


def test_sparse_gradients_are_clipped_as_dense_ones_are():
    def work(sparse):
        torch.manual_seed(0)
        module = nn.Sequential(nn.Embedding(5, 3, sparse=sparse), nn.Flatten(), nn.Linear(9, 2))
        run = Run(network=module, options={"clip_norm": 0.1, "keep_freed_memory": False})

        def steps(rank, rendezvous):
            model = run.wrap(rendezvous)
            for _ in range(2):
                model(torch.tensor([[1, 2, 1], [rank, 3, 1]])).square().sum().backward()
            return flat(model)

        return torch.stack(in_rank_threads(2, steps))

    assert torch.allclose(work(sparse=True), work(sparse=False), atol=1e-6)
