"""Events of a run outside of its rounds: kept in events.jsonl, and shown if they matter to the user."""

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import msgspec

from decentnode.core.line_file import LineFile, RateLimiter
from decentnode.formats.reader import Event


class EventLog:
    """The events of a run that one launcher records."""

    def __init__(self, path: Path, show: Callable[[str], object]) -> None:
        """`show` receives the lines for the screen."""
        self.lost_results: list[str] = []
        """What could not be written in the end, one line each."""
        self._disk_warnings = {lost: RateLimiter() for lost in (False, True)}
        """For waiting lines and for lost lines, because all nodes have the same disk."""
        self._began = time.monotonic()
        self._show = show
        self._file = LineFile(path, partial(self.log, "disk"))

    def log(
        self, kind: str, text: str, rank: int | None = None, round: int | None = None,
        peer: int | None = None, shown: bool = True,
    ) -> Event:  # fmt: skip
        """Records an event, and returns it; `shown`: whether it concerns the user now."""
        # To the millisecond.
        seconds = float(f"{time.monotonic() - self._began:.3f}")
        # A path may have bytes that are not valid text.
        valid = text.encode(errors="backslashreplace").decode()
        event = Event(seconds, kind, valid, rank, round, peer)
        self._file.append(msgspec.json.encode(event))
        if shown:
            self._show(text)
        return event

    def disk_problem(self, rank: int, problem: str, is_lost: bool) -> None:
        """Records that a file of a node's results cannot be written: lines wait in memory, or are lost."""
        text = f"rank {rank}: {problem}"
        if is_lost:
            self.lost_results.append(text)
        self.log("disk", text, rank, shown=self._disk_warnings[is_lost].allows())

    def close(self) -> None:
        """Closes the file; lines that it did not accept are lost, too."""
        problem = self._file.close()
        if problem:
            self.lost_results.append(problem)
            self._show(problem)
