"""The curves of a run: its evaluations, each the mean over nodes with its spread."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from math import inf, isfinite, nan
from pathlib import Path
from statistics import fmean, pstdev
from typing import Any

import numpy as np
import yaml

from decentnode.core.registry import guess
from decentnode.core.text import counted, quoted
from decentnode.errors import BadInput
from decentnode.formats.lease import lease_of
from decentnode.formats.metrics import CLASSIFICATION, LOCAL, TRAIN_LOSS, Metric
from decentnode.formats.partition_table import PartitionTable, read_partition
from decentnode.formats.reader import (
    MOST_SHOWN,
    NOT_OURS,
    EvaluationRow,
    StrPath,
    is_simulated,
    machine_parts,
    read_evaluations,
    read_metrics,
    read_object,
    read_value,
)
from decentnode.formats.records import RoundRecord, record_files, records_by_rank
from decentnode.formats.run import run_directory
from decentnode.results.coordinates import SentShares, read_shares

MANY_NODES = 64
"""From so many nodes on, pictures show their quantiles instead of the deviation and the extremes."""
QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
PLACES = ("path", "partition", "skew")
MOST_ROUNDS, MOST_SECONDS = 1 << 63, 1e12


@dataclass(frozen=True)
class Outcome:
    """The part of the summary for a run without evaluations."""

    nodes: int
    rounds: int
    bytes_per_node: float
    seconds: float


@dataclass(frozen=True)
class RunCurves:
    """One run, from the files in its directory."""

    name: str
    rows: list[EvaluationRow]
    partition: PartitionTable | None
    """The training samples of each rank; None where unknown."""
    outcome: Outcome | None = None
    """How a run without evaluations ended; None for others."""
    dataset: dict[str, Any] = field(default_factory=dict)
    """Name and options of the data set, without the place of its files; empty where unknown."""
    metrics: Sequence[Metric] = CLASSIFICATION
    """The metrics of its evaluations; the first is the headline metric."""
    is_simulated: bool = False
    """Whether its seconds are virtual."""
    sent_shares: SentShares | None = None
    """How often coordinates were sent; None where that was not counted."""
    planned_rounds: int | None = None
    """The rounds of a run in progress; None for others."""

    @property
    def headline(self) -> Metric:
        """The metric that the run is judged by."""
        return self.metrics[0]

    @property
    def distances(self) -> dict[int, float]:
        """Consensus distance by round (counted from 1), where it is known and positive."""
        known = ((row.round + 1, row.consensus_distance) for row in self.rows)
        return {round: distance for round, distance in known if distance is not None}


@dataclass(frozen=True)
class Axis:
    """The horizontal axis of a curve; `scale` is a factor on the result of `of`."""

    key: str
    name: str
    label: str
    of: Callable[[EvaluationRow], float]
    scale: float = 1.0
    units: Mapping[str, float] = field(default_factory=dict)
    """The size of each unit that may stand for the last in the label, the largest first."""

    def in_unit(self, most: float) -> "Axis":
        """The axis in the largest unit that is not larger than this number."""
        if not self.units:
            return self
        *_, default = self.units
        unit = next((unit for unit, size in self.units.items() if most >= size), default)
        return replace(self, label=self.label.replace(default, unit, 1), scale=1.0 / self.units[unit])

    def values(self, rows: Sequence[EvaluationRow]) -> list[float]:
        """Returns one number per evaluation."""
        return [self.scale * self.of(row) for row in rows]


@dataclass(frozen=True)
class Spread:
    """The nodes' numbers after each evaluation; nan where one of them is not a number."""

    mean: list[float]
    std: list[float]
    least: list[float]
    most: list[float]
    average: list[float]
    """The number of the average model."""
    quantiles: list[list[float]]
    """By share of QUANTILES: where one node is not a number it counts as the worst."""


BYTES_UNITS = {"TB": 1e12, "GB": 1e9, "MB": 1e6, "kB": 1e3, "bytes": 1.0}
TIME_UNITS = {"days": 86400.0, "hours": 3600.0, "minutes": 60.0, "seconds": 1.0}
ROUNDS = Axis("rounds", "rounds", "round", of=lambda row: row.round + 1)
SECONDS = Axis("seconds", "time", "seconds", of=lambda row: row.seconds, units=TIME_UNITS)
BYTES = Axis(
    "bytes", "bytes sent", "bytes sent per node", units=BYTES_UNITS,
    of=lambda row: fmean(row.bytes_sent.values()),
)  # fmt: skip
MIXED_TIMES = "simulated and real ones: do not compare"
AXES = {axis.key: axis for axis in (ROUNDS, BYTES, SECONDS)}


