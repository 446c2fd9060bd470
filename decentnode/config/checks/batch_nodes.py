"""Checks of steps that are computed for several nodes at once (`training.batch_nodes`)."""

from collections.abc import Callable, Iterator

from decentnode.communication.base import Communication
from decentnode.core.registry import name_of
from decentnode.errors import Defect
from decentnode.training.gradient_sync import GradientSync
from decentnode.training.settings import TrainingSettings


def _batch_nodes(
    communication: Communication, training: TrainingSettings, gradient_sync: GradientSync
) -> Iterator[Defect]:
    """Yields batches of nodes where nodes are in processes of their own, or step together in another way."""
    if training.batch_nodes is None:
        return
    key, name = ("training", "batch_nodes"), name_of(communication)
    if not communication.plan.one_process:
        yield Defect(key, f"needs all nodes in one process, and {name} has several; use inproc or simulated")
    if gradient_sync.one_model:
        yield Defect(key, f"{name_of(gradient_sync)} synchronizes each step; leave it out")


BATCH_CHECKS: tuple[Callable[..., Iterator[Defect]], ...] = (_batch_nodes,)
