"""The output of `decentnode graph` about a graph file or a family of graphs; needs no torch."""

import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from decentnode.config import overrides
from decentnode.config.type_check import REQUIRED, TypeMismatch, describe, parameters_of, typed, unknown
from decentnode.config.yaml_source import Document
from decentnode.core.registry import GRAPHS, MIXINGS, Registry, import_from
from decentnode.core.text import counted
from decentnode.errors import BadInput
from decentnode.graph.base import Graph, StaticGraph
from decentnode.graph.declared import check_declared
from decentnode.graph.mixing import WeightedGraph, default_weights
from decentnode.graph.spectrum import MEASURED_ROUNDS, GraphFigures, measure

_FILE = re.compile(r".*/.*|.*\.\w+")


def report(name: str, options: Sequence[str] = (), weights: str = "") -> Iterator[str]:
    """The figures of a graph, by its name or its file, one line each; raises BadInput."""
    graph = make(GRAPHS, name, options)
    if isinstance(graph, StaticGraph):
        _ = graph.adjacency
    check_declared(graph)
    rule = weights or default_weights(graph)
    figures = measure(WeightedGraph(graph, make(MIXINGS, rule)))
    return lines(figures, rule)


def make(registry: Registry, name: str, options: Sequence[str] = ()) -> Any:
    """The plug-in with options such as `nodes=16`; a file name selects the plug-in that reads files."""
    is_file = registry in (GRAPHS, MIXINGS) and bool(_FILE.fullmatch(name)) and ":" not in name
    import_from(Path.cwd())
    cls = registry.find("file" if is_file else name)
    base = registry.bases[0]
    if not issubclass(cls, base):
        wanted = f"{base.__module__}.{base.__qualname__}"
        raise BadInput(f"'{name}' is no {registry.kind}; it must be a subclass of {wanted}")
    document = Document(name, {"path": name} if is_file else {})
    for option in options:
        overrides.apply(document, option)
    values = {key: _value(document, cls, key, value) for key, value in document.value.items()}
    document.raise_any()
    missing = [(key, hint) for key, (hint, default) in parameters_of(cls).items() if default is REQUIRED]
    defects = [f"{name}: add {key}=..., {describe(hint)}" for key, hint in missing if key not in values]
    if defects:
        raise BadInput(*defects)
    return cls(**values)


def _value(document: Document, cls: type, key: str, value: Any) -> Any:
    parameters = parameters_of(cls)
    if key not in parameters:
        document.add((key,), unknown("option", key, list(parameters)))
        return None
    if parameters[key][0] is Graph:
        inner = dict(value) if isinstance(value, dict) else {"name": value}
        name = str(inner.pop("name", ""))
        return make(GRAPHS, name, [f"{option}={json.dumps(given)}" for option, given in inner.items()])
    try:
        return typed(parameters[key][0], value)
    except TypeMismatch as unfit:
        document.add((key,), *unfit.problems.values())
        return None


def lines(figures: GraphFigures, weights: str) -> Iterator[str]:
    """One figure per line."""
    changes = figures.period != 1
    degrees = f"{figures.degree_min}..{figures.degree_max}, mean {figures.degree_mean:.2f}"
    regular = figures.degree_min == figures.degree_max
    times = " over a period" if changes and figures.period else ""
    yield f"nodes              {figures.nodes}"
    if changes:
        period = f"{figures.period} rounds" if figures.period else "none; what follows is of round 0"
        yield f"period             {period}"
    yield f"edges              {figures.edges}{times}{' (directed)' if figures.directed else ''}"
    yield f"degree             {figures.degree_min if regular else degrees}{' a round' if changes else ''}"
    yield f"connected          {'yes' if figures.connected else 'no'}"
    yield f"diameter           {_diameter(figures)}"
    stochastic = "doubly stochastic" if figures.doubly_stochastic else "rows sum to 1, columns do not"
    yield f"weights            {weights} ({stochastic})"
    if figures.period is None:
        expected = f"; {figures.expected:.6f} expected" if figures.expected is not None else ""
        measured = f"times {figures.contraction:.6f} a round, mean of {MEASURED_ROUNDS} rounds"
        yield f"disagreement       {measured}{expected}"
    else:
        yield f"second eigenvalue  {_second(figures)}"
    if changes or figures.exact_after:
        yield f"exact average      {_exact(figures)}"
    yield f"rounds to 1e-6     {_rounds(figures)}"


def _diameter(figures: GraphFigures) -> str:
    if figures.diameter is None:
        return "none"
    return counted(figures.diameter, "round") if figures.period != 1 else str(figures.diameter)


def _second(figures: GraphFigures) -> str:
    if figures.contraction is None:
        return "too large to compute"
    return f"{figures.contraction:.6f}{' a round' if figures.period != 1 else ''}"


def _exact(figures: GraphFigures) -> str:
    if figures.contraction is None:
        return "unknown"
    return "never" if figures.exact_after is None else f"after {counted(figures.exact_after, 'round')}"


def _rounds(figures: GraphFigures) -> str:
    if figures.contraction is None:
        return "unknown"
    return "never" if figures.rounds_to_target is None else str(figures.rounds_to_target)
