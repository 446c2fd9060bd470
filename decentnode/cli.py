"""The command line: `decentnode run CONFIG.yaml [key=value ...]` and what belongs to it."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from decentnode.errors import BadInput, DecentnodeError, ExitCode

app = typer.Typer(add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False)
ConfigPath = Annotated[Path, typer.Argument(help="The experiment's YAML file.")]
Overrides = Annotated[list[str] | None, typer.Argument(help="Dotted overrides, key=value.")]


@app.callback()
def decentnode() -> None:
    """Decentralized machine learning, one node per process."""


@app.command()
def run(config: ConfigPath, overrides: Overrides = None) -> None:
    """Run this machine's part of an experiment."""
    # Imported here, because loading torch takes a second that the other commands need not spend.
    import torch

    torch.set_num_threads(1)
    import torch._dynamo

    from decentnode.experiment import Experiment
    from decentnode.launcher import Launcher
    from decentnode.screen import Screen

    experiment = Experiment.from_yaml(config, overrides or ())
    machine = experiment.settings.machine
    if machine is None:
        machine = experiment.mapping.find_machine()
    raise typer.Exit(Launcher(experiment, machine, Screen(sys.stdout)).run())


def main() -> None:
    """Runs a command; what a user can correct is one line on standard error, without a traceback."""
    try:
        app()
    except BadInput as error:
        print(error, file=sys.stderr)
        sys.exit(ExitCode.BAD_INPUT)
    except DecentnodeError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main()
