"""Secure aggregation: masks cancel bit for bit, hide every single model, and never leave a wrong one."""

from itertools import combinations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from decentnode.core.pair_keys import PIECE_BYTES, PairKeys, scratch_for
from decentnode.errors import BadInput, RunFailed
from decentnode.graph.families import Chain as ChainGraph
from decentnode.graph.families import FullyConnected, Ring, Star
from decentnode.graph.mixing import MetropolisHastings, Mixing, WeightedGraph, live_weights
from decentnode.graph.random_graphs import Regular
from decentnode.sharing import Gossip, SecureAggregation
from decentnode.testing import Lockstep, bound
from decentnode.transforms import Cast
from decentnode.transforms.basis.fourier import Fourier
from decentnode.transforms.basis.wavelet import Wavelet
from decentnode.transforms.error_feedback import ErrorFeedback
from decentnode.transforms.privacy.gaussian_noise import GaussianNoise
from decentnode.transforms.quantize.uniform import Uniform
from decentnode.transforms.sparsify.random_k import RandomK
from decentnode.transforms.sparsify.top_k import TopK
from tests.sharing.test_sharings import Changing, DirectedRing
from tests.support.scheme_cases import random_models

UNSIGNED = {32: np.uint32, 64: np.uint64}


def fine():
    """A scheme whose fixed point is as good as float64 for values of about 1."""
    return SecureAggregation(bits=64, scale=1 << 50)


def network(graph, models, make=SecureAggregation, **options):
    return Lockstep(make, graph, models, **options)


def view_of(net, rank, round=0):
    return net.weighted.view(rank, round)


def sent_to(net, receiver, round=0):
    """What each sender puts on the wire for one receiver."""
    sources = view_of(net, receiver, round).sources
    return {
        a: net.schemes[a].outgoing(net.models[a], view_of(net, a, round))[receiver]["values"].numpy()
        for a in sources
    }


def fixed_point(net, sender, receiver, scheme):
    weight = view_of(net, sender).outgoing_weights[receiver]
    return np.rint(net.models[sender].double().numpy() * (weight * scheme.scale)).astype(np.int64)


def wrapped_sum(received, bits):
    with np.errstate(over="ignore"):
        return sum(y.view(UNSIGNED[bits]) for y in received).view(f"int{bits}")


