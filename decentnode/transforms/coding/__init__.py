"""Lossless codes of values and indices."""
