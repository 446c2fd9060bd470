"""A process that works beside the nodes, for the launcher that forks it."""

import os
import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path

from decentnode.core.process_setup import ForkedProcess, die_with, end_thread_pools
from decentnode.core.streams import redirect_output
from decentnode.errors import STOPPED_BY, StartError


class ChildProcess(ForkedProcess):
    """The launcher's end: it learns when the process ends, and ends it."""

    def __init__(
        self, name: str, work: Callable[..., object], log: Path, outlives: bool = False, down: int = 0,
        up: int = 0,
    ) -> None:  # fmt: skip
        """Forks a process that does `work` and exits; raises StartError. No thread may run yet.

        `outlives`: it is not killed when the launcher dies, so it must notice that itself. `down`, `up`: the
        number of pipes there and back.
        """
        self.log = log
        end_thread_pools()
        try:
            super().__init__(partial(_run, work, log, None if outlives else os.getpid()), down, up)
        except OSError as error:
            raise StartError(f"{name} cannot be started: {error.strerror}") from error

    def close(self) -> int:
        """Kills it, and waits for its end; returns its exit code, or minus the signal that ended it."""
        self.kill()
        code, _ = self.reap()
        return code or 0


def _run(work: Callable[..., object], log: Path, launcher: int | None, *ends: int) -> int:
    # First: it must not outlive a launcher that dies now.
    if launcher is not None:
        die_with(launcher)
    # A signal may go to all processes of a terminal, but only the launcher ends this one.
    for signum in STOPPED_BY:
        signal.signal(signum, signal.SIG_IGN)
    redirect_output(log)
    work(*ends)
    return 0
