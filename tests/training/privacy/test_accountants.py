"""Accountants against published figures, closed forms, and each other."""

import math

import pytest

from decentnode.errors import BadInput
from decentnode.training.privacy.accountants import (
    ACCOUNTANTS,
    MOST_LOSSES,
    ORDERS,
    WHOLE_ORDERS,
    WIDEST_INTERVAL,
    Spending,
    _largest_loss,
    _losses_of_step,
    accounting,
    loss_interval,
)

RDP, PLD = ACCOUNTANTS["rdp"], ACCOUNTANTS["pld"]
DELTA = 1e-5
PUBLISHED = {  # of the tutorial of TensorFlow Privacy, and of our own script, by whole orders; then by all
    Spending(250 / 60000, 1.3, 3600): (1.180, 0.942, 0.942),
    Spending(250 / 60000, 1.1, 14400): (2.970, 2.563, 2.562),
    Spending(250 / 60000, 0.7, 10800): (7.024, 6.274, 6.234),
    Spending(0.01, 1.0, 1000): (2.538, 2.108, 2.101),
}
HARD = [  # small rates, much noise, many steps, little noise
    Spending(1e-3, 8.0, 3000), Spending(1e-3, 50.0, 10_000), Spending(1e-3, 1.0, 100_000),
    Spending(0.05, 4.0, 2000), Spending(0.3, 0.6, 100), Spending(1.0, 2.0, 4),
]  # fmt: skip


def by_whole_orders(history, convert):
    return min(convert(RDP.divergence(history, order), order) for order in WHOLE_ORDERS)


def classic(divergence, order):
    """Mironov, 2017, proposition 3."""
    return divergence + math.log(1 / DELTA) / (order - 1)


def improved(divergence, order):
    """Canonne et al., 2020, proposition 12."""
    return divergence + math.log1p(-1 / order) - math.log(DELTA * order) / (order - 1)


def exact_delta(epsilon, noise):
    """Of one Gaussian mechanism of sensitivity 1 (Balle and Wang, 2018, theorem 8)."""

    def below(x):
        return math.erfc(-x / 2**0.5) / 2

    half = 1 / (2 * noise)
    return below(half - epsilon * noise) - math.exp(epsilon) * below(-half - epsilon * noise)


@pytest.mark.parametrize("rate", [1e-5, 1e-3, 0.05, 0.5, 0.9])
@pytest.mark.parametrize("noise", [0.3, 0.8, 1.5, 8.0, 200.0])
def test_the_search_finds_the_least_of_all_orders(rate, noise):
    """Also where series of low orders do not converge, and where the least is the first or the last order."""
    library = accounting()
    for steps in (1, 1000, 20_000):
        history = [Spending(rate, noise, steps)]
        divergences = [RDP.divergence(history, order) for order in ORDERS]
        for delta in (1e-9, DELTA, 1e-3):
            expected, _ = library.rdp.compute_epsilon(ORDERS, divergences, delta)
            assert RDP.of(history, delta) == expected


@pytest.mark.parametrize("spending", PUBLISHED)
def test_published_figures(spending):
    by_classic, by_improved, best = PUBLISHED[spending]
    assert by_whole_orders([spending], classic) == pytest.approx(by_classic, abs=6e-4)
    assert by_whole_orders([spending], improved) == pytest.approx(by_improved, abs=6e-4)
    assert RDP.epsilon([spending], DELTA) == pytest.approx(best, abs=6e-4)
    assert 0.8 * best < PLD.epsilon([spending], DELTA) < best


@pytest.mark.parametrize("spending", HARD)
def test_distributions_of_losses_are_tighter_than_divergences_for_every_rate_and_noise(spending):
    """The grid is fine enough: one four times as fine gives at most one percent less."""
    epsilon, interval = PLD.epsilon([spending], DELTA), loss_interval([spending])
    assert epsilon < RDP.epsilon([spending], DELTA)
    finer = _losses_of_step(spending.rate, spending.noise, interval / 4).self_compose(spending.steps)
    assert 0.99 * epsilon < finer.get_epsilon_for_delta(DELTA) <= epsilon


def test_the_interval_bounds_the_work_and_is_one_for_all_parts_of_a_history():
    assert PLD.epsilon([Spending(1e-3, 8.0, 3000)], DELTA) == pytest.approx(0.0181, abs=1e-4), "once .0500"
    for spending in (
        Spending(1e-5, 0.7, 10**5),
        Spending(1e-9, 0.1, 10),
        Spending(1e-3, 2.0, 10**8),
        Spending(1.0, 0.05, 9),
    ):
        interval = loss_interval([spending])
        assert 0 < interval <= WIDEST_INTERVAL
        assert _largest_loss(spending) / interval <= MOST_LOSSES or interval == WIDEST_INTERVAL
    fine, coarse = Spending(1e-3, 8.0, 100), Spending(0.01, 8.0, 100)
    assert loss_interval([fine]) < loss_interval([fine, coarse]) < loss_interval([coarse])


def test_fractional_orders_decide_where_little_noise_is_added():
    spent = [Spending(0.3, 0.6, 100)]
    assert RDP.epsilon(spent, DELTA) < 0.85 * by_whole_orders(spent, improved)


@pytest.mark.parametrize(("name", "gap"), [("rdp", 0.15), ("pld", 2e-3)])
@pytest.mark.parametrize("noise", [0.7, 2.0])
def test_a_bound_on_the_gaussian_mechanism(name, gap, noise):
    """Without sampling, k steps with noise s are one with noise s / sqrt(k)."""
    epsilon = ACCOUNTANTS[name].epsilon([Spending(1.0, 2 * noise, 4)], DELTA)
    assert exact_delta(epsilon, noise) <= DELTA < exact_delta(epsilon * (1 - gap), noise)


@pytest.mark.parametrize("accountant", [RDP, PLD], ids=lambda accountant: accountant.name)
def test_parts_of_a_history_add_up(accountant):
    whole = accountant.epsilon([Spending(0.1, 1.0, 30)], DELTA)
    parts = accountant.epsilon([Spending(0.1, 1.0, 20), Spending(0.1, 1.0, 10)], DELTA)
    mixed = accountant.epsilon([Spending(0.1, 1.0, 20), Spending(0.2, 1.0, 10)], DELTA)
    assert parts == pytest.approx(whole, rel=1e-6) and mixed > 1.05 * whole
    assert accountant.epsilon([], DELTA) == accountant.epsilon([Spending(0.1, 1.0, 0)], DELTA) == 0.0
    assert accountant.epsilon([Spending(0.1, 0.0, 1)], DELTA) == math.inf


@pytest.mark.parametrize(("accountant", "epsilon"), [(RDP, 0.5), (RDP, 8.0), (PLD, 2.0)])
def test_the_noise_for_a_budget(accountant, epsilon):
    noise = accountant.noise_for(epsilon, DELTA, 0.05, 100)
    assert accountant.epsilon([Spending(0.05, noise, 100)], DELTA) <= epsilon
    assert accountant.epsilon([Spending(0.05, 0.997 * noise, 100)], DELTA) > epsilon


def test_a_node_without_steps_needs_no_noise_and_some_budgets_no_noise_meets():
    assert RDP.noise_for(1.0, DELTA, 0.1, 0) == RDP.noise_for(1.0, DELTA, 0.0, 10) == 0.0
    with pytest.raises(BadInput, match="needs noise above 10000"):
        RDP.noise_for(1e-4, DELTA, 1.0, 10**6)
