"""Which values are sent, and what the receiver makes of the gaps."""

import math

import numpy as np
import pytest
import torch
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from decentnode.core.payload import Form, Payload, PayloadError
from decentnode.core.vector import Entry, ParameterLayout
from decentnode.errors import BadInput
from decentnode.graph.families import Ring
from decentnode.graph.mixing import MetropolisHastings, Uniform, WeightedGraph
from decentnode.graph.random_graphs import Regular
from decentnode.sharing import Choco, Gossip, Jwins, Median
from decentnode.sharing.asynchronous.push_gossip import PushGossip
from decentnode.testing import Lockstep
from decentnode.transforms import (
    Auto,
    Bitmap,
    Cast,
    ChunkTopK,
    Clip,
    EliasGamma,
    Fragments,
    RandomK,
    Rice,
    Threshold,
    TopK,
    Wavelet,
)
from decentnode.transforms.base import Context
from decentnode.transforms.chain import Chain
from decentnode.transforms.sparsify.selection import count, largest

F64 = torch.float64
CONTEXT = Context(seed=1, round=2, sender=3)
FROZEN = [59, 62, 174, 348, 406, 813, 822, 874, 884, 898]
SPARSE = Regular(96, 4, seed=1)
LAYERS = ParameterLayout((Entry("a", torch.Size([3, 4]), 0), Entry("b", torch.Size([1]), 12)))


def random(*shape, seed=0, dtype=F64):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def chain_of(*transforms, n, parameters=None, dtype=F64):
    chain = Chain(transforms, n, dtype, parameters)
    chain.begin(torch.zeros(n, dtype=dtype))
    return chain


def sent(transform, signal, parameters=None, context=CONTEXT):
    """The coordinates and values that one transform sends of a signal."""
    payload = chain_of(transform, n=len(signal), parameters=parameters).encode(signal, context)
    return payload["indices"].tolist(), payload["values"]


# Exactly k.


@pytest.mark.parametrize(
    ("fraction", "n", "k"),
    [(0.1, 0, 0), (0.1, 1, 1), (0.1, 4, 1), (0.1, 10, 1), (0.1, 16, 2), (0.25, 10, 2), (0.35, 10, 4)],
)  # fmt: skip
def test_k_is_the_rounded_fraction_but_at_least_one(fraction, n, k):
    assert count(fraction, n) == k
    for transform in (TopK(fraction), RandomK(fraction)):
        payload = chain_of(transform, n=n).encode(random(n), CONTEXT)
        assert payload["values"].numel() == k


scores = st.lists(st.sampled_from([0.0, 0.5, 1.0, 1.0, 2.5, math.inf]) | st.floats(0, 3), max_size=60)


@given(scores=scores, part=st.floats(0, 1))
def test_the_largest_are_those_of_a_stable_sort(scores, part):
    k = round(part * len(scores))
    score = torch.tensor(scores, dtype=F64)
    expected = torch.argsort(-score, stable=True)[:k].sort().values
    assert torch.equal(largest(score, k), expected)


@pytest.mark.parametrize("dtype", [torch.float32, F64])
@pytest.mark.parametrize("kept", [0.0, 0.01, 0.2, 1.0], ids=lambda kept: f"{kept} not zero")
def test_the_largest_of_many_where_most_are_zero(dtype, kept):
    score = random(20_000, dtype=dtype).abs() * (random(20_000, seed=1).abs() <= 2.6 * kept)
    for k in (1, 200, 2_000, 19_999):
        expected = torch.argsort(-score, stable=True)[:k].sort().values
        assert torch.equal(largest(score, k), expected)


def test_of_equal_values_the_first_are_sent():
    indices, values = sent(TopK(0.5), torch.tensor([1.0, -2, 2, 0, -2, 2], dtype=F64))
    assert indices == [1, 2, 4] and values.tolist() == [-2, 2, -2]
    assert sent(TopK(0.5), torch.zeros(6, dtype=F64))[0] == [0, 1, 2]


