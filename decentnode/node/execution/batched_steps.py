"""Local steps of many nodes, computed together."""

import copy
import math
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel

from decentnode.core.text import first_line
from decentnode.core.vector import Entry, ParameterLayout
from decentnode.datasets.base import Batch, Samples
from decentnode.errors import RunFailed, is_out_of_memory
from decentnode.models.module_copies import copied
from decentnode.node.execution.grouped_layers import grouped_losses
from decentnode.node.execution.stacked_optimizer import Groups, StackedOptimizer, padded
from decentnode.training.evaluation import load_flat
from decentnode.training.objective import Objective
from decentnode.training.privacy.unrolled_lstm import unrolled
from decentnode.training.settings import TrainingSettings
from decentnode.training.training import CLIP_EPSILON, Training

TOLERANCE = {torch.float64: 1e-10, torch.float32: 1e-4}
"""The most that the gradient of a node may differ from that of the loop, as a share of its norm."""
OF_TIES = 0.05
"""The same in float32 where float64 is within its tolerance: what near ties may change."""
TINY = 1e-30
RANDOM = "vmap: called random operation"
"""How torch's error begins where a network draws random numbers."""


@dataclass(eq=False, slots=True)
class NodeStep:
    """A local step of one node: what it starts from, and its result once it is computed."""

    training: Training
    node: int
    """The place of the node among those of the process."""
    round: int
    number: int
    """The number of the step in its round."""
    indices: Sequence[NDArray[np.int64]] = ()
    """The samples of each minibatch; empty: they are in `batches`."""
    batches: Sequence[Batch] = ()
    """The minibatches, where they are more than samples of the training set."""
    batched_steps: Sequence["NodeStep"] = ()
    """The steps that are computed together with this one, until they are."""
    loss: Tensor | None = None
    """The loss before the step, a scalar; None: the step is not computed yet."""

    @property
    def samples(self) -> int:
        """The number of samples of the step."""
        return sum([indices.size for indices in self.indices]) or sum(map(len, self.batches))

    @property
    def place(self) -> str:
        """The rank, round and step in words, for messages."""
        return self.training.place(self.round, self.number)

    @property
    def groups(self) -> Groups:
        """The hyperparameters of the node's optimizer."""
        return self.training.optimizer.param_groups


class Parts(nn.Module):
    """The loss of a minibatch from its tensors, as a module whose parameters can be replaced."""

    def __init__(self, objective: Objective) -> None:
        super().__init__()
        self.network = objective.module
        self._objective = objective

    def forward(self, tensors: dict[str, Tensor], *fields: Tensor) -> Tensor:
        """The loss of a minibatch."""
        mixed: Any = (tensors["others"], tensors["mix"]) if "others" in tensors else None
        return self._objective(Batch(fields, tensors["labels"], tensors.get("weights"), mixed))[1]


