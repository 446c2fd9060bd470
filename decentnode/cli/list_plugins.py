"""The output of `decentnode list`: the registered plug-ins, and the options of a kind or of one."""

import inspect
import json
from collections.abc import Iterator
from typing import Any

from decentnode.config.plugin_parser import parameters_for
from decentnode.config.type_check import REQUIRED, describe
from decentnode.core.registry import REGISTRIES, Registry, guess
from decentnode.errors import UnknownPlugin
from decentnode.sharing.base import SharingBase
from decentnode.transforms.base import Transform


def describe_all(word: str | None = None) -> Iterator[str]:
    """Lines about plug-ins: all names; or the options of one kind, or of one plug-in.

    Raises UnknownPlugin.
    """
    kind, name = chosen(word) if word else (None, None)
    for registry in REGISTRIES:
        classes = {key: cls for key, cls in registry.classes().items() if name in (None, key)}
        if kind not in (None, registry.kind) or not classes:
            continue
        yield registry.kind
        for key, cls in classes.items():
            yield f"  {key:<20} {first_line(cls)}"
            if word:
                yield from (f"      {line}" for line in (*properties(cls), *options(registry, cls)))
    if not word:
        yield "Options: decentnode list KIND, or decentnode list NAME"


def chosen(word: str) -> tuple[str | None, str | None]:
    """The kind, or the plug-in name, that the argument selects; raises UnknownPlugin."""
    kinds = [registry.kind for registry in REGISTRIES]
    names = {name for registry in REGISTRIES for name in registry.classes()}
    kind = {f"{kind}s": kind for kind in kinds}.get(word, word)
    if kind in kinds:
        return kind, None
    if word in names:
        return None, word
    known = f"(known: {', '.join(kinds)})"
    raise UnknownPlugin(f"unknown kind or plug-in '{word}'{guess(word, [*kinds, *names])} {known}")


def first_line(cls: type) -> str:
    """The first line of a plug-in's docstring."""
    return (inspect.getdoc(cls) or "").split("\n", 1)[0]


NEEDS = {
    "static_graph": "a graph that stays the same", "undirected_graph": "an undirected graph",
    "complete_graph": "a complete graph", "tree": "a tree",
    "server": "a graph with a server", "levels": "a graph with levels",
    "plain_sgd": "plain SGD", "float32": "float32 or float64",
    "co_senders": "nodes that know all senders to their targets", "local_loss": "samples on every node",
}  # fmt: skip


def properties(cls: type) -> Iterator[str]:
    """The requirements, promises and costs of a scheme or a transform, from its class variables."""
    if issubclass(cls, SharingBase):
        needs = [text for name, text in NEEDS.items() if getattr(cls.requirements, name)]
        yield f"needs: {', '.join(needs) or 'nothing'}"
        loss = "continues" if cls.promises.tolerates_loss else "stops"
        yield f"{cls.promises.mean}; {loss} when a node is lost"
        meanwhile = ", or meanwhile (communication.overlap)" if cls.promises.overlaps else ""
        yield (
            "sends between local steps (time_model: asynchronous)"
            if cls.asynchronous
            else f"exchanges after nodes have trained{meanwhile}"
        )
        yield f"bytes per node and round, for values of b bytes: {cls.promises.wire}"
    elif issubclass(cls, Transform):
        emitted = cls.emits or "the same"
        more = ("; needs float32 or float64" if cls.needs_float32 else "") + (
            "; unbiased" if cls.unbiased is True else ""
        )
        yield f"takes {' or '.join(sorted(cls.accepts))}, gives {emitted}{more}"
        yield f"bytes, for values of b bytes: {cls.wire or 'as before'}"


def options(registry: Registry, cls: type) -> Iterator[str]:
    """One line for each option: `fraction: a number > 0 and <= 1 (0.1)`."""
    for name, (hint, default) in parameters_for(registry, cls).items():
        yield f"{name}: {describe(hint)} ({_shown(default)})"


def _shown(default: Any) -> str:
    if default is REQUIRED:
        return "required"
    # As in YAML: null, true, [64].
    return default if isinstance(default, str) else json.dumps(default, default=str)
