"""Runs as by `decentnode run`, forked from a process that has everything imported, and what they left."""

import contextlib
import gc
import json
import os
import shlex
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any, NoReturn

import msgspec
import numpy as np
import torch

from decentnode.cli import app as cli
from decentnode.communication.launcher_link.reports import (
    Exited,
    Failed,
    FaultInjected,
    Finished,
    PeerMissing,
    Ready,
    Report,
)
from decentnode.config.loader import load
from decentnode.formats.records import RoundRecord, read_records
from decentnode.graph.base import Graph
from decentnode.launcher.launcher import Launcher
from decentnode.launcher.processes.fork_server import die_with
from decentnode.launcher.report.console import LiveConsole
from decentnode.launcher.state.dispatcher import Dispatcher
from decentnode.node.experiment import Experiment

TINY = Path(__file__).with_name("tiny.yaml")
ROOT = Path(__file__).parents[2]
CHECK_INTERVAL = 0.01
AFTERLIFE = 5.0
"""Seconds that the processes of a run have to end after its launcher."""


@dataclass(frozen=True)
class Trial:
    """A run to be made."""

    name: str
    overrides: tuple[str, ...] = ()
    limit: float = 60.0
    """Seconds after which it counts as hung."""
    config: Path = TINY

    @property
    def reproducer(self) -> str:
        """The command that does the same alone."""
        words = ["decentnode", "run", os.path.relpath(self.config, ROOT), *self.overrides]
        return shlex.join(words)


@dataclass(frozen=True)
class Outcome:
    """What a run left behind."""

    trial: Trial
    code: int | None
    """The exit code; None when it hung and was killed."""
    seconds: float
    text: str
    """What it printed."""
    leftovers: tuple[str, ...]
    """Files and processes that outlived it."""
    reports: tuple[tuple[float, Report], ...] = ()
    """What the launcher was told, and when (`time.monotonic`)."""
    summary: dict[str, Any] = field(default_factory=dict)
    records: dict[int, list[RoundRecord]] = field(default_factory=dict)
    """By rank."""
    ups: list[tuple[int, int]] = field(default_factory=list)
    """For each process that was ready, its position and the furthest node's round at that moment."""
    evaluations: list[dict[str, Any]] = field(default_factory=list)
    """The rows of evaluations.jsonl."""
    events: list[dict[str, Any]] = field(default_factory=list)
    """The rows of events.jsonl."""
    models: dict[int, Any] = field(default_factory=dict)
    """The vectors of the nodes that finished, float64, by rank."""
    logs: dict[int, str] = field(default_factory=dict)
    """What the nodes printed, by the first rank of each process."""

    @cached_property
    def finished(self) -> set[int]:
        """The ranks that did all rounds."""
        return {report.rank for _, report in self.reports if isinstance(report, Finished)}

    @cached_property
    def injected(self) -> list[tuple[float, FaultInjected]]:
        """The faults that struck."""
        return [(at, report) for at, report in self.reports if isinstance(report, FaultInjected)]

    @cached_property
    def missing(self) -> list[tuple[float, PeerMissing]]:
        """Who went on without whom."""
        return [(at, report) for at, report in self.reports if isinstance(report, PeerMissing)]

    @cached_property
    def failures(self) -> list[Failed | Exited]:
        """Nodes that ended with an error, and processes that ended badly."""
        reports = (report for _, report in self.reports)
        # A launcher that hears the end of all takes nodes for lost that have just said that they finished.
        return [
            report
            for report in reports
            if (isinstance(report, Failed) and report.rank not in self.finished)
            or (isinstance(report, Exited) and report.status)
        ]

    def longest_round(self, ranks: set[int]) -> float:
        """The longest that any of these nodes took for a round, in seconds."""
        records = [self.records[rank] for rank in ranks if self.records.get(rank)]
        later = (b.seconds - a.seconds for record in records for a, b in pairwise(record))
        # Of the first, what it says: its time begins with the process, long before the round.
        parts = ("train_seconds", "exchange_seconds", "mix_seconds", "evaluate_seconds")
        first = (sum(getattr(record[0], part) for part in parts) for record in records)
        return max((*later, *first), default=0.0)


