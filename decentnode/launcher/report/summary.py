"""The files of a run on one machine: its directory, the evaluations, the summary (docs/results.md)."""

import hashlib
import os
import time
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, count
from pathlib import Path
from statistics import fmean, pstdev
from typing import Any

import msgspec
import torch

from decentnode.communication.launcher_link.reports import Evaluated, Finished, Published
from decentnode.config import loader as config
from decentnode.core.atomic_files import write_durably
from decentnode.core.line_file import LineFile, Warn
from decentnode.core.streams import log_name
from decentnode.core.timeouts import Timeouts
from decentnode.core.version import __version__
from decentnode.errors import BadInput
from decentnode.graph.connectivity import components_without
from decentnode.launcher.monitoring.membership import MembershipTable, MemberState
from decentnode.launcher.observer.observer import Observation
from decentnode.node.experiment import Experiment
from decentnode.results.metrics import VALIDATION, Values
from decentnode.results.partition_table import PARTITION_FILE
from decentnode.results.reader import SCHEMA, EvaluationRow, read_evaluations
from decentnode.results.records import cut_back, write_atomically

NOTHING: Counter[str] = Counter()


@dataclass
class EvaluationLog:
    """Evaluated rounds, combined from the nodes' reports and the observations."""

    path: Path
    reports: dict[int, dict[int, Published]] = field(default_factory=dict)
    metrics: dict[int, dict[int, Values]] = field(default_factory=dict)
    """The scores of evaluations, by round and rank; empty if an evaluation failed."""
    observations: dict[int, Observation] = field(default_factory=dict)
    rows: dict[int, EvaluationRow] = field(default_factory=dict)
    """Rows that are written, by round, in this order; the highest round need not be the last one."""
    warn: Warn = lambda _: None
    """Called with a line when the disk refuses rows."""

    def __post_init__(self) -> None:
        self._file = LineFile(self.path, self.warn)
        self._may_undo = False
        """Whether all rows are those of an earlier launcher, which may be ahead of the others."""

    def read(self, is_late: bool) -> None:
        """Continues after the rows in the file; raises BadInput. `is_late`: this machine joins late."""
        self.rows = {row.round: row for row in read_evaluations(self.path)} if self.path.exists() else {}
        self._may_undo = is_late

    def discard_from(self, round: int) -> str:
        """Discards rows of `round` and later ones where nodes repeat these; returns a line if that fails."""
        if not self._may_undo:
            return ""
        self.rows = {done: row for done, row in self.rows.items() if done < round}
        try:
            cut_back(self.path, round - 1)
        except (BadInput, OSError) as error:
            return f"{self.path}: rows from round {round + 1} on may be there twice: {error}"
        return ""

    def close(self) -> str:
        """Closes the file; returns what could not be written in one line, or an empty text."""
        return self._file.close()

    def add(self, report: Published | Evaluated) -> None:
        """Records one node's evaluation, unless the row of its round is written."""
        if isinstance(report, Published):
            # From here on the rows are those of this launcher, whose nodes are up to date.
            self._may_undo = False
        if report.round in self.rows:
            return
        if isinstance(report, Published):
            self.reports.setdefault(report.round, {})[report.rank] = report
        else:
            self.metrics.setdefault(report.round, {})[report.rank] = report.metrics

    def forget(self, ranks: Collection[int]) -> None:
        """Waits no longer for evaluations of these nodes in the background."""
        for round, reports in self.reports.items():
            for rank in reports.keys() & set(ranks):
                self.metrics.setdefault(round, {}).setdefault(rank, {})

    def complete(self, expected: Mapping[int, int], observed: bool) -> list[EvaluationRow]:
        """Writes and returns rows of rounds with reports of all `expected` ranks, and of the observer if
        `observed`.

        `expected`: by rank the last round that it is known to have done; it publishes nothing for rounds
        before that.
        """
        rows = []
        for round, reports in sorted(self.reports.items()):
            # In the order of rounds, also if two evaluators end in another order.
            if self._is_awaited(round, expected):
                break
            are_here = all(rank in reports or done > round for rank, done in expected.items())
            if are_here and (round in self.observations or not observed) and (row := self._row(round)):
                self._file.append(msgspec.json.encode(row))
                rows.append(row)
        if rows:
            # An evaluation row is not repeated at a resume after its round.
            self._file.sync()
        self.rows |= {row.round: row for row in rows}
        return rows

    def _is_awaited(self, round: int, expected: Mapping[int, int]) -> bool:
        """Whether metrics of a model that was published after this round will still be reported."""
        known = self.metrics.get(round, {})
        return any(
            # The launcher of its machine reports evaluations in the background that failed.
            report.evaluation == "background"
            or (report.evaluation == "here" and expected.get(rank, round + 1) <= round)
            for rank, report in self.reports[round].items()
            if rank not in known
        )

    def _row(self, round: int) -> EvaluationRow | None:
        """The row of a round; None if no model was evaluated."""
        metrics = {rank: of for rank, of in sorted(self.metrics.pop(round, {}).items()) if of}
        published = sorted(self.reports.pop(round).items())
        reports = {r: report for r, report in published if report.evaluation == "none" or r in metrics}
        if not metrics:
            return None
        seen = self.observations.get(round)
        if seen is None or seen.nodes < len(reports):
            # A part of the models does not represent all.
            seen = Observation(round, 0, None, None)
        return EvaluationRow(
            round=round,
            seconds=fmean(r.seconds for r in reports.values()),
            metrics=by_name({rank: of for rank, of in metrics.items() if rank in reports}),
            train_loss={rank: r.train_loss for rank, r in reports.items() if r.train_loss is not None},
            bytes_sent={rank: r.bytes_sent for rank, r in reports.items()},
            consensus_distance=seen.consensus_distance,
            average_model={**seen.average_model} if seen.average_model else None,
        )


