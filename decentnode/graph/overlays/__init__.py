"""Graphs that depend on what the nodes have: on their labels, their models, or an answer of a service."""

from decentnode.graph.overlays import d_cliques, flipper, peer_sampler, similarity

__all__ = ["d_cliques", "flipper", "peer_sampler", "similarity"]
