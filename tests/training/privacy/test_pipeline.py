"""What is released before the steps: its noise and its budget against closed forms, its statistics."""

import math

import numpy as np
import pytest
import torch

from decentnode.core.rng import SecureSource, SeededSource
from decentnode.datasets.base import channel_statistics, mean_and_deviation
from decentnode.errors import BadInput
from decentnode.training.privacy.accountants import ACCOUNTANTS, ORDERS, Spending, accounting
from decentnode.training.privacy.dp_sgd import DpSgd
from decentnode.training.privacy.pipeline import BoundedMoments, Pipeline
from tests.training.privacy.test_accountants import exact_delta

DELTA = 1e-5
DRAWN = torch.Generator().manual_seed(1)
TABLE = torch.randn(400, 3, generator=DRAWN, dtype=torch.float64) * torch.tensor([1.0, 5.0, 0.1]) + 2
IMAGES = torch.randint(256, (300, 3, 4, 4), generator=DRAWN, dtype=torch.uint8)
OF_TABLE = BoundedMoments(torch.zeros(3).double(), torch.tensor([9.0, 40, 3]).double(), torch.ones(3) > 0)
OF_IMAGES = BoundedMoments(*torch.full((2, 3, 1, 1), 127.5).double(), torch.ones(3, 1, 1) > 0)


def test_a_row_is_no_longer_than_the_noise_is_made_for():
    beyond = torch.cat([TABLE * 1000, torch.tensor([[9.0, -40, 3]])])
    norms = OF_TABLE.rows(beyond).norm(dim=1)
    assert norms.max() == norms[-1] == OF_TABLE.sensitivity == 7**0.5
    white = torch.tensor([0, 255], dtype=torch.uint8)[:, None, None, None].expand(2, 3, 4, 4)
    assert OF_IMAGES.rows(IMAGES).norm(dim=1).max() < 7**0.5 == OF_IMAGES.rows(white).norm(dim=1)[0]
    odd = torch.tensor([[float("nan"), float("inf"), -float("inf")]])
    assert OF_TABLE.rows(odd).tolist() == [[1, 0, 1, -1, -1, 1, 1]]
    led = [part[None] for part in (OF_IMAGES.center, OF_IMAGES.half, OF_IMAGES.chosen)]
    assert torch.equal(BoundedMoments(*led).rows(IMAGES), OF_IMAGES.rows(IMAGES))
    one = BoundedMoments(OF_TABLE.center, OF_TABLE.half, torch.tensor([False, True, False]))
    assert one.count == 1 and torch.equal(one.rows(TABLE), OF_TABLE.rows(TABLE)[:, [0, 2, 5]])


@pytest.mark.parametrize(
    ("moments", "inputs", "exact"),
    [
        (OF_TABLE, TABLE, [torch.from_numpy(of) for of in mean_and_deviation(TABLE.numpy())]),
        (OF_IMAGES, IMAGES, channel_statistics(IMAGES)),
    ],
)
def test_without_noise_the_statistics_are_those_of_the_samples(moments, inputs, exact):
    found = moments.mean_and_deviation(moments.rows(inputs).sum(0).numpy(), 1e-12)
    for one, other in zip(found, exact, strict=True):
        assert one.numpy() == pytest.approx(other.double().flatten().numpy(), rel=1e-6)


@pytest.mark.parametrize("source", [SecureSource(), SeededSource(1, 2)])
def test_the_noise_has_its_deviation_and_the_statistics_no_bias(source):
    total, noise, draws = OF_TABLE.rows(TABLE).sum(0), 1.5, 4000
    released = np.array([OF_TABLE.released(total, noise, source) for _ in range(draws)])
    deviation = noise * 7**0.5
    error = released - total.numpy()
    assert error.std(0) == pytest.approx(np.full(7, deviation), rel=0.05)
    assert np.abs(error.mean(0)).max() < 4.5 * deviation / draws**0.5
    assert np.abs(np.corrcoef(error.T) - np.eye(7)).max() < 0.08
    mean, std = (
        torch.stack(of)
        for of in zip(*(OF_TABLE.mean_and_deviation(r, deviation) for r in released), strict=True)
    )
    wanted = mean_and_deviation(TABLE.numpy())
    # Of the ratio of sum and count, to first order.
    half = OF_TABLE.half.numpy()
    spread = half * deviation / len(TABLE) * (1 + (wanted[0] / half) ** 2) ** 0.5
    assert np.abs(mean.mean(0).numpy() - wanted[0]).max() < 4.5 * spread.max() / draws**0.5
    assert (mean.std(0).numpy() < 1.1 * spread).all() and (mean.std(0).numpy() > 0.9 * spread).all()
    # The root of a number with noise is a little less than that of its mean.
    assert std[:, :2].mean(0).numpy() == pytest.approx(wanted[1][:2], rel=0.03)


def test_a_category_of_one_sample_is_released_with_its_part_of_delta():
    """Two columns: (a, b) of many samples, and (c, d, e), of which d has one sample, and e none here."""
    none = torch.zeros(5, dtype=torch.bool)
    moments = BoundedMoments(*torch.zeros(2, 5).double(), none, {"x": range(2), "y": range(2, 5)})
    inputs = torch.eye(5)[[0, 1] * 40] + torch.eye(5)[[2] * 79 + [3]]
    assert moments.rows(inputs).norm(dim=1).tolist() == pytest.approx([moments.sensitivity] * 80)
    assert moments.sensitivity == 3**0.5 and moments.count == 0
    total, draws, delta = moments.rows(inputs).sum(0), 20_000, 0.05
    found = [
        moments.selected(total, moments.released(total, 0.5, SeededSource(seed)), 0.5, delta)
        for seed in range(draws)
    ]
    assert sum(3 in one for one in found) / draws == pytest.approx(delta / 2, rel=0.15)
    assert all({0, 1, 2} <= {*one} for one in found) and not any(4 in one for one in found)


