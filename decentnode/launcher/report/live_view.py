"""The live view of a run in a terminal: a panel below the plain lines."""

import os
import time
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from math import isfinite
from statistics import fmean
from typing import TextIO

import numpy as np
from rich.console import Console, ConsoleOptions, Group
from rich.control import Control
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.segment import ControlType
from rich.table import Table
from rich.text import Text

from decentnode.core.streams import silence
from decentnode.core.text import clock_time, decimal, readable_bytes, simulated_time
from decentnode.core.timeouts import Timeouts
from decentnode.formats.metrics import ACCURACY, LOSS, Metric
from decentnode.formats.reader import EvaluationRow
from decentnode.launcher.report.console import LiveConsole
from decentnode.launcher.state.membership import MembershipTable, MemberState
from decentnode.node.experiment import Experiment
from decentnode.options import ENDLESS

DRAW_INTERVAL = 0.25
"""Seconds between two updates."""
MARKS, ASCII_MARKS = " ▁▂▃▄▅▆▇█", " .:-=+*#"
"""Marks of a histogram, by height."""
BINS = 16
MANY_NODES = 64
"""From so many nodes on, the panel has histograms."""
SHARE = 0.02
"""The most of its time that the launcher counts and draws."""
RATE_SECONDS = 5.0
"""Seconds over which the rate of sending is averaged."""


def screen_for(output: TextIO) -> LiveConsole:
    """Returns the live view if the terminal supports it, otherwise plain lines."""
    return LiveScreen(output) if is_capable(output) else LiveConsole(output)


def is_capable(output: TextIO) -> bool:
    """Whether it is a terminal that can redraw lines."""
    return os.environ.get("TERM", "dumb") not in ("dumb", "unknown") and output.isatty()


@dataclass
class Standing:
    """The progress of all nodes."""

    states: Counter[MemberState] = field(default_factory=Counter)
    slowest: int = 0
    fastest: int = 0
    """Rounds done by nodes that are not lost."""
    done: float = 0.0
    """The mean of the rounds done."""
    sent: int = 0
    loss: float | None = None
    epsilon: float | None = None
    """The most that a node's private steps have spent."""
    virtual_seconds: float | None = None
    """The time of a simulation, at the latest end of a round; None: time is real, or no round has ended."""
    rounds: Sequence[int] = ()
    """The rounds done by each node that is not lost."""

    @classmethod
    def of(cls, membership: MembershipTable) -> "Standing":
        """Sums up the standing of all nodes; lost ones count for the bytes alone."""
        members = membership.members.values()
        live = [member for member in members if member.state is not MemberState.LOST]
        rounds = [member.round + 1 for member in live] or [0]
        losses = [member.loss for member in live if member.loss is not None]
        spent = [member.epsilon for member in live if member.epsilon is not None]
        virtual = [member.virtual_seconds for member in members if member.virtual_seconds is not None]
        return cls(
            Counter(member.state for member in members), min(rounds), max(rounds), fmean(rounds),
            sum(member.bytes_sent for member in members), fmean(losses) if losses else None,
            max(spent, default=None), max(virtual, default=None), rounds,
        )  # fmt: skip


@dataclass(frozen=True)
class Histogram:
    """How many of some numbers are in each of some bins, as a line of characters, from the least to the most.

    A bin with any number has a mark; the highest mark is that of the largest bin.
    """

    values: Sequence[float]
    name: str = ""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
        known = [value for value in self.values if isfinite(value)]
        counts, _ = np.histogram(known, BINS)
        marks = ASCII_MARKS if options.ascii_only else MARKS
        levels = np.ceil(counts * (len(marks) - 1) / max(1, counts.max())).astype(int)
        yield Text(self.name + "".join(marks[level] for level in levels), no_wrap=True, overflow="crop")


