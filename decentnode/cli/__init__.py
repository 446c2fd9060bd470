"""The command line: one module per command."""


def main() -> None:
    """Runs the command that the command line names."""
    from decentnode.cli import app

    app.main()
