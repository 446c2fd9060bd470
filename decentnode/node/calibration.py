"""How long the local steps of one node take on this machine, as a pace for virtual time.

The steps are those of a node: its model, samples, optimizer, device and threads. What a scheme adds to
gradients is left out.
"""

import asyncio
import os
from collections.abc import Sequence
from statistics import fmean, median
from typing import Any, BinaryIO

import msgspec
import numpy as np
import torch

from decentnode.communication.device.staging import device_for
from decentnode.config import extends
from decentnode.config import overrides as command_line
from decentnode.config.error_locations import defect_of
from decentnode.config.extends import ConfigSource
from decentnode.config.overrides import Override
from decentnode.core.clock import Clock
from decentnode.core.process_setup import default_threads, keep_freed_memory
from decentnode.core.text import counted
from decentnode.core.timeouts import Timeouts
from decentnode.errors import BadInput, DecentnodeError, Defect, refuse
from decentnode.node.child_answers import answer_of
from decentnode.node.experiment import Experiment
from decentnode.node.factory import NodeFactory

STEPS = 100
"""Steps that are measured by default."""
WARM_UP, LEAST = 10, 3
"""Steps before those, and steps that are measured however slow they are."""
LEAST_SIGMA = 0.05
"""The spread from which on it is part of the pace."""
LARGEST_SIGMA = 3
"""The largest spread that a pace may have."""


class Calibration(msgspec.Struct):
    """The measured steps of one node."""

    rank: int
    threads: int
    processors: int
    """Processors that this process may use."""
    load: float
    """The mean number of processes that wanted a processor in the minute before."""
    device: str = ""
    samples: float = 0.0
    """The mean number of samples of a step."""
    seconds: list[float] = []
    """The duration of each measured step."""
    defects: list[Defect] = []

    @property
    def quantiles(self) -> tuple[float, float, float]:
        """Seconds that 16, 50 and 84 % of the steps do not exceed."""
        low, high = np.quantile(self.seconds, [0.16, 0.84])
        return float(low), median(self.seconds), float(high)

    @property
    def pace(self) -> dict[str, Any]:
        """The median, and a lognormal slowdown if the steps differ by 5 % or more, as `training.pace`.

        sigma = ln(q84 / q16) / 2, one standard deviation of the logarithm: single interrupted steps, which a
        standard deviation would follow, leave it as it is.
        """
        low, middle, high = self.quantiles
        sigma = min(float(np.log(high / low)) / 2, LARGEST_SIGMA)
        lognormal = {"distribution": "lognormal", "sigma": _rounded(sigma)}
        return {"step_seconds": _rounded(middle), "slowdown": lognormal if sigma >= LEAST_SIGMA else 1.0}

    @property
    def lines(self) -> list[str]:
        """Says what was measured, where, and what makes it doubtful."""
        low, middle, high = (f"{1000 * seconds:.4g}" for seconds in self.quantiles)
        longest = f"{1000 * max(self.seconds):.4g}"
        lines = [
            f"{counted(len(self.seconds), 'step')} of {self.samples:.4g} samples on rank {self.rank}: median "
            f"{middle} ms, two thirds from {low} to {high} ms, longest {longest} ms",
            f"{self.device}, {counted(self.threads, 'thread')}; {counted(self.processors, 'processor')}, "
            f"load {self.load:.1f} before",
        ]
        if self.device == "cpu" and self.load + self.threads > self.processors + 0.5:
            lines.append(
                "other processes use the processors, too, so median and spread may be theirs; calibrate on "
                "an idle machine"
            )
        return lines


def _rounded(value: float) -> float:
    return float(f"{value:.3g}")


def instant_if_missing(source: ConfigSource, overrides: Sequence[Override]) -> dict[str, Any]:
    """Returns an override with instant steps for a simulation without a pace, which is to be measured."""
    document = extends.read(source)
    for override in overrides:
        command_line.apply(document, override)
    transport, training = document.value.get("communication"), document.value.get("training")
    name = transport.get("name") if isinstance(transport, dict) else transport
    lacks_pace = isinstance(training, dict) and training.get("pace") is None
    return {"training.pace": "instant"} if name == "simulated" and lacks_pace else {}


def calibrate(experiment: Experiment, steps: int = STEPS) -> Calibration:
    """Measures the steps of the first rank with samples, in a child process; raises BadInput."""
    settings = experiment.settings
    first = Timeouts.compile if settings.training.compile else settings.failures.start_deadline
    limit = first + 2 * Timeouts.calibration
    rank = next(rank for rank, part in enumerate(experiment.samples.parts) if len(part))
    mapping, threads = experiment.mapping, settings.training.threads
    if threads == "auto":
        # More than one only where the code of a plug-in has set it.
        set_by_plugin = torch.get_num_threads()
        local = mapping.ranks_of(mapping.machine_of(rank))
        threads = set_by_plugin if set_by_plugin > 1 else default_threads(len(local))
    calibration = Calibration(rank, threads, len(os.sched_getaffinity(0)), os.getloadavg()[0])

    def write_times(file: BinaryIO) -> None:
        try:
            asyncio.run(_measure(experiment, calibration, steps))
        except DecentnodeError as error:
            calibration.defects += error.defects
        except Exception as error:  # whatever a plug-in raises
            calibration.defects.append(defect_of(error))
        file.write(msgspec.json.encode(calibration))

    answer = answer_of(write_times, limit)
    answer.refuse_late(
        f"{WARM_UP + LEAST} steps", "write training.pace by hand, or take a smaller model", "training"
    )
    if not answer.content:
        raise BadInput(f"the steps did not end: {answer.end}")
    result = msgspec.json.decode(answer.content, type=Calibration)
    refuse(result.defects)
    return result


async def _measure(experiment: Experiment, calibration: Calibration, steps: int) -> None:
    """Makes the steps in this process, which is a child, and writes down how long each one took."""
    torch.set_num_threads(calibration.threads)
    keep_freed_memory()
    rank, factory = calibration.rank, NodeFactory(experiment)
    device = device_for(experiment.settings.device, experiment.mapping.local_rank(rank))
    training = factory.training(rank, factory.vector(device), is_trial=True)
    tally, clock, samples = training.begin(0), Clock(), list[int]()
    if training.private is not None:
        training.private.begin(WARM_UP + steps)

    async def step() -> float:
        began, before = clock.now(), tally.samples
        await training.step(tally)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        samples.append(tally.samples - before)
        return clock.now() - began

    end = clock.now() + Timeouts.calibration
    for number in range(WARM_UP):
        # The first two compile, and make what the optimizer keeps.
        if number < 2 or clock.now() < end:
            await step()
    del samples[:]
    end = clock.now() + Timeouts.calibration
    while len(calibration.seconds) < steps and (len(calibration.seconds) < LEAST or clock.now() < end):
        calibration.seconds.append(await step())
    calibration.device, calibration.samples = device.type, fmean(samples)