class BatchedSteps:
    """Computes the local steps of several nodes at once, on their stacked vectors.

    Linear and elementwise layers in sequence are computed by grouped products, other networks by
    `torch.func.vmap`.

    In the first step of nodes, and for each new shape of minibatches, the first and the last node of a call
    are computed as a node alone does it, too. Where gradients differ by more than the tolerance, or
    models by more than their rounding, the run ends.
    """

    def __init__(
        self,
        module: nn.Module,
        layout: ParameterLayout,
        settings: TrainingSettings,
        samples: Samples,
        nodes: int,
    ) -> None:
        """`module`: a network for this alone; `nodes`: how many there are."""
        self.module = module.train()
        self.optimizer = StackedOptimizer(settings, module, layout, nodes)
        self._layout = layout
        self._settings = settings
        self._samples = samples
        # The loop of one node, and the same network in operations that have a rule for batches.
        self._alone = settings.objective(module, layout.channels_last)
        together = unrolled(copied(module))
        for part in together.modules():
            if isinstance(part, nn.GroupNorm):
                # It asks for the memory format of its input, which torch's batched tensors do not know.
                part.register_forward_pre_hook(lambda _, inputs: (inputs[0].contiguous(),))
        self._parts = Parts(settings.objective(together, channels_last=False))
        self._vmapped = vmap(lambda parameters, *args: functional_call(self._parts, parameters, args))
        each = self._alone.counts_each(samples)
        in_memory = samples.is_in_memory and not samples.is_ragged
        self.takes_indices = each and in_memory and not settings.augmentation
        """Whether minibatches are given as indices: each sample has one loss, and all have one shape."""
        self._names = [f"network.{entry.name}" for entry in layout.entries]
        self._named = dict(module.named_parameters())
        names = {id(self._named.get(entry.name)): f"network.{entry.name}" for entry in layout.entries}
        is_one = each and settings.loss_weights is None
        self._grouped = grouped_losses(self._alone, names) if is_one else None
        """The losses of minibatches that are not mixed; None: vmap computes all."""
        self._device = next(module.parameters()).device
        self._memory = torch.empty(0)
        """Of the vectors of a call and their gradients, kept: new pages took 3 us for each node."""
        self._rows: list[Tensor] = []
        """Each row of it, without its padding."""
        self._checked: set[Hashable] = set()
        """The shapes of minibatches that were compared with the loop."""

    def key(self, step: NodeStep) -> Hashable:
        """What steps of one call have in common."""
        return self._shape(step), self.optimizer.key(step.node, step.groups)

    def _shape(self, step: NodeStep) -> Hashable:
        if step.indices:
            return tuple([indices.size for indices in step.indices])
        counted = self._counted(step.batches)
        return tuple(
            (*(field.shape for field in (*batch.fields, batch.labels)), batch.mixed is not None, is_counted)
            for batch, is_counted in zip(step.batches, counted, strict=True)
        )

    def _counted(self, batches: Sequence[Batch]) -> list[bool]:
        """Which minibatches have a part of the loss: where all labels are ignored, it is not a number."""
        if len(batches) == 1 or self._alone.reduction == "sum":
            return [True] * len(batches)
        counted = [batch for batch, _ in self._alone.shares(batches)]
        return [any(batch is other for other in counted) for batch in batches]

    def compute(self, steps: Sequence[NodeStep]) -> None:
        """Makes steps that have one key, of different nodes in the order of their places.

        Raises RunFailed where the network cannot be computed so, or the check fails.
        """
        shape = self._shape(steps[0])
        models = [step.training.vector.trained for step in steps]
        if len(self._memory) < 2 * len(steps):
            self._memory = models[0].new_zeros(2 * len(steps), padded(self._layout.numel))
            self._rows = list(self._memory[:, : self._layout.numel].unbind())
        stacks = self._memory[: 2 * len(steps)].chunk(2)
        vectors, gradients = (stack[:, : self._layout.numel] for stack in stacks)
        rows = self._rows[: len(steps)]
        torch._foreach_copy_(rows, models)
        losses = self._gradients(vectors, gradients, steps)
        checked: list[int] = []
        if shape not in self._checked or not self.optimizer.has_stepped(steps[0].node):
            self._checked.add(shape)
            checked = sorted({0, len(steps) - 1})
        self._check_gradients(
            [steps[i] for i in checked], [vectors[i] for i in checked], [gradients[i] for i in checked]
        )
        for index, step in enumerate(steps):
            if (adjust := step.training.hooks.adjust_gradient) is not None:
                adjust(gradients[index], vectors[index], step.number)
        if self._settings.clip_norm is not None:
            norms = torch.linalg.vector_norm(gradients, dim=1, keepdim=True)
            gradients.mul_((self._settings.clip_norm / (norms + CLIP_EPSILON)).clamp(max=1.0))
        alone = [self._stepped_alone(steps[index], vectors[index], gradients[index]) for index in checked]
        self.optimizer.step([step.node for step in steps], steps[0].groups, *stacks)
        for index, (before, after) in zip(checked, alone, strict=True):
            rounding = torch.finfo(before.dtype).eps * float(before.norm())
            most = TOLERANCE[before.dtype]
            self._compare(steps[index], "model", vectors[index] - before, after - before, most, rounding)
        torch._foreach_copy_(models, rows)
        for step, loss in zip(steps, losses.unbind(), strict=True):
            # Without the batch, which refers to the step.
            step.loss, step.batched_steps = loss, ()

    def _gradients(self, vectors: Tensor, gradients: Tensor, steps: Sequence[NodeStep]) -> Tensor:
        """Computes the gradients of all nodes, shape (nodes, d); returns their losses, shape (nodes,)."""
        leaves = [of_nodes(entry, vectors).requires_grad_() for entry in self._layout.entries]
        parameters = dict(zip(self._names, leaves, strict=True))
        total = vectors.new_zeros(len(steps))
        places = [of_nodes(entry, gradients) for entry in self._layout.entries]
        try:
            for index, (shares, tensors, fields) in enumerate(self._minibatches(steps)):
                losses = self._losses(parameters, tensors, *fields)
                losses = losses if shares is None else shares * losses
                # The loss of a node depends on its own parameters alone, so this is the gradient of each.
                parts = torch.autograd.grad(losses.sum(), leaves, allow_unused=True)
                for place, part in zip(places, parts, strict=True):
                    if index == 0:
                        place.copy_(part) if part is not None else place.zero_()
                    elif part is not None:
                        place.add_(part)
                total = total + losses.detach()
        except (RuntimeError, NotImplementedError, TypeError, ValueError) as error:
            if is_out_of_memory(error):
                raise
            raise RunFailed.at(
                "training.execution.batches", f"{steps[0].place}: {reason_of(error)}; leave it out"
            ) from error
        return total

    def _losses(self, parameters: dict[str, Tensor], tensors: dict[str, Tensor], *fields: Tensor) -> Tensor:
        """The losses of one minibatch of each node, shape (nodes,)."""
        if self._grouped is not None and tensors.keys() == {"labels"}:
            return self._grouped(parameters, tensors["labels"], *fields)
        # The fused attention has no rule for several nodes.
        with sdpa_kernel(SDPBackend.MATH):
            losses: Tensor = self._vmapped(parameters, tensors, *fields)
        return losses

    def _minibatches(
        self, steps: Sequence[NodeStep]
    ) -> Iterator[tuple[Tensor | None, dict[str, Tensor], tuple[Tensor, ...]]]:
        """Yields each minibatch of all nodes, as `Parts` takes it, with a first dimension for the nodes.

        Before it the factors of the losses in those of the steps, shape (nodes,); None: they are 1.
        """
        if steps[0].indices:
            sizes = [*map(len, steps[0].indices)]
            shares = [size / sum(sizes) for size in sizes]
            plain = len(sizes) == 1 or self._alone.reduction == "sum"
            for part, share in zip(zip(*(step.indices for step in steps), strict=True), shares, strict=True):
                batch = self._samples.batch(torch.from_numpy(np.concatenate(part)))
                shape = len(steps), -1
                tensors = {"labels": batch.labels.view(*shape, *batch.labels.shape[1:])}
                yield (
                    None if plain else self._one_each([share] * len(steps)),
                    tensors,
                    tuple(f.view(*shape, *f.shape[1:]) for f in batch.fields),
                )
            return
        for pairs in zip(*(self._alone.shares(step.batches) for step in steps), strict=True):
            batches = [batch for batch, _ in pairs]
            tensors = {"labels": torch.stack([batch.labels for batch in batches])}
            weights = [batch.weights for batch in batches if batch.weights is not None]
            if weights:
                tensors["weights"] = torch.stack(weights)
            mixed = [batch.mixed for batch in batches if batch.mixed is not None]
            if mixed:
                tensors["others"] = torch.stack([labels for labels, _ in mixed])
                tensors["mix"] = self._one_each([share for _, share in mixed])
            fields = zip(*(batch.fields for batch in batches), strict=True)
            yield self._one_each([share for _, share in pairs]), tensors, tuple(map(torch.stack, fields))

    def _one_each(self, numbers: Sequence[float]) -> Tensor:
        """A number for each node."""
        return torch.tensor(numbers, dtype=self._layout.dtype, device=self._device)

    def _check_gradients(
        self, steps: Sequence[NodeStep], vectors: Sequence[Tensor], gradients: Sequence[Tensor]
    ) -> None:
        """Compares gradients with those of the loop; raises RunFailed where they differ.

        A near tie, as in max pooling, goes one way or the other by rounding: a gradient of LeNet then differs
        by some thousandths. Float64 has hardly any, so it decides where those of fp32 differ that much.
        """
        alone = [self._gradient_alone(step, vector) for step, vector in zip(steps, vectors, strict=True)]
        most = TOLERANCE[self._layout.dtype]
        may_be_tied = self._layout.dtype == torch.float32 and any(
            differs(gradient, exact, most) for gradient, exact in zip(gradients, alone, strict=True)
        )
        for step, gradient, exact in zip(steps, gradients, alone, strict=True):
            self._compare(step, "gradient", gradient, exact, OF_TIES if may_be_tied else most)
        if may_be_tied:
            self._check_in_float64(steps, vectors)

    def _check_in_float64(self, steps: Sequence[NodeStep], vectors: Sequence[Tensor]) -> None:
        """Computes the gradients of these nodes once more, together and alone; raises RunFailed."""
        layout = replace(self._layout, dtype=torch.float64)
        samples = replace(self._samples, dtype=torch.float64)
        settings = replace(self._settings, dtype="float64")
        batched = BatchedSteps(copied(self.module).double(), layout, settings, samples, len(steps))
        wide = [replace(step, batches=[in_float64(batch) for batch in step.batches]) for step in steps]
        models = torch.stack([*vectors]).double()
        gradients = torch.empty_like(models)
        batched._gradients(models, gradients, wide)
        batched._check_gradients(wide, models.unbind(), gradients.unbind())

    def _gradient_alone(self, step: NodeStep, vector: Tensor) -> Tensor:
        """Computes a gradient as the loop does, shape (d,)."""
        load_flat(self.module, self._layout, vector)
        self.module.zero_grad()
        batches = step.batches or [self._samples.batch(torch.from_numpy(indices)) for indices in step.indices]
        for batch, share in self._alone.shares(batches):
            torch.autograd.backward(share * self._alone(batch)[1])
        exact = torch.zeros_like(vector)
        for entry in self._layout.entries:
            if (grad := self._named[entry.name].grad) is not None:
                entry.view(exact).copy_(grad)
        return exact

    def _stepped_alone(self, step: NodeStep, vector: Tensor, gradient: Tensor) -> tuple[Tensor, Tensor]:
        """Returns a model before and after a step of the node's own optimizer with this gradient."""
        before, after = vector.clone(), vector.clone()
        load_flat(self.module, self._layout, vector)
        for entry in self._layout.entries:
            self._named[entry.name].grad = entry.view(gradient).clone()
        optimizer = self._settings.make_optimizer(self._settings.trained(self.module))
        for group, own in zip(optimizer.param_groups, step.groups, strict=True):
            group.update({name: value for name, value in own.items() if name != "params"})
        # Not by load_state_dict, which changes the type of numbers.
        parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        for index, state in copy.deepcopy(self.optimizer.state_of(step.node)).items():
            optimizer.state[parameters[index]] = state
        optimizer.step()
        for entry in self._layout.entries:
            entry.view(after).copy_(self._named[entry.name].detach())
        return before, after

    def _compare(
        self, step: NodeStep, what: str, batched: Tensor, exact: Tensor, most: float, rounding: float = 0.0
    ) -> None:
        norm = float(exact.norm())
        # A gradient that is not finite ends the run with a message of its own.
        if norm < math.inf and differs(batched, exact, most, rounding):
            share = float((batched - exact).norm()) / max(norm, TINY)
            raise RunFailed.at(
                "training.execution.batches",
                f"{step.place}: the {what} differs from that of a node alone by {share:.1e} of its norm, "
                f"more than {most:g}; leave it out",
            )


