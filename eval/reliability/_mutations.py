"""Messages that are nearly right: valid ones of every kind, changed in one place or two."""

import random
import struct
from collections.abc import Callable
from typing import Any

import msgspec

from decentnode.communication import wire

Frames = list[bytes]
WIDTHS = (2, 4, 8)
INTERESTING = (0, 1, 2, 3, 127, 128, 255)


def width_of(field: str) -> int:
    """Bytes of a header's field, found by trying what it takes."""
    for width in WIDTHS:
        try:
            wire.Header(wire.Kind.HELLO, 0, 0, 0)._replace(**{field: 256**width}).pack()
        except struct.error:
            return width
    return WIDTHS[-1]


FIELDS = {field: width_of(field) for field in wire.Header._fields if field != "kind"}


class Forge:
    """A source of messages from one rank to another, most of which break some rule."""

    def __init__(self, seed: int, run_id: int, ends: tuple[int, int], payload: bytes, layout: int) -> None:
        self.random = random.Random(seed)
        self.run_id = run_id
        self.sender, self.receiver = ends
        self.payload = payload
        self.layout = layout
        self.round = 0
        """About where the receiver is."""
        self.incarnation = 0

    def message(self) -> Frames:
        """The frames of one message."""
        header, body = self.valid()
        for _ in range(self.random.choice((0, 1, 1, 1, 2))):
            header, body = self.random.choice((self._field, self._field, self._body, self._kind))(
                header, body
            )
        if header.kind == wire.Kind.HELLO and header.incarnation > self.incarnation:
            # Otherwise all that follows would be refused for its incarnation alone.
            header = header._replace(incarnation=self.incarnation)
        if self.random.random() < 0.9:
            header = header._replace(body_digest=wire.digest(body))
        return self._frames(header.pack(), body)

    def valid(self) -> tuple[wire.Header, bytes]:
        """A message that breaks no rule, but for where a NOTICE and a HELLO point to."""
        kind = self.random.choice(list(wire.Kind))
        near = max(0, self.round + self.random.choice((-2, -1, 0, 0, 0, 1, 2, 3)))
        body = self._body_of(kind)
        header = wire.Header(
            kind, self.run_id, self.sender, self.receiver, near, layout=self.layout, seq=near + 1,
            ack=self.random.choice((0, 0, near)), length=len(body), incarnation=self.incarnation,
        )  # fmt: skip
        return header, body

    def _body_of(self, kind: int) -> bytes:
        match kind:
            case wire.Kind.HELLO:
                return self._hello()
            case wire.Kind.PAYLOAD:
                return self.payload
            case wire.Kind.NOTICE:
                return wire.REFERENCE.pack(self.random.choice((0, 4096, 2**63, 2**64 - 1)))
        return b""

    def _hello(self) -> bytes:
        """A greeting, or something that looks like one."""
        segment: dict[str, Any] = {
            "rank": self.random.choice((self.sender, 0, 1, -1, 2**63)),
            "pid": self.random.choice((1, 0, -1, 2**31, self.random.getrandbits(16))),
            "fd": self.random.choice((0, 1, 3, 5, 9, -1, 2**40)),
            "size": self.random.choice((0, 1, 4096, -1, 2**62)),
        }
        content: dict[str, Any] = {
            "ranks": self.random.choice(([self.sender], [], [0], [0, 1, 2], [2**64 - 1])),
            "segments": [segment] * self.random.choice((0, 0, 1, 2, 50)),
        }
        odd = self.random.random()
        if odd < 0.1:
            content[self.random.choice(("ranks", "segments", "x"))] = self.random.choice(
                (None, "a", 1.5, {}, [[]])
            )
        if odd > 0.97:
            return b"\x81\xa5ranks" + b"\x91" * self.random.choice((9, 900, 60_000)) + b"\x00"
        return msgspec.msgpack.encode(content)

    def _field(self, header: wire.Header, body: bytes) -> tuple[wire.Header, bytes]:
        field = self.random.choice(list(FIELDS))
        if header.kind == wire.Kind.HELLO and field == "incarnation":
            return self._restart(header), body
        most = 256 ** FIELDS[field] - 1
        now = getattr(header, field)
        value = self.random.choice(
            (*INTERESTING, now + 1, now - 1, most, most - 1, most // 2, self.random.randint(0, most))
        )
        return header._replace(**{field: value % (most + 1)}), body

    def _restart(self, header: wire.Header) -> wire.Header:
        """A process that was started again, now and then."""
        self.incarnation += self.random.random() < 0.05
        return header._replace(incarnation=self.incarnation)

    def _kind(self, header: wire.Header, body: bytes) -> tuple[wire.Header, bytes]:
        kind = self.random.choice((*wire.Kind, 0, max(wire.Kind) + 1, 255))
        return header._replace(kind=kind), body

    def _body(self, header: wire.Header, body: bytes) -> tuple[wire.Header, bytes]:
        at = self.random.randint(0, len(body))
        noise = self.random.randbytes(self.random.choice((1, 1, 8, 64, 1000)))
        change: Callable[[], bytes] = self.random.choice(
            (
                lambda: body[:at],
                lambda: body[:at] + noise + body[at:],
                lambda: body[:at] + noise + body[at + len(noise) :],
                lambda: noise,
                lambda: body * 2,
            )
        )
        changed = change()
        return header._replace(length=self.random.choice((len(changed), header.length))), changed

    def _frames(self, head: bytes, body: bytes) -> Frames:
        odd = self.random.random()
        if odd < 0.9:
            return [head, body]
        at = self.random.randrange(len(head))
        return self.random.choice(
            (
                [head],
                [body],
                [head, body, b""],
                [head, body, *[b"x"] * self.random.choice((1, 5, 100))],
                [body, head],
                [head[:at], body],
                [head + head[:at], body],
                [head[:at] + self.random.randbytes(1) + head[at + 1 :], body],
                [self.random.randbytes(64), body],
                [b"", b""],
            )
        )


def raw_bytes(source: random.Random) -> list[bytes]:
    """What a stranger writes to the socket itself, piece by piece: noise, or a greeting and then noise."""
    greeting = (
        b"\xff" + bytes(8) + b"\x7f\x03\x00" + source.choice((b"NULL", b"CURVE", b"PLAIN")).ljust(20, b"\0")
    )
    greeting += bytes(32)
    ready = b"\x04\x29\x05READY\x0bSocket-Type\x00\x00\x00\x06DEALER\x08Identity\x00\x00\x00\x00"
    frame = bytes([source.choice((0, 1, 2, 3, 4, 6, 255))]) + source.randbytes(1)
    long = b"\x02" + struct.pack(">Q", source.choice((0, 1 << 10, 1 << 40, 2**63, 2**64 - 1)))
    noise = source.randbytes(source.choice((1, 10, 100, 5000)))
    endless = b"".join(b"\x01\x04abcd" for _ in range(source.choice((1, 100, 10_000))))
    return source.choice(
        (
            [noise],
            [greeting[: source.randint(1, 64)]],
            [greeting, noise],
            [greeting, ready[: source.randint(1, len(ready))], noise],
            [greeting, ready, frame, noise],
            [greeting, ready, long, noise],
            [greeting, ready, endless],
            [b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"],
            [],
        )
    )
