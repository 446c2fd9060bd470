"""One of torch's elementwise optimizers, stepping the vectors of many nodes in one call."""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from decentnode.core.vector import Entry, ParameterLayout
from decentnode.training.settings import TrainingSettings

Rows = slice | Tensor
"""Some nodes: an interval of them, whose state is used in place, or their indices, int64."""
Groups = Sequence[Mapping[str, Any]]
"""The `param_groups` of an optimizer."""
Numbers = tuple[tuple[tuple[str, Any], ...], ...]
"""For each block the numbers of its state that are one for all elements, such as the count of steps."""
ALIGNMENT = 32
"""Elements to whose multiple the rows of stacks are padded with zeros: two vector registers of 512 bits in
float32. Torch computes what is left of a tensor without them, which may round otherwise, so a model
would depend on its place in a batch."""


def padded(elements: int) -> int:
    """The elements of a row with its padding."""
    return -(-elements // ALIGNMENT) * ALIGNMENT


class StackedOptimizer:
    """The states of the optimizers of n nodes, stacked, and steps of some of these nodes.

    The optimizer is torch's own, on parameters of shape (nodes, elements): one for each block, the
    neighboring tensors of the vector whose hyperparameters are in the same group. Nodes of one call must have
    the same `key`: one number of the optimizer, such as a learning rate, is for all of its elements.
    """

    def __init__(
        self, settings: TrainingSettings, module: nn.Module, layout: ParameterLayout, nodes: int
    ) -> None:
        names = {id(parameter): name for name, parameter in module.named_parameters()}
        entries = {entry.name: entry for entry in layout.entries}
        trained = settings.trained(module)
        groups: list[dict[str, Any]] = (
            trained if trained and isinstance(trained[0], dict) else [{"params": trained}]
        )
        self._nodes = nodes
        self._has_schedule = settings.scheduler is not None
        """Whether the hyperparameters of nodes may differ."""
        self._like = next(module.parameters())
        self._blocks: list[slice] = []
        parameters: list[dict[str, Any]] = []
        for group in groups:
            first = len(self._blocks)
            for entry in sorted((entries[names[id(p)]] for p in group["params"]), key=lambda e: e.offset):
                start, end = entry.offset, entry.offset + entry.shape.numel()
                if len(self._blocks) > first and self._blocks[-1].stop == start:
                    start = self._blocks.pop().start
                self._blocks.append(slice(start, end))
            if self._blocks[-1].stop == layout.numel:
                self._blocks[-1] = slice(self._blocks[-1].start, padded(layout.numel))
            made = [nn.Parameter(self._row(block)) for block in self._blocks[first:]]
            parameters.append({**group, "params": made})
        self._parameters = [p for group in parameters for p in group["params"]]
        self._places = [self._place(entries[names[id(p)]]) for group in groups for p in group["params"]]
        """The block of each tensor and its place there, in the order of the optimizer of one node."""
        self._optimizer: Optimizer = settings.make_optimizer(parameters)
        self._tensors: list[dict[str, Tensor]] = [{} for _ in self._blocks]
        """For each block the tensors of its state, of shape (nodes, elements)."""
        self._types: dict[str, torch.dtype] = {}
        """Numbers of the state that are tensors without dimensions."""
        self._numbers: list[Numbers | None] = [None] * nodes
        """Numbers of each node's state; None: it has made no step."""
        if self._optimizer.state:
            # Adagrad has a state before its first step.
            self._keep(slice(0, nodes))
            self._numbers = [self._read()] * nodes

    def _row(self, block: slice) -> Tensor:
        return torch.zeros(1, block.stop - block.start, dtype=self._like.dtype, device=self._like.device)

    def _place(self, entry: Entry) -> tuple[int, Entry]:
        index = next(i for i, b in enumerate(self._blocks) if b.start <= entry.offset < b.stop)
        return index, replace(entry, offset=entry.offset - self._blocks[index].start)

    def key(self, node: int, groups: Groups) -> Hashable:
        """What nodes must have in common to step in one call; `groups`: of the node's own optimizer."""
        if not self._has_schedule:
            return self._numbers[node]
        hyperparameters = [value for group in groups for name, value in group.items() if name != "params"]
        return (*map(_hashable, hyperparameters), self._numbers[node])

    def has_stepped(self, node: int) -> bool:
        """Whether a node has made a step."""
        return self._numbers[node] is not None

    def step(self, nodes: Sequence[int], groups: Groups, values: Tensor, gradients: Tensor) -> None:
        """Makes one step of each of these nodes in place; both tensors have shape (nodes, padded(d))."""
        rows, optimizer = self._rows(nodes), self._optimizer
        for own, group in zip(optimizer.param_groups, groups, strict=True):
            own.update({name: value for name, value in group.items() if name != "params"})
        optimizer.state.clear()
        numbers = self._numbers[nodes[0]]
        for index, (block, parameter) in enumerate(zip(self._blocks, self._parameters, strict=True)):
            parameter.grad = None
            # Copies where there are several blocks: torch's fused kernels assume contiguous memory.
            parameter.data = values[:, block].contiguous()
            parameter.grad = gradients[:, block].contiguous()
            if numbers is not None:
                tensors = {name: stack[rows] for name, stack in self._tensors[index].items()}
                optimizer.state[parameter] = tensors | {
                    name: self._number(name, number) for name, number in numbers[index]
                }
        optimizer.step()
        for block, parameter in zip(self._blocks, self._parameters, strict=True):
            if not parameter.is_set_to(values[:, block]):
                values[:, block] = parameter.data
        self._keep(rows)
        after = self._read()
        for node in nodes:
            self._numbers[node] = after

    def _rows(self, nodes: Sequence[int]) -> Rows:
        first, end = nodes[0], nodes[0] + len(nodes)
        if list(nodes) == list(range(first, end)):
            return slice(first, end)
        return torch.tensor(nodes, device=self._like.device)

    def _keep(self, rows: Rows) -> None:
        """Writes the state of the optimizer into the stacks, where it is not there already."""
        for parameter, stacks in zip(self._parameters, self._tensors, strict=True):
            for name, value in self._optimizer.state[parameter].items():
                if not isinstance(value, Tensor) or not value.dim():
                    continue
                if name not in stacks:
                    stacks[name] = value.new_zeros(self._nodes, value.shape[1])
                if not (isinstance(rows, slice) and value.data_ptr() == stacks[name][rows].data_ptr()):
                    stacks[name][rows] = value

    def _read(self) -> Numbers:
        """The numbers of the optimizer's state."""
        numbers = []
        for parameter in self._parameters:
            of_block = []
            for name, value in self._optimizer.state[parameter].items():
                if not isinstance(value, Tensor):
                    of_block.append((name, value))
                elif not value.dim():
                    self._types[name] = value.dtype
                    of_block.append((name, value.item()))
            numbers.append(tuple(sorted(of_block)))
        return tuple(numbers)

    def _number(self, name: str, number: Any) -> Any:
        """A number of the state as the optimizer has it."""
        return torch.tensor(number, dtype=self._types[name]) if name in self._types else number

    def state_of(self, node: int) -> dict[int, dict[str, Any]]:
        """Returns `state_dict()["state"]` of the node's own optimizer; tensors are references."""
        numbers = self._numbers[node]
        if numbers is None:
            return {}
        return {
            index: {name: self._number(name, number) for name, number in numbers[block]}
            | {name: entry.view(stack[node]) for name, stack in self._tensors[block].items()}
            for index, (block, entry) in enumerate(self._places)
        }

    def load(self, node: int, state: Mapping[int, Mapping[str, Any]]) -> None:
        """Continues with the state of a node's own optimizer, as `state_of` returns it."""
        numbers: list[tuple[tuple[str, Any], ...]] = [()] * len(self._blocks)
        for index, (block, entry) in enumerate(self._places) if state else ():
            of_block = []
            for name, value in state[index].items():
                if isinstance(value, Tensor) and value.dim():
                    stacks = self._tensors[block]
                    if name not in stacks:
                        elements = self._blocks[block].stop - self._blocks[block].start
                        stacks[name] = value.new_zeros(self._nodes, elements, device=self._like.device)
                    entry.view(stacks[name][node]).copy_(value)
                elif isinstance(value, Tensor):
                    self._types[name] = value.dtype
                    of_block.append((name, value.item()))
                else:
                    of_block.append((name, value))
            numbers[block] = tuple(sorted(of_block))
        self._numbers[node] = tuple(numbers) if state else None


def _hashable(value: Any) -> Hashable:
    return tuple(value) if isinstance(value, list) else value
