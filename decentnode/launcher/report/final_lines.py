"""The last lines of a run: how it ended, its results, and where they are."""

import shlex
import signal
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import msgspec

from decentnode.core.text import (
    counted,
    decimal,
    ranks_in_words,
    ratio,
    readable_bytes,
    readable_seconds,
)
from decentnode.errors import STOPPED_BY, ExitCode
from decentnode.formats.metrics import Metric
from decentnode.launcher.state.membership import MembershipTable, MemberState

MOST_LOST = 10
"""Lost nodes that are named; summary.json has all."""
ENDED_BY_SIGNAL = {
    ExitCode.INTERRUPTED: "Ctrl-C",
    ExitCode.TERMINATED: "SIGTERM",
    ExitCode.HUNG_UP: "the end of its terminal",
    ExitCode.WARNED_BY_USR1: "SIGUSR1",
    ExitCode.WARNED_BY_USR2: "SIGUSR2",
    ExitCode.CPU_LIMIT: "the limit of processor time",
}
"""The cause, as text. In these cases every active node would be named as lost."""
Lines = Iterator[tuple[str, str]]


def exit_code(
    membership: MembershipTable, stop_signal: signal.Signals | None, lost_results: Sequence[str] = ()
) -> ExitCode:
    """Returns the exit code of a launcher; `stop_signal`: the signal that stopped the run.

    A signal after all nodes have finished, while processes exit, has no effect.
    """
    if stop_signal is not None and any(member.finished is None for member in membership.members.values()):
        return STOPPED_BY[stop_signal]
    # Before the general failure: this code names the cause.
    if any(member.out_of_memory for member in membership.members.values()):
        return ExitCode.OUT_OF_MEMORY
    finished = {rank: node for rank, node in membership.members.items() if node.finished is not None}
    usable = {rank for rank, node in finished.items() if node.not_finite is None}
    if usable.isdisjoint(membership.local) or lost_results:
        return ExitCode.FAILED
    states = {node.state for node in membership.members.values()}
    # No stop was requested, so a stopped node rejoined too late to take part.
    is_whole = states.isdisjoint((MemberState.LOST, MemberState.STOPPED)) and not membership.missing_edges
    return ExitCode.OK if is_whole and len(usable) == len(finished) else ExitCode.NODES_LOST


def headline(summary: dict[str, Any], code: ExitCode) -> str:
    """Returns how the run ended, as text with its exit code."""
    return f"{summary['name']}: {_how(summary, code)} (exit code {int(code)})"


def _how(summary: dict[str, Any], code: ExitCode) -> str:
    finished, nodes = summary["finished_nodes"], summary["nodes"]
    some = f"{finished} of {counted(nodes, 'node')} finished"
    if summary["not_finite"]:
        some += f", {len(summary['not_finite'])} with a test loss that is not finite"
    if code in ENDED_BY_SIGNAL:
        how = ENDED_BY_SIGNAL[code]
        if summary["stopped_nodes"] and summary["resumable_round"] is not None:
            return f"stopped by {how} after round {summary['resumable_round'] + 1}"
        return f"ended by {how}; {some}"
    if code is ExitCode.OUT_OF_MEMORY:
        return f"out of memory; {some}"
    if code is ExitCode.FAILED:
        return f"failed; {some}"
    if summary["lost_nodes"]:
        return f"{some}, {len(summary['lost_nodes'])} lost"
    if summary["stopped_nodes"]:
        return f"{some}, {summary['stopped_nodes']} rejoined too late to take part"
    if code is ExitCode.NODES_LOST:
        return some if summary["not_finite"] else f"{some}; some links were lost"
    target = summary.get("target")
    if target and target["last_round"] + 1 < summary["rounds"]:
        rounds = f"{target['last_round'] + 1} of {counted(summary['rounds'], 'round')}"
        return f"all {counted(nodes, 'node')} finished at the target, after {rounds}"
    if (ended := summary.get("ended_rounds", summary["rounds"])) < summary["rounds"]:
        return f"all {counted(nodes, 'node')} finished after {ended} of {counted(summary['rounds'], 'round')}"
    return f"all {counted(nodes, 'node')} finished {counted(summary['rounds'], 'round')}"


