"""Steps of several minibatches against steps of one large batch, and schedules that count steps."""

import copy
from contextlib import contextmanager
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import ExponentialLR, ReduceLROnPlateau

from decentnode.datasets.base import IGNORED, Samples
from decentnode.errors import BadInput
from decentnode.training.optim import WarmupCosine
from decentnode.training.reducer import Reducer
from decentnode.training.settings import Factory, TrainingSettings
from decentnode.training.tasks import NextToken
from tests.training.test_training import SGD, run, toy_net, toy_samples, training_of

MOMENTUM = Factory(torch.optim.SGD, {"lr": 0.1, "momentum": 0.9})


class Texts(nn.Module):
    """Scores of shape (batch, vocabulary, length)."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(5, 5)

    def forward(self, ids):
        return self.table(ids).movedim(-1, 1)


def texts(count=10, length=3):
    drawn = torch.Generator().manual_seed(1)
    ids, labels = torch.randint(5, (2, count, length), generator=drawn)
    labels[torch.rand(count, length, generator=drawn) < 0.4] = IGNORED
    labels[:4] = IGNORED
    labels[3, 1:] = 2
    return Samples(ids, labels)


def weighted(samples):
    # Their sums are exact in float32.
    weights = torch.randint(1, 20, (len(samples),)) / 8
    return replace(samples, weights=weights, dtype=torch.float64)


def exact(samples):
    return replace(samples, dtype=torch.float64)


@pytest.mark.parametrize("count", [10, 11, 14])
@pytest.mark.parametrize(
    ("samples", "network", "settings"),
    [
        (lambda n: exact(toy_samples(n)), toy_net, {}),
        (lambda n: exact(toy_samples(n)), toy_net,
         {"loss": Factory(nn.CrossEntropyLoss, {"reduction": "sum"})}),
        (lambda n: weighted(toy_samples(n)), toy_net, {}),
        (texts, Texts, {"task": Factory(NextToken)}),
        (lambda n: weighted(texts(n)), Texts, {"task": Factory(NextToken)}),
    ],
    ids=["mean", "sum", "weights", "ignored", "ignored-and-weights"],
)  # fmt: skip
def test_minibatches_of_a_step_are_one_large_batch(samples, network, settings, count):
    """Also where the last of an epoch is short, and where nothing counts in one of them."""
    torch.manual_seed(3)
    all_samples, start = samples(count), network().double()
    small, large = copy.deepcopy(start), copy.deepcopy(start)
    every = {"optimizer": MOMENTUM, "samples": all_samples, "epochs_per_round": 1.5} | settings
    few = run(training_of(small, batch_size=2, accumulate=3, **every), range(3))
    whole_run = run(training_of(large, batch_size=6, **every), range(3))
    for a, b in zip(small.parameters(), large.parameters(), strict=True):
        assert torch.allclose(a, b, rtol=0, atol=1e-13)
    assert not torch.equal(next(small.parameters()), next(start.parameters()))
    assert [(r.steps, r.samples) for r in few] == [(r.steps, r.samples) for r in whole_run]
    assert [r.loss for r in few] == pytest.approx([r.loss for r in whole_run], rel=1e-12)


def test_a_step_over_all_samples_has_the_gradient_of_their_mean_loss():
    samples, module = exact(toy_samples(7)), toy_net().double()
    whole = copy.deepcopy(module)
    training = training_of(module, SGD, samples, batch_size=3, accumulate=9, steps_per_round=1)
    (report,) = run(training, [0])
    loss = nn.functional.cross_entropy(whole(samples.inputs.double()), samples.labels)
    wanted = torch.autograd.grad(loss, list(whole.parameters()))
    assert (report.steps, report.samples) == (1, 7)
    assert report.loss == pytest.approx(loss.item(), rel=1e-13)
    for parameter, gradient in zip(module.parameters(), wanted, strict=True):
        assert torch.allclose(parameter.grad, gradient, rtol=0, atol=1e-15)


def test_gradients_are_synchronized_once_per_step():
    events = []

    class Recorder(Reducer):
        @contextmanager
        def partial(self):
            events.append("own")
            yield

        def backward(self, loss):
            events.append("backward")
            super().backward(loss)

    beats = []
    training = training_of(toy_net(), batch_size=2, accumulate=2, steps_per_round=3, samples=toy_samples(10))
    training.hooks = replace(training.hooks, beat=lambda: beats.append(None))
    training.reducer = Recorder()
    run(training, [0])
    # Five minibatches: the third step has what is left of the epoch.
    assert events == ["own", "backward", "backward"] * 2 + ["backward"]
    assert len(beats) == 5


def test_a_schedule_may_count_steps():
    schedule = Factory(WarmupCosine, {"total": 8, "warmup": 2, "start_factor": 0.5})
    settings = {"scheduler": schedule, "schedule_step": "step", "epochs_per_round": 0.5, "batch_size": 3}
    training, absent = (training_of(toy_net(), **settings) for _ in range(2))
    plain = schedule.make(torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.1))
    rates = []
    for _ in range(9):
        rates.append(plain.get_last_lr()[0])
        plain.optimizer.step()
        plain.step()
    seen = []
    for rounds in ([0], [1], [2]):
        (report,) = run(training, rounds)
        assert report.learning_rate == rates[len(seen)]
        seen += [report.learning_rate] * report.steps
    # Four minibatches in an epoch.
    assert len(seen) == 6
    assert training.learning_rate == rates[6]
    absent.skip(range(3))
    assert absent.learning_rate == rates[6]


def test_schedules_of_rounds_and_steps_are_different_and_one_of_losses_needs_rounds():
    schedule = Factory(ExponentialLR, {"gamma": 0.5})
    rates = {}
    for unit in ("round", "step"):
        training = training_of(toy_net(), scheduler=schedule, schedule_step=unit, steps_per_round=3)
        run(training, range(2))
        rates[unit] = training.learning_rate
    assert rates == pytest.approx({"round": 0.1 * 0.5**2, "step": 0.1 * 0.5**6})
    with pytest.raises(BadInput) as caught:
        TrainingSettings(SGD, steps_per_round=1, scheduler=Factory(ReduceLROnPlateau), schedule_step="step")
    assert str(caught.value) == (
        "training.schedule_step: ReduceLROnPlateau needs the mean loss of a round; use round"
    )
