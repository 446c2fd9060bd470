"""Steps of DP-SGD: what the noise is, what a seed repeats, what is spent, and what is claimed."""

import asyncio
import copy
import math

import numpy as np
import pytest
import torch
from torch import nn

from decentnode.core.rng import SecureSource, SeededSource
from decentnode.core.vector import ModuleTensors, ParameterLayout, Vector
from decentnode.datasets.base import Samples
from decentnode.errors import BadInput
from decentnode.models import Mlp, ResNet8, initial_model
from decentnode.training.minibatches import Shard
from decentnode.training.privacy.accountants import ACCOUNTANTS, Spending
from decentnode.training.privacy.dp_sgd import DpSgd
from decentnode.training.settings import Factory, TrainingSettings
from decentnode.training.training import Training

SIZE, CLIP, NOISE, DELTA = 60, 0.5, 2.0, 1e-3
DRAWN = torch.Generator().manual_seed(1)
SAMPLES = Samples(torch.randn(SIZE, 4, generator=DRAWN), torch.randint(3, (SIZE,), generator=DRAWN))


def gram(steps):
    """How noise moves the model of a node that is alone: all later steps have it."""
    sums = np.tri(steps)
    return sums.T @ sums


def training_of(batch_size=12, steps=4, rounds=3, size=SIZE, accumulate=1, lr=0.1, **options):
    options_ = {"clip": CLIP, "noise": NOISE, "delta": DELTA, "generator": "seeded"} | options
    privacy = Factory(DpSgd, options_)
    settings = TrainingSettings(
        Factory(torch.optim.SGD, {"lr": lr}), batch_size=batch_size, steps_per_round=steps, privacy=privacy,
        accumulate=accumulate,
    )  # fmt: skip
    module = initial_model(Mlp((6,)), (4,), 3, seed=1)
    layout = ParameterLayout.of(module)
    vector = Vector(ModuleTensors(module, layout), tuple(torch.empty(layout.numel) for _ in range(2)))
    shard = Shard(SAMPLES, torch.arange(size), 7, 3)
    plan = privacy.make().plan(size, batch_size * accumulate, (steps,) * rounds, lambda: gram(steps * rounds))
    return Training(vector, settings, shard, plan=plan)


def run(training, *rounds):
    return [asyncio.run(training.train(round)) for round in rounds]


def test_a_step_is_the_published_one():
    """g = (sum of clipped + noise C N(0, 1)) / B, drawn from the same source."""
    training = training_of(steps=1)
    source, before = SeededSource(7, 3), training.vector.values.clone()
    drawn = source.chosen(SIZE, 12 / SIZE)
    total = torch.zeros(training.vector.layout.numel)
    for index in drawn:
        training.module.zero_grad(set_to_none=False)
        batch = SAMPLES.batch(index[None])
        nn.functional.cross_entropy(training.module(batch.fields[0]), batch.labels).backward()
        gradient = training.vector.gradient
        total += gradient * min(1, CLIP / gradient.norm())
    wanted = (total + NOISE * CLIP * source.normal(len(total))) / 12
    report = run(training, 0)[0]
    assert torch.allclose((before - training.vector.values) / 0.1, wanted.float(), atol=1e-6)
    assert report.samples == len(drawn) and report.epsilon is None


@pytest.mark.parametrize(
    "source", [SecureSource(), SeededSource(1, 2)], ids=lambda source: type(source).__name__
)
def test_what_is_drawn(source):
    count = 200_000
    drawn = source.normal(count)
    moments = [float((drawn**k).mean()) for k in (1, 2, 3, 4)]
    assert moments == pytest.approx([0, 1, 0, 3], abs=0.06)
    within = [float((drawn.abs() < bound).double().mean()) for bound in (0.5, 1, 2, 3)]
    assert within == pytest.approx([math.erf(bound / 2**0.5) for bound in (0.5, 1, 2, 3)], abs=5e-3)
    assert abs(float((drawn[1:] * drawn[:-1]).mean())) < 0.01 and len(drawn.unique()) == count
    assert len(source.normal(3)) == 3 and len(source.chosen(0, 0.5)) == 0
    assert len(source.chosen(count, 0.3)) == pytest.approx(0.3 * count, rel=0.02)
    assert torch.equal(source.chosen(50, 1.0), torch.arange(50))
    assert not torch.equal(source.normal(9), source.normal(9))


