"""What a command from Python shows: the lines of the run, and in a notebook a bar above them."""

import codecs
import contextlib
import sys
import time
from html import escape
from math import isnan, nan
from typing import Any

from decentnode.core.streams import flush_output
from decentnode.core.text import clock_time, simulated_time
from decentnode.launcher.processes.launcher_process import LauncherProcess, RunProgress


class Lines:
    """Writes the output of the run to that of the caller."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("backslashreplace")

    def begin(self, process: LauncherProcess, progress: RunProgress) -> None:
        """Takes the process that does the work, and what it says of itself."""

    def write(self, piece: bytes) -> None:
        """Writes some output, unless the program has closed its own: the run goes on."""
        with contextlib.suppress(OSError, ValueError):
            sys.stdout.write(self._decoder.decode(piece))
        flush_output()

    def show(self, began: float, done: float, rounds: int, virtual: float = nan, wall: float = nan) -> None:
        """Shows how many rounds are done, and since when, on the clock of `time.monotonic`.

        `virtual`, `wall`: the seconds of a simulation and real ones; nan where time is real.
        """

    def close(self) -> None:
        """Shows the end."""


class Silence(Lines):
    """Shows nothing."""

    def write(self, piece: bytes) -> None:
        pass


class NotebookBar(Lines):
    """Updates a bar in the output of the cell, above the lines."""

    def __init__(self, display: Any, html: Any) -> None:
        super().__init__()
        self._html = html
        self._began, self._done, self._rounds = float("nan"), 0.0, 0
        self._handle = display(html(self._bar("starting")), display_id=True)

    def show(self, began: float, done: float, rounds: int, virtual: float = nan, wall: float = nan) -> None:
        if isnan(began) or (done == self._done and self._rounds):
            return
        self._began, self._done, self._rounds = began, done, rounds
        self._update(standing(began, done, rounds, virtual, wall))

    def close(self) -> None:
        is_known = not isnan(self._began)
        after = f" after {clock_time(time.monotonic() - self._began)}" if is_known else ""
        self._update(f"ended{after}, {self._done:.0f} of {self._rounds} rounds" if is_known else "ended")

    def _update(self, text: str) -> None:
        self._handle.update(self._html(self._bar(text)))

    def _bar(self, text: str) -> str:
        style = "width: 24em; vertical-align: middle"
        bar = f'<progress value="{self._done:g}" max="{self._rounds or 1}" style="{style}"></progress>'
        return f"<div>{bar} <span>{escape(text)}</span></div>"


def standing(began: float, done: float, rounds: int, virtual: float = nan, wall: float = nan) -> str:
    """Returns how far a run is, as text; the arguments are those of `Lines.show`."""
    elapsed = time.monotonic() - began
    left = f", about {clock_time(elapsed * (rounds - done) / done)} left" if done else ""
    so_far = clock_time(elapsed) if isnan(virtual) else simulated_time(virtual, wall)
    return f"round {done:.0f} of {rounds}, {so_far}{left}"


def display_for(shows: bool) -> Lines:
    """Returns what shows a run here: a bar in a notebook, lines elsewhere, and nothing if not wanted."""
    if not shows:
        return Silence()
    if not in_notebook():
        return Lines()
    from IPython.display import HTML, display

    return NotebookBar(display, HTML)


def in_notebook() -> bool:
    """Whether this process is the kernel of a notebook."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return hasattr(shell, "kernel")
