"""What the core calls of the layers around it, by name, so that it imports none of them.

A layer has a module that registers texts `module:object` for the hooks of the core when it is imported. The
objects are imported when the core asks for them.
"""

import importlib
from collections import defaultdict
from typing import Any

LAYERS = (
    "decentnode.results.layer",
    "decentnode.studies.layer",
    "decentnode.attacks.layer",
    "decentnode.interop.layer",
)
_registered: defaultdict[str, dict[str, str]] = defaultdict(dict)
"""By hook the texts `module:object`, each by its name."""


def register(hook: str, **paths: str) -> None:
    """Registers for a hook objects as texts `module:object`, or modules, each by a name of its own."""
    if taken := _registered[hook].keys() & paths:
        raise ValueError(f"two objects for the hook '{hook}' are named '{min(taken)}'")
    _registered[hook].update(paths)


def found(hook: str) -> dict[str, Any]:
    """Returns what all layers have registered for a hook, by name, in the order of the layers."""
    for layer in LAYERS:
        importlib.import_module(layer)
    return {name: _imported(path) for name, path in _registered[hook].items()}


def _imported(path: str) -> Any:
    module, _, name = path.partition(":")
    return getattr(importlib.import_module(module), name) if name else importlib.import_module(module)
