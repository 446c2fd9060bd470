"""Polls descriptors of any number for input or room."""

import math
import select
from collections.abc import Iterable


def ready(readers: Iterable[int], writers: Iterable[int] = (), seconds: float | None = None) -> list[int]:
    """Waits at most `seconds` for the first; returns all that are ready, or whose other end has closed.

    Not `select.select`, which is limited to descriptors below 1024; a process with many nodes has more.
    """
    wanted = dict.fromkeys(readers, select.POLLIN)
    for fd in writers:
        wanted[fd] = wanted.get(fd, 0) | select.POLLOUT
    watch = select.poll()
    for fd, events in wanted.items():
        watch.register(fd, events)
    seconds = math.inf if seconds is None else max(0.0, seconds)
    return [fd for fd, _ in watch.poll(None if seconds == math.inf else math.ceil(1000 * seconds))]