def unused_directory(name: str) -> Path:
    """A new path under `runs` with the name of the run and the time."""
    first = Path("runs") / f"{name}-{time.strftime('%Y%m%d-%H%M%S')}"
    later = (first.with_name(f"{first.name}-{number}") for number in count(2))
    return next(path for path in chain([first], later) if not os.path.lexists(path))


def machine_directory(run_dir: Path, machine: int) -> Path:
    """A machine's part of a directory that has the same name on all machines."""
    name = f"machine-{machine}"
    return run_dir if run_dir.name == name else run_dir / name


def make_run_directory(experiment: Experiment, machine: int = 0) -> Path:
    """Makes the directory of a new run with its resolved configuration; raises BadInput.

    Where another machine of the run has it already, because they share a file system, it is a part of it.
    """
    settings, several = experiment.settings, len(experiment.mapping.machines) > 1
    if several:
        # Shows the others, and a resume on another host, whose directory it is.
        settings = replace(settings, machine=machine)
    path = Path(settings.run_dir or unused_directory(settings.name)).absolute()
    partition = experiment.samples.table(settings)
    try:
        while True:
            try:
                path.mkdir(parents=True, exist_ok=settings.run_dir is not None)
                break
            except FileExistsError:
                # Two runs that start in the same second have the same generated name.
                if settings.run_dir is not None or not os.path.lexists(path):
                    raise
                path = unused_directory(settings.name).absolute()
        if not _claim(path):
            taken, is_shared = path, several and _is_of_another_machine(path, experiment, machine)
            if is_shared:
                path = machine_directory(path, machine)
                path.mkdir(exist_ok=True)
                taken = path
            if not is_shared or not _claim(path):
                raise BadInput.at("run_dir", f"{taken} is not empty; name another one, or remove it")
        (path / "logs").mkdir()
        write_durably(path / "config.yaml", [config.dump(settings).encode()])
        write_atomically(path / PARTITION_FILE, partition.content)
    except OSError as error:
        raise BadInput.at("run_dir", f"{path} cannot be written: {error.strerror}") from error
    return path


def _claim(path: Path) -> bool:
    """Makes the first folder of a run in an empty directory; False if it is not empty."""
    if any(path.iterdir()):
        return False
    try:
        (path / "records").mkdir()
    except FileExistsError:  # another machine was faster
        return False
    return True


def _is_of_another_machine(path: Path, experiment: Experiment, machine: int) -> bool:
    """Whether another machine has made the directory for this run, which has not ended."""
    limit = time.monotonic() + Timeouts.run_lock
    while not (path / "config.yaml").exists() and (path / "records").exists() and time.monotonic() < limit:
        time.sleep(0.05)
    try:
        other = config.load(path / "config.yaml")
    except BadInput:
        return False
    if other.machine in (None, machine) or (path / "summary.json").exists():
        return False
    graph = experiment.graph.graph
    return config.digest(other, graph) == config.digest(experiment.settings, graph)


