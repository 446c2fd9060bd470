"""The files of a run on one machine: its directory, the evaluations, the summary (docs/results.md)."""

from collections import Counter
from collections.abc import Mapping, Sequence
from statistics import fmean, pstdev
from typing import Any

import msgspec
import torch

from decentnode.communication.launcher_link.reports import Finished
from decentnode.core.streams import log_name
from decentnode.core.version import __version__
from decentnode.formats.metrics import logged_metrics
from decentnode.formats.model_files import model_hash
from decentnode.formats.reader import SCHEMA, EvaluationRow
from decentnode.graph.connectivity import components_without
from decentnode.launcher.state.evaluation_log import EvaluationLog, by_name
from decentnode.launcher.state.membership import MembershipTable, MemberState
from decentnode.launcher.state.target import Target
from decentnode.node.experiment import Experiment
from decentnode.node.privacy.plans import noise_of, pipeline_of
from decentnode.options import ENDLESS

NOTHING: Counter[str] = Counter()


def summarize(
    experiment: Experiment,
    membership: MembershipTable,
    evaluations: EvaluationLog,
    run_id: int,
    startup: float,
    wall: float,
    resumable: int | None = None,
    kept_bytes: int = 0,
    refused: Counter[str] = NOTHING,
    code_changes: Mapping[str, str] | None = None,
    threads: int = 1,
    evaluators_mb: float = 0.0,
    target: Target | None = None,
    network_text: str = "",
) -> dict[str, Any]:
    """Returns the summary of a run as this machine knows it; `resumable`: the last round saved by all.

    `network_text`: the modelled network, where time is virtual. `kept_bytes`: the size of the checkpoints of
    this machine's nodes.

    `startup`: seconds from the start of the command until the last local node started its first round;
    `wall`: from the start of the run to the end of the last node. `refused`: what launchers refused, by
    reason, in addition to the nodes; `code_changes`: what is another from a round on, by round; `threads`:
    of torch in each process of this machine; `evaluators_mb`: memory of the processes that evaluate for them.
    """
    settings = experiment.settings
    finished = {r: m.finished for r, m in sorted(membership.members.items()) if m.finished is not None}
    lost = membership.ranks(MemberState.LOST)
    last = evaluations.rows[max(evaluations.rows)] if evaluations.rows else None
    # At its target a run ends before.
    ended = max((report.rounds for report in finished.values()), default=settings.rounds)
    # A script logs when it likes.
    after = last.round + 1 if settings.is_of_scripts and last else ended
    ends = {r: end for r, end in finished.items() if end.rounds == after or not settings.is_of_scripts}
    tests = _last_tests(last, ends, after)
    # Each node reports its whole process.
    by_process: dict[int, float] = {}
    for rank, report in finished.items():
        position = experiment.home[rank]
        by_process[position] = max(by_process.get(position, 0.0), report.memory_mb)
    metrics = experiment.plan.metrics
    if settings.is_of_scripts:
        metrics = logged_metrics(
            dict.fromkeys(name for row in evaluations.rows.values() for name in row.metrics)
        )
    spreads = {metric.name: spread(tests.get(metric.name, {})) for metric in metrics}
    return {
        "schema": SCHEMA,
        "version": __version__,
        "torch_version": str(torch.__version__),
        "name": settings.name,
        "run_id": f"{run_id:016x}",
        "seed": settings.seed,
        "nodes": experiment.graph.num_nodes,
        "threads": threads,
        "workers": experiment.execution.workers,
        "rounds": ended if settings.rounds >= ENDLESS else settings.rounds,
        "ended_rounds": ended,
        "of_scripts": settings.is_of_scripts,
        "parameters": experiment.layout.numel,
        "target": target.described(ended - 1 if finished else None) if target else None,
        "finished_nodes": len(finished),
        "stopped_nodes": len(membership.ranks(MemberState.STOPPED)),
        "resumable_round": resumable,
        "checkpoint_bytes": kept_bytes,
        "resume_differs": settings.why_resume_differs,
        "code_changes": dict(code_changes or {}),
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
        "simulated": _simulated(experiment, finished, network_text, wall) if network_text else None,
        "bytes_sent": sum(f.bytes_sent for f in finished.values()),
        "bytes_received": sum(f.bytes_received for f in finished.values()),
        "refused_messages": dict(sum((Counter(f.refused) for f in finished.values()), refused)),
        "attacker_weight": {
            str(rank): f.attacker_weight for rank, f in finished.items() if f.attacker_weight is not None
        },
        "metrics": [msgspec.to_builtins(metric) for metric in metrics],
        "test": {m.name: spreads[m.name] for m in metrics if not m.is_of_validation and not m.is_of_local},
        "validation": {metric.name: spreads[metric.name] for metric in metrics if metric.is_of_validation},
        "local": {metric.name: spreads[metric.name] for metric in metrics if metric.is_of_local},
        "tested_nodes": len(tests.get(metrics[0].name, {})),
        "local_nodes": len(tests.get(metrics[0].of_local.name, {})),
        "average_model": last.average_model if last else None,
        "consensus_distance": last.consensus_distance if last else None,
        "model_hash": model_hash({r: f.digest for r, f in finished.items()}),
        "privacy": _privacy(experiment, finished, lost),
        "peak_memory_mb": sum(by_process.values()) + evaluators_mb if finished else None,
        "peak_memory_mb_per_node": spread({rank: f.memory_mb for rank, f in finished.items()}),
    }


