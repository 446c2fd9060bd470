"""The next token of a text at each of its positions."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from decentnode.core.registry import TASKS, name_of
from decentnode.datasets.base import IGNORED, LoadedDataset, counts
from decentnode.errors import BadInput
from decentnode.training.metrics.base import MetricSpec
from decentnode.training.metrics.probabilities import MOST_EXPONENT
from decentnode.training.tasks.base import LOSS, Task, share


@TASKS.register("next_token")
@dataclass(kw_only=True)
class NextToken(Task):
    """Loss, accuracy and perplexity of each next token (Radford et al., 2019, GPT-2, section 2).

    Outputs: scores of shape (batch, vocabulary, length), or (batch, vocabulary) where only the last token is
    asked for. Labels that are -100, as for padding, do not count. The perplexity is that of the scores:
    exp(mean of -log p), without the label smoothing that the loss may have.
    """

    labels_show_ranks = False

    def metrics(self, num_classes: int) -> tuple[MetricSpec, ...]:
        return (LOSS, MetricSpec("accuracy", True, True), MetricSpec("perplexity", higher_is_better=False))

    def count(self, labels: Tensor) -> int:
        return int(counts(labels).sum())

    def sums(self, outputs: Tensor, labels: Tensor) -> dict[str, Tensor]:
        surprise = cross_entropy(outputs, labels, ignore_index=IGNORED, reduction="none")
        return {
            "right": (outputs.argmax(1) == labels).sum(),
            "labels": counts(labels).sum(),
            "surprise": surprise.sum(dtype=torch.float64),
        }

    def values(self, sums: Mapping[str, float], count: float) -> dict[str, float]:
        surprise = share(sums["surprise"], sums["labels"])
        # Above that the perplexity is not finite, and so is written as unknown.
        perplexity = math.inf if surprise >= MOST_EXPONENT else math.exp(surprise)
        accuracy = share(sums["right"], sums["labels"])
        return {"loss": share(sums["loss"], count), "accuracy": accuracy, "perplexity": perplexity}

    def check(self, dataset: LoadedDataset, loss: object) -> None:
        super().check(dataset, loss)
        if not dataset.train.has_ids:
            dtype = str(dataset.train.inputs.dtype).removeprefix("torch.")
            raise BadInput.at(
                "task", f"{name_of(self)} needs samples of ids (int16, int32, int64), not of {dtype}"
            )
        if loss not in (nn.CrossEntropyLoss, nn.NLLLoss):
            name = getattr(loss, "__name__", loss)
            raise BadInput.at(
                "training.loss", f"{name_of(self)} needs CrossEntropyLoss or NLLLoss, not {name}"
            )
