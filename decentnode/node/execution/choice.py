"""Who computes the local steps of a run: the process of the nodes, alone or in batches, or worker processes.

The key is `training.execution`; `config/checks/execution.py` refuses what cannot be. `batches.py` forms the
batches of the steps that nodes have begun, `workers.py` gives each node to a worker.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

from torch import nn

from decentnode.communication.arena import Arena
from decentnode.communication.base import Communication
from decentnode.communication.device.staging import device_for
from decentnode.config.checks.execution import why_no_workers
from decentnode.config.settings import Settings
from decentnode.core.control_groups import processors
from decentnode.core.vector import ParameterLayout
from decentnode.graph.base import Graph
from decentnode.node.execution.batches import BatchedExecutor, nodes_at_once
from decentnode.node.execution.workers import StepWorkers
from decentnode.training.settings import BatchExecution, WorkerExecution
from decentnode.training.training import StepExecutor

LEAST_NODES_FOR_WORKERS, LEAST_PARAMETERS_FOR_WORKERS = 32, 20_000
"""Nodes of a process, and parameters of the model, from which on `auto` uses workers: shorter steps take less
than sending them away."""


@dataclass(frozen=True)
class ExecutionChoice:
    """The choice of one run; made once per machine, before the fork."""

    settings: Settings
    graph: Graph
    network: nn.Module
    layout: ParameterLayout

    @cached_property
    def workers(self) -> int:
        """The processes that compute the local steps of the host process; 0: it does so itself."""
        settings, nodes = self.settings, self.graph.num_nodes
        communication: Communication = settings.communication.make()
        execution = settings.training.execution
        has_one_process = communication.plan.nodes_in_one_process(nodes) == nodes
        if execution == "auto" and communication.plan.has_virtual_time and has_one_process:
            execution = WorkerExecution("auto")
        if not isinstance(execution, WorkerExecution):
            return 0
        if execution.workers != "auto":
            return min(execution.workers, nodes)
        is_unfit = (
            nodes < LEAST_NODES_FOR_WORKERS
            or self.layout.numel < LEAST_PARAMETERS_FOR_WORKERS
            # Nodes of random speeds are hardly ever due at one time, and a message may change the model until
            # a step ends.
            or settings.time_model.is_asynchronous
            # A network may keep in plain attributes what its evaluation needs.
            or settings.has_foreign_plugins
            or any(why_no_workers(settings.sharing.make(), settings.training, self.graph, settings.device))
        )
        # One processor is that of the host process, which mixes meanwhile.
        return 0 if is_unfit else max(0, processors() - 1)

    def executor(self, nodes: int, marks: Callable[[int], int]) -> StepExecutor:
        """Returns what computes the local steps of so many nodes of a process; called after the fork.

        `marks`: the marks of a node's heartbeat, by rank.
        """
        if not self.workers:
            return self.executor_here(nodes)
        limits = self.settings.failures.timeouts
        vectors = 3 if self.settings.communication.overlap else 2
        arena = Arena(vectors * nodes, self.layout.nbytes)
        return StepWorkers(self.workers, arena, limits.hung_process(limits.stuck_process()), marks)

    def executor_here(self, nodes: int) -> StepExecutor:
        """Returns what computes the local steps of so many nodes in this process."""
        if not isinstance(self.settings.training.execution, BatchExecution):
            return StepExecutor()
        most = self.settings.training.execution.batches
        if most == "auto":
            most = nodes_at_once(self.network, self.layout, device_for(self.settings.device, 0))
            if most == 1:
                executor = StepExecutor()
                executor.news = "training.execution: the steps of this model are faster one by one"
                return executor
        return BatchedExecutor(self.network, self.layout, nodes, most)
