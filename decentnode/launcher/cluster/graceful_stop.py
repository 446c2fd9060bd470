"""A graceful stop: all nodes of all machines end after the same round.

The launcher that receives a signal makes its nodes wait and informs the coordinator, which makes all machines
wait.
Each reports the highest round that its nodes have announced; the highest of these is the last round. Nodes
that take longer than `failures.stop_deadline` are killed by their launcher; by default those that hang.

A run that has reached its target ends in the same way, at the request of the coordinator. Its nodes have
finished, and are not killed.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from signal import Signals

from decentnode.communication.launcher_link.heartbeats import NO_LAST_ROUND, UNDECIDED, HeartbeatBoard
from decentnode.core.clock import AwakeClock
from decentnode.core.timeouts import Timeouts
from decentnode.errors import STOPPED_BY
from decentnode.launcher.state.messages import LauncherMessage, Pause, StopRequest

REQUEST_INTERVAL = 0.5
CHECK_INTERVAL = 0.1


@dataclass
class GracefulStop:
    """One machine's part in the stop; inactive until `request`."""

    heartbeats: HeartbeatBoard
    machine: int
    present: Callable[[], set[int]]
    """The machines that take part."""
    coordinates: Callable[[], bool]
    """Whether this machine decides for all."""
    send: Callable[[LauncherMessage, int | None], object]
    """Sends to a machine, or to the coordinator, or from there to all."""
    deadline: float
    """Seconds for the nodes to end; inf: as long as they make progress."""
    signal: Signals | None = None
    """The signal that stopped the run, here or on another machine."""
    reached: int | None = None
    """The round whose evaluation has reached the target of the run; None: none has."""
    is_urgent: bool = False
    """Whether all is killed without waiting."""
    _clock: AwakeClock = field(default_factory=lambda: AwakeClock(CHECK_INTERVAL))
    """Nodes that ended while this launcher was suspended are not killed before it has read their reports."""
    _requested_at: float = 0.0
    _next_word: float = 0.0
    _announced: dict[int, int] = field(default_factory=dict)

    def request(self, signum: Signals) -> None:
        """Makes all local nodes wait before their next round; safe in a signal handler."""
        # A repeated request must not extend the time of the nodes.
        if self.signal is None:
            self._requested_at = self._clock.now()
            # Before `signal` is set, so the nodes wait by the time the main loop sees the request.
            if not self.is_decided:
                self.heartbeats.last_round = UNDECIDED
            self.signal = signum

    def finish(self, round: int) -> None:
        """Ends the run after a common round, because the evaluation after `round` has reached its target."""
        if self.is_requested:
            return
        self._requested_at = self._clock.now()
        self.heartbeats.last_round = UNDECIDED
        self.reached = round

    @property
    def is_requested(self) -> bool:
        """Whether nodes are to end before their last round, by a signal or at the target."""
        return self.signal is not None or self.reached is not None

    @property
    def is_decided(self) -> bool:
        """Whether the last round is known."""
        return self.heartbeats.last_round not in (NO_LAST_ROUND, UNDECIDED)

    @property
    def is_overdue(self) -> bool:
        """Whether the nodes have used up their time."""
        return self._waited > self.deadline

    @property
    def _waited(self) -> float:
        """Seconds since the request; 0 without one."""
        # Not read before the request: its signal handler reads the clock, too, and must not interrupt that.
        return self._clock.now() - self._requested_at if self.is_requested else 0.0

    def take(self, message: LauncherMessage) -> None:
        """Processes a message of another machine."""
        if not isinstance(message, StopRequest | Pause):
            return
        # A machine that did not hear this one for a while decided for itself.
        if isinstance(message, Pause) and self.is_decided and self.coordinates():
            return
        if isinstance(message, Pause) and message.reached is not None:
            self.finish(message.reached)
        elif message.signal or not self.is_requested:
            # Of an unknown number only that it stops is known.
            self.request(Signals(message.signal) if message.signal in STOPPED_BY else Signals.SIGTERM)
        if isinstance(message, StopRequest):
            self._announced[message.machine] = message.round
            # The decision may have been lost, or dropped on a full connection.
            if self.is_decided:
                self.send(self._pause(self.heartbeats.last_round), message.machine)
        elif message.last is not None:
            # Also after a decision of this machine alone: that of the coordinator replaces it.
            self._decide(message.last, message.reached is not None)

    def advance(self) -> None:
        """Does what is due; called repeatedly after a request."""
        waited = self._waited
        if not self.is_requested or self.is_decided or waited < Timeouts.announced_round:
            return
        # After `Timeouts.announced_round` no local node can announce a higher round.
        announced = self._announced[self.machine] = self.heartbeats.highest_round
        if self.coordinates():
            if self.present() <= self._announced.keys() or waited > Timeouts.announcements:
                last = max(self._announced.values())
                self._decide(last, self._completes)
                # A machine that had no part in the decision may learn of the stop only now.
                self.send(self._pause(last), None)
            else:
                self._send_repeatedly(self._pause())
        elif waited > Timeouts.decision:
            # The coordinator does not answer, so this machine stops by itself.
            self._decide(announced, self._completes)
        else:
            self._send_repeatedly(StopRequest(self.machine, self.signal or 0, announced))

    @property
    def _completes(self) -> bool:
        """Whether nodes that end have finished: by the decision, before it as it would be now."""
        return self.heartbeats.completes if self.is_decided else self.signal is None

    def _decide(self, last: int, completes: bool) -> None:
        # In this order: a node reads the last round first.
        self.heartbeats.completes = completes
        self.heartbeats.last_round = last

    def _pause(self, last: int | None = None) -> Pause:
        completes = self._completes
        reached = self.reached if completes else None
        return Pause(0 if completes else self.signal or 0, last, reached, self.machine)

    def _send_repeatedly(self, message: LauncherMessage) -> None:
        """Sends to the coordinator, or from there to all; again, because a launcher may not receive yet."""
        now = self._clock.now()
        if now >= self._next_word:
            self._next_word = now + REQUEST_INTERVAL
            self.send(message, None)