class TestMasks:
    @pytest.mark.parametrize("length", [0, 1, 7, PIECE_BYTES // 4 + 1])
    @pytest.mark.parametrize("bits", [32, 64])
    def test_they_cancel_bit_for_bit(self, bits, length):
        net = network(Regular(8, 4, seed=2), random_models(8, length), lambda: SecureAggregation(bits=bits))
        sent = sent_to(net, 3)
        plain = sum(fixed_point(net, a, 3, net.schemes[a]) for a in sent)
        assert np.array_equal(wrapped_sum(sent.values(), bits), plain)

    def test_no_single_message_shows_its_model(self):
        """Bytes of one message from a model of zeros are as even as chance (chi-square, 255 degrees)."""
        sent = sent_to(network(FullyConnected(4), torch.zeros(4, 100_000)), 0)
        for y in sent.values():
            counts = np.bincount(y.view(np.uint8), minlength=256)
            expected = counts.sum() / 256
            # Six standard deviations around the mean of 255.
            assert 119 < ((counts - expected) ** 2 / expected).sum() < 391

    def test_all_but_one_sender_leave_the_sum_hidden(self):
        sent = sent_to(network(FullyConnected(5), torch.zeros(5, 20_000)), 0)
        without_one = wrapped_sum(list(sent.values())[1:], 32)
        assert abs(without_one.astype(np.float64).mean()) < 6 * 2**32 / np.sqrt(12 * 20_000)
        assert without_one.astype(np.float64).std() == pytest.approx(2**32 / np.sqrt(12), rel=0.02)

    def test_they_differ_by_receiver_round_and_pair(self):
        net = network(FullyConnected(4), torch.zeros(4, 64))
        sent = [sent_to(net, receiver, round) for receiver in range(4) for round in range(3)]
        assert len({tuple(y) for messages in sent for y in messages.values()}) == 4 * 3 * 3

    def test_two_ends_agree_and_a_third_does_not(self):
        keys = [PairKeys(bytes([i]) * 32) for i in range(3)]
        for mask_keys in keys:
            mask_keys.receive_handshakes({i: other_keys.public for i, other_keys in enumerate(keys)})
        values = [torch.zeros(100, dtype=torch.int32) for _ in range(3)]
        keys[0].mask(0, 1, 5, 6, 0).apply(values[0], scratch_for(values[0]))
        keys[1].mask(1, 0, 5, 6, 0).apply(values[1], scratch_for(values[0]))
        keys[2].mask(0, 1, 5, 6, 0).apply(values[2], scratch_for(values[0]))
        assert torch.equal(values[0], -values[1])
        assert not torch.equal(values[0], values[2])

    def test_a_key_that_is_missing_or_none_ends_the_run_by_name(self):
        keys = PairKeys(bytes(range(32)))
        keys.receive_handshakes({0: keys.public, 2: bytes(32), 3: b"short"})
        with pytest.raises(RunFailed, match=r"^rank 1 has given no public key"):
            keys.mask(0, 1)
        for rank in (2, 3):
            with pytest.raises(RunFailed, match=f"^what rank {rank} gave is no public key"):
                keys.mask(0, rank)


class TestSum:
    @pytest.mark.parametrize("graph", [Ring(8), Regular(12, 4, seed=3), FullyConnected(6)], ids=repr)
    def test_one_round_errs_by_half_a_unit_per_sender(self, graph):
        net = network(graph, random_models(graph.num_nodes, 1000))
        exact = net.weighted.matrix() @ net.models.numpy()
        senders = len(view_of(net, 0).sources)
        error = np.abs(net.mix().numpy() - exact).max()
        assert 0 < error <= senders * 2**-17

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    def test_rounds_of_it_are_rounds_of_gossip(self, dtype):
        graph, models = Regular(12, 4, seed=3), random_models(12, 100, dtype=dtype)
        masked, plain = network(graph, models), network(graph, models, Gossip)
        for rounds in range(1, 11):
            error = (masked.mix() - plain.mix()).abs().max()
            assert error <= rounds * 4 * 2**-17
        assert masked.sent <= 1.2 * plain.sent * torch.float32.itemsize / dtype.itemsize + 16 * 4 * 12 * 10

    def test_a_graph_that_changes_and_a_directed_one_are_served(self):
        models = random_models(8)
        for graph in (Changing(8), Both(8)):
            masked = network(graph, models, fine, weights=Even()).run(4)
            plain = network(graph, models, Gossip, weights=Even()).run(4)
            assert torch.allclose(masked, plain, rtol=0, atol=1e-13)

    def test_the_models_do_not_depend_on_the_keys(self):
        graph, models = Regular(12, 4, seed=3), random_models(12, dtype=torch.float32)
        first, second = network(graph, models), network(graph, models)
        assert torch.equal(first.run(3), second.run(3))
        pairs = list(zip(first.payloads, second.payloads, strict=True))
        assert not any(torch.equal(a["values"], b["values"]) for a, b in pairs)

    def test_it_costs_sixteen_bytes_a_message_more(self):
        graph, models = Ring(8), random_models(8, 1001, dtype=torch.float32)
        net = network(graph, models)
        net.mix()
        assert {payload.nbytes for payload in net.payloads} == {4 * 1001 + 16}
        assert net.sent == 8 * 2 * (4 * 1001 + 16) < 1.2 * 8 * 2 * 4 * 1001


class TestRange:
    def test_the_largest_values_do_not_wrap(self):
        """Every sender at its limit: the sum fills the range and is right."""
        models = torch.full((5, 9), 10_000.0, dtype=torch.float64)
        models[:, ::2] *= -1
        mixed = network(FullyConnected(5), models).mix()
        assert torch.allclose(mixed, models, rtol=0, atol=4 * 2**-17)

    @pytest.mark.parametrize("value", [50_000.0, -50_000.0, float("nan"), float("inf")])
    def test_what_is_too_large_ends_the_run_by_name(self, value):
        models = torch.zeros(5, 9)
        models[2, 4] = value
        with pytest.raises(RunFailed, match="rank 2, round 1: secure_aggregation cannot send") as caught:
            network(FullyConnected(5), models).mix()
        shown = f"{value:g}, found in element 4"
        assert shown in str(caught.value) and "scale 65536 and 32 bits" in str(caught.value)

    def test_a_smaller_scale_or_a_wider_modulus_allows_more(self):
        models = torch.full((5, 9), 50_000.0)
        for make in (lambda: SecureAggregation(scale=1 << 8), lambda: SecureAggregation(bits=64)):
            assert torch.allclose(network(FullyConnected(5), models, make).mix(), models)


class TestLoss:
    def test_a_dropped_message_leaves_the_receiver_its_own_model(self, capsys):
        models = random_models(8)
        net = network(Ring(8), models, fine, is_live=lambda i, j: (i, j) != (4, 5))
        plain = network(Ring(8), models, Gossip).mix()
        mixed = net.mix()
        assert torch.equal(mixed[4], models[4])
        others = [i for i in range(8) if i != 4]
        assert torch.allclose(mixed[others], plain[others], rtol=0, atol=1e-13)
        expected = "round 1: keeps its own model: without rank 5 the masks of the others stay\n"
        assert capsys.readouterr().out == expected

    def test_after_a_loss_two_rounds_are_skipped_and_then_the_rest_mix(self, capsys):
        graph, models = Regular(12, 4, seed=3), random_models(12)
        gone = 5
        net = network(graph, models, fine, is_live=lambda i, j: gone not in (i, j))
        neighbors = graph.targets(gone, 0)
        for round in range(4):
            before, mixed = net.models, net.mix()
            for i in neighbors:
                view = view_of(net, i)
                weights = live_weights(view.weights, i, [j for j in view.sources if j != gone])
                expected = sum(w * before[j] for j, w in weights.items()) if round >= 2 else before[i]
                assert torch.allclose(mixed[i], expected, rtol=0, atol=1e-13)
        lines = capsys.readouterr().out.splitlines()
        # The lost one, which hears nobody, keeps its model for ever.
        assert sum("without rank 5" in line for line in lines) == 2 * len(neighbors)

    def test_a_rejoined_node_is_mixed_again(self):
        models, dead = random_models(6), True
        net = network(FullyConnected(6), models, fine, is_live=lambda i, j: not dead or 5 not in (i, j))
        net.run(3)
        dead = False
        net.run(2)
        mean = net.models.mean(0)
        assert torch.allclose(net.mix(), mean.expand(6, -1), rtol=0, atol=1e-13)

    def test_a_receiver_with_one_sender_left_is_sent_no_model(self, capsys):
        models = random_models(8)
        net = network(Ring(8), models, is_live=lambda i, j: 5 not in (i, j))
        net.run(2)
        before = net.models
        mixed = net.mix()
        assert torch.equal(mixed[4], before[4])
        assert not sent_to(net, 4)[3].any()
        assert "1 senders are left, at least 2 are needed" in capsys.readouterr().out

    @settings(max_examples=25)
    @given(seed=st.integers(0, 10**6), keep=st.floats(0.5, 1), changing=st.booleans())
    def test_no_loss_of_any_messages_makes_a_wrong_model(self, seed, keep, changing):
        """Whatever is lost, each model is its own or the right average of itself and some that were heard."""
        graph = Changing(8) if changing else Regular(8, 3, seed=1)
        chance = np.random.default_rng(seed)
        net = network(graph, random_models(8, 3, seed=seed), fine)
        for round in range(4):
            live = chance.random((8, 8)) < keep
            net.is_live = lambda i, j, live=live: live[i, j]
            before, mixed = net.models, net.mix()
            for i in range(8):
                view = view_of(net, i, round)
                heard = [j for j in view.sources if live[i, j]]
                allowed = [before[i], *averages(view, heard, before)]
                assert min((mixed[i] - right).abs().max() for right in allowed) < 1e-13


def averages(view, heard, models):
    for count in range(2, len(heard) + 1):
        for some in combinations(heard, count):
            weights = live_weights(view.weights, view.rank, some)
            yield sum(weight * models[j] for j, weight in weights.items())


class Even(Mixing):
    """Every sender counts the same, so that directed graphs have weights, too."""

    def incoming(self, graph, rank, round):
        senders = sorted((*graph.sources(rank, round), rank))
        return dict.fromkeys(senders, 1 / len(senders))


class Both(DirectedRing):
    """Everybody talks to the next two, and hears the two before."""

    def targets(self, rank, round):
        return tuple(sorted((rank + step) % self.nodes for step in (1, 2)))


class TestRefusals:
    @pytest.mark.parametrize(
        ("graph", "reason"),
        [(ChainGraph(4), "rank 0 hears 1 alone"), (Star(5), "rank 1 hears 0 alone")],
        ids=repr,
    )
    def test_a_receiver_with_one_sender_is_named(self, graph, reason):
        with pytest.raises(BadInput, match=f"at least 2 senders to each node, but {reason}"):
            SecureAggregation().check(WeightedGraph(graph, MetropolisHastings()))

    def test_more_senders_can_be_required(self):
        weighted = WeightedGraph(Ring(8), MetropolisHastings())
        SecureAggregation().check(weighted)
        with pytest.raises(BadInput, match="at least 3 senders to each node, but rank 0 hears 1, 7 alone"):
            SecureAggregation(least_senders=3).check(weighted)

    @pytest.mark.parametrize(
        ("transforms", "reason"),
        [
            ((Cast(),), "what cast makes: only integers of one scale can be summed"),
            ((Uniform(),), "what uniform makes: only integers of one scale can be summed"),
            ((TopK(),), "what top_k makes: each sender would choose other coordinates"),
            ((RandomK(),), "what random_k makes: each sender would send other coordinates; set shared_mask"),
            ((RandomK(shared_mask=True), Cast()), "what cast makes"),
            ((ErrorFeedback(), RandomK(shared_mask=True)), "masks values that all senders send, not values"),
        ],
        ids=["cast", "uniform", "top_k", "random_k", "both", "error_feedback"],
    )
    def test_what_cannot_be_summed_under_masks_is_refused(self, transforms, reason):
        with pytest.raises(BadInput, match=reason):
            bound(SecureAggregation(), 8, 7, transforms)


class TestChains:
    """With random coordinates that are the same at all senders, only the values are masked."""

    CHAINS = (
        lambda: (RandomK(0.3, shared_mask=True),),
        lambda: (Wavelet(), RandomK(0.3, shared_mask=True)),
        lambda: (Fourier(),),
        lambda: (GaussianNoise(0.1), RandomK(0.3, shared_mask=True)),
        lambda: (GaussianNoise(0.1, "neighbor"),),
    )

    @pytest.mark.parametrize("chain", CHAINS, ids=["random_k", "wavelet", "fourier", "noise", "per neighbor"])
    def test_it_is_gossip_with_the_same_chain(self, chain):
        graph, models = Regular(12, 4, seed=3), random_models(12, 50)
        masked = network(graph, models, fine, transforms=chain).run(5)
        plain = network(graph, models, Gossip, transforms=chain).run(5)
        assert torch.allclose(masked, plain, rtol=0, atol=1e-13)

    def test_coordinates_that_are_not_sent_stay_as_they_are(self):
        graph, models = Regular(12, 4, seed=3), random_models(12, 50, dtype=torch.float32)
        net = network(graph, models, transforms=self.CHAINS[0])
        mixed = net.mix()
        assert ((mixed != models).sum(1) == 15).all()
        assert {payload.nbytes for payload in net.payloads} == {4 * 15 + 16}
