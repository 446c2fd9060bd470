"""The largest move that wrong models of any size can cause, against bounds that follow from the honest ones.

The bounds are derived in docs/robustness.md. All of them are computed in float64, from honest models alone.
"""

import math

import pytest
import torch

from decentnode.attacks.active.scaling import Scaling
from decentnode.core.payload import Payload
from decentnode.core.vector import Entry, ParameterLayout
from decentnode.errors import BadInput
from decentnode.graph.base import View
from decentnode.graph.families import FullyConnected
from decentnode.graph.mixing import MetropolisHastings, WeightedGraph
from decentnode.graph.overlays.flipper import Flipper
from decentnode.graph.roles import Hierarchical
from decentnode.sharing import (
    Balance,
    ClippedGossip,
    GeometricMedian,
    Gossip,
    Krum,
    Levels,
    Median,
    Rfa,
    TrimmedMean,
    Ubar,
)
from decentnode.sharing.blocks.buffers import stay_in_vector
from decentnode.sharing.levels import LevelScheme
from decentnode.sharing.overlays import on_overlay
from decentnode.testing import Lockstep, bound, random_models
from decentnode.transforms import Cast

D, HONEST = 12, 7
F32, F64, BF16 = torch.float32, torch.float64, torch.bfloat16
SIZES = (
    (math.nan, F32), (-math.inf, F64), (1e9, F32), (-1e30, F32), ("max", F32), ("max", F64), ("-max", BF16),
    (1e9, BF16), (0.1, F64), (3.0, F32), (1e3, F64),
)  # fmt: skip
"""Sizes of wrong models, and the number format of all models: squares of many overflow."""


def apart(x, h):
    return (x - h).norm(dim=1)


def diameter(x):
    return float(torch.cdist(x, x).max())


def of_range(x, wrong):
    """Each coordinate stays among the honest ones."""
    return x.min(0).values, x.max(0).values


def of_range_of_means(x, wrong):
    """The honest inputs are means of the nearest models, none of them farther away than an honest one."""
    return x.min(0).values - diameter(x), x.max(0).values + diameter(x)


def of_krum(select):
    def largest(x, wrong):
        m = len(x) + wrong
        squares = torch.cdist(x, x).square().sort(1).values[:, 1 : m - wrong - 1].sum(1)
        score = squares.min() if select == 1 else squares.max()
        # A wrong model that is chosen has at least so many honest ones among its nearest.
        return diameter(x) + float(score / (m - 2 * wrong - 1)) ** 0.5

    return largest


def of_krum_of_means(x, wrong):
    m, between = len(x) + wrong, 3 * diameter(x)
    return 2 * diameter(x) + between * ((m - wrong - 2) / (m - 2 * wrong - 1)) ** 0.5


def of_median(smoothing):
    def largest(x, wrong):
        m = len(x) + wrong
        return (2 * float(apart(x, x[0]).sum()) / m + smoothing / 2) / (1 - 2 * wrong / m)

    return largest


def of_median_of_means(smoothing):
    def largest(x, wrong):
        d = wrong / (len(x) + wrong)
        return diameter(x) + (2 * (1 - d) * 3 * diameter(x) + smoothing / 2) / (1 - 2 * d)

    return largest


