"""The commands that read runs: verify, plot, compare, report, frontier, watch, export.

Heavy modules are imported inside.
"""

from pathlib import Path
from typing import Annotated

import typer

from decentnode.cli.words import RunPath, WithItsCode
from decentnode.core.streams import print_line, print_lines
from decentnode.core.text import counted
from decentnode.errors import BadInput, ExitCode

MOST_PROBLEMS = 50
"""Lines that `verify` shows."""


def verify(run: RunPath) -> None:
    """Check that the files of a run belong together: records, checkpoints, evaluations, summary."""
    from decentnode.launcher.recovery.verify import verify as problems_of

    problems = problems_of(run)
    if len(problems) > MOST_PROBLEMS:
        more = counted(len(problems) - MOST_PROBLEMS, "line")
        problems[MOST_PROBLEMS:] = [f"{run}: and {more} more"]
    if problems:
        raise BadInput(*problems)
    print_line(f"{run}: all files belong together")


def plot(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Run directories, shown together.")],
    out: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Where figures go; default: into a single run, or comparison."),
    ] = None,
    metric: Annotated[
        str | None, typer.Option(help="The metric to judge by: local_accuracy; default: the headline metric.")
    ] = None,
) -> None:
    """Draw the figures of one run, or of several for comparison."""
    from decentnode.results.figures import plots as figures

    options = [*(["--out", str(out)] if out else []), *(["--metric", metric] if metric else [])]
    raise typer.Exit(figures.main([*map(str, runs), *options]))


def compare(
    runs: Annotated[
        list[Path], typer.Argument(metavar="RUN|STUDY...", help="Directories of runs, or of studies.")
    ],
    target: Annotated[
        float | None,
        typer.Option(
            help="Headline metric to count costs up to (accuracy: in percent); default: what all reach."
        ),
    ] = None,
    out: Annotated[Path, typer.Option(metavar="FOLDER", help="Where the figures go.")] = Path("comparison"),
    draw: Annotated[bool, typer.Option(help="Draw the figures, too.")] = True,
    metric: Annotated[str | None, typer.Option(help="As for plot.")] = None,
) -> None:
    """Show runs side by side, seeds of a variant together: metric, bytes and time, and figures."""
    from decentnode.results import compare as comparison
    from decentnode.results.figures.curves import chosen_metric
    from decentnode.results.study import read_variants

    variants = chosen_metric(read_variants(runs), metric)
    print_lines(comparison.compare(variants, target))
    if draw:
        from decentnode.results.figures import plots as figures

        print_lines(["", *map(str, figures.draw(variants, out))])


def report(
    runs: Annotated[
        list[Path], typer.Argument(metavar="RUN|STUDY...", help="The directory of a study, or runs.")
    ],
    out: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="The page; default: report.html, in the directory of a study."),
    ] = None,
    paper: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Also write tables and figures for a paper there.")
    ] = None,
    target: Annotated[
        float | None,
        typer.Option(
            help="Headline metric to count costs up to (accuracy: in percent); default: what all reach."
        ),
    ] = None,
    columns: Annotated[
        int, typer.Option(min=1, max=2, help="Columns of the paper that a figure is wide.")
    ] = 1,
) -> None:
    """Show a study, or runs, as one HTML page: tables over seeds, tests, curves, and how to repeat them."""
    from decentnode.studies.report import command

    print_lines(command.report(runs, out, paper, target, columns))


def frontier(
    study: Annotated[
        Path, typer.Argument(metavar="STUDY", help="A study's file or name, or the directory of its runs.")
    ],
    overrides: Annotated[
        list[str] | None, typer.Argument(metavar="KEY=VALUE", help="As for sweep: seeds=3 jobs=1 out=runs/x")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="For table and figure; default: the directory of the runs."),
    ] = None,
) -> None:
    """Show what protection costs: run what is missing of a study, attack its runs, compare its variants."""
    import torch

    from decentnode.cli.frontier import attack_missing, directory_of, show
    from decentnode.studies.sweep import command

    torch.set_num_threads(1)
    directory, is_own = directory_of(study, overrides or ()), not study.is_dir()
    code = ExitCode.OK if not is_own else command.sweep(command.SweepRequest(study, overrides or ()))
    if code is not ExitCode.INTERRUPTED:
        # What the file of a study names was imported to run it, so it may be run again.
        print_lines(attack_missing(directory, with_plugins=is_own))
        print_lines(show(directory, out))
    raise typer.Exit(code)


def watch(
    runs: Annotated[
        list[Path], typer.Argument(metavar="RUN|STUDY...", help="The directory of a study, or runs.")
    ],
    host: Annotated[
        str, typer.Option(help="The address to serve at; others than this machine's need a token.")
    ] = ("127.0.0.1"),
    port: Annotated[int, typer.Option(min=0, max=65535, help="The port; 0: any that is free.")] = 8080,
    token: Annotated[
        str, typer.Option(help="What requests must know; default: drawn where one is needed.")
    ] = "",
    target: Annotated[float | None, typer.Option(help="As for report.")] = None,
) -> None:
    """Serve the page of a report while its runs are in progress."""
    from decentnode.studies.watch import serve

    serve(runs, host, port, token=token, target=target)


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
    from decentnode.cli import export as exports

    if merged:
        print_lines(exports.export_merged(run, out, rank, with_its_code))
        return
    if rank is not None:
        raise BadInput("--rank: is for --merged; evaluations are those of all nodes")
    if with_its_code:
        raise BadInput("--with-its-code: is for --merged; evaluations need no code of the run")
    print_lines(exports.export(run, kind, out, options or ()))
