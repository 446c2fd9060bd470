"""Steps of several nodes at once against the loop of each node alone."""

import asyncio
import copy
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler

from decentnode.core.vector import ModuleTensors, ParameterLayout, Vector
from decentnode.datasets.base import IGNORED
from decentnode.errors import RunFailed
from decentnode.models.base import initial_model
from decentnode.models.lenet import LeNet
from decentnode.node.execution import batched_steps, grouped_layers, stacked_optimizer
from decentnode.node.execution.batches import BatchedExecutor
from decentnode.training.augmentation.mixup import Mixup
from decentnode.training.minibatches import Shard
from decentnode.training.optim import ELEMENTWISE
from decentnode.training.settings import Factory, TrainingSettings
from decentnode.training.tasks import NextToken
from decentnode.training.tasks.regression import Regression
from decentnode.training.training import Hooks, StepExecutor, Training
from tests.training.test_steps_of_several_minibatches import Texts, exact, texts, weighted
from tests.training.test_training import toy_net, toy_samples

NODES = 5
MOMENTUM = Factory(torch.optim.SGD, {"lr": 0.1, "momentum": 0.9})


def drawn_toward_zero(gradient, vector, step):
    """Changes a gradient as a scheme may: by the model and the number of the step."""
    gradient.add_(vector, alpha=0.1 * (step + 1))


class Nodes:
    """Nodes with samples of their own, as many as their rank says; they take turns with one network."""

    def __init__(self, network, samples, executor=None, adjust=None, dtype=torch.float64, **options):
        options = {"optimizer": MOMENTUM, "batch_size": 4, "steps_per_round": 3} | options
        settings = TrainingSettings(**options, dtype=str(dtype).removeprefix("torch."))
        module = copy.deepcopy(network).to(dtype)
        layout = ParameterLayout.of(module, False, settings.channels_last(module), dtype)
        tensors = ModuleTensors(module, layout)
        self.executor = (
            StepExecutor() if executor is None else BatchedExecutor(module, layout, NODES, executor)
        )
        hooks = Hooks(adjust_gradient=adjust, pause=lambda: asyncio.sleep(0))
        vectors = [
            Vector(tensors, tuple(torch.empty(layout.numel, dtype=dtype) for _ in range(2)))
            for _ in range(NODES)
        ]
        self.nodes = [
            Training(
                vector, settings, hooks=hooks, executor=self.executor,
                shard=Shard(samples, torch.arange(rank, len(samples), 1 + rank % 2), 7, rank),
            )
            for rank, vector in enumerate(vectors)
        ]  # fmt: skip

    def train(self, *rounds):
        """The reports of all nodes, round by round."""

        async def together(round):
            return await asyncio.gather(*(node.train(round) for node in self.nodes))

        return [report for round in rounds for report in asyncio.run(together(round))]

    @property
    def models(self):
        return torch.stack([node.vector.values for node in self.nodes])


def compared(network, samples, tolerance=1e-12, most=3, rounds=3, **options):
    """Trains both ways and compares models, losses and states of optimizers; returns the batched nodes."""
    loop, batched = Nodes(network, samples, **options), Nodes(network, samples, most, **options)
    start = loop.models.clone()
    exact_reports, reports = loop.train(*range(rounds)), batched.train(*range(rounds))
    moved = (loop.models - start).norm()
    assert moved > 0
    assert (batched.models - loop.models).norm() <= tolerance * moved
    for report, exact_report in zip(reports, exact_reports, strict=True):
        assert report.loss == pytest.approx(exact_report.loss, rel=max(tolerance, 1e-10))
        assert (report.steps, report.samples) == (exact_report.steps, exact_report.samples)
    for node, alone in zip(batched.nodes, loop.nodes, strict=True):
        state, expected = (training.state_dict()["optimizer"] for training in (node, alone))
        # AccumAdam chooses its kernel in its own first step.
        assert [group | {"fused": None} for group in state["param_groups"]] == [
            group | {"fused": None} for group in expected["param_groups"]
        ]
        for index, values in expected["state"].items():
            assert values.keys() == state["state"][index].keys()
            for name, value in values.items():
                torch.testing.assert_close(
                    state["state"][index][name], value, rtol=1e-6, atol=max(1e-12, tolerance)
                )
    return batched


def options_of(cls):
    return {"lr": 0.05, "momentum": 0.9, "dampening": 0.1} if cls is torch.optim.SGD else {"lr": 0.05}


@pytest.mark.parametrize("cls", ELEMENTWISE, ids=lambda cls: cls.__name__)
def test_each_elementwise_optimizer_is_the_loop_and_continues_it(cls):
    """Also from one way to the other: what one saves, the other continues."""
    samples, network = exact(toy_samples(19)), toy_net()
    options = {"optimizer": Factory(cls, options_of(cls)), "epochs_per_round": 1, "steps_per_round": None}
    batched = compared(network, samples, **options)
    for first, second in ((None, 2), (2, None)):
        before, after = Nodes(network, samples, first, **options), Nodes(network, samples, second, **options)
        before.train(0, 1)
        for old, new in zip(before.nodes, after.nodes, strict=True):
            new.vector.values.copy_(old.vector.values)
            new.load_state_dict(copy.deepcopy(old.state_dict()))
        after.train(2)
        # Torch's own optimizers load numbers of their state in another precision.
        torch.testing.assert_close(after.models, batched.models, rtol=1e-7, atol=1e-8)


