"""Which descriptors have something to read or room to write, whatever their numbers are."""

import math
import select
from collections.abc import Iterable


def ready(readers: Iterable[int], writers: Iterable[int] = (), seconds: float | None = None) -> list[int]:
    """Waits for the first of them, at most `seconds`; gives those that are ready, or whose other end is gone.

    Not `select.select`, which takes no descriptor from 1024 on: a process with many nodes has more.
    """
    wanted = dict.fromkeys(readers, select.POLLIN)
    for fd in writers:
        wanted[fd] = wanted.get(fd, 0) | select.POLLOUT
    watch = select.poll()
    for fd, events in wanted.items():
        watch.register(fd, events)
    seconds = math.inf if seconds is None else max(0.0, seconds)
    return [fd for fd, _ in watch.poll(None if seconds == math.inf else math.ceil(1000 * seconds))]
