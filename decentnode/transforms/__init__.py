"""Transforms: payload to payload, with an inverse; one per file."""

from decentnode.transforms.cast import Cast

__all__ = ["Cast"]
