"""Who may talk to whom: files, formulas, random draws; importing this registers them all."""

from decentnode.graph import families, files, random_graphs
from decentnode.graph.base import Graph, StaticGraph, View

__all__ = ["Graph", "StaticGraph", "View", "families", "files", "random_graphs"]
