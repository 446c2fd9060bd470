"""The log of a simulated network: one line for each delivered message."""

from collections.abc import Callable
from pathlib import Path

from decentnode.core.line_file import LineFile
from decentnode.simulation.clock import VirtualClock

NAME = "network.csv"
"""The file, in the directory of the run."""
HEADER = b"delivered,number,sent,source,target,bytes"
"""Times in virtual nanoseconds; messages are numbered in the order in which they were sent."""


class DeliveryLog:
    """Writes the deliveries of a run in their order; the log of a node has what a full disk refuses."""

    def __init__(self, directory: Path, clock: VirtualClock) -> None:
        """Continues the log of a run that is resumed, and keeps what was sent until now.

        What is not repeated of a faster node, whose checkpoint is of a later time, is missing.
        """
        path = directory / NAME
        # A kill may have cut off the last line.
        lines = path.read_bytes().split(b"\n")[1:-1] if path.exists() else []
        kept = [line for line in lines if int(line.split(b",")[2]) <= clock.nanoseconds]
        path.write_bytes(b"".join(line + b"\n" for line in (HEADER, *kept)))
        self._clock = clock
        self._sent = max((int(line.split(b",")[1]) for line in kept), default=0)
        self._file = LineFile(path, lambda problem: print(problem, flush=True))

    def logged(
        self, source: int, target: int, size: int, deliver: Callable[[], object]
    ) -> Callable[[], object]:
        """Returns what delivers a message of so many bytes that is sent now, and writes its line."""
        self._sent += 1
        end_of_line = b"%d,%d,%d,%d,%d" % (self._sent, self._clock.nanoseconds, source, target, size)

        def deliver_and_log() -> None:
            self._file.append(b"%d,%s" % (self._clock.nanoseconds, end_of_line))
            deliver()

        return deliver_and_log

    def close(self) -> None:
        """Ends the log; prints what could not be written."""
        if problem := self._file.close():
            print(problem, flush=True)
