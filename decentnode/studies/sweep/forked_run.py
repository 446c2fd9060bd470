"""A run of a sweep: a fork of a process that has torch and the samples, and is its launcher from then on."""

import contextlib
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TextIO

from decentnode.config.link_security import Ports, ports_needed
from decentnode.config.settings import Settings
from decentnode.core.streams import redirect_output
from decentnode.errors import ExitCode
from decentnode.launcher.dataset_cache import DatasetCache
from decentnode.launcher.processes.launcher_process import LauncherProcess, RunProgress
from decentnode.launcher.report.progress_console import ProgressConsole
from decentnode.launcher.start import run_here
from decentnode.launcher.state.run_directory import RunLock
from decentnode.node.experiment import Experiment
from decentnode.results.run import RunEntry
from decentnode.studies.expansion import PlannedRun

SETUP = "DECENTNODE_SETUP_SECONDS"
"""A variable that eval/run.sh sets for the start of its own process."""


class RunConsole(ProgressConsole):
    """Plain lines for the log of a run, its progress for the sweep, and its entry for readers."""

    def __init__(self, output: TextIO, progress: RunProgress, entry: RunEntry, directory: Path) -> None:
        super().__init__(output, progress)
        self._entry, self._directory = entry, directory

    def began(self, experiment: Experiment, startup: float, before: float = 0.0) -> None:
        super().began(experiment, startup, before)
        with contextlib.suppress(OSError):  # A full disk; the sweep reports it after the end.
            self._entry.save(self._directory)


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
    lock: RunLock
    """The lease of the run, which its processes keep."""


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
    """A run in progress, whose launcher is a fork of the sweep."""

    def __init__(self, start: RunStart) -> None:
        """Forks; no thread may run yet."""
        self.planned, self.entry = start.planned, start.entry
        self.alone = True
        """Whether no other run of the sweep had the machine meanwhile."""
        self.is_stopped = False
        """Whether a signal was passed on."""
        self.ports = start.ports
        self.progress = RunProgress()
        self.began = time.monotonic()
        self._idle_before = idle_seconds()
        self._process = LauncherProcess(lambda: _launch(start, self.progress))
        self.fd = self._process.fd

    def stop(self, signum: int) -> None:
        """Passes a signal on: the first one stops the run gracefully, a second one kills its nodes."""
        self.is_stopped = True
        self._process.stop(signum)

    def kill(self) -> None:
        """Ends all processes of the run at once."""
        self._process.kill()

    def reap(self) -> RunOutcome:
        """Waits for the end."""
        code, cpu_seconds = self._process.reap()
        assert code is not None, "a sweep does not ignore SIGCHLD"
        self.progress.close()
        seconds = time.monotonic() - self.began
        idle = idle_seconds() - self._idle_before
        return RunOutcome(code, seconds, cpu_seconds, idle_seconds=idle)


def _launch(start: RunStart, progress: RunProgress) -> ExitCode:
    """Runs in the child: does what `decentnode run --continue` does."""
    redirect_output(start.log)
    os.environ.pop(SETUP, None)
    planned = start.planned
    settings, whole = with_ports(planned.settings, start.ports), start.datasets.of(planned.settings)

    def console(output: TextIO) -> RunConsole:
        return RunConsole(output, progress, start.entry, directory=planned.directory)

    code, _ = run_here(
        settings,
        planned.base,
        (),
        dataset=whole,
        screen=console,
        or_resume=True,
        lock=start.lock,
        repeats_losses=True,
    )
    return code


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
