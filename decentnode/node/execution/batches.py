"""Computes the submitted steps of the nodes of a process in batches of nodes."""

import asyncio
from collections.abc import Hashable
from functools import partial
from operator import attrgetter
from typing import Any

import torch
from torch import nn

from decentnode.core.clock import Clock
from decentnode.core.vector import ParameterLayout
from decentnode.models.module_copies import copied
from decentnode.node.execution.batched_steps import BatchedSteps, NodeStep
from decentnode.training.training import StepExecutor, StepResult, SubmittedStep, Training

MOST_NODES, MOST_NUMBERS, MOST_NUMBERS_ON_GPU = 512, 1 << 21, 1 << 26
"""The nodes of a batch by `auto`, and the numbers of their stacked vectors, at most.

Measured on a CPU with 2 MB of second-level cache: larger stacks are slower. That of a GPU is not measured.
"""
FEWEST_NODES = 4
"""With fewer nodes a batch takes longer than one step after the other."""


def nodes_at_once(network: nn.Module, layout: ParameterLayout, device: torch.device) -> int:
    """The nodes of a batch by `auto`; 1 where steps are faster one by one."""
    on_cpu = device.type == "cpu"
    if on_cpu and any(isinstance(part, nn.modules.conv._ConvNd) for part in network.modules()):
        # Torch computes convolutions with weights of several nodes in groups, in 1.6 times the time.
        return 1
    most = min(MOST_NODES, (MOST_NUMBERS if on_cpu else MOST_NUMBERS_ON_GPU) // layout.numel)
    return most if most >= FEWEST_NODES else 1


class BatchedExecutor(StepExecutor):
    """Keeps submitted steps until one of their results is asked for; then those like it are computed, too.

    So in a batch are steps that nodes had begun at that time, with minibatches of one shape, equal
    hyperparameters and equally many steps before.
    """

    def __init__(self, network: nn.Module, layout: ParameterLayout, nodes: int, most: int) -> None:
        """`network`: that of the nodes, which is copied; `nodes`: how many are in this process.

        `most`: the nodes of a batch.
        """
        self._network = network
        self._layout = layout
        self._count = nodes
        self._most = most
        self.news = f"steps of up to {min(most, nodes)} nodes are computed together"
        self._nodes: dict[Training, int] = {}
        """The place of each node in the stacks."""
        self._batched: dict[torch.device, BatchedSteps] = {}
        self._waiting_steps: list[NodeStep] = []
        """Steps that are in no batch yet."""
        self._pause: asyncio.Future[None] | None = None
        """The pause that nodes have in common; None: there is none."""

    def submit(self, training: Training, round: int, step: int) -> SubmittedStep:
        batched, node = self._batched_of(training), self._node(training)
        submitted = NodeStep(training, node, round, step)
        if batched.takes_indices:
            submitted.indices = training.minibatches.several_indices(training.settings.accumulate)
        else:
            submitted.batches = training.batches(round, step)
        self._waiting_steps.append(submitted)
        return partial(self._result, submitted, batched)

    async def pause(self, clock: Clock) -> None:
        """Lets the other nodes submit what they begin at this time, until none does."""
        if self._pause is not None:
            return await self._pause
        loop = asyncio.get_running_loop()
        self._pause, waiting = loop.create_future(), 0
        try:
            while waiting < len(self._waiting_steps):
                waiting = len(self._waiting_steps)
                # By a timer: in virtual time that of the present comes after all that happens now.
                turn = loop.create_future()
                loop.call_later(0, turn.set_result, None)
                await turn
        finally:
            self._pause.set_result(None)
            self._pause = None

    def _result(self, step: NodeStep, batched: BatchedSteps) -> StepResult:
        if step.loss is None:
            if not step.batched_steps:
                self._form_batches(batched)
            batched.compute(step.batched_steps)
        assert step.loss is not None, "the batch of a step has it"
        samples = step.samples
        count = sum(map(step.training.objective.count, step.batches)) if step.batches else samples
        return StepResult(step.loss, is_skipped=False, count=count, samples=samples)

    def _form_batches(self, batched: BatchedSteps) -> None:
        """Puts all steps that wait into batches."""
        alike: dict[Hashable, list[NodeStep]] = {}
        for step in sorted(self._waiting_steps, key=attrgetter("node")):
            alike.setdefault(batched.key(step), []).append(step)
        for steps in alike.values():
            for start in range(0, len(steps), self._most):
                batch = steps[start : start + self._most]
                for step in batch:
                    step.batched_steps = batch
        self._waiting_steps = []

    def optimizer_state(self, training: Training) -> dict[str, Any]:
        state = super().optimizer_state(training)
        return state | {"state": self._batched_of(training).optimizer.state_of(self._node(training))}

    def load_optimizer_state(self, training: Training, state: dict[str, Any]) -> None:
        # The hyperparameters, which schedules change, are those of the node's own optimizer.
        super().load_optimizer_state(training, state | {"state": {}})
        self._batched_of(training).optimizer.load(self._node(training), state["state"])

    def _node(self, training: Training) -> int:
        return self._nodes.setdefault(training, len(self._nodes))

    def _batched_of(self, training: Training) -> BatchedSteps:
        """The computation on the device of a node."""
        device = training.vector.values.device
        if device not in self._batched:
            self._batched[device] = BatchedSteps(
                copied(self._network).to(device),
                self._layout,
                training.settings,
                samples=training.shard.samples,
                nodes=self._count,
            )
        return self._batched[device]
