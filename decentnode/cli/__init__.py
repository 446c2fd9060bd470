"""The command line: one module per command."""

import os


def main() -> None:
    """Runs the command that the command line names."""
    # Torch warns of each try to reach a store that opens later.
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    from decentnode.cli import app

    app.main()
