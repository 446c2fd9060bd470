"""What commands share: the application, arguments with their placeholders, the examples of `--help`."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

EXIT_CODES = (
    "Exit codes: 0 all nodes finished, 2 bad input, 3 finished but nodes were lost, 4 failed, 5 out of "
    "memory, 130, 143 and 129 ended by Ctrl-C, SIGTERM and the end of the terminal, 138, 140 and 152 by a "
    "batch system's SIGUSR1, SIGUSR2 and SIGXCPU. Anywhere, --debug shows the traceback of an error."
)

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    epilog=EXIT_CODES,
    context_settings={"help_option_names": ["-h", "--help"]},
)
"""Takes the commands of the core (`cli/app.py`), and those of the layers around it (their `commands.py`)."""


def complete_config(typed: str) -> list[str]:
    """Returns shipped configurations, and files and folders here, that begin with what was typed."""
    from decentnode.config.shipped import config_names

    here = [f"{path}/" if path.is_dir() else str(path) for path in Path().glob(f"{typed}*")]
    return [name for name in config_names() if name.startswith(typed)] + [
        path for path in sorted(here) if path.endswith(("/", ".yaml", ".yml"))
    ]


ConfigPath = Annotated[
    Path,
    typer.Argument(
        metavar="CONFIG",
        help="The experiment: a YAML file, or a name from `decentnode list configs`.",
        autocompletion=complete_config,
    ),
]
Overrides = Annotated[
    list[str] | None,
    typer.Argument(metavar="KEY=VALUE", help="Change values of the file: training.optimizer.lr=0.05"),
]
RunPath = Annotated[
    Path, typer.Argument(metavar="RUN", help="The directory of a run, on this machine: runs/quickstart-...")
]

WithItsCode = Annotated[
    bool,
    typer.Option("--with-its-code", help="Run the copies of plug-ins in the run, if you trust who made it."),
]


class Starter(StrEnum):
    """What starts the processes of the machines."""

    RUN = "run"
    TORCHRUN = "torchrun"
    SRUN = "srun"


def examples(*lines: str) -> str:
    """Returns the lines below the options of a command's help: command lines that show it."""
    return "\n\n".join(["Examples:" if len(lines) > 1 else "Example:", *lines])


@contextmanager
def uncollected() -> Iterator[None]:
    """Keeps the garbage collector away from imports and from what they make, since nearly all of it stays."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def import_torch() -> None:
    """Imports torch; the process takes two thirds of the time without the collector."""
    with uncollected():
        import torch

    # Nodes are forked from this process, and other threads would not survive that. A plug-in has set what is
    # another number later.
    torch.set_num_threads(1)
