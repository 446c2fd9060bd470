"""The message format: what is written can be read, and nothing else is accepted."""

import re
import struct
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from decentnode.communication import wire
from decentnode.communication.wire import Header, Hello, Kind, SharedSegment, WireError
from decentnode.core.byte_counters import HEADER_BYTES

DOCUMENT = Path(__file__).parents[2] / "docs" / "message_format.md"
BITS = {"B": 8, "H": 16, "I": 32, "Q": 64}
WIDTHS = {
    "run_id": "Q", "sender": "I", "receiver": "I", "incarnation": "I", "round": "I", "phase": "H",
    "part": "H", "layout": "I", "seq": "I", "ack": "I", "length": "Q", "knows": "B", "body_digest": "I",
}  # fmt: skip
HEADERS = st.builds(
    Header,
    kind=st.sampled_from(Kind),
    **{name: st.integers(0, 2 ** BITS[code] - 1) for name, code in WIDTHS.items()},
)
SAMPLE = Header(Kind.PAYLOAD, 1 << 40, 3, 4, 17, 1, 2, layout=99, seq=7, ack=6, length=5)


def reason(call, *arguments):
    with pytest.raises(WireError) as caught:
        call(*arguments)
    return caught.value.reason


def changed(frame, at, content):
    return frame[:at] + content + frame[at + len(content) :]


@given(HEADERS)
def test_every_field_of_a_header_comes_back(header):
    frame = header.pack()
    assert len(frame) == HEADER_BYTES == wire.HEADER_BYTES == 64
    assert Header.unpack(frame) == header


@given(HEADERS, st.integers(0, 2**32 - 1), st.integers(0, 2**32 - 1), st.integers(0, 2**32 - 1))
def test_one_header_serves_several_receivers(header, receiver, ack, incarnation):
    frame = header.pack(receiver, ack, incarnation)
    assert Header.unpack(frame) == header._replace(receiver=receiver, ack=ack, knows=incarnation % 256)


def test_every_flipped_bit_of_a_header_is_caught():
    frame = SAMPLE._replace(body_digest=wire.digest(b"hello")).pack()
    for bit in range(8 * len(frame)):
        flipped = changed(frame, bit // 8, bytes([frame[bit // 8] ^ 1 << bit % 8]))
        assert reason(Header.unpack, flipped) in ("checksum", "magic", "version"), f"bit {bit}"


@settings(max_examples=30)
@given(st.binary(min_size=1, max_size=64))
def test_every_flipped_bit_of_a_body_is_caught(body):
    for bit in range(8 * len(body)):
        flipped = changed(body, bit // 8, bytes([body[bit // 8] ^ 1 << bit % 8]))
        assert wire.digest(flipped) != wire.digest(body), f"bit {bit}"


def test_a_body_cannot_be_swapped_for_no_body():
    assert wire.digest(b"\0" * 8) != wire.digest(b"")


@pytest.mark.parametrize("length", [0, 1, 63, 65, 128])
def test_a_header_of_another_length_is_refused(length):
    assert reason(Header.unpack, (SAMPLE.pack() * 2)[:length]) == "header length"


@pytest.mark.parametrize(
    ("at", "content", "what"),
    [
        (0, b"HTTP", "magic"),
        (0, b"dcnt", "magic"),
        (4, b"\x00\x00", "version"),
        (4, b"\x01\x00", "version"),
        (6, b"\x00", "kind"),
        (6, bytes([max(Kind) + 1]), "kind"),
        (6, b"\xff", "kind"),
        (6, b"\x01", "checksum"),
    ],
)
def test_what_is_not_ours_is_refused_by_name(at, content, what):
    frame = changed(SAMPLE.pack(), at, content)
    if what == "kind":
        frame = frame[:60] + struct.pack("<I", wire.digest(frame[:60]))
    assert reason(Header.unpack, frame) == what


@given(st.binary(min_size=64, max_size=64))
def test_random_bytes_are_never_a_verified_header(frame):
    with pytest.raises(WireError):
        Header.unpack(frame)


SEGMENTS = st.builds(
    SharedSegment,
    *(st.integers(0, 2**31), st.integers(0, 2**22), st.integers(0, 2**16), st.integers(0, 2**48)),
)


def read_hello(body):
    return wire.unpack(body, Hello, "hello")


@given(st.builds(Hello, st.lists(st.integers(0, 2**32 - 1)), st.lists(SEGMENTS, max_size=5)))
def test_a_hello_comes_back(hello):
    assert read_hello(msgspec.msgpack.encode(hello)) == hello


def test_a_hello_of_many_nodes_fits_and_a_larger_one_is_refused_unread():
    hello = Hello(list(range(1024)), [SharedSegment(r, 1 << 22, 1 << 16, 1 << 40) for r in range(1024)])
    assert len(msgspec.msgpack.encode(hello)) <= wire.MOST_CONTROL_BYTES
    assert reason(read_hello, b"\x91" * (wire.MOST_CONTROL_BYTES + 1)) == "control length"


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\xc1",
        b"\x82\xa5ranks",
        msgspec.msgpack.encode({"ranks": ["0"], "segments": []}),
        msgspec.msgpack.encode({"ranks": [0]}),
        msgspec.msgpack.encode([0, []]),
        b"\x81\xa1x" + b"\x91" * 60_000 + b"\x00",
    ],
    ids=["nothing", "reserved", "torn", "text rank", "no segments", "no map", "nested too deep"],
)
def test_a_broken_hello_is_refused(body):
    assert reason(read_hello, body) == "hello"


@given(st.binary(max_size=300))
def test_a_hello_of_random_bytes_raises_nothing_else(body):
    try:
        read_hello(body)
    except WireError as error:
        assert error.reason == "hello"


def documented_fields():
    """(offset, size, name) of each row of the document's table of the header."""
    rows = re.findall(r"^\| (\d+) \| (\d+) \| `(\w+)` \|", DOCUMENT.read_text(), re.MULTILINE)
    return [(int(offset), int(size), name) for offset, size, name in rows]


def test_the_documented_header_has_no_gap():
    end = 0
    for offset, size, _ in documented_fields():
        assert offset == end
        end += size
    assert end == HEADER_BYTES


@pytest.mark.parametrize("name", ["kind", *WIDTHS])
def test_each_field_lies_where_the_document_says(name):
    places = {field: (offset, size) for offset, size, field in documented_fields()}
    offset, size = places[name]
    value = int(Kind.WAITING) if name == "kind" else 2 ** (8 * size - 1) + 1
    frame = SAMPLE._replace(**{name: value}).pack()
    assert int.from_bytes(frame[offset : offset + size], "little") == value


def test_the_document_names_magic_version_and_every_kind():
    text = DOCUMENT.read_text()
    assert f"`{wire.MAGIC.decode()}`" in text
    assert struct.unpack_from("<H", SAMPLE.pack(), 4)[0] == wire.VERSION
    assert f"version {wire.VERSION}" in text
    for kind in Kind:
        assert re.search(rf"^\| {kind.value} \| `{kind.name}` \|", text, re.MULTILINE), kind.name