def differs(batched: Tensor, exact: Tensor, most: float, rounding: float = 0.0) -> bool:
    """Whether they are apart by more than this share of the norm, and the rounding; also where one is NaN."""
    return not float((batched - exact).norm()) <= most * float(exact.norm()) + rounding + TINY


def in_float64(batch: Batch) -> Batch:
    """Returns a minibatch with its floating numbers in float64."""
    fields = tuple(field.double() if field.is_floating_point() else field for field in batch.fields)
    labels = batch.labels.double() if batch.labels.is_floating_point() else batch.labels
    return replace(batch, fields=fields, labels=labels)


def of_nodes(entry: Entry, vectors: Tensor) -> Tensor:
    """A tensor of the model of each node, shape (nodes, *shape), as a view of their vectors (nodes, d)."""
    part = vectors[:, entry.offset : entry.offset + entry.shape.numel()]
    if entry.channels_last:
        outs, ins, height, width = entry.shape
        return part.view(-1, outs, height, width, ins).permute(0, 1, 4, 2, 3)
    return part.view(-1, *entry.shape)


def reason_of(error: Exception) -> str:
    """Why a network cannot be computed for several nodes at once, by torch's error."""
    text = first_line(error)
    if text.startswith(RANDOM):
        return "the network draws random numbers, such as dropout, and each node has a seed of its own"
    return f"torch.func.vmap fails ({text})"
