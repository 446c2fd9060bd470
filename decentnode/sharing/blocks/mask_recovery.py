"""How the senders to one receiver let it remove the masks of those that are missing.

Two exchanges follow the masked models (Bonawitz et al., CCS 2017, Fig. 4, with the receiver as the server):

1. sender -> receiver: the masked model, and the sender's secrets in shares, each encrypted for its holder.
2. receiver -> sender: who has arrived, and the shares that the sender is to hold.
3. sender -> receiver: its shares of the secrets that the receiver may learn.

The secrets of a sender a are its own mask b_a and the masks m_ac with each other sender c. Of a sender that
has arrived, b_a is revealed, and m_ac only for a c that is missing. So a model that arrives too late stays
hidden by its own mask.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import floor

import torch
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from torch import Tensor

from decentnode.core.pair_keys import Mask, PairKeys, stream
from decentnode.core.payload import Field, Layout, Payload
from decentnode.sharing.blocks.secret_sharing import SHARE_BYTES, combine, split

MOST_SENDERS = 64
"""The most senders to one receiver; the shares grow with their square."""
_TAG_BYTES = 16
_SEALED_FIELD = Field(
    "shares", torch.uint8, (MOST_SENDERS - 1) * (MOST_SENDERS * SHARE_BYTES + 16), variable=True
)
_MOST_REVEALED = MOST_SENDERS * (MOST_SENDERS + 4) // 4
SEALED, NOTICE, REVEALED = (
    _SEALED_FIELD,
    Layout((Field("arrived", torch.uint8, MOST_SENDERS, variable=True), _SEALED_FIELD)),
    Layout((Field("shares", torch.uint8, _MOST_REVEALED * SHARE_BYTES, variable=True),)),
)
"""The shares beside a masked model, and the layouts of the other two exchanges."""


def needed(senders: int, threshold: float) -> int:
    """How many of so many senders must be alive: more than that fraction, and two at least."""
    return max(2, floor(threshold * senders) + 1)


@dataclass
class SenderGroup:
    """One sender's view of the senders to one receiver in a round."""

    keys: PairKeys
    rank: int
    receiver: int
    round: int
    senders: tuple[int, ...]
    """All senders of the group, ascending, this one included."""
    least: int
    """How many must have arrived before this one reveals anything; their shares give a secret."""
    own_key: bytes = field(init=False, repr=False)
    """The key of the mask b that this sender alone knows."""
    _shares: list[list[bytes]] = field(init=False, repr=False)
    """The shares by the sender that a secret is about, and by holder."""

    def __post_init__(self) -> None:
        self.own_key = self.keys.own_key(self.receiver, self.round, 0)
        random = stream(self.keys.own_key(self.receiver, self.round, 1))
        secrets = [self.own_key if c == self.rank else self._pair_key(c) for c in self.senders]
        self._shares = [split(secret, self.least, len(self.senders), random=random) for secret in secrets]

    def _pair_key(self, other: int) -> bytes:
        return self.keys.key(self.rank, other, self.receiver, self.round, 0)

    def masks(self) -> list[Mask]:
        """All masks of the model for this receiver."""
        pairs = [Mask(self._pair_key(c), self.rank < c) for c in self.senders if c != self.rank]
        return [Mask(self.own_key, True), *pairs]

    def sealed(self) -> bytes:
        """Each other sender's shares, encrypted for it; the receiver relays them."""
        return b"".join(
            _cipher(self.keys, self.rank, c, group=self).encrypt(bytes(12), self._held_by(position), None)
            for position, c in enumerate(self.senders)
            if c != self.rank
        )

    def reveal(self, notice: Payload) -> bytes:
        """The shares that the receiver may learn; nothing where too few have arrived, or shares are wrong."""
        marks, shares = notice["arrived"].tolist(), content(notice["shares"])
        if len(marks) != len(self.senders):
            return b""
        arrived = [a for a, mark in zip(self.senders, marks, strict=True) if mark]
        size = sealed_bytes(len(self.senders))
        if self.rank not in arrived or len(arrived) < self.least or len(shares) != size * (len(arrived) - 1):
            return b""
        held, position = dict[int, bytes](), 0
        for a in arrived:
            if a == self.rank:
                held[a] = self._held_by(self.senders.index(a))
                continue
            try:
                cipher = _cipher(self.keys, a, self.rank, group=self)
                held[a] = cipher.decrypt(bytes(12), shares[position : position + size], None)
            except InvalidTag:
                return b""
            position += size
        pairs = revealed(self.senders, arrived)
        starts = [(a, self.senders.index(c) * SHARE_BYTES) for a, c in pairs]
        return b"".join(held[a][start : start + SHARE_BYTES] for a, start in starts)

    def _held_by(self, position: int) -> bytes:
        return b"".join(row[position] for row in self._shares)