def of_median_of_groups(smoothing, size):
    def largest(x, wrong):
        groups = -(-(len(x) + wrong) // size)
        d = wrong / groups
        return diameter(x) + (2 * (1 - d) * diameter(x) + smoothing / 2) / (1 - 2 * d)

    return largest


def of_clipping(radius):
    def largest(x, wrong):
        w, distances = 1 / (len(x) + wrong), apart(x, x[0])
        tau = float(distances.max()) if radius is None else radius
        return w * (float(distances.clamp(max=tau).sum()) + wrong * tau)

    return largest


def of_balance(x, wrong):
    return 0.5 * 0.3 * math.exp(-3 / 100) * float(x[0].norm())


def of_ubar(x, wrong):
    near = math.ceil(0.4 * (len(x) - 1 + wrong))
    return 0.5 * float(apart(x, x[0]).sort().values[near])


RULES = {
    "trimmed_mean": (lambda f: TrimmedMean(faults=f), of_range),
    "trimmed_mean nnm": (lambda f: TrimmedMean(faults=f, before="nnm"), of_range_of_means),
    "trimmed_mean bucketing": (lambda f: TrimmedMean(faults=f, before="bucketing"), of_range),
    "median": (lambda f: Median(), of_range),
    "median nnm": (lambda f: Median(faults=f, before="nnm"), of_range_of_means),
    "median bucketing": (lambda f: Median(before="bucketing"), of_range),
    "krum": (lambda f: Krum(faults=f), of_krum(1)),
    "multi-krum": (lambda f: Krum(faults=f, select=HONEST), of_krum(HONEST)),
    "krum nnm": (lambda f: Krum(faults=f, before="nnm"), of_krum_of_means),
    "geometric_median": (lambda f: GeometricMedian(steps=30), of_median(1e-6)),
    "geometric_median one step": (lambda f: GeometricMedian(steps=1), of_median(1e-6)),
    "geometric_median bucketing": (
        lambda f: GeometricMedian(steps=9, before="bucketing"),
        of_median_of_groups(1e-6, 2),
    ),
    "rfa": (lambda f: Rfa(), of_median(0.1)),
    "rfa nnm": (lambda f: Rfa(faults=f, before="nnm"), of_median_of_means(0.1)),
    "clipped_gossip": (lambda f: ClippedGossip(faults=f), of_clipping(None)),
    "clipped_gossip fixed": (lambda f: ClippedGossip(radius=0.5), of_clipping(0.5)),
    "balance": (lambda f: Balance(), of_balance),
    "ubar": (lambda f: Ubar(), of_ubar),
}
"""Each rule for f wrong models, and how far it may move: a distance from the own model, or a range."""


def wrong_models(x, size, faults):
    """Sets of wrong models of that size: in all coordinates, in one, opposite, near honest ones."""
    limit = torch.finfo(x.dtype).max
    size = {"max": limit, "-max": -limit}.get(size, size)
    ones, one = torch.full((D,), size, dtype=x.dtype), torch.zeros(D, dtype=x.dtype)
    one[3] = size
    signs = torch.tensor([1.0, -1.0] * (D // 2), dtype=x.dtype)
    for model in (ones, one, ones * signs, x[1] + ones / D):
        yield torch.stack([model] * faults)
    yield torch.stack([ones if k % 2 else -ones for k in range(faults)])
    yield torch.stack([ones, *[x.mean(0)] * (faults - 1)])


def mixed(rule, x, wrong):
    """What the node of the first model mixes when these wrong models arrive with the honest ones."""
    models = torch.cat([x[:1], wrong, x[1:]])
    count = len(models)
    norm = lambda model, round: float(model.square().sum())
    bound(rule, count, D, dtype=x.dtype, local_loss=norm)
    others = tuple(range(1, count))
    weights = dict.fromkeys(range(count), 1 / count)
    view = View(0, 3, others, others, weights, weights, {})
    out = torch.full((D,), math.nan, dtype=x.dtype)
    incoming = {j: Payload.dense(models[j].clone()) for j in others}
    rule.mix(models[0], incoming, view, out)
    return out


@pytest.mark.parametrize("faults", [1, 2])
@pytest.mark.parametrize("name", RULES)
def test_wrong_models_of_any_size_move_a_node_only_as_far_as_the_honest_ones_allow(name, faults, capsys):
    make, largest = RULES[name]
    for size, dtype in SIZES:
        x = (1 + 0.3 * random_models(HONEST, D)).to(dtype)
        limits, rounding = largest(x.double(), faults), 100 * torch.finfo(dtype).eps * float(x.abs().max())
        for wrong in wrong_models(x, size, faults):
            out = mixed(make(faults), x, wrong).double()
            assert out.isfinite().all(), (size, wrong)
            if isinstance(limits, tuple):
                low, high = limits
                assert (out >= low - rounding).all() and (out <= high + rounding).all(), (size, wrong)
            else:
                assert float((out - x[0].double()).norm()) <= limits + rounding, (size, wrong)
    capsys.readouterr()


def test_a_median_stays_with_the_honest_models_at_every_number_of_steps():
    """From the mean of all, eight steps would leave 1e9 / 4^9 = 3,815 in each coordinate."""
    x = 1 + 0.1 * random_models(4, D)
    for steps in (1, 2, 8):
        out = mixed(Rfa(steps=steps), x, torch.full((1, D), 1e9, dtype=x.dtype))
        assert float((out - x.mean(0)).norm()) < 0.2


def test_krum_keeps_no_mean_that_a_wrong_model_must_be_part_of():
    graph = WeightedGraph(FullyConnected(7), MetropolisHastings())
    Krum(faults=2, select=5).check(graph)
    with pytest.raises(BadInput, match="needs 8 models, and rank 0 has 7"):
        Krum(faults=2, select=6).check(graph)


@pytest.mark.parametrize("loss", [math.nan, math.inf])
def test_ubar_believes_no_model_whose_loss_is_not_finite(loss, capsys):
    x = random_models(4, D)

    def mixed_by(own, others):
        def local_loss(model, round):
            value = own if torch.equal(model, x[0]) else others(model)
            if value is None:
                raise ValueError("a variance must be positive")
            return value

        rule = Ubar(rho=1.0)
        bound(rule, 4, D, local_loss=local_loss)
        out = torch.empty(D, dtype=x.dtype)
        weights = dict.fromkeys(range(4), 1 / 4)
        rule.combine(dict(enumerate(x)), View(0, 3, (1, 2, 3), (1, 2, 3), weights, weights, {}), out)
        return out, rule.refusals

    for own in (1.0, loss):
        assert torch.equal(mixed_by(own, lambda model: loss)[0], x[0]), "all are wrong: the own one"
        out, _ = mixed_by(own, lambda model: 2.0 if torch.equal(model, x[2]) else loss)
        torch.testing.assert_close(out, (x[0] + x[2]) / 2)
    out, refusals = mixed_by(1.0, lambda model: None)
    assert torch.equal(out, x[0]) and {refusal.rank for refusal in refusals} == {1, 2, 3}
    assert "own samples cannot test it: a variance must be positive" in capsys.readouterr().out


def test_ubar_blames_no_neighbor_for_memory_that_the_node_lacks():
    x = random_models(2, D)

    def local_loss(model, round):
        if not torch.equal(model, x[0]):
            raise torch.OutOfMemoryError("CUDA out of memory")
        return 1.0

    rule = Ubar(rho=1.0)
    bound(rule, 2, D, local_loss=local_loss)
    view = View(0, 3, (1,), (1,), {0: 0.5, 1: 0.5}, {0: 0.5, 1: 0.5}, {})
    with pytest.raises(torch.OutOfMemoryError):
        rule.combine(dict(enumerate(x)), view, torch.empty(D, dtype=x.dtype))
    assert not rule.refusals


def test_a_node_that_is_alone_and_has_no_weight_of_its_own_keeps_its_model():
    x = random_models(1, D)
    rule = Rfa()
    bound(rule, 2, D)
    out = torch.empty(D, dtype=x.dtype)
    rule.combine({0: x[0]}, View(0, 0, (1,), (1,), {0: 0.0, 1: 1.0}, {0: 0.0, 1: 1.0}, {}), out)
    assert torch.equal(out, x[0])


@pytest.mark.parametrize("liar", [0, 1, 8])
def test_rules_bound_wrong_models_within_levels_and_on_overlays(liar):
    """A head and a member of a cluster, and nodes whose links change."""
    graph, x = Hierarchical(9, 3), random_models(9, 5)
    overlay = WeightedGraph(Flipper(9, 4, start="lattice"), MetropolisHastings())
    attack, honest = Scaling(ranks=(liar,), scale=1e30), [i for i in range(9) if i != liar]
    for make, where in (
        (lambda: Levels(LevelScheme(Median()), LevelScheme(Median())), graph),
        (lambda: on_overlay(TrimmedMean(faults=1), overlay), FullyConnected(9)),
    ):
        schemes = iter([attack.wrap(make()) if i == liar else make() for i in range(9)])
        run = Lockstep(lambda schemes=schemes: next(schemes), where, x)
        low, high = of_range(x[honest], 1)
        out = run.run(3)[honest]
        assert ((out >= low) & (out <= high)).all()


def test_running_statistics_are_mixed_by_the_rule_or_not_beside_it():
    """An average of them beside a rule would take 1e30 of one neighbor as it is."""
    layout = ParameterLayout(
        (Entry("weight", torch.Size((3,)), 0), Entry("variance", torch.Size((2,)), 3, is_buffer=True))
    )
    assert stay_in_vector(layout, TrimmedMean(), ())
    assert not stay_in_vector(layout, Gossip(), (Cast(),))
    for scheme, transforms in ((TrimmedMean(), (Cast(),)), (Levels(LevelScheme(Median())), ())):
        with pytest.raises(BadInput, match=r"beside (trimmed_mean|median), which would not limit"):
            stay_in_vector(layout, scheme, transforms)
