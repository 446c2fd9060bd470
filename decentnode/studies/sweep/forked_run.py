"""A run of a sweep: a fork of a process that has torch and the samples, and is its launcher from then on."""

import contextlib
import mmap
import os
import signal
import struct
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import nan
from pathlib import Path
from typing import NoReturn, TextIO

from decentnode.config.link_security import Ports, ports_needed
from decentnode.config.settings import Settings
from decentnode.core.process_setup import signals_that_stop
from decentnode.core.streams import explain, redirect_output
from decentnode.errors import STOPPED_BY, ExitCode
from decentnode.launcher.dataset_cache import DatasetCache
from decentnode.launcher.processes.fork_server import die_with
from decentnode.launcher.recovery.resume import ResumePlan
from decentnode.launcher.report.console import LiveConsole
from decentnode.launcher.report.live_view import Standing
from decentnode.launcher.start import run_here
from decentnode.launcher.state.membership import MembershipTable
from decentnode.node.experiment import Experiment
from decentnode.results.run import RunEntry
from decentnode.studies.expansion import PlannedRun

CHECK_INTERVAL = 0.25
_PLACES = struct.Struct("<dd")
SETUP = "DECENTNODE_SETUP_SECONDS"
"""A variable that eval/run.sh sets for the start of its own process."""


class Progress:
    """Memory that the launcher of a run writes and the sweep reads: when it began, and its rounds."""

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, _PLACES.size)
        self.put(nan, 0.0)

    def put(self, began: float, rounds: float) -> None:
        """Writes both numbers; `began` is on the clock of `time.monotonic`."""
        self._memory[:] = _PLACES.pack(began, rounds)

    def get(self) -> tuple[float, float]:
        """The start of the first round (nan before it), and the mean of the rounds that nodes have done."""
        began, rounds = _PLACES.unpack(self._memory[:])
        return began, rounds


class RunConsole(LiveConsole):
    """Plain lines for the log of a run, its progress for the sweep, and its entry for readers."""

    def __init__(self, output: TextIO, progress: Progress, entry: RunEntry, directory: Path) -> None:
        super().__init__(output)
        self._progress = progress
        self._entry, self._directory = entry, directory
        self._began = nan
        self._checked = 0.0

    def began(self, experiment: Experiment, startup: float) -> None:
        super().began(experiment, startup)
        self._began = time.monotonic()
        self._progress.put(self._began, 0.0)
        with contextlib.suppress(OSError):  # A full disk; the sweep reports it after the end.
            self._entry.save(self._directory)

    def progress(self, membership: MembershipTable) -> None:
        now = time.monotonic()
        if now - self._checked >= CHECK_INTERVAL:
            self._checked = now
            self._progress.put(self._began, Standing.of(membership).done)


@dataclass(frozen=True)
class RunStart:
    """How a run starts."""

    planned: PlannedRun
    log: Path
    datasets: DatasetCache
    """The cache that has the samples of this run."""
    ports: Mapping[str, int]
    """First ports by option of `communication`, where other runs of the sweep use those of the file."""
    entry: RunEntry
    """The entry of the run in the study."""
    resumes: bool = False


@dataclass(frozen=True)
class RunOutcome:
    """How the process of a run ended."""

    code: int
    """The exit code, or minus the signal that killed it."""
    wall_seconds: float
    cpu_seconds: float
    idle_seconds: float
    """Idle seconds of this machine's processors meanwhile, added up."""


