"""The command line: `decentnode run CONFIG.yaml [key=value ...]` and the other commands."""

import ast
import os
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from decentnode.cli.download import download
from decentnode.cli.exit import explain, leave
from decentnode.cli.launch import launch as launch_scripts
from decentnode.cli.words import (
    ConfigPath,
    Overrides,
    RunPath,
    Starter,
    WithItsCode,
    app,
    complete_config,
    examples,
    import_torch,
    uncollected,
)
from decentnode.core.hooks import found
from decentnode.core.process_setup import (
    check_current_folder,
    check_kernel,
    find_gpus_without_cuda,
    reset_inherited_signals,
)
from decentnode.core.streams import fill_standard_streams, print_line, print_lines
from decentnode.core.text import counted
from decentnode.errors import BadInput, ExitCode, RunFailed
from decentnode.mapping.job import job_of_one_task

if TYPE_CHECKING:
    from decentnode.config.overrides import Override
    from decentnode.config.settings import Settings
    from decentnode.launcher.recovery.resume import ResumePlan

GROUPS = {
    "Runs": ("run", "launch", "resume", "repeat", "status", "restart", "clean"),
    "Before a run": (
        "new", "show", "list", "validate", "doctor", "download", "prepare", "graph", "partition", "tune",
        "calibrate", "privacy", "schema", "import", "convert",
    ),
    "Results": ("plot", "compare", "report", "verify", "export", "attack"),
    "Studies": ("sweep", "watch", "frontier"),
    "Several machines": ("commands", "keys", "peer-sampler"),
    "Development": ("bench",),
}  # fmt: skip
"""The commands below the headings of `decentnode --help`, in their order there."""
MOST_PROBLEMS = 50
"""Lines that `verify` shows."""
BENCHMARKS = Path(__file__).resolve().parents[2] / "eval" / "benchmarks"


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


@app.command(
    epilog=examples(
        "decentnode run quickstart",
        "decentnode run mine.yaml rounds=5 training.optimizer.lr=0.05 communication=inproc",
        "decentnode run mine.yaml --continue run_dir=runs/mine",
    )
)
def run(
    config: ConfigPath,
    overrides: Overrides = None,
    or_resume: Annotated[
        bool,
        typer.Option("--continue", help="Resume the run if this command has begun it (needs a run_dir)."),
    ] = False,
) -> None:
    """Run this machine's part of an experiment."""
    job_of_one_task()
    settings = read(config, overrides, announces_defects=True)
    launch(settings, config, overrides or (), or_resume=or_resume)


@app.command(epilog=examples("decentnode resume runs/mine", "decentnode resume runs/mine rounds=80"))
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


@app.command(epilog=examples("decentnode repeat runs/mine", "decentnode repeat runs/mine --with-its-code"))
def repeat(run: RunPath, overrides: Overrides = None, with_its_code: WithItsCode = False) -> None:
    """Do a run once more in a new directory; says what differs now, and whether the models are the same."""
    job = job_of_one_task()
    import_torch()
    check_kernel()
    from decentnode.launcher.cluster.scheduler import part_of
    from decentnode.launcher.repeat import repeat_here

    code, _ = repeat_here(part_of(run, job, overrides or ()), overrides or (), with_its_code)
    raise typer.Exit(code)


def launch(
    settings: "Settings", config: Path, overrides: Sequence[str], resume_plan: "ResumePlan | None" = None,
    or_resume: bool = False,
) -> NoReturn:  # fmt: skip
    """Runs this machine's part and exits with its exit code; `resume_plan`: the run to resume.

    `or_resume`: whether an earlier start of the same command may have begun it.
    """
    # Before the import of what other systems lack.
    check_kernel()
    with uncollected():
        from decentnode.launcher.start import run_here

    code, _ = run_here(settings, config, overrides, resume_plan=resume_plan, or_resume=or_resume)
    raise typer.Exit(code)


@app.command(
    epilog=examples(
        "decentnode validate quickstart",
        "decentnode validate mine.yaml --resolved",
        "decentnode validate choco sharing.gamma=0.4 --no-load",
    )
)
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
    from decentnode.node.privacy.notices import notices_of, notices_of_trial

    graph = settings.graph.make()
    for notice in notices(graph):
        print(notice, file=sys.stderr)
    text = f"{config}: ok, {graph.num_nodes} nodes, graph {settings.graph.name}, model {settings.model.name}"
    if load:
        with with_locations(config, overrides or ()):
            experiment = Experiment.from_settings(settings)
            dataset = experiment.samples.dataset
            of_privacy = [*notices_of(experiment), *notices_of_trial(experiment)]
            for notice in [*dataset.notices, *of_privacy, *dry_round.check(experiment).notices]:
                print(notice, file=sys.stderr)
        print_lines(dataset.schema)
        text += f" with {experiment.layout.size}, {experiment.samples.sizes}"
    print(text)


