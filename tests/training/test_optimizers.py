"""Optimizers and schedules against the published equations, term by term in float64."""

import copy
import math
from functools import partial

import pytest
import torch
from torch import nn

import decentnode
from decentnode.node.experiment import Experiment
from decentnode.training.optim import AccumAdam, AccumAdamW, InverseSquareRoot, WarmupCosine, decay_groups
from tests.support.in_process import Nodes

IMPLEMENTATIONS = ["auto", "for_loop", "foreach", "fused"]
SHAPES = ((3, 4), (5,), (), (2, 1, 3))
OPTIONS = {"lr": 0.02, "betas": (0.8, 0.93), "eps": 1e-6}


def parameters(seed=0, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator, dtype=dtype).requires_grad_() for shape in SHAPES]


def gradients(step, dtype=torch.float64):
    generator = torch.Generator().manual_seed(1000 + step)
    return [torch.randn(shape, generator=generator, dtype=dtype) for shape in SHAPES]


def run(make, steps, first=0, params=None, optimizer=None):
    params = params or parameters()
    optimizer = optimizer or make(params)
    for step in range(first, steps):
        for parameter, gradient in zip(params, gradients(step, params[0].dtype), strict=True):
            parameter.grad = gradient.clone()
        optimizer.step()
    return params, optimizer


def published(steps, K, decay, decoupled, lr, betas, eps):
    """Decent-DP's rule as it is written there, M and V stored with beta multiplied in."""
    b1, b2 = betas
    x = [p.detach().clone() for p in parameters()]
    M, V, A = ([torch.zeros_like(p) for p in x] for _ in range(3))
    for s in range(1, steps + 1):
        k = -(-s // K)
        for i, g in enumerate(gradients(s - 1)):
            if decoupled:
                x[i] = (1 - lr * decay) * x[i]
            else:
                g = g + decay * x[i]
            A[i] = A[i] + g / K
            m, v = M[i] + (1 - b1) * g, V[i] + (1 - b2) * g**2
            x[i] = x[i] - lr / (1 - b1**k) * m / (v.sqrt() / math.sqrt(1 - b2**k) + eps)
            if s % K == 0:
                M[i] = b1 * (M[i] + (1 - b1) * A[i])
                V[i] = b2 * (V[i] + (1 - b2) * A[i] ** 2)
                A[i] = torch.zeros_like(A[i])
    return x


def assert_close(actual, expected, tolerance=1e-12):
    for left, right in zip(actual, expected, strict=True):
        assert (left.detach() - right.detach()).abs().max() <= tolerance


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("K", [1, 3, 4])
@pytest.mark.parametrize("decay", [0.0, 0.1])
@pytest.mark.parametrize("cls", [AccumAdam, AccumAdamW])
def test_steps_are_those_of_the_published_rule(cls, decay, K, implementation):
    ours = partial(cls, **OPTIONS, weight_decay=decay, accum_iter=K, implementation=implementation)
    vectors, _ = run(ours, 14)
    assert_close(vectors, published(14, K, decay, cls is AccumAdamW, **OPTIONS))


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize(("cls", "theirs"), [(AccumAdam, torch.optim.Adam), (AccumAdamW, torch.optim.AdamW)])
def test_one_step_a_window_is_adam(cls, theirs, implementation):
    vectors, ours = run(partial(cls, accum_iter=1, weight_decay=0.1, implementation=implementation), 25)
    expected, adam = run(partial(theirs, weight_decay=0.1), 25)
    assert_close(vectors, expected)
    for vector, of_adam in zip(vectors, expected, strict=True):
        assert_close([ours.state[vector]["exp_avg"]], [adam.state[of_adam]["exp_avg"]])
        assert "accumulated" not in ours.state[vector], "no memory for what is not needed"


def test_defaults_are_those_of_torch():
    assert_close(run(partial(AccumAdam, accum_iter=1), 3)[0], run(torch.optim.Adam, 3)[0])
    assert_close(run(partial(AccumAdamW, accum_iter=1), 3)[0], run(torch.optim.AdamW, 3)[0])
    assert AccumAdam(parameters()).defaults["accum_iter"] == 4


def test_the_same_gradient_in_a_window_commits_what_adam_would():
    """K equal gradients have that gradient as their mean, so the moments are those of one step of Adam."""
    x = torch.tensor([1.0, -2.0], dtype=torch.float64, requires_grad=True)
    optimizer = AccumAdam([x], betas=(0.9, 0.99), accum_iter=5)
    for _ in range(5):
        x.grad = torch.tensor([0.5, 2.0], dtype=torch.float64)
        optimizer.step()
    state = optimizer.state[x]
    assert_close([state["exp_avg"], state["exp_avg_sq"]], [0.1 * x.grad, 0.01 * x.grad**2], 1e-15)
    assert (state["step"].item(), state["steps_accumulated"]) == (1, 0)
    assert not state["accumulated"].any()


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("stop", [3, 4, 6])
def test_what_is_saved_continues_bit_for_bit(stop, implementation):
    """4 is between two windows of 4 steps, 3 and 6 are inside one."""
    ours = partial(AccumAdamW, **OPTIONS, accum_iter=4, implementation=implementation)
    straight, _ = run(ours, 11)
    half, optimizer = run(ours, stop)
    saved = copy.deepcopy(optimizer.state_dict())
    again = [p.detach().clone().requires_grad_() for p in half]
    resumed = ours(again)
    resumed.load_state_dict(saved)
    vectors, _ = run(ours, 11, stop, again, resumed)
    assert all(map(torch.equal, vectors, straight))


def test_a_parameter_without_a_gradient_keeps_a_count_of_its_own():
    both = [torch.ones(2, dtype=torch.float64, requires_grad=True) for _ in range(2)]
    alone = torch.ones(2, dtype=torch.float64, requires_grad=True)
    optimizer, single = AccumAdam(both, accum_iter=2), AccumAdam([alone], accum_iter=2)
    for step in range(5):
        gradient = torch.full((2,), 1.0 + step, dtype=torch.float64)
        both[0].grad = gradient.clone()
        both[1].grad = gradient.clone() if step in (1, 2, 4) else None
        optimizer.step()
        if step in (1, 2, 4):
            alone.grad = gradient
            single.step()
    assert torch.equal(both[1], alone)
    assert not torch.equal(both[0], alone)


def test_groups_may_differ_and_change():
    a, b = parameters()[:2]
    optimizer = AccumAdam([{"params": [a], "accum_iter": 1}, {"params": [b], "lr": 0.0}])
    before = b.detach().clone()
    a.grad, b.grad = torch.ones_like(a), torch.ones_like(b)
    optimizer.step()
    optimizer.param_groups[0]["accum_iter"] = 3
    optimizer.step()
    assert torch.equal(b, before)
    assert optimizer.state[a]["steps_accumulated"] == 1


def test_a_closure_is_called_with_gradients_and_its_loss_returned():
    x = torch.tensor([2.0], requires_grad=True)
    optimizer = AccumAdam([x], lr=0.1)

    def closure():
        optimizer.zero_grad()
        loss = (x * x).sum()
        loss.backward()
        return loss

    assert optimizer.step(closure) == 4.0
    assert x.item() == pytest.approx(1.9, abs=1e-6)
    assert optimizer.step() is None


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"lr": -1}, "lr must be a number >= 0, not -1"),
        ({"eps": float("nan")}, "eps must be a number >= 0, not nan"),
        ({"weight_decay": -0.1}, "weight_decay must be a number >= 0, not -0.1"),
        ({"betas": (0.9, 1.0)}, "betas must be two numbers >= 0 and < 1, not (0.9, 1.0)"),
        ({"betas": (0.9,)}, "betas must be two numbers >= 0 and < 1, not (0.9,)"),
        ({"accum_iter": 0}, "accum_iter must be a whole number > 0, not 0"),
        ({"accum_iter": 1.5}, "accum_iter must be a whole number > 0, not 1.5"),
        (
            {"implementation": "fast"},
            "implementation must be one of auto, for_loop, foreach, fused, not 'fast'",
        ),
    ],
)
def test_numbers_out_of_range(options, words):
    with pytest.raises(ValueError) as caught:
        AccumAdamW(parameters(), **options)
    assert str(caught.value) == words