def test_per_layer_each_tensor_sends_its_own_largest():
    signal = torch.cat([torch.arange(12.0, dtype=F64), torch.tensor([0.1], dtype=F64)])
    assert sent(TopK(0.25, per_layer=True), signal, LAYERS)[0] == [9, 10, 11, 12]
    assert sent(TopK(0.25), signal, LAYERS)[0] == [9, 10, 11]


def test_per_layer_each_tensor_draws_k():
    chain = chain_of(RandomK(0.25, per_layer=True), n=13, parameters=LAYERS)
    for round in range(20):
        drawn = chain.stages[0].coordinates(Context(1, round, 0))
        assert (drawn < 12).sum() == 3 and drawn[-1] == 12


@pytest.mark.parametrize("cls", [TopK, RandomK])
def test_per_layer_needs_the_layers(cls):
    with pytest.raises(BadInput, match=r"^transforms\[0\]: \w+ selects per layer, but .* there are none$"):
        chain_of(cls(per_layer=True), n=13)
    with pytest.raises(BadInput, match=r"^transforms\[1\]: \w+ selects per layer, but an earlier transform"):
        chain_of(Wavelet(), cls(per_layer=True), n=13, parameters=LAYERS)
    with pytest.raises(BadInput, match="gets 14 values of a model of 13"):
        chain_of(cls(per_layer=True), n=14, parameters=LAYERS)


# top_k by change.


def test_by_change_those_are_sent_that_moved_most_since_they_were_sent():
    chain = Chain([TopK(0.25, by="change")], 4, F64)
    chain.begin(torch.tensor([10.0, 0, 0, 0], dtype=F64))
    signals = torch.tensor([[10.5, -3, 2, 1], [10.5, -3.5, 2.5, 1], [9, -3.5, 2.5, 1]], dtype=F64)
    indices = [chain.encode(x, Context(0, t, 0))["indices"].item() for t, x in enumerate(signals)]
    assert indices == [1, 2, 0]


def test_by_change_is_the_accumulation_of_changes():
    """s <- s + change; the largest |s| are sent, and their s is 0 again."""
    n, k = 50, 5
    chain, x, s = chain_of(TopK(0.1, by="change"), n=n), torch.zeros(n, dtype=F64), np.zeros(n)
    for round in range(30):
        change = random(n, seed=round)
        x = x + change
        s += change.numpy()
        expected = np.sort(np.argsort(-np.abs(s), kind="stable")[:k])
        s[expected] = 0
        payload = chain.encode(x, Context(0, round, 0))
        assert payload["indices"].tolist() == expected.tolist()
        assert torch.equal(payload["values"], x[expected])


def test_every_node_draws_its_fraction_anew_and_the_cap_drops_the_indices():
    fractions, n = [0.1, 0.2, 1.0], 100
    chain = chain_of(TopK(fractions, by="change", metadata_cap=0.5), n=n)
    sizes, nodes = [], []
    for round in range(300):
        payload = chain.encode(random(n, seed=round), Context(7, round, 0))
        values, indices = payload["values"].numel(), payload["indices"].numel()
        assert (values, indices) in {(10, 10), (20, 20), (100, 0)}
        sizes.append(values)
        other = chain.copy().encode(random(n, seed=round), Context(7, round, 1))
        nodes.append(other["values"].numel() == values)
    for size in (10, 20, 100):
        assert 60 <= sizes.count(size) <= 140, "a third of 300 each, six standard deviations"
    assert 60 <= sum(nodes) <= 140


def test_jwins_sends_a_third_of_the_values_on_average():
    """The fractions of the paper: 34.29 %."""
    transform = TopK([0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 1.0], metadata_cap=0.5)
    chain = chain_of(transform, n=1000)
    signal = random(1000)
    shares = [chain.encode(signal, Context(0, r, 0))["values"].numel() / 1000 for r in range(2000)]
    assert np.mean(shares) == pytest.approx(2.4 / 7, abs=0.03)


def test_after_everything_was_sent_nothing_has_changed():
    chain, n = chain_of(TopK([1.0], by="change", metadata_cap=0.5), n=4), 4
    x = random(n)
    assert chain.layout.fields[0].elements == n and not chain.layout.has_indices
    assert torch.equal(chain.encode(x, CONTEXT)["values"], x)
    assert torch.equal(chain.state_dict()["0"]["_reference"], x)