def run_all(trials: Sequence[Trial], jobs: int = 1) -> Iterator[Outcome]:
    """Makes the runs, so many at a time, and gives each outcome when it is there."""
    gc.collect()
    gc.freeze()
    torch.set_num_threads(1)
    waiting, running = list(reversed(trials)), list[_Running]()
    try:
        while waiting or running:
            while waiting and len(running) < jobs:
                running.append(_Running(waiting.pop()))
            for child in [each for each in running if each.has_ended()]:
                running.remove(child)
                yield child.outcome()
            time.sleep(CHECK_INTERVAL)
    finally:
        for child in running:
            child.kill()


def run(trial: Trial) -> Outcome:
    """Makes one run."""
    (outcome,) = run_all([trial])
    return outcome


class _Running:
    """A launcher in a session of its own."""

    def __init__(self, trial: Trial) -> None:
        self.trial = trial
        # Short, because the paths of ipc sockets are limited.
        self.folder = Path(tempfile.mkdtemp(prefix="dn-", dir="/tmp"))
        self.began = time.monotonic()
        self.code: int | None = None
        sys.stdout.flush()
        own_pid = os.getpid()
        self.pid = os.fork()
        if self.pid == 0:
            die_with(own_pid)
            _launch(trial, self.folder)

    def has_ended(self) -> bool:
        """Whether it has ended; kills it when it takes too long."""
        pid, status = os.waitpid(self.pid, os.WNOHANG)
        if pid:
            self.code = os.waitstatus_to_exitcode(status)
            return True
        if time.monotonic() - self.began > self.trial.limit:
            self.kill()
            return True
        return False

    def kill(self) -> None:
        """Ends everything at once."""
        _kill_session(self.pid)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self.pid, 0)

    def outcome(self) -> Outcome:
        """What it left; the folder is gone afterwards."""
        seconds = time.monotonic() - self.began
        limit = time.monotonic() + AFTERLIFE
        while (living := session_of(self.pid)) and time.monotonic() < limit:
            time.sleep(CHECK_INTERVAL)
        _kill_session(self.pid)
        files = [path.name for path in (self.folder / "tmp").glob("decentnode*")]
        try:
            return Outcome(
                self.trial, self.code, seconds, (self.folder / "out").read_text(errors="replace"),
                (*files, *(f"process {pid}" for pid in living)), **_read(self.folder),
            )  # fmt: skip
        finally:
            shutil.rmtree(self.folder, ignore_errors=True)


class _WatchedReports(Dispatcher[Report]):
    """Keeps each report before it passes it on."""

    def __init__(self, dispatcher: Dispatcher[Report], keep: Callable[[Report], None]) -> None:
        vars(self).update(vars(dispatcher))
        self._keep = keep

    def dispatch(self, arrival: Report) -> None:
        self._keep(arrival)
        super().dispatch(arrival)


class WatchedLauncher(Launcher):
    """A launcher that keeps what it is told."""

    def __init__(self, experiment: Experiment, machine: int, screen: LiveConsole) -> None:
        super().__init__(experiment, machine, screen)
        self.reports: list[tuple[float, Report]] = []
        self.ups: list[tuple[int, int]] = []
        self._report_dispatcher = _WatchedReports(self._report_dispatcher, self._keep)

    def _keep(self, report: Report) -> None:
        self.reports.append((time.monotonic(), report))
        if isinstance(report, Ready):
            rounds = [beat.read().round for beat in self.membership.heartbeats.values()]
            self.ups.append((report.process, max(rounds)))

    def models(self) -> dict[str, Any]:
        """The vectors of the nodes that finished, as they were evaluated in the end."""
        rounds = {report.rank: report.rounds for _, report in self.reports if isinstance(report, Finished)}
        vector = self._evaluators.snapshots.vector
        return {str(rank): vector(rank, rounds[rank] - 1).double().numpy() for rank in sorted(rounds)}


