"""The tidy table of a run: one row for each rank and evaluation, for every format that has tables."""

from collections.abc import Iterator, Sequence
from typing import TypeAlias

from decentnode.results.metrics import Metric
from decentnode.results.reader import EvaluationRow

Cell: TypeAlias = str | int | float | None

TEXTS = ("run",)
WHOLE_NUMBERS = ("seed", "rank", "round", "bytes_sent")
COLUMNS = ("run", "seed", "rank", "round", "seconds", "bytes_sent", "train_loss", "consensus_distance")
"""The columns before those of the metrics; what is neither text nor whole is a float64."""


def columns(metrics: Sequence[Metric]) -> list[str]:
    """All names of columns: `COLUMNS`, then one for each metric."""
    return [*COLUMNS, *(metric.name for metric in metrics)]


def cells(name: str, seed: int, metrics: Sequence[Metric], row: EvaluationRow) -> Iterator[list[Cell]]:
    """Returns a list for each evaluated rank, in the order of `columns`; None where a number is not known.

    Rounds count from 1; metrics are in the units of the files (accuracy: 0 to 1).
    """
    for rank in row.ranks:
        yield [
            name, seed, rank, row.round + 1, row.seconds, row.bytes_sent.get(rank), row.train_loss.get(rank),
            row.consensus_distance, *(row.metrics.get(metric.name, {}).get(rank) for metric in metrics),
        ]  # fmt: skip
