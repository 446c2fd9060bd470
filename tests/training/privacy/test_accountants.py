"""Accountants against published figures, closed forms, and each other."""

import math

import pytest

from decentnode.errors import BadInput
from decentnode.training.privacy.accountants import ACCOUNTANTS, ORDERS, Spending

RDP, PLD = ACCOUNTANTS["rdp"], ACCOUNTANTS["pld"]
DELTA = 1e-5
PUBLISHED = {  # of the tutorial of TensorFlow Privacy, and of our own script: classic and improved conversion
    Spending(250 / 60000, 1.3, 3600): (1.180, 0.942),
    Spending(250 / 60000, 1.1, 14400): (2.970, 2.563),
    Spending(250 / 60000, 0.7, 10800): (7.024, 6.274),
    Spending(0.01, 1.0, 1000): (2.538, 2.108),
}


def classic(history, delta):
    """Mironov, 2017, proposition 3."""
    curve = RDP.curve(history)
    return min(one + math.log(1 / delta) / (order - 1) for one, order in zip(curve, ORDERS, strict=True))


def exact_delta(epsilon, noise):
    """Of one Gaussian mechanism of sensitivity 1 (Balle and Wang, 2018, theorem 8)."""

    def below(x):
        return math.erfc(-x / 2**0.5) / 2

    half = 1 / (2 * noise)
    return below(half - epsilon * noise) - math.exp(epsilon) * below(-half - epsilon * noise)


@pytest.mark.parametrize("spending", PUBLISHED)
def test_published_figures(spending):
    wanted, improved = PUBLISHED[spending]
    assert classic([spending], DELTA) == pytest.approx(wanted, abs=6e-4)
    assert RDP.epsilon([spending], DELTA) == pytest.approx(improved, abs=6e-4)
    assert 0.8 * improved < PLD.epsilon([spending], DELTA) < improved


@pytest.mark.parametrize(("name", "gap"), [("rdp", 0.15), ("pld", 2e-3)])
@pytest.mark.parametrize("noise", [0.7, 2.0])
def test_a_bound_on_the_gaussian_mechanism(name, gap, noise):
    """Without sampling, k steps with noise s are one with noise s / sqrt(k)."""
    epsilon = ACCOUNTANTS[name].epsilon([Spending(1.0, 2 * noise, 4)], DELTA)
    assert exact_delta(epsilon, noise) <= DELTA < exact_delta(epsilon * (1 - gap), noise)


@pytest.mark.parametrize("accountant", [RDP, PLD], ids=lambda one: one.name)
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
