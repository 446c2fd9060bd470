"""A peer-to-peer node runtime for decentralized machine learning."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from decentnode.optimizers import AccumAdam, AccumAdamW
    from decentnode.wrapper.module import DecentralizedDataParallel

__version__ = "0.1.0"
__all__ = ["AccumAdam", "AccumAdamW", "DecentralizedDataParallel", "__version__"]

_HOMES = {
    "AccumAdam": "decentnode.optimizers",
    "AccumAdamW": "decentnode.optimizers",
    "DecentralizedDataParallel": "decentnode.wrapper.module",
}
"""Where a public name lives; imported when it is asked for, because torch takes two seconds."""


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'decentnode' has no attribute '{name}'")
    return getattr(importlib.import_module(_HOMES[name]), name)
