"""Runs what is missing of a study: several at a time where the machine carries them, each at most twice."""

import contextlib
import signal
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from math import isnan, nan
from pathlib import Path
from types import FrameType

import msgspec

from decentnode.core.clock import boot
from decentnode.core.polling import ready
from decentnode.core.process_setup import signals_that_stop
from decentnode.core.text import clock_time, counted, first_line, ratio, readable_seconds
from decentnode.errors import STOPPED_BY, BadInput, ExitCode
from decentnode.formats.reader import read_object
from decentnode.formats.run import RUNNING
from decentnode.launcher.dataset_cache import DatasetCache
from decentnode.launcher.state.run_directory import RunLock
from decentnode.results import Study
from decentnode.results.run import Run, RunEntry, read_entry
from decentnode.studies.report.tables import cost_lines
from decentnode.studies.sweep.admission import Admission
from decentnode.studies.sweep.directories import RunDirectory, RunStatus
from decentnode.studies.sweep.forecast import Forecast
from decentnode.studies.sweep.forked_run import ForkedRun, RunOutcome, RunStart, free_ports, ports_of
from decentnode.studies.sweep.plan import SweepPlan
from decentnode.studies.sweep.screen import RunningRow, SweepLines, SweepStanding

COSTS = "costs.png"
"""The figure of a simulated study, in its directory."""
LOOK_INTERVAL = 2.0
"""Seconds between two looks at runs of other sweeps."""
ATTEMPTS = 2
"""How often a run is tried that fails."""
MOST_LETTERS = 200