def test_sparse_gradients_are_refused():
    table = nn.Embedding(4, 2, sparse=True)
    table(torch.tensor([1])).sum().backward()
    with pytest.raises(RuntimeError, match="AccumAdam does not support sparse gradients"):
        AccumAdam(table.parameters()).step()


def test_public_names():
    assert decentnode.AccumAdam is AccumAdam
    assert decentnode.AccumAdamW is AccumAdamW
    with pytest.raises(AttributeError, match="no attribute 'AccumSGD'"):
        _ = decentnode.AccumSGD


# Schedules.


def rates(make, steps, lr=0.5):
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=lr)
    schedule = make(optimizer)
    learning_rates = []
    for _ in range(steps):
        learning_rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    return learning_rates


def test_warmup_and_cosine():
    learning_rates = rates(partial(WarmupCosine, warmup=4, total=12, start_factor=0.2, final_lr=0.1), 15)
    assert learning_rates[:5] == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.5], abs=1e-15)
    falling = [0.1 + 0.4 * (1 + math.cos(math.pi * t / 8)) / 2 for t in range(9)]
    assert learning_rates[4:13] == pytest.approx(falling, abs=1e-15)
    assert learning_rates[12:] == [0.1, 0.1, 0.1]


def test_without_warmup_it_is_the_cosine_of_torch():
    theirs = rates(partial(torch.optim.lr_scheduler.CosineAnnealingLR, T_max=10, eta_min=0.01), 11)
    assert rates(partial(WarmupCosine, total=10, final_lr=0.01), 11) == pytest.approx(theirs, abs=1e-12)