@pytest.mark.parametrize("by", ["change", "training", "round"])
@pytest.mark.parametrize("basis", [(), (Wavelet,)], ids=["plain", "wavelet"])
def test_gossip_sends_what_changed_most(by, basis):
    """Against a dense oracle: which change counts, from the mix on or since a value was last sent."""
    n, d, k, eta = 8, 32, 8, 0.2
    b, w = random(n, d, seed=1).numpy(), WeightedGraph(Ring(n), MetropolisHastings()).matrix()
    start = random(1, d, seed=2).expand(n, -1).clone()
    network = Lockstep(
        Gossip, Ring(n), start, lambda: (*(transform() for transform in basis), TopK(k / d, by=by))
    )
    q = np.eye(d)
    if basis:
        chain = chain_of(Wavelet(), n=d)
        q = torch.stack([chain.to_basis(row) for row in torch.eye(d, dtype=F64)]).numpy().T
    x, last, grown = start.numpy() @ q.T, start.numpy() @ q.T, np.zeros((n, d))
    for _ in range(30):
        network.run(1, lambda i, x: x - torch.from_numpy(b[i]), eta)
        z = x - eta * (x - b @ q.T)
        grown += z - x
        score = {"change": z - last, "training": grown, "round": z - x}[by]
        sent = np.zeros((n, d), bool)
        np.put_along_axis(sent, np.argsort(-np.abs(score), kind="stable")[:, :k], True, 1)
        last, grown = np.where(sent, z, last), np.where(sent, 0, grown)
        heard = np.where(sent[None], z[None], z[:, None])  # at i, from j
        x = np.einsum("ij,ijk->ik", w, heard)
        assert np.allclose(network.models.numpy() @ q.T, x, rtol=0, atol=1e-10)


def test_a_change_from_mix_to_mix_needs_rounds_of_models():
    for scheme, reason in ((Choco, "choco sends something else"), (PushGossip, "push_gossip has no rounds")):
        with pytest.raises(
            BadInput, match=f"^top_k: by training and by round count from .*; {reason}; use by: change"
        ):
            scheme().make_chain([TopK(0.1, by="round")], 10)


LAYERED = ParameterLayout((Entry("a", torch.Size([3]), 0), Entry("b", torch.Size([2]), 3)))
"""0.9 of 3 and of 2 values is all of them."""


@pytest.mark.parametrize(
    ("scheme", "transforms"),
    [
        (Gossip, lambda: (TopK(1.0),)),
        (Gossip, lambda: (TopK([1.0]), Auto())),
        (Gossip, lambda: (TopK(0.5, metadata_cap=0.5), Rice())),
        (Gossip, lambda: (TopK(0.9, per_layer=True), EliasGamma())),
        (Gossip, lambda: (RandomK(1.0),)),
        (Gossip, lambda: (TopK(1.0), Bitmap())),
        (Gossip, lambda: (Threshold(0.0),)),
        (Jwins, lambda: ()),
        (Choco, lambda: (TopK(1.0, by="magnitude"), Auto())),
    ],
)
def test_what_is_not_sparse_pays_for_no_indices(scheme, transforms):
    options = {"fractions": [1.0], "wavelet": "haar", "levels": 1} if scheme is Jwins else {}
    layout = LAYERED if any(getattr(transform, "per_layer", False) for transform in transforms()) else None
    d = 5 if layout else 10_000
    network = Lockstep(
        lambda: scheme(**options), Ring(3), random(3, d, dtype=torch.float32), transforms, parameters=layout
    )
    network.run(2)
    assert all(payload.index_bytes == 0 for payload in network.payloads)
    counts = 16 if isinstance(transforms() and transforms()[0], Threshold) else 0
    assert network.sent == 2 * 3 * 2 * (4 * d + counts)
    if scheme is not Choco:
        plain = Lockstep(Gossip, Ring(3), random(3, d, dtype=torch.float32))
        assert torch.allclose(network.models, plain.run(2), rtol=0, atol=1e-6)


