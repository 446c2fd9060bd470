"""Gossip of fragments, each on a random graph of its own."""

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from decentnode.core.payload import Field, Layout, NotFinite, Payload
from decentnode.core.registry import SHARINGS, name_of
from decentnode.core.vector import is_finite
from decentnode.errors import BadInput
from decentnode.graph.base import View
from decentnode.graph.mixing import WeightedGraph
from decentnode.graph.mosaic import MosaicGraph
from decentnode.sharing.base import Incoming, Promises, Setup, Sharing
from decentnode.transforms.chain import Chain
from decentnode.transforms.sparsify.fragments import divided, even_parts, joined


@SHARINGS.register("mosaic")
@dataclass
class Mosaic(Sharing):
    """Averages each fragment of a model with neighbors of its own (Mosaic: Biswas et al., 2026).

    x_i[k] <- sum_j w^k_ij y_j[k],   W^k: weights on a graph of fragment k alone, drawn anew in each round

    y_j is the model of j after its local steps, and y_j[k] its k-th fragment: K parts of consecutive values,
    whose lengths differ by one at most. The graph `mosaic` has K and `degree`. A node sends each fragment to
    `degree` others, in all the bytes of one model to each of `degree` others; what goes to one neighbor is
    one message. Each fragment agrees as fast as a model does on `epidemic_oracle`, but a node receives from
    more others in a round. With K = 1 it is `gossip` on `epidemic_oracle`. arXiv 2602.04352, by summaries of
    it. State: none.
    """

    promises = Promises(
        keeps_mean=True,
        sends_one_payload=False,
        overlaps=True,
        takes_strength=True,
        wire="degree b d, and 8 for each neighbor",
    )

    def check(self, graph: WeightedGraph) -> None:
        if not isinstance(graph.graph, MosaicGraph):
            raise BadInput(
                f"{name_of(self)} needs a graph for each fragment; use graph: {{name: mosaic, nodes: "
                f"{graph.num_nodes}, degree: ..., fragments: ...}}"
            )

    def check_chain(self, chain: Chain) -> None:
        if chain.stages:
            raise BadInput(f"{name_of(self)} sends fragments of plain models; leave the transforms out")

    def bind(self, setup: Setup) -> None:
        super().bind(setup)
        whole, graph = setup.chain.layout.fields[0], setup.graph.graph
        of_fragments = graph.of_fragments if isinstance(graph, MosaicGraph) else (graph,)
        self._graphs = [WeightedGraph(each, setup.graph.mixing, setup.seed) for each in of_fragments]
        d, count = whole.elements, len(of_fragments)
        if d < count:
            raise BadInput.at(
                "graph.fragments", f"a model of {d} values has no {count} fragments; use at most {d}"
            )
        self._slices = even_parts(d, count)
        self._layout = Layout((Field("fragments", whole.dtype, d, variable=True),))

    def payload_layout(self, phase: int = 0) -> Layout | None:
        return self._layout

    def outgoing(self, vector: Tensor, view: View) -> Mapping[int, Payload]:
        views, payloads = self._views(view), dict[tuple[int, ...], Payload]()
        outgoing = {}
        for j in view.targets:
            sent = tuple(k for k, of_fragment in enumerate(views) if j in of_fragment.targets)
            if sent not in payloads:
                values = joined(vector, tuple(self._slices[k] for k in sent))
                payloads[sent] = Payload.of(self._layout, {"fragments": values})
            outgoing[j] = payloads[sent]
        return outgoing

    def mix(self, vector: Tensor, incoming: Incoming, view: View, out: Tensor) -> None:
        views = self._views(view)
        received = self.decode_each(incoming, view, lambda j, payload: self._split(payload, j, views))
        for k, (span, of_fragment) in enumerate(zip(self._slices, views, strict=True)):
            signals = {j: fragments[k] for j, fragments in received.items() if k in fragments}
            self.weighted_mix({view.rank: vector[span], **signals}, of_fragment, out[span])

    def _views(self, view: View) -> list[View]:
        """The node's part in the graph of each fragment."""
        return [graph.view(view.rank, view.round, view.learning_rate) for graph in self._graphs]

    def _split(self, payload: Payload, source: int, views: list[View]) -> dict[int, Tensor]:
        """The fragments that a node has sent, by number; raises PayloadError."""
        sent = [k for k, of_fragment in enumerate(views) if source in of_fragment.sources]
        values = payload["fragments"]
        fragments = divided(values, tuple(self._slices[k] for k in sent))
        if not is_finite(values):
            # One bad value makes all of a message suspect, also its other fragments.
            raise NotFinite(f"its {self.flaw_of(values)}")
        return dict(zip(sent, fragments, strict=True))
