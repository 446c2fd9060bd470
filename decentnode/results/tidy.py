"""The tidy tables of a run: a row for each rank and evaluation, and one for each rank and round."""

from collections.abc import Iterable, Iterator, Sequence
from typing import TypeAlias

from decentnode.formats.metrics import Metric
from decentnode.formats.reader import EvaluationRow
from decentnode.formats.records import RoundRecord

Cell: TypeAlias = str | int | float | None

TEXTS = ("run",)
WHOLE_NUMBERS = ("seed", "rank", "round", "bytes_sent")
COLUMNS = (
    "run", "seed", "rank", "round", "seconds", "wall_seconds", "bytes_sent", "train_loss",
    "consensus_distance",
)  # fmt: skip
"""The columns before those of the metrics; what is neither text nor whole is a float64."""
SECONDS = ("seconds", "wall_seconds", "train_seconds", "exchange_seconds", "mix_seconds", "evaluate_seconds")
BYTES = (
    "sent_payload", "sent_index", "sent_header", "received_payload", "received_index", "received_header",
)  # fmt: skip
RECORD_COLUMNS = (
    "run", "seed", "rank", "round", "train_loss", "steps", *SECONDS, *BYTES, "heard", "late", "lost",
    "refused", "epsilon", "attacker_weight", "memory_mb",
)  # fmt: skip
"""The columns of the records before those of the metrics."""


def columns(metrics: Sequence[Metric]) -> list[str]:
    """All names of columns: `COLUMNS`, then one for each metric."""
    return [*COLUMNS, *(metric.name for metric in metrics)]


def cells(name: str, seed: int, metrics: Sequence[Metric], row: EvaluationRow) -> Iterator[list[Cell]]:
    """Returns a list for each evaluated rank, in the order of `columns`; None where a number is not known.

    Rounds count from 1; metrics are in the units of the files (accuracy: 0 to 1).
    """
    for rank in row.ranks:
        yield [
            name, seed, rank, row.round + 1, row.seconds, row.wall_seconds, row.bytes_sent.get(rank),
            row.train_loss.get(rank), row.consensus_distance,
            *(row.metrics.get(metric.name, {}).get(rank) for metric in metrics),
        ]  # fmt: skip


def record_cells(
    name: str, seed: int, metrics: Sequence[Metric], records: Iterable[RoundRecord]
) -> Iterator[list[Cell]]:
    """Returns a list for each record, in the order of `RECORD_COLUMNS` and the metrics.

    Rounds count from 1; `late`, `lost` and `refused` are numbers of neighbors and of messages.
    """
    for record in records:
        yield [
            name, seed, record.rank, record.round + 1, record.loss, record.steps,
            *(getattr(record, column) for column in (*SECONDS, *BYTES)),
            record.heard, len(record.late), len(record.lost), sum(record.refused.values()),
            record.epsilon, record.attacker_weight, record.memory_mb,
            *(record.metrics.get(metric.name) for metric in metrics),
        ]  # fmt: skip
