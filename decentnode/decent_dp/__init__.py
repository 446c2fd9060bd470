"""Decent-DP's modules by its own names, over the wrapper of this package (docs/from_decent_dp.md).

A script that was written for it changes `decent_dp` to `decentnode.decent_dp` in its imports.
"""

from decentnode.decent_dp.ddp import DecentralizedDataParallel

__all__ = ["DecentralizedDataParallel"]