def chosen_axis(name: str) -> Axis:
    """The axis of that name; raises BadInput where there is none."""
    if name not in AXES:
        known = guess(name, AXES) or f" (known: {', '.join(AXES)})"
        raise BadInput(f"unknown x axis {quoted(name)}{known}")
    return AXES[name]


def seconds_axis(simulated: Sequence[bool]) -> Axis:
    """The seconds of runs, which says so where they are those of simulations; one entry for each run."""
    if not any(simulated):
        return SECONDS
    if all(simulated):
        return replace(SECONDS, name="simulated time", label="simulated seconds")
    return replace(SECONDS, label=f"seconds ({MIXED_TIMES})")


def metric_label(metric: Metric, names: Mapping[str, str] | None = None) -> str:
    """The metric with its unit, for an axis; `names`: what stands for its name."""
    return f"{(names or {}).get(metric.name, metric.title)}{' (%)' if metric.is_fraction else ''}"


def axis_of(runs: Sequence[RunCurves], name: str) -> Axis:
    """The axis of that name, in the unit that suits the largest number of these runs; raises BadInput."""
    axis = chosen_axis(name)
    if axis is SECONDS:
        axis = seconds_axis([run.is_simulated for run in runs])
    return axis.in_unit(max((axis.of(row) for run in runs for row in run.rows), default=0.0))


def spread_of(rows: Sequence[EvaluationRow], metric: Metric) -> Spread:
    """Returns mean, standard deviation, least and most over nodes of each evaluation, as people read them."""
    spreads = [_spread([_scaled(value, metric) for value in row.values(metric.name)]) for row in rows]
    mean, std, least, most = (list(column) for column in zip(*spreads, strict=True))
    average = [_scaled(row.of_average(metric.name), metric) for row in rows]
    of_rows = [_quantiles(row.values(metric.name), metric) for row in rows]
    return Spread(
        mean,
        std,
        least,
        most=most,
        average=average,
        quantiles=[[*shares] for shares in zip(*of_rows, strict=True)],
    )


def _quantiles(
    values: Sequence[float | None], metric: Metric, shares: Sequence[float] = QUANTILES
) -> list[float]:
    """The quantiles as people read them; nan where that is no number."""
    if not values:
        return [nan] * len(shares)
    worst = -inf if metric.higher_is_better else inf
    known = [worst if value is None or not isfinite(value) else value for value in values]
    # Those of nodes, without interpolation: some may be infinite.
    quantiles = metric.scale * np.quantile(known, shares, method="inverted_cdf")
    return [value if isfinite(value) else nan for value in quantiles.tolist()]


def _spread(values: list[float]) -> tuple[float, float, float, float]:
    if not values or not all(map(isfinite, values)):
        return nan, nan, nan, nan
    return fmean(values), pstdev(values), min(values), max(values)


def _scaled(value: float | None, metric: Metric) -> float:
    return nan if value is None else metric.scale * value


def chosen_metric(runs: Sequence[RunCurves], name: str | None) -> list[RunCurves]:
    """Returns the runs judged by the metric of that name instead of the headline metric; None: as they are.

    Raises BadInput where a run does not have it.
    """
    if name is None:
        return [*runs]
    chosen = []
    for run in runs:
        first = [metric for metric in run.metrics if metric.name == name]
        if not first:
            known = ", ".join(metric.name for metric in run.metrics)
            raise BadInput(f"--metric: {run.name} has no metric {name} (it has {known})")
        chosen.append(replace(run, metrics=[*first, *(m for m in run.metrics if m.name != name)]))
    return chosen


def last_values(run: RunCurves) -> list[float]:
    """The nodes' headline metric at the last evaluation, as people read it, the worst first; finite ones."""
    known = [value for value in run.rows[-1].values(run.headline.name) if value is not None]
    return sorted((run.headline.scale * value for value in known), reverse=not run.headline.higher_is_better)


