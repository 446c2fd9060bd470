"""Checks of processes that compute the local steps (`communication.workers`)."""

from collections.abc import Callable, Iterator

import torch

from decentnode.communication.base import Communication
from decentnode.core.registry import name_of
from decentnode.errors import Defect
from decentnode.graph.base import Graph
from decentnode.sharing.base import SharingBase
from decentnode.training.settings import TrainingSettings


def why_no_workers(sharing: SharingBase, training: TrainingSettings, graph: Graph) -> Iterator[str]:
    """Yields why the steps of a run must be computed in the process of its nodes."""
    if sharing.adjust_gradient is not None:
        yield f"{name_of(sharing)} changes each gradient by what it has in the process of the nodes"
    if training.privacy is not None:
        yield "private steps are accounted for in the process of the nodes"
    if training.batch_nodes is not None:
        yield "steps of several nodes are computed in their process (training.batch_nodes)"
    if training.compile is not False:
        yield "networks are compiled in the process of the nodes (training.compile)"
    if graph.needs_service:
        yield f"the client of {name_of(graph)} is a thread, which no fork takes along"


def computes_on_gpu(device: str) -> bool:
    """Whether the steps of nodes on such a device are computed on a GPU."""
    return device == "cuda" or (device == "auto" and torch.cuda.is_available())


def _workers(
    communication: Communication, sharing: SharingBase, training: TrainingSettings, graph: Graph
) -> Iterator[Defect]:
    if communication.plan.workers not in (0, "auto"):
        for reason in why_no_workers(sharing, training, graph):
            yield Defect(("communication", "workers"), f"{reason}; use 0 or auto")


def _workers_on_a_gpu(communication: Communication, device: str) -> Iterator[Defect]:
    if communication.plan.workers not in (0, "auto") and computes_on_gpu(device):
        yield Defect(
            ("communication", "workers"), "workers compute on the CPU; use 0 or auto, or device: cpu"
        )


WORKER_CHECKS: tuple[Callable[..., Iterator[Defect]], ...] = (_workers, _workers_on_a_gpu)