def _privacy(
    experiment: Experiment, finished: Mapping[int, Finished], lost: Sequence[int]
) -> dict[str, Any] | None:
    """Returns what finished nodes have spent, and why others claim nothing; None if steps are not private."""
    plugin = experiment.settings.training.privacy
    if plugin is None:
        return None
    described: dict[str, Any] = plugin.make().described()
    released = experiment.samples.released
    doubts: dict[str, list[int]] = {"it was lost before it could say": list(lost)} if lost else {}
    for rank, report in finished.items():
        for reason in report.doubts:
            doubts.setdefault(reason, []).append(rank)
    return {
        **described,
        **noise_of(experiment.privacy),
        "gets_more_rounds": not plugin.make().needs_all_rounds,
        "planned_rounds": experiment.planned_rounds,
        "epsilon": {str(rank): end.epsilon for rank, end in finished.items() if end.epsilon is not None},
        "no_claim": doubts,
        "pipeline": pipeline_of(experiment.graph.graph, experiment.samples),
        "released": released.values(experiment.samples.dataset) if released is not None else None,
    }


def _last_tests(
    last_row: EvaluationRow | None, finished: Mapping[int, Finished], rounds: int
) -> dict[str, dict[int, float | None]]:
    """Returns the metrics of the finished nodes after the last round, by name and rank."""
    # The report of an evaluation may be lost with a connection; a node repeats its own at its end.
    tests = by_name({rank: f.metrics for rank, f in finished.items()})
    for name, of in last_row.metrics.items() if last_row and last_row.round + 1 == rounds else ():
        tests[name] = tests.get(name, {}) | {rank: v for rank, v in of.items() if rank in finished}
    return tests


def spread(values: Mapping[int, float | None]) -> dict[str, float] | None:
    """Returns mean, standard deviation, minimum and maximum; None without values, or if one is not finite."""
    known = [value for value in values.values() if value is not None]
    if not known or len(known) < len(values):
        return None
    return {"mean": fmean(known), "std": pstdev(known), "min": min(known), "max": max(known)}


def _simulated(
    experiment: Experiment, finished: Mapping[int, Finished], network: str, wall: float
) -> dict[str, Any]:
    """Returns the modelled network and pace, and the virtual seconds until the last node ended."""
    ends = [report.virtual_seconds for report in finished.values() if report.virtual_seconds is not None]
    seconds = max(ends, default=None)
    return {
        "network": network,
        "pace": str(experiment.settings.training.slowed or experiment.settings.training.pace),
        "seconds": seconds,
        "wall_seconds": round(wall, 3),
        "ratio": round(seconds / wall, 3) if seconds is not None and wall else None,
    }
