"""Settings -> the parts of an asynchronous node that differ from those of a node with rounds."""

from pathlib import Path
from typing import Any

import torch

from decentnode.communication.base import BufferSpec
from decentnode.config.settings import Settings
from decentnode.core.clock import Clock
from decentnode.core.line_file import LineFile, Warn
from decentnode.node.asynchronous.loop import AsyncNode
from decentnode.node.asynchronous.messages import MessageExchange
from decentnode.node.asynchronous.schedule import (
    LiveSchedule,
    RecordedSchedule,
    RecordedWindow,
    ReplayedSchedule,
    Schedule,
    read_schedule,
    schedule_file,
)
from decentnode.node.node import RoundExchange
from decentnode.sharing.asynchronous.base import AsyncSharing
from decentnode.sharing.base import SharingBase
from decentnode.training.pace import Pace

FOLDER = "schedule"
"""Of recorded schedules, in the run's directory."""


def exchange_class(sharing: SharingBase) -> type[RoundExchange]:
    """What a node with that scheme exchanges with."""
    return MessageExchange if sharing.asynchronous else RoundExchange


def async_memory(
    sharing: SharingBase, elements: int, dtype: torch.dtype, peers: frozenset[int]
) -> BufferSpec | None:
    """The memory that a node with that scheme sends from; None where it exchanges in rounds."""
    if not isinstance(sharing, AsyncSharing):
        return None
    # A message owns its memory until it is sent, so no slot of an exchange is needed.
    return BufferSpec(elements, dtype, parts=sharing.burst, peers=peers)


def async_node(
    parts: tuple[Any, ...], settings: Settings, pace: Pace | None, run_dir: Path, warn: Warn
) -> AsyncNode:
    """An asynchronous node of the parts of any node; `warn` gets a line when the disk refuses a schedule."""
    rank, _, _, _, sharing, messages, *_ = parts
    mode, schedule = settings.time_model.schedule, LiveSchedule(sharing, messages, pace)
    # Before the first message of a faster peer.
    messages.listen(mode == "replay")
    made: Schedule = schedule
    if mode == "record":
        (run_dir / FOLDER).mkdir(exist_ok=True)
        made = RecordedSchedule(schedule, LineFile(schedule_file(run_dir / FOLDER, rank), warn))
    elif mode == "replay":
        windows = recorded_windows(settings, rank)
        made = ReplayedSchedule(windows, rank, sharing, messages, settings.failures.deadline)
    return AsyncNode(*(*parts, made, settings.time_model.seconds_per_round))


def pace_of(settings: Settings, rank: int, nodes: int, clock: Clock) -> Pace | None:
    """The pace of a node's local steps; None: they are not slowed down."""
    pace = settings.training.pace
    return None if pace is None else Pace(pace, rank, nodes, settings.seed, clock)


def check_times(settings: Settings, nodes: int) -> None:
    """Raises BadInput where a trace of speeds or a recorded schedule does not fit the run."""
    if settings.training.pace is not None:
        settings.training.pace.check(nodes)
    for rank in range(nodes) if settings.time_model.schedule_path is not None else ():
        recorded_windows(settings, rank)


def recorded_windows(settings: Settings, rank: int) -> list[RecordedWindow]:
    """The schedule to replay, in the directory of the settings or below that run's directory."""
    directory = Path(settings.time_model.schedule_path or "")
    if (directory / FOLDER).is_dir():
        directory = directory / FOLDER
    return read_schedule(directory, rank, settings.rounds)