def _launch(trial: Trial, folder: Path) -> NoReturn:
    code = 1
    try:
        os.setsid()
        (folder / "tmp").mkdir()
        os.environ["TMPDIR"] = tempfile.tempdir = str(folder / "tmp")
        out = os.open(folder / "out", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(out, 1)
        os.dup2(out, 2)
        # Whoever forks may have put something else there.
        sys.stdout, sys.stderr = (os.fdopen(fd, "w", buffering=1, closefd=False) for fd in (1, 2))
        settings = load(trial.config, [*trial.overrides, f"run_dir={folder / 'run'}"])
        launcher = WatchedLauncher(Experiment.from_settings(settings), 0, LiveConsole(sys.stdout))
        try:
            code = launcher.run()
        finally:
            _keep(launcher, folder)
    except BaseException as error:
        code = cli.explain(error)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _keep(launcher: WatchedLauncher, folder: Path) -> None:
    with (folder / "reports.jsonl").open("wb") as file:
        for at, report in launcher.reports:
            file.write(msgspec.json.encode((at, report)) + b"\n")
    (folder / "ups.json").write_text(json.dumps(launcher.ups))
    np.savez(folder / "models.npz", **launcher.models())


_DECODER = msgspec.json.Decoder(tuple[float, Report])


def _read(folder: Path) -> dict[str, Any]:
    """The files of a run, as far as there are any."""
    figures: dict[str, Any] = {}
    with contextlib.suppress(OSError):
        figures["reports"] = tuple(map(_DECODER.decode, (folder / "reports.jsonl").read_bytes().splitlines()))
    with contextlib.suppress(OSError):
        figures["ups"] = [
            (process, round) for process, round in json.loads((folder / "ups.json").read_text())
        ]
    with contextlib.suppress(OSError), np.load(folder / "models.npz") as models:
        figures["models"] = {int(rank): models[rank] for rank in models}
    with contextlib.suppress(OSError):
        figures["summary"] = json.loads((folder / "run" / "summary.json").read_text())
    for name in ("evaluations", "events"):
        with contextlib.suppress(OSError):
            lines = (folder / "run" / f"{name}.jsonl").read_text().splitlines()
            figures[name] = [json.loads(line) for line in lines]
    figures["logs"] = {
        int(path.stem): path.read_text(errors="replace")
        for path in sorted((folder / "run" / "logs").glob("[0-9]*.log"))
    }
    figures["records"] = {
        int(path.stem): read_records(path) for path in sorted((folder / "run" / "records").glob("*.jsonl"))
    }
    return figures


def session_of(leader: int) -> list[int]:
    """The living processes of a session."""
    table = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError):
            pid = int(entry.name)
            state, _, _, session, *_ = (entry / "stat").read_text().rsplit(")", 1)[1].split()
            if int(session) == leader and state != "Z":
                table.append(pid)
    return table


def _kill_session(leader: int) -> None:
    for pid in session_of(leader):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def one_sided(outcome: Outcome, graph: Graph) -> dict[tuple[int, int], list[int]]:
    """For each edge of a static, undirected graph the rounds in which one end used it and the other not.

    In all others the mixing matrix of the rounds that both ends recorded is symmetric; as each row sums to
    one, it is doubly stochastic.
    """
    used = {
        (rank, record.round): set(graph.sources(rank, record.round)) - {*record.late, *record.lost}
        for rank, records in outcome.records.items()
        for record in records
    }
    by_name: dict[tuple[int, int], list[int]] = {}
    for (rank, round), peers in sorted(used.items()):
        for peer in graph.sources(rank, round):
            if rank < peer and (peer, round) in used and (peer in peers) != (rank in used[peer, round]):
                by_name.setdefault((rank, peer), []).append(round)
    return by_name


def consensus_distance(models: dict[int, Any]) -> float:
    """The mean distance of the models from their mean."""
    stacked = np.stack([models[rank] for rank in sorted(models)])
    return float(np.linalg.norm(stacked - stacked.mean(0), axis=1).mean())


def faults(*entries: dict[str, Any]) -> str:
    """The override that sets them."""
    return f"faults={json.dumps(entries)}"