@dataclass
class ReceiverGroup:
    """A receiver's view of its senders in a round."""

    senders: tuple[int, ...]
    """All senders of the group, ascending."""
    least: int
    sealed: Mapping[int, bytes]
    """The shares that arrived with each sender's model."""

    @property
    def arrived(self) -> list[int]:
        """The senders that have arrived, ascending; the others learn of them."""
        return sorted(self.sealed)

    def notice(self, sender: int) -> Payload:
        """Returns the arrived senders, and the shares that a sender holds; empty where too few arrived."""
        if len(self.arrived) < self.least or sender not in self.sealed:
            return payload_of(NOTICE, arrived=b"", shares=b"")
        size, parts = sealed_bytes(len(self.senders)), []
        for a in self.arrived:
            if a != sender:
                position = [c for c in self.senders if c != a].index(sender)
                parts.append(self.sealed[a][position * size : (position + 1) * size])
        marks = bytes(a in self.sealed for a in self.senders)
        return payload_of(NOTICE, arrived=marks, shares=b"".join(parts))

    def masks(self, reveals: Mapping[int, bytes]) -> list[Mask]:
        """The masks that undo those left in the sum of the models that arrived.

        `reveals`: by sender. Raises ValueError where too few have revealed shares, or shares do not fit.
        """
        pairs = revealed(self.senders, self.arrived)
        size = len(pairs) * SHARE_BYTES
        rows = {a: shares for a, shares in reveals.items() if a in self.sealed and len(shares) == size}
        if len(rows) < self.least:
            raise ValueError(f"{len(rows)} senders revealed their shares, but {self.least} are needed")
        columns = [
            {
                self.senders.index(a) + 1: row[i * SHARE_BYTES : (i + 1) * SHARE_BYTES]
                for a, row in rows.items()
            }
            for i in range(len(pairs))
        ]
        secrets = combine(columns, self.least)
        return [Mask(key, a > c) for (a, c), key in zip(pairs, secrets, strict=True)]


def revealed(senders: Sequence[int], arrived: Sequence[int]) -> list[tuple[int, int]]:
    """The secrets that a receiver may learn, in the order of their shares: b_a as (a, a), m_ac as (a, c)."""
    missing = [c for c in senders if c not in arrived]
    return [(a, c) for a in arrived for c in (a, *missing)]


def sealed_bytes(senders: int) -> int:
    """The size of the shares of one sender for one holder, encrypted."""
    return senders * SHARE_BYTES + _TAG_BYTES


def sealed_shares(incoming: Mapping[int, Payload], senders: Sequence[int]) -> dict[int, bytes]:
    """The shares of each sender whose message has as many of them as there are holders."""
    size = sealed_bytes(len(senders)) * (len(senders) - 1)
    shares_by_sender = {a: content(payload["shares"]) for a, payload in incoming.items()}
    return {a: shares for a, shares in sorted(shares_by_sender.items()) if len(shares) == size}


def _cipher(keys: PairKeys, owner: int, holder: int, group: SenderGroup) -> AESGCM:
    """Encrypts one message, so its nonce may be 0: the key is of this owner, holder, receiver and round."""
    other = holder if owner == group.rank else owner
    upward = int(owner < holder)
    return AESGCM(keys.key(group.rank, other, group.receiver, group.round, 0, 1 + upward))


def content(received: Tensor) -> bytes:
    """The bytes of a field."""
    return received.cpu().numpy().tobytes()


def payload_of(layout: Layout, **fields: bytes) -> Payload:
    """A payload of bytes."""
    filled = {
        name: torch.frombuffer(bytearray(content), dtype=torch.uint8) if content else torch.empty(0).byte()
        for name, content in fields.items()
    }
    return Payload.of(layout, filled)
