"""Transforms that select coordinates."""
