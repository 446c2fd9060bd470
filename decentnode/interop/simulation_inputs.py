"""Measurements of others as files of a simulation: latencies, rates, slowdowns, availability."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

import numpy as np
from numpy.typing import NDArray

from decentnode.core.registry import guess
from decentnode.core.rng import generator
from decentnode.core.text import counted, quoted
from decentnode.errors import BadInput
from decentnode.interop.device_traces import (
    OnlineTrace,
    fedscale_trace,
    flash_trace,
    read_behavior,
    read_capacities,
)
from decentnode.interop.round_trips import UNITS, RoundTrips, read_king, read_matrix, read_wonder_proxy

HOUR, DAY = 3600.0, 86400.0
LATENCIES: dict[str, tuple[Callable[[Path, str, bool], RoundTrips], str | None]] = {
    "king": (read_king, "us"),
    "wonderproxy": (read_wonder_proxy, "ms"),
    "matrix": (read_matrix, None),
}
"""By kind the reader of round-trip times, and their unit."""
AVAILABILITY = ("fedscale-availability", "flash")
KINDS = ("fedscale-capacity", *AVAILABILITY, *LATENCIES)


@dataclass(frozen=True)
class SimulationInputs:
    """The files that were written, and lines about them."""

    paths: list[Path]
    lines: list[str]


def convert(
    kind: str, path: str | Path, /, *, nodes: int | None = None, seed: int = 0, out: str | Path = ".",
    unit: str | None = None, one_way: bool = False, complete: bool = False, hours: float | None = None,
) -> SimulationInputs:  # fmt: skip
    """Writes the files of a simulation from measurements, and returns their paths; raises BadInput.

        convert("king", "matrix", nodes=64, out="king")

    Args:
        kind: one of KINDS.
        nodes: how many are drawn by the seed; None: all.
        out: the folder of the files; none that is there is overwritten.
        unit: us, ms or s, of latencies.
        one_way: whether times are one way; otherwise they are round trips, and are halved.
        complete: whether nodes are left out until no pair lacks a time.
        hours: how long an availability file lasts; the traces repeat. None: as long as the longest of them.
    """
    path, out = Path(path), Path(out)
    _check(kind, nodes=nodes, unit=unit, one_way=one_way, complete=complete, hours=hours)
    if kind in LATENCIES:
        files, lines = _latencies(kind, path, nodes, seed, out, unit=unit, one_way=one_way, complete=complete)
    elif kind == "fedscale-capacity":
        files, lines = _capacities(path, nodes, seed, out)
    else:
        files, lines = _availability(kind, path, nodes, seed, hours, out)
    paths = [out / name for name in files]
    for there in paths:
        if there.exists():
            raise BadInput(f"{there}: exists; remove it, or name another folder with --out")
    try:
        out.mkdir(parents=True, exist_ok=True)
        for there, content in zip(paths, files.values(), strict=True):
            with there.open("x", encoding="utf-8") as file:
                file.writelines(f"{line}\n" for line in content)
    except OSError as error:
        raise BadInput(f"{out}: cannot be written: {error.strerror}") from None
    return SimulationInputs(paths, lines)


def _check(
    kind: str, *, nodes: int | None, unit: str | None, one_way: bool, complete: bool, hours: float | None
) -> None:
    """Raises BadInput for options that do not fit the kind."""
    if kind not in KINDS:
        raise BadInput(
            f"convert: unknown kind {quoted(kind)}{guess(kind, KINDS)} (known: {', '.join(KINDS)})"
        )
    if nodes is not None and nodes < 1:
        raise BadInput(f"convert: --nodes must be at least 1, not {nodes}")
    is_latency = kind in LATENCIES
    for option, is_set, fits, kinds in (
        ("--unit", unit is not None, is_latency, LATENCIES),
        ("--one-way", one_way, is_latency, LATENCIES),
        ("--complete", complete, is_latency, LATENCIES),
        ("--hours", hours is not None, kind in AVAILABILITY, AVAILABILITY),
    ):
        if is_set and not fits:
            raise BadInput(f"convert: {option} is no option of {kind}, but of {', '.join(kinds)}")
    if unit is not None and unit not in UNITS:
        raise BadInput(f"convert: --unit must be {', '.join(UNITS)}, not {quoted(unit)}")
    if kind == "matrix" and unit is None:
        raise BadInput(f"convert: a matrix needs --unit: {', '.join(UNITS)}")
    if hours is not None and not 0 < hours < np.inf:
        raise BadInput(f"convert: --hours must be > 0, not {hours:g}")


def _latencies(
    kind: str,
    path: Path,
    nodes: int | None,
    seed: int,
    out: Path,
    *,
    unit: str | None,
    one_way: bool,
    complete: bool,
) -> tuple[dict[str, list[str]], list[str]]:
    reader, usual_unit = LATENCIES[kind]
    every = reader(path, unit or usual_unit or "", complete).filled()
    round_trips = every.complete() if complete else every
    round_trips.check()
    kept = round_trips.of(_drawn(path, len(round_trips.names), nodes, seed))
    latencies = kept.seconds if one_way else kept.seconds / 2
    left_out = len(every.names) - len(round_trips.names)
    lines = (
        [f"{counted(left_out, 'node')} of {len(every.names)} left out for missing pairs"] if left_out else []
    )
    between = latencies[~np.eye(len(latencies), dtype=bool)]
    middle = f"; median {1000 * np.median(between):.3g} ms one way" if between.size else ""
    lines += [
        f"latencies of {counted(len(latencies), 'node')}{middle}",
        f"communication: {{name: simulated, latency: {out / 'latency.csv'}}}",
    ]
    return {"latency.csv": [",".join(f"{value:.9g}" for value in row) for row in latencies]}, lines


def _capacities(
    path: Path, nodes: int | None, seed: int, out: Path
) -> tuple[dict[str, list[str]], list[str]]:
    capacities = [*read_capacities(path).values()]
    usual = median(capacity.seconds_per_sample for capacity in capacities)
    kept = [capacities[number] for number in _drawn(path, len(capacities), nodes, seed)]
    files = {
        "rates.csv": [f"{capacity.bits_per_second:.9g}" for capacity in kept],
        "slowdown.csv": [f"{capacity.seconds_per_sample / usual:.9g}" for capacity in kept],
    }
    rates = out / "rates.csv"
    lines = [
        f"rates and slowdowns of {counted(len(kept), 'node')}; 1 is the median of all "
        f"{counted(len(capacities), 'client')}",
        f"communication: {{name: simulated, uplink: {rates}, downlink: {rates}}}",
        f"training.pace: {{step_seconds: {3 * usual:.3g}, trace_path: {out / 'slowdown.csv'}}}",
        "step_seconds is for one sample, three times the median of inference; multiply it by the batch size",
    ]
    return files, lines


def _availability(
    kind: str, path: Path, nodes: int | None, seed: int, hours: float | None, out: Path
) -> tuple[dict[str, list[str]], list[str]]:
    clients = read_behavior(path)
    names = [*clients]
    wanted = len(names) if nodes is None else nodes
    order = generator(seed, "convert").permutation(len(names)) if nodes is not None else range(len(names))
    traces: list[OnlineTrace] = []
    never = 0
    # A rank without a line would always be online, so clients that never are have no rank.
    for name in (names[number] for number in order):
        if len(traces) == wanted:
            break
        trace = (flash_trace if kind == "flash" else fedscale_trace)(path, name, clients[name])
        traces += [trace] if trace.intervals else []
        never += not trace.intervals
    if not traces or (nodes is not None and len(traces) < nodes):
        found = f"{counted(len(traces), 'client')} of {len(names)}"
        raise BadInput(f"{path}: {found} are online at times; --nodes may be at most that")
    midnight = min(trace.begin for trace in traces) // DAY * DAY
    traces = [replace(trace, begin=trace.begin - midnight) for trace in traces]
    seconds = HOUR * hours if hours is not None else max(trace.begin + trace.period for trace in traces)
    online = [trace.until(seconds) for trace in traces]
    content = [f"{rank},{start:.12g},{end:.12g}" for rank, times in enumerate(online) for start, end in times]
    share = sum(min(end, seconds) - min(start, seconds) for times in online for start, end in times)
    lines = [f"{counted(never, 'client')} passed over that are never online"] if never else []
    lines.append(
        f"availability of {counted(len(traces), 'node')} for {seconds / HOUR:.3g} h; "
        f"online {100 * share / seconds / len(traces):.3g} % of the time"
    )
    lines.append(f"faults: [{{name: availability, path: {out / 'availability.csv'}}}]")
    return {"availability.csv": ["rank,from,to", *content]}, lines


def _drawn(path: Path, count: int, nodes: int | None, seed: int) -> NDArray[np.int64]:
    """Returns the numbers of the nodes that are drawn, in their order; raises BadInput."""
    if nodes is None:
        nodes = count
    if not 0 < nodes <= count:
        raise BadInput(f"{path}: has {counted(count, 'node')}; --nodes may be at most that, not {nodes}")
    return np.sort(generator(seed, "convert").permutation(count)[:nodes])
