"""The scheme: which signal a node sends, and how it mixes what it receives.

A scheme defines `outgoing` and `mix`. What it needs and what it promises are two values of its class, and
what it is given for a run is one value, its `setup`. It does no I/O, so it needs no network in tests.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal, NamedTuple, TypeVar

import torch
from torch import Tensor

from decentnode.core.payload import Layout, NotFinite, Payload, PayloadError
from decentnode.core.registry import name_of
from decentnode.core.state import Stateful
from decentnode.core.vector import AdjustGradient, ParameterLayout, describe_not_finite, is_finite
from decentnode.errors import BadInput, RunFailed
from decentnode.graph.base import Graph, View
from decentnode.graph.mixing import WeightedGraph, live_weights
from decentnode.sharing.blocks.weighted_sum import Terms, weighted_sum
from decentnode.transforms.base import Transform
from decentnode.transforms.chain import Chain

T = TypeVar("T")
Incoming = Mapping[int, Payload]
"""The payloads that arrived, by source rank. Sources that were late or lost are missing."""
Exchange = Callable[[Mapping[int, Payload], Sequence[int]], Awaitable[Incoming]]
"""Sends payloads by target rank; returns those of the named sources (one neighborhood collective)."""


@dataclass(frozen=True)
class Requirements:
    """The requirements of a scheme for being correct. A run without it is refused before the start."""

    static_graph: bool = False
    """A graph that is the same in every round."""
    for_changing_graphs: str = ""
    """The remedy in the refusal of another graph, such as `use copies: edge`."""
    undirected_graph: bool = False
    complete_graph: bool = False
    """A graph where every node is a neighbor of every other."""
    tree: bool = False
    server: bool = False
    """A graph with a server, and no other."""
    levels: bool = False
    """A graph of two levels, and no other."""
    co_senders: bool = False
    """A graph where a node knows all that its targets receive from, also when messages are lost."""
    plain_sgd: bool = False
    """Gradient steps: torch.optim.SGD without momentum and weight decay."""
    float32: bool = False
    """Models of at least this precision: bfloat16 would lose what it accumulates from round to round."""
    local_loss: bool = False
    """Samples of the node, on which it tests models (`Setup.local_loss`)."""


@dataclass(frozen=True)
class Promises:
    """The promises of a scheme: which chains and options fit it, and what its exchanges cost."""

    sends: Literal["models", "differences", "nothing"] = "models"
    """The kind of signal that the chain encodes; error feedback is correct for differences."""
    sends_one_payload: bool = True
    """Whether all neighbors receive one payload; false when each receives its own."""
    phases: int = 1
    """Exchanges in a round."""
    wire: str = "deg * C(d)"
    """Bytes that a node sends in a round; C(d) is the size of d encoded values, b that of one value."""
    keeps_mean: bool = False
    """Whether mixing keeps the mean of all models in every round, whatever transforms lose.

    It also needs columns of W that sum to 1, and does not hold in the round in which an edge is dropped: one
    end may have mixed (docs/reliability_lost_edges.md).
    """
    about_mean: str = ""
    """A text on what becomes of the mean of all models, where that depends on the chain."""
    overlaps: bool = False
    """Also correct if models are mixed as before the local steps, and the change of these steps is then added
    to the mix (`communication.overlap`)."""
    keeps_change: bool = True
    """Whether the change by local steps during the exchange stays in what was sent; otherwise the next model
    has none of it, so a model that is sent whole in each round would never learn."""
    lost_every: int = 1
    """Rounds from one such mix without that change to the next."""
    shows_models: bool = False
    """Whether what a neighbor decodes are models; some attacks use those of others."""
    limits_models: bool = False
    """Whether it limits what wrong models of neighbors do to the mix."""
    tolerates_loss: bool = True
    """Stays correct when a node is lost; otherwise the run stops then (failures.on_loss: auto)."""
    allows_rejoin: bool = True
    """A node that was lost and has no state may rejoin."""
    protects: bool = False
    """Protects models from peers: no part of a model is sent but in the scheme's payloads."""
    carries_errors: bool = False
    """Whether dropped values are part of the next payload; error feedback would count them twice."""
    by_coordinate: bool = False
    """Whether each coordinate of a mix depends on that coordinate of the models alone, so that shards of a
    model mix as the whole does."""
    takes_strength: bool = False
    """Whether its equations hold for (1 - a) I + a W in place of W, with an a that may change in each round
    (`sharing.mixing_strength`)."""
    takes_correction: bool = False
    """Whether error feedback also suits models: the next error cancels what one adds to their sum."""

    @property
    def mean(self) -> str:
        """Returns a text on what becomes of the mean of all models."""
        kept = "keeps the mean of all models, whatever transforms lose"
        return self.about_mean or (kept if self.keeps_mean else "does not keep the mean of all models")


