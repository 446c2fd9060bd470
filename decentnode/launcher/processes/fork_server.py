"""The parent of a machine's host processes: forks them, reports their exits, and outlives the launcher.

It stays single-threaded and opens no socket, so a fork copies nothing that breaks when copied. When the
launcher ends, in whatever way, the server kills its children and removes their files.
"""

import contextlib
import errno
import fcntl
import gc
import os
import secrets
import shutil
import signal
import struct
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Protocol

from decentnode.communication.base import folder_for_sockets
from decentnode.communication.launcher_link.heartbeats import NO_LAST_ROUND, Activity
from decentnode.communication.launcher_link.reports import Exited, Failed, Restarted
from decentnode.core.polling import ready
from decentnode.core.process_setup import ForkedProcess, die_with, end_thread_pools, use_huge_pages
from decentnode.core.text import how_it_ended
from decentnode.core.timeouts import Timeouts
from decentnode.errors import STOPPED_BY, ExitCode, RunFailed, StartError
from decentnode.node.host_process import PRINT_STACKS, ForkContext, run_host

INCARNATIONS = 16
"""Incarnations of one process per start of a machine: the first, and one for each restart."""
MANY_PROCESSES = 128
"""Forks that save the 0.3 s of the move to huge pages: each takes 4 ms less, and each exit as much."""
KILL, START = b"k", b"s"
HELD = "server.lock"
"""The file in the directory of the sockets that all processes of a run hold."""
_WHICH = struct.Struct("<II")
"""Follows `START`: the position of a host process, and its new incarnation."""


def restarts_of(incarnation: int) -> int:
    """How often a process was restarted since its machine was started; 0 for its first incarnation."""
    return incarnation % INCARNATIONS


class ProcessServer(Protocol):
    """What a launcher asks of who starts its host processes."""

    def kill(self) -> None:
        """Kills all host processes at once."""

    def restart(self, position: int, incarnation: int) -> None:
        """Replaces the host process at this position, or starts one there; raises RunFailed."""

    def close(self) -> None:
        """Ends what it has started, but does not wait for ever."""


class ForkServer:
    """The launcher's end of a process that has everything in memory and forks from it."""

    def __init__(self, fork_context: ForkContext, positions: Sequence[int]) -> None:
        """Forks the server, which forks one host process for each position. No thread may run yet."""
        # A collection in a child would write to, and so copy, every page it shares with the server.
        gc.collect()
        gc.freeze()
        end_thread_pools()
        if len(positions) >= MANY_PROCESSES:
            use_huge_pages()
        try:
            self.process = ForkedProcess(partial(_serve, fork_context, [*positions]), down=1, up=1)
        except OSError as error:
            raise StartError(f"the processes of this machine cannot be started: {error.strerror}") from error
        self._lifeline, is_made = self.process.ends
        # The end of the pipe without a byte means that the server has ended.
        if not os.read(is_made, 1):
            code, _ = self.process.reap()
            self.process.close_ends()
            if code and code < 0:
                shutil.rmtree(fork_context.socket_dir, ignore_errors=True)
                raise StartError(f"the process that starts the nodes was {how_it_ended(code)}")
            raise StartError(f"{fork_context.socket_dir}: a directory for sockets cannot be made there")

    def kill(self) -> None:
        """Kills all host processes at once."""
        with contextlib.suppress(OSError):
            os.write(self._lifeline, KILL)

    def restart(self, position: int, incarnation: int) -> None:
        """Replaces the host process at this position, or starts one there; raises RunFailed.

        The server has ended if no process of this machine lives. The first process of a late machine is not
        reported as restarted.
        """
        try:
            os.write(self._lifeline, START + _WHICH.pack(position, incarnation))
        except OSError as error:
            raise RunFailed("no process of this machine lives any more; start this machine again") from error

    def close(self) -> None:
        """Closes the pipe, so the server ends with its children; waits for it, but not for ever."""
        # A signal handler may still use it, and the number may belong to another file by then.
        self._lifeline = -1
        self.process.close_ends()
        if not self.process.has_ended(Timeouts.server_end):
            # The kernel then kills its children, too (`die_with`).
            self.process.kill()
        if self.process.has_ended(Timeouts.server_end):
            self.process.reap()


def end_hung(pids: Sequence[int]) -> None:
    """Kills host processes; each first writes its stacks to its log."""
    for word, pause in ((PRINT_STACKS, Timeouts.stack_dump), (signal.SIGKILL, 0.0)) if pids else ():
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, word)
        # One pause for all: they write their stacks at the same time.
        time.sleep(pause)


