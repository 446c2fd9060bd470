"""The order of a node's events: decided by the clock, recorded, or as it was recorded.

An event is a local step, a new message, or a peer that is lost or back. The order alone decides about the
models, so a replay of it is bit-identical over every transport that runs the same arithmetic.
"""

from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from typing import NamedTuple

import msgspec

from decentnode.config.settings import Settings
from decentnode.core.clock import AwakeClock, Clock
from decentnode.core.line_file import LineFile, Warn
from decentnode.errors import UNDECODABLE, BadInput, PeerError, PeerLeft, PeerLost, RunFailed
from decentnode.node.asynchronous.messages import MessageExchange
from decentnode.sharing.asynchronous.base import AsyncSharing, PeerMessage
from decentnode.training.pace import Pace

FOLDER = "schedule"
"""The folder of recorded schedules, in the run's directory."""
CHECK_INTERVAL = 0.05
"""Real seconds between two looks, while no message arrives: links break in other threads."""


class StepBegins(NamedTuple):
    """A local step begins; messages may arrive until it ends."""


class Step(NamedTuple):
    """The node makes the local step that has begun."""


class TimerIsOver(NamedTuple):
    """The scheme does what a time, or the duration of its steps, has decided (`on_timer`)."""


class PeerRejoined(NamedTuple):
    """The node continues with a peer that was lost."""

    peer: int


Event = StepBegins | Step | TimerIsOver | PeerMessage | PeerError | PeerRejoined
"""An error: the node continues without that peer."""
STEP_BEGINS, STEP, TIMER_IS_OVER = StepBegins(), Step(), TimerIsOver()


class Window(NamedTuple):
    """The time of one round on one node."""

    round: int
    most_steps: int | None
    """Steps of the window, at most; None: as many as fit."""
    is_over: Callable[[float], bool]
    """Whether the window has ended, by the clock."""
    due: Callable[[], float]
    """When that may change by the clock alone."""
    is_last: bool = False
    """Whether no step follows: what is outstanding is finished."""


@dataclass
class LiveSchedule:
    """Uses messages as they arrive, and makes a step whenever scheme and pace allow it."""

    sharing: AsyncSharing
    messages: MessageExchange
    pace: Pace | None
    _free: float = field(default=0.0, init=False)
    """The end of the pace of the last step that has begun; before it no other one begins."""
    _began: float = field(default=0.0, init=False)
    """The begin of that step."""
    _is_stepping: bool = field(default=False, init=False)
    """Whether a step has begun that is not made, which only virtual time separates."""

    async def events(self, window: Window) -> AsyncIterator[Event]:
        """The events of a window; each one is done when the next one is asked for."""
        clock, taken = self.messages.clock, 0
        while True:
            for event in self._news():
                yield event
            # Even in a window that is over: a node must answer in each of them.
            now = clock.now()
            self.messages.post(self.sharing.resend(now))
            if self.sharing.advance_timer(now):
                yield TIMER_IS_OVER
            if window.is_over(now):
                return
            has_step = window.most_steps is None or taken < window.most_steps
            if has_step and not self._is_stepping and now >= self._free and self.sharing.may_step(now):
                # From its begin, so that the time of the step itself is part of its pace.
                self._free = clock.after(self.pace.seconds(window.round, taken)) if self.pace else now
                self._began = now
                self._is_stepping = True
                yield STEP_BEGINS
            # In virtual time a step takes that of its pace first, and its effect comes at its end.
            if has_step and self._is_stepping and (now >= self._free or not clock.is_virtual):
                self._is_stepping = False
                taken += 1
                yield STEP
                self.sharing.measured(max(clock.now(), self._free) - self._began)
                continue
            dues = [window.due(), self.messages.due(), self.sharing.due(now)]
            dues += [self._free] if has_step else []
            # What was due by now was looked at above.
            seconds = min((due - now for due in dues if due > now), default=CHECK_INTERVAL)
            await self.messages.wait(
                seconds if clock.is_virtual else min(seconds, CHECK_INTERVAL), self._is_stepping
            )

    def _news(self) -> Iterator[Event]:
        yield from list(self.messages.lost())
        for arrival in self.messages.arrivals():
            # A peer that was only slow has lost nothing, so both ends go on with what they had.
            if self.messages.restart_deadline(arrival.source):
                yield PeerRejoined(arrival.source)
            again = self.sharing.answer_repeated(arrival)
            if again is None:
                yield arrival
            else:
                self.messages.post(again)