@dataclass(frozen=True)
class Setup:
    """The values that a scheme is given on one node for a run."""

    layout: ParameterLayout
    """The parameters that a vector consists of."""
    chain: Chain
    """Encodes what it sends."""
    graph: WeightedGraph
    rank: int = 0
    samples: int = 1
    """The number of this node's training samples."""
    local_loss: Callable[[Tensor, int], float] | None = None
    """The loss of a model, shape (d,), on a minibatch of the node's samples in a round.

    None where the node has none, or where `Requirements.local_loss` does not ask for it.
    """
    watched: frozenset[int] = frozenset()
    """Ranks of adversaries, whose weight in each mix is recorded; for studies alone, no scheme may use it."""
    handshakes: Mapping[int, bytes] = field(default_factory=dict)
    """The handshakes of all nodes by rank, from `receive_handshakes` on; empty ones are left out."""

    @property
    def num_nodes(self) -> int:
        """The number of nodes of the run."""
        return self.graph.num_nodes

    @property
    def seed(self) -> int:
        """Keys its random choices, with their purpose, the round and the rank (`core.rng.generator`)."""
        return self.graph.seed


class Refusal(NamedTuple):
    """A payload that a scheme did not use."""

    rank: int
    error: PayloadError


class SharingBase(Stateful, ABC):
    """The base of schemes of both time models: `Sharing` in rounds, `AsyncSharing` between local steps."""

    requirements: Requirements = Requirements()
    """An instance may refine it in `__post_init__`, by its options."""
    promises: Promises = Promises()
    """An instance may refine it in `__post_init__`, by its options."""
    asynchronous: ClassVar[bool] = False
    """Whether it sends single messages between local steps (`time_model: asynchronous`), not in rounds."""

    setup: Setup
    """The values that it is given, from `bind` on."""
    refusals: list[Refusal]
    """Payloads that were not used; the node reports and clears them."""

    # What a plug-in may define.

    def first_transforms(self) -> tuple[Transform, ...]:
        """New instances of the scheme's own transforms; those of the configuration follow them."""
        return ()

    @classmethod
    def on_graph(cls, options: Mapping[str, Any], graph: Graph) -> Mapping[str, Any]:
        """Returns the options that a graph decides, where a configuration leaves them to it."""
        return {}

    def check(self, graph: WeightedGraph) -> None:
        """Raises BadInput when the scheme cannot work on that graph with those weights."""

    def check_chain(self, chain: Chain) -> None:
        """Raises BadInput when the scheme cannot work with that chain."""

    def preserves_mean(self, chain: Chain) -> bool:
        """Whether mixing keeps the mean of all models in every round, with that chain."""
        return self.promises.keeps_mean

    def bind(self, setup: Setup) -> None:
        """Receives what it is given for the run, once, after the checks and before `handshake`."""
        self.setup, self.refusals = setup, []

    def handshake(self) -> bytes:
        """Returns what all nodes need of this one before round 0, e.g. a public key; at most 64 bytes."""
        return b""

    def receive_handshakes(self, handshakes: Mapping[int, bytes]) -> None:
        """Receives, before `begin`, the handshakes by rank, its own included; empty ones are left out."""
        self.setup = replace(self.setup, handshakes=handshakes)

    def begin(self, vector: Tensor) -> None:
        """Receives, before round 0, the model that all nodes start from, shape (d,); copy it to keep it.

        A resumed node gets `load_state_dict` instead.
        """
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

    @property
    def private_key(self) -> bytes:
        """The private key with which it reads what it receives, for studies of what nodes learn; or empty."""
        return b""

    @property
    def watched_weight(self) -> float | None:
        """The weight that models of the `watched` ranks had in the last mix, together; None: unknown."""
        return None

    def on_peer_lost(self, rank: int) -> None:
        """Is called once, before the first round without that peer; schemes with state per peer drop it."""

    def on_peer_back(self, rank: int) -> None:
        """Is called once, before the first round in which that peer takes part again, with new state for it.

        If the process of the peer or of this node is restarted, `on_peer_lost` and this are called in turn.
        Both ends call them before the same round, although no payload was missed. After an unusable payload,
        this is called after the first usable one.
        """

    # What a plug-in uses.

    @property
    def chain(self) -> Chain:
        """The transforms that encode what it sends."""
        return self.setup.chain

    def encode(
        self,
        signal: Tensor,
        view: View,
        *,
        chain: Chain | None = None,
        phase: int = 0,
        in_basis: bool = False,
    ) -> dict[int, Payload]:
        """Encodes a signal, shape (d,), for each target; one payload for all where the chain allows it.

        Args:
            chain: in place of the scheme's.
            phase: the number of the exchange within the round.
            in_basis: the signal is in the chain's basis already.

        Raises:
            RunFailed: the signal is not finite, and there are transforms.
        """
        if not view.targets:
            return {}
        chain = chain or self.chain
        coefficients = signal if in_basis else chain.to_basis(signal)
        if not chain.per_receiver:
            payload = chain.encode_coefficients(coefficients, view.context(view.rank, phase=phase))
            return dict.fromkeys(view.targets, payload)
        contexts = {j: view.context(view.rank, j, phase=phase) for j in view.targets}
        return {j: chain.encode_coefficients(coefficients, contexts[j]) for j in view.targets}

    def decode(
        self, incoming: Incoming, view: View, *, fill: Tensor | None = None, chain: Chain | None = None,
        phase: int = 0, in_basis: bool = False,
    ) -> dict[int, Tensor]:  # fmt: skip
        """The signals that arrived, each of shape (d,), by source, ascending.

        They may be of lower precision than the model, and lie in the memory of the payloads, which is invalid
        after `mix`, and in the next exchange. What cannot be decoded is left out and recorded in `refusals`.

        Args:
            fill: what stands where nothing was sent, shape (d,); None: zeros.
            chain: in place of the scheme's.
            phase: the number of the exchange within the round.
            in_basis: return signals in the chain's basis, where `fill` is, too.
        """
        chain = chain or self.chain
        first = chain.basis if in_basis else 0
        if len(chain.transforms) == first:
            return self.decode_each(incoming, view, lambda _, payload: payload["vector"])
        return self.decode_each(
            incoming,
            view,
            lambda j, payload: chain.decode(
                payload, view.context(j, view.rank, fill=fill, phase=phase), first
            ),
        )

    def decode_each(self, incoming: Incoming, view: View, read: Callable[[int, Payload], T]) -> dict[int, T]:
        """Returns what `read(source, payload)` returns for each payload, by source, ascending.

        Where it raises PayloadError, the payload is left out and recorded in `refusals`.
        """
        decoded: dict[int, T] = {}
        for rank in sorted(incoming):
            try:
                decoded[rank] = read(rank, incoming[rank])
            except PayloadError as error:
                self.refuse(rank, view, error)
        return decoded

    def weighted_mix(
        self, signals: dict[int, Tensor], view: View, out: Tensor,
        terms: Callable[[Mapping[int, Tensor]], Terms] | None = None, origin: Tensor | None = None,
    ) -> None:  # fmt: skip
        """Writes the weighted sum of signals into `out`, shape (d,): out <- sum_j w_ij signal_j.

        The node's own signal gets the weight of those that did not arrive. A signal of a neighbor that is not
        finite is removed from `signals` and recorded in `refusals`; single signals are checked only if the
        sum is not finite.

        Args:
            signals: by rank, each of shape (d,), the node's own included.
            terms: in place of w_ij signal_j: given the signals that are left, returns pairs (weight, tensor).
            origin: is subtracted from each tensor before it is weighted, shape (d,).

        Raises:
            RunFailed: the node's own signal is not finite.
        """
        weighted = terms or (lambda usable: _terms(usable, view))
        while not weighted_sum(weighted(signals), out, origin):
            if not self.refuse_not_finite(signals, view):
                # All signals are finite: the sum of large numbers overflowed, so no neighbor is refused.
                return

    def refuse_not_finite(self, signals: dict[int, Tensor], view: View) -> bool:
        """Refuses, and removes, signals that are not finite; returns whether there are any.

        Raises RunFailed where the node's own one is among them.
        """
        found = [j for j, signal in signals.items() if not is_finite(signal)]
        if view.rank in found:
            raise self.own_error(signals[view.rank], view)
        for j in found:
            self.refuse(j, view, NotFinite(f"its {self.flaw_of(signals.pop(j))}"))
        return bool(found)

    def own_error(self, signal: Tensor, view: View) -> RunFailed:
        """Returns the error about a signal of this node that is not finite."""
        return RunFailed(f"rank {view.rank}, round {view.round + 1}: its own {self.flaw_of(signal)}")

    def refuse(self, rank: int, view: View, error: PayloadError) -> None:
        """Records that a payload is not used; raises RunFailed where the scheme tolerates no loss."""
        if not self.promises.tolerates_loss:
            raise RunFailed(
                f"rank {view.rank}, round {view.round + 1}: what rank {rank} sent makes no sense: {error} "
                f"({name_of(self)} tolerates no loss)"
            )
        self.refusals.append(Refusal(rank, error))
        print(f"round {view.round + 1}: discarded the payload of rank {rank}: {error}", flush=True)

    def flaw_of(self, signal: Tensor) -> str:
        """Returns what is not finite in a signal, and where."""
        is_model = signal.numel() == self.setup.layout.numel and not self.chain.basis
        found = describe_not_finite(signal, self.setup.layout if is_model else None)
        # Where all are finite, what became of it is not.
        return f"vector is not finite: {found}" if found else "vector is not finite"

    # What the node uses.

    @property
    def gives_model(self) -> bool:
        """Whether a neighbor that rejoins without a checkpoint receives this node's whole model.

        False where nodes cannot rejoin, or where a stage of the chain protects models from peers.
        """
        return self.promises.tolerates_loss and self.promises.allows_rejoin and not self.chain.protects

    def make_chain(
        self, transforms: Sequence[Transform], elements: int, dtype: torch.dtype = torch.float32,
        parameters: ParameterLayout | None = None,
    ) -> Chain:  # fmt: skip
        """The chain of the scheme's own transforms and these; raises BadInput where they do not fit."""
        of_models = self.promises.sends == "models" and not self.promises.carries_errors
        stages = (*self.first_transforms(), *transforms)
        chain = Chain(stages, elements, dtype, parameters=parameters, of_models=of_models)
        if chain.follows_mixing and (self.asynchronous or not of_models):
            name = next(name_of(stage) for stage in stages if stage.follows_mixing)
            reason = "has no rounds" if self.asynchronous else "sends something else"
            raise BadInput(
                f"{name}: by training and by round count from the mix of models in each round; "
                f"{name_of(self)} {reason}; use by: change"
            )
        self.check_chain(chain)
        return chain

    def state_dict(self) -> dict[str, Any]:
        """Returns all that a resumed node needs in addition to the vector."""
        return {"chain": self.chain.state_dict(), **super().state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continues from `state_dict()`."""
        self.chain.load_state_dict(state["chain"])
        super().load_state_dict(state)


def _terms(signals: Mapping[int, Tensor], view: View) -> Terms:
    weights = live_weights(view.weights, view.rank, signals)
    return ((weight, signals[j]) for j, weight in weights.items())


class Sharing(SharingBase):
    """A scheme that exchanges in rounds, as all neighbors do at the same time."""

    @abstractmethod
    def outgoing(self, vector: Tensor, view: View) -> Mapping[int, Payload]:
        """The payload for each target, encoded; one object for several targets is serialized once."""

    @abstractmethod
    def mix(self, vector: Tensor, incoming: Incoming, view: View, out: Tensor) -> None:
        """Writes the new model to all of `out`; peers may still read `vector`, shape (d,)."""

    @property
    def schemes(self) -> "tuple[Sharing, ...]":
        """The scheme of each level, the innermost first; itself where there is one level."""
        return (self,)

    @property
    def only_averages(self) -> bool:
        """Whether the mix of models that are sent whole is their weighted average, and nothing else."""
        return False

    async def share(self, vector: Tensor, view: View, exchange: Exchange, out: Tensor) -> None:
        """Makes one round of communication; schemes with several exchanges in a round override this."""
        incoming = await exchange(self.outgoing(vector, view), view.sources)
        self.mix(vector, incoming, view, out)

    def adjust_change(self, change: Tensor, view: View) -> None:
        """Changes in place what local steps during the exchange have changed, shape (d,).

        That is added to the mix next, if the mix was accepted (`communication.overlap`).
        """

    def accept(self, vector: Tensor, view: View, mixed: Tensor) -> None:
        """Is called when the mix of `vector` becomes the model, both shape (d,): change state here.

        Not called when the mix is discarded, because a peer invalidated what was read for it.
        """
        self.chain.mixed(vector, mixed)
