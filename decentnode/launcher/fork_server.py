"""The parent of a machine's host processes: forks them, tells how they end, and outlives the launcher.

It stays single-threaded and opens no socket, so that a fork copies nothing that breaks when copied.
When the launcher is gone, however it went, the server ends its children and removes what they left.
"""

import contextlib
import ctypes
import errno
import gc
import os
import secrets
import shutil
import signal
import struct
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NoReturn

from decentnode.communication.launcher_link.heartbeats import GO_ON, Activity
from decentnode.communication.launcher_link.reports import Exited, Failed, Restarted
from decentnode.core.polling import ready
from decentnode.core.process_setup import end_thread_pools
from decentnode.core.text import how_it_ended
from decentnode.core.timeouts import Timeouts
from decentnode.errors import STOPPED_BY, ExitCode, RunFailed, StartError
from decentnode.node.host_process import TELL_STACKS, ForkContext, run_host

_PR_SET_PDEATHSIG = 1
INCARNATIONS = 16
"""How many each start of a machine has for one process: the first, and one for each restart."""
KILL, START = b"k", b"s"
_WHICH = struct.Struct("<II")
"""What follows `START`: the position of a host process, and its new incarnation."""
MOST_SOCKET_DIRECTORY_BYTES = 80


class ForkServer:
    """The launcher's end: a process that has everything in memory and forks from it."""

    def __init__(self, fork_context: ForkContext, positions: list[int]) -> None:
        """Forks the server, which forks one host process for each position. No thread runs yet."""
        self._lifeline_end, self._lifeline = os.pipe()
        made, is_made = os.pipe()
        gc.collect()
        gc.freeze()
        end_thread_pools()
        try:
            self.pid = os.fork()
        except OSError as error:
            raise StartError(f"the processes of this machine cannot be started: {error.strerror}") from error
        if self.pid == 0:
            os.close(self._lifeline)
            os.close(made)
            _serve(fork_context, positions, self._lifeline_end, is_made)
        os.close(self._lifeline_end)
        os.close(is_made)
        if not os.read(made, 1):
            _, status = os.waitpid(self.pid, 0)
            if os.WIFSIGNALED(status):
                shutil.rmtree(fork_context.socket_dir, ignore_errors=True)
                how = how_it_ended(-os.WTERMSIG(status))
                raise StartError(f"the process that starts the nodes was {how}")
            raise StartError(f"{fork_context.socket_dir}: a directory for sockets cannot be made there")
        os.close(made)

    def kill(self) -> None:
        """Ends all host processes at once."""
        with contextlib.suppress(OSError):
            os.write(self._lifeline, KILL)

    def start_again(self, position: int, incarnation: int) -> None:
        """Has a host process take the place of the one that ran there, if any; raises RunFailed.

        The server is gone when no process of this machine lives. The first process of a machine that comes
        late is not reported as started again.
        """
        try:
            os.write(self._lifeline, START + _WHICH.pack(position, incarnation))
        except OSError as error:
            raise RunFailed("no process of this machine lives any more; start this machine again") from error

    def close(self) -> None:
        """Lets go of the server, which ends with its children, and waits for it, but not for ever."""
        os.close(self._lifeline)
        # A signal may still come, and the number may belong to another file by then.
        self._lifeline = -1
        with contextlib.suppress(ChildProcessError, ProcessLookupError):
            watched = os.pidfd_open(self.pid)
            if not ready([watched], seconds=Timeouts.server_end):
                os.kill(self.pid, signal.SIGKILL)
            if ready([watched], seconds=Timeouts.server_end):
                os.waitpid(self.pid, 0)
            os.close(watched)


def end_hung(pids: Sequence[int]) -> None:
    """Ends host processes, each of which first writes to its log where it hangs."""
    for word, pause in ((TELL_STACKS, Timeouts.stack_dump), (signal.SIGKILL, 0.0)) if pids else ():
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, word)
        time.sleep(pause)


def _serve(fork_context: ForkContext, positions: list[int], lifeline: int, is_made: int) -> NoReturn:
    """The directory of the sockets is made by the one who removes it even if the launcher is killed."""
    try:
        Path(fork_context.socket_dir).mkdir(0o700)
        os.write(is_made, b"y")
        os.close(is_made)
        fork_context.reporter.let_go_of_the_reading_end()
        ForkServerProcess(fork_context, positions, lifeline).serve()
    finally:
        shutil.rmtree(fork_context.socket_dir, ignore_errors=True)
        os._exit(0)