@dataclass
class RecordedSchedule:
    """A live schedule, whose events it writes to a file: one line per window."""

    live_schedule: LiveSchedule
    file: LineFile

    async def events(self, window: Window) -> AsyncIterator[Event]:
        """The events of a window, as they happen."""
        done: list[int | str] = []
        async for event in self.live_schedule.events(window):
            if isinstance(event, StepBegins):
                done.append(STEP_BEGUN)
            elif isinstance(event, Step):
                # A begin and its step are one with the steps before, unless something happened between.
                if done and done[-1] == STEP_BEGUN:
                    done.pop()
                    before = done.pop() if done and isinstance(done[-1], int) else 0
                else:
                    before = 0
                done.append(int(before) + 1)
            elif isinstance(event, TimerIsOver):
                done.append(TIMER)
            else:
                done.append(_written(event))
            yield event
        # One write per window: a step may take less time than a write.
        self.file.append(msgspec.json.encode({"round": window.round, "events": done}))


def _written(event: PeerMessage | PeerError | PeerRejoined) -> str:
    if isinstance(event, PeerMessage):
        return f"{event.source}:{event.tag}:{event.number}"
    if isinstance(event, PeerRejoined):
        return f"back:{event.peer}"
    return f"{'left' if isinstance(event, PeerLeft) and not event.failed else 'lost'}:{event.peer}"


Message = tuple[int, int, int]
"""Source, tag and number."""


STEP_BEGUN = "begun"
"""A step has begun in a recorded schedule, and its end comes later."""
TIMER = "timer"
"""What the scheme did because of the time, in a recorded schedule."""
OWN_EVENTS = (STEP_BEGUN, TIMER)


class RecordedWindow(msgspec.Struct, frozen=True):
    """One line of a recorded schedule."""

    round: int
    events: list[int | str]
    """Numbers of successive steps, and other events."""


@dataclass
class ReplayedSchedule:
    """The events of a recorded run, each message awaited within the deadline."""

    windows: Sequence[RecordedWindow]
    rank: int
    sharing: AsyncSharing
    messages: MessageExchange
    seconds: float
    """The length of a recorded window."""
    _is_stepping: bool = field(default=False, init=False)
    _kept_messages: dict[Message, PeerMessage] = field(default_factory=dict, init=False)
    _wanted_messages: set[Message] = field(default_factory=set, init=False)

    def __post_init__(self) -> None:
        events = [event for window in self.windows for event in window.events if isinstance(event, str)]
        # All others may go: a fast sender must not fill the memory with what no event uses.
        self._wanted_messages = {message_of(event) for event in events if event[0].isdigit()}

    async def events(self, window: Window) -> AsyncIterator[Event]:
        """The recorded events of a window; raises RunFailed."""
        recorded = next((past.events for past in self.windows if past.round == window.round), None)
        if recorded is None:
            raise RunFailed(f"{self._place(window)}: the recorded run has no such round; check schedule_path")
        clock = self.messages.clock
        began = clock.now()
        for event in recorded:
            if isinstance(event, int):
                for _ in range(event):
                    if not self._is_stepping:
                        yield STEP_BEGINS
                    self._is_stepping = False
                    yield STEP
            elif event == STEP_BEGUN:
                self._is_stepping = True
                yield STEP_BEGINS
            elif event == TIMER:
                yield TIMER_IS_OVER
            elif event.startswith("lost:"):
                yield PeerLost(int(event[5:]), "lost in the recorded run")
            elif event.startswith("left:"):
                yield PeerLeft(int(event[5:]), window.round)
            elif event.startswith("back:"):
                yield PeerRejoined(int(event[5:]))
            else:
                yield await self._arrival(message_of(event), window)
        if window.is_last:
            return
        # No sender may fill the queue of a slower receiver. So a node waits for its neighbors, but not for
        # longer than a window: one that was late in the recorded run may wait for messages of later windows.
        # In virtual time, which costs nothing, all windows are as long as they were.
        end = window.due() if clock.is_virtual else began + self.seconds
        self.messages.send_window_ended(window.round)
        while clock.now() < end and (clock.is_virtual or self.messages.is_ahead(window.round)):
            self._collect()
            await self._wait(end)

    async def _wait(self, limit: float) -> None:
        """Waits for a message, until a time at most; real time is looked at more often."""
        seconds = limit - self.messages.clock.now()
        await self.messages.wait(
            seconds if self.messages.clock.is_virtual else min(seconds, CHECK_INTERVAL), self._is_stepping
        )

    async def _arrival(self, wanted_message: Message, window: Window) -> PeerMessage:
        clock, deadline = self.messages.clock, self.messages.deadline
        awake: Clock | AwakeClock = AwakeClock(CHECK_INTERVAL)
        if clock.is_virtual:
            # A modelled link may be slower than the deadline; no message takes longer than the recorded run.
            awake, deadline = clock, deadline + len(self.windows) * self.seconds
        limit = awake.now() + deadline
        while True:
            self._collect()
            if wanted_message in self._kept_messages:
                return self._kept_messages.pop(wanted_message)
            if awake.now() >= limit:
                source, tag, number = wanted_message
                raise RunFailed(
                    f"{self._place(window)}: message {number} (tag {tag}) of rank {source} in the recorded "
                    f"schedule has not come within {deadline:.0f} s"
                )
            now = clock.now()
            self.messages.post(self.sharing.resend(now))
            dues = [limit, self.sharing.due(now)] if clock.is_virtual else [inf]
            await self._wait(min(due for due in dues if due > now))

    def _collect(self) -> None:
        """Keeps what a later event uses, and answers again what an earlier one used."""
        for arrival in self.messages.arrivals():
            key = arrival[:3]
            if key in self._wanted_messages:
                self._wanted_messages.discard(key)
                self._kept_messages[key] = arrival
            elif key not in self._kept_messages:
                self.messages.post(self.sharing.answer_repeated(arrival) or ())

    def _place(self, window: Window) -> str:
        return f"rank {self.rank}, round {window.round + 1}: replay"