ADAMW = Factory(torch.optim.AdamW, {"lr": 0.02, "weight_decay": 0.3})
LENET = initial_model(LeNet(), (3, 32, 32), 10, seed=1)
CLASS_WEIGHTS = Factory(nn.CrossEntropyLoss, {"weight": torch.tensor([1.0, 5.0, 0.5])})


def ignoring(samples):
    """The samples, some of which do not count."""
    labels = samples.labels.clone()
    labels[::5] = IGNORED
    return replace(samples, labels=labels)


@pytest.mark.parametrize(
    ("samples", "network", "options"),
    [
        (exact(toy_samples(19)), toy_net, {"optimizer": ADAMW, "decay": "weights", "clip_norm": 0.3}),
        (exact(toy_samples(19)), toy_net,
         {"optimizer": Factory(torch.optim.AdamW, {**ADAMW.options, "fused": True}), "decay": "weights"}),
        (exact(toy_samples(19)), toy_net, {"accumulate": 3, "adjust": drawn_toward_zero, "clip_norm": 0.5}),
        (exact(toy_samples(19)), toy_net,
         {"accumulate": 2, "loss": Factory(nn.CrossEntropyLoss, {"reduction": "sum"})}),
        (exact(toy_samples(19)), toy_net, {"loss": Factory(nn.MSELoss)}),
        (exact(toy_samples(19)), toy_net, {"minibatches": "reshuffle", "augmentation": (Factory(Mixup),)}),
        (exact(toy_samples(19)), toy_net,
         {"scheduler": Factory(lr_scheduler.ExponentialLR, {"gamma": 0.5}), "schedule_step": "step"}),
        (weighted(toy_samples(19)), toy_net, {"accumulate": 2}),
        (exact(toy_samples(19)), toy_net, {"accumulate": 2, "loss": CLASS_WEIGHTS}),
        (ignoring(exact(toy_samples(19))), toy_net, {"accumulate": 2}),
        (ignoring(weighted(toy_samples(19))), toy_net, {"accumulate": 2}),
        (texts(16), Texts, {"task": Factory(NextToken), "accumulate": 2, "batch_size": 3}),
        (exact(toy_samples(8, (3, 32, 32), 10)), lambda: LENET, {"rounds": 1}),
        (exact(toy_samples(8, (3, 32, 32), 10)), lambda: LENET,
         {"rounds": 1, "memory_format": "channels_last"}),
    ],
    ids=["decays", "fused", "scheme", "sum", "one-hot", "mixup", "schedule", "weights", "class weights",
         "ignored", "ignored with weights", "ignored tokens", "convolutions", "channels last"],
)  # fmt: skip
def test_all_that_a_step_may_have_is_the_loop(samples, network, options):
    torch.manual_seed(3)
    compared(network(), samples, **options)


LAYERS = nn.Sequential(
    nn.Flatten(), nn.Linear(4, 5, bias=False), nn.Tanh(), nn.Sequential(nn.Linear(5, 3), nn.GELU())
)


@pytest.mark.parametrize(
    ("network", "options", "is_grouped"),
    [
        (LAYERS, {"accumulate": 2}, True),
        (LAYERS, {"loss": Factory(nn.CrossEntropyLoss, {"label_smoothing": 0.2})}, True),
        (LAYERS, {"loss": Factory(nn.SmoothL1Loss)}, True),
        (LAYERS, {"loss": Factory(nn.MultiMarginLoss)}, False),
        (LAYERS, {"loss": Factory(nn.CrossEntropyLoss, {"reduction": "sum"})}, False),
        (nn.Sequential(nn.Linear(4, 3), nn.LayerNorm(3)), {}, False),
    ],
    ids=["layers", "smoothing", "one-hot", "margins", "sum", "norm"],
)
def test_linear_and_elementwise_layers_are_grouped_products(network, options, is_grouped):
    batched = compared(network, exact(toy_samples(19)), **options)
    assert (batched.executor._batched_of(batched.nodes[0])._grouped is not None) == is_grouped


def test_grouped_products_of_numbers_and_of_samples_with_several_dimensions():
    samples = exact(toy_samples(19, (2, 4)))
    numbers = replace(
        samples, labels=torch.rand(19, 2, 1, dtype=torch.float64, generator=torch.manual_seed(1))
    )
    options = {"loss": Factory(nn.MSELoss), "task": Factory(Regression)}
    batched = compared(nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 1)), numbers, **options)
    assert batched.executor._batched_of(batched.nodes[0])._grouped is not None


