"""How a process starts and ends: malloc and OpenMP, signals that it obeys, threads that its exit ignores."""

import ctypes
import os
import signal
import threading
from pathlib import Path

from decentnode.errors import STOPPED_BY

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
LARGEST_KEPT_BLOCK = 64 << 20
MOST_KEPT_BYTES = 128 << 20
"""What a process keeps of freed memory at most, for its next batch."""
_OPENMP = ("libgomp", "libomp", "libiomp5")
_HARD = 2
"""`omp_pause_hard` (OpenMP 5.0, section 3.6): nothing that the library keeps is needed any more."""
_left_behind: list[threading.Thread] = []


def keep_freed_memory() -> None:
    """Lets malloc keep a batch's memory for the next one.

    Otherwise it returns activations to the kernel, which clears every page anew: a third of the time of a
    convolutional network's evaluation.
    """
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt"):
        libc.mallopt(_M_MMAP_THRESHOLD, LARGEST_KEPT_BLOCK)
        libc.mallopt(_M_TRIM_THRESHOLD, MOST_KEPT_BYTES)


def end_thread_pools() -> None:
    """Has OpenMP let go of its threads; they begin anew when next needed.

    A child forked while they are there has them on its books but not in its process, and waits for them for
    ever in its first computation on several threads.
    """
    for path in _loaded_libraries():
        library = ctypes.CDLL(path, mode=os.RTLD_NOLOAD)
        if hasattr(library, "omp_pause_resource_all"):
            library.omp_pause_resource_all(_HARD)


def _loaded_libraries() -> set[str]:
    """Where those of OpenMP lie; none where the system does not say what is loaded."""
    try:
        lines = Path("/proc/self/maps").read_text().splitlines()
    except OSError:
        return set()
    paths = {line.split(maxsplit=5)[-1] for line in lines}
    return {path for path in paths if Path(path).name.startswith(_OPENMP)}


def signals_that_stop() -> list[signal.Signals]:
    """What this process is to obey: under nohup nobody wants it to hear that the terminal is closed."""
    is_deaf = signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    return [signum for signum in STOPPED_BY if not (is_deaf and signum is signal.SIGHUP)]


def leave_behind(thread: threading.Thread) -> None:
    """Has the exit of this process not wait for a thread that may be amid torch then."""
    _left_behind.append(thread)


def some_are_left_behind() -> bool:
    """Whether a thread that was left behind still runs."""
    return any(thread.is_alive() for thread in _left_behind)
