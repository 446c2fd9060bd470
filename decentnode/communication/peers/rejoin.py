"""How a restarted process finds the round in which its nodes rejoin. The edges of the others: `edges.py`.

Threads: the socket thread sends, receives and decides. The thread that opens the transport waits in `seek`,
and runs `settle` itself if no peer was asked.
"""

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from enum import IntEnum
from math import inf

from decentnode.communication.exchange.handle import Key
from decentnode.communication.peers.peers import Peers
from decentnode.communication.wire import Header, Kind
from decentnode.core.clock import Clock
from decentnode.core.timeouts import Timeouts
from decentnode.errors import PeerLost

SendControl = Callable[[Kind, int, int, Key, int], None]
"""Sends a control message: kind, local rank, peer, exchange, seq."""
Pair = tuple[int, int]
"""(local rank, peer)."""
MOST_MARGIN = 64
"""Rounds from the next round to the proposed one, at most."""
REQUEST_INTERVAL = 0.2


class RejoinAnswer(IntEnum):
    """A peer's answer to a process that rejoins, each with a round; those after ACCEPT exclude the peer."""

    NONE = 0
    POSITION = 1
    """The peer's next round."""
    ACCEPT = 2
    """The peer's next round; it accepts the proposed one."""
    ENDED = 3
    """The first round that the peer has not done."""
    SILENT = 4
    """Nothing in time, or it is rejoining itself."""
    REFUSED = 5


