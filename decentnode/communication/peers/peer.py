"""One peer of one node: its state, and everything else that is known about it.

States and events follow the drawing in docs/architecture_failures.md, as in Akka Cluster and in SWIM
(Das et al., 2002). `TRANSITIONS` is the only place that says which state follows which. A peer exchanges
payloads while it is LIVE, UNLINKED (a part of LIVE) or LEAVING; in all other states `error` gives the reason
why it does not. The first state is LIVE, unless `Peers.__missing__` sets another.

Threads: any thread, behind the lock of the mailbox; what only the socket thread uses (margin, proposals,
requests, back-off) it changes without.
"""

from enum import IntEnum, auto

from decentnode.communication.exchange.handle import Key
from decentnode.core.timeouts import Timeouts
from decentnode.errors import PeerError

Progress = tuple[int, Key | None]
"""The position of a node: the next round that it starts, and its latest exchange."""
BEFORE_ALL: Key = (-1, 0, 0)
BACKOFF_ROUNDS = 20
"""Rounds after rejoining within which another timeout counts as repeated."""


class PeerState(IntEnum):
    """What a node knows about a peer."""

    LIVE = auto()
    UNLINKED = auto()
    """Live, but no link to it is open: no coming round needs it. One is opened when it is needed."""
    LEAVING = auto()
    """It has ended, also by an error; payloads of its last exchange are still on the way."""
    LEFT = auto()
    """It has ended; only a new process in its place may rejoin."""
    LOST = auto()
    """The edge is dropped (LOSE), a new process took the peer's place (RESTART), or it was not met yet."""
    REJOINING = auto()
    """Both ends have agreed on the round from which they exchange again."""


class PeerEvent(IntEnum):
    """What changes the state of a peer."""

    LOSE = auto()
    """The edge ends: its link broke, one end timed out (DROP_EDGE), or one end joins or skips (SKIP)."""
    LEAVE = auto()
    """LEAVE has overtaken payloads; where nothing is on the way, the message leads to FINISH at once."""
    FINISH = auto()
    """LEAVE and everything sent before it have arrived, or LEAVE of a peer that exchanges nothing."""
    RESTART = auto()
    """A new process has taken the peer's place."""
    AGREE = auto()
    """Both ends have agreed on a round (REJOIN_PROPOSE, REJOIN_ACCEPT)."""
    ADMIT = auto()
    """The round of the agreement starts."""
    LINK = auto()
    """A link to it was opened."""
    UNLINK = auto()
    """This end has no link to it, or has closed it, which never looks like a loss to either end."""


# Every pair that may occur, with those that are added below; any other is an error in this program.
TRANSITIONS: dict[tuple[PeerState, PeerEvent], PeerState] = {
    (PeerState.LIVE, PeerEvent.LOSE): PeerState.LOST,
    (PeerState.LIVE, PeerEvent.LEAVE): PeerState.LEAVING,
    (PeerState.LIVE, PeerEvent.FINISH): PeerState.LEFT,
    (PeerState.LIVE, PeerEvent.RESTART): PeerState.LOST,
    (PeerState.LEAVING, PeerEvent.LOSE): PeerState.LEFT,
    (PeerState.LEAVING, PeerEvent.LEAVE): PeerState.LEAVING,
    (PeerState.LEAVING, PeerEvent.FINISH): PeerState.LEFT,
    (PeerState.LEAVING, PeerEvent.RESTART): PeerState.LOST,
    (PeerState.LEFT, PeerEvent.LOSE): PeerState.LEFT,
    (PeerState.LEFT, PeerEvent.FINISH): PeerState.LEFT,
    (PeerState.LEFT, PeerEvent.RESTART): PeerState.LOST,
    (PeerState.LOST, PeerEvent.LOSE): PeerState.LOST,
    (PeerState.LOST, PeerEvent.FINISH): PeerState.LEFT,
    (PeerState.LOST, PeerEvent.RESTART): PeerState.LOST,
    (PeerState.LOST, PeerEvent.AGREE): PeerState.REJOINING,
    (PeerState.REJOINING, PeerEvent.LOSE): PeerState.LOST,
    (PeerState.REJOINING, PeerEvent.FINISH): PeerState.LEFT,
    (PeerState.REJOINING, PeerEvent.RESTART): PeerState.LOST,
    (PeerState.REJOINING, PeerEvent.ADMIT): PeerState.LIVE,
    (PeerState.UNLINKED, PeerEvent.LINK): PeerState.LIVE,
    (PeerState.LIVE, PeerEvent.UNLINK): PeerState.UNLINKED,
}
# All that leads from LIVE leads from UNLINKED, too.
TRANSITIONS |= {
    (PeerState.UNLINKED, event): after
    for (state, event), after in TRANSITIONS.items()
    if state is PeerState.LIVE
}
for _state in PeerState:
    # Links of peers that are not live may be opened and closed, too.
    TRANSITIONS.setdefault((_state, PeerEvent.LINK), _state)
    TRANSITIONS.setdefault((_state, PeerEvent.UNLINK), _state)
