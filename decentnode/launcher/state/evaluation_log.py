"""The evaluations of a run, and its `evaluations.jsonl` (docs/results_records.md)."""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from math import isfinite
from pathlib import Path
from statistics import fmean

import msgspec

from decentnode.communication.launcher_link.reports import Evaluated, PooledPiece, Published, Report
from decentnode.core.line_file import LineFile
from decentnode.errors import explained
from decentnode.formats.metrics import LOCAL, Values
from decentnode.formats.reader import EvaluationRow, read_evaluations
from decentnode.launcher.state.dispatcher import Dispatcher

LogEvent = Callable[[str, str], object]


@dataclass(frozen=True)
class Observation:
    """All models after one round."""

    round: int
    nodes: int
    """Number of models."""
    consensus_distance: float | None
    """Mean over nodes of |x_i - mean|, over |mean|; None without models."""
    average_model: dict[str, float] | None
    """Metrics of the mean model on the test set, if requested."""


@dataclass
class EvaluationLog:
    """Evaluated rounds, combined from the nodes' reports and the observations."""

    path: Path
    pool: Callable[[Iterable[bytes]], Mapping[str, float]] = lambda contents: {}
    """Makes the metrics of all nodes' own test samples of what each has taken."""
    reports: dict[int, dict[int, Published]] = field(default_factory=dict)
    metrics: dict[int, dict[int, Values]] = field(default_factory=dict)
    """The scores of evaluations, by round and rank; empty if an evaluation failed."""
    pieces: dict[int, dict[int, dict[int, PooledPiece]]] = field(default_factory=dict)
    """By round, rank and index."""
    observations: dict[int, Observation] = field(default_factory=dict)
    rows: dict[int, EvaluationRow] = field(default_factory=dict)
    """Rows that are written, by round, in this order; the highest round need not be the last one."""
    log_event: LogEvent = lambda kind, text: None
    """Called with the kind and the text of an event, such as when the disk refuses rows."""

    def __post_init__(self) -> None:
        self._file = LineFile(self.path, partial(self.log_event, "disk"))
        self._announced: Counter[int] = Counter()
        """By round the evaluations that reports of it announce."""

    def read(self) -> None:
        """Continues after the rows in the file; raises BadInput."""
        self.rows = {row.round: row for row in read_evaluations(self.path)} if self.path.exists() else {}

    def register(self, dispatcher: Dispatcher[Report]) -> None:
        """Registers for evaluations of all nodes."""
        dispatcher.register(Published, self.add)
        dispatcher.register(PooledPiece, self.add)
        dispatcher.register(Evaluated, self.add)

    def adopt(self, rows: Iterable[EvaluationRow]) -> list[EvaluationRow]:
        """Writes rows that the coordinator has combined; returns those that are new here."""
        new = [row for row in rows if row.round not in self.rows]
        for row in new:
            for known in (self.reports, self.metrics, self.pieces, self.observations):
                known.pop(row.round, None)
        self._write(new)
        return new

    def close(self) -> str:
        """Closes the file; returns what could not be written in one line, or an empty text."""
        return self._file.close()

    def add(self, report: Published | Evaluated | PooledPiece) -> None:
        """Records one node's evaluation, unless the row of its round is written."""
        if report.round in self.rows:
            return
        if isinstance(report, Published):
            self._announced[report.round] += report.evaluation != "none"
            self.reports.setdefault(report.round, {})[report.rank] = report
        elif isinstance(report, PooledPiece):
            self.pieces.setdefault(report.round, {}).setdefault(report.rank, {})[report.index] = report
        else:
            self.metrics.setdefault(report.round, {})[report.rank] = report.metrics

    def is_probably_complete(self, nodes: int) -> bool:
        """Whether some round has as many reports as nodes run, and all evaluations that these announce.

        Where nodes are lost or skip a round it may be complete without that. To know costs a pass over all
        nodes (`complete`), which thousands of reports in a second cannot have each.
        """
        return any(
            len(reports) >= nodes and len(self.metrics.get(round, ())) >= self._announced[round]
            for round, reports in self.reports.items()
        )

    def awaits(self, ranks: Collection[int]) -> bool:
        """Whether an evaluation in the background of one of these nodes' models is still to be reported."""
        return any(
            report.evaluation == "background" and rank in ranks and rank not in self.metrics.get(round, ())
            for round, reports in self.reports.items()
            for rank, report in reports.items()
        )

    def complete(
        self, expected: Mapping[int, int], observed: bool, unanswered: Collection[int] = ()
    ) -> list[EvaluationRow]:
        """Writes and returns rows of rounds with reports of all `expected` ranks, and of the observer if
        `observed`.

        `expected`: by rank the last round that it is known to have done; it publishes nothing for rounds
        before that. `unanswered`: ranks of which no evaluation in the background will be reported.
        """
        rows = []
        latest = max(self.reports, default=-1)
        for round, reports in sorted(self.reports.items()):
            if round == latest and observed and round not in self.observations:
                # Before a pass over the reports of thousands of nodes: the launcher asks often meanwhile.
                break
            # In the order of rounds, also if two evaluators end in another order.
            if self._is_awaited(round, expected, unanswered):
                break
            are_here = all(rank in reports or done > round for rank, done in expected.items())
            if are_here and (round in self.observations or not observed) and (row := self._row(round)):
                rows.append(row)
        self._write(rows)
        return rows

    def _write(self, rows: Collection[EvaluationRow]) -> None:
        for row in rows:
            self._file.append(msgspec.json.encode(row))
        if rows:
            # An evaluation row is not repeated at a resume after its round.
            self._file.sync()
        self.rows |= {row.round: row for row in rows}

    def _is_awaited(self, round: int, expected: Mapping[int, int], unanswered: Collection[int]) -> bool:
        """Whether metrics of a model that was published after this round will still be reported."""
        known = self.metrics.get(round, {})
        return any(
            # The launcher of its machine reports evaluations in the background that failed.
            (report.evaluation == "background" and rank not in unanswered)
            or (report.evaluation == "here" and expected.get(rank, round + 1) <= round)
            for rank, report in self.reports[round].items()
            if rank not in known
        )

    def _row(self, round: int) -> EvaluationRow | None:
        """Returns the row of a round; None if no model was evaluated."""
        metrics = {rank: of for rank, of in sorted(self.metrics.pop(round, {}).items()) if of}
        published = sorted(self.reports.pop(round).items())
        reports = {r: report for r, report in published if report.evaluation == "none" or r in metrics}
        metrics = self._with_pooled(round, metrics)
        if not metrics:
            return None
        seen = self.observations.get(round)
        if seen is None or seen.nodes < len(reports):
            # A part of the models does not represent all.
            seen = Observation(round, 0, None, None)
        wall = [r.wall_seconds for r in reports.values() if r.wall_seconds is not None]
        return EvaluationRow(
            round=round,
            seconds=fmean(r.seconds for r in reports.values()),
            wall_seconds=fmean(wall) if wall else None,
            metrics=by_name({rank: of for rank, of in metrics.items() if rank in reports}),
            train_loss={rank: r.train_loss for rank, r in reports.items() if r.train_loss is not None},
            bytes_sent={rank: r.bytes_sent for rank, r in reports.items()},
            consensus_distance=seen.consensus_distance,
            average_model={**seen.average_model} if seen.average_model else None,
        )

    def _with_pooled(self, round: int, metrics: dict[int, Values]) -> dict[int, Values]:
        """Returns them with the pooled ones, which each node has that was tested on samples of its own.

        They are None where a piece was lost, or cannot be read.
        """
        pieces = self.pieces.pop(round, {})
        tested = [rank for rank, of in metrics.items() if any(name.startswith(LOCAL) for name in of)]
        parts = [[piece for _, piece in sorted(pieces.get(rank, {}).items())] for rank in tested]
        are_whole = all(part and len(part) == part[0].pieces for part in parts)
        contents = [b"".join(piece.content for piece in part) for part in parts] if are_whole else []
        try:
            numbers = self.pool(contents)
        except Exception as error:  # another machine may send anything, and a metric of the user's raise it
            self.log_event("evaluation", f"no pooled metrics after round {round + 1}: {explained(error)}")
            numbers = self.pool([])
        known = {name: number if isfinite(number) else None for name, number in numbers.items()}
        return {rank: {**of, **known} if rank in tested else of for rank, of in metrics.items()}


def by_name(metrics: Mapping[int, Values]) -> dict[str, dict[int, float | None]]:
    """Returns the nodes' metrics, by name and rank instead of rank and name."""
    names = dict.fromkeys(name for values in metrics.values() for name in values)
    return {name: {rank: v[name] for rank, v in metrics.items() if name in v} for name in names}
