"""`decentnode import`: a configuration of decentralizepy and its driver's arguments as one of ours."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from decentnode.core.streams import print_line, print_lines
from decentnode.core.text import counted
from decentnode.errors import BadInput

if TYPE_CHECKING:
    from decentnode.interop.conversion import Conversion


def import_config(
    config: Annotated[Path, typer.Argument(metavar="FILE", help="The configuration of decentralizepy.")],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(metavar="KEY=VALUE", help="Change values of the result: dataset=digits"),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Where the result goes; default: standard output.")
    ] = None,
    iterations: Annotated[int | None, typer.Option("--iterations", "-is", help="Rounds.")] = None,
    graph: Annotated[
        Path | None, typer.Option("--graph", "-gf", metavar="FILE", help="The graph file.")
    ] = None,
    graph_type: Annotated[
        str | None, typer.Option("--graph-type", "-gt", help="edges or adjacency; default: by the file.")
    ] = None,
    test_after: Annotated[int, typer.Option("--test-after", "-ta", help="Rounds between evaluations.")] = 5,
    ip: Annotated[
        Path | None, typer.Option("--ip", metavar="FILE", help="Addresses of the machines, in JSON.")
    ] = None,
    machines: Annotated[int | None, typer.Option("--machines", "-ms", help="How many of them.")] = None,
    procs: Annotated[
        str, typer.Option("--procs-per-machine", "-ps", help="Nodes of each machine: 16, or 16,8.")
    ] = "",
    machine_id: Annotated[int | None, typer.Option("--machine-id", "-mid", help="This machine.")] = None,
    log_dir: Annotated[str | None, typer.Option("--log-dir", "-ld", help="Where results go.")] = None,
    weights_store_dir: Annotated[
        str | None,
        typer.Option("--weights-store-dir", "-wsd", help="Keep the last models, with the results."),
    ] = None,
    tea: Annotated[str | None, typer.Option("-tea", hidden=True)] = None,
    ro: Annotated[str | None, typer.Option("-ro", hidden=True)] = None,
    ll: Annotated[str | None, typer.Option("-ll", hidden=True)] = None,
    sm: Annotated[str | None, typer.Option("-sm", hidden=True)] = None,
    sr: Annotated[str | None, typer.Option("-sr", hidden=True)] = None,
    wr: Annotated[str | None, typer.Option("-wr", hidden=True)] = None,
) -> None:
    """Convert a configuration of decentralizepy; the flags of its drivers are taken as they are."""
    from decentnode.interop.driver_arguments import Arguments, processes
    from decentnode.interop.imported_file import converted

    others = {"-tea": tea, "-ro": ro, "-ll": ll, "-sm": sm, "-sr": sr, "-wr": wr}
    arguments = Arguments(
        iterations=iterations,
        graph=graph,
        graph_type=graph_type,
        test_after=test_after,
        ip=ip,
        machines=machines,
        processes=processes(procs),
        machine_id=machine_id,
        log_dir=log_dir,
        weights_store_dir=weights_store_dir,
        others={flag: value for flag, value in others.items() if value is not None},
    )
    made, text = converted(config, arguments, overrides or (), out=out)
    if out is None:
        print_lines(text.splitlines())
    else:
        write(text, out)
    for line in summary(made, config):
        print(line, file=sys.stderr)


def write(text: str, out: Path) -> None:
    """Writes the result to a new file; raises BadInput."""
    try:
        with out.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError as error:
        raise BadInput(f"{out}: exists; remove it, or name another file") from error
    except OSError as error:
        raise BadInput(f"{out}: cannot be written: {error.strerror}") from error
    print_line(f"{out}")


def summary(conversion: "Conversion", config: Path) -> list[str]:
    """The keys that a person has to check, one line each."""
    lines = []
    if keys := conversion.missing_keys:
        lines.append(f"{config}: {counted(len(keys), 'key')} without a counterpart: {', '.join(keys)}")
    if conversion.notes:
        count = counted(len(conversion.notes), "key")
        lines.append(
            f"{config}: {count} not quite the same here; the comments of the result say what differs"
        )
    return lines
