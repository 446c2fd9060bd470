"""Transforms that protect."""
