"""Events of a run beside its rounds: kept in events.jsonl, and shown if they matter to the user."""

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import msgspec

from decentnode.communication.launcher_link.reports import (
    DiskProblem,
    Evaluated,
    FaultInjected,
    Notice,
    PeerBack,
    PeerMissing,
    Published,
    Rejected,
    Report,
    RoundProgress,
    Stuck,
    Waiting,
)
from decentnode.core.line_file import LineFile, RateLimiter
from decentnode.launcher.monitoring.stragglers import StragglerTracker
from decentnode.results.metrics import LOSS
from decentnode.results.reader import Event


class EventLog:
    """The events of a run that one launcher records."""

    def __init__(self, path: Path, show: Callable[[str], object]) -> None:
        """`show` receives the lines for the screen."""
        self.waits = StragglerTracker()
        self.lost_results: list[str] = []
        """What could not be written in the end, one line each."""
        self.quiet = False
        """The run was asked to stop: losses from here on are expected, and not shown."""
        self._is_finite = True
        """Whether all test losses so far are finite."""
        self._disk_warnings = {lost: RateLimiter() for lost in (False, True)}
        """For waiting lines and for lost lines, because all nodes have the same disk."""
        self._began = time.monotonic()
        self._show = show
        self._file = LineFile(path, partial(self.say, "disk"))

    def record(
        self, kind: str, text: str, rank: int | None = None, round: int | None = None, peer: int | None = None
    ) -> None:
        """Records an event without showing it."""
        # A path may have bytes that are not valid text.
        text = text.encode(errors="backslashreplace").decode()
        # To the millisecond.
        seconds = float(f"{time.monotonic() - self._began:.3f}")
        self._file.append(msgspec.json.encode(Event(seconds, kind, text, rank, round, peer)))

    def say(
        self, kind: str, text: str, rank: int | None = None, round: int | None = None, peer: int | None = None
    ) -> None:
        """Records an event and shows it."""
        self.record(kind, text, rank, round, peer)
        self._show(text)

    def take(self, report: Report) -> None:
        """Records a report if it is an event, and shows it if it matters to the user."""
        match report:
            case PeerMissing():
                text = f"{_where(report)}: continuing without rank {report.peer}: {report.reason}"
                tell = self.record if self.quiet else self.say
                tell("peer_lost", text, report.rank, report.round, report.peer)
            case PeerBack():
                text = f"{_where(report)}: exchanges with rank {report.peer} again"
                self.say("peer_back", text, report.rank, report.round, report.peer)
            case Rejected():
                text = f"{_where(report)}: discarded the payload of rank {report.peer}: {report.reason}"
                self.say("refused", text, report.rank, report.round, report.peer)
            case Evaluated() if report.metrics.get(LOSS.name, 0.0) is None and self._is_finite:
                # One line, because usually all nodes follow.
                self._is_finite = False
                self.say(
                    "not_finite", f"{_where(report)}: the test loss is not finite", report.rank, report.round
                )
            case Waiting():
                self.waits.take(report, time.monotonic())
            case RoundProgress() | Published():
                self.waits.end(report.rank, report.round, time.monotonic())
            case Stuck():
                text = f"{_where(report)}: no progress for {report.seconds:.0f} s ({report.doing})"
                self.say("stuck", text, report.rank, report.round)
            case Notice():
                self.say("communication", report.text, report.rank)
            case DiskProblem():
                text = f"rank {report.rank}: {report.text}"
                if report.lost:
                    self.lost_results.append(text)
                tell = self.say if self._disk_warnings[report.lost].allows() else self.record
                tell("disk", text, report.rank)
            case FaultInjected():
                self.record("injected", f"{report.fault}: {report.what}", report.rank, report.round)

    def tell_waits(self) -> None:
        """Shows stragglers that others have waited for long enough.

        Call it after all reports of a check, because a node that waits is no straggler.
        """
        for delay in () if self.quiet else self.waits.news(time.monotonic()):
            self.say("waiting", delay.text, delay.rank, delay.round, delay.peer)

    def close(self) -> None:
        """Closes the file; lines that it did not accept are lost, too."""
        problem = self._file.close()
        if problem:
            self.lost_results.append(problem)
            self._show(problem)


def _where(report: PeerMissing | PeerBack | Rejected | Stuck | Evaluated) -> str:
    return f"rank {report.rank}, round {report.round + 1}"
