"""The base of all writers, and what they make of a row."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from math import nan
from statistics import fmean
from typing import Any, ClassVar

from decentnode.formats.metrics import Metric
from decentnode.formats.reader import EvaluationRow
from decentnode.results.extra import missing
from decentnode.results.run import Run


class Writer(ABC):
    """Writes the evaluations of a run while it goes on, for another tool.

    The launcher of machine 0 runs it in a process of its own: `begin`, `row` for each further evaluation,
    `close`. What a method raises is shown in one line, and ends the writer but not the run. Libraries are
    imported in `begin`, so the other processes of the run have none of them.
    """

    needs: ClassVar[tuple[str, str]] = ("", "")
    """The package that it imports, and the extra of decentnode that installs it; empty: none."""

    @abstractmethod
    def begin(self, run: Run, rows: Sequence[EvaluationRow]) -> None:
        """Opens what it writes to, so that it has exactly these rows, each once.

        `run`: name, resolved settings, directory and metrics, the headline first. `rows`: by round; those of
        earlier starts of a resumed run, otherwise none. Rows that the run has discarded since are removed
        where the tool can do so.
        """

    @abstractmethod
    def row(self, row: EvaluationRow) -> None:
        """Writes one more evaluation; no round comes twice."""

    @abstractmethod
    def close(self, summary: Mapping[str, Any]) -> None:
        """Ends after the last row; `summary`: the content of `summary.json`, empty if the run was killed."""

    @classmethod
    def lack(cls) -> str:
        """Returns what must be installed first, in one line; otherwise empty. Imports nothing."""
        package, extra = cls.needs
        return missing(package, extra) if package else ""


def scalars(row: EvaluationRow, metrics: Sequence[Metric], per_rank: bool = False) -> dict[str, float]:
    """A row as numbers by name: of each metric mean, minimum and maximum over nodes, and the mean model's.

    Then means of training loss and of sent bytes over nodes, consensus distance, and seconds. A number that
    is not finite is nan; one that is not known is missing. `per_rank`: also each metric of each rank.
    """
    scores: dict[str, float] = {}
    for name in (metric.name for metric in metrics):
        values = [nan if value is None else value for value in row.values(name)]
        if values:
            has_nan = any(value != value for value in values)
            scores[f"{name}/mean"] = fmean(values)
            # Comparisons with nan are false, so min and max would depend on the order.
            scores[f"{name}/min"], scores[f"{name}/max"] = (
                (nan, nan) if has_nan else (min(values), max(values))
            )
        if row.average_model is not None and name in row.average_model:
            average = row.of_average(name)
            scores[f"{name}/mean_model"] = nan if average is None else average
        if per_rank:
            ranks = zip(row.metrics.get(name, {}), values, strict=True)
            scores |= {f"{name}/rank_{rank:05d}": value for rank, value in ranks}
    if row.train_loss:
        scores["train_loss"] = fmean(row.train_loss.values())
    if row.bytes_sent:
        scores["bytes_sent"] = fmean(row.bytes_sent.values())
    if row.consensus_distance is not None:
        scores["consensus_distance"] = row.consensus_distance
    wall = {} if row.wall_seconds is None else {"wall_seconds": row.wall_seconds}
    return scores | {"seconds": row.seconds, **wall}


def hyperparameters(settings: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """The settings as pairs of a dotted key and a text, as `training.optimizer.lr`; lists are one text."""
    for key, value in settings.items():
        if isinstance(value, Mapping) and value:
            yield from hyperparameters(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", str(value)


def start_of(run: Run) -> float:
    """Seconds since 1970 at which the run was made, for tools that want the time of a row.

    The configuration is written then, and kept by a resume; this process's clock may have jumped since.
    """
    return (run.directory / "config.yaml").stat().st_mtime


def is_whole(summary: Mapping[str, Any]) -> bool:
    """Whether all nodes of a run have finished; `summary` is that of `Writer.close`."""
    return bool(summary) and summary.get("finished_nodes") == summary.get("nodes")
