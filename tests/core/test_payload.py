"""Payloads: one buffer, read through a layout, and every buffer that does not fit it."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from decentnode.core.payload import Field, Form, Layout, Payload, PayloadError, Role, dense_layout

DTYPES = (torch.uint8, torch.int32, torch.int64, torch.float16, torch.bfloat16, torch.float32, torch.float64)
TWO_LISTS = Layout(
    (
        Field("indices", torch.int32, 10, variable=True, role=Role.INDEX),
        Field("values", torch.float32, 10, variable=True),
        Field("scale", torch.float64, 1),
    ),
    Form.SPARSE,
)


@st.composite
def filled_payloads(draw):
    """A payload of a random layout, and the tensors that were written into its fields."""
    count = draw(st.integers(1, 5))
    fields = tuple(
        Field(f"f{i}", draw(st.sampled_from(DTYPES)), draw(st.integers(0, 9)), draw(st.booleans()))
        for i in range(count)
    )
    layout = Layout(fields)
    payload = Payload.empty(layout, **{f.name: draw(st.integers(0, f.elements)) for f in layout.variable})
    contents = {}
    for f in fields:
        numbers = draw(st.lists(st.integers(0, 100), min_size=payload[f.name].numel(), max_size=9))
        contents[f.name] = torch.tensor(numbers[: payload[f.name].numel()], dtype=f.dtype)
        payload[f.name].copy_(contents[f.name])
    return payload, contents


def fields_of(payload):
    return {f.name: payload[f.name] for f in payload.layout.fields}


def assert_fields(payload, contents):
    assert payload.counts == {f.name: contents[f.name].numel() for f in payload.layout.variable}
    for name, tensor in fields_of(payload).items():
        assert tensor.dtype == contents[name].dtype
        assert torch.equal(tensor, contents[name])


@given(filled_payloads())
def test_every_field_comes_back(made):
    payload, contents = made
    assert_fields(Payload.parse(payload.layout, payload.buffer.clone()), contents)


@given(filled_payloads(), st.integers(0, 8))
def test_a_buffer_at_any_address_is_read_right(made, shift):
    payload, contents = made
    room = torch.empty(payload.nbytes + shift, dtype=torch.uint8)
    room[shift:] = payload.buffer
    assert_fields(Payload.parse(payload.layout, room[shift:]), contents)


@given(filled_payloads())
def test_fields_start_at_multiples_of_eight_and_overlap_nowhere(made):
    payload, _ = made
    spans, size = payload.layout.spans(payload.counts)
    end = 8 * len(payload.layout.variable)
    for start, length in spans.values():
        assert start % 8 == 0
        assert end <= start < end + 8
        end = start + length
    assert end == size == payload.nbytes <= payload.layout.max_bytes


@given(filled_payloads())
def test_bytes_between_the_fields_are_zero(made):
    payload, _ = made
    for tensor in fields_of(payload).values():
        tensor.zero_()
    counts = 8 * len(payload.layout.variable)
    assert payload.buffer[:counts].view(torch.int64).tolist() == list(payload.counts.values())
    assert not payload.buffer[counts:].any()


@given(filled_payloads(), st.integers(-8, 8).filter(bool))
def test_a_buffer_of_another_size_is_refused(made, change):
    payload, _ = made
    size = max(0, payload.nbytes + change)
    buffer = torch.zeros(size, dtype=torch.uint8)
    buffer[: payload.nbytes] = payload.buffer[:size]
    if size != payload.nbytes:
        with pytest.raises(PayloadError):
            Payload.parse(payload.layout, buffer)


@pytest.mark.parametrize("count", [-1, 11, 2**62, -(2**63)])
def test_a_count_out_of_range_is_refused_by_both_ends(count):
    with pytest.raises(PayloadError, match=f"field 'values' takes 0..10 elements, got {count}"):
        Payload.empty(TWO_LISTS, indices=1, values=count)
    buffer = Payload.empty(TWO_LISTS, indices=1, values=1).buffer
    buffer[8:16].view(torch.int64)[0] = count
    with pytest.raises(PayloadError, match=f"field 'values' has {count} elements, allowed are 0..10"):
        Payload.parse(TWO_LISTS, buffer)


def test_a_buffer_shorter_than_its_counts_is_refused():
    with pytest.raises(PayloadError, match=r"^15 bytes are too few for the counts of 2 fields$"):
        Payload.parse(TWO_LISTS, torch.zeros(15, dtype=torch.uint8))


def test_the_error_names_both_sizes():
    with pytest.raises(PayloadError, match=r"^39 bytes where the layout needs 40$"):
        Payload.parse(dense_layout(10), torch.zeros(39, dtype=torch.uint8))


def test_a_plain_vector_is_its_own_payload():
    vector = torch.arange(6, dtype=torch.float32)
    payload = Payload.dense(vector)
    assert payload.nbytes == 24
    assert payload["vector"].data_ptr() == vector.data_ptr()
    assert payload.layout == dense_layout(6)


def test_an_aligned_buffer_is_read_without_a_copy():
    payload = Payload.empty(TWO_LISTS, indices=3, values=3)
    parsed = Payload.parse(TWO_LISTS, payload.buffer)
    parsed["values"][1] = 5.0
    assert payload["values"][1] == 5.0


def test_index_bytes_are_those_of_index_fields():
    assert Payload.empty(TWO_LISTS, indices=3, values=4).index_bytes == 12
    assert Payload.empty(TWO_LISTS, indices=0, values=4).index_bytes == 0
    assert Payload.dense(torch.ones(9)).index_bytes == 0


def test_an_unknown_field_is_a_key_error():
    with pytest.raises(KeyError):
        Payload.dense(torch.ones(2))["weights"]


CHANGES = [
    Layout(TWO_LISTS.fields[:2], Form.SPARSE),
    Layout(TWO_LISTS.fields[::-1], Form.SPARSE),
    Layout(TWO_LISTS.fields, Form.BYTES),
    Layout((Field("index", torch.int32, 10, True, Role.INDEX), *TWO_LISTS.fields[1:]), Form.SPARSE),
    Layout((Field("indices", torch.int64, 10, True, Role.INDEX), *TWO_LISTS.fields[1:]), Form.SPARSE),
    Layout((Field("indices", torch.int32, 11, True, Role.INDEX), *TWO_LISTS.fields[1:]), Form.SPARSE),
    Layout((Field("indices", torch.int32, 10, False, Role.INDEX), *TWO_LISTS.fields[1:]), Form.SPARSE),
]


@pytest.mark.parametrize("other", CHANGES, ids=range(len(CHANGES)))
def test_every_property_of_a_layout_is_in_its_hash(other):
    assert other.hash != TWO_LISTS.hash
    assert 0 <= other.hash < 2**32


def test_equal_layouts_have_equal_hashes_in_every_process():
    assert dense_layout(1000).hash == dense_layout(1000).hash == Payload.dense(torch.ones(1000)).layout.hash


def test_an_empty_array_of_numpy_is_a_payload_of_no_bytes():
    """Its stride may be 0, which torch refuses to view as bytes."""
    empty = torch.empty(1).expand(5)[:0]
    assert empty.stride() == (0,)
    assert Payload.dense(empty).nbytes == 0
