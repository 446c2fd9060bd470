"""Secure aggregation with a threshold: sums of survivors are exact, and too few colluders learn nothing."""

import numpy as np
import pytest
import torch

from decentnode.core.pair_keys import Mask, PairKeys
from decentnode.errors import BadInput
from decentnode.graph.families import FullyConnected, Ring
from decentnode.graph.mixing import MetropolisHastings, Uniform, WeightedGraph, live_weights
from decentnode.graph.random_graphs import Regular
from decentnode.graph.redrawn import EpidemicLocal, EpidemicOracle, RandomMatching
from decentnode.sharing import Gossip, SecureAggregation
from decentnode.sharing.blocks.fixed_point import apply
from decentnode.sharing.blocks.mask_recovery import ReceiverGroup, SenderGroup, sealed_bytes
from decentnode.sharing.blocks.secret_sharing import PRIME, _basis, combine, split
from decentnode.sharing.blocks.weighted_sum import weighted_sum
from decentnode.testing import Lockstep, random_models

LENGTH = 40_000
KEYS = [PairKeys(bytes([i]) * 32) for i in range(6)]
for keys in KEYS:
    keys.receive_handshakes({i: other_keys.public for i, other_keys in enumerate(KEYS)})


def survivors_mixed(net, before, round, i, arrived):
    """The plain fixed-point sum of those that arrived, with the own model for the rest."""
    view, scheme = net.weighted.view(i, round), net.schemes[i]
    total = torch.zeros(before.shape[1], dtype=torch.int64)
    for a in arrived:
        weight = net.weighted.view(a, round).outgoing_weights[i]
        total += (before[a] * (weight * scheme.scale)).round().long()
    mixed = torch.empty_like(before[i])
    weight = live_weights(view.weights, i, arrived)[i]
    weighted_sum([(weight, before[i]), (1.0, total.double() / scheme.scale)], mixed)
    return mixed


@pytest.mark.parametrize("graph", [Regular(10, 5, seed=3), EpidemicOracle(10, 5, seed=2)], ids=repr)
def test_the_sum_of_the_survivors_is_exact(graph, capsys):
    """Whatever is lost in any exchange: a receiver has the exact sum, or its own model."""
    chance, seen = np.random.default_rng(6), set()
    net = Lockstep(lambda: SecureAggregation(threshold=0.5), graph, random_models(10, 9))
    for round in range(6):
        keep = chance.choice([0.8, 0.9, 1.0])
        # An edge that is lost in one exchange is lost in the next ones, too.
        until = np.where(chance.random((10, 10)) < keep, 3, chance.integers(0, 3, (10, 10)))
        until = np.minimum(until, until.T)
        net.is_live = lambda i, j, until=until: until[i, j] > net._phase
        before, mixed = net.models, net.mix()
        for i in range(10):
            sources = net.weighted.view(i, round).sources
            arrived = [a for a in sources if until[i, a] > 0]
            helpers = [a for a in sources if until[i, a] > 2]
            opened = len(helpers) >= 3
            right = survivors_mixed(net, before, round, i, arrived) if opened else before[i]
            assert torch.equal(mixed[i], right)
            seen.add((opened, len(arrived), len(helpers)))
    assert {(True, 5, 5), (True, 4, 3), (False, 4, 2)} <= seen
    assert "senders revealed their shares, but 3 are needed" in capsys.readouterr().out


def test_nothing_is_sent_to_a_receiver_with_too_few_senders():
    """`epidemic_local` gives each round's nodes 0 to many senders."""
    graph, seen = EpidemicLocal(8, 2, seed=1), set()
    net = Lockstep(
        lambda: SecureAggregation(bits=64, scale=1 << 50), graph, random_models(8), weights=Uniform()
    )
    for round in range(6):
        plain = Lockstep(Gossip, graph, net.models, weights=Uniform())
        plain.round = round
        before, expected, mixed = net.models, plain.mix(), net.mix()
        for i in range(8):
            senders = len(net.weighted.view(i, round).sources)
            seen.add(min(senders, 2))
            right = expected[i] if senders >= 2 else before[i]
            assert torch.allclose(mixed[i], right, rtol=0, atol=1e-13)
    alone = [p for p in net.payloads if not p["values"].any()]
    assert seen == {0, 1, 2} and len(alone) == sum(
        len(net.weighted.view(i, 5).sources) == 1 for i in range(8)
    )


def chi_square(y):
    """Over the bytes, 255 degrees of freedom."""
    counts = np.bincount(np.frombuffer(y.numpy().tobytes(), np.uint8), minlength=256)
    expected = counts.sum() / 256
    return ((counts - expected) ** 2 / expected).sum()


def looks_random(y):
    """Six standard deviations around the mean of 255."""
    return 119 < chi_square(y) < 391


def sent(group, x):
    y = x.clone()
    apply(group.masks(), y)
    return y


