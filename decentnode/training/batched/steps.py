"""Local steps of many nodes, computed together."""

import copy
import math
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel

from decentnode.core.text import first_line
from decentnode.core.vector import AdjustGradient, Entry, ParameterLayout
from decentnode.datasets.base import Batch, Samples
from decentnode.errors import BadInput, is_out_of_memory
from decentnode.training.batched.stacked_optimizer import Groups, StackedOptimizer
from decentnode.training.evaluation import load_flat
from decentnode.training.objective import Objective
from decentnode.training.privacy.unrolled_lstm import unrolled
from decentnode.training.settings import TrainingSettings
from decentnode.training.tasks.base import Task

TOLERANCE = {torch.float64: 1e-10, torch.float32: 1e-4}
"""The most that the gradient of a node may differ from that of the loop, as a share of its norm."""
CLIP_EPSILON, TINY = 1e-6, 1e-30
RANDOM = "vmap: called random operation"
"""How torch's error begins where a network draws random numbers."""


@dataclass(eq=False, slots=True)
class NodeStep:
    """A local step of one node: what it starts from, and its results once it is computed."""

    node: int
    """The place of the node among those of the process."""
    place: str
    """The rank, round and step, for messages."""
    vector: Tensor
    """The model, shape (d,); the step writes the new one into it."""
    groups: Groups
    """The `param_groups` of the node's optimizer."""
    indices: Sequence[Tensor] = ()
    """The samples of each minibatch, int64; empty: they are in `batches`."""
    batches: Sequence[Batch] = ()
    """The minibatches, where they are more than samples of the training set."""
    adjust_gradient: AdjustGradient | None = None
    number: int = 0
    """The number of the step in its round, for `adjust_gradient`."""
    loss: Tensor | None = None
    """The loss before the step, a scalar; None: the step is not computed yet."""


class Parts(nn.Module):
    """The loss of a minibatch from its tensors, as a module whose parameters can be replaced."""

    def __init__(self, objective: Objective) -> None:
        super().__init__()
        self.network = objective.module
        self._objective = objective

    def forward(self, tensors: dict[str, Tensor], *fields: Tensor) -> Tensor:
        """The loss, multiplied with the share of the minibatch in its step where there is one."""
        mixed: Any = (tensors["others"], tensors["mix"]) if "others" in tensors else None
        loss = self._objective(Batch(fields, tensors["labels"], tensors.get("weights"), mixed))[1]
        return tensors["share"] * loss if "share" in tensors else loss