def _serve(fork_context: ForkContext, positions: list[int], lifeline: int, is_made: int) -> int:
    """Runs the server, which creates and removes the directory of the sockets, even if the launcher is
    killed; returns its exit code.
    """
    try:
        Path(fork_context.socket_dir).mkdir(0o700)
    except OSError:
        return 1
    try:
        # Open until the last process of the run has ended, because all inherit it.
        path = f"{fork_context.socket_dir}/{HELD}"
        held = os.open(f"{path}.new", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        fcntl.flock(held, fcntl.LOCK_EX)
        # Only now: a launcher that starts at this moment removes a directory whose file nobody holds.
        os.rename(f"{path}.new", path)  # noqa: PTH104
        os.write(is_made, b"y")
        os.close(is_made)
        # Before any child is forked: a reading end in a child would hide the death of the launcher.
        fork_context.reporter.close_reading_end()
        ForkServerProcess(fork_context, positions, lifeline).serve()
    finally:
        shutil.rmtree(fork_context.socket_dir, ignore_errors=True)
    return 0


class ForkServerProcess:
    """The server's own end."""

    def __init__(self, fork_context: ForkContext, positions: list[int], lifeline: int) -> None:
        # Inherited by the children: a signal may go to all processes of a terminal or a service, but only the
        # launcher stops the nodes.
        for signum in STOPPED_BY:
            signal.signal(signum, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPPED_BY)
        self._fork_context, self._report = fork_context, fork_context.reporter.send
        self._lifeline: int | None = lifeline
        wake_read, wake_write = os.pipe2(os.O_NONBLOCK)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        # A child's death then wakes the poll below, without a race between check and wait.
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        self._wake = wake_read
        self._own_fds = (lifeline, wake_read, wake_write)
        self._running: dict[int, tuple[int, int]] = {}
        """By process id the position and the incarnation of a host process."""
        self._restarts: dict[int, int] = dict.fromkeys(positions, 0)
        """By position the newest incarnation, which is still to come where the running one is replaced."""
        self._is_over = False
        for position in positions:
            self._fork(position)

    def serve(self) -> None:
        """Runs until the last child has ended."""
        while self._running:
            watched = [fd for fd in (self._wake, self._lifeline) if fd is not None]
            readable = ready(watched)
            if self._wake in readable:
                os.read(self._wake, 4096)
            if self._lifeline in readable:
                self._run_command(os.read(self._lifeline, 1))
            self._reap()

    def _fork(self, position: int, status: int | None = None) -> None:
        """Forks a process; if the kernel refuses, only its nodes are lost. `status`: of its predecessor."""
        server, incarnation = os.getpid(), self._restarts[position]
        # The first process of a machine has none. Reported first, so later reports count for the new process.
        if restarts_of(incarnation):
            self._report(Restarted(position, status, incarnation))
        try:
            pid = os.fork()
        except OSError as error:
            for rank in self._fork_context.experiment.processes[position].ranks:
                reason = f"its process could not be started: {error.strerror}"
                self._report(Failed(rank, reason, error.errno == errno.ENOMEM))
            self._report(Exited(position, int(ExitCode.FAILED)))
            return
        if pid == 0:
            # First in the child: it must not outlive a server that dies now.
            die_with(server)
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for fd in self._own_fds:
                os.close(fd)
            run_host(self._fork_context, position, incarnation)
        self._running[pid] = position, incarnation

    def _run_command(self, command: bytes) -> None:
        """Runs a command of the launcher, or ends all if the launcher has ended."""
        # A pipe at its end stays readable, so it must not be polled again.
        if not command:
            self._lifeline = None
        if command == START and self._lifeline is not None:
            self._restart(*_WHICH.unpack(os.read(self._lifeline, _WHICH.size)))
        else:
            # First: the exits that follow must not lead to restarts.
            self._is_over = True
            for pid in self._running:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    def _restart(self, position: int, incarnation: int) -> None:
        # A repeated or delayed request must not replace a newer process.
        if self._is_over or incarnation <= self._restarts[position]:
            return
        self._restarts[position] = incarnation
        running = [pid for pid, (its, _) in self._running.items() if its == position]
        if not running:
            self._fork(position)
        for pid in running:
            # `_reap` forks the successor: it needs the addresses of the dead process.
            os.kill(pid, signal.SIGKILL)

    def _reap(self) -> None:
        attempts = self._fork_context.experiment.settings.failures.restart.attempts
        # One wake-up may stand for several deaths.
        while self._running:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            code = os.waitstatus_to_exitcode(status)
            position, incarnation = self._running.pop(pid)
            # Killed to be replaced, so its exit is no failure.
            if incarnation < self._restarts[position]:
                if not self._is_over:
                    self._fork(position)
            elif code != ExitCode.OK and restarts_of(incarnation) < attempts and self._is_amid(position):
                self._restarts[position] += 1
                self._fork(position, code)
            else:
                self._report(Exited(position, code))

    def _is_amid(self, position: int) -> bool:
        """Whether the nodes of a process are in the midst of the run, so that a restart helps."""
        fork_context, heartbeats = self._fork_context, self._fork_context.heartbeats
        ranks = fork_context.experiment.processes[position].ranks
        activities = {heartbeats.of(rank).read().activity for rank in ranks}
        # A failure before the start cancels the run, and a graceful stop ends it.
        has_begun = bool(fork_context.identity.message_id) and not self._is_over
        # A node that has finished cannot repeat its rounds with neighbors that have left.
        return (
            has_begun
            and (heartbeats.last_round == NO_LAST_ROUND or heartbeats.completes)
            and Activity.END not in activities
        )


def name_socket_directory() -> str:
    """Returns an unused name for a private directory of sockets; removes those of runs that were killed."""
    for path in dead_socket_directories():
        with contextlib.suppress(OSError):
            shutil.rmtree(path)
    return f"{folder_for_sockets()}/decentnode-{secrets.token_hex(4)}"


def dead_socket_directories() -> Iterator[Path]:
    """Yields the directories of sockets of runs that were killed, each locked until the next."""
    for path in Path(folder_for_sockets()).glob(f"decentnode-*/{HELD}"):
        # It may be that of another user, of a run in progress, or be removed meanwhile.
        with contextlib.suppress(OSError), path.open("r+") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield path.parent