def test_a_coder_behind_a_selection_in_part_is_still_needed():
    chain = chain_of(TopK([0.5, 1.0]), Rice(), n=100)
    sizes = {chain.encode(random(100), Context(3, round, 0)).nbytes for round in range(20)}
    assert any(size < 8 * 100 for size in sizes) and max(sizes) < 8 * 100 + 32


def test_a_list_of_no_fractions_is_refused():
    with pytest.raises(BadInput, match=r"^transforms\[0\]: top_k needs one fraction or more$"):
        chain_of(TopK([]), n=4)


# The other options of top_k.


def test_the_fraction_changes_from_a_round_on():
    transform = TopK(0.1, fraction_from=((3, 0.2), (5, [0.5, 1.0])), metadata_cap=0.8)
    chain = chain_of(transform, n=100)
    sizes = [chain.encode(random(100), Context(7, round, 0))["values"].numel() for round in range(60)]
    assert sizes[:5] == [10, 10, 10, 20, 20]
    assert set(sizes[5:]) == {50, 100}, "of several fractions one is drawn in each round"
    for rounds in ((5, 3), (3, 3)):
        with pytest.raises(BadInput, match="fraction_from: must have its rounds in ascending order, not"):
            TopK(0.1, fraction_from=tuple((round, 0.2) for round in rounds))


@pytest.mark.parametrize("by", ["magnitude", "change"])
def test_relative_ranks_by_the_change_over_the_value(by):
    """|x_i - h_i| / (|x_i| + e)."""
    x, h = random(50), random(50, seed=1)
    chain = Chain([TopK(0.2, by=by, relative=0.1)], 50, F64)
    chain.begin(h)
    score = (x - (h if by == "change" else 0)).abs() / (x.abs() + 0.1)
    expected = np.sort(np.argsort(-score.numpy(), kind="stable")[:10])
    assert chain.encode(x, CONTEXT)["indices"].tolist() == expected.tolist()


def test_random_values_are_sent_in_addition_each_once():
    x = random(200)
    largest_ones, _ = sent(TopK(0.1), x)
    counts = np.zeros(200)
    for round in range(400):
        indices, values = sent(TopK(0.1, random=0.2), x, context=Context(1, round, 3))
        assert len(indices) == 20 + 40 and indices == sorted(set(indices))
        assert set(largest_ones) <= set(indices) and torch.equal(values, x[indices])
        counts[indices] += 1
    others = np.delete(counts, largest_ones)
    # Each of the 180 others in 2 of 9 rounds; five standard deviations.
    assert abs(others - 400 * 40 / 180).max() < 5 * math.sqrt(400 * 2 / 9 * 7 / 9)
    all_of_them, _ = sent(TopK(0.1, random=1.0), x)
    assert all_of_them == [*range(200)]


def test_only_values_that_were_sent_too_rarely_are_drawn():
    """Beside round 1 / b, those sent in fewer than b r of r rounds; the draw is that of `random`."""
    n, b = 40, 0.25
    chain = chain_of(TopK(0.1, by="magnitude", random=0.1, random_below=b), n=n)
    x, times = random(n), np.zeros(n, int)
    top = np.sort(np.argsort(-x.abs().numpy(), kind="stable")[:4])
    added = []
    for round in range(60):
        times[top] += 1
        rare = [i for i in range(n) if times[i] < b * round and i not in top] if round * b > 1 else []
        context = Context(5, round, 2)
        drawn = context.generator("top_k_random").choice(len(rare), min(4, len(rare)), replace=False)
        times[np.array(rare, int)[drawn]] += 1
        added.append(len(drawn))
        expected = sorted([*top, *np.array(rare, int)[drawn]])
        assert chain.encode(x, context)["indices"].tolist() == expected
    assert added[:5] == [0] * 5 and max(added) == 4
    # A tenth in addition is too little for a quarter of the rounds, but all get turns.
    assert times.min() > 0
    with pytest.raises(BadInput, match="random_below: is for the values that `random` adds"):
        TopK(random_below=0.1)


# fragments of values.


