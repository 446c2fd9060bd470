"""The gradient of each sample of a batch, clipped, and their sum."""

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel

from decentnode.core.text import first_line
from decentnode.core.vector import ParameterLayout
from decentnode.datasets.base import Batch, counts
from decentnode.training.evaluation import evaluation_mode
from decentnode.training.objective import Objective
from decentnode.training.privacy.unrolled_lstm import unrolled

MOST_NUMBERS = 1 << 26
"""Numbers of the gradients that are in memory at once, at most: 256 MB in float32."""
LONG_TEXT = 32
"""The tokens of a long text. On one thread, all at once takes 0.8 of the time at 10 tokens, 1.4 at 80."""
TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-3, torch.bfloat16: 0.1}
"""The relative difference of two ways to compute a gradient."""


class Example(nn.Module):
    """The loss of one sample, as a module whose parameters can be replaced."""

    def __init__(self, objective: Objective, network: nn.Module) -> None:
        super().__init__()
        self.network = network
        self._objective = copy.copy(objective)
        self._objective.use(network)

    def forward(self, labels: Tensor, *fields: Tensor) -> Tensor:
        """The loss of a sample without the dimension of the batch."""
        batch = Batch(tuple(field.unsqueeze(0) for field in fields), labels.unsqueeze(0))
        return self._objective(batch)[1]


class ClippedSum:
    """Adds up gradients of samples, each scaled to a norm of at most C (Abadi et al., 2016, algorithm 1).

    g <- g + sum_i g_i min(1, C / |g_i|)

    All samples are computed at once by `torch.func.vmap`. Where that fails or gives another gradient than a
    backward pass, which the first batch tells, samples are computed one after the other.
    """

    def __init__(self, objective: Objective, layout: ParameterLayout) -> None:
        self.objective = objective
        self.why_loop: str | None = None
        """The reason why samples are computed one by one; empty: they are not; None: not known yet."""
        self._layout = layout.parameters
        self._piece = max(1, MOST_NUMBERS // max(1, self._layout.numel))
        module = objective.module
        named = dict(module.named_parameters())
        self._parameters = {entry.name: named[entry.name] for entry in self._layout.entries}
        self._has_lstm = any(isinstance(part, nn.LSTM) for part in module.modules())
        self._example = Example(objective, unrolled(module))

    def add(self, batch: Batch, clip: float, gradient: Tensor) -> Tensor:
        """Adds the clipped gradients of a batch to a flat gradient; returns the sum of the losses."""
        batch = counted(batch)
        if self.why_loop is None and len(batch):
            self.why_loop = self._defect(part_of(batch, 0, 2), clip, gradient)
        one_by_one = self.why_loop or self._is_long(batch)
        way = self._loop if one_by_one else self._at_once
        losses = [
            way(part_of(batch, start, start + self._piece), clip, gradient)
            for start in range(0, len(batch), self._piece)
        ]
        return torch.stack(losses).sum() if losses else gradient.new_zeros(())

    def _is_long(self, batch: Batch) -> bool:
        """Whether torch's own LSTM is faster, one text after the other: it is on CPUs, for long texts."""
        is_text = batch.fields[0].dim() > 1 and batch.fields[0].shape[1] > LONG_TEXT
        return self._has_lstm and is_text and batch.fields[0].device.type == "cpu"

    def _at_once(self, batch: Batch, clip: float, gradient: Tensor) -> Tensor:
        parameters = {f"network.{name}": p.detach() for name, p in self._parameters.items()}
        if self._example.network is not self.objective.module:
            self._example.network.train(self.objective.module.training)
        # The fused attention has no rule for batches of gradients.
        with sdpa_kernel(SDPBackend.MATH):
            gradients, losses = self._vectorized(len(batch.fields))(parameters, batch.labels, *batch.fields)
        flat = [gradients[f"network.{entry.name}"].flatten(1) for entry in self._layout.entries]
        norms = torch.stack([torch.linalg.vector_norm(part, dim=1) for part in flat]).norm(dim=0)
        factors = shrinking(norms, clip)
        if not norms.isfinite().all():
            flat = [part.nan_to_num(0.0, 0.0, 0.0) for part in flat]
        for entry, part in zip(self._layout.entries, flat, strict=True):
            entry.view(gradient).add_((factors @ part).view(entry.shape))
        total: Tensor = losses.sum()
        return total

    def _vectorized(self, fields: int) -> Callable[..., Any]:
        def loss(parameters: dict[str, Tensor], labels: Tensor, *fields: Tensor) -> Tensor:
            made: Tensor = functional_call(self._example, parameters, (labels, *fields))
            return made

        axes = (None, 0, *(0 for _ in range(fields)))
        made: Callable[..., Any] = vmap(grad_and_value(loss), in_dims=axes, randomness="different")
        return made

    def _loop(self, batch: Batch, clip: float, gradient: Tensor) -> Tensor:
        total = gradient.new_zeros(())
        for index in range(len(batch)):
            loss = self.objective(part_of(batch, index, index + 1))[1]
            gradients = torch.autograd.grad(loss, list(self._parameters.values()), allow_unused=True)
            parts = [(e, g) for e, g in zip(self._layout.entries, gradients, strict=True) if g is not None]
            norm = torch.stack([torch.linalg.vector_norm(part) for _, part in parts]).norm()
            factor = shrinking(norm, clip)
            for entry, part in parts:
                part = part if norm.isfinite() else part.nan_to_num(0.0, 0.0, 0.0)
                entry.view(gradient).add_(factor * part)
            total += loss.detach()
        return total

    def _defect(self, batch: Batch, clip: float, like: Tensor) -> str:
        """Returns why all samples cannot be computed at once; empty where they can."""
        at_once, in_loop = torch.zeros_like(like), torch.zeros_like(like)
        with evaluation_mode(self.objective.module):
            try:
                self._at_once(batch, clip, at_once)
            except (RuntimeError, NotImplementedError, TypeError, ValueError) as error:
                return first_line(error)
            self._loop(batch, clip, in_loop)
        is_equal = bool((at_once - in_loop).norm() <= TOLERANCE[like.dtype] * in_loop.norm() + 1e-12)
        return "" if is_equal else "torch.func.vmap gives another gradient"


def shrinking(norms: Tensor, clip: float) -> Tensor:
    """Returns min(1, C / |g|) for each norm; 0 if not finite: nothing else bounds such a gradient."""
    factors = (clip / norms).clamp(max=1.0)
    return torch.where(norms.isfinite(), factors, torch.zeros_like(factors))


def part_of(batch: Batch, start: int, end: int) -> Batch:
    """The samples of a batch from `start` up to `end`."""
    return Batch(tuple(field[start:end] for field in batch.fields), batch.labels[start:end])


def counted(batch: Batch) -> Batch:
    """The samples of which a label counts: without one, the loss is not a number, and the gradient zero."""
    labels = batch.labels
    if labels.is_floating_point():
        return batch
    with_part = counts(labels).reshape(len(labels), -1).any(1)
    if with_part.all():
        return batch
    return Batch(tuple(field[with_part] for field in batch.fields), labels[with_part])
