"""A process that works beside the nodes, for the launcher that forks it."""

import contextlib
import os
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from decentnode.core.polling import ready
from decentnode.core.process_setup import die_with, end_thread_pools
from decentnode.core.streams import redirect_output
from decentnode.errors import STOPPED_BY, StartError


class ChildProcess:
    """The launcher's end: it learns when the process ends, and ends it."""

    def __init__(self, name: str, work: Callable[[], object], log: Path, outlives: bool = False) -> None:
        """Forks a process that does `work` and exits; raises StartError. No thread may run yet.

        `outlives`: it is not killed when the launcher dies, so it must notice that itself.
        """
        self.log = log
        end_thread_pools()
        launcher = os.getpid()
        try:
            self.pid = os.fork()
        except OSError as error:
            raise StartError(f"{name} cannot be started: {error.strerror}") from error
        if self.pid == 0:
            # First: it must not outlive a launcher that dies now.
            if not outlives:
                die_with(launcher)
            _run(work, log)
        self.fd = os.pidfd_open(self.pid)
        """Readable when the process has ended."""

    def has_ended(self, seconds: float = 0.0) -> bool:
        """Whether it ends within so many seconds."""
        return bool(ready([self.fd], seconds=seconds))

    def kill(self) -> None:
        """Ends it at once, unless it has ended."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)

    def close(self) -> int:
        """Kills it, and waits for its end; returns its exit code, or minus the signal that ended it."""
        self.kill()
        os.close(self.fd)
        try:
            _, status = os.waitpid(self.pid, 0)
        except ChildProcessError:  # this launcher was started with SIGCHLD ignored
            return 0
        return os.waitstatus_to_exitcode(status)


def _run(work: Callable[[], object], log: Path) -> NoReturn:
    """Works and ends the process."""
    code = 1
    try:
        # A signal may go to all processes of a terminal, but only the launcher ends this one.
        for signum in STOPPED_BY:
            signal.signal(signum, signal.SIG_IGN)
        redirect_output(log)
        work()
        code = 0
    except BaseException as error:
        with contextlib.suppress(OSError):
            traceback.print_exception(error)
            sys.stderr.flush()
    finally:
        # Not sys.exit: the interpreter's clean-up belongs to the parent of the fork.
        os._exit(code)
