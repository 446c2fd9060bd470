"""Schemes that send compressed differences to what their neighbors know."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

from decentnode.core.payload import Layout
from decentnode.errors import BadInput
from decentnode.graph.base import Graph
from decentnode.options import Fraction, Positive
from decentnode.sharing.base import Requirements, Sharing
from decentnode.sharing.blocks.divergence_guard import DivergenceGuard
from decentnode.sharing.blocks.pair_copies import PairCopies
from decentnode.sharing.blocks.public_copy import Copies, PublicCopy
from decentnode.transforms.chain import Chain


@dataclass
class CopySharing(Sharing):
    """Keeps copies of a node's signals: one that all neighbors know, or one for each edge.

    The sum of the neighbors' copies is right only while the graph stays the same and all payloads arrive. A
    copy for an edge changes only in rounds in which the two ends exchange, so any sequence of graphs will do,
    and an edge whose ends differ starts again. Then each neighbor gets a payload of its own.
    """

    requirements = Requirements(
        static_graph=True, for_changing_graphs="use copies: edge", undirected_graph=True
    )
    state: ClassVar[tuple[str, ...]] = ("_models",)

    gamma: Fraction = 0.1
    copies: Literal["auto", "node", "edge"] = "auto"
    """One copy for the node, or one for each edge; auto: edge with `memory`, or where the graph of the run
    changes (in a level or in Python: node).
    """
    memory: Positive | None = None
    """Rounds without an exchange after which the copies of an edge are forgotten; null: never."""

    def __post_init__(self) -> None:
        if self.copies == "node" and self.memory is not None:
            raise BadInput.at("memory", "is for copies of edges; leave it out, or use copies: edge")
        self._models = self._copies(DivergenceGuard("what is mixed in" if self.by_edge else "what is unsent"))
        # The class of an alias has them already.
        if self.by_edge and self.promises.sends_one_payload:
            self.requirements = replace(self.requirements, static_graph=False, for_changing_graphs="")
            wire = self.promises.wire.replace("C(d)", "(C(d) + 8)", 1)
            self.promises = replace(self.promises, sends_one_payload=False, wire=wire)

    @classmethod
    def on_graph(cls, options: Mapping[str, Any], graph: Graph) -> dict[str, Any]:
        chosen = "node" if graph.static and options.get("memory") is None else "edge"
        return {"copies": chosen} if options.get("copies") == "auto" else {}

    @property
    def by_edge(self) -> bool:
        """Whether each edge has a copy of its own."""
        return self.copies == "edge" or self.memory is not None

    def _copies(self, guard: DivergenceGuard | None = None) -> Copies:
        return PairCopies(guard, self.memory) if self.by_edge else PublicCopy(guard)

    def check_chain(self, chain: Chain) -> None:
        self._models.check_chain(self, chain)

    def payload_layout(self, phase: int = 0) -> Layout | None:
        return self._models.layout(self.chain.layout)