Schedule = LiveSchedule | RecordedSchedule | ReplayedSchedule


def message_of(event: str) -> Message:
    """The message of a recorded event; raises ValueError."""
    source, tag, number = map(int, event.split(":"))
    return source, tag, number


def _peer_in(event: str) -> int:
    """The peer of a recorded event; raises ValueError."""
    word, _, peer = event.partition(":")
    return int(peer) if word in ("lost", "left", "back") else message_of(event)[0]


def schedule_for(settings: Settings, rank: int, live: LiveSchedule, run_dir: Path, warn: Warn) -> Schedule:
    """What decides about a node's events by the settings; `warn` gets a line when the disk refuses them."""
    mode = settings.time_model.schedule
    if mode == "record":
        (run_dir / FOLDER).mkdir(exist_ok=True)
        return RecordedSchedule(live, LineFile(schedule_file(run_dir / FOLDER, rank), warn))
    if mode == "replay":
        windows = read_schedule(Path(settings.time_model.schedule_path or ""), rank, settings.rounds)
        return ReplayedSchedule(
            windows, rank, live.sharing, messages=live.messages, seconds=settings.time_model.seconds_per_round
        )
    return live


def schedule_file(directory: Path, rank: int) -> Path:
    """The file of a node's schedule."""
    return directory / f"{rank:05d}.jsonl"


def read_schedule(directory: Path, rank: int, rounds: int, nodes: float = inf) -> list[RecordedWindow]:
    """The recorded windows of a node; raises BadInput where they are not those of a whole run.

    `directory`: that of the schedules, or of the run; `nodes`: how many the run has.
    """
    path = schedule_file(directory / FOLDER if (directory / FOLDER).is_dir() else directory, rank)
    try:
        lines = path.read_bytes().splitlines()
        windows = [msgspec.json.decode(line, type=RecordedWindow) for line in lines]
        events = (event for window in windows for event in window.events if event not in OWN_EVENTS)
        for event in events:
            if not (event >= 0 if isinstance(event, int) else 0 <= _peer_in(event) < nodes):
                raise ValueError(f"'{event}' is no event of a run of {nodes} nodes")
    except OSError as error:
        raise BadInput.at(
            "time_model.schedule_path", f"{path}: {error.strerror}; name a run with schedule: record"
        ) from None
    except (ValueError, *UNDECODABLE) as error:
        raise BadInput.at("time_model.schedule_path", f"{path}: {error}") from None
    # The last line is that of the exchanges that were finished after the last round.
    if [window.round for window in windows] != list(range(rounds + 1)):
        raise BadInput.at(
            "time_model.schedule_path",
            f"{path} has {max(0, len(windows) - 1)} whole rounds; a replay needs "
            f"all {rounds} of a run that was recorded to its end",
        )
    return windows