class Sweep:
    """The runs of a study on this machine, from the first fork to the last line."""

    def __init__(
        self, plan: SweepPlan, datasets: DatasetCache, lines: SweepLines, command: str,
        others: Sequence[Path] = (), may_be_alone: bool = True,
    ) -> None:  # fmt: skip
        """`command`: the words that continue this sweep; `others`: runs that others may sweep meanwhile.

        `may_be_alone`: False where programs that are no runs of the study may have this machine, too.
        """
        self._plan = plan
        self._datasets = datasets
        self._lines = lines
        self._command = command
        self._others = [*others]
        self._may_be_alone = may_be_alone
        self._admission = Admission(plan.study.jobs)
        self._waiting = plan.waiting
        self._running: dict[int, tuple[ForkedRun, RunDirectory]] = {}
        """The runs in progress, by pidfd."""
        self._runs_elsewhere: dict[str, RunDirectory] = {}
        """The runs that other sweeps have, by name."""
        self._looked = 0.0
        """When they were looked at."""
        self._done = len(plan.directories) - len(self._waiting)
        self._failed: dict[str, Path] = {}
        """The logs of runs that failed twice, by the name of the run."""
        self._attempts: Counter[str] = Counter()
        self._signal: signal.Signals | None = None
        self._out_of_memory = False
        self._began = time.monotonic()

    def run(self) -> ExitCode:
        """Runs everything; returns the exit code. Leaves no process running, whatever happens."""
        # They stay until this process ends: a late Ctrl-C must not disturb its last lines.
        for signum in signals_that_stop():
            signal.signal(signum, self._stop)
        try:
            self._lines.open()
            while self._running or ((self._waiting or self._runs_elsewhere) and self._signal is None):
                self._look_elsewhere()
                self._start_what_fits()
                self._lines.show(self._standing())
                pause = self._lines.interval if self._running else 0.0
                if self._runs_elsewhere and self._signal is None:
                    pause = min(LOOK_INTERVAL, self._lines.interval)
                for fd in ready(self._running, seconds=pause):
                    self._collect(*self._running.pop(fd))
        finally:
            for forked, _ in self._running.values():
                forked.kill()
                forked.reap()
            self._lines.close()
        return self._conclude()

    def _stop(self, signum: int, _: FrameType | None) -> None:
        """Passes the signal on: the first one stops the runs gracefully, a later request kills them."""
        self._signal = self._signal or signal.Signals(signum)
        for forked, _directory in self._running.values():
            forked.stop(signum)

    # Before a run.

    def _start_what_fits(self) -> None:
        while self._waiting and self._signal is None:
            running = [self._forecast(directory) for _, directory in self._running.values()]
            if not self._admission.admits(self._forecast(self._waiting[0]), running):
                return
            self._start(self._waiting.pop(0))

    def _forecast(self, directory: RunDirectory) -> Forecast:
        return self._plan.forecasts.get(directory.planned.variant.name, Forecast())

    def _look_elsewhere(self) -> None:
        """Takes back the runs that no other sweep has any more, be they done or left."""
        if not self._runs_elsewhere or time.monotonic() - self._looked < LOOK_INTERVAL:
            return
        self._looked = time.monotonic()
        free = [name for name, directory in self._runs_elsewhere.items() if directory.lease is None]
        self._waiting[:0] = map(self._runs_elsewhere.pop, free)

    def _take(self, directory: RunDirectory) -> RunLock | None:
        """Takes the lease of a run that is to do; None where it is done, or another sweep has it."""
        lock = None if directory.status in (RunStatus.DONE, RunStatus.RUNNING) else directory.take()
        # What there was may have changed before it was ours.
        status = directory.found
        if lock is not None and status is RunStatus.BROKEN:
            directory.move_aside("interrupted", lock)
            lock, status = directory.take(), RunStatus.NEW
        if status is RunStatus.DONE:
            if lock is not None:
                lock.release()
            self._done += 1
            self._plan.note(directory)
            return None
        if lock is None:
            name = directory.planned.name
            self._runs_elsewhere[name] = directory
            self._lines.line(f"{name}: {directory.lease or 'another sweep'} has it; this sweep waits for it")
            return None
        return lock

    def _start(self, directory: RunDirectory) -> None:
        planned = directory.planned
        try:
            if (lock := self._take(directory)) is None:
                return
        except BadInput as error:
            self._fail(directory, str(error))
            return
        # Read here, so that later runs share it; in the child it would end with the run.
        self._datasets.of(planned.settings)
        self._datasets.keep([planned.settings, *(directory.planned.settings for directory in self._waiting)])
        used = [ports_of(d.planned.settings, forked.ports) for forked, d in self._running.values()]
        ports = free_ports(planned.settings, set().union(*used))
        labels = {axis: level.label for axis, level in planned.variant.levels.items()}
        entry = RunEntry(
            self._plan.study.name, planned.variant.name, labels, planned.seed, boot=boot(),
            began=time.monotonic(),
        )  # fmt: skip
        start = RunStart(planned, directory.log, self._datasets, ports=ports, entry=entry, lock=lock)
        forked = ForkedRun(start)
        # From now on the processes of the run have it.
        lock.close()
        self._running[forked.fd] = forked, directory
        with contextlib.suppress(ValueError):
            self._others.remove(directory.path)
        if len(self._running) > 1:
            for running, _ in self._running.values():
                running.alone = False
        # The signal came while the run was forked; a second one would kill it.
        if self._signal is not None and not forked.is_stopped:
            forked.stop(self._signal)

    # After a run.

    def _collect(self, forked: ForkedRun, directory: RunDirectory) -> None:
        outcome, name = forked.reap(), directory.planned.name
        try:
            status = directory.found
        except BadInput:
            status = RunStatus.BROKEN
        if status is RunStatus.DONE:
            self._finish(forked, directory, outcome)
        elif self._signal is not None:
            # Its checkpoints are those of a graceful stop.
            self._lines.line(
                f"{name}: stopped{', and can be resumed' if status is RunStatus.RESUMABLE else ''}"
            )
        else:
            self._repeat_or_report(directory, outcome)

    def _finish(self, forked: ForkedRun, directory: RunDirectory, outcome: RunOutcome) -> None:
        planned = directory.planned
        entry = msgspec.structs.replace(
            forked.entry, wall_seconds=round(outcome.wall_seconds, 3),
            cpu_seconds=round(outcome.cpu_seconds, 3), exit_code=outcome.code,
        )  # fmt: skip
        try:
            forked.alone &= not self._shared_with_others(entry) and self._may_be_alone
            entry.alone = forked.alone
            entry.save(directory.path)
        except OSError as error:
            self._lines.line(f"{directory.path}: its times cannot be written: {error.strerror}")
        self._done += 1
        cost = self._plan.note(directory)
        memory = 0.0 if isnan(cost.memory_bytes) else cost.memory_bytes
        if forked.alone:
            self._admission.note(self._forecast(directory), outcome, memory)
        with_code = "" if outcome.code == ExitCode.OK else f" (exit code {outcome.code})"
        left = self._seconds_left()
        and_left = "" if isnan(left) or not left else f"; about {readable_seconds(left)} left"
        self._lines.line(
            f"{self._done} of {len(self._plan.directories)}  {planned.name}: done in "
            f"{readable_seconds(outcome.wall_seconds)}{with_code}{and_left}"
        )

    def _shared_with_others(self, entry: RunEntry) -> bool:
        """Whether a run of another sweep had this machine meanwhile; its entry says so from now on, too."""
        is_shared = False
        for path in self._others:
            other = read_entry(path)
            if other is None:
                continue
            try:
                is_running = other.wall_seconds is None and Run(path).state == RUNNING
            except BadInput:  # moved aside meanwhile, or damaged
                continue
            if entry.overlaps(other, is_running):
                is_shared = True
                if other.alone:
                    msgspec.structs.replace(other, alone=False).save(path)
        return is_shared

    def _repeat_or_report(self, directory: RunDirectory, outcome: RunOutcome) -> None:
        """A failed run is repeated once, from the start."""
        name = directory.planned.name
        reason = _reason(directory, outcome)
        self._attempts[name] += 1
        is_useless = outcome.code == ExitCode.BAD_INPUT and directory.found is RunStatus.NEW
        if is_useless or self._attempts[name] >= ATTEMPTS:
            self._out_of_memory |= outcome.code == ExitCode.OUT_OF_MEMORY
            self._fail(directory, reason)
            return
        try:
            # Waits for writers of a launcher that was killed.
            if (lock := directory.take()) is not None:
                directory.move_aside("failed", lock)
        except BadInput as error:
            self._fail(directory, str(error))
            return
        self._lines.line(f"{name}: failed, and is repeated once: {reason}")
        self._waiting.append(directory)

    def _fail(self, directory: RunDirectory, reason: str) -> None:
        self._failed[directory.planned.name] = directory.log
        self._lines.line(f"{directory.planned.name}: failed: {reason}")

    # What is shown.

    def _standing(self) -> SweepStanding:
        now = time.monotonic()
        return SweepStanding(
            name=self._plan.study.name,
            total=len(self._plan.directories),
            done=self._done,
            failed=len(self._failed),
            waiting=len(self._waiting) + len(self._runs_elsewhere),
            seconds=now - self._began,
            seconds_left=self._seconds_left(),
            running=[self._row(forked, now) for forked, _ in self._running.values()],
            stopping=self._signal is not None,
        )

    def _row(self, forked: ForkedRun, now: float) -> RunningRow:
        began, done, _, virtual, wall = forked.progress.get()
        return RunningRow(
            forked.planned.name,
            forked.planned.settings.rounds,
            done,
            rate=0.0 if isnan(began) or now <= began else done / (now - began),
            seconds=now - forked.began,
            times="" if isnan(virtual) else f"virtual {clock_time(virtual)}, {ratio(virtual, wall)}",
        )

    def _seconds_left(self) -> float:
        """The costs of what is left, shared by as many runs as go at a time; nan if it is not known."""
        now, left = time.monotonic(), 0.0
        for directory in (*self._waiting, *self._runs_elsewhere.values()):
            left += self._plan.cost(directory.planned.variant.name).seconds
        for forked, directory in self._running.values():
            seconds = self._plan.cost(directory.planned.variant.name).seconds
            left += max(0.0, seconds - (now - forked.began))
        return left / max(1, len(self._running)) if left or not self._waiting else nan

    def _conclude(self) -> ExitCode:
        total = len(self._plan.directories)
        seconds = readable_seconds(time.monotonic() - self._began)
        code = self._code()
        self._lines.line("")
        failed = f", {len(self._failed)} failed" if self._failed else ""
        done = f"{self._done} of {counted(total, 'run')} done{failed} after {seconds}"
        self._lines.line(f"{self._plan.study.name}: {done} (exit code {int(code)})")
        for name, log in self._failed.items():
            self._lines.line(f"  failed    {name}; its log: {log}")
        if self._done < total:
            self._lines.line(f"  continue with: {self._command}")
        self._lines.line(f"  results   {self._plan.study.out}")
        if self._done and self._signal is None:
            try:
                for line in self._costs():
                    self._lines.line(line)
            except (BadInput, OSError) as error:  # a library that is missing, or a full disk
                self._lines.line(f"  no costs until the target: {first_line(error)}")
        return code

    def _costs(self) -> Iterator[str]:
        """Yields what each variant took until the target, and draws a simulated study."""
        study = Study(self._plan.study.out)
        if study.compared and study.target is not None:
            yield from cost_lines(study, study.target)
        if study.compared and study.is_simulated:
            path = Path(self._plan.study.out) / COSTS
            study.plot_costs().savefig(path)
            yield f"  figure    {path}"

    def _code(self) -> ExitCode:
        if self._signal is not None and self._done < len(self._plan.directories):
            return STOPPED_BY[self._signal]
        if self._out_of_memory:
            return ExitCode.OUT_OF_MEMORY
        return ExitCode.FAILED if self._failed else ExitCode.OK


def _reason(directory: RunDirectory, outcome: RunOutcome) -> str:
    """Returns why a run failed, in a line: how it ended, and its first lost node or last line of its log."""
    how = f"exit code {outcome.code}" if outcome.code >= 0 else f"killed by signal {-outcome.code}"
    try:
        summary = directory.path / "summary.json"
        lost = read_object(summary).get("lost_nodes") if summary.exists() else {}
        lines = directory.log.read_text(errors="replace").split("\n")
    except (BadInput, OSError):
        return how
    words = (
        next(iter(lost.values())) if lost else next((line for line in reversed(lines) if line.strip()), "")
    )
    return f"{how}: {words.strip()[:MOST_LETTERS]}" if words else how