def test_poisson_sampling_and_empty_steps():
    """Sizes of batches vary, and a step without samples is one of noise."""
    training = training_of(batch_size=1, steps=40)
    reports = run(training, 0, 1, 2)
    assert training.private.epsilon == ACCOUNTANTS["rdp"].epsilon([Spending(1 / SIZE, NOISE, 120)], DELTA)
    assert 60 < sum(report.samples for report in reports) < 180
    before = training.vector.values.clone()
    loss = training.private.gradient([])
    assert loss == 0 and torch.equal(before, training.vector.values) and training.vector.gradient.std() > 0.5


def test_an_empty_round_has_no_loss():
    training = training_of(batch_size=1, steps=1)
    losses = [run(training, round)[0].loss for round in range(12)]
    assert None in losses and any(losses)


def test_a_large_batch_is_computed_in_pieces():
    """`accumulate` gives the same step as one batch of all samples, as it is drawn at once."""
    whole, pieces = training_of(batch_size=24), training_of(batch_size=12, accumulate=2)
    run(whole, 0), run(pieces, 0)
    assert torch.allclose(whole.vector.values, pieces.vector.values, atol=1e-6)


def test_a_seed_repeats_the_run_and_a_resumed_node_continues_it():
    first, again, resumed = training_of(), training_of(), training_of()
    run(first, 0, 1), run(again, 0)
    resumed.load_state_dict(copy.deepcopy(again.state_dict()))
    resumed.vector.values.copy_(again.vector.values)
    run(resumed, 1)
    assert torch.equal(first.vector.values, resumed.vector.values)
    assert first.private.epsilon == resumed.private.epsilon > 0
    assert "seed" in first.private.doubts[0] and first.private.claimed is None


def test_secure_noise_is_never_repeated():
    first, again = training_of(generator="secure"), training_of(generator="secure")
    reports = run(first, 0), run(again, 0)
    assert not torch.equal(first.vector.values, again.vector.values)
    assert first.private.doubts == () and reports[0][0].epsilon == first.private.epsilon > 0
    resumed = training_of(generator="secure")
    resumed.load_state_dict(copy.deepcopy(first.state_dict()))
    run(resumed, 1)
    assert resumed.private.epsilon > first.private.epsilon


def test_the_noise_for_a_budget_lasts_for_all_rounds():
    training = training_of(noise=None, epsilon=3.0, generator="secure")
    last = run(training, 0, 1, 2)[-1]
    assert last.steps == 4 and 2.98 < last.epsilon <= 3.0


def test_a_spent_budget_stops_local_steps(capsys):
    training = training_of(noise=1.0, epsilon=3.0, steps=10)
    budget = ACCOUNTANTS["rdp"].epsilon([Spending(0.2, 1.0, 14)], DELTA)
    training = training_of(noise=1.0, epsilon=budget, steps=10)
    assert [report.steps for report in run(training, 0, 1, 2)] == [10, 4, 0]
    assert training.private.epsilon == budget
    assert capsys.readouterr().out.count("is spent: no more local steps") == 1


def test_a_spent_budget_warns(capsys):
    training = training_of(noise=1.0, epsilon=0.5, on_spent="warn")
    assert [report.steps for report in run(training, 0, 1, 2)] == [4, 4, 4]
    assert capsys.readouterr().out.count("is spent: more local steps exceed it") == 1
    assert training.private.epsilon > 0.5


def test_without_an_accountant_or_noise_nothing_is_claimed():
    shuffled = training_of(sampling="shuffle", accountant="none", generator="secure")
    assert [report.samples for report in run(shuffled, 0)] == [48]
    assert "sampling: shuffle" in shuffled.private.doubts[0] and shuffled.private.claimed is None
    assert training_of(noise=0.0, generator="secure").private.doubts == ("noise: 0",)


def test_a_gradient_that_is_not_finite_is_bounded():
    training = training_of(noise=0.0)
    batch = SAMPLES.batch(torch.arange(4))
    wild = batch.fields[0].clone()
    wild[1] = float("inf")
    clean = copy.copy(batch)
    training.private.gradient([type(batch)((wild,), batch.labels)])
    assert training.vector.gradient.isfinite().all() and len(clean) == 4


def test_norms_over_a_batch_are_refused():
    privacy = DpSgd(clip=1.0, noise=1.0, delta=1e-5)
    network = ResNet8(norm="batch").build((3, 32, 32), 10)
    with pytest.raises(BadInput, match=r"BatchNorm2d '.*' of the model mixes samples.*GroupNorm"):
        privacy.check(network, SAMPLES)
    privacy.check(nn.Sequential(nn.InstanceNorm2d(3), nn.GroupNorm(1, 3)), SAMPLES)
    with pytest.raises(BadInput, match="InstanceNorm2d"):
        privacy.check(nn.Sequential(nn.InstanceNorm2d(3, track_running_stats=True)), SAMPLES)
