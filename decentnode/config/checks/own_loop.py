"""Checks of `training.loop`: what a loop of the user's own leaves no room for."""

from collections.abc import Iterator
from inspect import iscoroutinefunction

from decentnode.communication.base import Communication
from decentnode.config.plugin import Plugin
from decentnode.core.registry import name_of
from decentnode.errors import Defect
from decentnode.mapping.base import Mapping
from decentnode.training.gradient_sync import GradientSync
from decentnode.training.settings import BatchExecution, TrainingSettings, WorkerExecution

KEY = ("training", "loop")


def _loop(
    training: TrainingSettings, gradient_sync: GradientSync, communication: Communication, mapping: Mapping
) -> Iterator[Defect]:
    loop = training.loop
    if not isinstance(loop, Plugin):
        return
    most = max(communication.plan.nodes_in_one_process(machine.nodes) for machine in mapping.machines)
    virtual = communication.plan.has_virtual_time
    if not iscoroutinefunction(loop.cls) and (virtual or most > 1):
        has = "virtual time" if virtual else f"{most} nodes in a process"
        yield Defect(
            KEY,
            f"{loop.name} waits in its calls, and {name_of(communication)} has {has}; "
            "write `async def` and `await node.step()`, or use zeromq with a process for each node",
        )
    if isinstance(training.execution, BatchExecution | WorkerExecution):
        yield Defect(("training", "execution"), "steps of a loop are computed alone; leave it out")
    if gradient_sync.one_model:
        yield Defect(KEY, f"{name_of(gradient_sync)} makes the steps of all nodes together; leave one out")
    given = {
        "privacy": training.privacy, "scheduler": training.scheduler, "clip_norm": training.clip_norm,
        "seconds_per_round": training.seconds_per_round, "epochs_per_round": training.epochs_per_round,
        "amp": training.amp, "accumulate": None if training.accumulate == 1 else training.accumulate,
    }  # fmt: skip
    for name, value in given.items():
        if value is not None:
            yield Defect(("training", name), "a loop of your own decides this (training.loop); leave it out")


LOOP_CHECKS = (_loop,)