class ForkedRun:
    """A run in a process group of its own."""

    def __init__(self, start: RunStart) -> None:
        """Forks; no thread may run yet."""
        self.planned, self.entry = start.planned, start.entry
        self.alone = True
        """Whether no other run of the sweep had the machine meanwhile."""
        self.is_stopped = False
        """Whether a signal was passed on."""
        self.ports = start.ports
        self.progress = Progress()
        self.began = time.monotonic()
        self._idle_before = idle_seconds()
        sweep = os.getpid()
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        # A signal before the child has its own handlers would run those of the sweep.
        signal.pthread_sigmask(signal.SIG_BLOCK, STOPPED_BY)
        try:
            self.pid = os.fork()
            if self.pid == 0:
                _become_launcher(start, sweep, self.progress)
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPPED_BY)
        self.fd = os.pidfd_open(self.pid)

    def stop(self, signum: int) -> None:
        """Passes a signal on: the first one stops the run gracefully, a second one kills its nodes."""
        self.is_stopped = True
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signum)

    def kill(self) -> None:
        """Ends all processes of the run at once."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)

    def reap(self) -> RunOutcome:
        """Waits for the end."""
        _, status, used = os.wait4(self.pid, 0)
        os.close(self.fd)
        seconds = time.monotonic() - self.began
        idle = idle_seconds() - self._idle_before
        # The launcher and its fork server wait for their children, so their time is included.
        return RunOutcome(
            os.waitstatus_to_exitcode(status), seconds, used.ru_utime + used.ru_stime, idle_seconds=idle
        )


def _become_launcher(start: RunStart, sweep: int, progress: Progress) -> NoReturn:
    """Runs in the child: does what `decentnode run` or `resume` does, and exits."""
    code: int = ExitCode.FAILED
    try:
        for signum in signals_that_stop():
            default = signal.default_int_handler if signum is signal.SIGINT else signal.SIG_DFL
            signal.signal(signum, default)
        os.setsid()
        die_with(sweep)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPPED_BY)
        with open(os.devnull) as null:  # noqa: PTH123 - a device
            os.dup2(null.fileno(), 0)
        redirect_output(start.log)
        os.environ.pop(SETUP, None)
        code = _launch(start, progress)
    except BaseException as error:
        code = explain(error)
    finally:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError):
                stream.flush()
        # Not sys.exit: the interpreter's clean-up belongs to the sweep.
        os._exit(code)


def _launch(start: RunStart, progress: Progress) -> ExitCode:
    planned, resume_plan, words = start.planned, None, list[str]()
    settings, config = with_ports(planned.settings, start.ports), planned.base
    if start.resumes:
        words = [f"communication.{option}={port}" for option, port in start.ports.items()]
        resume_plan = ResumePlan(planned.directory, words)
        settings, config = resume_plan.settings, resume_plan.config
    whole = start.datasets.of(planned.settings)

    def console(output: TextIO) -> RunConsole:
        return RunConsole(output, progress, start.entry, directory=planned.directory)

    return run_here(settings, config, words, resume_plan=resume_plan, dataset=whole, screen=console)


def idle_seconds() -> float:
    """Seconds since the boot in which the processors of this process were idle, added up; 0 if not known."""
    try:
        lines = Path("/proc/stat").read_text().splitlines()
    except OSError:
        return 0.0
    counts = {words[0]: words for line in lines if (words := line.split())}
    cores = [counts[name] for cpu in os.sched_getaffinity(0) if (name := f"cpu{cpu}") in counts]
    # The fourth number is idle time, the fifth that of waiting for a disk.
    return sum(int(words[4]) + int(words[5]) for words in cores) / os.sysconf("SC_CLK_TCK")


def with_ports(settings: Settings, ports: Mapping[str, int]) -> Settings:
    """The settings with these ports instead of their own."""
    if not ports:
        return settings
    options = {**settings.communication.options, **ports}
    return replace(settings, communication=replace(settings.communication, options=options))


def free_ports(settings: Settings, taken: set[int]) -> dict[str, int]:
    """Ports for a run on this machine that no run of `taken` ports uses; empty if it needs no others.

    The first ports that are free, in steps of as many as the run needs.
    """
    needed = [ports for ports in ports_needed(settings, 0) if ports.key.startswith("communication.")]
    step = sum(ports.count for ports in needed)
    if not needed:
        return {}
    for shift in range(0, (1 << 16) - max(ports.first + ports.count for ports in needed), step):
        moved = [replace(ports, first=ports.first + shift) for ports in needed]
        if all(_is_free(ports, taken) for ports in moved):
            return {ports.key.removeprefix("communication."): ports.first for ports in moved}
    return {}


def _is_free(ports: Ports, taken: set[int]) -> bool:
    return taken.isdisjoint(range(ports.first, ports.first + ports.count)) and not any(ports.defects())


def ports_of(settings: Settings, ports: Mapping[str, int]) -> set[int]:
    """All ports that a run uses, with these instead of its own."""
    used = ports_needed(with_ports(settings, ports), 0)
    return {port for block in used for port in range(block.first, block.first + block.count)}
