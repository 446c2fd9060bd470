"""Auxiliary records of a node, written while it trains."""
