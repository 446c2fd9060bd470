"""The command line: `decentnode run CONFIG.yaml [key=value ...]` and the other commands."""

import ast
import gc
import os
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from decentnode.cli.convert import convert
from decentnode.cli.download import download
from decentnode.cli.exit import explain, leave
from decentnode.cli.import_config import import_config
from decentnode.cli.of_results import compare, export, frontier, plot, report, verify, watch
from decentnode.cli.words import ConfigPath, Overrides, RunPath, WithItsCode, complete_config, examples
from decentnode.core.process_setup import (
    check_current_folder,
    find_gpus_without_cuda,
    reset_inherited_signals,
)
from decentnode.core.streams import fill_standard_streams, print_line, print_lines
from decentnode.errors import BadInput, ExitCode
from decentnode.mapping.job import job_of_one_task

if TYPE_CHECKING:
    from decentnode.config.overrides import Override
    from decentnode.config.settings import Settings
    from decentnode.launcher.recovery.resume import ResumePlan

EXIT_CODES = (
    "Exit codes: 0 all nodes finished, 2 bad input, 3 finished but nodes were lost, 4 failed, 5 out of "
    "memory, 130, 143 and 129 ended by Ctrl-C, SIGTERM and the end of the terminal, 138, 140 and 152 by a "
    "batch system's SIGUSR1, SIGUSR2 and SIGXCPU. Anywhere, --debug shows the traceback of an error."
)
BENCHMARKS = Path(__file__).resolve().parents[2] / "eval" / "benchmarks"

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    epilog=EXIT_CODES,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def print_version(wanted: bool) -> None:
    """Prints the version and exits, if `wanted`."""
    if wanted:
        from decentnode.core.version import __version__

        print(f"decentnode {__version__}")
        raise typer.Exit


@app.callback()
def decentnode(
    version: Annotated[
        bool,
        typer.Option("--version", callback=print_version, is_eager=True, help="Show the version and exit."),
    ] = False,
) -> None:
    """Decentralized machine learning, one node per process."""


# Heavy modules are imported inside the commands, so that each loads only what it needs.


@app.command(epilog=examples("run"))
def run(config: ConfigPath, overrides: Overrides = None) -> None:
    """Run this machine's part of an experiment."""
    job_of_one_task()
    launch(read(config, overrides), config, overrides or ())


@app.command(epilog=examples("resume"))
def resume(
    run: RunPath,
    overrides: Overrides = None,
    accept_code_change: Annotated[
        bool, typer.Option("--accept-code-change", help="Continue although plug-ins were edited.")
    ] = False,
    with_its_code: WithItsCode = False,
) -> None:
    """Resume a run that was stopped or killed, from the newest round that all nodes were saved after."""
    job = job_of_one_task()
    import_torch()
    from decentnode.launcher.cluster.scheduler import part_of
    from decentnode.launcher.recovery.resume import ResumePlan

    directory = part_of(run, job, overrides or ())
    resume_plan = ResumePlan(directory, overrides or (), accept_code_change, with_its_code)
    launch(resume_plan.settings, resume_plan.config, overrides or (), resume_plan)


def launch(
    settings: "Settings", config: Path, overrides: Sequence[str], resume_plan: "ResumePlan | None" = None
) -> NoReturn:
    """Runs this machine's part and exits with its exit code; `resume_plan`: the run to resume."""
    from decentnode.launcher.start import run_here

    code, _ = run_here(settings, config, overrides, resume_plan=resume_plan)
    raise typer.Exit(code)


@app.command(epilog=examples("sweep"))
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
    part: Annotated[
        str, typer.Option(metavar="I/N", help="On the I-th of N machines with a common directory.")
    ] = "",
    slurm: Annotated[bool, typer.Option("--slurm", help="Print a SLURM array of the missing runs.")] = False,
    submit: Annotated[bool, typer.Option("--submit", help="Submit that array.")] = False,
    accept_code_change: Annotated[
        bool, typer.Option("--accept-code-change", help="Continue although code was edited.")
    ] = False,
) -> None:
    """Run what is missing of a study: many configurations and seeds from one file."""
    import_torch()
    from decentnode.studies.sweep import command

    request = command.SweepRequest(study, overrides or (), accept_code_change, only=only or (), part=part)
    if plan:
        command.show_plan(request)
    elif slurm or submit:
        command.cluster_job(request, submit)
    else:
        raise typer.Exit(command.sweep(request))


