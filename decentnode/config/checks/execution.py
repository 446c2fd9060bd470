"""Checks of who computes the local steps (`training.execution`): what batches and workers cannot do."""

from collections.abc import Callable, Iterator

import torch

from decentnode.communication.base import Communication
from decentnode.core.registry import name_of
from decentnode.errors import Defect
from decentnode.graph.base import Graph
from decentnode.sharing.base import SharingBase
from decentnode.training.gradient_sync import GradientSync
from decentnode.training.optim import ELEMENTWISE
from decentnode.training.settings import BatchExecution, TrainingSettings, WorkerExecution

BATCHES, WORKERS = ("training", "execution", "batches"), ("training", "execution", "workers")
"""The keys of both."""


def why_no_workers(
    sharing: SharingBase, training: TrainingSettings, graph: Graph, device: str
) -> Iterator[str]:  # fmt: skip
    """Yields why the steps of a run must be computed in the process of its nodes."""
    if sharing.adjust_gradient is not None:
        yield f"{name_of(sharing)} changes each gradient by what it has in the process of the nodes"
    if training.privacy is not None:
        yield "private steps are accounted for in the process of the nodes"
    if training.compile is not False:
        yield "networks are compiled in the process of the nodes (training.compile)"
    if graph.needs_service:
        yield f"the client of {name_of(graph)} is a thread, which no fork takes along"
    if computes_on_gpu(device):
        yield "workers compute on the CPU (device)"


def computes_on_gpu(device: str) -> bool:
    """Whether the steps of nodes on such a device are computed on a GPU."""
    return device == "cuda" or (device == "auto" and torch.cuda.is_available())


def _one_process_for_all(
    communication: Communication, training: TrainingSettings, graph: Graph
) -> Iterator[Defect]:  # fmt: skip
    execution, nodes = training.execution, graph.num_nodes
    if isinstance(execution, BatchExecution | WorkerExecution) and not communication.plan.one_machine:
        key = BATCHES if isinstance(execution, BatchExecution) else WORKERS
        what = f"needs all nodes in one process, and {name_of(communication)} has several"
        yield Defect(key, f"{what}; use inproc or simulated")
    elif isinstance(execution, WorkerExecution) and communication.plan.nodes_in_one_process(nodes) < nodes:
        yield Defect(WORKERS, "nodes are in several processes already (communication.nodes_per_process)")


def _workers(
    sharing: SharingBase, training: TrainingSettings, graph: Graph, device: str
) -> Iterator[Defect]:  # fmt: skip
    if isinstance(training.execution, WorkerExecution) and training.execution.workers != "auto":
        for reason in why_no_workers(sharing, training, graph, device):
            yield Defect(WORKERS, f"{reason}; use alone or auto")


def _batches(training: TrainingSettings, gradient_sync: GradientSync) -> Iterator[Defect]:
    """Yields settings with which steps of several nodes cannot be computed together."""
    if not isinstance(training.execution, BatchExecution):
        return
    optimizer = training.optimizer.cls
    if optimizer not in ELEMENTWISE:
        name = getattr(optimizer, "__name__", optimizer)
        why = f"{name} does not change each number by its own gradient alone"
        yield Defect(BATCHES, f"{why}; leave it out, or use SGD or Adam")
    if training.dtype == "bfloat16" or training.amp is not None:
        why = "sums of 16 bits are not the same in batches of nodes"
        yield Defect(BATCHES, f"{why}; leave it out, or use float32")
    if training.compile is not False:
        yield Defect(BATCHES, "training.compile is for the steps of one node; leave one of both out")
    if training.privacy is not None:
        yield Defect(BATCHES, "private steps are computed sample by sample; leave it out")
    if gradient_sync.one_model:
        yield Defect(BATCHES, f"{name_of(gradient_sync)} synchronizes each step; leave it out")


EXECUTION_CHECKS: tuple[Callable[..., Iterator[Defect]], ...] = (
    _one_process_for_all, _workers, _batches,
)  # fmt: skip