@pytest.mark.parametrize(("part", "n", "size"), [(0.1, 25, 3), (0.3, 10, 3), (0.5, 7, 4), (1.0, 5, 5)])
def test_fragments_of_values_are_blocks_by_turns(part, n, size):
    chain, x = chain_of(Fragments(fraction=part), n=n), random(n)
    number = math.ceil(n / size)
    for round in range(2 * number):
        first = round % number * size
        payload = chain.encode(x, Context(0, round, 4))
        assert torch.equal(payload["values"], x[first : first + size])
        decoded = chain.decode(payload, Context(0, round, 4))
        assert torch.equal(decoded[first : first + size], x[first : first + size])
        assert decoded.count_nonzero() == payload["values"].numel()
    assert len(chain.turns) == number


def test_each_node_begins_with_a_fragment_of_its_own():
    chain, x = chain_of(Fragments(fraction=0.1, start="drawn"), n=100), random(100)
    starts = []
    for sender in range(40):
        firsts = []
        for round in range(10):
            context = Context(3, round, sender)
            payload = chain.encode(x, context)
            decoded = chain.decode(payload, context.filled_with(torch.zeros(100, dtype=F64)))
            firsts.append(int(decoded.nonzero()[0]) // 10)
        assert firsts == [(firsts[0] + round) % 10 for round in range(10)]
        starts.append(firsts[0])
    assert len(set(starts)) > 5
    assert not chain.same_coordinates and len(chain.turns) == 1


def test_fragments_need_a_count_or_a_fraction():
    for options in ({}, {"count": 2, "fraction": 0.5}):
        with pytest.raises(BadInput, match="count: give either count, of layers, or fraction"):
            Fragments(**options)


@pytest.mark.parametrize("weights", [MetropolisHastings(), Uniform()])
def test_with_sent_a_coordinate_is_averaged_over_those_that_sent_it(weights):
    """x_i <- sum_j w_ij s_j y_j / sum_j w_ij s_j, where s_j is 1 where j sent it and at i itself."""
    n, d = 6, 40
    network = Lockstep(
        lambda: Gossip(fill="sent"), Ring(n), random(n, d), lambda: (TopK(0.3, by="magnitude"),), weights
    )
    w = WeightedGraph(Ring(n), weights).matrix()
    for _ in range(3):
        x = network.models.numpy()
        s = np.zeros((n, d))
        np.put_along_axis(s, np.argsort(-np.abs(x), kind="stable")[:, :12], 1, 1)
        s = np.where(np.eye(n)[:, :, None], 1, s[None])  # at i, of j
        total = np.einsum("ij,ijk->ik", w, s)
        expected = np.einsum("ij,ijk,jk->ik", w, s, x) / total
        assert np.allclose(network.run(1).numpy(), expected, rtol=0, atol=1e-12)
    with pytest.raises(BadInput, match="fill: sent is for a weighted mean, which median is not; use own"):
        Median(fill="sent")


# chunk_top_k.


@given(
    n=st.integers(0, 90),
    chunk=st.integers(1, 40),
    part=st.floats(0.01, 1),
    by=st.sampled_from(["magnitude", "change"]),
)
@pytest.mark.parametrize("packed", [True, False])
def test_each_chunk_sends_what_top_k_would_send_of_it(packed, n, chunk, part, by):
    chain = chain_of(ChunkTopK(part, chunk, by=by, packed=packed), n=n)
    whole = [chain_of(TopK(part, by=by), n=len(piece)) for piece in torch.zeros(n).split(chunk)]
    for round in range(3):
        x = (4 * random(n, seed=round)).round()  # many are equal
        context = Context(1, round, 3)
        payload = chain.encode(x, context)
        decoded = chain.decode(Payload.parse(chain.layout, payload.buffer), context)
        expected = [
            c.decode(c.encode(piece, context), context)
            for c, piece in zip(whole, x.split(chunk), strict=False)
        ]
        assert torch.equal(decoded, torch.cat([*expected, x[:0]]))


@pytest.mark.parametrize(
    ("n", "options", "index_bytes"),
    [
        (3 * 4096, {}, 3 * 64 * 12 // 8),
        (3 * 4096, {"packed": False}, 3 * 64 * 4),
        (4096 + 100, {}, (64 + 2) * 12 // 8),
        (500, {"chunk": 64, "fraction": 1 / 16}, (7 * 4 + 3) * 6 // 8 + 1),
        (500, {"fraction": 1.0}, 0),
        (500, {"chunk": 1}, 0),
    ],
)
def test_indices_take_the_bits_of_a_chunk(n, options, index_bytes):
    payload = chain_of(ChunkTopK(**options), n=n, dtype=torch.float32).encode(random(n).float(), CONTEXT)
    assert payload.index_bytes == index_bytes
    values = 4 * payload["values"].numel()
    assert payload.nbytes == (-(-values // 8) * 8 if index_bytes else values) + index_bytes


def test_rice_takes_fewer_bits_than_packed_indices():
    n = 64 * 4096
    coded = chain_of(ChunkTopK(packed=False), Rice(), n=n, dtype=torch.float32)
    bits = 8 * coded.encode(random(n).float(), CONTEXT).index_bytes / 4096
    assert bits == pytest.approx(7.6, abs=0.15), "the figure in the docstring"
    with pytest.raises(BadInput, match=r"^transforms\[1\]: rice .* set packed: false in chunk_top_k$"):
        chain_of(ChunkTopK(), Rice(), n=n)


def test_an_index_beyond_the_last_chunk_is_refused():
    chain = chain_of(ChunkTopK(0.5, 6), n=10)
    buffer = chain.encode(random(10), CONTEXT).buffer.clone()
    buffer[-2:] = 0xFF
    with pytest.raises(PayloadError, match="index 7 in a chunk of 6 values"):
        chain.decode(Payload.parse(chain.layout, buffer), CONTEXT)


# random_k.


def drawn_as_documented(seed, counters, n, k):
    """The docstring of RandomK in plain Python."""
    key = xxhash.xxh3_64_intdigest(f"{seed}/random_k/{'/'.join(map(str, counters))}".encode()) >> 1
    philox, marked = np.random.Philox(key=key), set()

    def word():
        return int(philox.random_raw())

    if 256 * k // n:
        stream = b"".join(word().to_bytes(8, "little") for _ in range(-(-n // 8)))
        marked = {i for i in range(n) if stream[i] < 256 * k // n}
    while len(marked) != k:
        coordinates = [int((word() >> 11) * 2.0**-53 * n) for _ in range(abs(k - len(marked)))]
        marked = marked | set(coordinates) if len(marked) < k else marked - set(coordinates)
    return sorted(marked)


@pytest.mark.parametrize("n", [1, 7, 64, 999])
@pytest.mark.parametrize("fraction", [0.001, 0.1, 0.5, 0.97, 1.0])
def test_coordinates_are_drawn_as_documented(n, fraction):
    for shared, counters in ((False, (2, 5, 3)), (True, (2, 5))):
        transform = RandomK(fraction, shared_mask=shared)
        chain_of(transform, n=n)
        coordinates = transform.coordinates(Context(seed=1, round=2, sender=3, phase=5)).tolist()
        assert coordinates == drawn_as_documented(1, counters, n, count(fraction, n))


def test_coordinates_are_frozen():
    """They are part of the wire format: these numbers must never change."""
    transform = RandomK(0.01)
    chain_of(transform, n=1000)
    assert transform.coordinates(CONTEXT).tolist() == FROZEN


@pytest.mark.parametrize("fraction", [1 / 6, 1 / 2, 5 / 6])
def test_every_set_of_coordinates_is_equally_likely(fraction):
    n, rounds = 6, 4000
    transform, draws = RandomK(fraction), {}
    chain_of(transform, n=n)
    for round in range(rounds):
        key = tuple(transform.coordinates(Context(0, round, 0)).tolist())
        draws[key] = draws.get(key, 0) + 1
    subsets = math.comb(n, round_k := count(fraction, n))
    assert all(len(key) == round_k for key in draws) and len(draws) == subsets
    expected = rounds / subsets
    chi_squared = sum((times - expected) ** 2 / expected for times in draws.values())
    assert chi_squared < subsets - 1 + 6 * math.sqrt(2 * (subsets - 1))


def test_senders_rounds_and_phases_have_masks_of_their_own_unless_shared():
    keys = [(1, 0, 0), (1, 1, 0), (1, 0, 1), (2, 0, 0)]
    contexts = [*(Context(*key) for key in keys), Context(1, 0, 0, phase=1)]
    apart, shared = RandomK(0.5), RandomK(0.5, shared_mask=True)
    for transform in (apart, shared):
        chain_of(transform, n=100)
    assert len({tuple(apart.coordinates(c).tolist()) for c in contexts}) == 5
    assert len({tuple(shared.coordinates(c).tolist()) for c in contexts}) == 4
    assert torch.equal(shared.coordinates(contexts[0]), shared.coordinates(contexts[2]))


def test_random_k_puts_nothing_but_values_on_the_wire():
    payload = chain_of(RandomK(0.1), n=1000, dtype=torch.float32).encode(random(1000).float(), CONTEXT)
    assert payload.nbytes == 400 and payload.index_bytes == 0


# threshold.


def test_threshold_sends_what_is_over_it():
    signal = torch.tensor([0.0, -1.5, 1.0, 3.0, -4.0], dtype=F64)
    assert sent(Threshold(1.0), signal)[0] == [1, 3, 4]
    assert sent(Threshold(0.5, relative=True), signal)[0] == [3, 4]
    assert sent(Threshold(4.0), signal)[0] == []
    assert sent(Threshold(0.0), signal)[0] == [1, 2, 3, 4]
    assert sent(Threshold(0.0, relative=True), torch.zeros(3, dtype=F64))[0] == []


def test_a_relative_threshold_of_one_would_never_send():
    with pytest.raises(BadInput, match="would never send anything"):
        chain_of(Threshold(1.0, relative=True), n=3)


# Filling the gaps.

SELECTIONS = [TopK(0.3), TopK(0.3, by="change"), TopK([0.2, 0.4]), RandomK(0.3), Threshold(0.7)]


@pytest.mark.parametrize("after", [[], [Cast("bf16")]], ids=["plain", "cast"])
@pytest.mark.parametrize("selection", SELECTIONS, ids=repr)
def test_gaps_are_filled_with_the_own_signal_or_zeros(selection, after):
    chain, signal, receiver_signal = chain_of(selection, *after, n=40), random(40), random(40, seed=1)
    payload = chain.encode(signal, CONTEXT)
    if isinstance(selection, RandomK):
        mask = torch.zeros(40, dtype=bool).index_fill_(0, selection.coordinates(CONTEXT), True)
    else:
        mask = torch.zeros(40, dtype=bool).index_fill_(0, payload["indices"].long(), True)
    heard = signal.to(torch.bfloat16).double() if after else signal
    for fill in (receiver_signal, None):
        decoded = chain.decode(payload, Context(1, 2, 3, 4, fill=fill))
        gaps = torch.zeros_like(receiver_signal) if fill is None else receiver_signal
        assert decoded.dtype == F64
        assert torch.equal(decoded, torch.where(mask, heard, gaps))


@pytest.mark.parametrize(
    ("indices", "message"),
    [([3, 2], "not ascend"), ([2, 2], "not ascend"), ([-1, 2], "from -1 to 2"), ([2, 20], "from 2 to 20")],
)  # fmt: skip
@pytest.mark.parametrize("transform", [TopK(0.1), Threshold(1.0)], ids=repr)
def test_indices_that_make_no_sense_are_refused(transform, indices, message):
    chain = chain_of(transform, n=20)
    fields = {"values": torch.ones(2, dtype=F64), "indices": torch.tensor(indices, dtype=torch.int32)}
    with pytest.raises(PayloadError, match=message):
        chain.decode(Payload.of(chain.layout, fields), CONTEXT)


def test_values_without_their_indices_are_refused():
    ones, none = torch.ones(3, dtype=F64), torch.zeros(0, dtype=torch.int32)
    for transform in (Threshold(1.0), TopK([0.2, 0.3]), TopK([0.2, 1.0], metadata_cap=0.5)):
        chain = chain_of(transform, n=20)
        with pytest.raises(PayloadError, match="3 values"):
            chain.decode(Payload.of(chain.layout, {"values": ones, "indices": none}), CONTEXT)


def test_what_selects_takes_a_dense_signal():
    for transform in (TopK(), RandomK(), Threshold(1.0)):
        with pytest.raises(BadInput, match="takes dense but top_k gives sparse"):
            chain_of(TopK(), transform, n=9)
        assert chain_of(Clip(1.0), transform, n=9).layout.form is Form.SPARSE


# Gossip with partial models.


def masks_of(network, n, d):
    """(n, d) of 0 and 1: what each node sends in this round."""
    masks = np.zeros((n, d))
    for j, scheme in enumerate(network.schemes):
        masks[j, scheme.chain.stages[0].coordinates(Context(network.seed, network.round, j))] = 1
    return masks


@pytest.mark.parametrize("shared", [False, True], ids=["masks of their own", "shared mask"])
@pytest.mark.parametrize("fill", ["own", "zero"])
def test_gossip_of_random_parts_is_its_dense_equation(fill, shared):
    """x_i <- w_ii x_i + sum_j w_ij (m_j x_j + (1 - m_j) (x_i or 0))."""
    models, n, d = random(8, 30), 8, 30
    network = Lockstep(lambda: Gossip(fill), Ring(8), models, lambda: (RandomK(0.3, shared),), seed=4)
    for _ in range(3):
        x, m, w = network.models.numpy(), masks_of(network, n, d), network.weighted.matrix()
        expected = w @ (m * x) + np.diag(w)[:, None] * (1 - m) * x
        if fill == "own":
            off = w - np.diag(np.diag(w))
            expected += (off @ (1 - m)) * x
        assert np.allclose(network.mix().numpy(), expected, rtol=0, atol=1e-14)


def drift(graph, transforms, rounds=1, n_values=4000):
    """How far one round of self-filled gossip moves the mean, in rms distances of the models from it."""
    models = random(graph.num_nodes, n_values)
    network = Lockstep(Gossip, graph, models, transforms)
    for scheme in network.schemes:
        scheme.begin(torch.zeros(n_values, dtype=F64))
    mean = models.mean(0)
    spread = (models - mean).square().sum(1).mean().sqrt()
    return float((network.mix().mean(0) - mean).norm() / spread)


@pytest.mark.parametrize(
    ("graph", "fraction", "measured"),
    [(Ring(8), 0.1, 0.09), (Ring(8), 0.5, 0.15), (SPARSE, 0.1, 0.028), (SPARSE, 0.5, 0.045)],
    ids=str,
)  # fmt: skip
def test_self_fill_moves_the_mean_as_the_formula_predicts(graph, fraction, measured):
    models = random(graph.num_nodes, 4000)
    network = Lockstep(Gossip, graph, models, lambda: (RandomK(fraction),))
    w, n = torch.from_numpy(network.weighted.matrix()), graph.num_nodes
    pulls = (w.sum(0)[:, None] * models - w.T @ models).square().sum()
    spread = (models - models.mean(0)).square().sum(1).mean().sqrt()
    expected = float((fraction * (1 - fraction) * pulls).sqrt() / n / spread)
    assert expected == pytest.approx(measured, rel=0.05), "the figure in the docstring"
    assert drift(graph, lambda: (RandomK(fraction),)) == pytest.approx(expected, rel=0.08)


def test_self_fill_with_one_mask_for_all_keeps_the_mean():
    assert drift(Ring(8), lambda: (RandomK(0.1, shared_mask=True),)) < 1e-14


@pytest.mark.parametrize(("graph", "measured"), [(Ring(8), 0.16), (SPARSE, 0.05)], ids=str)
def test_self_fill_of_the_largest_moves_the_mean_more(graph, measured):
    for by in ("magnitude", "change"):
        assert drift(graph, lambda by=by: (TopK(0.1, by=by),)) == pytest.approx(measured, rel=0.08)


@pytest.mark.slow
def test_self_filled_models_agree_in_the_end_and_zero_filled_ones_vanish():
    models = random(8, 10)
    agreed = Lockstep(Gossip, Ring(8), models, lambda: (RandomK(0.3),)).run(200)
    assert float((agreed - agreed.mean(0)).norm()) < 1e-2
    assert float(agreed.norm()) > 1
    gone = Lockstep(lambda: Gossip("zero"), Ring(8), models, lambda: (RandomK(0.3),)).run(200)
    assert float(gone.norm()) < 1e-2