@app.command(
    epilog=examples(
        "decentnode calibrate quickstart",
        "decentnode calibrate mine.yaml training.threads=1 --steps 300 > pace.yaml",
        "decentnode calibrate simulated --json",
    )
)
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


@app.command(
    epilog=examples(
        "decentnode commands mine.yaml",
        "decentnode commands mine.yaml rounds=80 --with torchrun --port 29401",
        "decentnode commands mine.yaml --ssh",
    )
)
def commands(
    config: ConfigPath,
    overrides: Overrides = None,
    starter: Annotated[
        Starter, typer.Option("--with", help="What starts the processes of each machine.")
    ] = Starter.RUN,
    port: Annotated[
        int | None,
        typer.Option(min=1, max=65_535, help="That of torchrun at machine 0; default: 29400, if it is free."),
    ] = None,
    ssh: Annotated[
        bool, typer.Option("--ssh", help="Start them: this host's here, the others over ssh.")
    ] = False,
    or_resume: Annotated[
        bool, typer.Option("--continue", help="With --ssh: resume the run if it was begun before.")
    ] = False,
) -> None:
    """Print the command that starts each machine, after checks of addresses, ports and keys."""
    settings = read(config, overrides)
    if ssh:
        if starter is not Starter.RUN or port is not None:
            raise BadInput("--ssh starts `decentnode run` on each machine; leave --with and --port out")
        from decentnode.cli.machine_commands import commands_over_ssh
        from decentnode.cli.ssh import run_over_ssh
        from decentnode.config.error_locations import with_locations

        with with_locations(config, overrides or ()):
            commands = commands_over_ssh(settings, config, overrides or (), or_resume)
        raise typer.Exit(run_over_ssh(commands))
    if or_resume:
        raise BadInput("--continue is for --ssh; add that, or write it behind each printed command")
    from decentnode.cli.machine_commands import command_lines
    from decentnode.config.error_locations import with_locations

    with with_locations(config, overrides or ()):
        lines = [*command_lines(settings, config, overrides or (), starter, port)]
    print_lines(lines)


@app.command(epilog=examples("decentnode keys mine.yaml", "decentnode keys mine.yaml --out keys --force"))
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


@app.command(
    epilog=examples(
        "decentnode graph torus rows=4 columns=4",
        "decentnode graph ring_16.edges --draw ring.svg",
        "decentnode graph quickstart --draw labels.png --color label",
        "decentnode graph simulated --network --draw network.png",
    )
)
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
        raise BadInput("--network needs a configuration, such as simulated")
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


@app.command("peer-sampler", epilog=examples("decentnode peer-sampler peer_sampler graph.address=127.0.0.1"))
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


@app.command(
    epilog=examples(
        "decentnode privacy dp_sgd", "decentnode privacy muffliato --colluders 3,5 --draw pairs.svg"
    )
)
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


@app.command(
    epilog=examples(
        "decentnode partition quickstart",
        "decentnode partition quickstart dataset.partition.alpha=0.1 --draw labels.svg",
    )
)
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


@app.command(epilog=examples("decentnode tune choco", "decentnode tune choco graph=ring_16.edges"))
def tune(config: ConfigPath, overrides: Overrides = None) -> None:
    """Find the gamma of a compressed scheme on an experiment's graph, by simulating consensus."""
    settings = read(config, overrides)
    import torch

    from decentnode.cli.tune import report
    from decentnode.config.error_locations import with_locations

    torch.set_num_threads(1)
    with with_locations(config, overrides or ()):
        print_lines(report(settings))


@app.command(
    "list",
    epilog=examples(
        "decentnode list configs",
        "decentnode list sharing",
        "decentnode list sharing choco",
        "decentnode list transform --options",
    ),
)
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


@app.command(
    epilog=examples("decentnode new mixing", "decentnode new mixing --with scheme,dataset,model,graph")
)
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


