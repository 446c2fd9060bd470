"""The state of a run as text, from its launcher or afterwards from its files; requests to restart a node."""

import shlex
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import msgspec

from decentnode.core.text import counted, decimal, ranks_in_words, readable_seconds
from decentnode.errors import BadInput, DecentnodeError, RunFailed
from decentnode.formats.reader import Event, Live, read_evaluations, read_events
from decentnode.formats.run import run_directory
from decentnode.launcher.monitoring.control_socket import (
    NOBODY_THERE,
    NodeStatus,
    Request,
    Status,
    live_of,
    query,
)
from decentnode.options import ENDLESS

EVENTS = "events.jsonl"
MOST_EVENTS = 10
MOST_PEERS = 4
MOST_ROWS, SHOWN_OF_MORE = 64, 16
"""Up to MOST_ROWS nodes have a line each; of more those that are lost or stuck, and the slowest."""
UNIMPORTANT = ("started", "ended")
HEADING = "  rank   round  state     doing               since      loss  waits for"


def report(run_dir: Path) -> Iterator[str]:
    """The lines of `decentnode status`; raises BadInput or RunFailed."""
    run_dir = run_directory(run_dir)
    live = live_of(run_dir)
    if live is not None:
        try:
            content = query(live.control, Request("status"))
        except NOBODY_THERE:
            yield from _afterwards(run_dir, live)
        except RunFailed as error:
            raise RunFailed(f"{run_dir}: {error} (process {live.pid})") from None
        else:
            yield from _lines(msgspec.json.decode(content, type=Status))
    else:
        yield from _afterwards(run_dir, None)


def request_restart(run_dir: Path, rank: int) -> str:
    """The launcher's reply to `decentnode restart`; raises BadInput where it refuses."""
    # Imported here, because it loads torch.
    from decentnode.launcher.recovery.restarts import RESTART

    live = live_of(run_dir)
    if live is None:
        raise BadInput(f"{run_dir}: no launcher answers here: the run has not started, or has ended")
    try:
        return msgspec.json.decode(query(live.control, Request(RESTART, str(rank))), type=str)
    except NOBODY_THERE:
        raise BadInput(f"{run_dir}: its launcher (pid {live.pid}) not found; start it again") from None
    except DecentnodeError as error:
        raise BadInput(f"{run_dir}: {error}") from None


# While it runs.


def _lines(status: Status) -> Iterator[str]:
    where = f" (as machine {status.machine} of {status.machines} sees it)" if status.machines > 1 else ""
    began = f"running for {readable_seconds(status.seconds)}" if status.seconds else "not started yet"
    rounds = "" if status.rounds >= ENDLESS else f", {counted(status.rounds, 'round')}"
    yield f"{status.name}: {began}{rounds}{where}"
    shown = status.nodes
    if len(shown) > MOST_ROWS:
        states = Counter(node.state for node in shown)
        yield f"{counted(len(shown), 'node')}: {', '.join(f'{n:,} {state}' for state, n in states.items())}"
        # Below: the lost and stuck ones, then the slowest, as far as there is room.
        shown = sorted(shown, key=lambda node: (node.state not in ("lost", "stuck"), *_progress(node)))
        shown = sorted(shown[:SHOWN_OF_MORE], key=lambda node: node.rank)
    yield HEADING
    yield from map(_line, shown)
    if len(shown) < len(status.nodes):
        yield f"  and {counted(len(status.nodes) - len(shown), 'other node')}"
    running = [node for node in status.nodes if node.state in ("running", "stuck")]
    if running:
        slowest, fastest = min(running, key=_progress), max(running, key=_progress)
        yield f"slowest: {_place(slowest)}; fastest: {_place(fastest)}"
    if status.waited:
        each = (f"rank {rank} for rank {peer}: {seconds} s" for rank, peer, seconds in status.waited)
        yield f"waited longest so far: {', '.join(each)}"


def _place(node: NodeStatus) -> str:
    """Returns how far a node is; what another machine has reported is no match for what is seen here now."""
    age = "" if node.is_here else f"{readable_seconds(node.seconds)} ago "
    return f"rank {node.rank}, {age}in round {node.round + 1}"


def _line(node: NodeStatus) -> str:
    doing = node.doing or ("-" if node.state != "running" else "last report")
    waits_for = ranks_in_words(node.waits_for, MOST_PEERS) if node.waits_for else ""
    line = (
        f"{node.rank:>6}{max(node.round + 1, 0):>8}  {node.state:<10}{doing:<18}"
        f"{readable_seconds(node.seconds):>7}{decimal(node.loss):>10}  {waits_for}"
    )
    return line.rstrip()


def _progress(node: NodeStatus) -> tuple[int, bool, float]:
    """A waiting node is ahead of the nodes in the same round that it waits for."""
    return node.round, bool(node.waits_for), -node.seconds


# Afterwards.


def _afterwards(run_dir: Path, live: Live | None) -> Iterator[str]:
    """The lines about a run without a launcher, from its files."""
    path = run_dir / EVENTS
    events = read_events(path) if path.exists() else []
    # A resumed run has an end before its start.
    last = next((event for event in reversed(events) if event.kind in UNIMPORTANT), None)
    if last is not None and last.kind == "ended":
        yield f"{run_dir}: has ended: {last.text}"
    elif live is not None:
        yield (
            f"{run_dir}: its launcher (pid {live.pid}) not found: "
            f"it was killed, or runs on another machine{_last_evaluation(run_dir)}"
        )
    else:
        yield f"{run_dir}: no launcher, and no record of how it ended{_last_evaluation(run_dir)}"
    if (last is None or last.kind != "ended") and any((run_dir / "checkpoints").glob("*/*")):
        yield f"resume with: {shlex.join(['decentnode', 'resume', str(run_dir)])}"
    telling = [event for event in _of_last_start(events) if event.kind not in UNIMPORTANT]
    if telling:
        shown = telling[-MOST_EVENTS:]
        yield f"last events of {len(telling)}:" if len(telling) > len(shown) else "events:"
        for event in shown:
            yield f"  {readable_seconds(event.seconds):>12}  {event.kind:<11} {event.text}"


def _of_last_start(events: list[Event]) -> list[Event]:
    """Returns the events of the newest start alone: what an earlier one has lost takes part again."""
    bounds = [index for index, event in enumerate(events) if event.kind in UNIMPORTANT]
    if bounds and events[bounds[-1]].kind == "ended":
        bounds.pop()
    if not bounds:
        return events
    first = bounds[-1]
    # With what its launcher said before: of no node, and earlier in its own time.
    while first and events[bounds[-1]].kind == "started":
        before = events[first - 1]
        is_of_it = before.kind not in UNIMPORTANT and before.rank is None
        if not is_of_it or before.seconds > events[first].seconds:
            break
        first -= 1
    return events[first:]


def _last_evaluation(run_dir: Path) -> str:
    try:
        rows = read_evaluations(run_dir / "evaluations.jsonl")
    except BadInput:
        return ""
    return f"; last evaluated after round {rows[-1].round + 1}" if rows else ""