def test_inverse_square_root_is_that_of_the_transformer():
    """Vaswani et al., Eq. 3, with width 64 and 5 warm-up steps."""
    d, w = 64, 5
    paper = [d**-0.5 * min(step**-0.5, step * w**-1.5) for step in range(1, 31)]
    learning_rates = rates(partial(InverseSquareRoot, warmup=w), 30, lr=1 / math.sqrt(d * w))
    assert learning_rates == pytest.approx(paper, rel=1e-12)


@pytest.mark.parametrize(
    "make", [partial(WarmupCosine, warmup=3, total=9), partial(InverseSquareRoot, warmup=3)]
)
def test_a_saved_schedule_continues(make):
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.5)
    schedule = make(optimizer)
    for _ in range(4):
        optimizer.step()
        schedule.step()
    resumed_optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.5)
    resumed_schedule = make(resumed_optimizer)
    resumed_schedule.load_state_dict(copy.deepcopy(schedule.state_dict()))
    resumed_optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    for each_optimizer in (optimizer, resumed_optimizer):
        each_optimizer.step()
    schedule.step()
    resumed_schedule.step()
    assert resumed_optimizer.param_groups[0]["lr"] == optimizer.param_groups[0]["lr"] == rates(make, 6)[5]


# Groups.


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 2, 3)
        self.norm = nn.LayerNorm((2, 4, 4))
        self.batch = nn.BatchNorm2d(2)
        self.out = nn.Linear(8, 3)
        self.tied = nn.Linear(8, 3, bias=False)
        self.tied.weight = self.out.weight
        self.frozen = nn.Linear(2, 2).requires_grad_(False)


def test_weights_decay_and_biases_and_norms_do_not():
    net = Net()
    decaying, staying = decay_groups(net, 0.1)
    assert (decaying["weight_decay"], staying["weight_decay"]) == (0.1, 0.0)
    assert {id(p) for p in decaying["params"]} == {id(net.conv.weight), id(net.out.weight)}
    assert len(decaying["params"]) == 2
    assert len(staying["params"]) == 6, "two biases, and weight and bias of two norms"
    some = decay_groups([("norm.weight", net.norm.weight), ("out.weight", net.out.weight)], 0.1, net)
    assert [group["params"] for group in some] == [[net.out.weight], [net.norm.weight]]
    named = decay_groups([("a.weight", net.conv.weight), ("a.bias", net.conv.bias)], 0.1)
    assert [group["params"] for group in named] == [[net.conv.weight], [net.conv.bias]]
    assert len(decay_groups([("conv.weight", net.conv.weight)], 0.1)) == 1
    AccumAdamW(decay_groups(net, 0.1))


# From YAML.

CONFIG = """
rounds: 10
graph: {name: one_peer_exponential, nodes: 3}
dataset: {name: synthetic, nodes: 3, samples_per_node: 20, features: 6, classes: 3}
model: {name: mlp, hidden: [8]}
training:
  optimizer: {name: AccumAdamW, lr: 0.01, betas: [0.9, 0.99], accum_iter: 3}
  scheduler: {name: WarmupCosine, warmup: 3, total: 10, final_lr: 1e-4}
  batch_size: 10
  steps_per_round: 2
communication: inproc
evaluation: {every: 0}
"""


@pytest.fixture
def written(tmp_path):
    path = tmp_path / "accum.yaml"
    path.write_text(CONFIG)
    return path


def test_an_experiment_continues_inside_a_window(written, tmp_path):
    """Round 4 ends after 8 steps, two of them in the third window."""
    experiment = Experiment.from_yaml(written)
    straight = Nodes(experiment, tmp_path / "straight").begin().run(0, 7)
    saved = Nodes(experiment, tmp_path / "first").begin().run(0, 4).saved()
    again = Nodes(experiment, tmp_path / "second").load(saved).run(4, 7)
    assert torch.equal(again.models, straight.models)
    optimizer = straight.nodes[0].training.optimizer
    assert isinstance(optimizer, AccumAdamW)
    assert straight.nodes[0].training.learning_rate == pytest.approx(
        1e-4 + (0.01 - 1e-4) * (1 + math.cos(math.pi * 4 / 7)) / 2
    )


def test_biases_may_be_left_out_of_decay(written, tmp_path):
    overrides = ["training.optimizer={name: SGD, lr: 0.1, weight_decay: 0.5}", "training.scheduler=null"]
    left_out = Nodes(Experiment.from_yaml(written, [*overrides, "training.decay=weights"]), tmp_path / "some")
    everything = Nodes(Experiment.from_yaml(written, overrides), tmp_path / "all")
    optimizer, whole = (nodes.nodes[0].training.optimizer for nodes in (left_out, everything))
    shapes = [[p.dim() for p in group["params"]] for group in optimizer.param_groups]
    assert shapes == [[2, 2], [1, 1]]
    assert [group["weight_decay"] for group in optimizer.param_groups] == [0.5, 0.0]
    assert len(whole.param_groups) == 1
    before = left_out.models
    assert not torch.equal(left_out.begin().run(0, 1).models, everything.begin().run(0, 1).models)
    assert not torch.equal(left_out.models, before)
