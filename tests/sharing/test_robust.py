"""Robust rules against their definitions, written out for dense arrays."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from decentnode.errors import BadInput
from decentnode.graph.base import View
from decentnode.graph.families import FullyConnected, Ring
from decentnode.graph.mixing import MetropolisHastings, WeightedGraph
from decentnode.sharing import (
    Balance,
    ClippedGossip,
    GeometricMedian,
    Krum,
    Median,
    Rfa,
    TrimmedMean,
    Ubar,
)
from decentnode.sharing.robust.base import Aggregation
from decentnode.sharing.robust.order import middle_values, network
from decentnode.testing import Lockstep, bound, random_models

D = 40


def view_of(count, rank=0, weights=None):
    others = tuple(j for j in range(count) if j != rank)
    weights = weights or dict.fromkeys(range(count), 1 / count)
    return View(rank, 3, others, others, weights, weights, {})


def mixed(rule, x, view=None, **setup):
    """What the rule makes of the models `x`, of which the first is the own one, and the shares it gave."""
    bound(rule, len(x), x.shape[1], **setup)
    out = torch.empty(x.shape[1], dtype=x.dtype)
    rule.combine(dict(enumerate(x)), view or view_of(len(x)), out)
    return out, rule._shares


@settings(deadline=None, max_examples=60)
@given(st.integers(1, 12), st.data())
def test_the_networks_leave_the_middle(count, data):
    cut = data.draw(st.integers(0, (count - 1) // 2))
    values = torch.randint(-3, 4, (count, 50))
    middle = torch.stack(middle_values(list(values), cut)).sort(0).values
    assert torch.equal(middle, values.sort(0).values[cut : count - cut])


def test_a_network_costs_less_than_a_sort():
    assert len(network(9, 4)) < 24 and len(network(9, 1)) == 15


@pytest.mark.parametrize("count", [3, 4, 9])
def test_trimmed_mean_and_median(count):
    x = random_models(count, D)
    ascending = x.sort(0).values
    out, _ = mixed(TrimmedMean(faults=1), x)
    torch.testing.assert_close(out, ascending[1:-1].mean(0), rtol=0, atol=1e-14)
    out, _ = mixed(Median(), x)
    middle = ascending[[(count - 1) // 2, count // 2]].mean(0)
    torch.testing.assert_close(out, middle, rtol=0, atol=1e-14)


def test_the_watched_weight_is_the_share_of_the_values_that_were_kept():
    x = random_models(7, D)
    rule = TrimmedMean(faults=2)
    watched = frozenset({3, 5})
    _, shares = mixed(rule, x, watched=watched)
    order = x.argsort(0).argsort(0)
    for j in (3, 5):
        kept = ((order[j] >= 2) & (order[j] <= 4)).sum().item()
        assert math.isclose(shares[j], kept / (D * 3))
    x[3] = 1e6
    assert mixed(rule, x, watched=watched)[1][3] == 0


def by_krum(x, faults, select):
    m = len(x)
    scores = []
    for j in range(m):
        apart = sorted(float((x[j] - x[k]).square().sum()) for k in range(m) if k != j)
        scores.append(sum(apart[: m - faults - 2]))
    return x[np.argsort(scores, kind="stable")[:select]].mean(0)


@pytest.mark.parametrize(("faults", "select"), [(0, 1), (1, 1), (2, 3)])
def test_krum_takes_the_models_nearest_to_others(faults, select):
    x = random_models(9, D)
    x[4] = 1e3
    out, shares = mixed(Krum(faults=faults, select=select), x)
    torch.testing.assert_close(out, by_krum(x, faults, select), rtol=0, atol=1e-12)
    if faults:
        assert shares[4] == 0


def test_the_geometric_median_is_where_unit_vectors_cancel():
    x = random_models(7, D)
    x[2] += 1e4
    out, shares = mixed(GeometricMedian(steps=2000), x)
    ways = x - out
    assert (ways / ways.norm(dim=1, keepdim=True)).sum(0).norm() < 1e-5
    assert math.isclose(sum(shares.values()), 1) and shares[2] < 1e-3


def test_rfa_makes_the_steps_of_its_paper():
    x, weights = random_models(5, D), {0: 0.4, 1: 0.3, 2: 0.1, 3: 0.1, 4: 0.1}
    out, _ = mixed(Rfa(steps=3, smoothing=0.5), x, view_of(5, weights=weights))
    a = torch.tensor([*weights.values()], dtype=torch.float64)
    z = (a[:, None] * x).sum(0)
    for _ in range(3):
        b = a / (x - z).norm(dim=1).clamp(min=0.5)
        z = (b[:, None] * x).sum(0) / b.sum()
    torch.testing.assert_close(out, z, rtol=0, atol=1e-12)


@pytest.mark.parametrize("radius", [0.5, "adaptive"])
def test_clipped_gossip_clips_differences(radius):
    x, view = random_models(6, D), view_of(6)
    x[3] += 100
    out, _ = mixed(ClippedGossip(radius=radius, faults=1), x, view)
    apart = (x - x[0]).norm(dim=1)
    tau = sorted(apart[1:].tolist())[-2] if radius == "adaptive" else radius
    want = x[0] + sum(view.weights[j] * (x[j] - x[0]) * min(1.0, tau / float(apart[j])) for j in range(1, 6))
    torch.testing.assert_close(out, want, rtol=0, atol=1e-12)


def test_clipped_gossip_without_clipping_is_gossip():
    graph = WeightedGraph(Ring(6), MetropolisHastings())
    x = random_models(6, D)
    run = Lockstep(lambda: ClippedGossip(radius=1e9), Ring(6), x)
    torch.testing.assert_close(run.mix(), torch.as_tensor(graph.matrix()) @ x, rtol=0, atol=1e-13)


def test_balance_accepts_near_models():
    x = random_models(5, D)
    x[1:] = x[0] + 0.1 * x[1:]
    x[4] += 3
    rule = Balance(limit=0.3, kappa=2.0, alpha=0.25, horizon=10)
    limit = 0.3 * math.exp(-2.0 * 3 / 10) * x[0].norm()
    accepted = [j for j in range(1, 5) if (x[j] - x[0]).norm() <= limit]
    assert accepted == [1, 2, 3]
    out, shares = mixed(rule, x)
    torch.testing.assert_close(out, 0.25 * x[0] + 0.75 * x[accepted].mean(0), rtol=0, atol=1e-13)
    assert shares[4] == 0
    x[1:] += 50
    assert torch.equal(mixed(rule, x)[0], x[0])


def test_ubar_takes_near_models_that_are_no_worse():
    x = torch.arange(6, dtype=torch.float64)[:, None].expand(6, D).clone()
    rule = Ubar(rho=0.6, alpha=0.5)
    losses = {0: 1.0, 1: 0.5, 2: 2.0, 3: 1.0, 4: 0.0, 5: 0.0}
    local_loss = lambda model, round: losses[int(model[0])]
    out, shares = mixed(rule, x, local_loss=local_loss)  # the three nearest are 1, 2, 3; 2 is worse
    assert out[0] == 0.5 * 0 + 0.5 * (1 + 3) / 2 and shares[4] == 0
    losses |= {1: 3.0, 3: 4.0}
    assert mixed(rule, x, local_loss=local_loss)[0][0] == 0.5 * 2  # all are worse: the best of them


def test_nearest_neighbor_mixing_and_bucketing():
    x = random_models(6, D)
    near = torch.stack([x[(x - x[j]).norm(dim=1).argsort()[:5]].mean(0) for j in range(6)])
    out, _ = mixed(TrimmedMean(faults=1, before="nnm"), x)
    torch.testing.assert_close(out, near.sort(0).values[1:-1].mean(0), rtol=0, atol=1e-13)
    out, _ = mixed(Krum(faults=1, before="nnm"), x)
    torch.testing.assert_close(out, by_krum(near, 1, 1), rtol=0, atol=1e-12)
    out, _ = mixed(Median(before="bucketing", bucket=2), x)
    groups = Median(before="bucketing", bucket=2)
    bound(groups, 6, D)
    mixes = groups._mixes(dict(enumerate(x)), view_of(6))
    assert sorted(mixes.sum(0)) == [0.5] * 6 and mixes.shape == (3, 6)
    torch.testing.assert_close(out, (torch.as_tensor(mixes) @ x).median(0).values, rtol=0, atol=1e-13)


def test_groups_are_of_the_size_of_the_paper_but_for_the_last():
    """Karimireddy et al., 2022, Alg. 1: the models from s (i - 1) + 1 to min(n, s i)."""
    groups = Median(before="bucketing", bucket=4)
    bound(groups, 10, D)
    mixes = groups._mixes(dict(enumerate(random_models(10, D))), view_of(10))
    assert [(row > 0).sum() for row in mixes] == [4, 4, 2] and list(mixes.max(1)) == [1 / 4, 1 / 4, 1 / 2]


RULES = (Balance, ClippedGossip, GeometricMedian, Krum, Median, Rfa, TrimmedMean, Ubar)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
@pytest.mark.parametrize("wrong", [math.nan, math.inf, 1e300])
def test_a_wrong_model_never_reaches_the_mix(rule, wrong):
    """Non-finite models are refused and recorded; large ones get next to no weight."""

    class Wrong(rule):
        def outgoing(self, vector, view):
            bad = torch.full_like(vector, wrong) if view.rank == 2 else vector
            return super().outgoing(bad, view)

    local_loss = lambda model, round: float(model.square().sum())
    setup_of = lambda rank: {"local_loss": local_loss}
    run = Lockstep(Wrong, FullyConnected(7), random_models(7, D), setup_of=setup_of)
    honest = [i for i in range(7) if i != 2]
    bound_before = run.models.abs().max()
    x = run.run(3)[honest]
    assert x.isfinite().all() and x.abs().max() <= bound_before * (1 + 1e-6)
    if not math.isfinite(wrong):
        assert {refusal.rank for i in honest for refusal in run.schemes[i].refusals} == {2}


def test_too_few_neighbors_are_refused_or_fall_back():
    ring, x = WeightedGraph(Ring(6), MetropolisHastings()), random_models(3, D)
    for rule, models in ((Krum(faults=1), 5), (TrimmedMean(faults=2), 5)):
        with pytest.raises(BadInput, match=f"needs {models} models, and rank 0 has 3"):
            rule.check(ring)
    TrimmedMean(faults=1).check(ring)
    Median().check(ring)
    with pytest.raises(BadInput, match="needs 5 models"):
        TrimmedMean(faults=1, before="bucketing").check(ring)
    for few, want in (("own", x[0]), ("mean", x.mean(0)), ("refuse", x[0])):
        rule = Krum(faults=1, few=few)
        if few != "refuse":
            rule.check(ring)
        torch.testing.assert_close(mixed(rule, x)[0], want, rtol=0, atol=1e-14)


@pytest.mark.parametrize(
    "rule", [rule for rule in RULES if issubclass(rule, Aggregation)], ids=lambda rule: rule.__name__
)
def test_without_wrong_models_a_complete_graph_agrees(rule):
    run = Lockstep(lambda: rule(few="own"), FullyConnected(6), random_models(6, D))
    before = run.disagreement
    run.run(4)
    assert run.disagreement < 1e-3 * before
