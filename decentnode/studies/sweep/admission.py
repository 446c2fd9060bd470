"""How many runs go at a time: as many as the processors and the memory of this machine carry."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import isnan
from typing import Literal

from decentnode.core.control_groups import processors
from decentnode.launcher.monitoring.memory_estimate import available_bytes
from decentnode.studies.sweep.forecast import Forecast
from decentnode.studies.sweep.forked_run import RunOutcome

LAUNCHER_BYTES = 60 << 20
"""Bytes of a launcher and its fork server, forked from a process that has torch."""
USED_AT_MOST = 0.8
"""The part of the available memory that runs may use together."""
IDLE_PART = 0.5
"""The part of the processors of the next run that must be idle for it to start."""
Size = tuple[int, int, int]


@dataclass(frozen=True)
class Load:
    """The resources that a run takes of a machine."""

    cores: float
    """Processors that it keeps busy in the mean, of those that other programs leave."""
    memory: float
    """The memory in bytes."""


class Admission:
    """Decides whether another run may start."""

    def __init__(self, jobs: Literal["auto"] | int) -> None:
        self.jobs = jobs
        self.cores = processors()
        self._measured_loads: dict[Size, Load] = {}
        self._free = available_bytes()

    def admits(self, forecast: Forecast, forecasts: Sequence[Forecast]) -> bool:
        """Whether a run may start beside those that run; alone it always may."""
        if not forecasts:
            self._free = available_bytes()
            return True
        if isinstance(self.jobs, int) and len(forecasts) >= self.jobs:
            return False
        return self._has_memory(forecast, forecasts) and (
            self.jobs != "auto" or self._is_idle(forecast, forecasts)
        )

    def _has_memory(self, forecast: Forecast, forecasts: Sequence[Forecast]) -> bool:
        needed = self.load(forecast).memory
        # Runs that have just started have not taken yet what they will.
        of_all = needed + sum(self.load(running).memory for running in forecasts)
        return of_all <= USED_AT_MOST * self._free and needed <= USED_AT_MOST * available_bytes()

    def _is_idle(self, forecast: Forecast, forecasts: Sequence[Forecast]) -> bool:
        # The first run of a size has the machine alone, so that its load can be measured.
        if not all(running.size in self._measured_loads for running in (forecast, *forecasts)):
            return False
        busy = sum(self.load(running).cores for running in forecasts)
        return self.cores - busy >= IDLE_PART * self.load(forecast).cores

    def load(self, forecast: Forecast) -> Load:
        """The load of a run: measured with one of the same size, otherwise from the forecast."""
        measured = self._measured_loads.get(forecast.size)
        memory = 0.0 if isnan(forecast.memory_bytes) else forecast.memory_bytes
        return measured or Load(self.cores, memory + LAUNCHER_BYTES)

    def note(self, forecast: Forecast, outcome: RunOutcome, memory: float) -> None:
        """Records how a run that had the machine alone ended, and the bytes of its nodes."""
        if forecast.size in self._measured_loads or outcome.wall_seconds <= 0:
            return
        memory = max(memory + LAUNCHER_BYTES, self.load(forecast).memory)
        # Other programs may be busy, too: what counts is the share of what they leave.
        free = outcome.cpu_seconds + outcome.idle_seconds
        share = self.cores * outcome.cpu_seconds / free if free else self.cores
        busy = max(share, outcome.cpu_seconds / outcome.wall_seconds)
        self._measured_loads[forecast.size] = Load(min(self.cores, busy), memory)
