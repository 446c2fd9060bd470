"""The commands for files of others: import, convert, export.

Heavy modules are imported inside.
"""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from decentnode.cli.words import WithItsCode, app, examples, import_torch
from decentnode.core.streams import print_line, print_lines
from decentnode.core.text import counted
from decentnode.errors import BadInput

if TYPE_CHECKING:
    from decentnode.interop.conversion import Conversion


@app.command("import", epilog=examples("decentnode import config.ini graph=ring_16.edges --out mine.yaml"))
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
    cf: Annotated[Path | None, typer.Option("-cf", hidden=True)] = None,
) -> None:
    """Convert a configuration of decentralizepy; the flags of its drivers are taken as they are."""
    from decentnode.interop.driver_arguments import Arguments, processes
    from decentnode.interop.imported_file import converted

    if cf not in (None, config):
        raise BadInput(f"-cf: {cf} is not FILE, which is {config}; name the configuration once, as FILE")
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


def complete_kind(typed: str) -> list[str]:
    """Returns the kinds of files that begin with what was typed."""
    from decentnode.interop.simulation_inputs import KINDS

    return [kind for kind in KINDS if kind.startswith(typed)]


@app.command(
    epilog=examples(
        "decentnode convert king matrix --nodes 64 --out king",
        "decentnode convert fedscale-availability client_behave_trace --nodes 64 --hours 48",
    )
)
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


@app.command(
    epilog=examples(
        "decentnode export runs/mine",
        "decentnode export runs/mine --format decentralizepy --out exported",
        "decentnode export runs/adapters --merged --out weights.safetensors",
    )
)
def export(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The directory of a run, on this machine.")],
    options: Annotated[
        list[str] | None, typer.Argument(metavar="KEY=VALUE", help="Options of a writer: project=mixing")
    ] = None,
    kind: Annotated[str, typer.Option("--format", help="decentralizepy, or a writer: csv, wandb.")] = "csv",
    out: Annotated[
        Path | None, typer.Option(metavar="FILE|FOLDER", help="Where it goes; default: in the run.")
    ] = None,
    merged: Annotated[
        bool, typer.Option("--merged", help="Write whole weights, with adapters added, for model.pretrained.")
    ] = False,
    rank: Annotated[
        int | None,
        typer.Option(min=0, help="The node whose weights --merged writes; default: the mean of all."),
    ] = None,
    with_its_code: WithItsCode = False,
) -> None:
    """Write the evaluations of a run for another tool, also of a run that was killed."""
    from decentnode.interop import export as exports

    if merged:
        print_lines(exports.export_merged(run, out, rank, with_its_code))
        return
    if rank is not None:
        raise BadInput("--rank: is for --merged; evaluations are those of all nodes")
    if with_its_code:
        raise BadInput("--with-its-code: is for --merged; evaluations need no code of the run")
    print_lines(exports.export(run, kind, out, options or ()))


def complete_prepared(typed: str) -> list[str]:
    """Returns the data sets that begin with what was typed."""
    from decentnode.interop.preparation.data_sets import DATA_SETS

    return [name for name in DATA_SETS if name.startswith(typed)]


@app.command(
    epilog=examples(
        "decentnode prepare imagenet data/imagenet",
        "decentnode prepare imagenet /scratch/imagenet size=64 cache_path=/scratch/cache",
        "decentnode prepare wmt14 data/wmt14_en_fr target=fr --processes 16",
        "decentnode prepare openwebtext data/openwebtext",
    )
)
def prepare(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME", help="imagenet, wmt14 or openwebtext.", autocompletion=complete_prepared
        ),
    ],
    folder: Annotated[
        Path, typer.Argument(metavar="FOLDER", help="That of its raw files; what is made goes there, too.")
    ],
    options: Annotated[
        list[str] | None,
        typer.Argument(metavar="KEY=VALUE", help="Options of the data set, as in a configuration: size=64"),
    ] = None,
    processes: Annotated[
        int | None, typer.Option(min=1, help="How many; default: one for each processor.")
    ] = None,
    unchecked: Annotated[
        bool, typer.Option("--unchecked", help="Take raw files that are not those that were published.")
    ] = False,
) -> None:
    """Make what configurations read from the raw files of a data set; may be repeated, and continues."""
    import_torch()
    from decentnode.interop.preparation.data_sets import prepare as prepare_files

    print_lines(prepare_files(name, folder, options or (), processes, checks_sums=not unchecked))