@dataclass
class Dashboard:
    """The content of the panel, independent of a terminal."""

    name: str
    rounds: int
    began: float
    done_before: float = 0.0
    """Rounds done before this start, in a resumed run."""
    seconds_before: float = 0.0
    """Real seconds of the run before this start."""
    is_tested: bool = True
    """Whether the run has any evaluation."""
    metric: Metric = ACCURACY
    row: EvaluationRow | None = None
    standing: Standing = field(default_factory=Standing)
    _sent: deque[tuple[float, int]] = field(default_factory=deque)

    def update(self, standing: Standing, now: float) -> None:
        """Records the progress at `now`, on the clock of `began`."""
        self.standing = standing
        self._sent.append((now, standing.sent))
        while now - self._sent[0][0] > RATE_SECONDS:
            self._sent.popleft()

    def evaluated(self, row: EvaluationRow) -> None:
        """Records an evaluation, unless there is one of a later round."""
        if self.row is None or row.round >= self.row.round:
            self.row = row

    @property
    def rate(self) -> float:
        """Bytes per second that all nodes sent recently."""
        (first, before), (last, after) = self._sent[0], self._sent[-1]
        return (after - before) / (last - first) if last > first else 0.0

    def seconds_left(self, now: float) -> float | None:
        """Returns the time of the remaining rounds at the mean speed since the start."""
        done = self.standing.done - self.done_before
        is_known = done > 0.0 and self.rounds < ENDLESS
        return (now - self.began) * (self.rounds - self.standing.done) / done if is_known else None

    def panel(self, now: float) -> Panel:
        """Returns the panel, seven lines high, of many nodes eight."""
        left, virtual = self.seconds_left(now), self.standing.virtual_seconds
        times = clock_time(now - self.began)
        if virtual is not None:
            times = simulated_time(virtual, self.seconds_before + now - self.began)
        times += "" if left is None else f", about {clock_time(left)} left"
        return Panel(
            Group(self._round_line(), self._figures()), title=Text(self.name, "bold"), title_align="left",
            subtitle=Text(times), subtitle_align="right", border_style="blue",
        )  # fmt: skip

    def _round_line(self) -> Table:
        standing = self.standing
        span = " to ".join(map(str, sorted({standing.slowest, standing.fastest})))
        line = Table.grid(padding=(0, 2), expand=True)
        line.add_column(width=8)
        line.add_column(no_wrap=True)
        line.add_column(ratio=1)
        if self.rounds >= ENDLESS:
            line.add_row(Text("round", "dim"), span)
            return line
        bar = ProgressBar(total=self.rounds, completed=standing.done, complete_style="blue")
        line.add_row(Text("round", "dim"), f"{span} of {self.rounds}", bar)
        return line

    def _figures(self) -> Table:
        table = Table.grid(padding=(0, 2), expand=True)
        table.add_column(width=8, style="dim")
        for ratio in (4, 4, 6):
            table.add_column(ratio=ratio, no_wrap=True)
        states = self.standing.states
        lost = states[MemberState.LOST]
        for cells in self._quality():
            table.add_row(*cells)
        spent = "" if self.standing.epsilon is None else f"epsilon {decimal(self.standing.epsilon)} spent"
        rate = f"{readable_bytes(self.rate)}/s{'' if self.standing.virtual_seconds is None else ' (wall)'}"
        table.add_row("sent", readable_bytes(self.standing.sent), rate, spent)
        table.add_row(
            "nodes", f"{states[MemberState.RUNNING] + states[MemberState.STARTING]:,} running",
            f"{states[MemberState.FINISHED]:,} finished", Text(f"{lost:,} lost", "bold red" if lost else ""),
        )  # fmt: skip
        if sum(states.values()) >= MANY_NODES:
            table.add_row("spread", *self._spread())
        return table

    def _spread(self) -> tuple[Histogram | str, ...]:
        """Returns histograms over nodes, of the headline metric and of the rounds done."""
        row = self.row
        values = [] if row is None else [value for value in row.values(self.metric.name) if value is not None]
        are_apart = self.standing.slowest < self.standing.fastest
        return (
            Histogram(values) if values else "",
            "",
            Histogram(self.standing.rounds, "rounds ") if are_apart else "",
        )

    def _quality(self) -> list[tuple[str | Text, ...]]:
        row, training = self.row, f"{decimal(self.standing.loss)} training"
        headline = self.metric
        if row is None:
            return [
                (headline.name, Text("not tested yet", "dim") if self.is_tested else "-", "", ""),
                ("loss", training, "", ""),
            ]
        values = [value for value in row.values(headline.name) if value is not None]
        least, most = (headline.number(edge(values, default=None)) for edge in (min, max))
        losses = [value for value in row.values(LOSS.name) if value is not None]
        return [
            (
                f"test {LOSS.name}" if headline == LOSS else headline.name,
                Text(headline.text(fmean(values) if values else None), "bold"),
                f"{least} to {most}",
                f"average model {headline.text(row.of_average(headline.name))}",
            ),
            (
                "loss", training, f"{decimal(fmean(losses) if losses else None)} test",
                f"consensus distance {decimal(row.consensus_distance)}",
            ),
        ]  # fmt: skip


