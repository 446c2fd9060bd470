"""The address of a run's control socket."""

import os
from pathlib import Path

import msgspec

from decentnode.errors import UNDECODABLE, BadInput
from decentnode.launcher.monitoring.control_socket import LIVE
from decentnode.results.reader import Live


def live_of(run_dir: Path) -> Live | None:
    """The control socket of the run; None if no launcher has published one. Raises BadInput if it is
    no run.
    """
    if not os.path.exists(run_dir / "config.yaml"):  # noqa: PTH110 - too long, or not ours
        raise BadInput(f"{run_dir}: not the directory of a run; name one that holds a config.yaml")
    try:
        return msgspec.json.decode((run_dir / LIVE).read_bytes(), type=Live)
    except (OSError, *UNDECODABLE):
        return None