def percentiles_of(
    rows: Sequence[EvaluationRow], metric: Metric, percents: Sequence[int]
) -> list[list[float]]:
    """The percentiles over nodes after each evaluation, as people read them, by percent; 0 is the worst node.

    A node whose number is not finite counts as the worst; nan where a percentile is none.
    """
    shares = [p / 100 if metric.higher_is_better else 1 - p / 100 for p in percents]
    of_rows = [_quantiles(row.values(metric.name), metric, shares) for row in rows]
    return [[*of_percent] for of_percent in zip(*of_rows, strict=True)]


def read_runs(directories: Sequence[StrPath]) -> list[RunCurves]:
    """The runs in these directories, with different names; raises BadInput."""
    paths = [*map(Path, directories)]
    runs = [_read(run_directory(path) if machine_parts(path) else path) for path in paths]
    judged = {run.headline.name: run.name for run in runs if run.rows}
    if len(judged) > 1:
        by = ", ".join(f"{name} by {metric}" for metric, name in judged.items())
        raise BadInput(f"these runs are judged by different metrics, so they do not compare: {by}")
    if len({run.name for run in runs}) == len(runs):
        return runs
    return [replace(run, name=name) for run, name in zip(runs, _short_names(paths), strict=True)]


def together(name: str, runs: Sequence[RunCurves]) -> RunCurves:
    """The curves of some runs as if their nodes were of one run, after the rounds that all of them have."""
    tested = [run for run in runs if run.rows]
    if not tested:
        return replace(runs[0], name=name)
    by_round = [{row.round: row for row in run.rows} for run in tested]
    shared = sorted(set.intersection(*(set(rows) for rows in by_round)))
    rows = [_joined([rows[round] for rows in by_round]) for round in shared]
    return replace(tested[0], name=f"{name} ({counted(len(tested), 'seed')})", rows=rows)


def _joined(rows: Sequence[EvaluationRow]) -> EvaluationRow:
    """Joins rows into one with all their nodes; the numbers of the mean models are averaged."""
    ranks = 1 + max(rank for row in rows for rank in (*row.ranks, *row.bytes_sent))

    def join(parts: Sequence[Mapping[int, Any]]) -> dict[int, Any]:
        return {i * ranks + rank: value for i, part in enumerate(parts) for rank, value in part.items()}

    names = rows[0].metrics
    averages = {name: [row.of_average(name) for row in rows] for name in names}
    return EvaluationRow(
        round=rows[0].round,
        seconds=fmean(row.seconds for row in rows),
        metrics={name: join([row.metrics.get(name, {}) for row in rows]) for name in names},
        train_loss=join([row.train_loss for row in rows]),
        bytes_sent=join([row.bytes_sent for row in rows]),
        consensus_distance=_mean_of_known([row.consensus_distance for row in rows]),
        average_model={name: _mean_of_known(values) for name, values in averages.items()},
        wall_seconds=_mean_of_known([row.wall_seconds for row in rows]),
    )


def _mean_of_known(values: Sequence[float | None]) -> float | None:
    """The mean, or None if one of them is not known."""
    known = [value for value in values if value is not None]
    return fmean(known) if len(known) == len(values) else None


def _read(path: Path) -> RunCurves:
    file, summary = path / "evaluations.jsonl", path / "summary.json"
    # A summary shows that a run had no evaluations, and records that they may follow.
    is_there = file.exists() or not (summary.exists() or record_files(path))
    rows = read_evaluations(file) if is_there else []
    metrics: Sequence[Metric] = read_metrics(path)
    if not rows and not summary.exists():
        rows, metrics = _training_rows(path), [TRAIN_LOSS]
        if not rows:
            raise BadInput(f"{file}: holds no evaluation, so there is nothing to draw")
    defects = [f"{file}: round {row.round}: {misfit}" for row in rows for misfit in _misfits(row)]
    if defects:
        raise BadInput(*defects[:MOST_SHOWN])
    # A killed run has no summary, but its evaluations can be drawn.
    name = read_value(summary, "name", str) if summary.exists() else path.resolve().name
    partition = read_partition(path)
    settings = _settings(path / "config.yaml")
    return RunCurves(
        name, rows, partition, outcome=None if rows else _outcome(summary), dataset=_dataset(settings),
        metrics=metrics,
        planned_rounds=settings.get("rounds") if not summary.exists() and lease_of(path) else None,
        is_simulated=is_simulated(read_object(summary) if summary.exists() else {}, settings),
        sent_shares=read_shares(path),
    )  # fmt: skip


