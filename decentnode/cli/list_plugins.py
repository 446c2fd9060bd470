"""The output of `decentnode list`: the registered plug-ins, and the options and the source of one."""

import inspect
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from decentnode.config.plugin_parser import parameters_for
from decentnode.config.type_check import REQUIRED, describe
from decentnode.core.packages import package_of
from decentnode.core.registry import (
    REGISTRIES,
    Registry,
    guess,
    is_misspelt,
    letters,
    loaded_plugins,
)
from decentnode.errors import UnknownPlugin
from decentnode.sharing.base import SharingBase
from decentnode.transforms.base import Transform


def plugin_lines(
    word: str | None = None, name: str | None = None, with_options: bool = False
) -> Iterator[str]:
    """Yields lines about plug-ins: all of them, those of a kind, or one with its options and its source.

    `word`: a kind, or a plug-in's name; `name`: one of that kind, or `module:Class`. `with_options`: those of
    several, too. Raises UnknownPlugin.
    """
    problems = loaded_plugins()
    kind, name = chosen(word, name) if word else (None, None)
    for registry in REGISTRIES:
        if kind not in (None, registry.kind):
            continue
        classes = registry.classes()
        if name:
            classes = {name: registry.find(name, Path.cwd())} if kind or name in classes else {}
        if classes:
            yield registry.kind
        for key, cls in classes.items():
            yield f"  {key:<20} {first_line(cls)}"
            more = [*further_lines(cls)] if name else []
            more += [f"of the package {package}"] if name and (package := package_of(cls)) else []
            more += [*properties(cls), *options(registry, cls)] if name or with_options else []
            yield from (f"      {line}" for line in more)
    yield from problems
    if name is None and not with_options:
        yield f"Options: decentnode list {kind or 'KIND'} NAME; those of all: --options"


def chosen(word: str, name: str | None = None) -> tuple[str | None, str | None]:
    """Returns the kind and the plug-in name that the arguments select; raises UnknownPlugin."""
    kinds = [registry.kind for registry in REGISTRIES]
    kind = {f"{kind}s": kind for kind in kinds}.get(word, word)
    if kind in kinds:
        return kind, name
    names = {name for registry in REGISTRIES for name in registry.classes()}
    if word in names and name is None:
        return None, word
    if word in names:
        raise UnknownPlugin(f"'{word}' is a plug-in, not a kind; the kind comes first: {', '.join(kinds)}")
    known = f"(known: {', '.join([*kinds, 'configs'])})"
    kinds_near = guess(word, [kind for kind in (*kinds, "configs") if is_misspelt(letters(word), kind)])
    near = kinds_near or next(filter(None, (registry.hint(word) for registry in REGISTRIES)), "")
    raise UnknownPlugin(f"unknown kind or plug-in '{word}'{near} {known}")


def first_line(cls: type) -> str:
    """The first line of a plug-in's docstring."""
    return (inspect.getdoc(cls) or "").split("\n", 1)[0]


def further_lines(cls: type) -> list[str]:
    """The lines of a plug-in's docstring after the first, without those that are empty."""
    return [line for line in (inspect.getdoc(cls) or "").splitlines()[1:] if line]


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