@app.command(epilog=examples("validate"))
def validate(
    config: ConfigPath,
    overrides: Overrides = None,
    load: Annotated[bool, typer.Option(help="Load the dataset and make one dry round, too.")] = True,
    resolved: Annotated[
        bool,
        typer.Option("--resolved", help="Print it as YAML with its bases and defaults; loads no dataset."),
    ] = False,
) -> None:
    """Check a configuration; shows every defect at once."""
    settings = read(config, overrides)
    if resolved:
        from decentnode.config.loader import dump

        print_lines(dump(settings).splitlines())
        return
    from decentnode.config.error_locations import with_locations
    from decentnode.graph.declared import notices
    from decentnode.node import dry_round
    from decentnode.node.experiment import Experiment

    graph = settings.graph.make()
    for notice in notices(graph):
        print(notice, file=sys.stderr)
    text = f"{config}: ok, {graph.num_nodes} nodes, graph {settings.graph.name}, model {settings.model.name}"
    if load:
        with with_locations(config, overrides or ()):
            experiment = Experiment.from_settings(settings)
            for notice in dry_round.check(experiment).notices:
                print(notice, file=sys.stderr)
        text += f" with {experiment.layout.size}, {experiment.samples.sizes}"
    print(text)


@app.command(epilog=examples("calibrate"))
def calibrate(
    config: ConfigPath,
    overrides: Overrides = None,
    steps: Annotated[int, typer.Option(min=3, help="Local steps to measure, after ten to warm up.")] = 100,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, with all that was measured.")] = False,
) -> None:
    """Measure a node's local steps on this machine, and print them as `training.pace`."""
    from decentnode.config import extends

    # Before the slow imports.
    extends.read(config)
    import_torch()
    from decentnode.cli.calibrate import report
    from decentnode.config.error_locations import with_locations
    from decentnode.node.calibration import instant_if_missing

    given = [*(overrides or ()), instant_if_missing(config, overrides or ())]
    settings = read(config, given)
    with with_locations(config, given):
        print_lines(report(settings, steps, as_json))


@app.command(epilog=examples("keys"))
def keys(
    config: ConfigPath,
    overrides: Overrides = None,
    out: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Where they go; default: where the experiment looks for them."),
    ] = None,
    machines: Annotated[
        int | None,
        typer.Option(min=1, help="How many, where torchrun or srun starts them elsewhere."),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace keys that are there.")] = False,
) -> None:
    """Make the keys with which the machines of an experiment authenticate each other."""
    # Outside of a job nothing tells who its machines are.
    settings = read(config, overrides if machines is None else [*(overrides or ()), "mapping=null"])
    from decentnode.cli import keys as key_report

    print_lines(key_report.make(settings, config, out, machines=machines, overwrite=force))


@app.command(epilog=examples("graph"))
def graph(
    graph: Annotated[
        str,
        typer.Argument(
            metavar="FILE|NAME|CONFIG", help="A graph file, a family, such as ring, or an experiment."
        ),
    ],
    options: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="KEY=VALUE", help="Options of the graph, or changes of the experiment: nodes=16"
        ),
    ] = None,
    weights: Annotated[
        str, typer.Option(metavar="NAME|FILE", help="Rule or file of the mixing weights of a graph.")
    ] = "",
    draw: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Also draw it, as .png, .svg or .pdf.")
    ] = None,
    rounds: Annotated[
        int | None, typer.Option(help="Rounds that are drawn of a graph that changes; default: at most 6.")
    ] = None,
    color: Annotated[
        str | None, typer.Option(help="Of an experiment's nodes: machine, label (the most common) or none.")
    ] = None,
    network: Annotated[
        bool, typer.Option("--network", help="Of a simulated experiment: latencies and rates instead.")
    ] = False,
) -> None:
    """Show the figures of a graph: size, degrees, diameter, how fast it mixes; or draw it."""
    from decentnode.cli.graph import drawing_of, is_config, report, report_config

    drawing = drawing_of(draw, rounds, color)
    if network and not is_config(graph):
        raise BadInput("--network needs a configuration, such as configs/simulated.yaml")
    if not is_config(graph):
        print_lines(report(graph, options or (), weights, drawing))
        return
    if weights:
        raise BadInput("--weights is for a graph; of an experiment change sharing.weights=RULE")
    settings = read(Path(graph), options)
    from decentnode.config.error_locations import with_locations

    with with_locations(Path(graph), options or ()):
        if network:
            from decentnode.cli.network import report_network

            print_lines(report_network(settings, drawing))
            return
        print_lines(report_config(settings, drawing))


@app.command("peer-sampler", epilog=examples("peer-sampler"))
def peer_sampler(config: ConfigPath, overrides: Overrides = None) -> None:
    """Answer the nodes of an experiment with their neighbors; needs `graph.address`."""
    settings = read(config, overrides)
    import contextlib

    from decentnode.config.error_locations import with_locations
    from decentnode.launcher.peer_service import by_hand

    with with_locations(config, overrides or ()):
        service = by_hand(settings)
    with contextlib.suppress(KeyboardInterrupt):
        service.serve()


