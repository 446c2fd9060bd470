"""Speeds and availability of phones that others have measured: FedScale and FLASH."""

import codecs
import json
import re
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from math import ceil, floor, inf
from pathlib import Path
from typing import Any

from decentnode.core.text import first_line, quoted
from decentnode.errors import BadInput
from decentnode.interop.pickles import read_pickle

Interval = tuple[float, float]
KILOBIT = 1000.0
STATES = {
    "battery_charged_on": ("charged", True), "battery_charged_off": ("charged", False),
    "screen_lock": ("locked", True), "screen_unlock": ("locked", False),
    "screen_on": ("screen", True), "screen_off": ("screen", False),
    "wifi": ("wifi", True), "unknown": ("wifi", False), "2g": ("wifi", False), "3g": ("wifi", False),
    "4g": ("wifi", False), "5g": ("wifi", False),
}  # fmt: skip
"""What each state of a FLASH trace changes."""
NEEDED = ("charged", "locked", "wifi")
_MESSAGE = re.compile(r"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)\s+(\S+)")


@dataclass(frozen=True)
class Capacity:
    """What FedScale knows of a phone."""

    seconds_per_sample: float
    """Of inference; FedScale counts three times that for training."""
    bits_per_second: float


@dataclass(frozen=True)
class OnlineTrace:
    """When a client is online: intervals within a period, which repeats before and after."""

    client: str
    intervals: tuple[Interval, ...]
    period: float
    begin: float = 0.0
    """The time at which a period begins."""

    def until(self, seconds: float) -> list[Interval]:
        """Returns the intervals from 0 to that time, joined where they touch; else the next one."""
        repeated: list[Interval] = []
        first, last = floor(-self.begin / self.period), ceil((seconds - self.begin) / self.period)
        for number in range(first, last + 1):
            shift = self.begin + number * self.period
            for start, end in self.intervals:
                start, end = max(start + shift, 0.0), min(end + shift, seconds)
                if start >= end:
                    continue
                if repeated and start <= repeated[-1][1]:
                    start, end = repeated[-1][0], max(end, repeated.pop()[1])
                repeated.append((start, end))
        # Who is online later only must not look as if no trace were known.
        return repeated or self.until(seconds + self.period)[:1]


def read_capacities(path: Path) -> dict[str, Capacity]:
    """Returns FedScale's `client_device_capacity` by client; raises BadInput.

    A pickle of client -> {computation: milliseconds per sample, communication: kbit/s}
    (SymbioticLab/FedScale, device_info/README.md and client_metadata.py).
    """
    found = {}
    for client, values in _clients(path, read_pickle(path)).items():
        computation, communication = (
            _number(f"{path}: client {client}", values, key) for key in ("computation", "communication")
        )
        found[client] = Capacity(computation / 1000, communication * KILOBIT)
    return found


def read_behavior(path: Path) -> dict[str, dict[str, Any]]:
    """Returns FedScale's `client_behave_trace` or the traces of FLASH (JSON) by client; raises BadInput."""
    try:
        content = path.read_bytes().removeprefix(codecs.BOM_UTF8)
    except OSError as error:
        raise BadInput(f"{path}: cannot be read: {error.strerror}") from None
    if content.lstrip()[:1] != b"{":
        return _clients(path, read_pickle(path))
    try:
        return _clients(path, json.loads(content))
    except (ValueError, RecursionError) as error:
        raise BadInput(f"{path}: no JSON: {first_line(error)}") from None


def fedscale_trace(path: Path, client: str, values: dict[str, Any]) -> OnlineTrace:
    """Returns when a client of FedScale is online; raises BadInput.

    From `active[k]` to `inactive[k]` seconds, and again after each `finish_time` (client_metadata.py).
    """
    where = f"{path}: client {client}"
    active, inactive = (_numbers(where, values, key) for key in ("active", "inactive"))
    period = _number(where, values, "finish_time")
    if len(active) != len(inactive):
        raise BadInput(f"{where}: has {len(active)} times of active, and {len(inactive)} of inactive")
    for number, (start, end) in enumerate(zip(active, inactive, strict=True)):
        if start > end:
            raise BadInput(f"{where}: active[{number}] is {start:g}, and inactive[{number}] only {end:g}")
    intervals = sorted((start, min(end, period)) for start, end in zip(active, inactive, strict=True))
    return OnlineTrace(client, tuple((start, end) for start, end in intervals if start < end), period)


