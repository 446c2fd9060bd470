"""What `decentnode list` prints: every registered plug-in with its options."""

import inspect
import json
from collections.abc import Iterator
from typing import Any

from decentnode.config.type_check import REQUIRED, describe, parameters_of
from decentnode.core.registry import REGISTRIES, Registry, guess
from decentnode.errors import UnknownPlugin
from decentnode.sharing.base import Sharing
from decentnode.transforms.base import Transform


def describe_all(kind: str | None = None) -> Iterator[str]:
    """Lines about all kinds, or about one; raises UnknownPlugin."""
    for registry in chosen(kind):
        yield registry.kind
        for name, cls in registry.classes().items():
            yield f"  {name:<20} {first_line(cls)}"
            yield from (f"      {line}" for line in (*properties(cls), *options(cls)))


def chosen(kind: str | None) -> list[Registry]:
    """The registries of that kind, or all; raises UnknownPlugin."""
    kinds = [registry.kind for registry in REGISTRIES]
    plurals = {f"{name}s": name for name in kinds}
    wanted = plurals.get(kind, kind) if kind else None
    if wanted is not None and wanted not in kinds:
        raise UnknownPlugin(f"unknown kind '{kind}'{guess(wanted, kinds)} (known: {', '.join(kinds)})")
    return [registry for registry in REGISTRIES if wanted in (None, registry.kind)]


def first_line(cls: type) -> str:
    """What a plug-in is, by the first line of its docstring."""
    return (inspect.getdoc(cls) or "").split("\n", 1)[0]


NEEDS = {
    "needs_static_graph": "a graph that stays the same", "needs_undirected_graph": "an undirected graph",
    "needs_complete_graph": "a complete graph", "needs_tree": "a tree", "needs_plain_sgd": "plain SGD",
    "needs_float32": "float32 or float64",
}  # fmt: skip


def properties(cls: type) -> Iterator[str]:
    """What a scheme or a transform needs, promises and costs, from its class variables."""
    if issubclass(cls, Sharing):
        yield f"needs: {', '.join(text for name, text in NEEDS.items() if getattr(cls, name)) or 'nothing'}"
        loss = "goes on" if cls.tolerates_loss else "stops"
        yield f"{cls.mean}; {loss} when a node is lost"
        yield (
            "exchanges after nodes have trained, or meanwhile (communication.overlap)"
            if cls.overlaps
            else "exchanges after nodes have trained"
        )
        yield f"bytes per node and round, for values of b bytes: {cls.wire}"
    elif issubclass(cls, Transform):
        given = cls.emits or "the same"
        more = ("; needs float32 or float64" if cls.needs_float32 else "") + (
            "; unbiased" if cls.unbiased is True else ""
        )
        yield f"takes {' or '.join(sorted(cls.accepts))}, gives {given}{more}"
        yield f"bytes, for values of b bytes: {cls.wire or 'as before'}"


def options(cls: type) -> Iterator[str]:
    """One line for each option: `fraction: a number > 0 and <= 1 (0.1)`."""
    for name, (hint, default) in parameters_of(cls).items():
        yield f"{name}: {describe(hint)} ({_shown(default)})"


def _shown(default: Any) -> str:
    if default is REQUIRED:
        return "required"
    # As YAML has it: null, true, [64].
    return default if isinstance(default, str) else json.dumps(default, default=str)
