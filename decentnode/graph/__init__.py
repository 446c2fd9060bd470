"""Which nodes exchange: files, formulas, random draws; importing this registers them all."""

from decentnode.graph import (
    base_k,
    by_rounds,
    churn,
    families,
    files,
    mosaic,
    overlays,
    random_graphs,
    redrawn,
    relayed,
    roles,
    schedules,
    time_varying,
    walks,
)
from decentnode.graph.base import AperiodicGraph, Graph, PeriodicGraph, RedrawnGraph, StaticGraph, View
from decentnode.graph.networkx_graph import from_networkx

__all__ = [
    "AperiodicGraph", "Graph", "PeriodicGraph", "RedrawnGraph", "StaticGraph", "View", "base_k",
    "by_rounds", "churn", "families", "files", "from_networkx", "mosaic", "overlays", "random_graphs",
    "redrawn", "relayed", "roles", "schedules", "time_varying", "walks",
]  # fmt: skip
