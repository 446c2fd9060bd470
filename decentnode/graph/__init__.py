"""Who may talk to whom: files, formulas, random draws; importing this registers them all."""

from decentnode.graph import base_k, families, files, random_graphs, time_varying
from decentnode.graph.base import Graph, PeriodicGraph, StaticGraph, View

__all__ = [
    "Graph",
    "PeriodicGraph",
    "StaticGraph",
    "View",
    "base_k",
    "families",
    "files",
    "random_graphs",
    "time_varying",
]
