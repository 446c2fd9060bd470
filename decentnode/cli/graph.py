"""The output of `decentnode graph` about a graph file, a family of graphs or that of a configuration."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast, get_args

from decentnode.cli.pictures import drawing_function
from decentnode.config import overrides
from decentnode.config.maker import made
from decentnode.config.shipped import find_config, find_graph
from decentnode.config.yaml_source import Document
from decentnode.core.registry import GRAPHS, MIXINGS, Registry, name_of
from decentnode.core.text import counted
from decentnode.errors import MISSING_KEY, BadInput, key_text, refuse
from decentnode.graph.base import ENDLESS, Graph
from decentnode.graph.decay import known_decay, measured_decay
from decentnode.graph.declared import check_declared
from decentnode.graph.matrix_check import MatrixNeeds, check_matrices
from decentnode.graph.mixing import WeightedGraph, default_weights
from decentnode.graph.spectrum import MEASURED_ROUNDS, GraphFigures, measure

if TYPE_CHECKING:
    from decentnode.config.settings import Settings

_FILE = re.compile(r".*/.*|.*\.\w+")
_CONFIG = re.compile(r".*\.ya?ml")
Color = Literal["machine", "label", "none"]


@dataclass(frozen=True)
class Drawing:
    """The picture that the command line requests."""

    path: Path
    rounds: int | None = None
    color: Color | None = None


def drawing_of(path: Path | None, rounds: int | None, color: str | None) -> Drawing | None:
    """The drawing that these options of the command line request; raises BadInput."""
    if path is None:
        if unused := [name for name, value in (("rounds", rounds), ("color", color)) if value is not None]:
            raise BadInput(f"--{unused[0]} is for a picture; add --draw FILE")
        return None
    if color not in (None, *get_args(Color)):
        raise BadInput(f"--color: must be {', '.join(get_args(Color)[:-1])} or none, not '{color}'")
    return Drawing(path, rounds, cast(Color | None, color))


def is_config(name: str) -> bool:
    """Whether this is a configuration, not a graph; a name that both have is the graph's."""
    is_shipped = find_config(name) is not None and name not in GRAPHS.classes()
    return bool(_CONFIG.fullmatch(name)) or is_shipped


def report(
    name: str, options: Sequence[str] = (), weights: str = "", drawing: Drawing | None = None
) -> Iterator[str]:
    """The figures of a graph, by its name or its file, one line each; raises BadInput. Needs no torch."""
    if drawing is not None and drawing.color in ("machine", "label"):
        raise BadInput(f"--color {drawing.color} needs a configuration, such as quickstart")
    graph = make(GRAPHS, name, options)
    for _, part in graph.changes.spans:
        check_declared(part)
    rule = weights or default_weights(graph)
    weighted = WeightedGraph(graph, make(MIXINGS, rule))
    yield from figure_lines(weighted, rule)
    if drawing is not None:
        title = " ".join([Path(name).name, *options])
        drawing_function("graph", drawing.path)(weighted, title, drawing, Groups())
        yield f"picture            {drawing.path}"


def report_config(settings: "Settings", drawing: Drawing | None = None) -> Iterator[str]:
    """Yields the lines of `report` for a configuration's graph, with a check of its matrices."""
    graph = settings.graph.make()
    weighted = WeightedGraph(graph, settings.make_mixing())
    yield f"graph              {settings.graph.name}"
    origin = ", that of the run" if settings.graph.draws_from_run else ""
    yield from figure_lines(weighted, settings.sharing.weights.name, origin)
    yield f"matrices           {check_matrices(weighted, needs_of(settings))}"
    if drawing is not None:
        title = f"{settings.name}: {settings.graph.name}"
        groups = groups_of(settings, graph, drawing.color)
        drawing_function("graph", drawing.path)(weighted, title, drawing, groups)
        yield f"picture            {drawing.path}"


def figure_lines(weighted: WeightedGraph, rule: str, origin: str = "") -> Iterator[str]:
    """Yields seed, figures and decay; where graphs hold one after the other, those of each and its rounds."""
    for rounds, graph in weighted.graph.changes.spans:
        part, weights = weighted, rule
        if graph is not weighted.graph:
            part = WeightedGraph(graph, weighted.mixing.of_part(graph))
            weights = default_weights(graph) if rule == "from_graph" else rule
            end = (
                f"{rounds.start + 1} on" if rounds.stop == ENDLESS else f"{rounds.start + 1} to {rounds.stop}"
            )
            yield f"from round         {end}: {name_of(graph)}"
        figures = measure(part)
        yield from seed_line(graph, origin)
        yield from lines(figures, weights)
        yield from decay_lines(part, figures)


def seed_line(graph: Graph, origin: str = "") -> Iterator[str]:
    """The seed of a graph that is drawn; nothing for others."""
    drawn = getattr(graph, "graph", graph)
    if (seed := getattr(drawn, "seed", None)) is not None:
        yield f"seed               {seed}{origin}"


def needs_of(settings: "Settings") -> MatrixNeeds:
    """The properties that the scheme of a configuration needs of every W."""
    from decentnode.core.vector import DTYPES
    from decentnode.transforms.chain import trial_layout

    sharing = settings.sharing.make()
    transforms = [plugin.make() for plugin in settings.sharing.transforms]
    trial, dtype = trial_layout(transforms), DTYPES[settings.training.dtype]
    chain = sharing.make_chain(transforms, trial.numel, dtype, parameters=trial)
    return MatrixNeeds(name_of(sharing), sharing.preserves_mean(chain), sharing.requirements.undirected_graph)