@app.command(epilog=examples("privacy"))
def privacy(
    config: ConfigPath,
    overrides: Overrides = None,
    delta: Annotated[
        float | None,
        typer.Option(help="The probability with which epsilon may not hold; default: the run's, or 1e-5."),
    ] = None,
    colluders: Annotated[
        str | None, typer.Option(metavar="RANKS", help="What these learn together: 3,5. Default: all pairs.")
    ] = None,
    draw: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Also draw a heat map, as .png, .svg or .pdf.")
    ] = None,
) -> None:
    """Show what nodes can learn of each other in a run with private steps or muffliato: epsilon of pairs."""
    settings = read(config, overrides)
    from decentnode.cli.privacy import colluders_of, report
    from decentnode.config.error_locations import with_locations

    with with_locations(config, overrides or ()):
        print_lines(report(settings, delta, colluders_of(colluders), draw))


@app.command(epilog=examples("attack"))
def attack(
    run: RunPath,
    overrides: Overrides = None,
    with_its_code: WithItsCode = False,
) -> None:
    """Attack what the passive adversaries of a run have recorded, and show what they learn."""
    import_torch()
    import torch

    from decentnode.cli.attack import report

    torch.set_num_threads(1)
    print_lines(report(run, overrides or (), with_its_code))


@app.command(epilog=examples("partition"))
def partition(
    config: ConfigPath,
    overrides: Overrides = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, with all ranks.")] = False,
    draw: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Also draw it, as .png, .svg or .pdf.")
    ] = None,
    figure: Annotated[Path | None, typer.Option(hidden=True)] = None,
) -> None:
    """Show which training samples each rank has, without training."""
    settings = read(config, overrides)
    from decentnode.cli.partition import report
    from decentnode.config.error_locations import with_locations

    with with_locations(config, overrides or ()):
        print_lines(report(settings, as_json, draw or figure))


@app.command(epilog=examples("tune"))
def tune(config: ConfigPath, overrides: Overrides = None) -> None:
    """Find the gamma of a compressed scheme on an experiment's graph, by simulating consensus."""
    settings = read(config, overrides)
    import torch

    from decentnode.cli.tune import report
    from decentnode.config.error_locations import with_locations

    torch.set_num_threads(1)
    with with_locations(config, overrides or ()):
        print_lines(report(settings))


@app.command("list", epilog=examples("list"))
def list_plugins(
    word: Annotated[
        str | None,
        typer.Argument(metavar="KIND|NAME", help="sharing, choco; configs: what is shipped to be run."),
    ] = None,
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="One of that kind, with its options: choco.")
    ] = None,
    options: Annotated[
        bool, typer.Option("--options", help="Also the options of all that are shown.")
    ] = False,
) -> None:
    """Show the plug-ins that a configuration can name, or one with its options, or shipped configurations."""
    if word in ("config", "configs"):
        from decentnode.cli.shipped import list_configs

        print_lines(list_configs())
        return
    import_torch()
    from decentnode.cli.list_plugins import plugin_lines

    print_lines(plugin_lines(word, name, options))


@app.command(epilog=examples("new"))
def new(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Its name is that of the experiment.")],
    parts: Annotated[
        list[str] | None,
        typer.Option("--with", metavar="PARTS", help="Own plug-ins, too: scheme, dataset, model, graph."),
    ] = None,
) -> None:
    """Make a folder with an experiment to start from, and plug-ins of your own; never overwrites anything."""
    from decentnode.cli.new import make_folder, parts_of

    print_lines(make_folder(folder, parts_of(",".join(parts or ()))))


@app.command(epilog=examples("show"))
def show(
    name: Annotated[str, typer.Argument(metavar="NAME", help="quickstart, studies/quick, ring_16.edges.")],
) -> None:
    """Print a shipped configuration or graph for a copy of your own, which works in any folder."""
    from decentnode.cli.shipped import text_of

    print_lines(text_of(name).splitlines())


for command in (verify, plot, compare, report, frontier, watch, export, download, convert):
    app.command(epilog=examples(command.__name__))(command)


@app.command(epilog=examples("status"))
def status(
    run: RunPath,
) -> None:
    """Show the state of a run, node by node, and which nodes wait for which; or how it ended."""
    from decentnode.cli.status import report

    print_lines(report(run))


# Unknown options are arguments then: -1 becomes a wrong rank, with an error for it.
@app.command(epilog=examples("restart"), context_settings={"ignore_unknown_options": True})
def restart(
    run: RunPath,
    rank: Annotated[int, typer.Argument(metavar="RANK", min=0, help="A lost node of this machine.")],
) -> None:
    """Restart a node whose process died, in a running experiment."""
    from decentnode.cli.status import request_restart

    print_lines([request_restart(run, rank)])


