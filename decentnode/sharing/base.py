"""The scheme: which signal a node sends, and how it mixes what it receives."""

import math
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, ClassVar, Literal, NamedTuple, TypeVar

import torch
from torch import Tensor

from decentnode.core.payload import Layout, NotFinite, Payload, PayloadError
from decentnode.core.registry import name_of, refuse_old_hooks
from decentnode.core.state import Stateful
from decentnode.core.vector import AdjustGradient, ParameterLayout
from decentnode.errors import BadInput, RunFailed
from decentnode.graph.base import View
from decentnode.graph.mixing import WeightedGraph
from decentnode.sharing.blocks.weighted_sum import Terms, is_finite, weighted_sum
from decentnode.transforms.base import Context, Transform
from decentnode.transforms.chain import Chain

T = TypeVar("T")
Incoming = Mapping[int, Payload]
"""The payloads that arrived, by source rank. Sources that were late or lost are missing."""
Exchange = Callable[[Mapping[int, Payload], Sequence[int]], Awaitable[Incoming]]
"""Sends payloads by target rank; returns those of the named sources (one neighborhood collective)."""


class Refusal(NamedTuple):
    """A payload that a scheme did not use."""

    rank: int
    error: PayloadError


class SharingBase(Stateful, ABC):
    """What schemes of both time models declare and have, without I/O, so that they need no network in tests.

    Class variables declare what it needs. A combination that cannot work is refused before the start.
    """

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        refuse_old_hooks(cls, {"introduction": "handshake", "meet": "receive_handshakes"})

    asynchronous: ClassVar[bool] = False
    """Whether it sends single messages between local steps (`time_model: asynchronous`), not in rounds."""

    needs_static_graph: ClassVar[bool] = False
    """Correct only on a graph that is the same in every round."""
    when_changing: ClassVar[str] = ""
    """What its refusal of another graph recommends."""
    needs_undirected_graph: ClassVar[bool] = False
    """Correct only on an undirected graph."""
    needs_complete_graph: ClassVar[bool] = False
    """Correct only where every node is a neighbor of every other."""
    needs_tree: ClassVar[bool] = False
    """Correct only on a tree."""
    needs_server: ClassVar[bool] = False
    """For graphs with a server, and for no other."""
    needs_co_senders: ClassVar[bool] = False
    """Correct only where a node knows all that its targets receive from, also when messages are lost."""
    needs_levels: ClassVar[bool] = False
    """For graphs of two levels, and for no other."""
    needs_plain_sgd: ClassVar[bool] = False
    """Its equations assume gradient steps: torch.optim.SGD without momentum and weight decay."""
    needs_float32: ClassVar[bool] = False
    """Models of lower precision (bfloat16) would lose what it accumulates from round to round."""
    tolerates_loss: ClassVar[bool] = True
    """Stays correct when a node is lost; otherwise the run stops then (failures.on_loss: auto)."""
    takes_back: ClassVar[bool] = True
    """A node that was lost and has no state may rejoin."""
    protects: ClassVar[bool] = False
    """Protects models from peers: no part of a model is sent beside the scheme's payloads."""
    mean: ClassVar[str] = "keeps the mean of all models, whatever transforms lose"
    """What `preserves_mean` promises, as text. It also needs columns of W that sum to 1, and does not hold in
    the round in which an edge is dropped: one end may have mixed (docs/reliability.md, "What a lost edge
    costs")."""
    carries_errors: ClassVar[bool] = False
    """What the chain drops is part of the next payload; error feedback would count it twice."""
    sends_one_payload: ClassVar[bool] = True
    """One payload for all neighbors; false when each neighbor receives its own."""
    sends: ClassVar[Literal["models", "differences", "nothing"]] = "models"
    """What the chain encodes; error feedback is correct for differences."""
    takes_correction: ClassVar[bool] = False
    """Error feedback is correct for models, too: the next error cancels what one adds to their sum."""
    overlaps: ClassVar[bool] = False
    """Also correct if models are mixed as before the local steps, and the change of these steps is then added
    to the mix (`communication.overlap`)."""
    phases: ClassVar[int] = 1
    """Exchanges in a round."""
    needs_local_loss: ClassVar[bool] = False
    """It tests models on samples of the node (`local_loss`)."""
    wire: ClassVar[str] = "deg * C(d)"
    """Bytes that a node sends in a round; C(d) is the size of d encoded values, b that of one value."""

    layout: ParameterLayout
    num_nodes: int
    chain: Chain
    seed: int
    samples: int = 1
    """The number of this node's training samples, set before `handshake`."""
    refusals: list[Refusal]
    """Payloads that were not used; the node reports and clears them."""
    watched: frozenset[int] = frozenset()
    """Ranks of adversaries, whose weight in each mix is recorded; for studies alone, no scheme may use it."""
    watched_weight: float | None = None
    """The weight that the models of the `watched` ranks had in the last mix, together; None: unknown."""
    own_key: bytes = b""
    """The private key with which it reads what it receives, for studies of what nodes learn; empty: none."""
    local_loss: Callable[[Tensor, int], float] | None = None
    """The loss of a model, shape (d,), on a minibatch of the node's samples in a round; None: no samples."""

    @property
    def gives_model(self) -> bool:
        """Whether a neighbor that rejoins without a checkpoint receives this node's whole model.

        False where nodes cannot rejoin, or where a stage of the chain protects models from peers.
        """
        return self.tolerates_loss and self.takes_back and not self.chain.protects

    def first_transforms(self) -> tuple[Transform, ...]:
        """New instances of the scheme's own transforms; those of the configuration follow them."""
        return ()

    def check(self, graph: WeightedGraph) -> None:
        """Raises BadInput when the scheme cannot work on that graph with those weights."""

    def check_chain(self, chain: Chain) -> None:
        """Raises BadInput when the scheme cannot work with that chain."""

    def preserves_mean(self, chain: Chain) -> bool:
        """Whether mixing keeps the mean of all models in every round, with that chain."""
        return True

    def make_chain(
        self, transforms: Sequence[Transform], elements: int, dtype: torch.dtype = torch.float32,
        parameters: ParameterLayout | None = None,
    ) -> Chain:  # fmt: skip
        """The chain of the scheme's own transforms and these; raises BadInput where they do not fit."""
        of_models = self.sends == "models" and not self.carries_errors
        stages = (*self.first_transforms(), *transforms)
        chain = Chain(stages, elements, dtype, parameters, of_models=of_models)
        if chain.follows_mixing and (self.asynchronous or not of_models):
            name = next(name_of(stage) for stage in stages if stage.follows_mixing)
            what = "has no rounds" if self.asynchronous else "sends something else"
            raise BadInput(
                f"{name}: by training and by round count from the mix of models in each round; "
                f"{name_of(self)} {what}; use by: change"
            )
        self.check_chain(chain)
        return chain

    def bind(self, layout: ParameterLayout, num_nodes: int, chain: Chain, seed: int) -> None:
        """Receives the model's layout, the number of nodes, the chain and the seed, once, before round 0."""
        self.layout, self.num_nodes, self.chain, self.seed = layout, num_nodes, chain, seed
        self.refusals = []

    def fit(self, graph: WeightedGraph) -> None:
        """Receives the graph once, after `bind`, to compute what follows from all of W."""

    def handshake(self) -> bytes:
        """What all nodes must know of this one before round 0, such as a public key; at most 64 bytes."""
        return b""

    def receive_handshakes(self, handshakes: Mapping[int, bytes]) -> None:
        """Receives, before `begin`, the handshakes by rank, its own included; empty ones are left out."""

    def begin(self, vector: Tensor) -> None:
        """Receives, before round 0, the model that all nodes start from, shape (d,); copy it to keep it."""
        self.chain.begin(vector)

    def payload_layout(self, phase: int = 0) -> Layout | None:
        """The layout of the payload of exchange number `phase` in a round; None when it never sends."""
        return self.chain.layout

    @property
    def adjust_gradient(self) -> AdjustGradient | None:
        """Changes the flat gradient inside a local step; None: the scheme does not."""
        return None

    @property
    def reach(self) -> float:
        """The largest difference of two neighbors' models that it can handle, in any coordinate."""
        return math.inf

    def on_peer_lost(self, rank: int) -> None:
        """Called once, before the first round without that peer; schemes with state per peer drop it."""

    def on_peer_back(self, rank: int) -> None:
        """Called once, before the first round in which that peer takes part again, with new state per peer.

        If the process of the peer or of this node is restarted, `on_peer_lost` and this are called in turn.
        Both ends call them before the same round, although no payload was missed. After an unusable payload,
        this is called after the first usable one.
        """

    def state_dict(self) -> dict[str, Any]:
        """All that a resumed node needs beside the vector."""
        return {"chain": self.chain.state_dict(), **super().state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continues from `state_dict()`."""
        self.chain.load_state_dict(state["chain"])
        super().load_state_dict(state)

    def _encoded(
        self, signal: Tensor, view: View, chain: Chain | None = None, phase: int = 0, in_basis: bool = False
    ) -> dict[int, Payload]:
        """Encodes a signal for each target; the payload is the same for all where the chain allows it.

        `in_basis`: the signal is in the chain's basis already.
        """
        if not view.targets:
            return {}
        chain = chain or self.chain
        coefficients = signal if in_basis else chain.to_basis(signal)
        context = Context(self.seed, view.round, view.rank, phase=phase)
        if not chain.per_receiver:
            return dict.fromkeys(view.targets, chain.encode_coefficients(coefficients, context))
        contexts = {j: Context(self.seed, view.round, view.rank, j, phase=phase) for j in view.targets}
        return {j: chain.encode_coefficients(coefficients, contexts[j]) for j in view.targets}

    def _decoded(
        self, incoming: Incoming, view: View, chain: Chain | None = None, phase: int = 0
    ) -> dict[int, Tensor]:
        """The signals that arrived, ascending by rank, with zeros for what was not sent.

        They may be of lower precision than the model.
        """
        decode = (chain or self.chain).decode
        return self._read(
            incoming, view, lambda j, p: decode(p, Context(self.seed, view.round, j, view.rank, phase=phase))
        )

    def _read(self, incoming: Incoming, view: View, read: Callable[[int, Payload], T]) -> dict[int, T]:
        """What `read` finds in each payload, given its source, ascending by rank.

        A payload for which it raises PayloadError is left out and recorded in `refusals`. With a scheme that
        tolerates no loss it ends the run.
        """
        found: dict[int, T] = {}
        for rank in sorted(incoming):
            try:
                found[rank] = read(rank, incoming[rank])
            except PayloadError as error:
                self._refused(rank, view, error)
        return found

    def _mix_finite(
        self, heard: dict[int, Tensor], own: Tensor, terms: Callable[[Mapping[int, Tensor]], Terms],
        view: View, out: Tensor, origin: Tensor | None = None,
    ) -> None:  # fmt: skip
        """Writes the weighted sum of `terms(heard)` into `out`; removes what is not finite from `heard`.

        `origin` is that of `weighted_sum`. Single signals are checked only if the sum is not finite. Raises
        RunFailed if the own signal is not finite.
        """
        while not weighted_sum(terms(heard), out, origin):
            if not is_finite(own):
                raise RunFailed(f"rank {view.rank}, round {view.round + 1}: its own {self._flaw_of(own)}")
            unsound = [j for j, signal in heard.items() if j != view.rank and not is_finite(signal)]
            for j in unsound:
                self._refused(j, view, NotFinite(f"its {self._flaw_of(heard.pop(j))}"))
            if not unsound:
                # All signals are finite: the sum of large numbers overflowed, so no neighbor is refused.
                return

    def _flaw_of(self, signal: Tensor) -> str:
        """What is not finite in a signal, and where."""
        index = int((~signal.isfinite()).nonzero()[0])
        plain = signal.numel() == self.layout.numel and not self.chain.basis
        where = self.layout.name_at(index) if plain else f"element {index}"
        return f"vector is not finite: {float(signal[index])} in {where}"

    def _refused(self, rank: int, view: View, error: PayloadError) -> None:
        if not self.tolerates_loss:
            raise RunFailed(
                f"rank {view.rank}, round {view.round + 1}: what rank {rank} sent makes no sense: {error} "
                f"({name_of(self)} tolerates no loss)"
            )
        self.refusals.append(Refusal(rank, error))
        print(f"round {view.round + 1}: discarded the payload of rank {rank}: {error}", flush=True)


class Sharing(SharingBase):
    """A scheme that exchanges in rounds, as all neighbors do at the same time."""

    @abstractmethod
    def outgoing(self, vector: Tensor, view: View) -> Mapping[int, Payload]:
        """The payload for each target, encoded; one object for several targets is serialized once."""

    @abstractmethod
    def mix(self, vector: Tensor, incoming: Incoming, view: View, out: Tensor) -> None:
        """Writes the new model to all of `out`; peers may still read `vector`, shape (d,)."""

    async def share(self, vector: Tensor, view: View, exchange: Exchange, out: Tensor) -> None:
        """One round of communication; schemes with several exchanges in a round override this."""
        incoming = await exchange(self.outgoing(vector, view), view.sources)
        self.mix(vector, incoming, view, out)

    def accept(self, vector: Tensor, view: View, mixed: Tensor) -> None:
        """Called when the mix of `vector` becomes the model, both shape (d,): change state here.

        Not called when the mix is discarded, because a peer invalidated what was read for it.
        """
        self.chain.mixed(vector, mixed)
