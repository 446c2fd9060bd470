"""How a process ends: the signals that it obeys, and the threads that its exit does not wait for."""

import signal
import threading

from decentnode.errors import STOPPED_BY

_left_behind: list[threading.Thread] = []


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