CONNECTED = frozenset({PeerState.LIVE, PeerState.UNLINKED})
EXCHANGING = CONNECTED | {PeerState.LEAVING}
SETTLED_STATES = CONNECTED | {PeerState.LEFT}
"""What nothing has to be done about."""


class Peer:
    """What a node knows of one peer."""

    __slots__ = (
        "_excluded_until", "_highest", "_last_wait", "_rejoined_in", "_timed_out_at", "_timeouts", "error",
        "failed", "fresh_from", "last_exchange", "margin", "model_requests", "proposals", "rank", "reads",
        "requested", "round", "state", "wants_model",
    )  # fmt: skip

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.state = PeerState.LIVE
        self.error: PeerError | None = None
        """Why it exchanges nothing; None while it does."""
        self.reads = True
        """Whether it will read a payload of the next exchange, and acknowledge it."""
        self.round = -1
        """The round of the last agreement to rejoin; in state REJOINING that agreement holds."""
        self.last_exchange = BEFORE_ALL
        """The last exchange of the peer, in state LEAVING."""
        self.failed = False
        """Whether it ends by an error, in state LEAVING."""
        self.fresh_from: int | None = None
        """The round from which both ends start with empty state of each other; None: state is kept."""
        self.requested = BEFORE_ALL
        """The latest exchange whose payload was requested: it may arrive twice."""
        self.wants_model = False
        self.model_requests = 0
        """Requests for this node's model by this incarnation of the peer."""
        self.margin = 0
        """Rounds from the next one to the proposed one; 0: the first margin."""
        self.proposals = 0
        """Proposals sent since the last tick."""
        self._last_wait: tuple[float, Key] | None = None
        self._highest: tuple[int, float] | None = None
        """The highest round it was seen in, and since when."""
        self.forget_timeouts()

    def __repr__(self) -> str:
        counts = f"{self._timeouts} timeouts, {self.proposals} proposals"
        reason = "" if self.error is None else f", {self.error}"
        return f"<Peer {self.rank}: {self.state.name}, {counts}{reason}>"

    @property
    def is_settled(self) -> bool:
        """Whether a round may start without a look at this peer."""
        return self.state in SETTLED_STATES and self.fresh_from is None and not self.wants_model

    @property
    def is_forgettable(self) -> bool:
        """Whether nothing is known of it that a peer never heard of does not have."""
        counted = self._timeouts or self.model_requests or self.margin
        is_new = self._rejoined_in is None and self._timed_out_at is None and not counted
        return self.state is PeerState.UNLINKED and self.is_settled and is_new

    def step(self, event: PeerEvent, error: PeerError | None = None) -> None:
        """Moves to the next state; `error` is the reason where the peer exchanges nothing there.

        The first reason stays until the peer exchanges again. Raises KeyError for an event that cannot occur
        in this state.
        """
        self.state = TRANSITIONS[self.state, event]
        self.reads = self.state in CONNECTED
        self.error = None if self.state in EXCHANGING else self.error or error

    # Progress: a correct peer stays in one round for about one deadline, until the stopped node times out, at
    # this peer or at one that it waits for. A long chain adds little: a node further along starts to wait
    # later by as much as it is freed later. The rest is a margin for successive failures, each detected after
    # another deadline, and for unequal rounds.

    def reach(self, round: int, now: float) -> bool:
        """Records that it was seen in a round; False when it was in a later one before."""
        if self._highest is None or round > self._highest[0]:
            self._highest = round, now
        return round >= self._highest[0]

    def note_waiting(self, key: Key, now: float) -> None:
        """Records that it is alive and waits in an exchange."""
        if self.reach(key[0], now):
            self._last_wait = now, key

    def advance(self, key: Key, now: float) -> None:
        """Records its exchange if that is later than the last one it reported."""
        # Only progress extends the deadline: the socket thread of a hung node answers, too.
        if key > (self._last_wait[1] if self._last_wait else BEFORE_ALL):
            self.note_waiting(key, now)

    def forget_progress(self) -> None:
        """Forgets where it was: it rejoins, possibly in an earlier round than before."""
        self._last_wait = self._highest = None

    def extend_deadlines(self, seconds: float) -> None:
        """Extends its deadlines by seconds in which no message could be received."""
        if self._highest is not None:
            self._highest = self._highest[0], self._highest[1] + seconds
        if self._last_wait is not None:
            self._last_wait = self._last_wait[0] + seconds, self._last_wait[1]

    def times_out_at(self, key: Key, opened: float, deadline: float) -> float:
        """When it times out, if it stays silent, in an exchange that this node waits for since `opened`."""
        # It has sent its payload for this exchange, so more time does not help.
        if self._last_wait is None or self._highest is None or self._last_wait[1] >= key:
            return opened + deadline
        # Bounds the wait for a peer that is behind in one round, whatever it reports.
        limit = max(self._highest[1], opened) + Timeouts.peer_behind(deadline)
        return min(max(self._last_wait[0], opened), limit) + deadline

    # Back-off: the socket thread answers even while its node hangs or computes for long. If such a node
    # rejoined because its thread answers, its peers would wait a whole deadline for it in every second round.
    # So the slow end accepts only after it has made progress, and a peer that times out again soon is
    # excluded for longer each time.

    def forget_timeouts(self) -> None:
        """Forgets the timeouts of both ends: a new process has taken the peer's place."""
        self._timed_out_at: Progress | None = None
        """The position of this node when the peer timed out on it."""
        self._timeouts, self._excluded_until = 0, 0.0
        self._rejoined_in: int | None = None
        """The round in which it last rejoined."""
        self.model_requests = 0

    def record_timeout(self, progress: Progress) -> None:
        """Records that the peer timed out on this node at this position."""
        self._timed_out_at = progress

    def note_timeout(self, round: int, deadline: float, now: float) -> None:
        """Records that this node timed out on the peer after `deadline` seconds."""
        # A peer that has never rejoined cannot time out again.
        is_repeated = self._rejoined_in is not None and round - self._rejoined_in < BACKOFF_ROUNDS
        self._timeouts = self._timeouts + 1 if is_repeated else 1
        # No exclusion after the first timeout: the peer accepts when it has made progress.
        self._excluded_until = now + Timeouts.exclusion(deadline, self._timeouts)

    def rejoin(self, round: int) -> None:
        """Records that both ends agreed to exchange again from this round on."""
        self._rejoined_in = round

    def is_held(self, progress: Progress, now: float) -> bool:
        """Whether the two ends must not agree yet, with this node at `progress`."""
        return self._timed_out_at == progress or now < self._excluded_until