def summarize(
    experiment: Experiment,
    membership: MembershipTable,
    evaluations: EvaluationLog,
    run_id: int,
    startup: float,
    wall: float,
    resumable: int | None = None,
    refused: Counter[str] = NOTHING,
    threads: int = 1,
    beside_mb: float = 0.0,
) -> dict[str, Any]:
    """The summary of a run as this machine knows it; `resumable`: the round after which all were saved.

    `startup`: seconds from the start of the command until the last local node started its first round;
    `wall`: from the start of the run to the end of the last node. `refused`: what launchers refused, by
    reason, in addition to the nodes; `threads`: of torch in each process of this machine; `beside_mb`:
    memory of the processes that evaluate for them.
    """
    settings = experiment.settings
    finished = {r: m.finished for r, m in sorted(membership.members.items()) if m.finished is not None}
    lost = membership.ranks(MemberState.LOST)
    last = evaluations.rows[max(evaluations.rows)] if evaluations.rows else None
    tests = _last_tests(last, finished, settings.rounds)
    # Each node reports its whole process.
    by_process: dict[int, float] = {}
    for rank, report in finished.items():
        position = experiment.home[rank]
        by_process[position] = max(by_process.get(position, 0.0), report.memory_mb)
    spreads = {metric.name: spread(tests.get(metric.name, {})) for metric in experiment.metrics}
    return {
        "schema": SCHEMA,
        "version": __version__,
        "torch_version": str(torch.__version__),
        "name": settings.name,
        "run_id": f"{run_id:016x}",
        "seed": settings.seed,
        "nodes": experiment.graph.num_nodes,
        "threads": threads,
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
        "not_finite": {
            str(r): since for r in finished if (since := membership.members[r].not_finite) is not None
        },
        "startup_seconds": round(startup, 3),
        "wall_seconds": round(wall, 3),
        "bytes_sent": sum(f.bytes_sent for f in finished.values()),
        "bytes_received": sum(f.bytes_received for f in finished.values()),
        "refused_messages": dict(sum((Counter(f.refused) for f in finished.values()), refused)),
        "attacker_weight": {
            str(rank): f.attacker_weight for rank, f in finished.items() if f.attacker_weight is not None
        },
        "metrics": [msgspec.to_builtins(metric) for metric in experiment.metrics],
        "test": {name: scores for name, scores in spreads.items() if not name.startswith(VALIDATION)},
        "validation": {name: scores for name, scores in spreads.items() if name.startswith(VALIDATION)},
        "average_model": last.average_model if last else None,
        "consensus_distance": last.consensus_distance if last else None,
        "model_hash": model_hash({r: f.digest for r, f in finished.items()}),
        "privacy": _privacy(experiment, finished, lost),
        "peak_memory_mb": sum(by_process.values()) + beside_mb if finished else None,
        "peak_memory_mb_per_node": spread({rank: f.memory_mb for rank, f in finished.items()}),
    }


def _privacy(
    experiment: Experiment, finished: Mapping[int, Finished], lost: Sequence[int]
) -> dict[str, Any] | None:
    """What the finished nodes have spent, and why others claim nothing; None where steps are not private."""
    plugin = experiment.settings.training.privacy
    if plugin is None:
        return None
    described: dict[str, Any] = plugin.make().described()
    doubts: dict[str, list[int]] = {"it was lost before it could say": list(lost)} if lost else {}
    for rank, report in finished.items():
        for reason in report.doubts:
            doubts.setdefault(reason, []).append(rank)
    return {
        **described,
        "planned_rounds": experiment.planned_rounds,
        "epsilon": {str(rank): end.epsilon for rank, end in finished.items() if end.epsilon is not None},
        "no_claim": doubts,
    }


def _last_tests(
    last_row: EvaluationRow | None, finished: Mapping[int, Finished], rounds: int
) -> dict[str, dict[int, float | None]]:
    """The metrics of the finished nodes after the last round, by name and rank."""
    # The report of an evaluation may be lost with a connection; a node repeats its own at its end.
    tests = by_name({rank: f.metrics for rank, f in finished.items()})
    for name, of in last_row.metrics.items() if last_row and last_row.round + 1 == rounds else ():
        tests[name] = tests.get(name, {}) | {rank: v for rank, v in of.items() if rank in finished}
    return tests


def by_name(metrics: Mapping[int, Values]) -> dict[str, dict[int, float | None]]:
    """The nodes' metrics, by name and rank instead of rank and name."""
    names = dict.fromkeys(name for values in metrics.values() for name in values)
    return {name: {rank: v[name] for rank, v in metrics.items() if name in v} for name in names}


def spread(values: Mapping[int, float | None]) -> dict[str, float] | None:
    """Mean, standard deviation, minimum and maximum; None without values, or if one is not finite."""
    known = [value for value in values.values() if value is not None]
    if not known or len(known) < len(values):
        return None
    return {"mean": fmean(known), "std": pstdev(known), "min": min(known), "max": max(known)}


def model_hash(digests: dict[int, str]) -> str:
    """One hash of all finished models: SHA-256 over their ranks and digests in rank order."""
    text = "".join(f"{rank}:{digest}\n" for rank, digest in sorted(digests.items()))
    return hashlib.sha256(text.encode()).hexdigest()