@pytest.mark.parametrize("rows", [0, 1, 3])
def test_statistics_are_within_bounds_whatever_the_noise_was(rows):
    source = SeededSource(3)
    for noise in (0.5, 50.0):
        for _ in range(50):
            released = OF_TABLE.released(OF_TABLE.rows(TABLE[:rows]).sum(0), noise, source)
            mean, std = OF_TABLE.mean_and_deviation(released, noise * 7**0.5)
            assert (mean.abs() <= OF_TABLE.half).all() and (std > 0).all() and (std <= OF_TABLE.half).all()


def test_epsilon_of_release_and_steps_is_that_of_both_events():
    library = accounting()
    dp_sgd = DpSgd(1.0, DELTA, noise=1.1, pipeline=Pipeline(noise=4.0))
    plan = dp_sgd.plan(500, 20, (10,) * 10, lambda: None)
    accountant = library.rdp.RdpAccountant(ORDERS)
    accountant.compose(library.GaussianDpEvent(4.0))
    step = library.PoissonSampledDpEvent(20 / 500, library.GaussianDpEvent(1.1))
    accountant.compose(library.SelfComposedDpEvent(step, 100))
    assert plan.epsilon == pytest.approx(accountant.get_epsilon(DELTA), rel=1e-9)
    by_losses = DpSgd(1.0, DELTA, noise=1.1, pipeline=Pipeline(noise=4.0), accountant="pld")
    library_accountant = library.pld.PLDAccountant()
    library_accountant.compose(library.GaussianDpEvent(4.0))
    library_accountant.compose(library.SelfComposedDpEvent(step, 100))
    of_losses = by_losses.plan(500, 20, (10,) * 10, lambda: None).epsilon
    assert of_losses == pytest.approx(library_accountant.get_epsilon(DELTA), rel=0.01)
    assert (
        of_losses
        < plan.epsilon
        > dp_sgd.plan(500, 20, (0,) * 10, lambda: None).epsilon
        == dp_sgd.release.epsilon
    )


@pytest.mark.parametrize(("accountant", "gap"), [("rdp", 0.15), ("pld", 2e-3)])
def test_a_release_and_full_steps_are_one_gaussian_mechanism(accountant, gap):
    """1 / s^2 = 1 / 3^2 + 4 / 5^2."""
    dp_sgd = DpSgd(1.0, DELTA, noise=5.0, pipeline=Pipeline(noise=3.0), accountant=accountant)
    epsilon = dp_sgd.plan(100, 100, (4,), lambda: None).epsilon
    together = (1 / 9 + 4 / 25) ** -0.5
    assert exact_delta(epsilon, together) <= DELTA < exact_delta(epsilon * (1 - gap), together)


@pytest.mark.parametrize("accountant", ["rdp", "pld"])
def test_steps_get_what_is_left_of_the_budget(accountant):
    options = {"epsilon": 2.0, "accountant": accountant}
    dp_sgd = DpSgd(1.0, DELTA, pipeline=Pipeline(epsilon_share=0.5), **options)
    plan, alone = dp_sgd.plan(500, 50, (5,) * 4, lambda: None), dp_sgd.release.epsilon
    assert 0.99 < alone <= 1.0 and 1.97 < plan.epsilon <= 2.0 and plan.rounds == 4
    without = DpSgd(1.0, DELTA, **options).plan(500, 50, (5,) * 4, lambda: None)
    assert plan.noise > 1.02 * without.noise and not without.before
    # Divergences add up, not epsilons: less is lost than half of the budget.
    half = DpSgd(1.0, DELTA, **(options | {"epsilon": 1.0})).plan(500, 50, (5,) * 4, lambda: None)
    assert plan.noise < half.noise
    spent = [Spending(*before) for before in plan.before]
    steps = Spending(0.1, plan.noise, 20)
    assert ACCOUNTANTS[accountant].epsilon([*spent, steps], DELTA) == plan.epsilon


def test_delta_is_that_of_noise_and_categories_together():
    both = DpSgd(1.0, DELTA, noise=1.1, pipeline=Pipeline(noise=4.0, delta_share=0.2))
    plan, spent = (
        both.plan(500, 20, (10,) * 10, lambda: None),
        [Spending(1.0, 4.0, 1), Spending(0.04, 1.1, 100)],
    )
    assert plan.epsilon == ACCOUNTANTS["rdp"].epsilon(spent, 0.8 * DELTA)
    assert both.release.delta == pytest.approx(0.2 * DELTA) and both.described()["delta"] == DELTA


def test_a_budget_that_the_release_exceeds_is_refused():
    with pytest.raises(BadInput, match=r"0.5 spends epsilon 1.* before the first step, and the budget is 2;"):
        DpSgd(1.0, DELTA, epsilon=2.0, pipeline=Pipeline(noise=0.5)).plan(500, 50, (5,), lambda: None)
    nobody = DpSgd(1.0, DELTA, noise=1.0, accountant="none", pipeline=Pipeline(noise=0.5))
    assert nobody.release.epsilon is None and nobody.plan(500, 50, (5,), lambda: None).epsilon == math.inf