@app.command(
    epilog=examples("decentnode show quickstart > mine.yaml", "decentnode show ring_16.edges > ring.edges")
)
def show(
    name: Annotated[str, typer.Argument(metavar="NAME", help="quickstart, studies/quick, ring_16.edges.")],
) -> None:
    """Print a shipped configuration or graph for a copy of your own, which works in any folder."""
    from decentnode.cli.shipped import text_of

    print_lines(text_of(name).splitlines())


@app.command(epilog=examples("decentnode verify runs/mine"))
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


@app.command(
    epilog=examples("decentnode clean", "decentnode clean runs/old --dry-run", "decentnode clean --yes")
)
def clean(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Of runs, or one run.")] = Path("runs"),
    yes: Annotated[bool, typer.Option("--yes", help="Delete without asking.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only list, and delete nothing.")] = False,
    caches: Annotated[
        bool, typer.Option("--caches", help="Also images that were decoded for all runs of this user.")
    ] = False,
) -> None:
    """List what can be deleted of runs that have ended, with sizes, and ask; results always stay."""
    if not folder.is_dir():
        raise BadInput(f"{folder}: no such folder; name the one that has the runs")
    import_torch()
    from decentnode.cli.clean import delete, leftovers, lines_about

    found = [*leftovers(folder, caches)]
    if not found:
        print_line(f"{folder}: nothing to delete")
        return
    print_lines(lines_about(found))
    if dry_run:
        return
    if not yes:
        if not os.isatty(0):
            raise BadInput("nothing was deleted: no terminal to ask; add --yes, or --dry-run to list")
        if not typer.confirm("delete all of this?"):
            print_line("nothing was deleted")
            return
    if problems := delete(found):
        raise RunFailed("\n".join(problems))
    print_line("deleted")


app.command(
    epilog=examples("decentnode download cifar10", "decentnode download idx variant=kmnist --to data")
)(download)
app.command(
    "launch",
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
    epilog=examples(
        "decentnode launch --nodes 4 train.py --epochs 3",
        "decentnode launch --config ring.yaml --set checkpoint.every=10 train.py",
        "decentnode launch --nodes 4 -m package.train",
    ),
)(launch_scripts)


@app.command(epilog=examples("decentnode status runs/mine"))
def status(
    run: RunPath,
) -> None:
    """Show the state of a run, node by node, and which nodes wait for which; or how it ended."""
    from decentnode.cli.status import report

    print_lines(report(run))


# Unknown options are arguments then: -1 becomes a wrong rank, with an error for it.
@app.command(
    epilog=examples("decentnode restart runs/mine 3"), context_settings={"ignore_unknown_options": True}
)
def restart(
    run: RunPath,
    rank: Annotated[int, typer.Argument(metavar="RANK", min=0, help="A lost node of this machine.")],
) -> None:
    """Restart a node whose process died, in a running experiment."""
    from decentnode.cli.status import request_restart

    print_lines([request_restart(run, rank)])


# Its own help option would replace that of every benchmark.
@app.command(
    epilog=examples("decentnode bench", "decentnode bench mix --help"),
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


@app.command(
    epilog=examples("decentnode doctor", "decentnode doctor mine.yaml", "decentnode doctor --limits")
)
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


@app.command(epilog=examples("decentnode schema > decentnode.schema.json"))
def schema() -> None:
    """Print the JSON schema of configurations, for editors."""
    import json

    import_torch()
    from decentnode.config.json_schema import json_schema
    from decentnode.core.packages import load_plugins

    load_plugins()
    print_lines([json.dumps(json_schema(), indent=2)])


# The commands of the layers around the core.
found("commands")
in_groups = {name: group for group, names in GROUPS.items() for name in names}
for command in app.registered_commands:
    name = command.name = command.name or str(getattr(command.callback, "__name__", ""))
    command.rich_help_panel = in_groups.get(name)
app.registered_commands.sort(key=lambda command: [*in_groups, command.name].index(command.name))


def read(config: Path, overrides: Sequence["Override"] | None, announces_defects: bool = False) -> "Settings":
    """An experiment's settings; reports a file that cannot be read before the slow imports.

    `announces_defects`: the other machines of the run are told of defects, so that they do not wait.
    """
    from decentnode.config import extends

    document = extends.read(config)
    import_torch()
    with uncollected():
        from decentnode.config.error_locations import plugin_errors_as_bad_input
        from decentnode.config.loader import understand

    try:
        with plugin_errors_as_bad_input():
            return understand(document, overrides or ())
    except BadInput as error:
        if announces_defects:
            from decentnode.launcher.early_end import announce_defects

            announce_defects(config, overrides or (), error)
        raise


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
