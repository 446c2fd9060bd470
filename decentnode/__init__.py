"""A peer-to-peer node runtime for decentralized machine learning."""

import importlib
import random
from typing import TYPE_CHECKING, Any

from decentnode.core.version import __version__

if TYPE_CHECKING:
    from decentnode.api.commands import calibrate, validate, verify
    from decentnode.parallel.join import join
    from decentnode.parallel.module import DecentralizedDataParallel
    from decentnode.results.api import repeat, resume, run
    from decentnode.results.background import start
    from decentnode.results.run import Run
    from decentnode.results.study import Study
    from decentnode.studies.api import sweep
    from decentnode.training.optim import AccumAdam, AccumAdamW, Muon

__all__ = [
    "AccumAdam", "AccumAdamW", "DecentralizedDataParallel", "Muon", "Run", "Study", "__version__",
    "calibrate", "join", "repeat", "resume", "run", "start", "sweep", "validate", "verify",
]  # fmt: skip

_HOMES = {
    "AccumAdam": "decentnode.training.optim",
    "AccumAdamW": "decentnode.training.optim",
    "DecentralizedDataParallel": "decentnode.parallel.module",
    "Muon": "decentnode.training.optim",
    "Run": "decentnode.results.run",
    "Study": "decentnode.results.study",
    "calibrate": "decentnode.api.commands",
    "join": "decentnode.parallel.join",
    "repeat": "decentnode.results.api",
    "resume": "decentnode.results.api",
    "run": "decentnode.results.api",
    "start": "decentnode.results.background",
    "sweep": "decentnode.studies.api",
    "validate": "decentnode.api.commands",
    "verify": "decentnode.api.commands",
}
"""The module of each public name; imported on first use, because torch takes two seconds."""


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'decentnode' has no attribute '{name}'")
    # Libraries that are imported here draw numbers, and the generator is that of the caller.
    state = random.getstate()
    try:
        return getattr(importlib.import_module(_HOMES[name]), name)
    finally:
        random.setstate(state)


def __dir__() -> list[str]:
    return sorted(__all__)
