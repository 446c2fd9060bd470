"""Models in chunks whose origin the receiver does not learn."""

import os
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from torch import Tensor
from torch.nn.functional import pad

from decentnode.core.payload import Field, Form, Layout, NotFinite, Payload, PayloadError, as_bytes
from decentnode.core.registry import SHARINGS, name_of
from decentnode.core.rng import RandomSource, SecureSource, SeededSource
from decentnode.core.vector import is_finite
from decentnode.errors import BadInput, RunFailed
from decentnode.graph.base import View
from decentnode.graph.mixing import WeightedGraph
from decentnode.graph.relayed import Relayed
from decentnode.options import Positive
from decentnode.sharing.base import Exchange, Incoming, Promises, Requirements, Setup, Sharing
from decentnode.sharing.blocks.noise import Generator
from decentnode.transforms.chain import Chain

KEY_BYTES, TAG_BYTES, INDEX_BYTES = 32, 16, 4


@SHARINGS.register("shatter")
@dataclass(kw_only=True)
class Shatter(Sharing):
    """Sends chunks under identities of their own (Biswas et al., "Noiseless ...", arXiv 2404.09536, 2024).

    x_r[c] <- (x_r[c] + sum of the chunks c that arrived) / (1 + their number),   for each chunk c of 1..k

    A node splits its model into `chunks` parts and gives each a virtual node. In each round it deals them to
    its neighbors at random, `per_neighbor` to each, so that a chunk goes to degree per_neighbor / chunks of
    them, rounded up or down: a random graph of its own for each virtual node. A virtual node is a new key
    pair, and its chunk is encrypted for the receiver r. It travels by the relay g(r) of the graph `relayed`,
    which waits for all neighbors of r and sends their chunks, all of one size, in one message, in an order
    that only the relay knows. So address, socket, order, size and time tell r nothing of where a chunk comes
    from, but that its origin is a neighbor. The relay sees origins, but no chunk.

    With per_neighbor = chunks it is the plain mean with all neighbors' models (epidemic learning). Assumes
    that a relay does not collude with its receiver, and that public keys arrive unchanged. Does not protect
    from what a chunk itself tells. A lost relay leaves the own model; a lost neighbor's chunks are missing.
    State: none. Keys are new at each start.
    """

    requirements = Requirements(undirected_graph=True, float32=True)
    # A restarted process has lost its key.
    promises = Promises(
        allows_rejoin=False,
        protects=True,
        sends_one_payload=False,
        overlaps=True,
        phases=2,
        wire="2 deg per_neighbor (b d / chunks + 52), once to relays and once from there",
        about_mean="does not keep the mean: coordinates arrive in different numbers",
    )

    chunks: Positive
    per_neighbor: Positive = 1
    generator: Generator = "secure"
    _private: X25519PrivateKey = field(
        default_factory=lambda: X25519PrivateKey.from_private_bytes(os.urandom(32)),
        init=False, repr=False, compare=False,
    )  # fmt: skip

    def __post_init__(self) -> None:
        if self.per_neighbor > self.chunks:
            raise BadInput(f"per_neighbor must be at most chunks, got {self.per_neighbor} and {self.chunks}")

    @property
    def private_key(self) -> bytes:
        return self._private.private_bytes_raw()

    def check(self, graph: WeightedGraph) -> None:
        relayed = graph.graph
        if not isinstance(relayed, Relayed):
            raise BadInput(
                f"{name_of(self)} needs relays between neighbors; use graph: {{name: relayed, nodes: "
                f"{graph.num_nodes}, degree: ...}}"
            )
        if relayed.degree * self.per_neighbor < self.chunks:
            raise BadInput(
                f"{name_of(self)}: {relayed.degree} neighbors with {self.per_neighbor} chunks each are too "
                f"few for {self.chunks} chunks; use fewer, a larger degree, or a larger per_neighbor"
            )

    def check_chain(self, chain: Chain) -> None:
        if chain.stages:
            raise BadInput(f"{name_of(self)} sends chunks of plain models; leave the transforms out")

    def bind(self, setup: Setup) -> None:
        super().bind(setup)
        d, self._dtype = setup.chain.layout.fields[0].elements, setup.chain.dtype
        if d < self.chunks:
            raise BadInput(f"{name_of(self)}: a model of {d} values has no {self.chunks} chunks")
        self._size = -(-d // self.chunks)
        self._packet = KEY_BYTES + INDEX_BYTES + self._size * self._dtype.itemsize + TAG_BYTES
        degree = setup.num_nodes - 1
        if isinstance(setup.graph.graph, Relayed):
            self._graph = setup.graph.graph
            degree = self._graph.degree
        bundle = self.per_neighbor * self._packet
        first = Layout((Field("packets", torch.uint8, bundle),), Form.BYTES)
        second = Layout((Field("packets", torch.uint8, degree * bundle, variable=True),), Form.BYTES)
        self._layouts = first, second

    def handshake(self) -> bytes:
        return self._private.public_key().public_bytes_raw()

    def payload_layout(self, phase: int = 0) -> Layout | None:
        return self._layouts[phase]

    async def share(self, vector: Tensor, view: View, exchange: Exchange, out: Tensor) -> None:
        """Sends chunks to the relays of the neighbors, then what the node relays to its receiver."""
        source, relays = self._source(view), self._graph.relays(view.round)
        receiver = relays.index(view.rank)
        neighbors = self._graph.neighbors
        bundles = {relays[r]: bundle for r, bundle in self._bundles(vector, view, source).items()}
        relayed = [bundles.pop(view.rank)] if view.rank in bundles else []
        senders = [a for a in neighbors.targets(receiver, view.round) if a in view.sources]
        outgoing = {h: self._payload(0, [bundle]) for h, bundle in bundles.items() if h in view.targets}
        incoming = await exchange(outgoing, senders)
        relayed += [bytes(payload["packets"].cpu().numpy()) for payload in incoming.values()]
        packets = [packet for bundle in relayed for packet in self._split(bundle)]
        shuffled = self._shuffled(packets, source)
        targets = [receiver] if receiver in view.targets else []
        sources = [relays[view.rank]] if relays[view.rank] in view.sources else []
        passed = dict.fromkeys(targets, self._payload(1, shuffled))
        self.mix(vector, await exchange(passed, sources), view, out)

    def outgoing(self, vector: Tensor, view: View) -> Mapping[int, Payload]:
        raise NotImplementedError("shatter makes its payloads in share")

    def mix(self, vector: Tensor, incoming: Incoming, view: View, out: Tensor) -> None:
        """Averages what the relay has passed on, each coordinate with as many as arrived."""
        local = vector.cpu()
        total = self._chunks(local)
        number = torch.ones(self.chunks, dtype=vector.dtype)
        for relay, payload in incoming.items():
            for packet in self._split(bytes(payload["packets"].cpu().numpy())):
                try:
                    chunk, values = self._opened(packet, view)
                except PayloadError as error:
                    self.refuse(relay, view, error)
                    continue
                total[chunk] += values
                number[chunk] += 1
        mixed = total.div_(number.unsqueeze(1)).view(-1)[: local.numel()]
        if not is_finite(mixed):
            raise self.own_error(local, view)
        out.copy_(mixed)

    def _chunks(self, local: Tensor) -> Tensor:
        """A copy of the model in chunks of one size, the last one filled with zeros, shape (chunks, size)."""
        return pad(local, (0, self.chunks * self._size - local.numel())).view(self.chunks, self._size)

    def _source(self, view: View) -> RandomSource:
        if self.generator == "secure":
            return SecureSource()
        return SeededSource(self.setup.seed, view.round, view.rank, purpose=name_of(self))

    def _bundles(self, vector: Tensor, view: View, source: RandomSource) -> dict[int, bytes]:
        """Returns the chunks of this node for each neighbor, encrypted for it."""
        neighbors = self._graph.neighbors.targets(view.rank, view.round)
        parts = self._chunks(vector.cpu())
        dealt = deal(source, neighbors, self.chunks, each=self.per_neighbor)
        return {
            r: b"".join(self._sealed(chunk, parts[chunk], r, view=view, source=source) for chunk in dealt[r])
            for r in neighbors
            # A node without a key takes no part: a check before the start has a few nodes alone.
            if r in self.setup.handshakes
        }

    def _sealed(self, chunk: int, values: Tensor, receiver: int, view: View, source: RandomSource) -> bytes:
        """Seals one packet: a new public key, and the chunk under the key agreed on with the receiver's."""
        private = X25519PrivateKey.from_private_bytes(bytes(source.bytes(KEY_BYTES)))
        content = struct.pack("<I", chunk) + as_bytes(values).numpy().tobytes()
        try:
            cipher = _cipher(private, self.setup.handshakes[receiver], view.round)
        except ValueError as error:
            raise RunFailed(f"what rank {receiver} gave is no public key: {error}") from error
        return private.public_key().public_bytes_raw() + cipher.encrypt(bytes(12), content, None)

    def _opened(self, packet: bytes, view: View) -> tuple[int, Tensor]:
        """The chunk and its values; raises PayloadError."""
        try:
            cipher = _cipher(self._private, packet[:KEY_BYTES], view.round)
            content = cipher.decrypt(bytes(12), packet[KEY_BYTES:], None)
        except (InvalidTag, ValueError):
            raise PayloadError("a chunk that was not encrypted for this node and round") from None
        (chunk,) = struct.unpack("<I", content[:INDEX_BYTES])
        if chunk >= self.chunks:
            raise PayloadError(f"chunk {chunk} where there are {self.chunks}")
        values = torch.frombuffer(bytearray(content[INDEX_BYTES:]), dtype=self._dtype)
        if not is_finite(values):
            raise NotFinite("a chunk with an infinity or NaN")
        return chunk, values

    def _shuffled(self, packets: list[bytes], source: RandomSource) -> list[bytes]:
        return [packets[i] for i in _permutation(source, len(packets))]

    def _split(self, packets: bytes) -> Iterator[bytes]:
        return (packets[i : i + self._packet] for i in range(0, len(packets), self._packet))

    def _payload(self, phase: int, packets: Sequence[bytes]) -> Payload:
        joined = bytearray(b"".join(packets))
        filled = torch.frombuffer(joined, dtype=torch.uint8) if joined else torch.zeros(0, dtype=torch.uint8)
        return Payload.of(self._layouts[phase], {"packets": filled})


def use_key(shatter: Shatter, key: bytes) -> None:
    """Makes a scheme decrypt with this private key, to read again what a node has received."""
    shatter._private = X25519PrivateKey.from_private_bytes(key)


def deal(source: RandomSource, neighbors: Sequence[int], chunks: int, each: int) -> dict[int, list[int]]:
    """Deals so many chunks to each neighbor, none twice to one; all go to equally many, but for one."""
    order = _permutation(source, chunks)
    dealt, position = {}, 0
    for i in _permutation(source, len(neighbors)):
        dealt[neighbors[i]] = [order[(position + k) % chunks] for k in range(each)]
        position += each
    return dealt


def _permutation(source: RandomSource, count: int) -> list[int]:
    order: list[int] = torch.argsort(source.whole(count)).tolist()
    return order


def _cipher(private: X25519PrivateKey, public: bytes, round: int) -> AESGCM:
    """The key of two key pairs in one round; one of them is new, so that it encrypts one message alone."""
    secret = private.exchange(X25519PublicKey.from_public_bytes(public))
    return AESGCM(HKDF(SHA256(), 32, None, b"decentnode chunk" + struct.pack("<q", round)).derive(secret))