def closing_lines(
    summary: dict[str, Any], code: ExitCode, run_dir: Path, more: Sequence[tuple[str, str]] = (),
    repetition: str = "",
) -> Lines:  # fmt: skip
    """Returns the lines below the headline, as name and value; without a name a line continues the last.

    `more`: those of extensions; `repetition`: what continues the run instead of `decentnode resume`.
    """
    yield from _quality(summary)
    yield from _target(summary)
    yield from _privacy(summary)
    yield from _cost(summary)
    if summary["finished_nodes"]:
        yield "model hash", summary["model_hash"]
    if code not in ENDED_BY_SIGNAL:
        yield from _losses(summary, run_dir)
    if not_finite := summary["not_finite"]:
        ranks = ranks_in_words(sorted(map(int, not_finite)), MOST_LOST)
        yield "not finite", f"the test loss of {ranks}, since round {min(not_finite.values()) + 1}"
    if summary["restarted_nodes"]:
        times = ", ".join(f"{rank} ({count} x)" for rank, count in summary["restarted_nodes"].items())
        yield "restarted", f"rank {times}"
    for index, (round, change) in enumerate((summary.get("code_changes") or {}).items()):
        yield "" if index else "code changed", f"from round {int(round) + 1} on: {change}"
    if weights := summary["attacker_weight"]:
        most = max(weights, key=weights.__getitem__)
        mean = fmean(weights.values())
        yield "adversaries", f"weight {mean:.3g} in an honest mix, at most {weights[most]:.3g} (rank {most})"
    for attack, values in (summary.get("attacks") or {}).items():
        figures = (f"{name.replace('_', ' ')} {value:.3f}" for name, value in values.items())
        yield f"attack {attack}", ", ".join(figures) or "-"
    if summary["refused_messages"]:
        reasons = sorted(summary["refused_messages"].items())
        yield "refused messages", ", ".join(f"{count} for {reason}" for reason, count in reasons)
    for index, event in enumerate(summary.get("health") or ()):
        in_round = f", round {event['round'] + 1}" if "round" in event else ""
        yield (
            "" if index else "beside nodes",
            f"{readable_seconds(event['seconds'])}{in_round}: {event['text']}",
        )
    yield from more
    if summary.get("of_scripts"):
        if summary["checkpoint_bytes"]:
            yield "resume with", shlex.join(["decentnode", "launch", "--resume", str(run_dir), "SCRIPT"])
        yield "results", str(run_dir)
        return
    if summary["resumable_round"] is not None and summary["finished_nodes"] < summary["nodes"]:
        resume = shlex.join(["decentnode", "resume", str(run_dir)])
        # A repetition leaves a run alone that has ended by itself.
        resume = repetition if repetition and code in ENDED_BY_SIGNAL else resume
        yield "resume with", f"{resume} (from round {summary['resumable_round'] + 2})"
        yield from _resume_differs(summary)
    elif code in ENDED_BY_SIGNAL and summary["finished_nodes"] < summary["nodes"]:
        # One that was resumed and has not begun has what was saved before.
        if str(summary.get("run_id", "")).strip("0"):
            yield "not saved", "a repetition begins again; checkpoint.every saves nodes meanwhile"
    elif (size := summary.get("checkpoint_bytes")) and code is ExitCode.OK:
        target = summary.get("target") or {}
        is_at_target = target.get("reached_round") is not None
        # A target that is reached in the last round leaves no round to continue with.
        has_more = is_at_target and target["last_round"] + 1 < summary["rounds"]
        overrides = ["evaluation.target=null"] * is_at_target + ["rounds=N"] * (not has_more)
        gets_more = (summary.get("privacy") or {}).get("gets_more_rounds", True)
        if not (has_more or gets_more):
            yield "results", str(run_dir)
            return
        resume = shlex.join(["decentnode", "resume", str(run_dir), *overrides])
        resume = f"{repetition}, with {' '.join(overrides)}" if repetition else resume
        yield "resume with", f"{resume} ({readable_bytes(size)} of checkpoints)"
        yield from _resume_differs(summary)
    yield "results", str(run_dir)


def _resume_differs(summary: dict[str, Any]) -> Lines:
    if reason := summary.get("resume_differs"):
        yield "", f"its models will differ from those of an uninterrupted run: {reason}"


def _quality(summary: dict[str, Any]) -> Lines:
    metrics = msgspec.convert(summary["metrics"], list[Metric])
    for metric in metrics:
        part = "validation" if metric.is_of_validation else "local" if metric.is_of_local else "test"
        scores = summary[part][metric.name]
        if scores:
            mean, std, least, most = (metric.number(scores[key]) for key in ("mean", "std", "min", "max"))
            tested, finished = summary["tested_nodes"], summary["finished_nodes"]
            of = f" (over {tested:,} of {counted(finished, 'node')})" if tested < finished else ""
            if metric.is_of_pooled:
                yield metric.title, metric.text(scores["mean"])
                continue
            if metric.is_of_local:
                some = summary["local_nodes"] < finished
                of = f" ({summary['local_nodes']} nodes with test samples of their own)" if some else ""
            yield metric.title, f"{mean}{metric.unit} ± {std}, from {least} to {most}{of}"
        elif metric is metrics[0] and summary["finished_nodes"] and not summary.get("of_scripts"):
            yield metric.title, "-"
    if average := summary["average_model"]:
        of_all = [metric for metric in metrics[1:] if not (metric.is_of_local or metric.is_of_class)]
        others = [f", {metric.words} {metric.text(average.get(metric.name))}" for metric in of_all]
        yield "average model", metrics[0].text(average.get(metrics[0].name)) + "".join(others)
    if summary["consensus_distance"] is not None:
        yield "consensus distance", decimal(summary["consensus_distance"])