def flash_trace(path: Path, client: str, values: dict[str, Any]) -> OnlineTrace:
    """Returns when a phone of FLASH is charged, locked and has Wi-Fi; raises BadInput.

    `messages` has lines `2020-01-28 10:00:00<tab>screen_lock`; a state lasts until the next one of its kind
    (Yang et al., 2021; the rule is that of FLASH's `Timer`, as is that a trace repeats with its own length).
    The trace begins in seconds since 1970.
    """
    where = f"{path}: client {client}"
    messages = values.get("messages")
    lines = messages.splitlines() if isinstance(messages, str) else messages
    if not isinstance(lines, list):
        raise BadInput(f"{where}: has no messages; they must be a text with a line for each state")
    states = []
    for number, line in enumerate(lines, 1):
        if not str(line).strip():
            continue
        match = _MESSAGE.fullmatch(str(line).strip("\x00 \t\r\n"))
        try:
            time = datetime.fromisoformat(match[1] if match else "")
        except ValueError:
            example = "2020-01-28 10:00:00, a tab, screen_on"
            raise BadInput(
                f"{where}: line {number} is {quoted(str(line))}; it must be like {example}"
            ) from None
        state = match[2].lower() if match else ""
        if state not in STATES and not state.endswith("%"):
            raise BadInput(
                f"{where}: line {number} has the unknown state {quoted(state)} (known: {', '.join(STATES)})"
            )
        states.append((time, state))
    if not states:
        raise BadInput(f"{where}: has no messages; they must be a text with a line for each state")
    states.sort(key=lambda entry: entry[0])
    first, last = states[0][0], states[-1][0]
    now: dict[str, bool] = {}
    intervals = []
    for (time, state), (following, _) in pairwise([*states, (last, "")]):
        if state in STATES:
            kind, holds = STATES[state]
            now[kind] = holds
        if following > time and all(now.get(kind) for kind in NEEDED):
            intervals.append(((time - first).total_seconds(), (following - first).total_seconds()))
    begin = (first - datetime(1970, 1, 1)).total_seconds()
    return OnlineTrace(client, tuple(intervals), (last - first).total_seconds(), begin)


def _clients(path: Path, content: Any) -> dict[str, dict[str, Any]]:
    if not isinstance(content, dict) or not content:
        raise BadInput(f"{path}: has no clients; it must be a mapping from clients to their values")
    for client, values in content.items():
        if not isinstance(values, dict):
            raise BadInput(f"{path}: client {client}: must be a mapping, not {quoted(str(values))}")
    return {str(client): values for client, values in content.items()}


def _number(where: str, values: dict[str, Any], key: str) -> float:
    """Returns a number > 0; raises BadInput."""
    value = values.get(key)
    if value is None:
        raise BadInput(f"{where}: has no {key}")
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < inf:
        raise BadInput(f"{where}: {key} is {quoted(str(value))}; it must be a number > 0")
    return float(value)


def _numbers(where: str, values: dict[str, Any], key: str) -> list[float]:
    """Returns a list of numbers >= 0; raises BadInput."""
    value = values.get(key)
    if not isinstance(value, list | tuple):
        raise BadInput(f"{where}: has no {key}; it must be a list of seconds")
    for number, item in enumerate(value):
        if isinstance(item, bool) or not isinstance(item, int | float) or not 0 <= item < inf:
            shown = quoted(str(item))
            raise BadInput(f"{where}: {key}[{number}] is {shown}; it must be a number >= 0")
    return [float(item) for item in value]
