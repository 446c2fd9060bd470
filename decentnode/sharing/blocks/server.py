"""Rounds with a server: clients send what they learned up, and the server sends its model down."""

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor

from decentnode.core.payload import Layout, NotFinite, Payload, dense_layout
from decentnode.core.vector import is_finite
from decentnode.errors import RunFailed
from decentnode.graph.base import View
from decentnode.sharing.base import Exchange, Incoming, Promises, Requirements, Setup, Sharing
from decentnode.sharing.blocks.weighted_sum import Terms


@dataclass
class ServerSharing(Sharing):
    """Two exchanges in a round: C(u_i) from the clients up, then the server's model x down.

    u = sum_i p_i C(u_i),   x <- x + what the scheme makes of u

    p_i is proportional to the samples of i, or equal, over the u_i that arrived. A node without samples has
    no u_i. A server with samples has one, in every round. State: x, d floats, on all nodes.

    All servers do the same, and all nodes take the payload of the first in the order of the graph. A server
    that was lost, or has missed a round, stands behind the others from then on.
    """

    requirements = Requirements(server=True, float32=True)
    promises = Promises(
        sends="differences",
        phases=2,
        wire="C(d) up, b d down to each client",
    )
    decodes_own: ClassVar[bool] = False
    """Whether clients need u_i as servers decode it."""
    state: ClassVar[tuple[str, ...]] = ("_model", "_round", "_lost")

    average: Literal["samples", "equal"] = "samples"
    """The weights of the clients: by their samples, or the same for all that have any."""

    _samples: dict[int, int] = field(default_factory=dict, init=False, repr=False)
    _round: int = field(default=-1, init=False, repr=False)
    """The last round in which the node took part."""
    _lost: list[int] = field(default_factory=list, init=False, repr=False)
    """Ranks that were lost, or have missed a round, once."""

    def handshake(self) -> bytes:
        return self.setup.samples.to_bytes(8, "little")

    def receive_handshakes(self, handshakes: Mapping[int, bytes]) -> None:
        super().receive_handshakes(handshakes)
        self._samples = {rank: int.from_bytes(number, "little") for rank, number in handshakes.items()}

    def bind(self, setup: Setup) -> None:
        super().bind(setup)
        self._elements = setup.chain.layouts[0].fields[0].elements
        self._taken: Tensor | None = None
        self._update: Tensor | None = None

    def begin(self, vector: Tensor) -> None:
        super().begin(torch.zeros_like(vector))
        self._model = vector.clone()

    def payload_layout(self, phase: int = 0) -> Layout | None:
        if phase == 0:
            return self.chain.layout
        signal = self.chain.layouts[0].fields[0]
        return dense_layout(signal.elements, signal.dtype)

    @abstractmethod
    def signal(self, vector: Tensor, view: View) -> Tensor:
        """Returns u_i of this node, shape (d,)."""

    @abstractmethod
    def step(self, u: Tensor, parts: Mapping[int, Tensor], view: View) -> None:
        """The server's step, given u = sum_i p_i u_i and the u_i; changes `_model` in place."""

    def outgoing(self, vector: Tensor, view: View) -> Mapping[int, Payload]:
        """Returns what this node sends up, to all servers."""
        serves, up = view.rank in view.servers, tuple(j for j in view.targets if j in view.servers)
        self._update = self.signal(vector, view) if (serves or up) and self._samples[view.rank] else None
        if self._update is None or not up:
            return {}
        sent = self.encode(self._update, replace(view, targets=up))
        if serves or self.decodes_own:
            # As the other servers decode it: all must add up the same.
            context = view.context(view.rank, up[0] if self.chain.per_receiver else None)
            self._update = self.chain.decode(sent[up[0]].to(vector.device), context)
        packed = {id(payload): self._packed(payload) for payload in sent.values()}
        return {j: packed[id(payload)] for j, payload in sent.items()}

    def mix(self, vector: Tensor, incoming: Incoming, view: View, out: Tensor) -> None:
        """Adds up what arrived and the own part, makes the server's step, and writes its model to `out`."""
        parts = self.decode_each(
            incoming,
            view,
            lambda j, payload: self.chain.decode(self._unpacked(j, payload), view.context(j, view.rank)),
        )
        if self._update is not None:
            parts[view.rank] = self._update
        parts = dict(sorted(parts.items()))

        def terms(usable: Mapping[int, Tensor]) -> Terms:
            # With a term that is zero, because nothing may have arrived.
            return [(0.0, vector), *self.weighted({j: parts[j] for j in parts if j in usable})]

        signals = {view.rank: vector, **parts}
        self.weighted_mix(signals, view, out, terms=terms)
        if finite := {j: part for j, part in parts.items() if j in signals}:
            self.step(out, finite, view)
        out.copy_(self._x)

    async def share(self, vector: Tensor, view: View, exchange: Exchange, out: Tensor) -> None:
        """Clients send up, and the server's model comes down."""
        await self.up(vector, view, exchange, out=out)
        await self.down(view, exchange, out)

    async def up(self, vector: Tensor, view: View, exchange: Exchange, out: Tensor) -> None:
        """The first exchange; `out` gets a server's new model, and a client's own."""
        if view.round != self._round + 1:
            # This node was absent: its model is that of an earlier round, or of another node.
            self.on_peer_lost(view.rank)
        self._round = view.round
        serves = view.rank in view.servers
        sent = self.outgoing(vector, view)
        incoming = await exchange(sent, [j for j in view.sources if serves and self._samples[j]])
        out.copy_(vector)
        if serves:
            self.mix(vector, incoming, view, out)

    async def down(self, view: View, exchange: Exchange, out: Tensor) -> None:
        """The second exchange; where a server's model arrives, it replaces `out`."""
        serves = view.rank in view.servers
        down = dict.fromkeys(view.targets, self._down(view)) if serves else {}
        givers = [j for j in view.sources if j in view.servers]
        incoming = await exchange(down, givers)
        if givers or serves:
            self._follow(incoming, view)
        if self._taken is not None:
            out.copy_(self._taken[: len(out)])

    def adopt(self, model: Tensor) -> None:
        """Replaces a server's model between its two exchanges."""
        self._x.copy_(model)

    def accept(self, vector: Tensor, view: View, mixed: Tensor) -> None:
        if self._taken is not None:
            self._model, self._taken = self._taken, None

    def on_peer_lost(self, rank: int) -> None:
        if rank not in self._lost:
            self._lost.append(rank)

    def weighted(self, parts: Mapping[int, Tensor]) -> Terms:
        """The parts of these nodes with their weights p_i."""
        shares = {j: self._samples[j] if self.average == "samples" else 1 for j in parts}
        total = sum(shares.values())
        return [(share / total, parts[j]) for j, share in shares.items()]

    def in_order(self, servers: Sequence[int]) -> list[int]:
        """Sorts the servers, those that were never lost first."""
        return sorted(servers, key=self._lost.__contains__)

    def has_samples(self, rank: int) -> bool:
        """Whether a node trains."""
        return self._samples[rank] > 0

    @property
    def _x(self) -> Tensor:
        """The server's model, as this node has it."""
        return self._model[: self._elements]

    def _packed(self, payload: Payload) -> Payload:
        """Returns what is sent up, given C(u_i)."""
        return payload

    def _unpacked(self, j: int, payload: Payload) -> Payload:
        """The inverse of `_packed`; raises PayloadError."""
        return payload

    def _down(self, view: View) -> Payload:
        """Returns what a server sends down."""
        return Payload.dense(self._model)

    def _follow(self, incoming: Incoming, view: View) -> None:
        """Takes the model of the first server that has one; raises RunFailed if none is left."""
        for server in self.in_order(view.servers):
            if server == view.rank:
                self._stay(view)
                return
            its_payload = {j: payload for j, payload in incoming.items() if j == server}
            model = self.decode_each(its_payload, view, self._received(view)).get(server)
            if model is not None and is_finite(model):
                self._taken = model
                return
            if model is not None:
                self.refuse(server, view, NotFinite("its model is not finite"))
        ranks = " and ".join(map(str, view.servers))
        servers = "the server, rank" if len(view.servers) == 1 else "all servers, ranks"
        hint = "; graph.standby names a rank that would replace it" if len(view.servers) == 1 else ""
        raise RunFailed(f"rank {view.rank}, round {view.round + 1}: lost {servers} {ranks}{hint}")

    def _received(self, view: View) -> Callable[[int, Payload], Tensor]:
        """Reads what a server sent down; the result is new memory."""
        return lambda server, payload: payload["vector"].clone()

    def _stay(self, view: View) -> None:
        """Is called in a server that follows no other."""
