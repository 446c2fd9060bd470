"""Plain lines, and the progress of the run in memory that the process which forked the launcher reads."""

import time
from math import nan
from pathlib import Path
from typing import TextIO

from decentnode.launcher.processes.launcher_process import RunProgress
from decentnode.launcher.report.console import LiveConsole
from decentnode.launcher.report.live_view import Standing
from decentnode.launcher.state.membership import MembershipTable
from decentnode.node.experiment import Experiment

WRITE_INTERVAL = 0.25


class ProgressConsole(LiveConsole):
    """Writes the progress at most four times a second."""

    interval = WRITE_INTERVAL

    def __init__(self, output: TextIO, progress: RunProgress) -> None:
        super().__init__(output)
        self._progress = progress
        self._began, self._planned, self._before = nan, 0, 0.0
        self._written = 0.0
        self._membership: MembershipTable | None = None

    def opened(self, run_dir: Path) -> None:
        self._progress.directory = str(run_dir)

    def began(self, experiment: Experiment, startup: float, before: float = 0.0) -> None:
        super().began(experiment, startup, before)
        self._began, self._planned = time.monotonic(), experiment.settings.rounds
        self._before = before
        self._progress.put(self._began, 0.0, self._planned)

    def progress(self, membership: MembershipTable) -> None:
        self._membership = membership
        now = time.monotonic()
        if now - self._written >= WRITE_INTERVAL:
            self._written = now
            self._write()

    def close(self) -> None:
        super().close()
        self._write()

    def _write(self) -> None:
        if self._membership is not None:
            standing = Standing.of(self._membership)
            virtual = standing.virtual_seconds
            times = () if virtual is None else (virtual, self._before + time.monotonic() - self._began)
            self._progress.put(self._began, standing.done, self._planned, *times)
