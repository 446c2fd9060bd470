"""How a process starts and ends: malloc, OpenMP, CUDA, its signals, and threads it does not wait for."""

import contextlib
import ctypes
import os
import platform
import signal
import socket
import stat
import threading
import traceback
from collections.abc import Callable
from functools import cache
from math import nan
from pathlib import Path
from typing import NoReturn

from decentnode.core.control_groups import processors
from decentnode.core.polling import ready
from decentnode.core.streams import flush_output
from decentnode.errors import STOPPED_BY, BadInput

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
LARGEST_KEPT_BLOCK = 64 << 20
MOST_KEPT_BYTES = 128 << 20
"""Bytes of freed memory that a process keeps at most, for its next batch."""
_OPENMP = ("libgomp", "libomp", "libiomp5")
_PR_SET_PDEATHSIG = 1
_MADV_COLLAPSE = 25
"""`madvise` since Linux 6.1; an older kernel refuses it."""
_HUGE = 2 << 20
"""Bytes of a huge page on x86-64 and arm64; the kernel moves nothing where they are others."""
_HARD = 2
"""`omp_pause_hard` (OpenMP 5.0, section 3.6): the library may free all its resources."""
_left_behind: list[threading.Thread] = []


def default_threads(nodes: int) -> int:
    """Threads of torch in each process of a machine with so many nodes.

    The number that the environment sets, as torch reads it; otherwise an equal share of the processors that
    this process may keep busy.
    """
    for name in ("MKL_NUM_THREADS", "OMP_NUM_THREADS"):
        # Of several numbers the first is that of the outer parallel region (OpenMP 5.0, section 6.2).
        value = os.environ.get(name, "").partition(",")[0].strip()
        if value.isdecimal() and int(value):
            return int(value)
    return max(1, processors() // nodes)


@cache
def _libc() -> ctypes.CDLL:
    """The library of C: each object makes a class, and a forked process would copy the memory of that."""
    return ctypes.CDLL(None)


def keep_freed_memory() -> None:
    """Makes malloc keep a batch's memory for the next one.

    Otherwise it returns activations to the kernel, which clears every page again: a third of the evaluation
    time of a convolutional network.
    """
    if hasattr(_libc(), "mallopt"):
        _libc().mallopt(_M_MMAP_THRESHOLD, LARGEST_KEPT_BLOCK)
        _libc().mallopt(_M_TRIM_THRESHOLD, MOST_KEPT_BYTES)


def use_huge_pages() -> None:
    """Moves the memory of this process to huge pages where the kernel can, so that forks of it are cheap.

    A fork copies an entry for each page of the parent and an exit takes it back, 40,000 with torch. Of a huge
    page it is one, until the child writes there.
    """
    try:
        lines = Path("/proc/self/maps").read_text().splitlines()
    except OSError:
        return
    for words in (line.split(maxsplit=5) for line in lines):
        # The heap and other memory that no file has; stacks are small.
        if words[1] == "rw-p" and words[5:] in ([], ["[heap]"]):
            begin, end = (int(address, 16) for address in words[0].split("-"))
            begin, end = -(-begin // _HUGE) * _HUGE, end // _HUGE * _HUGE
            if begin < end:
                _libc().madvise(ctypes.c_void_p(begin), ctypes.c_size_t(end - begin), _MADV_COLLAPSE)


def die_with(parent: int) -> None:
    """Makes the kernel kill this process when its parent ends, also if it has ended already."""
    _libc().prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    # The parent may have died before the call above took effect.
    if os.getppid() != parent:
        os._exit(1)


def end_thread_pools() -> None:
    """Makes OpenMP end its threads; they start again when needed.

    A child forked while they exist has them in its records but not as threads. It would wait for them for
    ever in its first parallel computation.
    """
    for path in _loaded_libraries():
        library = ctypes.CDLL(path, mode=os.RTLD_NOLOAD)
        if hasattr(library, "omp_pause_resource_all"):
            library.omp_pause_resource_all(_HARD)


def _loaded_libraries() -> set[str]:
    """Paths of loaded OpenMP libraries; empty if the system does not list them."""
    try:
        lines = Path("/proc/self/maps").read_text().splitlines()
    except OSError:
        return set()
    paths = {line.split(maxsplit=5)[-1] for line in lines}
    return {path for path in paths if Path(path).name.startswith(_OPENMP)}


def find_gpus_without_cuda() -> None:
    """Makes `torch.cuda.is_available` ask the management library of the driver (NVML), here and in forks.

    By default it starts CUDA, and then no process that is forked later can use a GPU. The first to call it
    may be a module of a plug-in, or torch's own compiler when it is imported.
    """
    os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")


def check_current_folder() -> None:
    """Raises BadInput where the current folder was deleted: relative paths mean nothing there."""
    try:
        os.getcwd()  # noqa: PTH109 - Path.cwd is the same
    except OSError as error:
        raise BadInput("the current folder was deleted; change to one that is there (cd)") from error


def reset_inherited_signals() -> None:
    """Gives signals the meaning that this package expects, whatever the parent process has made of them.

    With SIGCHLD ignored the kernel forgets how children ended; a blocked signal would never arrive.
    """
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def forget_signal_handlers() -> None:
    """Gives each signal that the program handled before this fork its meaning in a new Python."""
    # Python would write signals of this process where an event loop of the program reads its own.
    signal.set_wakeup_fd(-1)
    for signum in signal.valid_signals():
        if callable(signal.getsignal(signum)):
            signal.signal(signum, signal.SIG_DFL)
    if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)


def signals_that_stop() -> list[signal.Signals]:
    """Returns the signals that this process handles: SIGTERM, and others that are not set to be ignored.

    `nohup` makes it ignore the end of the terminal; a shell makes background jobs of a script ignore Ctrl-C.
    """
    return [s for s in STOPPED_BY if s is signal.SIGTERM or signal.getsignal(s) != signal.SIG_IGN]


def exit_by_signals() -> None:
    """Has signals that stop runs end this process as `sys.exit` does, while there is no run to stop."""

    def end(number: int, _: object) -> None:
        raise SystemExit(int(STOPPED_BY[signal.Signals(number)]))

    for signum in signals_that_stop():
        signal.signal(signum, end)


def check_kernel() -> None:
    """Raises BadInput where the kernel or a container lacks a call that runs cannot do without."""
    try:
        os.close(os.pidfd_open(os.getpid()))
    except (OSError, AttributeError) as error:
        reason = getattr(error, "strerror", None) or "not in this Python"
        raise BadInput(
            f"this kernel ({platform.release()}) has no pidfd_open, with which processes are watched: "
            f"{reason}; use Linux 5.3 or newer, and in a container a runtime that allows the call"
        ) from error


def leave_behind(thread: threading.Thread) -> None:
    """Makes the exit of this process not wait for a thread, which may be inside torch then."""
    _left_behind.append(thread)


def some_are_left_behind() -> bool:
    """Whether such a thread still runs."""
    return any(thread.is_alive() for thread in _left_behind)


_not_inherited: set[int] = set()
_listening: set[str] = set()


def close_in_children(fd: int) -> None:
    """Has a descriptor closed in every process that is forked here from now on, until `close_here`.

    Others learn by its end that this process has died, which a worker of a DataLoader must not hide.
    """
    _not_inherited.add(fd)


def close_here(fd: int) -> None:
    """Closes such a descriptor; its number may have another use from then on."""
    _not_inherited.discard(fd)
    os.close(fd)


def close_connections_in_children(endpoint: str) -> None:
    """Has a ZeroMQ endpoint that is bound here closed in forked processes, with its connections."""
    _listening.add(_place_of(endpoint))


def _place_of(endpoint: str) -> str:
    """Returns the path of an ipc endpoint, or the port of a tcp one, because a name has several addresses."""
    return endpoint.removeprefix("ipc://") if endpoint.startswith("ipc") else endpoint.rpartition(":")[2]


def _close_inherited() -> None:
    for fd in _not_inherited:
        os.close(fd)
    _not_inherited.clear()
    # libzmq opens them in a thread of its own, so only their names show which they are.
    for fd in [int(path.name) for path in Path("/proc/self/fd").iterdir()] if _listening else ():
        with contextlib.suppress(OSError):
            if not stat.S_ISSOCK(os.fstat(fd).st_mode):
                continue
            connection = socket.socket(fileno=fd)
            try:
                name = connection.getsockname()
            finally:
                connection.detach()
            if str(name[1] if isinstance(name, tuple) else name) in _listening:
                os.close(fd)
    _listening.clear()


os.register_at_fork(after_in_child=_close_inherited)


def print_error(error: BaseException) -> int:
    """Prints the error that ended the work of a process; returns the exit code."""
    with contextlib.suppress(OSError):
        traceback.print_exception(error)
    return 1


class ForkedProcess:
    """A child of this process, with pipes to it, as the process that forked it sees it."""

    def __init__(
        self, work: Callable[..., int], down: int = 0, up: int = 0,
        failed: Callable[[BaseException], int] = print_error,
    ) -> None:  # fmt: skip
        """Forks a process that exits with the code that `work` returns; raises OSError, and leaves nothing.

        `down`, `up`: the number of pipes from here to the process, and back. `work` gets the ends there, in
        this order, and `ends` has those here. `failed`: returns the exit code after an error of `work`.
        """
        self.ends: list[int] = []
        self._reaped: tuple[int | None, float] | None = None
        self.pid = 0
        ends_there = []
        # The child would write what is still buffered a second time.
        flush_output()
        try:
            for is_up in (*[False] * down, *[True] * up):
                reading, writing = os.pipe()
                here, there = (reading, writing) if is_up else (writing, reading)
                # Also a child that is forked later must not keep it open.
                close_in_children(here)
                self.ends.append(here)
                ends_there.append(there)
            self.pid = os.fork()
            if self.pid:
                self.fd = os.pidfd_open(self.pid) if hasattr(os, "pidfd_open") else -1
                """Readable when the process has ended, and closed by `reap`; -1 where no nodes can run."""
        except OSError:
            if self.pid:
                os.kill(self.pid, signal.SIGKILL)
                os.waitpid(self.pid, 0)
            self.close_ends()
            for fd in ends_there:
                os.close(fd)
            raise
        if self.pid == 0:
            _do(work, ends_there, failed)
        for fd in ends_there:
            os.close(fd)

    def has_ended(self, seconds: float = 0.0) -> bool:
        """Whether it ends within so many seconds."""
        return self._reaped is not None or bool(ready([self.fd], seconds=seconds))

    def kill(self) -> None:
        """Ends it at once, unless it has ended."""
        if self._reaped is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)

    def close_ends(self) -> None:
        """Closes the ends of the pipes here, once."""
        while self.ends:
            close_here(self.ends.pop())

    def reap(self) -> tuple[int | None, float]:
        """Waits for the end; returns the exit code, and the processor seconds with those of its children.

        The code is minus the signal that killed it, where one did. None and nan: this program ignores SIGCHLD
        or has waited for all its children itself, and the kernel keeps neither then.
        """
        if self._reaped is None:
            if self.fd < 0:
                self._reaped = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1]), nan
                return self._reaped
            ready([self.fd])
            os.close(self.fd)
            try:
                _, status, used = os.wait4(self.pid, 0)
                self._reaped = os.waitstatus_to_exitcode(status), used.ru_utime + used.ru_stime
            except ChildProcessError:
                self._reaped = None, nan
        return self._reaped


def _do(work: Callable[..., int], ends: list[int], failed: Callable[[BaseException], int]) -> NoReturn:
    code = 1
    try:
        code = work(*ends)
    except BaseException as error:
        code = failed(error)
    finally:
        flush_output()
        # Not sys.exit: the interpreter's clean-up belongs to the parent.
        os._exit(code)