@dataclass(frozen=True)
class Groups:
    """The groups that nodes are colored by: one for each rank, and their names."""

    of_ranks: Sequence[int] = ()
    names: Sequence[str] = ()


def groups_of(settings: "Settings", graph: Graph, color: Color | None) -> Groups:
    """Groups ranks by machine, where there are several, or by the most frequent label of their samples."""
    from decentnode.node.run_samples import RunSamples

    mapping, ranks = settings.mapping.make(), range(graph.num_nodes)
    machines = len(mapping.machines)
    if color == "machine" or (color is None and machines > 1):
        names = [f"machine {m} ({mapping.address(m)})" for m in range(machines)]
        return Groups([mapping.machine_of(rank) for rank in ranks], names)
    if color != "label":
        return Groups()
    table = RunSamples.load(settings, graph.num_nodes).table(settings)
    if not table.labels:
        raise BadInput("--color label: the samples of the dataset have no labels to count; use machine")
    count = len(table.labels[0])
    major = [max(range(count), key=row.__getitem__) if any(row) else count for row in table.labels]
    return Groups(major, [*(f"mostly label {label}" for label in range(count)), "no samples"])


def decay_lines(weighted: WeightedGraph, figures: GraphFigures) -> Iterator[str]:
    """A table: by which factor disagreement shrinks, measured with random models, expected and published."""
    known, measured, period = known_decay(weighted), measured_decay(weighted), figures.period
    rows = [["decay", "measured", "expected", "literature"]]
    if period is None:
        rows.append([f"  a round, mean of {MEASURED_ROUNDS}", *_factors(measured.round, figures.expected)])
        squares = [value and value**2 for value in (measured.round, figures.expected)]
        rows.append(["  the same, squared", *_factors(*squares)])
    else:
        rows.append(["  a round", *_factors(measured.round, figures.contraction)])
        if period > 1:
            rows.append([f"  a period of {period}", *_factors(measured.period, measured.expected_period)])
            rows.append(["  the same, at most", *_factors(None, measured.worst_period)])
    if known is not None:
        place = 1 if known.per == "round" else 2
        rows[place].append(f"{known.holds}{known.factor:.6f}: {known.formula}")
        if period is None:
            rows[2].append(f"{known.holds}{known.factor**2:.6f}")
    for first, *cells, last in (row if len(row) == 4 else [*row, ""] for row in rows):
        yield f"{first:<22} {'  '.join(f'{cell:<8}' for cell in cells)}  {last}".rstrip()


def _factors(*values: float | None) -> list[str]:
    return ["-" if value is None else f"{value:.6f}" for value in values]


def make(registry: Registry, name: str, options: Sequence[str] = ()) -> Any:
    """The plug-in with options such as `nodes=16`; a file name selects the plug-in that reads files."""
    is_file = registry in (GRAPHS, MIXINGS) and bool(_FILE.fullmatch(name)) and ":" not in name
    shipped = find_graph(name) if registry is GRAPHS else None
    path = str(shipped) if shipped and not Path(name).exists() else name
    document = Document(name, {"path": path} if is_file else {})
    for option in options:
        overrides.apply(document, option)
    document.raise_any()
    try:
        return made(registry, {**document.value, "name": "file" if is_file else name}, folders=[Path.cwd()])
    except BadInput as error:
        document.report(
            *(defect for defect in error.defects if defect.key and defect.key[0] in document.value)
        )
        document.raise_any()
        refuse(
            f"{name}: {defect}; add {key_text(defect.key)}=..."
            for defect in error.defects
            if defect.problem == MISSING_KEY and defect.key
        )
        raise


def lines(figures: GraphFigures, weights: str) -> Iterator[str]:
    """Formats one figure per line."""
    changes = figures.period != 1
    degrees = f"{figures.degree_min}..{figures.degree_max}, mean {figures.degree_mean:.2f}"
    regular = figures.degree_min == figures.degree_max
    times = " over a period" if changes and figures.period else ""
    yield f"nodes              {figures.nodes}"
    if changes:
        period = f"{figures.period} rounds" if figures.period else "none; what follows is of round 1"
        yield f"period             {period}"
    yield f"edges              {figures.edges}{times}{' (directed)' if figures.directed else ''}"
    yield f"degree             {figures.degree_min if regular else degrees}{' a round' if changes else ''}"
    yield f"connected          {'yes' if figures.connected else 'no'}"
    yield f"diameter           {_diameter(figures)}"
    stochastic = "doubly stochastic" if figures.doubly_stochastic else "rows sum to 1, columns do not"
    yield f"weights            {weights} ({stochastic})"
    if figures.period is not None:
        yield f"second eigenvalue  {_second(figures)}"
    if changes or figures.exact_after:
        exact = "never" if figures.exact_after is None else f"after {counted(figures.exact_after, 'round')}"
        yield f"exact average      {'unknown' if figures.contraction is None else exact}"
    yield f"rounds to 1e-6     {_rounds(figures)}"


def _diameter(figures: GraphFigures) -> str:
    if figures.diameter is None:
        return "none"
    return counted(figures.diameter, "round") if figures.period != 1 else str(figures.diameter)


def _second(figures: GraphFigures) -> str:
    if figures.contraction is None:
        return "too large to compute"
    return f"{figures.contraction:.6f}{' a round' if figures.period != 1 else ''}"


def _rounds(figures: GraphFigures) -> str:
    if figures.contraction is None:
        return "unknown"
    return "never" if figures.rounds_to_target is None else str(figures.rounds_to_target)
