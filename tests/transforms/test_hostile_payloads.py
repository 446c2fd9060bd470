"""Payloads of the right form whose content is a lie: refused, or decoded to a signal that fits."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from decentnode.core.payload import Payload, PayloadError
from tests.transforms.test_transforms import CASES, chain_of, context_of, sent

FLOATS = (0.0, -0.0, 1.0, float("inf"), -float("inf"), float("nan"), 3e38, -3e38, 1e-45)
BITS = (0, 1, 2, 127, 128, 255)
PATTERNS = st.sampled_from(("extreme", "up", "down", "same", "as sent"))


def hostile(field, count, pattern, salt, honest):
    """Elements of a field that no encoder makes, in any number that the layout allows."""
    generator = torch.Generator().manual_seed(salt)
    if pattern == "as sent" and honest.numel() == count:
        return honest.clone()
    if field.dtype.is_floating_point:
        choice = torch.randint(len(FLOATS), (count,), generator=generator)
        return torch.tensor(FLOATS, dtype=torch.float64)[choice].to(field.dtype)
    info = torch.iinfo(field.dtype)
    if pattern == "up":
        return torch.arange(count, dtype=torch.int64).sub(salt % 3).clamp(info.min, info.max).to(field.dtype)
    if pattern == "down":
        return torch.arange(count - 1, -1, -1, dtype=torch.int64).clamp(info.min, info.max).to(field.dtype)
    if pattern == "same":
        return (
            torch.full((count,), BITS[salt % len(BITS)], dtype=torch.int64)
            .clamp(max=info.max)
            .to(field.dtype)
        )
    extremes = torch.tensor([0, 1, info.max, info.min, info.max // 2, info.max - 1], dtype=torch.int64)
    return extremes[torch.randint(6, (count,), generator=generator)].to(field.dtype)


@pytest.mark.parametrize("key", CASES)
@given(
    length=st.sampled_from([57, 1, 0]), patterns=st.lists(PATTERNS, min_size=4, max_size=4),
    counts=st.lists(st.integers(0, 2**20), min_size=4, max_size=4), salt=st.integers(0, 2**16),
)  # fmt: skip
@settings(max_examples=10, deadline=None)
def test_a_hostile_payload_is_refused_or_gives_a_signal_that_fits(key, length, patterns, counts, salt):
    chain, buffer = sent(key, length)
    honest = Payload.parse(chain.layout, buffer)
    fields = {}
    for index, field in enumerate(chain.layout.fields):
        count = field.elements
        if field.variable:
            count = honest[field.name].numel() if counts[index % 4] % 2 else counts[index % 4] % (count + 1)
        fields[field.name] = hostile(field, count, patterns[index % 4], salt, honest[field.name])
    try:
        decoded = chain.decode(Payload.of(chain.layout, fields), context_of(chain))
    except PayloadError:
        return
    assert decoded.shape == (length,)


@pytest.mark.parametrize("key", CASES)
def test_a_count_beyond_what_the_layout_allows_is_refused_before_anything_is_read(key):
    chain, buffer = sent(key, 57)
    for index, field in enumerate(chain.layout.variable):
        for count in (-1, field.elements + 1, 2**62, -(2**63)):
            lie = buffer.clone()
            lie[8 * index : 8 * index + 8].view(torch.int64)[0] = count
            with pytest.raises(
                PayloadError, match=f"^field '{field.name}' has {count} elements, allowed are"
            ):
                Payload.parse(chain_of(CASES[key], 57).layout, lie)
