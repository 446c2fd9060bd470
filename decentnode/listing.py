"""What `decentnode list` prints: every registered plug-in with its options."""

import inspect
import json
from collections.abc import Iterator
from typing import Any

from decentnode.errors import UnknownPlugin
from decentnode.option_types import REQUIRED, describe, parameters_of
from decentnode.registry import REGISTRIES, Registry, guess


def describe_all(kind: str | None = None) -> Iterator[str]:
    """Lines about all kinds, or about one; raises UnknownPlugin."""
    for registry in chosen(kind):
        yield registry.kind
        for name, cls in registry.classes().items():
            yield f"  {name:<20} {first_line(cls)}"
            yield from (f"      {option}" for option in options(cls))


def chosen(kind: str | None) -> list[Registry]:
    """The registries of that kind, or all; raises UnknownPlugin."""
    kinds = [registry.kind for registry in REGISTRIES]
    if kind is not None and kind not in kinds:
        raise UnknownPlugin(f"unknown kind '{kind}'{guess(kind, kinds)} (known: {', '.join(kinds)})")
    return [registry for registry in REGISTRIES if kind in (None, registry.kind)]


def first_line(cls: type) -> str:
    """What a plug-in is, by the first line of its docstring."""
    return (inspect.getdoc(cls) or "").split("\n", 1)[0]


def options(cls: type) -> Iterator[str]:
    """One line for each option: `fraction: a number > 0 and <= 1 (0.1)`."""
    for name, (hint, default) in parameters_of(cls).items():
        yield f"{name}: {describe(hint)} ({_shown(default)})"


def _shown(default: Any) -> str:
    if default is REQUIRED:
        return "required"
    # As YAML has it: null, true, [64].
    return default if isinstance(default, str) else json.dumps(default, default=str)
