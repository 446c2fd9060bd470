"""The second loop: a node that reacts to messages, and waits for no round of its neighbors."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from decentnode.communication.launcher_link.heartbeats import Activity
from decentnode.config.settings import Settings
from decentnode.core.timeouts import Timeouts
from decentnode.errors import DecentnodeError, PeerError
from decentnode.formats.records import RoundRecord
from decentnode.graph.base import View
from decentnode.node.asynchronous.messages import MessageExchange
from decentnode.node.asynchronous.schedule import (
    Event,
    LiveSchedule,
    PeerRejoined,
    Schedule,
    Step,
    StepBegins,
    TimerIsOver,
    Window,
    read_schedule,
)
from decentnode.node.participant import Participant
from decentnode.sharing.asynchronous.base import AsyncSharing
from decentnode.training.local_steps import Tally


@dataclass(kw_only=True, repr=False)
class AsyncParticipant(Participant):
    """A participant in the asynchronous time model: a round is a window of time, without any barrier.

    Window r ends (r + 1) * `seconds` after the node's start. The node then evaluates, records and saves as in
    rounds, so that nodes are compared at equal times.
    """

    sharing: AsyncSharing  # type: ignore[assignment]
    exchange: MessageExchange
    schedule: Schedule
    seconds: float
    """The length of a window."""
    _began: float | None = field(default=None, init=False)
    _settled: bool = field(default=False, init=False)
    _step_began: float | None = field(default=None, init=False)
    """When the step began that is in progress, or the window if it began before that."""

    async def run_round(self, round: int) -> None:
        """Take messages and make steps until the window ends; evaluate, record."""
        self.round = round
        record, steps, clock = RoundRecord(self.rank, round), self.local_steps, self.exchange.clock
        # Windows count from the start of the node: a long evaluation moves no later window.
        if self._began is None:
            self._began = clock.now() - round * self.seconds
        began, tally = clock.now(), steps.begin(round)
        view = self.graph.view(self.rank, round, tally.learning_rate)
        self.scheduler.heartbeat.mark(round, Activity.TRAIN)
        self.exchange.open(round, view)
        end = self._began + (round + 1) * self.seconds
        window = Window(round, steps.most_steps(round), lambda now: now >= end, due=lambda: end)
        async for event in self.schedule.events(window):
            await self._do(event, view, tally, record=record)
        if self._step_began is not None:
            # Each window counts its part of the step.
            now = clock.now()
            record.train_seconds += now - self._step_began
            self._step_began = now
        # Before the evaluation: it is about the models that the run ends with.
        if round + 1 == self.scheduler.rounds:
            await self._settle(view, tally, record)
        report = steps.finish(tally)
        record.loss, record.steps = report.loss, report.steps
        self.exchange.end(record, seconds=clock.now() - began - record.train_seconds)
        self.scheduler.heartbeat.mark(round, Activity.EVALUATE)
        await self._look(record)
        self.records.write(record, self.exchange.endpoint.counters)
        self.exchange.remember(self.seconds, record)
        # Last: a checkpoint implies that the round's record exists.
        self.checkpoints.after(round, self.snapshot)

    async def _do(self, event: Event, view: View, tally: Tally, record: RoundRecord) -> None:
        vector, exchange = self.vector.shared, self.exchange
        if isinstance(event, StepBegins):
            # Before and after, so that a scheme may send while the step is computed.
            exchange.post(self.sharing.before_step(vector, view))
            self._step_began = exchange.clock.now()
        elif isinstance(event, Step):
            await self.local_steps.step(tally)
            if self._step_began is not None:
                record.train_seconds += exchange.clock.now() - self._step_began
                self._step_began = None
            exchange.post(self.sharing.after_step(vector, view))
        elif isinstance(event, TimerIsOver):
            exchange.post(self.sharing.on_timer(vector, view))
        elif isinstance(event, PeerError):
            exchange.continue_without(event)
        elif isinstance(event, PeerRejoined):
            exchange.note_rejoined(event.peer)
        else:
            exchange.post(self.sharing.receive(vector, event, view))

    async def _make_up(self) -> None:
        # After a graceful stop: no later round finishes what was begun in this one.
        if self.round >= 0 and not self._settled:
            tally = self.local_steps.begin(self.round)
            view = self.graph.view(self.rank, self.round, tally.learning_rate)
            self.exchange.open(self.round, view)
            await self._settle(view, tally, RoundRecord(self.rank, self.round))
        await super()._make_up()

    async def _settle(self, view: View, tally: Tally, record: RoundRecord) -> None:
        """Answers requests without further steps, until all neighbors have the answers that they wait for."""
        # Once: a run that ends after its last round, and one that is stopped, come here by two ways.
        self._settled = True
        exchange, clock = self.exchange, self.exchange.clock
        began = clock.now()
        limit, next_sent, pause = began + exchange.deadline, began, Timeouts.unanswered

        def is_over(now: float) -> bool:
            nonlocal next_sent, pause
            is_answered = not list(self.sharing.awaited)
            # Repeated, because it may be lost.
            if is_answered and now >= next_sent:
                next_sent, pause = now + pause, 2 * pause
                exchange.send_finished()
            return now >= limit or (is_answered and not exchange.unfinished)

        def due() -> float:
            # Before it was sent for the first time, only an answer changes anything.
            return min(limit, next_sent) if next_sent > began else limit

        window = Window(self.round + 1, 0, is_over, due=due, is_last=True)
        async for event in self.schedule.events(window):
            await self._do(event, view, tally, record=record)

    def restore(self, state: Mapping[str, Any]) -> None:
        if not isinstance(self.schedule, LiveSchedule):
            raise DecentnodeError(
                f"rank {self.rank}: a schedule is of a whole run; leave out time_model.schedule to resume"
            )
        super().restore(state)


def check_schedules(settings: Settings, nodes: int) -> None:
    """Raises BadInput where a recorded schedule does not fit the run."""
    path = settings.time_model.schedule_path
    for rank in range(nodes) if path is not None else ():
        read_schedule(Path(path or ""), rank, settings.rounds, nodes=nodes)