class LiveScreen(LiveConsole):
    """Plain lines, and below them a panel that is redrawn at most four times a second."""

    interval = DRAW_INTERVAL

    def __init__(self, output: TextIO) -> None:
        super().__init__(output)
        self.console = Console(file=output, highlight=False, force_terminal=True)
        self._live: Live | None = None
        self._drawn = 0.0
        self._next = 0.0
        self._size = (0, 0)
        """Columns and lines of the panel as it was drawn."""

    def began(self, experiment: Experiment, startup: float, before: float = 0.0) -> None:
        super().began(experiment, startup, before)
        settings = experiment.settings
        is_tested = settings.evaluation.happens(settings.rounds)
        self.dashboard = Dashboard(
            settings.name,
            settings.rounds,
            time.monotonic(),
            seconds_before=before,
            is_tested=is_tested,
            metric=experiment.plan.metrics[0],
        )
        with self.dropping():
            if self.has_room(Timeouts.console_line):
                self.begin_live()

    def begin_live(self) -> None:
        """Reserves the place below the lines for the panel."""
        live = Live(console=self.console, auto_refresh=False, transient=True)
        live.start()
        self._live = live
        # A hidden cursor would stay hidden after a kill of this process.
        self.console.show_cursor(True)

    def progress(self, membership: MembershipTable) -> None:
        now = time.monotonic()
        if self._live is None or now < self._next:
            return
        began = time.process_time()
        # Counted only when it is drawn: reports arrive far more often.
        standing = Standing.of(membership)
        if not self._drawn:
            self.dashboard.done_before = standing.done
        self._drawn = now
        self.dashboard.update(standing, now)
        with self.dropping():
            if self.has_room(0.0):
                self._erase_wrapped_lines()
                panel = self.dashboard.panel(now)
                self._size = self.console.width, len(self.console.render_lines(panel))
                self._live.update(panel, refresh=True)
        # To count thousands of nodes takes time that they need themselves.
        self._next = now + max(DRAW_INTERVAL, (time.process_time() - began) / SHARE)

    def _erase_wrapped_lines(self) -> None:
        """Erases the rows that a narrower terminal has added to the panel by wrapping each of its lines.

        The next update erases as many rows as the library has written.
        """
        (drawn_width, lines), width = self._size, self.console.width
        if width < drawn_width:
            rows = lines * -(-drawn_width // width)
            one_row = (ControlType.ERASE_IN_LINE, 2), (ControlType.CURSOR_UP, 1)
            self.console.control(Control(*one_row * (rows - lines)))

    def evaluated(self, row: EvaluationRow) -> None:
        if self._live is not None:
            self.dashboard.evaluated(row)
        super().evaluated(row)

    def _show(self, text: str, style: str) -> None:
        self.console.print(Text(text, style), soft_wrap=True)

    def close(self) -> None:
        with self.dropping():
            if not self.has_room(Timeouts.console_line):
                # A blocked terminal would block the end of the run.
                silence(self.output)
            if self._live is not None:
                self._live.stop()
        self._live = None
