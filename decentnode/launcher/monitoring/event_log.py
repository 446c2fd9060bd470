"""What happens in a run beside its rounds: kept in events.jsonl, and shown where a person should know."""

import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from decentnode.communication.launcher_link.reports import (
    DiskProblem,
    Evaluated,
    FaultInjected,
    Notice,
    PeerBack,
    PeerMissing,
    Rejected,
    Report,
    RoundProgress,
    Stuck,
    Waiting,
)
from decentnode.core.line_file import WARN_INTERVAL, LineFile
from decentnode.launcher.monitoring.stragglers import StragglerTracker
from decentnode.results.reader import Event


class EventLog:
    """The events of a run on one machine, as its launcher hears of them."""

    def __init__(self, path: Path, show: Callable[[str], object]) -> None:
        """`show` gets the lines that a person should see at once."""
        self.waits = StragglerTracker()
        self.lost_results: list[str] = []
        """In a line each, what could not be written in the end."""
        self.quiet = False
        """Somebody has asked the run to stop: what ends now ends because of that."""
        self._is_finite = True
        """No test gave a loss that is not finite so far."""
        self._disk_told: dict[bool, float] = {}
        """When a disk's problem was shown last; of lines that wait, and of lines that are lost."""
        self._began = time.monotonic()
        self._show = show
        self._file = LineFile(path, self.warn)

    def record(
        self, kind: str, text: str, rank: int | None = None, round: int | None = None, peer: int | None = None
    ) -> None:
        """Keeps an event, and shows nothing."""
        # A path may have bytes that are no text.
        text = text.encode(errors="backslashreplace").decode()
        event = Event(round_seconds(time.monotonic() - self._began), kind, text, rank, round, peer)
        self._file.append(msgspec.json.encode(event))

    def say(
        self, kind: str, text: str, rank: int | None = None, round: int | None = None, peer: int | None = None
    ) -> None:
        """Keeps an event and shows it."""
        self.record(kind, text, rank, round, peer)
        self._show(text)

    def warn(self, text: str) -> None:
        """A file of this launcher cannot be written."""
        self.say("disk", text)

    def take(self, report: Report) -> None:
        """Keeps what a report tells, if it is an event, and shows it where that helps."""
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
            case Evaluated() if report.test_loss is None and self._is_finite:
                # One line, because as a rule all nodes follow.
                self._is_finite = False
                self.say(
                    "not_finite", f"{_where(report)}: the test loss is not finite", report.rank, report.round
                )
            case Waiting():
                self.waits.take(report, time.monotonic())
            case RoundProgress() | Evaluated():
                self.waits.end(report.rank, report.round, time.monotonic())
            case Stuck():
                text = f"{_where(report)}: no progress for {report.seconds:.0f} s ({report.doing})"
                self.say("stuck", text, report.rank, report.round)
            case Notice():
                self.say("communication", report.text, report.rank)
            case DiskProblem():
                self._take_disk_problem(report)
            case FaultInjected():
                self.record("injected", f"{report.fault}: {report.what}", report.rank, report.round)

    def tell_waits(self) -> None:
        """Shows who holds others up, where somebody has for a while."""
        for delay in self.waits.news(time.monotonic()):
            self.say("waiting", delay.text, delay.rank, delay.round, delay.peer)

    def close(self) -> None:
        """Ends the file; what it could not take is lost, too."""
        problem = self._file.close()
        if problem:
            self.lost_results.append(problem)
            self._show(problem)

    def _take_disk_problem(self, report: DiskProblem) -> None:
        """All nodes have the same disk, so that one line a minute is enough for a person."""
        text, now = f"rank {report.rank}: {report.text}", time.monotonic()
        if report.lost:
            self.lost_results.append(text)
        told = self._disk_told.get(report.lost)
        if told is not None and now - told < WARN_INTERVAL:
            self.record("disk", text, report.rank)
            return
        self._disk_told[report.lost] = now
        self.say("disk", text, report.rank)


def _where(report: PeerMissing | PeerBack | Rejected | Stuck | Evaluated) -> str:
    return f"rank {report.rank}, round {report.round + 1}"


def round_seconds(seconds: float) -> float:
    """To the millisecond."""
    return round(seconds, 3)