class BatchedSteps:
    """Computes the local steps of groups of nodes by `torch.func.vmap` over their stacked vectors.

    The first step of each group, and the first one of each shape, is also computed for two of its nodes as a
    node alone does it. Where the gradients differ by more than the tolerance, the run ends.
    """

    def __init__(
        self,
        module: nn.Module,
        layout: ParameterLayout,
        settings: TrainingSettings,
        samples: Samples,
        nodes: int,
        most: int,
    ) -> None:
        """`module`: a network for this alone; `nodes`: how many there are; `most`: of a group."""
        self.module = module.train()
        self.optimizer = StackedOptimizer(settings, module, layout, nodes)
        self.most = most
        self._layout = layout
        self._settings = settings
        self._samples = samples
        # The loop of one node, and the same network in operations that have a rule for batches.
        self._alone = settings.objective(module, layout.channels_last)
        self._parts = Parts(settings.objective(unrolled(module), channels_last=False))
        self._vectorized = vmap(
            grad_and_value(lambda parameters, *args: functional_call(self._parts, parameters, args)),
            randomness="error",
        )
        self._named = dict(module.named_parameters())
        self._device = next(module.parameters()).device
        self._checked: set[Hashable] = set()
        """The shapes of minibatches that were compared with the loop."""

    @property
    def takes_indices(self) -> bool:
        """Whether minibatches may be given as indices: each sample has one loss, and all have one shape."""
        samples = self._samples
        each = type(self._alone.task).count is Task.count and samples.weights is None
        return each and not samples.is_ragged and not self._settings.augmentation

    def compute(self, steps: Sequence[NodeStep]) -> None:
        """Makes these steps, at most one for each node; raises BadInput where the check fails."""
        groups: dict[Hashable, list[NodeStep]] = {}
        for step in sorted(steps, key=lambda step: step.node):
            shape: Hashable = tuple(map(len, step.indices)) or self._shape(step.batches)
            key = shape, self.optimizer.key(step.node, step.groups)
            groups.setdefault(key, []).append(step)
        for (shape, _), group in groups.items():
            for start in range(0, len(group), self.most):
                self._compute(group[start : start + self.most], shape)

    def _shape(self, batches: Sequence[Batch]) -> Hashable:
        counts = self._counted(batches)
        return tuple(
            (
                tuple(field.shape for field in batch.fields),
                batch.labels.shape,
                batch.weights is not None,
                batch.mixed is not None,
                is_counted,
            )
            for batch, is_counted in zip(batches, counts, strict=True)
        )

    def _counted(self, batches: Sequence[Batch]) -> list[bool]:
        """Which minibatches have a part of the loss: where all labels are ignored, it is not a number."""
        if len(batches) == 1 or self._alone.reduction == "sum":
            return [True] * len(batches)
        counted = [batch for batch, _ in self._alone.shares(batches)]
        return [any(batch is other for other in counted) for batch in batches]

    def _compute(self, steps: Sequence[NodeStep], shape: Hashable) -> None:
        vectors = torch.stack([step.vector for step in steps])
        gradients, losses = self._gradients(vectors, steps)
        checked: list[int] = []
        if shape not in self._checked or not self.optimizer.has_stepped(steps[0].node):
            self._checked.add(shape)
            checked = sorted({0, len(steps) - 1})
        for index in checked:
            self._check_gradient(steps[index], vectors[index], gradients[index])
        for step, gradient, vector in zip(steps, gradients.unbind(), vectors.unbind(), strict=True):
            if step.adjust_gradient is not None:
                step.adjust_gradient(gradient, vector, step.number)
        if self._settings.clip_norm is not None:
            norms = torch.linalg.vector_norm(gradients, dim=1, keepdim=True)
            gradients.mul_((self._settings.clip_norm / (norms + CLIP_EPSILON)).clamp(max=1.0))
        alone = [self._stepped_alone(steps[index], vectors[index], gradients[index]) for index in checked]
        self.optimizer.step([step.node for step in steps], steps[0].groups, vectors, gradients)
        for index, (before, after) in zip(checked, alone, strict=True):
            rounding = torch.finfo(before.dtype).eps * float(before.norm())
            self._compare(steps[index], "model", vectors[index] - before, after - before, rounding)
        for step, vector, loss in zip(steps, vectors.unbind(), losses.unbind(), strict=True):
            step.vector.copy_(vector)
            step.loss = loss

    def _gradients(self, vectors: Tensor, steps: Sequence[NodeStep]) -> tuple[Tensor, Tensor]:
        """The gradients of all nodes, shape (nodes, d), and their losses, shape (nodes,)."""
        parameters = {f"network.{e.name}": of_nodes(e, vectors) for e in self._layout.entries}
        gradients, losses = torch.zeros(()), torch.zeros(())
        try:
            # The fused attention has no rule for batches of gradients.
            with sdpa_kernel(SDPBackend.MATH):
                for index, (tensors, fields) in enumerate(self._minibatches(steps)):
                    each, loss = self._vectorized(parameters, tensors, *fields)
                    parts = [flattened(e, each[f"network.{e.name}"]) for e in self._layout.entries]
                    gradients = torch.cat(parts, 1) if index == 0 else gradients.add_(torch.cat(parts, 1))
                    losses = loss if index == 0 else losses + loss
        except (RuntimeError, NotImplementedError, TypeError, ValueError) as error:
            if is_out_of_memory(error):
                raise
            raise BadInput.at(
                "training.batch_nodes", f"{steps[0].place}: {reason_of(error)}; leave it out"
            ) from error
        return gradients, losses

    def _minibatches(
        self, steps: Sequence[NodeStep]
    ) -> Iterator[tuple[dict[str, Tensor], tuple[Tensor, ...]]]:
        """Yields each minibatch of all nodes, as `Parts` takes it, with a first dimension for the nodes."""
        if steps[0].indices:
            sizes = [*map(len, steps[0].indices)]
            shares = [size / sum(sizes) for size in sizes]
            plain = len(sizes) == 1 or self._alone.reduction == "sum"
            for part, share in zip(zip(*(step.indices for step in steps), strict=True), shares, strict=True):
                batch = self._samples.batch(torch.cat(part))
                shape = len(steps), -1
                tensors = {"labels": batch.labels.unflatten(0, shape)}
                if not plain:
                    tensors["share"] = self._one_each([share] * len(steps))
                yield tensors, tuple(field.unflatten(0, shape) for field in batch.fields)
            return
        for pairs in zip(*(self._alone.shares(step.batches) for step in steps), strict=True):
            batches = [batch for batch, _ in pairs]
            tensors = {"labels": torch.stack([batch.labels for batch in batches])}
            if any(share != 1.0 for _, share in pairs):
                tensors["share"] = self._one_each([share for _, share in pairs])
            weights = [batch.weights for batch in batches if batch.weights is not None]
            if weights:
                tensors["weights"] = torch.stack(weights)
            mixed = [batch.mixed for batch in batches if batch.mixed is not None]
            if mixed:
                tensors["others"] = torch.stack([labels for labels, _ in mixed])
                tensors["mix"] = self._one_each([share for _, share in mixed])
            fields = zip(*(batch.fields for batch in batches), strict=True)
            yield tensors, tuple(map(torch.stack, fields))

    def _one_each(self, numbers: Sequence[float]) -> Tensor:
        """A number for each node."""
        return torch.tensor(numbers, dtype=self._layout.dtype, device=self._device)

    def _check_gradient(self, step: NodeStep, vector: Tensor, gradient: Tensor) -> None:
        """Compares a gradient with that of the loop; raises BadInput where they differ."""
        load_flat(self.module, self._layout, vector)
        self.module.zero_grad()
        batches = step.batches or [self._samples.batch(indices) for indices in step.indices]
        for batch, share in self._alone.shares(batches):
            torch.autograd.backward(share * self._alone(batch)[1])
        exact = torch.zeros_like(vector)
        for entry in self._layout.entries:
            if (grad := self._named[entry.name].grad) is not None:
                entry.view(exact).copy_(grad)
        self._compare(step, "gradient", gradient, exact)

    def _stepped_alone(self, step: NodeStep, vector: Tensor, gradient: Tensor) -> tuple[Tensor, Tensor]:
        """Returns a model before and after a step of the node's own optimizer with this gradient."""
        before, after = vector.clone(), vector.clone()
        load_flat(self.module, self._layout, vector)
        for entry in self._layout.entries:
            self._named[entry.name].grad = entry.view(gradient).clone()
        optimizer = self._settings.make_optimizer(self._settings.trained(self.module))
        state = optimizer.state_dict()
        state["state"] = copy.deepcopy(self.optimizer.state_of(step.node))
        optimizer.load_state_dict(state)
        for group, own in zip(optimizer.param_groups, step.groups, strict=True):
            group.update({name: value for name, value in own.items() if name != "params"})
        optimizer.step()
        for entry in self._layout.entries:
            entry.view(after).copy_(self._named[entry.name].detach())
        return before, after

    def _compare(
        self, step: NodeStep, what: str, batched: Tensor, exact: Tensor, rounding: float = 0.0
    ) -> None:
        difference, norm = float((batched - exact).norm()), float(exact.norm())
        most = TOLERANCE[exact.dtype]
        # A gradient that is not finite ends the run with a message of its own.
        if norm < math.inf and not difference <= most * norm + rounding + TINY:
            raise BadInput.at(
                "training.batch_nodes",
                f"{step.place}: the {what} differs from that of a node alone by {difference / max(norm, TINY):.1e} of its "
                f"norm, and at most {most:g} is right; leave it out",
            )


def of_nodes(entry: Entry, vectors: Tensor) -> Tensor:
    """A tensor of the model of each node, shape (nodes, *shape), as a view of their vectors (nodes, d)."""
    part = vectors[:, entry.offset : entry.offset + entry.shape.numel()]
    if entry.channels_last:
        outs, ins, height, width = entry.shape
        return part.view(-1, outs, height, width, ins).permute(0, 1, 4, 2, 3)
    return part.view(-1, *entry.shape)


def flattened(entry: Entry, tensors: Tensor) -> Tensor:
    """The inverse of `of_nodes`: shape (nodes, elements), in the order of the vector."""
    return (tensors.permute(0, 1, 3, 4, 2) if entry.channels_last else tensors).flatten(1)


def reason_of(error: Exception) -> str:
    """Why a network cannot be computed for several nodes at once, by torch's error."""
    text = first_line(error)
    if text.startswith(RANDOM):
        return "the network draws random numbers, such as dropout, and each node has a seed of its own"
    return f"torch.func.vmap fails ({text})"