class RejoinProtocol:
    """How a restarted process finds the round in which its nodes rejoin.

    It asks all peers for their positions and proposes one round to all: the latest of their next rounds, or a
    later one if that has started meanwhile. Before that it may ask for positions alone, which binds no peer.
    """

    def __init__(
        self, peers_by_rank: Mapping[int, Peers], send_control: SendControl, clock: Clock | None = None
    ) -> None:
        self.round: int | None = None
        self.latest: int | None = None
        """The latest next round among the positions received; None: no answer."""
        self.concluded = threading.Event()
        """Set when the result is known, or no peer is left that could answer."""
        self._peers_by_rank = peers_by_rank
        self._clock = clock or Clock()
        self._send_control = send_control
        self._answers: dict[Pair, tuple[RejoinAnswer, int]] = {}
        """By peer its last answer, and the round in it."""
        self._proposed: int | None = None
        self._margin = 0
        self._enough: int | None = None
        self._limit = inf

    def seek(
        self, pairs: list[Pair], limit: float, post: Callable[[Callable[[], None]], None],
        enough: int | None = None,
    ) -> int | None:  # fmt: skip
        """Asks all peers and waits until a round is found or none can be; not for the socket thread.

        Returns `round`; or with `enough` only `latest`, where any round after `enough` will do. Neighbors
        that rejoin themselves must be asked again until they have a round.
        """
        # A new event, so that late answers to an earlier question do not end the wait for this one.
        concluded = threading.Event()
        self._limit = limit
        post(lambda: self.request_positions(pairs, enough, concluded))
        while not concluded.wait(max(0.0, min(Timeouts.rejoin_answer, limit - self._clock.now()))):
            if self._clock.now() >= limit:
                break
            post(self.stop_waiting)
        round = self.round if enough is None else self.latest
        if round is None:
            # Bounds how often the caller asks again while all neighbors are rejoining themselves.
            time.sleep(REQUEST_INTERVAL)
        return round

    def request_positions(
        self, pairs: Iterable[Pair], enough: int | None = None, concluded: threading.Event | None = None
    ) -> None:
        """Asks these peers from the beginning; they count as lost until they accept."""
        self.concluded = concluded or threading.Event()
        self._answers = dict.fromkeys(sorted(pairs), (RejoinAnswer.NONE, 0))
        self._proposed, self._margin, self._enough = None, 0, enough
        for rank, peer in self._answers:
            self._peers_by_rank[rank].lose(peer, PeerLost(peer, "was not met again yet"))
            self._send_control(Kind.POSITION_REQUEST, rank, peer, first_of(0), 0)
        self._continue()

    def receive(self, pair: Pair, header: Header) -> None:
        """Processes an answer; ignores anything else, since peers may propose by themselves meanwhile."""
        if pair not in self._in_reach():
            return
        match header.kind:
            case Kind.POSITION:
                # It may be a late one of a peer that has accepted meanwhile.
                self._answers[pair] = max(self._answers[pair][0], RejoinAnswer.POSITION), header.seq
                # The peer has passed the proposed round since it sent its position.
                if self._proposed is not None and header.seq > self._proposed:
                    self._start_over()
            case Kind.REJOIN_ACCEPT if header.round == self._proposed:
                self._answers[pair] = RejoinAnswer.ACCEPT, header.seq
            case Kind.LEAVE:
                self._answers[pair] = RejoinAnswer.ENDED, header.round + 1 if header.seq & 1 else 0
                self._peers_by_rank[pair[0]].depart(pair[1], None)
            case Kind.DROP_EDGE:
                self._answers[pair] = RejoinAnswer.REFUSED, 0
            case Kind.POSITION_REQUEST:
                # The peer was restarted, too, and has no position to answer with.
                self._answers[pair] = RejoinAnswer.SILENT, 0
        self._continue()

    def stop_waiting(self) -> None:
        """Continues with the peers that have answered."""
        awaited = RejoinAnswer.POSITION if self._proposed is None else RejoinAnswer.ACCEPT
        late = [pair for pair, answer in self._in_reach().items() if answer < awaited]
        self._answers |= dict.fromkeys(late, (RejoinAnswer.SILENT, 0))
        self._continue()

    def settle(self, round: int) -> None:
        """Lets the nodes of this process take part from `round` on, with the peers that accepted.

        May run in any thread if no peer was asked, because all peers are in this process.
        """
        self.round = round
        for peers in self._peers_by_rank.values():
            # The nodes take part from `round` on: all earlier ones are closed for them.
            peers.mailbox.enter_round(round - 1)
        for (rank, peer), (answer, theirs) in self._answers.items():
            if answer is RejoinAnswer.ACCEPT:
                self._peers_by_rank[rank].readmit(peer, round)
                self._peers_by_rank[rank].start_fresh(peer, max(round, theirs))
        if any(
            answer not in (RejoinAnswer.NONE, RejoinAnswer.REFUSED) for answer, _ in self._answers.values()
        ):
            # Nodes of one process may have loaded checkpoints of different rounds.
            for rank, peers in self._peers_by_rank.items():
                for sibling in self._peers_by_rank.keys() - {rank}:
                    peers.start_fresh(sibling, round)
        self.concluded.set()

    def _in_reach(self) -> dict[Pair, RejoinAnswer]:
        """The peers that may still agree, each with its last answer."""
        return {pair: answer for pair, (answer, _) in self._answers.items() if answer <= RejoinAnswer.ACCEPT}

    def _rounds(self, *answers: RejoinAnswer) -> list[int]:
        """The rounds in all answers of these kinds."""
        return [round for answer, round in self._answers.values() if answer in answers]

    def _continue(self) -> None:
        if self.concluded.is_set():
            return
        least = min(self._in_reach().values(), default=None)
        if self._enough is not None:
            self._check_answers(self._enough, least)
        elif self._ended_alone:
            self.settle(max(self._rounds(RejoinAnswer.ENDED)))
        elif least is None:
            self.concluded.set()
        elif self._proposed is None and least >= RejoinAnswer.POSITION:
            self._propose()
        elif self._proposed is not None and least is RejoinAnswer.ACCEPT:
            self.settle(self._proposed)

    def _check_answers(self, enough: int, least_answer: RejoinAnswer | None) -> None:
        ended = self._rounds(RejoinAnswer.ENDED) if self._ended_alone else []
        self.latest = max(self._rounds(RejoinAnswer.POSITION) or ended, default=None)
        if least_answer is not RejoinAnswer.NONE or (self.latest is not None and self.latest > enough):
            self.concluded.set()

    @property
    def _ended_alone(self) -> bool:
        """Whether some peers have ended and no other can be asked, now or again."""
        # Two more attempts would not fit into the time limit.
        is_last = self._clock.now() > self._limit - 2 * (Timeouts.rejoin_answer + REQUEST_INTERVAL)
        none_silent = is_last or not self._rounds(RejoinAnswer.SILENT)
        return bool(self._rounds(RejoinAnswer.ENDED)) and not self._in_reach() and none_silent

    def _propose(self) -> None:
        self._proposed = max(self._rounds(RejoinAnswer.POSITION)) + self._margin
        for rank, peer in self._in_reach():
            self._send_control(Kind.REJOIN_PROPOSE, rank, peer, first_of(self._proposed), 0)

    def _start_over(self) -> None:
        # A peer may have accepted although its REJOIN_ACCEPT is still on the way; it ignores another round.
        for pair in self._in_reach():
            self._send_control(Kind.DROP_EDGE, *pair, first_of(self._proposed or 0), 0)
            self._answers[pair] = RejoinAnswer.POSITION, self._answers[pair][1]
        self._margin = min(MOST_MARGIN, max(1, 2 * self._margin))
        self._propose()


def first_of(round: int) -> Key:
    """The first exchange of a round."""
    return round, 0, 0
