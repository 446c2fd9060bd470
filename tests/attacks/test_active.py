"""Attacks with wrong models: the lies themselves, and what robust rules leave of them."""

import math

import numpy as np
import pytest
import torch

from decentnode.attacks import Attack
from decentnode.attacks.active.alie import Alie, most_hidden
from decentnode.attacks.active.dissensus import Dissensus
from decentnode.attacks.active.echo import Echo
from decentnode.attacks.active.ipm import InnerProduct
from decentnode.attacks.active.mimic import Mimic
from decentnode.attacks.active.noise import NoisyModels
from decentnode.attacks.active.not_finite import NotFiniteModels
from decentnode.attacks.active.scaling import Scaling
from decentnode.attacks.active.sign_flip import SignFlip
from decentnode.attacks.active.weight_claim import WeightClaim
from decentnode.core.registry import ATTACKS
from decentnode.graph.base import View
from decentnode.graph.families import FullyConnected, Ring
from decentnode.graph.roles import Federated
from decentnode.sharing import (
    Choco,
    ClippedGossip,
    FedAvg,
    Gossip,
    PushSum,
    SecureAggregation,
    TrimmedMean,
)
from decentnode.testing import Lockstep, bound, random_models

LIARS = (2,)
VIEW = View(2, 1, (0, 1, 3, 4), (0, 1, 3, 4), {}, {}, {})


def test_every_attack_declares_its_knowledge():
    assert len(ATTACKS.classes()) >= 10
    assert all(cls.knowledge and cls.__doc__ for cls in ATTACKS.classes().values())


def test_what_they_send():
    own_model, x = random_models(1, 6)[0], dict(enumerate(random_models(5, 6)))
    seen = {j: x[j] for j in (0, 1, 3, 4)}
    stacked = torch.stack([x[0], x[1], x[4]])

    def lie(attack: Attack, target=None):
        return attack.lie(own_model, VIEW, seen, target)

    both = (2, 3)
    assert torch.equal(lie(SignFlip(ranks=LIARS, scale=2.0)), -2 * own_model)
    assert torch.equal(lie(Scaling(ranks=LIARS, scale=3.0)), 3 * own_model)
    assert lie(NotFiniteModels(ranks=LIARS)).isnan().all()
    assert lie(NotFiniteModels(ranks=LIARS, value="inf")).isinf().all()
    torch.testing.assert_close(lie(InnerProduct(ranks=both, epsilon=0.1)), -0.1 * stacked.mean(0))
    torch.testing.assert_close(lie(Alie(ranks=both, z=1.5)), stacked.mean(0) - 1.5 * stacked.std(0))
    assert torch.equal(lie(Mimic(ranks=(0, 2))), x[1]) and torch.equal(
        lie(Mimic(ranks=LIARS, victim=4)), x[4]
    )
    assert torch.equal(lie(Echo(ranks=LIARS), 3), x[3])
    want = x[0] - 2.0 * ((x[1] - x[0]) + (x[4] - x[0]))
    torch.testing.assert_close(lie(Dissensus(ranks=both, epsilon=2.0), 0), want)
    first, second = lie(NoisyModels(ranks=LIARS, deviation=0.5)), lie(NoisyModels(ranks=LIARS, deviation=0.5))
    assert torch.equal(first, second) and 0.1 < (first - own_model).std() < 1


@pytest.mark.parametrize(
    ("nodes", "liars", "z"), [(50, 12, 0.3360), (25, 5, 0.2533), (50, 24, 1.4261), (10, 2, 0.0)]
)
def test_alie_shifts_as_far_as_its_paper_allows(nodes, liars, z):
    assert math.isclose(most_hidden(nodes, liars), z, abs_tol=5e-5)


def attacked(make, attack, graph, models):
    """A run whose nodes of the attack lie."""
    liars, ranks = frozenset(attack.ranks), iter(range(graph.num_nodes))
    return Lockstep(
        lambda: attack.wrap(make()) if next(ranks) in liars else make(),
        graph,
        models,
        setup_of=lambda rank: {} if rank in liars else {"watched": liars},
    )


def test_gossip_mixes_the_attack_and_the_attacker_mixes_by_the_scheme():
    x = random_models(6, 5)
    run = attacked(Gossip, SignFlip(ranks=(2,)), Ring(6), x)
    run.mix()
    third = (x[0] + x[1] - x[2]) / 3
    torch.testing.assert_close(run.models[1], third, rtol=0, atol=1e-14)
    torch.testing.assert_close(run.models[2], (x[1] + x[2] + x[3]) / 3, rtol=0, atol=1e-14)
    assert [s.watched_weight for s in run.schemes[:2]] == [0.0, pytest.approx(1 / 3)]


