"""The base of attacks: which ranks are adversaries, what they know, and what they send."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from torch import Tensor

from decentnode.core.payload import Payload
from decentnode.core.registry import name_of
from decentnode.datasets.base import LoadedDataset
from decentnode.datasets.skew import Skew
from decentnode.errors import BadInput, Defect
from decentnode.graph.base import Graph, View
from decentnode.options import NonNegative
from decentnode.sharing.base import Exchange, Incoming, Promises, Sharing
from decentnode.sharing.blocks.buffers import AveragedBuffers
from decentnode.sharing.wrapper import SchemeWrapper

Seen = Mapping[int, Tensor]
"""The models that the adversary received last, by rank, each of shape (d,)."""


class Adversary(ABC):
    """A party of a run that is not honest, or only curious. Its fields are its options in YAML."""

    active: ClassVar[bool]
    """Whether it changes what its ranks send; otherwise it only looks at what they receive."""
    knowledge: ClassVar[str]
    """The information that the attack uses, as text."""

    ranks: tuple[NonNegative, ...]
    """The adversaries."""

    @abstractmethod
    def defects(self, graph: Graph, sharing: Sharing) -> Iterator[Defect]:
        """Yields the reasons why the attack cannot be made in such a run."""

    def skew(self) -> Skew | None:
        """What changes training samples; None: nothing."""
        return None

    def parts(self, parts: list[Tensor], seed: int) -> list[Tensor]:
        """The training samples of each rank, as indices, without those that it removes."""
        return parts

    def check(self, dataset: LoadedDataset, parts: Sequence[Tensor]) -> None:
        """Raises BadInput if the samples of the run do not fit; `parts`: those of each rank, as indices."""
        return None

    def wrap(self, scheme: Sharing) -> Sharing:
        """The scheme of one of its ranks."""
        return scheme


@dataclass(kw_only=True)
class Attack(Adversary):
    """What some ranks send in place of their models.

    An adversary trains and mixes as its scheme says, and lies to its neighbors. It knows what such a node
    receives, and nothing else: `seen` has the models of its neighbors in the round before.
    """

    active = True
    knowledge = "its own model"
    needs_models: ClassVar[bool] = False
    """Whether it uses the models that the adversary received."""
    per_target: ClassVar[bool] = False
    """Whether each neighbor receives another lie."""

    ranks: tuple[NonNegative, ...]
    first_round: NonNegative = 0
    """The first round of the attack; before it the adversaries are honest."""
    seed: NonNegative = 0

    @abstractmethod
    def lie(self, model: Tensor, view: View, seen: Seen, target: int | None) -> Tensor:
        """What the adversary sends in place of its model, shape (d,); `target`: None where it is for all."""

    def defects(self, graph: Graph, sharing: Sharing) -> Iterator[Defect]:
        outside = [rank for rank in self.ranks if rank >= graph.num_nodes]
        if outside:
            yield Defect(
                ("ranks",), f"rank {outside[0]} does not exist; the graph has 0..{graph.num_nodes - 1}"
            )
        if not self.ranks:
            yield Defect(("ranks",), "no rank is given; name the ranks of the adversaries")
        if self.needs_models and (not sharing.promises.shows_models or sharing.promises.protects):
            yield Defect(
                (),
                f"{name_of(self)} needs the models of neighbors, and {name_of(sharing)} does not show them; "
                "use sign_flip, noise, scaling or not_finite, or a scheme that sends whole models",
            )

    def wrap(self, scheme: Sharing) -> Sharing:
        if self.needs_models and isinstance(scheme, AveragedBuffers):
            raise BadInput.at("adversaries", f"{name_of(self)} and training.mix_buffers do not go together")
        return Adversarial(scheme, self)


class Adversarial(SchemeWrapper):
    """A scheme whose node lies to its neighbors, and is honest to itself where the scheme allows it."""

    def __init__(self, scheme: Sharing, attack: Attack) -> None:
        super().__init__(scheme)
        self.attack = attack
        self._seen: dict[int, Tensor] = {}

    def adjust_promises(self, promises: Promises) -> Promises:
        return replace(promises, sends_one_payload=False)

    @property
    def gives_model(self) -> bool:
        return False

    def outgoing(self, vector: Tensor, view: View) -> Mapping[int, Payload]:
        if view.round < self.attack.first_round:
            return self.scheme.outgoing(vector, view)
        return self._lies(vector, view)

    async def share(self, vector: Tensor, view: View, exchange: Exchange, out: Tensor) -> None:
        async def tapped(outgoing: Mapping[int, Payload], sources: Sequence[int]) -> Incoming:
            incoming = await exchange(outgoing, sources)
            if self.attack.needs_models:
                # Copies, because payloads are invalid after the exchange.
                signals = self.scheme.decode(incoming, view)
                self._seen = {j: signal.clone() for j, signal in signals.items()}
            return incoming

        if type(self.scheme).share is Sharing.share:
            await Sharing.share(self, vector, view, tapped, out)
        elif view.round < self.attack.first_round:
            await self.scheme.share(vector, view, tapped, out=out)
        else:
            # Several exchanges depend on each other, so the node mixes what it has told.
            await self.scheme.share(self._lie(vector, view, None), view, tapped, out=out)

    def _lies(self, vector: Tensor, view: View) -> dict[int, Payload]:
        if not self.attack.per_target:
            return dict(self.scheme.outgoing(self._lie(vector, view, None), view))
        lies: dict[int, Payload] = {}
        for target in view.targets:
            lie = self._lie(vector, view, target)
            lies |= self.scheme.outgoing(lie, replace(view, targets=(target,)))
        return lies

    def _lie(self, vector: Tensor, view: View, target: int | None) -> Tensor:
        return self.attack.lie(vector, view, self._seen, target=target).to(vector.dtype)