class ForkServerProcess:
    """The server's end."""

    def __init__(self, fork_context: ForkContext, positions: list[int], lifeline: int) -> None:
        # For the children, too: a signal may go to all processes of a terminal or a service, and it is the
        # launcher that asks the nodes to stop.
        for signum in STOPPED_BY:
            signal.signal(signum, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPPED_BY)
        self._fork_context = fork_context
        self._lifeline: int | None = lifeline
        wake_read, wake_write = os.pipe2(os.O_NONBLOCK)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        self._wake = wake_read
        self._own_fds = (lifeline, wake_read, wake_write)
        self._position: dict[int, int] = {}
        self._restarts: dict[int, int] = dict.fromkeys(positions, 0)
        self._replaced: set[int] = set()
        """Positions whose process has to make room for another one."""
        self._is_over = False
        for position in positions:
            self._fork(position)

    def serve(self) -> None:
        """Until the last child has ended."""
        while self._position:
            watched = [fd for fd in (self._wake, self._lifeline) if fd is not None]
            readable = ready(watched)
            if self._wake in readable:
                os.read(self._wake, 4096)
            if self._lifeline in readable:
                self._obey(os.read(self._lifeline, 1))
            self._reap()

    def _fork(self, position: int) -> None:
        """Starts a process there; where the kernel gives none, its nodes are lost, and nobody else's."""
        server = os.getpid()
        try:
            pid = os.fork()
        except OSError as error:
            for rank in self._fork_context.experiment.processes[position].ranks:
                reason = f"its process could not be started: {error.strerror}"
                self._fork_context.reporter.send(Failed(rank, reason, error.errno == errno.ENOMEM))
            self._fork_context.reporter.send(Exited(position, int(ExitCode.FAILED)))
            return
        if pid == 0:
            die_with(server)
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for fd in self._own_fds:
                os.close(fd)
            run_host(self._fork_context, position, self._restarts[position])
        self._position[pid] = position

    def _obey(self, command: bytes) -> None:
        """The launcher has a wish; or it has gone itself."""
        if not command:
            self._lifeline = None
        if command == START and self._lifeline is not None:
            self._start_again(*_WHICH.unpack(os.read(self._lifeline, _WHICH.size)))
        else:
            self._kill_all()

    def _start_again(self, position: int, incarnation: int) -> None:
        if self._is_over or incarnation <= self._restarts[position]:
            return
        self._restarts[position] = incarnation
        running = [pid for pid, its in self._position.items() if its == position]
        if not running:
            self._fork_anew(position)
        for pid in running:
            self._replaced.add(position)
            os.kill(pid, signal.SIGKILL)

    def _fork_anew(self, position: int) -> None:
        """Says so first: whatever is still to be read of the process before counts for that one."""
        if self._restarts[position] % INCARNATIONS:
            self._fork_context.reporter.send(Restarted(position, None, self._restarts[position]))
        self._fork(position)

    def _kill_all(self) -> None:
        self._is_over = True
        for pid in self._position:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def _reap(self) -> None:
        while self._position:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            code = os.waitstatus_to_exitcode(status)
            position = self._position.pop(pid)
            if position in self._replaced:
                self._replaced.discard(position)
                if not self._is_over:
                    self._fork_anew(position)
            elif self._may_come_back(position, code):
                self._restarts[position] += 1
                self._fork_context.reporter.send(Restarted(position, code, self._restarts[position]))
                self._fork(position)
            else:
                self._fork_context.reporter.send(Exited(position, code))

    def _may_come_back(self, position: int, code: int) -> bool:
        """Whether a process that ended so is started again: in a run that goes on, with all its nodes."""
        fork_context, experiment = self._fork_context, self._fork_context.experiment
        attempts = experiment.settings.failures.restart.attempts
        if code == ExitCode.OK or self._is_over or self._restarts[position] % INCARNATIONS >= attempts:
            return False
        sightings = [fork_context.heartbeats.of(rank).read() for rank in experiment.processes[position].ranks]
        done = any(seen.activity is Activity.END for seen in sightings)
        return (
            bool(fork_context.snapshots.run_id) and fork_context.heartbeats.last_round == GO_ON and not done
        )


def die_with(parent: int) -> None:
    """Has the kernel kill this process when its parent ends, also when that has happened already."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def name_socket_directory() -> str:
    """A new name for a private directory whose ipc paths fit into the 107 bytes that the kernel allows."""
    roomy = len(os.fsencode(tempfile.gettempdir())) <= MOST_SOCKET_DIRECTORY_BYTES
    return f"{tempfile.gettempdir() if roomy else '/tmp'}/decentnode-{secrets.token_hex(4)}"


@contextlib.contextmanager
def hold_signals(*signals: signal.Signals) -> Iterator[None]:
    """Lets signals wait for the end of the block, which sets up whoever takes them."""
    signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, signals)
