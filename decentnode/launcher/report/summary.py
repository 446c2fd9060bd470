"""The files of a run on one machine: its directory, the evaluations, the summary (docs/results.md)."""

import hashlib
import os
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean, pstdev
from typing import TYPE_CHECKING, Any

import msgspec

from decentnode.communication.launcher_link.reports import Evaluated
from decentnode.core.atomic_files import write_durably
from decentnode.core.line_file import LineFile, Warn
from decentnode.core.streams import log_name
from decentnode.core.version import __version__
from decentnode.errors import BadInput
from decentnode.launcher.monitoring.membership import MembershipTable, MemberState
from decentnode.results.reader import SCHEMA, EvaluationRow
from decentnode.results.records import write_atomically

# Whoever only reads results need not wait for torch: what writes them imports the rest where it is used.
if TYPE_CHECKING:
    from decentnode.launcher.observer.observer import Observation
    from decentnode.node.experiment import Experiment

NOTHING: Counter[str] = Counter()


@dataclass
class EvaluationLog:
    """Evaluated rounds, put together from the nodes' reports and the observer's findings."""

    path: Path
    reports: dict[int, dict[int, Evaluated]] = field(default_factory=dict)
    observations: "dict[int, Observation]" = field(default_factory=dict)
    rows: list[EvaluationRow] = field(default_factory=list)
    """Those that are written, in this order."""
    warn: Warn = lambda _: None
    """Told, in a line, when the disk does not take rows."""

    def __post_init__(self) -> None:
        self._file = LineFile(self.path, self.warn)
        self._highest = max((row.round for row in self.rows), default=-1)

    def go_on(self, rows: list[EvaluationRow]) -> None:
        """Begins after those that are in the file already; what is undone goes from that list."""
        self.rows, self._highest = rows, max((row.round for row in rows), default=-1)

    @property
    def last(self) -> EvaluationRow | None:
        """The row of the highest round, which need not be the one that was complete last."""
        return max(self.rows, key=lambda row: row.round, default=None)

    def close(self) -> str:
        """Closes the file; says in one line what could not be written, empty where all was."""
        return self._file.close()

    def add(self, report: Evaluated) -> None:
        """Books one node's test, unless the row of its round is written."""
        if not self._is_written(report.round):
            self.reports.setdefault(report.round, {})[report.rank] = report

    def observe(self, observation: "Observation") -> None:
        """Books what all models are together."""
        self.observations[observation.round] = observation

    def complete(self, expected: Mapping[int, int], observed: bool) -> list[EvaluationRow]:
        """Rows of the rounds that all `expected` ranks, and the observer if `observed`, have reported.

        `expected`: by rank the last round that it is known to have done. Of a round before that nothing more
        comes from it. The rows are written to the file, and not given again.
        """
        ready = [
            round
            for round, reports in self.reports.items()
            if (round in self.observations or not observed)
            and all(rank in reports or done > round for rank, done in expected.items())
        ]
        rows = [self._row(round) for round in sorted(ready)]
        for row in rows:
            self._file.append(msgspec.json.encode(row))
        if rows:
            self._file.sync()
        self.rows += rows
        self._highest = max([self._highest, *ready])
        return rows

    def _is_written(self, round: int) -> bool:
        return round <= self._highest and any(row.round == round for row in self.rows)

    def _row(self, round: int) -> EvaluationRow:
        reports = dict(sorted(self.reports.pop(round).items()))
        seen = self.observations.get(round)
        if seen is not None and seen.nodes < len(reports):
            seen = None  # some models say nothing of all
        average = seen.average_model if seen else None
        return EvaluationRow(
            round=round,
            seconds=fmean(r.seconds for r in reports.values()),
            accuracy={rank: r.accuracy for rank, r in reports.items()},
            test_loss={rank: r.test_loss for rank, r in reports.items()},
            train_loss={rank: r.train_loss for rank, r in reports.items() if r.train_loss is not None},
            bytes_sent={rank: r.bytes_sent for rank, r in reports.items()},
            consensus_distance=seen.consensus_distance if seen else None,
            average_model_accuracy=average.accuracy if average else None,
            average_model_loss=average.loss if average else None,
        )


def unused_directory(name: str) -> Path:
    """A path under `runs` that tells the run and the time, and that nothing lies at."""
    first = path = Path("runs") / f"{name}-{time.strftime('%Y%m%d-%H%M%S')}"
    number = 1
    while os.path.lexists(path):
        number += 1
        path = first.with_name(f"{first.name}-{number}")
    return path


