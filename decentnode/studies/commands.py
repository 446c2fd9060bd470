"""The commands of studies: sweep, report, frontier, watch.

Heavy modules are imported inside.
"""

from pathlib import Path
from typing import Annotated

import typer

from decentnode.cli.words import app, complete_config, examples, import_torch
from decentnode.core.streams import print_lines
from decentnode.errors import BadInput, ExitCode
from decentnode.results.figure_options import (
    FontOption,
    FormatOption,
    LabelOption,
    SizeOption,
    StyleOption,
)


@app.command(
    epilog=examples(
        "decentnode sweep studies/quick --plan",
        "decentnode sweep studies/quick seeds=3 jobs=1",
        "decentnode sweep study.yaml --on slurm",
    )
)
def sweep(
    study: Annotated[
        Path,
        typer.Argument(
            metavar="STUDY",
            help="The study: a YAML file, or a name from `decentnode list configs`.",
            autocompletion=complete_config,
        ),
    ],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(metavar="KEY=VALUE", help="Change values of the file: seeds=3 jobs=1 out=runs/x"),
    ] = None,
    plan: Annotated[bool, typer.Option("--plan", help="Only show the plan.")] = False,
    only: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Only this run; may be repeated.")
    ] = None,
    on: Annotated[
        str | None,
        typer.Option(metavar="EXECUTOR", help="What starts the runs: local, slurm, ray, dask, submitit."),
    ] = None,
    lists: Annotated[bool, typer.Option("--list", help="Only list the runs, with states.")] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="With --list: as JSON, with the command of each run.")
    ] = False,
    shared: Annotated[
        bool, typer.Option("--shared", help="Other programs may have this machine: seconds do not compare.")
    ] = False,
    accept_code_change: Annotated[
        bool, typer.Option("--accept-code-change", help="Continue although code was edited.")
    ] = False,
) -> None:
    """Run what is missing of a study: many configurations and seeds from one file."""
    import_torch()
    from decentnode.studies.sweep import command

    changes = [*(overrides or ()), *([f"on={on}"] if on else [])]
    request = command.SweepRequest(study, changes, accept_code_change, only=only or (), is_shared=shared)
    if as_json and not lists:
        raise BadInput("--json: is a form of --list; add that")
    if lists:
        command.list_runs(request, as_json)
    elif plan:
        command.show_plan(request)
    else:
        raise typer.Exit(command.sweep(request))


@app.command(
    epilog=examples(
        "decentnode report runs/quick", "decentnode report runs/quick --paper paper --style two_columns"
    )
)
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
    style: StyleOption = "paper",
    font: FontOption = None,
    size: SizeOption = None,
    label: LabelOption = None,
    format: FormatOption = None,
) -> None:
    """Show a study, or runs, as one HTML page: tables over seeds, tests, curves, and how to repeat them."""
    from decentnode.studies.report import command

    look = {"name": style, "font": font, "size": size, "labels": label or (), "formats": format}
    print_lines(command.report(runs, out, paper, target, look))


@app.command(
    epilog=examples("decentnode frontier studies/privacy seeds=1", "decentnode frontier runs/privacy")
)
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

    from decentnode.studies.frontier import attack_missing, directory_of, show
    from decentnode.studies.sweep import command

    torch.set_num_threads(1)
    directory, is_own = directory_of(study, overrides or ()), not study.is_dir()
    code = ExitCode.OK if not is_own else command.sweep(command.SweepRequest(study, overrides or ()))
    if code is not ExitCode.INTERRUPTED:
        # What the file of a study names was imported to run it, so it may be run again.
        print_lines(attack_missing(directory, with_plugins=is_own))
        print_lines(show(directory, out))
    raise typer.Exit(code)


@app.command(epilog=examples("decentnode watch runs/quick --port 8000"))
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