def _target(summary: dict[str, Any]) -> Lines:
    """Returns the line about the target: the round that reached it and that of the end, or the best mean."""
    target = summary.get("target")
    if target is None:
        return
    metrics = {metric.name: metric for metric in msgspec.convert(summary["metrics"], list[Metric])}
    metric, reached, last = metrics[target["metric"]], target["reached_round"], target["last_round"]
    goal = f"{metric.words} {metric.text(target['value'])}"
    if reached is None:
        yield "target", f"{goal} was not reached; the best mean was {metric.text(target['best'])}"
        return
    mean = "" if target["reached_value"] is None else f" ({metric.text(target['reached_value'])})"
    end = "" if last is None else f", the nodes ended after round {last + 1}"
    seconds, kind = target.get("reached_seconds"), "simulated " if summary.get("simulated") else ""
    after = "" if seconds is None else f" after {readable_seconds(seconds)} of {kind}time"
    yield "target", f"{goal} was reached in round {reached + 1}{mean}{after}{end}"


def _privacy(summary: dict[str, Any]) -> Lines:
    """Returns lines about what the private steps have spent, or why nothing is claimed."""
    privacy = summary.get("privacy")
    if privacy is None or not summary["finished_nodes"]:
        return
    names = iter(["privacy"])
    if spent := list(privacy["epsilon"].values()):
        least, most = decimal(min(spent)), decimal(max(spent))
        span = most if least == most else f"{least} to {most}"
        at = f"delta {privacy['delta']:g} by accountant {privacy['accountant']}"
        correlation = privacy.get("correlation", "independent")
        against = f" against one {privacy['adversary']}" if "adversary" in privacy else ""
        is_plain = privacy.get("diagonals") == 1 or privacy.get("ratio") == 0
        kind = f"{correlation} noise that is independent here" if is_plain else f"{correlation} noise"
        noise = "" if correlation == "independent" else f", with {kind}{against}"
        yield next(names), f"each of {counted(len(spent), 'node')} has spent epsilon {span} at {at}{noise}"
    if privacy["planned_rounds"] > summary["rounds"]:
        planned = privacy["planned_rounds"]
        yield (
            next(names, ""),
            f"ended before round {summary['rounds'] + 1} of {planned}: all budgets are spent",
        )
    for reason, ranks in privacy["no_claim"].items():
        everybody = len(ranks) == summary["nodes"]
        of = "" if everybody else f" for {ranks_in_words(ranks, MOST_LOST)}"
        yield next(names, ""), f"no claim{of}: {reason}"
    for row in privacy.get("pipeline") or ():
        # What ends the claim is said above.
        if row["how"] != "ends the claim":
            own = "" if row["epsilon"] is None else f", by itself epsilon {decimal(row['epsilon'])}"
            yield next(names, ""), f"before the steps: {row['what']}: {row['how']}{own}"


def _cost(summary: dict[str, Any]) -> Lines:
    if summary["finished_nodes"]:
        sent, received = (readable_bytes(summary[f"bytes_{way}"]) for way in ("sent", "received"))
        each = readable_bytes(summary["bytes_sent"] / summary["finished_nodes"])
        yield "sent, received", f"{sent}, {received}; {each} sent per node"
    startup, wall = (readable_seconds(summary[f"{part}_seconds"]) for part in ("startup", "wall"))
    simulated = summary.get("simulated")
    yield "wall time" if simulated else "time", f"{wall}, after {startup} to start"
    if simulated and simulated["seconds"] is not None:
        times = ratio(simulated["seconds"], summary["wall_seconds"])
        yield "simulated time", f"{readable_seconds(simulated['seconds'])}, {times} the wall time"
    memory, by_node = summary["peak_memory_mb"], summary["peak_memory_mb_per_node"]
    if memory and by_node:
        yield "memory", f"{memory:.1f} MB, at most {by_node['max']:.1f} MB in a node's process"


def _losses(summary: dict[str, Any], run_dir: Path) -> Lines:
    lost = list(summary["lost_nodes"].items())
    for index, (rank, reason) in enumerate(lost[:MOST_LOST]):
        text = reason if reason.startswith(f"rank {rank},") else f"rank {rank}: {reason}"
        yield "lost" if index == 0 else "", text
        log = run_dir / summary.get("lost_logs", {}).get(rank, "no log")
        if log.exists():  # logs of other machines are not here
            yield "", f"its log: {log}"
    if len(lost) > MOST_LOST:
        yield "", f"and {len(lost) - MOST_LOST} more, named in summary.json"
    if len(summary["components"]) > 1:
        parts = "; ".join(ranks_in_words(part, MOST_LOST) for part in summary["components"][:MOST_LOST])
        yield "partitioned", f"into {len(summary['components'])} components that trained separately: {parts}"
    for index, (rank, peer, round) in enumerate(summary["broken_edges"][:MOST_LOST]):
        yield "links lost" if index == 0 else "", f"rank {rank} to {peer}, in round {round + 1}"