def make_run_directory(experiment: "Experiment", machine: int) -> Path:
    """Makes the directory of a new run with its resolved configuration; raises BadInput when it cannot be."""
    from decentnode.config import loader as config
    from decentnode.datasets.partition import label_histogram

    settings = experiment.settings
    path = Path(settings.run_dir or unused_directory(settings.name)).absolute()
    dataset = experiment.dataset
    histogram = label_histogram(dataset.train, experiment.parts, dataset.num_classes)
    sizes = list(map(len, experiment.parts))
    content = {"schema": SCHEMA, "labels_per_rank": histogram, "samples_per_rank": sizes}
    try:
        while not _is_made(path, settings.run_dir is not None):
            path = unused_directory(settings.name).absolute()
        if any(path.iterdir()):
            raise BadInput(f"run_dir: {path} is not empty; name another one, or remove it")
        for folder in ("records", "logs"):
            (path / folder).mkdir()
        write_durably(path / "config.yaml", [config.dump(settings).encode()])
        write_atomically(path / "partition.json", content)
    except OSError as error:
        raise BadInput(f"run_dir: {path} cannot be written: {error.strerror}") from error
    return path


def _is_made(path: Path, may_exist: bool) -> bool:
    """Whether the directory is there and ours; a name that nobody gave may be taken by another start."""
    try:
        path.mkdir(parents=True, exist_ok=may_exist)
    except FileExistsError:
        if may_exist or not os.path.lexists(path):
            raise
        return False
    return True


@dataclass(frozen=True)
class Timing:
    """When things happened, in seconds."""

    startup: float
    """From the start of the command until the last node of this machine began its first round."""
    wall: float
    """From the start of the run, when the first node could begin, to the end of the last node."""


def summarize(
    experiment: "Experiment",
    membership: MembershipTable,
    evaluations: EvaluationLog,
    run_id: int,
    timing: Timing,
    resumable: int | None = None,
    refused: Counter[str] = NOTHING,
) -> dict[str, Any]:
    """The summary of a run, as far as this machine knows it; after round `resumable` all were saved.

    `refused`: what launchers turned away, by reason, beside what the nodes did.
    """
    import torch

    from decentnode.graph.connectivity import components_without

    settings = experiment.settings
    finished = {r: m.finished for r, m in sorted(membership.members.items()) if m.finished is not None}
    lost = membership.ranks(MemberState.LOST)
    last = evaluations.last
    return {
        "schema": SCHEMA,
        "version": __version__,
        "torch_version": str(torch.__version__),
        "name": settings.name,
        "run_id": f"{run_id:016x}",
        "seed": settings.seed,
        "nodes": experiment.graph.num_nodes,
        "rounds": settings.rounds,
        "parameters": experiment.layout.numel,
        "finished_nodes": len(finished),
        "stopped_nodes": len(membership.ranks(MemberState.STOPPED)),
        "resumable_round": resumable,
        "lost_nodes": {str(r): membership.members[r].error for r in lost},
        "lost_logs": {str(r): log_name(experiment.processes[experiment.home[r]].ranks[0]) for r in lost},
        "components": components_without(experiment.graph.graph, lost) if lost else [],
        "restarted_nodes": {str(r): m.restarts for r, m in sorted(membership.members.items()) if m.restarts},
        "broken_edges": [[edge.rank, edge.peer, edge.round] for edge in membership.broken_edges()],
        "not_finite": {str(rank): round for rank, round in membership.not_finite().items()},
        "startup_seconds": round(timing.startup, 3),
        "wall_seconds": round(timing.wall, 3),
        "bytes_sent": sum(f.bytes_sent for f in finished.values()),
        "bytes_received": sum(f.bytes_received for f in finished.values()),
        "refused_messages": dict(sum((Counter(f.refused) for f in finished.values()), refused)),
        "test_accuracy": spread([f.accuracy for f in finished.values() if f.accuracy is not None]),
        "test_loss": spread([f.test_loss for f in finished.values() if f.accuracy is not None]),
        "average_model_accuracy": last.average_model_accuracy if last else None,
        "average_model_loss": last.average_model_loss if last else None,
        "consensus_distance": last.consensus_distance if last else None,
        "model_hash": model_hash({r: f.digest for r, f in finished.items()}),
        "peak_memory_mb_per_node": spread([f.memory_mb for f in finished.values()]),
    }


def spread(values: Sequence[float | None]) -> dict[str, float] | None:
    """Mean, standard deviation, least and most; None of nothing, and where a value is not a finite number."""
    known = [value for value in values if value is not None]
    if not known or len(known) < len(values):
        return None
    return {"mean": fmean(known), "std": pstdev(known), "min": min(known), "max": max(known)}


def model_hash(digests: dict[int, str]) -> str:
    """One hash of all finished models: SHA-256 over their ranks and digests in rank order."""
    text = "".join(f"{rank}:{digest}\n" for rank, digest in sorted(digests.items()))
    return hashlib.sha256(text.encode()).hexdigest()
