"""Sentences into another language, token by token."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

from decentnode.core.registry import TASKS
from decentnode.datasets.base import IGNORED, Batch, LoadedDataset, Samples
from decentnode.datasets.ragged import Ragged, Rows, lengths_of
from decentnode.errors import BadInput
from decentnode.options import NonNegativeFloat, Positive
from decentnode.training.metrics.base import MetricSpec
from decentnode.training.tasks.base import Network
from decentnode.training.tasks.beam_search import BeamSearch
from decentnode.training.tasks.next_token import NextToken

BLEU = MetricSpec("bleu", higher_is_better=True)
ORDERS = range(4)
"""BLEU counts n-grams of 1 to 4 words."""


@TASKS.register("translation")
@dataclass(kw_only=True)
class Translation(NextToken):
    """Loss, accuracy and perplexity of each target token, and BLEU (Vaswani et al., 2017, section 6.1).

    Samples have two fields, source and target; the target begins with a token that the labels do not have,
    and the labels are the target from the next token on. BLEU is that of corpus_bleu in sacrebleu (Post,
    2018), of texts found by beam search. Its references are the texts of the labels.
    """

    bleu: bool | Positive = False
    """Whether an evaluation has BLEU: of all its samples, or of the first so many."""
    beams: Positive = 4
    """Beams of the search for texts; 1: greedy."""
    alpha: NonNegativeFloat = 0.6
    """The exponent of the length penalty in the search."""
    longer: Positive = 50
    """Texts have at most so many tokens more than their source."""

    def metrics(self, num_classes: int) -> tuple[MetricSpec, ...]:
        return (*super().metrics(num_classes), *([BLEU] if self.bleu else []))

    def values(self, sums: Mapping[str, float], count: float) -> dict[str, float]:
        metrics = super().values(sums, count)
        if self.bleu:
            score = _sacrebleu().BLEU.compute_bleu(
                *([int(sums[f"{name}_{n}"]) for n in ORDERS] for name in ("matches", "ngrams")),
                int(sums["words"]), int(sums["reference_words"]),
                smooth_method="exp",
            )  # fmt: skip
            metrics["bleu"] = score.score
        return metrics

    def generated(
        self, network: Network, samples: Samples, batch_size: int, beat: Callable[[], None]
    ) -> dict[str, float]:
        """Returns what BLEU is computed from: counts of matching n-grams, of n-grams, and of words."""
        vocabulary = samples.vocabulary
        if not self.bleu or vocabulary is None:
            return {}
        if self.bleu is not True:
            samples = samples.subset(torch.arange(min(self.bleu, len(samples))))
        texts, references = list[str](), list[str]()
        search = BeamSearch(self.beams, self.alpha, vocabulary.end)
        for rows in samples.in_batches(batch_size):
            batch = samples.batch(rows)
            most = lengths_of(samples.inputs)[rows] + self.longer
            texts += map(vocabulary.text, _translated(network, batch, search, most=most, beat=beat))
            references += (
                vocabulary.text([id for id in row if id != IGNORED]) for row in batch.labels.tolist()
            )
        score = _sacrebleu().BLEU().corpus_score(texts, [references])
        counts = {"words": score.sys_len, "reference_words": score.ref_len}
        counts |= {f"matches_{n}": score.counts[n] for n in ORDERS}
        return counts | {f"ngrams_{n}": score.totals[n] for n in ORDERS}

    def check(self, dataset: LoadedDataset, loss: object) -> None:
        super().check(dataset, loss)
        for samples in (dataset.train, dataset.test):
            if len(samples.more) != 1 or not _fit(samples.more[0], samples.labels):
                raise BadInput.at(
                    "task",
                    "translation needs samples with two fields of ids, source and target, and a label "
                    "for each id of the target",
                )
        if self.bleu and dataset.test.vocabulary is None:
            raise BadInput.at("task.bleu", "needs a dataset that knows the text of ids, such as parallel")
        if self.bleu and find_spec("sacrebleu") is None:
            raise BadInput.at("task.bleu", "needs sacrebleu; run: pip install 'decentnode[tasks]'")


def _translated(
    network: Network, batch: Batch, search: BeamSearch, most: Tensor, beat: Callable[[], None]
) -> list[list[int]]:
    source, target = batch.fields

    def step(rows: Tensor, ids: Tensor) -> Tensor:
        return network(source[rows], ids)[..., -1]

    return search(step, target[:, 0], most, beat)


def _fit(target: Rows, labels: Rows) -> bool:
    if isinstance(target, Ragged) and isinstance(labels, Ragged):
        return torch.equal(target.lengths, labels.lengths)
    return type(target) is type(labels) and target.shape == labels.shape


def _sacrebleu() -> Any:
    """Imports sacrebleu when it is needed."""
    from sacrebleu import metrics

    return metrics
