"""Schemes on graphs that the nodes agree on by messages of their own (`Graph.is_negotiated`)."""

from decentnode.graph.base import Graph
from decentnode.graph.mixing import WeightedGraph
from decentnode.graph.overlays.flipper import Flipper
from decentnode.graph.overlays.similarity import Similarity
from decentnode.sharing.base import Sharing, SharingBase
from decentnode.sharing.overlays.base import Overlay
from decentnode.sharing.overlays.flipper import FlipperOverlay
from decentnode.sharing.overlays.similarity import SimilarityOverlay

OVERLAYS: dict[type[Graph], type[Overlay]] = {Flipper: FlipperOverlay, Similarity: SimilarityOverlay}


def on_overlay(scheme: SharingBase, graph: WeightedGraph) -> SharingBase:
    """The scheme with the exchanges that its graph needs; itself where the graph needs none."""
    overlay = OVERLAYS.get(type(graph.graph))
    # Without rounds no exchange can come before that of the scheme; such a graph is refused before.
    return scheme if overlay is None or not isinstance(scheme, Sharing) else overlay(scheme, graph)
