"""The scheme: which signal is sent, and how what arrives is mixed in."""

import math
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from decentnode.core.payload import Layout, NotFinite, Payload, PayloadError
from decentnode.core.registry import name_of
from decentnode.core.state import Stateful
from decentnode.core.vector import ParameterLayout
from decentnode.errors import RunFailed
from decentnode.graph.base import View
from decentnode.graph.mixing import WeightedGraph
from decentnode.sharing.blocks.weighted_sum import Terms, is_finite, weighted_sum
from decentnode.transforms.base import Context, Transform
from decentnode.transforms.chain import Chain

Incoming = Mapping[int, Payload]
"""What arrived: payloads by source rank. Sources that were late or lost are simply not there."""
Exchange = Callable[[Mapping[int, Payload], Sequence[int]], Awaitable[Incoming]]
"""Sends payloads by target rank and gives what came from the named sources (one neighborhood collective)."""
AdjustGradient = Callable[[Tensor, Tensor, int], None]
"""Changes the flat gradient in place, given (gradient, vector, step of the round)."""


class Refusal(NamedTuple):
    """A payload that a scheme did not use."""

    rank: int
    error: PayloadError


class Sharing(Stateful, ABC):
    """One scheme on one node. It does no I/O of its own and is tested without a network.

    The capabilities say what it needs, so that a combination that cannot work is refused before the start.
    """

    needs_static_graph: ClassVar[bool] = False
    needs_undirected_graph: ClassVar[bool] = False
    needs_complete_graph: ClassVar[bool] = False
    needs_tree: ClassVar[bool] = False
    needs_plain_sgd: ClassVar[bool] = False
    """The equations are those of gradient steps: torch.optim.SGD without momentum and weight decay."""
    needs_float32: ClassVar[bool] = False
    """What it adds up from round to round would be lost in models of lower precision, such as bfloat16."""
    tolerates_loss: ClassVar[bool] = True
    """Stays right when a node is lost; otherwise the run stops then (failures.on_loss: auto)."""
    takes_back: ClassVar[bool] = True
    """A node that was lost, and has forgotten what it knew, may take part again."""
    protects: ClassVar[bool] = False
    """Is there so that peers learn less of the models: nothing of one travels beside what it sends."""
    mean: ClassVar[str] = "keeps the mean of all models, whatever transforms lose"
    """What `preserves_mean` says, in words; all that where the columns of W sum to 1, too. Not in the round
    in which an edge is given up: one end may have mixed (docs/reliability.md, "What a lost edge costs")."""
    carries_errors: ClassVar[bool] = False
    """What the chain drops stays in what is sent next; error feedback would count it twice."""
    sends_one_payload: ClassVar[bool] = True
    """One payload for all neighbors; false when each neighbor gets its own."""
    sends: ClassVar[Literal["models", "differences", "nothing"]] = "models"
    """What the chain encodes: error feedback is right for differences."""
    takes_correction: ClassVar[bool] = False
    """Error feedback is right for models, too: what one error adds to their sum, the next takes away."""
    overlaps: ClassVar[bool] = False
    """Right, too, where models are mixed as they are at the start of a round, and what the local steps have
    changed meanwhile is added to the mix (`communication.overlap`)."""
    phases: ClassVar[int] = 1
    """Exchanges in a round."""
    wire: ClassVar[str] = "deg * C(d)"
    """Bytes sent by a node in a round, C(d) being what the chain makes of d values of b bytes each."""

    layout: ParameterLayout
    num_nodes: int
    chain: Chain
    seed: int
    refusals: list[Refusal]
    """The payloads that were not used, until somebody takes them away."""

    @property
    def gives_model(self) -> bool:
        """Whether a neighbor that comes back without a checkpoint gets this node's whole model as it is.

        Not where nobody comes back, nor where peers see models only through a stage that protects them.
        """
        return self.tolerates_loss and self.takes_back and not self.chain.protects

    def first_transforms(self) -> tuple[Transform, ...]:
        """Transforms that belong to the scheme, fresh ones; those of the configuration follow them."""
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
        """The scheme's own transforms and those of the configuration; BadInput when it cannot work so."""
        of_models = self.sends == "models" and not self.carries_errors
        stages = (*self.first_transforms(), *transforms)
        chain = Chain(stages, elements, dtype, parameters, of_models=of_models)
        self.check_chain(chain)
        return chain

    def bind(self, layout: ParameterLayout, num_nodes: int, chain: Chain, seed: int) -> None:
        """Learns the model's layout, the number of nodes and the run's seed, once, before round 0."""
        self.layout, self.num_nodes, self.chain, self.seed = layout, num_nodes, chain, seed
        self.refusals = []

    def introduction(self) -> bytes:
        """What the others must know of this node before round 0, such as a public key: at most 64 bytes."""
        return b""

    def meet(self, introductions: Mapping[int, bytes]) -> None:
        """Learns, before `begin`, the introductions of all ranks that gave one, this one included."""

    def begin(self, vector: Tensor) -> None:
        """Sees, before round 0, the model that all nodes start from, shape (d,); to be copied if kept."""
        self.chain.begin(vector)

    @abstractmethod
    def payload_layout(self, phase: int = 0) -> Layout | None:
        """What this scheme sends in exchange number `phase` of a round; None when it never sends."""

    @abstractmethod
    def outgoing(self, vector: Tensor, view: View) -> Mapping[int, Payload]:
        """The payload for each target, encoded; one object for several targets is serialized once."""

    @abstractmethod
    def mix(self, vector: Tensor, incoming: Incoming, view: View, out: Tensor) -> None:
        """Writes the new model into `out`, all of it; `vector` (shape (d,)) may still be read by peers."""

    async def share(self, vector: Tensor, view: View, exchange: Exchange, out: Tensor) -> None:
        """One round of communication; schemes with several exchanges in a round override this."""
        incoming = await exchange(self.outgoing(vector, view), view.sources)
        self.mix(vector, incoming, view, out)

    def accept(self, vector: Tensor, view: View, mixed: Tensor) -> None:
        """Learns of a round from what its mix has made of `vector`, both shape (d,).

        Not called where the mix is thrown away, because a peer wrote again what was read for it.
        """

    @property
    def adjust_gradient(self) -> AdjustGradient | None:
        """What this scheme does to the flat gradient inside a local step; None: nothing."""
        return None

    @property
    def reach(self) -> float:
        """How far apart the models of two neighbors may be at most, in any coordinate."""
        return math.inf

    def on_peer_lost(self, rank: int) -> None:
        """Called once, before the first round without that peer; schemes with state per peer drop it."""

    def on_peer_back(self, rank: int) -> None:
        """Called once, before the first round with that peer again; state per peer begins anew.

        Where another process has taken that peer's place, or this node's, both are called, one after the
        other, although no payload was missed: at both ends before the same round.
        After a payload that could not be used (the edge was never given up): after the first that could.
        """

    def state_dict(self) -> dict[str, Any]:
        """Everything that a resumed node needs beside the vector."""
        return {"chain": self.chain.state_dict(), **super().state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continues from `state_dict()`."""
        self.chain.load_state_dict(state["chain"])
        super().load_state_dict(state)

    def _encoded(
        self, signal: Tensor, view: View, chain: Chain | None = None, phase: int = 0
    ) -> dict[int, Payload]:
        """A signal through the chain for each target; the same payload for all where the chain allows it."""
        chain = chain or self.chain
        return self._encoded_coefficients(chain.to_basis(signal), view, chain, phase)

    def _encoded_coefficients(
        self, coefficients: Tensor, view: View, chain: Chain, phase: int = 0
    ) -> dict[int, Payload]:
        """`_encoded` for a signal that is in the chain's basis already."""
        if not view.targets:
            return {}
        context = Context(self.seed, view.round, view.rank, phase=phase)
        if not chain.per_receiver:
            return dict.fromkeys(view.targets, chain.encode_coefficients(coefficients, context))
        contexts = {j: Context(self.seed, view.round, view.rank, j, phase=phase) for j in view.targets}
        return {j: chain.encode_coefficients(coefficients, contexts[j]) for j in view.targets}

    def _decoded(
        self, incoming: Incoming, view: View, chain: Chain | None = None, phase: int = 0
    ) -> dict[int, Tensor]:
        """The signals that arrived, ascending by rank, with zeros for what was not sent.

        They may be of lower precision than the model. A payload that makes no sense is left out, and said so;
        it ends the run of a scheme that tolerates no loss.
        """
        chain = chain or self.chain
        found: dict[int, Tensor] = {}
        for rank in sorted(incoming):
            context = Context(self.seed, view.round, rank, view.rank, phase=phase)
            try:
                found[rank] = chain.decode(incoming[rank], context)
            except PayloadError as error:
                self._refused(rank, view, error)
        return found

    def _mix_finite(
        self, heard: dict[int, Tensor], own: Tensor, terms: Callable[[Mapping[int, Tensor]], Terms],
        view: View, out: Tensor, origin: Tensor | None = None,
    ) -> None:  # fmt: skip
        """Writes the weighted sum of `terms(heard)` into `out`; what is not finite is taken out of `heard`.

        `origin` is that of `weighted_sum`. Nothing is looked at twice unless the sum is not finite. Raises
        RunFailed where the own signal is not.
        """
        while not weighted_sum(terms(heard), out, origin):
            if not is_finite(own):
                raise RunFailed(f"rank {view.rank}, round {view.round + 1}: its own {self._flaw_of(own)}")
            unsound = [j for j, signal in heard.items() if j != view.rank and not is_finite(signal)]
            for j in unsound:
                self._refused(j, view, NotFinite(f"its {self._flaw_of(heard.pop(j))}"))
            if not unsound:
                # Large numbers, which nobody is to blame for.
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
