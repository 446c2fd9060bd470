"""Chains drawn at random: legal ones bring a signal back within bounds; others are refused when built."""

import dataclasses
import math
import re

import pytest
import torch
from hypothesis import event, given, settings
from hypothesis import strategies as st

from decentnode.core.payload import Form, Payload
from decentnode.core.registry import TRANSFORMS, name_of
from decentnode.core.vector import Entry, ParameterLayout
from decentnode.errors import BadInput
from decentnode.transforms.base import Context
from decentnode.transforms.chain import Chain
from decentnode.transforms.sparsify.selection import count

OURS = {name: cls for name, cls in TRANSFORMS.classes().items() if cls.__module__.startswith("decentnode.")}
fractions = st.sampled_from([0.01, 0.1, 0.5, 1.0])
OPTIONS = {
    "cast": {"dtype": st.sampled_from(["fp16", "bf16"])},
    "chunk_top_k": {
        "fraction": fractions,
        "chunk": st.sampled_from([1, 8, 100, 4096]),
        "by": st.sampled_from(["magnitude", "change"]),
        "packed": st.booleans(),
    },
    "clip": {"norm": st.sampled_from([0.5, 100.0])},
    "dct": {"chunk": st.sampled_from([1, 5, 64])},
    "fourier": {"block": st.sampled_from([0, 16, 4096])},
    "fragments": {"count": st.sampled_from([1, 2])},
    "gaussian_noise": {"sigma": st.just(0.01), "scope": st.sampled_from(["shared", "neighbor"])},
    "qsgd": {"levels": st.sampled_from([1, 16, 127]), "norm": st.sampled_from(["l2", "max"])},
    "random_k": {"fraction": fractions, "shared_mask": st.booleans()},
    "sign": {"scale": st.sampled_from(["vector", "block"])},
    "ternary": {"rule": st.sampled_from(["stochastic", "threshold"])},
    "threshold": {"value": st.sampled_from([0.0, 0.5]), "relative": st.booleans()},
    "top_k": {
        "fraction": st.one_of(fractions, st.just([0.1, 1.0])),
        "by": st.sampled_from(["magnitude", "change"]),
        "metadata_cap": st.sampled_from([0.3, 1.0]),
        "random": st.sampled_from([0.0, 0.2]),
    },
    "uniform": {"bits": st.sampled_from([2, 8]), "rounding": st.sampled_from(["nearest", "stochastic"])},
    "wavelet": {"family": st.sampled_from(["haar", "sym2", "db4"]), "levels": st.integers(1, 5)},
}
"""What is drawn beside the defaults; only orthogonal wavelets, which lengthen no error."""

# What a stage loses at most, as a part of the norm of what it gets, for n values; the others lose nothing.
LOSSES = {
    "cast": lambda t, n: 2.0**-8,
    "chunk_top_k": lambda t, n: 1.0,
    "clip": lambda t, n: 1.0,
    "fragments": lambda t, n: 1.0,
    "low_rank": lambda t, n: 1.0,
    "qsgd": lambda t, n: math.sqrt(n) / t.levels,
    "random_k": lambda t, n: 1.0,
    "sign": lambda t, n: 1.0,
    "ternary": lambda t, n: math.sqrt(n),
    "threshold": lambda t, n: 1.0,
    "top_k": lambda t, n: 1.0,
    "uniform": lambda t, n: 2 * math.sqrt(n) / (2**t.bits - 1),
}
ADDED = {"gaussian_noise": lambda t, n: 7 * t.sigma * math.sqrt(n)}
"""What a stage adds, whatever it gets."""
INDEX_CODERS = {"auto", "bitmap", "elias_gamma", "rice"}
BYTE_CODERS = {"fpzip", "lz4", "pcodec", "zstd"}

stages = st.sampled_from(sorted(OURS)).flatmap(lambda name: st.builds(OURS[name], **OPTIONS.get(name, {})))
lengths = st.one_of(st.sampled_from([0, 1, 2]), st.integers(3, 300))
dtypes = st.sampled_from([torch.float32, torch.float64])


def of_names(*names):
    return st.sampled_from(sorted(names)).flatmap(lambda name: st.builds(OURS[name], **OPTIONS.get(name, {})))


@st.composite
def legal_chains(draw):
    """Bases, then perhaps privacy, a selection, values in few bits, coded indices, coded bytes."""
    chain = draw(st.lists(of_names("dct", "fourier", "wavelet"), max_size=2))
    selection = (
        draw(of_names("top_k", "chunk_top_k", "threshold", "random_k")) if draw(st.booleans()) else None
    )
    if draw(st.booleans()):
        chain.append(draw(of_names("clip")))
    if draw(st.booleans()):
        noise = draw(of_names("gaussian_noise"))
        if selection and selection.remembers:
            noise.scope = "shared"
        chain.append(noise)
    if selection:
        chain.append(selection)
    if draw(st.booleans()):
        chain.append(draw(of_names("cast", "qsgd", "sign", "ternary", "uniform")))
    if selection and any(f.name == "indices" for f in Chain(chain, 5).layout.fields):
        chain += draw(st.lists(of_names(*INDEX_CODERS), max_size=1))
    return chain + draw(st.lists(of_names(*BYTE_CODERS), max_size=1))


