"""`decentnode restart`: requests the launcher of a run to restart a node."""

from pathlib import Path

import msgspec

from decentnode.errors import BadInput, DecentnodeError
from decentnode.launcher.cluster.late_join import RESTART
from decentnode.launcher.monitoring.control_socket import NOBODY_THERE, Request, ask, live_of


def request_restart(run_dir: Path, rank: int) -> str:
    """The launcher's reply to `decentnode restart`; raises BadInput where it refuses."""
    live = live_of(run_dir)
    if live is None:
        raise BadInput(f"{run_dir}: no launcher answers here: the run has not started, or has ended")
    try:
        return msgspec.json.decode(ask(live.control, Request(RESTART, str(rank))), type=str)
    except NOBODY_THERE:
        raise BadInput(f"{run_dir}: its launcher (pid {live.pid}) not found; start it again") from None
    except DecentnodeError as error:
        raise BadInput(f"{run_dir}: {error}") from None
