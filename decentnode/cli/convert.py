"""`decentnode convert`: measurements of others as files of a simulation."""

from pathlib import Path
from typing import Annotated

import typer

from decentnode.core.streams import print_lines


def complete_kind(typed: str) -> list[str]:
    """Returns the kinds of files that begin with what was typed."""
    from decentnode.interop.simulation_inputs import KINDS

    return [kind for kind in KINDS if kind.startswith(typed)]


def convert(
    kind: Annotated[
        str,
        typer.Argument(
            metavar="KIND",
            help="fedscale-capacity, fedscale-availability, flash, king, wonderproxy, matrix.",
            autocompletion=complete_kind,
        ),
    ],
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Your copy of the measurements.")],
    nodes: Annotated[int | None, typer.Option(help="How many nodes to draw; default: all.")] = None,
    seed: Annotated[int, typer.Option(help="That of the draw.")] = 0,
    out: Annotated[Path, typer.Option(metavar="FOLDER", help="Where the files go.")] = Path(),
    unit: Annotated[
        str | None, typer.Option(help="us, ms or s, of latencies; default: us for king, ms for wonderproxy.")
    ] = None,
    one_way: Annotated[
        bool,
        typer.Option("--one-way", help="Latencies are one way; otherwise round trips, which are halved."),
    ] = False,
    complete: Annotated[
        bool, typer.Option("--complete", help="Leave out nodes until no pair lacks a latency.")
    ] = False,
    hours: Annotated[
        float | None, typer.Option(help="How long availability lasts, repeated; default: the longest trace.")
    ] = None,
) -> None:
    """Convert measured latencies, device speeds or availability of others into files for a simulation."""
    from decentnode.interop import simulation_inputs

    converted = simulation_inputs.convert(
        kind,
        file,
        nodes=nodes,
        seed=seed,
        out=out,
        unit=unit,
        one_way=one_way,
        complete=complete,
        hours=hours,
    )
    print_lines([*map(str, converted.paths), *converted.lines])