def bound(chain, vector):
    """The norm of the error that all stages together may make."""
    n, eps = vector.numel() + 64, torch.finfo(vector.dtype).eps
    size = float(torch.linalg.vector_norm(vector))
    error = 1e-6 + 1e3 * eps * size
    for transform in chain.stages:
        lost = LOSSES.get(name_of(transform), lambda t, n: 0.0)(transform, n) * size
        lost += ADDED.get(name_of(transform), lambda t, n: 0.0)(transform, n)
        size, error = size + lost, error + lost
    return error * (1 + 1e3 * eps)


def signal(length, dtype, seed=0):
    return torch.randn(length, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def check_round_trip(chain, length, dtype):
    """What the receiver makes of the first payload is near enough to the signal."""
    chain.begin(torch.zeros(length, dtype=dtype))
    receiver = 5 if chain.per_receiver else None
    vector = signal(length, dtype)
    context = Context(seed=1, round=0, sender=3, receiver=receiver)
    payload = chain.encode(vector, context)
    assert torch.equal(vector, signal(length, dtype))
    assert payload.nbytes <= chain.layout.max_bytes
    decoded = chain.decode(Payload.parse(chain.layout, payload.buffer.clone()), context)
    assert decoded.shape == (length,)
    error = float(torch.linalg.vector_norm(decoded.double() - vector.double()))
    assert error <= bound(chain, vector)


def sends_all(transform, length):
    """Whether a selection in chunks has every value, and so no indices."""
    parts = {min(transform.chunk, length), length % transform.chunk}
    return all(count(transform.fraction, part) == part for part in parts if part)


def breaks_an_order(transforms, length=10):
    """Whether forms do not fit, or a coder of indices gets none: what no chain may pass."""
    form, has_indices = Form.DENSE, False
    for transform in transforms:
        name = name_of(transform)
        if form not in transform.accepts or (name in INDEX_CODERS and not has_indices):
            return True
        form = transform.emits or form
        selects = name in {"top_k", "threshold"} or (
            name == "chunk_top_k" and (not transform.packed or sends_all(transform, length))
        )
        has_indices = (has_indices or selects) and name not in INDEX_CODERS
    return False


def test_every_transform_can_be_drawn():
    """Those with options that have no default are in the table."""
    for name, cls in OURS.items():
        needed = {
            f.name
            for f in dataclasses.fields(cls)
            if f.init and f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING
        }
        assert needed <= set(OPTIONS.get(name, {}))


@given(legal_chains(), lengths, dtypes)
@settings(max_examples=80)
def test_legal_chains_bring_a_signal_back(transforms, length, dtype):
    check_round_trip(Chain(transforms, length, dtype), length, dtype)


@given(legal_chains(), lengths)
@settings(max_examples=60)
def test_coders_change_nothing(transforms, length):
    """Bit by bit: the same chain without its coders decodes to the same."""
    plain = [t for t in transforms if name_of(t) not in INDEX_CODERS | BYTE_CODERS]
    decoded = []
    for order in (transforms, plain):
        chain = Chain(order, length)
        chain.begin(torch.zeros(length))
        context = Context(seed=1, round=0, sender=3, receiver=5 if chain.per_receiver else None)
        payload = chain.encode(signal(length, torch.float32), context)
        decoded.append(chain.decode(Payload.parse(chain.layout, payload.buffer), context))
    assert torch.equal(*decoded)


@given(st.lists(stages, min_size=1, max_size=5), lengths, dtypes)
@settings(max_examples=150)
def test_any_chain_is_refused_when_built_or_works(transforms, length, dtype):
    parameters = ParameterLayout((Entry("weight", torch.Size([length, 1]), 0),))
    try:
        chain = Chain(transforms, length, dtype, parameters)
    except BadInput as refusal:
        event("refused")
        names = "|".join(name_of(t) for t in transforms)
        assert re.match(rf"transforms\[\d\]: ({names}) \w", str(refusal))
        return
    event("built")
    assert not breaks_an_order(transforms, length)
    check_round_trip(chain, length, dtype)


@given(st.lists(stages, min_size=1, max_size=3).filter(breaks_an_order))
def test_what_does_not_fit_is_refused_whatever_the_signal(transforms):
    with pytest.raises(BadInput, match=r"^transforms\[\d\]: \w+ "):
        Chain(transforms, 10)
