"""Transforms that lower precision."""
