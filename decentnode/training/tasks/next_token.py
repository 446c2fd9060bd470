"""The next token of a text at each of its positions."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor, nn

from decentnode.core.registry import TASKS
from decentnode.datasets.base import IGNORED, LoadedDataset
from decentnode.errors import BadInput
from decentnode.training.tasks.base import LOSS, MetricSpec, Task

MOST_EXPONENT = 700.0
"""exp of more is no finite number of 64 bits."""


@TASKS.register("next_token")
@dataclass(kw_only=True)
class NextToken(Task):
    """Loss, accuracy and perplexity of each next token (Radford et al., 2019, GPT-2, section 2).

    Outputs: scores of shape (batch, vocabulary, length), or (batch, vocabulary) where only the last token is
    asked for. Labels that are -100, as for padding, do not count. perplexity = exp(loss).
    """

    def metrics(self, num_classes: int) -> tuple[MetricSpec, ...]:
        return (LOSS, MetricSpec("accuracy", True, True), MetricSpec("perplexity", higher_is_better=False))

    def count(self, labels: Tensor) -> int:
        return int((labels != IGNORED).sum())

    def sums(self, outputs: Tensor, labels: Tensor) -> dict[str, Tensor]:
        counts = labels != IGNORED
        return {"right": ((outputs.argmax(1) == labels) & counts).sum(), "labels": counts.sum()}

    def values(self, sums: Mapping[str, float], count: float) -> dict[str, float]:
        loss = sums["loss"] / count
        # Above that the perplexity is not finite, and so is written as unknown.
        perplexity = math.exp(loss) if loss < MOST_EXPONENT else math.inf
        return {"loss": loss, "accuracy": sums["right"] / sums["labels"], "perplexity": perplexity}

    def check(self, dataset: LoadedDataset, loss: object) -> None:
        super().check(dataset, loss)
        if not dataset.train.has_ids:
            dtype = str(dataset.train.inputs.dtype).removeprefix("torch.")
            raise BadInput(f"task: next_token needs samples of ids (int16, int32, int64), not of {dtype}")
        if loss not in (nn.CrossEntropyLoss, nn.NLLLoss):
            name = getattr(loss, "__name__", loss)
            raise BadInput(f"training.loss: next_token needs CrossEntropyLoss or NLLLoss, not {name}")
