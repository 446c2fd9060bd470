"""Writes a graph file.

    python generate_graph.py -g Regular -n 16 -d 4 -s 1 -f out.edges

Takes decentralizepy's flags and names, and every graph that `decentnode list` shows.
"""

import argparse
import sys
from dataclasses import fields
from typing import NoReturn

from pydantic import TypeAdapter, ValidationError
from pydantic_core import ErrorDetails

from decentnode.core.registry import GRAPHS, guess
from decentnode.errors import BadInput, ExitCode, GraphError
from decentnode.graph.base import SEED, StaticGraph
from decentnode.graph.files import GraphFile, write_graph

# flag, long name, the option of the graph that it sets, what it is
FLAGS = (
    ("-n", "--nodes", "nodes", "number of nodes"),
    ("-s", "--seed", "seed", f"seed of random graphs ({SEED}, as that of a run)"),
    ("-d", "--degree", "degree", "neighbors of each node (Regular, SmallWorld)"),
    ("-k", "--kover2", "degree", "half the degree (SmallWorld)"),
    ("-b", "--beta", "rewire", "probability that an edge is rewired (SmallWorld)"),
    ("-p", "--probability", "probability", "probability of each edge (ErdosRenyi)"),
    ("-r", "--rows", "rows", "rows (Grid, Torus)"),
    ("-c", "--columns", "columns", "columns (Grid, Torus)"),
    ("-e", "--dimension", "dimension", "log2 of the number of nodes (Hypercube)"),
)


class OneLineParser(argparse.ArgumentParser):
    """Says what is wrong in one line, without the usage before it."""

    def error(self, message: str) -> NoReturn:
        self.exit(ExitCode.BAD_INPUT, f"generate_graph.py: {message}\n")


def parse(arguments: list[str]) -> argparse.Namespace:
    """The flags; those not given are None."""
    parser = OneLineParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-g", "--graph", required=True, help=f"one of {', '.join(families())}")
    for flag, name, _, meaning in FLAGS:
        parser.add_argument(flag, name, help=meaning)
    parser.add_argument("-f", "--file", required=True, help="the file to write")
    parser.add_argument("-a", "--adjacency", action="store_true", help="write lists of neighbors, not edges")
    return parser.parse_args(arguments)


def families() -> dict[str, type[StaticGraph]]:
    """Graphs that can be generated, by class name (decentralizepy's names among them)."""
    classes = GRAPHS.classes().values()
    # A file has no labels.
    return {
        cls.__name__: cls
        for cls in classes
        if issubclass(cls, StaticGraph) and cls is not GraphFile and not cls.needs_labels
    }


def find(name: str) -> type[StaticGraph]:
    """The graph of that class name or registry name; raises GraphError."""
    known = families()
    known |= {other: cls for other, cls in GRAPHS.classes().items() if cls in known.values()}
    for other, cls in GRAPHS.classes().items():
        if name in (other, cls.__name__) and not issubclass(cls, StaticGraph):
            raise GraphError(
                f"{name} changes from round to round, and a file holds one graph; "
                f"name it in the configuration: graph: {{name: {other}, ...}}"
            )
    if name not in known:
        names = ", ".join(families())
        raise GraphError(f"unknown graph '{name}'{guess(name, list(known))} (known: {names})")
    return known[name]


def chosen_options(cls: type[StaticGraph], flags: argparse.Namespace) -> dict[str, str | int]:
    """The options set by flags; a seed is accepted by every graph, as decentralizepy does."""
    takes = {field.name for field in fields(cls)}  # type: ignore[arg-type]
    options: dict[str, str | int] = {}
    for _, name, option, _ in FLAGS:
        value = getattr(flags, name[2:])
        if value is None or (option == "seed" and option not in takes):
            continue
        if option not in takes:
            raise GraphError(f"{cls.__name__} takes no {name} (takes: {', '.join(sorted(takes))})")
        if option in options:
            raise GraphError(f"{name} sets {option}, which another flag sets, too; leave one out")
        options[option] = 2 * int(value) if name == "--kover2" and value.isdecimal() else value
    return options


def build(cls: type[StaticGraph], options: dict[str, str | int]) -> StaticGraph:
    """The graph with these options; raises GraphError with one line for each that is wrong."""
    try:
        graph: StaticGraph = TypeAdapter(cls).validate_python(options)
    except ValidationError as error:
        raise GraphError(*(f"{cls.__name__} {_explain(e)}" for e in error.errors())) from error
    return graph


def _explain(defect: ErrorDetails) -> str:
    option = defect["loc"][0]
    if defect["type"] == "missing":
        return f"needs --{option}"
    return f"--{option}: {defect['msg'][0].lower()}{defect['msg'][1:]}, got '{defect['input']}'"


def main(arguments: list[str]) -> int:
    """Writes the file; returns the exit code."""
    flags = parse(arguments)
    try:
        cls = find(flags.graph)
        graph = build(cls, chosen_options(cls, flags))
        write_graph(graph, flags.file, "adjacency" if flags.adjacency else "edges")
    except BadInput as error:
        print("\n".join(f"generate_graph.py: {defect}" for defect in error.defects), file=sys.stderr)
        return error.exit_code
    return ExitCode.OK


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
