"""The function that training minimizes and evaluation measures: a network with a loss."""

import torch
from torch import Tensor, nn
from torch.nn.functional import one_hot

from decentnode.core.vector import accumulator
from decentnode.errors import BadInput

PER_CLASS_LOSSES = (
    nn.MSELoss, nn.L1Loss, nn.SmoothL1Loss, nn.HuberLoss,
    nn.BCELoss, nn.BCEWithLogitsLoss, nn.MultiLabelSoftMarginLoss,
)  # fmt: skip
"""Losses that compare each score with a target of its own and need one-hot labels."""


class Objective:
    """Scores and loss of a batch, in the memory format and on the device of the network."""

    def __init__(self, module: nn.Module, loss: nn.Module, channels_last: bool = False) -> None:
        """Raises BadInput for a loss that is not one number."""
        self.module = module
        self.loss = loss
        self.reduction = getattr(loss, "reduction", "mean")
        if self.reduction == "none":
            raise BadInput(
                f"{type(loss).__name__}: reduction 'none' gives no single loss; use 'mean' or 'sum'"
            )
        self._channels_last = channels_last
        self._device = next(module.parameters()).device

    def __call__(self, inputs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Scores, shape (batch, classes, *label_shape), and the loss, a scalar with a gradient."""
        scores: Tensor = self.module(self._placed(inputs))
        # A sum of exponentials in bfloat16 would have two digits.
        scores, labels = scores.to(accumulator(scores.dtype)), labels.to(self._device)
        if isinstance(self.loss, PER_CLASS_LOSSES):
            targets = one_hot(labels, scores.shape[1]).movedim(-1, 1)
            return scores, self.loss(scores, targets.to(scores.dtype))
        return scores, self.loss(scores, labels)

    def total(self, loss: float, samples: int) -> float:
        """The sum over a batch with the loss `loss`, whether the loss averages or sums."""
        return loss if self.reduction == "sum" else loss * samples

    def _placed(self, inputs: Tensor) -> Tensor:
        if self._channels_last and inputs.dim() == 4:
            return inputs.to(self._device, memory_format=torch.channels_last)
        return inputs.to(self._device)