def test_an_adversary_is_honest_before_its_first_round():
    honest, x = Lockstep(Gossip, Ring(6), random_models(6, 5)), random_models(6, 5)
    run = attacked(Gossip, SignFlip(ranks=(2,), first_round=2), Ring(6), x)
    assert torch.equal(run.run(2), honest.run(2))
    assert not torch.equal(run.mix(), honest.mix())


def test_dissensus_freezes_a_node_whose_neighbors_it_knows():
    """With all honest models known, and equal weights, epsilon 1 keeps the victims where they are."""
    x = random_models(5, 4)
    run = attacked(Gossip, Dissensus(ranks=(4,)), FullyConnected(5), x)
    run.schemes[4]._seen = dict(enumerate(x[:4]))
    run.mix()
    torch.testing.assert_close(run.models[:4], x[:4], rtol=0, atol=1e-14)
    # Among themselves adversaries do not lie, or their own models would grow without end.
    own_model, seen = random_models(1, 4)[0], dict(enumerate(x))
    assert torch.equal(Dissensus(ranks=(3, 4)).lie(own_model, None, seen, 3), own_model)
    assert not torch.equal(Dissensus(ranks=(3, 4)).lie(own_model, None, seen, 2), own_model)


@pytest.mark.parametrize("attack", ["sign_flip", "noise", "scaling", "ipm", "alie", "not_finite"])
def test_robust_rules_bound_what_attackers_do(attack):
    graph, liars = FullyConnected(10), (3, 7)
    x = 1 + 0.1 * random_models(10, 30)
    honest = [i for i in range(10) if i not in liars]
    options = {"deviation": 10.0} if attack == "noise" else {}
    made = ATTACKS.classes()[attack](ranks=liars, **options)
    mean = x[honest].mean(0)
    apart = {}
    for name, make in (
        ("gossip", Gossip),
        ("trimmed", lambda: TrimmedMean(faults=2)),
        ("clipped", lambda: ClippedGossip(faults=2)),
    ):
        run = attacked(make, made, graph, x)
        apart[name] = float((run.run(3)[honest].mean(0) - mean).norm())
    assert apart["trimmed"] < 0.6 and apart["clipped"] < 1.5
    if attack in ("sign_flip", "noise", "scaling", "ipm"):
        assert apart["gossip"] > 2 * apart["trimmed"]


def test_schemes_that_hide_or_repeat_models():
    """Attacks without knowledge work on every scheme; others are refused where models are not shown."""
    graph = FullyConnected(5)
    run = attacked(Choco, SignFlip(ranks=(1,)), graph, random_models(5, 6))
    assert run.run(3).isfinite().all()
    lines = [defect.what for defect in Alie(ranks=(1,)).defects(graph, Choco())]
    assert len(lines) == 1 and "choco does not show them" in lines[0]
    assert [*SignFlip(ranks=(1,)).defects(graph, SecureAggregation())] == []
    assert np.isclose(most_hidden(4, 4 - 1), 0.0)


def test_a_wrong_weight_moves_what_it_weighs():
    """x = n mean / (n - 1 + c) for push-sum; of a server's clients, the samples that are claimed."""
    n, factor = 5, 3.0
    x, claim = 1 + random_models(n, 4), WeightClaim(ranks=(2,), factor=factor)
    mixed = attacked(PushSum, claim, FullyConnected(n), x).mix()
    others = [i for i in range(n) if i != 2]
    expected = (n * x.mean(0) / (n - 1 + factor)).expand(n - 1, -1)
    torch.testing.assert_close(mixed[others], expected, rtol=0, atol=1e-14)
    late = WeightClaim(ranks=(2,), factor=factor, first_round=1)
    honest = attacked(PushSum, late, FullyConnected(n), x).mix()
    torch.testing.assert_close(honest, x.mean(0).expand(n, -1), rtol=0, atol=1e-14)
    assert bound(claim.wrap(FedAvg()), n, 4, samples=20).handshake() == (60).to_bytes(8, "little")
    assert [*claim.defects(Federated(n), FedAvg())] == []
    (line,) = [defect.what for defect in claim.defects(Ring(n), Gossip())]
    assert line.startswith("gossip sends no weight; use scaling")
