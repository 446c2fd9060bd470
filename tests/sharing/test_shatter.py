"""Shatter: utility of epidemic learning, and a receiver that learns nothing of origins."""

import numpy as np
import pytest
import torch

from decentnode.core.rng import SecureSource
from decentnode.errors import BadInput
from decentnode.graph.families import FullyConnected
from decentnode.graph.mixing import MetropolisHastings, Uniform, WeightedGraph
from decentnode.graph.relayed import Relayed
from decentnode.sharing import Gossip, Shatter
from decentnode.sharing.shatter import deal
from decentnode.testing import Lockstep, bound, random_models
from decentnode.transforms import Cast

GRAPH = Relayed(10, 6, seed=3)


class Watched(Shatter):
    """Notes what it sends: packet -> (owner, chunk)."""

    def _sealed(self, chunk, values, receiver, view, source):
        packet = super()._sealed(chunk, values, receiver, view, source)
        self.sent[packet] = (view.rank, chunk)
        return packet


def watched(sent, graph=GRAPH, d=23, is_live=lambda i, j: True, **options):
    def make():
        scheme = Watched(**options)
        scheme.sent = sent
        return scheme

    return Lockstep(make, graph, random_models(graph.num_nodes, d), is_live=is_live)


@pytest.mark.parametrize("chunks", [1, 4, 23])
def test_with_all_chunks_to_each_neighbor_it_is_epidemic_learning(chunks):
    """All chunks travel on the same graph: the plain mean of the own model and the neighbors'."""
    x = random_models(10, 23)
    net = Lockstep(lambda: Shatter(chunks=chunks, per_neighbor=chunks), GRAPH, x)
    plain = Lockstep(Gossip, GRAPH.neighbors, x, weights=Uniform())
    for _ in range(3):
        assert torch.allclose(net.mix(), plain.mix(), rtol=0, atol=1e-14)


def received(net, receiver, round=0):
    """The packets that its relay has passed on, in order; none where that message was lost."""
    size = net.schemes[0]._packet
    relay = GRAPH.relays(round)[receiver]
    if not net.is_live(receiver, relay):
        return []
    buffers = [p["packets"].numpy().tobytes() for p in net.payloads if p.layout.variable]
    whole = buffers[relay]  # each node relays for one other, in the order of ranks
    return [whole[i : i + size] for i in range(0, len(whole), size)]


@pytest.mark.parametrize("lost", ["nothing", "a neighbor", "a relay"])
def test_each_coordinate_is_the_mean_of_what_arrived(lost):
    sent, relays = {}, GRAPH.relays(0)
    neighbor = next(a for a in GRAPH.neighbors.targets(4, 0) if a != relays[4])
    gone = {"nothing": (), "a neighbor": (relays[4], neighbor), "a relay": (4, relays[4])}[lost]
    net = watched(sent, is_live=lambda i, j: (i, j) != gone, chunks=5, per_neighbor=3)
    x, size, mixed = net.models, 5, net.mix()
    for i in range(10):
        total, number = x[i].clone(), torch.ones(23, dtype=torch.float64)
        packets = received(net, i)
        if i == 4:
            assert len(packets) == {"nothing": 18, "a neighbor": 15, "a relay": 0}[lost]
        for owner, chunk in (sent[packet] for packet in packets):
            assert owner in GRAPH.neighbors.targets(i, 0)
            part = slice(chunk * size, (chunk + 1) * size)
            total[part] += x[owner][part]
            number[part] += 1
        assert torch.allclose(mixed[i], total / number, rtol=0, atol=1e-14)


def test_a_receiver_learns_no_origin_from_the_order():
    """Where the chunks of the first neighbor stand is uniform; a relay that keeps the order is found out."""
    graph, counts = Relayed(10, 6, seed=3), {True: np.zeros(12), False: np.zeros(12)}
    for shuffles in counts:
        for _ in range(20):
            sent = {}
            net = watched(sent, graph, chunks=4, per_neighbor=2, d=8)
            net.mix()
            for i in range(10):
                packets = received(net, i)
                origins = [sent[packet][0] for packet in packets]
                origins = origins if shuffles else sorted(origins)
                counts[shuffles] += np.array(origins) == graph.neighbors.targets(i, 0)[0]
            assert len({len(packet) for packet in sent}) == 1
    chi = {shuffles: np.square(count - 100 / 3).sum() / (100 / 3) for shuffles, count in counts.items()}
    assert chi[True] < 45 < 1000 < chi[False]  # 11 degrees of freedom


def test_a_relay_cannot_read_what_it_passes_on():
    sent = {}
    net = watched(sent, chunks=4, per_neighbor=2)
    net.mix()
    packets, relay = received(net, 4), GRAPH.relays(0)[4]
    view = net.weighted.view
    for packet in packets:
        assert net.schemes[4]._opened(packet, view(4, 0))[0] == sent[packet][1]
        for scheme, reader in ((net.schemes[relay], view(relay, 0)), (net.schemes[4], view(4, 1))):
            with pytest.raises(ValueError, match="not encrypted for this node and round"):
                scheme._opened(packet, reader)


def test_chunks_are_dealt_evenly_and_none_twice_to_one():
    for neighbors, chunks, each in ((6, 4, 2), (7, 5, 3), (5, 5, 5), (9, 9, 1)):
        dealt = deal(SecureSource(), range(neighbors), chunks, each)
        counts = np.bincount(np.concatenate(list(dealt.values())), minlength=chunks)
        assert all(len(set(some)) == each for some in dealt.values())
        assert counts.max() - counts.min() <= 1 and counts.sum() == neighbors * each


@pytest.mark.parametrize(
    ("graph", "chunks", "reason"),
    [
        (FullyConnected(6), 2, "needs relays between neighbors; use graph: {name: relayed, nodes: 6"),
        (Relayed(8, 4), 5, "4 neighbors with 1 chunks each are too few for 5 chunks"),
    ],
)
def test_graphs_that_cannot_carry_its_chunks_are_refused(graph, chunks, reason):
    with pytest.raises(BadInput, match=reason):
        Shatter(chunks=chunks).check(WeightedGraph(graph, MetropolisHastings()))


def test_what_does_not_fit_is_refused():
    with pytest.raises(BadInput, match="leave the transforms out"):
        bound(Shatter(chunks=2), 8, 8, (Cast(),))
    with pytest.raises(BadInput, match="a model of 3 values has no 4 chunks"):
        bound(Shatter(chunks=4), 8, 3)
    with pytest.raises(BadInput, match="per_neighbor must be at most chunks, got 3 and 2"):
        Shatter(chunks=2, per_neighbor=3)