def test_minibatches_are_indices_where_each_sample_is_a_term_of_the_loss():
    def takes_indices(samples, **options):
        nodes = Nodes(toy_net(), samples, 3, **options)
        return nodes.executor._batched_of(nodes.nodes[0]).takes_indices

    samples = exact(toy_samples(19))
    assert takes_indices(samples) and takes_indices(samples, loss=Factory(nn.MSELoss))
    assert not takes_indices(weighted(toy_samples(19))) and not takes_indices(ignoring(samples))
    assert not takes_indices(replace(samples, ignored=1)) and not takes_indices(samples, loss=CLASS_WEIGHTS)


def test_float32_is_within_its_tolerance_and_rates_of_nodes_differ():
    samples = toy_samples(40)
    constant = Factory(lr_scheduler.ConstantLR, {"factor": 1.0})
    batched = compared(toy_net(), samples, tolerance=1e-4, dtype=torch.float32, scheduler=constant)
    batched.nodes[2].optimizer.param_groups[0]["lr"] = 0.0
    before = batched.models
    batched.train(3)
    moved = (batched.models - before).norm(dim=1)
    # Its momentum changes, its model does not.
    assert moved[2] == 0 < moved[[0, 1, 3, 4]].min()


def test_a_run_whose_steps_are_not_those_of_the_loop_ends(monkeypatch):
    samples = exact(toy_samples(19))
    dropout = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 3))
    with pytest.raises(
        RunFailed, match=r"rank 0, round 1, step 1: the network draws random numbers, such as"
    ):
        Nodes(dropout, samples, 3).train(0)
    original = batched_steps.BatchedSteps._gradients

    def too_long(*args):
        losses = original(*args)
        args[2].mul_(1.001)
        return losses

    with monkeypatch.context() as patch:
        patch.setattr(batched_steps.BatchedSteps, "_gradients", too_long)
        with pytest.raises(
            RunFailed,
            match=r"training.execution.batches: rank 0, .* the gradient differs .* by 1.0e-03 of its norm",
        ):
            Nodes(toy_net(), samples, 3).train(0)
    step = stacked_optimizer.StackedOptimizer.step

    def too_far(self, nodes, groups, values, gradients):
        step(self, nodes, groups, values, 2 * gradients)

    monkeypatch.setattr(stacked_optimizer.StackedOptimizer, "step", too_far)
    with pytest.raises(
        RunFailed, match=r"the model differs from that of a node alone by 1.0e\+00 of its norm"
    ):
        Nodes(toy_net(), samples, 3).train(0)


def test_float64_excuses_no_mix_up_of_nodes_and_no_number_that_is_not_finite(monkeypatch):
    """What only batches of several nodes, or only fp32, do wrong."""
    samples = replace(toy_samples(40), groups=None)
    net = nn.Sequential(nn.Flatten(), nn.Linear(samples.inputs[0].numel(), 10))
    right = grouped_layers.linear

    def of_first(x, weight, bias):
        return right(x, weight[:1].expand_as(weight), bias)

    def not_finite(x, weight, bias):
        y = right(x, weight, bias)
        return y if y.dtype == torch.float64 else y * float("nan")

    for linear in (of_first, not_finite):
        monkeypatch.setattr(grouped_layers, "linear", linear)
        nodes = Nodes(net, samples, 3, dtype=torch.float32)
        for rank, node in enumerate(nodes.nodes):
            node.vector.values.add_(0.5 * rank)
        with pytest.raises(RunFailed, match="the gradient differs from that of a node alone"):
            nodes.train(0)


def test_a_tie_that_rounding_decides_ends_no_run(monkeypatch):
    """As in max pooling: fp32 goes another way in batches, and float64 tells that it is no mistake."""
    plain = replace(toy_samples(40), groups=None)
    for samples in (plain, replace(weighted(plain), dtype=torch.float32)):
        nodes = Nodes(toy_net(), samples, 3, dtype=torch.float32)
        with monkeypatch.context() as patch:
            patch.setitem(batched_steps.TOLERANCE, torch.float32, 0.0)
            nodes.train(0)
        assert all(node.vector.values.isfinite().all() for node in nodes.nodes)


def test_nodes_of_unequal_places_and_numbers_of_steps_keep_their_own_state():
    """Batches that are no interval of nodes, in another order in each round."""
    samples = replace(exact(toy_samples(40)), groups=None)
    options = {"optimizer": Factory(torch.optim.Adam, {"lr": 0.05}), "steps_per_round": 1}
    loop, batched = Nodes(toy_net(), samples, **options), Nodes(toy_net(), samples, 5, **options)

    async def some(nodes, ranks, round):
        await asyncio.gather(*(nodes.nodes[rank].train(round) for rank in ranks))

    for round, ranks in enumerate([(0, 1, 2, 3, 4), (4, 2, 0), (1, 3), (3, 0, 4), (0, 1, 2, 3, 4)]):
        for nodes in (loop, batched):
            asyncio.run(some(nodes, ranks, round))
    torch.testing.assert_close(batched.models, loop.models, rtol=1e-12, atol=1e-13)