def _training_rows(path: Path) -> list[EvaluationRow]:
    """The training losses of a run in place of evaluations, after each round that all its nodes have done."""
    by_round: dict[int, dict[int, tuple[RoundRecord, int]]] = {}
    nodes = records_by_rank(path)
    for rank, records in nodes.items():
        sent = accumulate(one.sent_payload + one.sent_index + one.sent_header for one in records)
        for record, bytes_sent in zip(records, sent, strict=True):
            if record.loss is not None:
                by_round.setdefault(record.round, {})[rank] = record, bytes_sent
    rows = []
    for round, of_ranks in sorted(by_round.items()):
        losses = {rank: record.loss for rank, (record, _) in of_ranks.items() if record.loss is not None}
        if len(losses) == len(nodes):
            seconds = fmean(record.seconds for record, _ in of_ranks.values())
            sent_by_rank = {rank: count for rank, (_, count) in of_ranks.items()}
            rows.append(EvaluationRow(round, seconds, {TRAIN_LOSS.name: {**losses}}, losses, sent_by_rank))
    return rows


def _outcome(summary: Path) -> Outcome:
    nodes, rounds, finished, sent = (
        read_value(summary, key, int) for key in ("nodes", "rounds", "finished_nodes", "bytes_sent")
    )
    simulated = read_object(summary).get("simulated") or {}
    seconds = simulated.get("seconds")
    if seconds is None:
        seconds = read_value(summary, "wall_seconds", float)
    return Outcome(nodes, rounds, sent / max(finished, 1), seconds=seconds)


def _settings(config: Path) -> dict[str, Any]:
    """The configuration of a run; empty where there is none."""
    try:
        content = yaml.safe_load(config.read_text()) if config.exists() else None
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise BadInput(f"{config}: {NOT_OURS}: {str(error).splitlines()[0]}") from error
    return content if isinstance(content, dict) else {}


def _dataset(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The options that determine the samples, without the place of the files and the partition."""
    section = settings.get("dataset")
    options = section.items() if isinstance(section, dict) else ()
    return {k: v for k, v in options if k not in PLACES}


def _misfits(row: EvaluationRow) -> Iterator[str]:
    """The values of a row that cannot be drawn and that no run writes."""
    ranks = set(row.ranks)
    # A node without test samples of its own lacks the metrics on these.
    fits = all(
        set(of) <= ranks if name.startswith(LOCAL) else set(of) == ranks for name, of in row.metrics.items()
    )
    if not ranks or not fits or not row.bytes_sent:
        yield "the metrics and bytes_sent need one entry for each node, at least one"
    elif not 0 <= row.round < MOST_ROUNDS or not 0 <= row.seconds < MOST_SECONDS:
        yield "round and seconds must be counted from 0"
    elif min(row.bytes_sent.values()) < 0:
        yield "bytes_sent must not be negative"


def _short_names(paths: Sequence[Path]) -> list[str]:
    """The paths without their common folders."""
    parts = [path.resolve().parts for path in paths]
    shared = 0
    while shared < min(map(len, parts)) - 1 and len({p[shared] for p in parts}) == 1:
        shared += 1
    return ["/".join(p[shared:]) for p in parts]


def different_datasets(runs: Sequence[RunCurves]) -> str:
    """Returns which run is on which data set; empty where all known ones are the same."""
    known = [run for run in runs if run.dataset]
    options = sorted({option for run in known for option in run.dataset})
    differing = [o for o in options if any(run.dataset.get(o) != known[0].dataset.get(o) for run in known)]
    if not differing:
        return ""
    names = dict[str, list[str]]()
    for run in known:
        chosen = {o: run.dataset[o] for o in differing if o != "name" and run.dataset.get(o) is not None}
        listed = f" ({', '.join(f'{option}: {value}' for option, value in chosen.items())})" if chosen else ""
        names.setdefault(f"{run.dataset.get('name')}{listed}", []).append(run.name)
    return "; ".join(f"{', '.join(group)} on {dataset}" for dataset, group in names.items())