# Its own help option would replace that of every benchmark.
@app.command(
    epilog=examples("bench"),
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []},
)
def bench(
    context: typer.Context,
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="A benchmark; without it, they are listed.")
    ] = None,
) -> None:
    """Run a benchmark of the checkout, with its own arguments; `bench NAME --help` shows them."""
    if name in ("-h", "--help"):
        print_lines([context.get_help()])
        return
    scripts = {
        path.stem: path for path in sorted(BENCHMARKS.glob("[!_]*.py")) if "__main__" in path.read_text()
    }
    if not scripts:
        raise BadInput(f"bench: {BENCHMARKS} has no benchmarks; run this from a checkout of the source")
    if name is None:
        print_lines(f"{stem:<12} {first_line(path)}" for stem, path in scripts.items())
        return
    if name not in scripts:
        raise BadInput(f"bench: unknown benchmark '{name}' (known: {', '.join(scripts)})")
    os.execv(sys.executable, [sys.executable, str(scripts[name]), *context.args])


@app.command(epilog=examples("doctor"))
def doctor(
    config: Annotated[
        Path | None,
        typer.Argument(
            metavar="CONFIG",
            help="Also check what this experiment needs.",
            autocompletion=complete_config,
        ),
    ] = None,
    overrides: Overrides = None,
    only_limits: Annotated[
        bool,
        typer.Option("--limits", help="Only print the time limits: those of CONFIG, or the defaults."),
    ] = False,
) -> None:
    """Check whether this machine can run nodes, with a remedy for each problem."""
    settings = read(config, overrides) if config else None
    import_torch()
    from decentnode.cli.doctor import LIMITS_HEADING, examine, limits
    from decentnode.config.error_locations import with_locations
    from decentnode.config.settings import FailureSettings
    from decentnode.launcher.cluster.scheduler import this_machine

    if only_limits:
        timeouts = settings.failures.timeouts if settings else FailureSettings().timeouts
        print_lines([LIMITS_HEADING, *map(str, limits(timeouts))])
        return
    failed, machine = False, 0
    if config and settings:
        with with_locations(config, overrides or ()):
            machine = this_machine(settings)
    for finding in examine(settings, machine):
        print_line(str(finding))
        failed = failed or finding.level == "fail"
    if settings:
        print_lines(["", LIMITS_HEADING])
        print_lines(map(str, limits(settings.failures.timeouts)))
    raise typer.Exit(ExitCode.FAILED if failed else ExitCode.OK)


@app.command(epilog=examples("schema"))
def schema() -> None:
    """Print the JSON schema of configurations, for editors."""
    import json

    import_torch()
    from decentnode.config.json_schema import json_schema
    from decentnode.core.packages import load_plugins

    load_plugins()
    print_lines([json.dumps(json_schema(), indent=2)])


app.command("import", epilog=examples("import"))(import_config)


def read(config: Path, overrides: Sequence["Override"] | None) -> "Settings":
    """An experiment's settings; reports a file that cannot be read before the slow imports."""
    from decentnode.config import extends

    document = extends.read(config)
    import_torch()
    from decentnode.config.error_locations import plugin_errors_as_bad_input
    from decentnode.config.loader import understand

    with plugin_errors_as_bad_input():
        return understand(document, overrides or ())


def import_torch() -> None:
    """Imports torch; the process takes two thirds of the time, because the collector skips what stays."""
    gc.disable()
    import torch

    # Nodes are forked from this process, and other threads would not survive that. A plug-in has set what is
    # another number later.
    torch.set_num_threads(1)

    gc.freeze()
    gc.enable()


def first_line(script: Path) -> str:
    """The first line of a script's docstring; does not run the script."""
    return (ast.get_docstring(ast.parse(script.read_text())) or "").split("\n", 1)[0]


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Runs a command and ends the process with its exit code."""
    fill_standard_streams()
    find_gpus_without_cuda()
    # A notebook names a backend that matplotlib may not have here, and its import would fail.
    os.environ["MPLBACKEND"] = "agg"
    reset_inherited_signals()
    typed_words = list(sys.argv[1:] if arguments is None else arguments)
    words = [word for word in typed_words if word != "--debug"]
    code: int = ExitCode.FAILED
    try:
        check_current_folder()
        code = app(words, "decentnode", standalone_mode=False) or 0
    except SystemExit:
        raise
    except BaseException as error:
        if len(words) < len(typed_words):
            traceback.print_exc()
        code = explain(error)
    leave(code)


if __name__ == "__main__":
    main()
