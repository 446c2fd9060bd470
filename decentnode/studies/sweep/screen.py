"""One view over all runs of a sweep: a panel on a terminal, otherwise a line for each run that ends."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from math import isnan
from typing import TextIO

from rich.console import Group
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from decentnode.core.text import clock_time
from decentnode.core.timeouts import Timeouts
from decentnode.launcher.report.console import LiveConsole
from decentnode.launcher.report.live_view import DRAW_INTERVAL, LiveScreen, is_capable

MOST_ROWS = 12
"""The most running runs that are shown."""


@dataclass(frozen=True)
class RunningRow:
    """A run that is under way."""

    name: str
    rounds: int
    done: float
    """The mean of the rounds of its nodes."""
    rate: float
    """Rounds in a second; 0 before the first."""
    seconds: float
    """Seconds since the run was forked."""
    times: str = ""
    """The virtual seconds of a simulated run, and how much faster than real time it is."""


@dataclass(frozen=True)
class SweepStanding:
    """How far a sweep is."""

    name: str
    total: int
    done: int
    failed: int
    waiting: int
    seconds: float
    seconds_left: float
    """The seconds left; nan where unknown."""
    running: Sequence[RunningRow]
    stopping: bool = False

    @property
    def time(self) -> str:
        """The time so far, and the time left, as text."""
        left = "" if isnan(self.seconds_left) else f", about {clock_time(self.seconds_left)} left"
        return clock_time(self.seconds) + left


class SweepLines(LiveConsole):
    """Shows the progress of a sweep as plain lines."""

    def open(self) -> None:
        """Is called once, before the first run."""

    def show(self, standing: SweepStanding) -> None:
        """Is called after each change, and at every `interval`."""


class SweepScreen(LiveScreen, SweepLines):
    """Shows plain lines, and below them a panel that is redrawn at most four times a second."""

    interval = DRAW_INTERVAL

    def open(self) -> None:
        with self.dropping():
            if self.has_room(Timeouts.console_line):
                self.begin_live()

    def show(self, standing: SweepStanding) -> None:
        now = time.monotonic()
        if self._live is None or now - self._drawn < DRAW_INTERVAL:
            return
        self._drawn = now
        with self.dropping():
            if self.has_room(0.0):
                self._live.update(panel(standing), refresh=True)


def sweep_screen_for(output: TextIO) -> SweepLines:
    """The panel if the terminal supports it, otherwise plain lines."""
    return SweepScreen(output) if is_capable(output) else SweepLines(output)


def panel(standing: SweepStanding) -> Panel:
    """The whole sweep, then a row for each run that is under way."""
    failed = Text(f"{standing.failed} failed", "bold red" if standing.failed else "")
    counts = Table.grid(padding=(0, 2), expand=True)
    for ratio in (3, 3, 3, 3, 8):
        counts.add_column(ratio=ratio, no_wrap=True)
    bar = ProgressBar(total=standing.total, completed=standing.done, complete_style="blue")
    under_way = f"{len(standing.running)} running"
    counts.add_row(
        f"{standing.done} of {standing.total} done", under_way, f"{standing.waiting} waiting", failed, bar
    )
    rows = Table.grid(padding=(0, 2), expand=True)
    for ratio in (8, 5, 4, 2, 6):
        rows.add_column(ratio=ratio, no_wrap=True)
    for row in standing.running[:MOST_ROWS]:
        rate = f"{row.rate:.2g} a second" if row.rate else "starting"
        bar = ProgressBar(total=row.rounds, completed=row.done, complete_style="cyan")
        rows.add_row(
            row.name, f"round {row.done:.0f} of {row.rounds}", rate, clock_time(row.seconds),
            Text(row.times) if row.times else bar,
        )  # fmt: skip
    title = f"{standing.name}{', stopping' if standing.stopping else ''}"
    return Panel(
        Group(counts, rows), title=Text(title, "bold"), title_align="left", subtitle=Text(standing.time),
        subtitle_align="right", border_style="blue",
    )  # fmt: skip