@pytest.fixture(scope="module")
def round_of_five():
    """Ranks 1 to 5 send to 0; of 5 the model is late."""
    senders = (1, 2, 3, 4, 5)
    groups = {a: SenderGroup(KEYS[a], a, 0, 7, senders, 3) for a in senders}
    # As even as a model of small numbers is: no byte of it is random.
    models = {a: torch.full((LENGTH,), a, dtype=torch.int32) for a in senders}
    masked = {a: sent(groups[a], models[a]) for a in senders}
    receiver = ReceiverGroup(senders, 3, {a: groups[a].sealed() for a in (1, 2, 3, 4)})
    reveals = {a: groups[a].reveal(receiver.notice(a)) for a in (1, 2, 3, 4)}
    return groups, models, masked, receiver, reveals


def held_by(groups, holder, owner):
    """The shares of an owner's secrets that a holder has, in the order of the senders."""
    whole = groups[owner]._held_by(groups[owner].senders.index(holder))
    return [whole[i * 17 : (i + 1) * 17] for i in range(5)]


@pytest.mark.parametrize("colluders", [(1, 2), (1, 2, 3)], ids=["fewer", "as many as the threshold"])
def test_fewer_colluders_than_the_threshold_learn_nothing(round_of_five, colluders):
    """With the receiver they know the sum of the other models, and nothing more; as many know each model."""
    groups, models, masked, receiver, reveals = round_of_five
    total = sum(masked[a] for a in (1, 2, 3, 4))
    apply(receiver.masks(reveals), total)
    assert torch.equal(total, sum(models[a] for a in (1, 2, 3, 4)))
    # The receiver knows each b_a and each m_a5 of those that arrived; colluders know their own masks.
    y = masked[4].clone()
    known = [Mask(groups[4].own_key, False), Mask(groups[4]._pair_key(5), False)]
    known += [Mask(groups[c]._pair_key(4), c < 4) for c in colluders]
    apply(known, y)
    enough = len(colluders) == 3
    assert torch.equal(y, models[4]) if enough else looks_random(y)
    # Of the late model all m_5a are known, and b_5 with enough shares alone.
    late = masked[5].clone()
    apply([Mask(groups[a]._pair_key(5), a < 5) for a in (1, 2, 3, 4)], late)
    shares = [{groups[5].senders.index(c) + 1: held_by(groups, c, 5)[4] for c in colluders}]
    if enough:
        apply([Mask(combine(shares, 3)[0], False)], late)
        assert torch.equal(late, models[5])
    else:
        assert looks_random(late)
        with pytest.raises(ValueError, match="2 shares, but 3 are needed"):
            combine(shares, 3)


@pytest.mark.parametrize("holders", [2, 3])
def test_shares_below_the_threshold_are_random(holders):
    """What shares interpolate to is uniform for fewer than three of them, and the secret for three."""
    secret, basis, values = bytes(range(16)), _basis(range(1, holders + 1)), []
    for _ in range(4000):
        shares = split(secret, 3, 5)[:holders]
        value = sum(
            int.from_bytes(share, "little") * b for share, b in zip(shares, basis.values(), strict=True)
        )
        values.append(value % PRIME * 16 // PRIME)
    chi = np.square(np.bincount(values, minlength=16) - 250).sum() / 250  # 15 degrees of freedom
    assert chi < 60 if holders == 2 else chi > 10_000


def test_shares_that_were_changed_open_nothing(round_of_five):
    groups, _, _, receiver, reveals = round_of_five
    changed = bytes([reveals[2][0] ^ 1]) + reveals[2][1:]
    with pytest.raises(ValueError, match="do not fit together"):
        receiver.masks(reveals | {2: changed})
    with pytest.raises(ValueError, match="2 senders revealed their shares, but 3 are needed"):
        receiver.masks({a: reveals[a] for a in (1, 3)} | {2: b"", 4: reveals[4][1:]})
    blob = receiver.sealed[1]
    wrong = ReceiverGroup(receiver.senders, 3, receiver.sealed | {1: bytes(len(blob))})
    assert groups[2].reveal(wrong.notice(2)) == b"" and len(blob) == 4 * sealed_bytes(5)
    assert groups[5].reveal(receiver.notice(5)) == b""


@pytest.mark.parametrize(
    ("options", "graph", "reason"),
    [
        ({"threshold": 0.5}, EpidemicLocal(8, 3), "threshold needs an undirected graph"),
        ({"threshold": 0.5}, FullyConnected(70), "at most 64 senders to each node"),
        ({}, RandomMatching(8), r"rank \d hears \d alone, and no node ever hears enough"),
        ({"least_senders": 3}, Ring(8), "at least 3 senders to each node"),
    ],
    ids=["directed", "many", "matching", "few"],
)
def test_graphs_that_cannot_be_served_are_refused(options, graph, reason):
    weights = Uniform() if graph.directed else MetropolisHastings()
    with pytest.raises(BadInput, match=reason):
        SecureAggregation(**options).check(WeightedGraph(graph, weights))
