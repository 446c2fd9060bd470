"""Rejoining over dropped edges: both ends agree on the round from which they exchange again.

One end proposes a round that neither has started (REJOIN_PROPOSE). The other accepts (REJOIN_ACCEPT), or
answers with the round that it starts next (POSITION), and the first proposes a later one. If one of these
messages is lost, one end expects payloads over an edge that the other has dropped. It requests what is
missing, is answered with DROP_EDGE, and the procedure starts again; in such a round neither end mixes the
model of the other. Peers that are too slow: `rejoin_backoff.py`.

W is symmetric in all rounds but one of each loss: an end i that gives up j has not received its payload, and
cannot know whether j has mixed its own. Where messages are lost one way, j has. So the sum of all models
changes once by w_ij (x_i - x_j), which is not taken back: for that every node would have to keep every
neighbor's model for a round (docs/reliability.md, "What a lost edge costs").
"""

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from math import inf

from decentnode.communication.exchange.handle import Key
from decentnode.communication.exchange.mailbox import Mailbox
from decentnode.communication.peers.rejoin_backoff import Pair, RejoinBackoff
from decentnode.communication.wire import Header, Kind
from decentnode.errors import PeerLost, PeerTimeout

Tell = Callable[[Kind, int, int, Key, int], None]
"""Sends a control message: kind, local rank, peer, exchange, seq."""
FIRST_MARGIN, MOST_MARGIN = 1, 64
"""Rounds between the proposal and the round that is proposed; doubled when it comes too late."""
FAR_AHEAD = 8
"""Rounds by which a peer is ahead before this node goes on where the peer is, instead of being waited for."""
ANSWER_SECONDS = 3.0
"""How long a process that comes back waits for answers before it goes on without those that are silent."""
ASK_AGAIN = 0.2
MOST_REQUESTS = 16
"""For a node's model by one start of a peer, which asks each neighbor once as a rule."""
MOST_PROPOSALS = 8
"""Proposals to one peer between two ticks."""
TOO_SLOW = 1
"""The `seq` of a DROP_EDGE to a peer that was silent for too long."""


class EdgeProtocol:
    """Those of all nodes of a process, served by the thread that owns the sockets."""

    def __init__(
        self, mailboxes: Mapping[int, Mailbox], tell: Tell, is_reachable: Callable[[int], bool]
    ) -> None:
        """`is_reachable`: whether a link holds by which a peer can be told something."""
        self.rejoining: RejoinProtocol | None = None
        self._mailboxes = mailboxes
        self._tell = tell
        self._is_reachable = is_reachable
        self._backoff = RejoinBackoff()
        self._margins: dict[Pair, int] = {}
        self._proposals: dict[Pair, int] = {}
        self._requests: Counter[Pair] = Counter()
        """For models, by this start of the peer."""

    @property
    def is_seeking(self) -> bool:
        """Whether this process was started again, and does not know yet in which round it takes part."""
        return self.rejoining is not None and self.rejoining.round is None

    def has_lost(self) -> bool:
        """Whether somebody has to be offered again and again that edges come back."""
        return any(box.gone and self._to_be_offered(box) for box in self._mailboxes.values())

    def propose(self) -> None:
        """Offers every lost peer that can be reached to exchange again; of two ends the lower rank does."""
        self._proposals.clear()
        if self.is_seeking:
            return
        for mailbox in self._mailboxes.values():
            for peer in filter(partial(self._may_return, mailbox), self._to_be_offered(mailbox)):
                self._propose(mailbox, peer, 0)

    def _to_be_offered(self, mailbox: Mailbox) -> list[int]:
        peers = [] if mailbox.ended else mailbox.lost()
        return [peer for peer in peers if mailbox.rank < peer and self._is_reachable(peer)]

    def give_up(self, mailbox: Mailbox, key: Key, error: PeerTimeout, now: float) -> None:
        """Drops the edge to a peer that was silent for too long in an exchange, and tells it."""
        pair = mailbox.rank, error.peer
        self._backoff.give_up(pair, key[0], error.seconds, now)
        mailbox.give_up(error.peer, error)
        self._tell(Kind.DROP_EDGE, *pair, key, TOO_SLOW)

    def meet_anew(self, peers: Iterable[int]) -> None:
        """Another process has taken the place of these peers'."""
        for peer in peers:
            self._backoff.forget(peer)
            for rank in self._mailboxes:
                del self._requests[rank, peer]

    def _may_return(self, mailbox: Mailbox, peer: int) -> bool:
        """Whether an agreement can be told, and is to be made."""
        pair = mailbox.rank, peer
        return self._is_reachable(peer) and not self._backoff.holds(pair, mailbox.spot, time.monotonic())

    def hear(self, mailbox: Mailbox, kind: int, header: Header) -> None:
        """Takes in what a peer says about an edge."""
        peer, round = header.sender, header.round
        if self.rejoining is not None and self.is_seeking:
            self.rejoining.hear((mailbox.rank, peer), header)
            return
        match kind:
            case Kind.POSITION_REQUEST | Kind.REJOIN_PROPOSE if mailbox.ended:
                self._tell(Kind.LEAVE, mailbox.rank, peer, *farewell(mailbox))
            case Kind.DROP_EDGE:
                # Who trains for the round that was agreed on has not taken the peer back yet.
                is_new = peer not in mailbox.gone or mailbox.returns_in(peer) is not None
                if header.seq == TOO_SLOW and is_new:
                    self._backoff.blame((mailbox.rank, peer), mailbox.spot)
                mailbox.give_up(peer, PeerLost(peer, f"timed out on this node in round {round + 1}"))
            case Kind.LEAVE:
                mailbox.depart(peer, header.key if header.seq else None)
            case Kind.POSITION_REQUEST:
                self._tell(Kind.POSITION, mailbox.rank, peer, mailbox.position, mailbox.upcoming)
            case Kind.REJOIN_PROPOSE:
                self._consider(mailbox, peer, round, header.seq)
            case Kind.REJOIN_ACCEPT:
                self._conclude(mailbox, peer, round, header.seq)
            case Kind.POSITION:
                mailbox.note_progress(peer, header.key)
                self._hear_where(mailbox, peer, header.seq)
            case Kind.SKIP:
                self._let_skip(mailbox, peer, round)
            case Kind.MODEL_REQUEST:
                self._consider_request(mailbox, peer)

    def _consider_request(self, mailbox: Mailbox, peer: int) -> None:
        self._requests[mailbox.rank, peer] += 1
        if self._requests[mailbox.rank, peer] > MOST_REQUESTS:
            mailbox.refuse("fetch")
        else:
            mailbox.want_model(peer)

    def _propose(self, mailbox: Mailbox, peer: int, theirs: int) -> None:
        pair = mailbox.rank, peer
        self._proposals[pair] = self._proposals.get(pair, 0) + 1
        if self._proposals[pair] <= MOST_PROPOSALS:
            round = max(mailbox.upcoming, theirs) + self._margins.get(pair, FIRST_MARGIN)
            self._tell(Kind.REJOIN_PROPOSE, mailbox.rank, peer, first_of(round), mailbox.upcoming)

    def _consider(self, mailbox: Mailbox, peer: int, round: int, theirs: int) -> None:
        if mailbox.returns_in(peer) not in (None, round):
            return  # the proposals have crossed, and that of the peer that came back was agreed on
        if not self._may_return(mailbox, peer):
            return  # it proposes again
        with mailbox.lock:  # the peer meets this node anew from the round on that is told
            agrees, upcoming = mailbox.readmit(peer, round, theirs), mailbox.upcoming
        if not agrees:
            self._tell(Kind.POSITION, mailbox.rank, peer, mailbox.position, mailbox.upcoming)
            return
        self._agree(mailbox, peer, round, theirs)
        self._tell(Kind.REJOIN_ACCEPT, mailbox.rank, peer, first_of(round), upcoming)

    def _conclude(self, mailbox: Mailbox, peer: int, round: int, theirs: int) -> None:
        self._margins.pop((mailbox.rank, peer), None)
        if mailbox.readmit(peer, round, theirs):
            self._agree(mailbox, peer, round, theirs)
        elif peer in mailbox.gone:
            self._tell(Kind.DROP_EDGE, mailbox.rank, peer, first_of(round), 0)

    def _hear_where(self, mailbox: Mailbox, peer: int, upcoming: int) -> None:
        pair = mailbox.rank, peer
        if peer in mailbox.lost() and self._proposals.get(pair):
            self._margins[pair] = min(MOST_MARGIN, 2 * self._margins.get(pair, FIRST_MARGIN))
            self._propose(mailbox, peer, upcoming)

    def _let_skip(self, mailbox: Mailbox, peer: int, round: int) -> None:
        mailbox.give_up(peer, PeerLost(peer, f"continues in round {round + 1}"), round)
        if self._is_reachable(peer):
            mailbox.readmit(peer, round)
        self._follow(mailbox, round, round)

    def _agree(self, mailbox: Mailbox, peer: int, round: int, theirs: int) -> None:
        self._backoff.take_back((mailbox.rank, peer), round)
        self._follow(mailbox, round, theirs)

    def _follow(self, mailbox: Mailbox, round: int, theirs: int) -> None:
        """Has this node go on where a peer is that is far ahead; who is ahead waits for nobody else."""
        if theirs > mailbox.upcoming + FAR_AHEAD:
            mailbox.ahead = max(mailbox.ahead, round)


class RejoinProtocol:
    """How a process that was started again finds the round in which its nodes take part again.

    It asks all peers where they are, and proposes the same round to all: the latest that one of them is about
    to begin, or a later one when that has begun in the meantime. Before that it may only look where they are,
    which nobody takes for a promise.
    """

    def __init__(self, mailboxes: Mapping[int, Mailbox], tell: Tell) -> None:
        self.round: int | None = None
        self.latest: int | None = None
        """The latest round that a peer was about to begin when this process looked; None: nobody has said."""
        self.found = threading.Event()
        """Set when that is known, or nobody is left to say it."""
        self._mailboxes = mailboxes
        self._tell = tell
        self._asked: set[Pair] = set()
        self._silent: set[Pair] = set()
        """Who was asked, and may come back itself."""
        self._ended: dict[Pair, int] = {}
        """The first round that peers have not done that have ended."""
        self._next: dict[Pair, int] = {}
        self._agreed: dict[Pair, int] = {}
        """Who has agreed to the proposed round, with the first one that they have not begun."""
        self._proposed: int | None = None
        self._margin = 0
        self._enough: int | None = None
        self._limit = inf

    def seek(
        self, pairs: list[Pair], limit: float, post: Callable[[Callable[[], None]], None],
        enough: int | None = None,
    ) -> int | None:  # fmt: skip
        """Once, in another thread: has all of them asked, and waits until a round is found or none can be.

        Gives `round`; or with `enough` only `latest`, and any after `enough` will do. Neighbors that come
        back themselves have to be asked again, until they know where.
        """
        # One of its own, so that late answers to an earlier question do not end the waiting for this one.
        found = threading.Event()
        self._limit = limit
        post(lambda: self.ask(pairs, enough, found))
        while not found.wait(max(0.0, min(ANSWER_SECONDS, limit - time.monotonic()))):
            if time.monotonic() >= limit:
                break
            post(self.stop_waiting)
        round = self.round if enough is None else self.latest
        if round is None:
            time.sleep(ASK_AGAIN)
        return round

    def ask(
        self, pairs: Iterable[Pair], enough: int | None = None, found: threading.Event | None = None
    ) -> None:
        """Asks these peers, from the beginning; until they agree they count as lost."""
        self.found = found or threading.Event()
        self._asked, self._next, self._agreed = set(pairs), {}, {}
        self._silent, self._ended = set(), {}
        self._proposed, self._margin, self._enough = None, 0, enough
        for rank, peer in sorted(self._asked):
            self._mailboxes[rank].lose(peer, PeerLost(peer, "was not met again yet"))
            self._tell(Kind.POSITION_REQUEST, rank, peer, first_of(0), 0)
        self._go_on()

    def hear(self, pair: Pair, header: Header) -> None:
        """Takes in an answer, and nothing else: others may propose by themselves in the meantime."""
        if pair not in self._asked:
            return
        if header.kind == Kind.POSITION:
            self._next[pair] = header.seq
            if self._proposed is not None and header.seq > self._proposed:
                self._start_over()
        elif header.kind == Kind.REJOIN_ACCEPT and header.round == self._proposed:
            self._agreed[pair] = header.seq
        elif header.kind == Kind.LEAVE:
            self._forget(pair)
            self._ended[pair] = header.round + 1 if header.seq else 0
            self._mailboxes[pair[0]].depart(pair[1], None)
        elif header.kind in (Kind.DROP_EDGE, Kind.POSITION_REQUEST):
            self._forget(pair)
            if header.kind == Kind.POSITION_REQUEST:
                self._silent.add(pair)
        self._go_on()

    def stop_waiting(self) -> None:
        """Goes on with those that have answered."""
        answered = set(self._next if self._proposed is None else self._agreed)
        for pair in self._asked - answered:
            self._forget(pair)
            self._silent.add(pair)
        self._go_on()

    def settle(self, round: int) -> None:
        """Has the nodes here take part from `round` on, with the peers that have agreed.

        In any thread, where nobody was asked: all peers are in this process, too.
        """
        self.round = round
        for mailbox in self._mailboxes.values():
            mailbox.start_at(round)
        for (rank, peer), theirs in self._agreed.items():
            self._mailboxes[rank].readmit(peer, round)
            self._mailboxes[rank].anew[peer] = max(round, theirs)
        if self._agreed or self._silent or self._ended:
            # Nodes of one process may have come back from different rounds.
            for rank, mailbox in self._mailboxes.items():
                mailbox.anew |= dict.fromkeys(self._mailboxes.keys() - {rank}, round)
        self.found.set()

    def _forget(self, pair: Pair) -> None:
        self._asked.discard(pair)
        self._next.pop(pair, None)
        self._agreed.pop(pair, None)

    def _go_on(self) -> None:
        if self.found.is_set():
            return
        if self._enough is not None:
            self._look(self._enough)
        elif self._ended_alone:
            self.settle(max(self._ended.values()))
        elif not self._asked:
            self.found.set()
        elif self._proposed is None and self._asked <= self._next.keys():
            self._propose()
        elif self._proposed is not None and self._asked <= self._agreed.keys():
            self.settle(self._proposed)

    def _look(self, enough: int) -> None:
        ended = self._ended if self._ended_alone else {}
        self.latest = max(self._next.values() or ended.values(), default=None)
        if self._asked <= self._next.keys() or (self.latest is not None and self.latest > enough):
            self.found.set()

    @property
    def _ended_alone(self) -> bool:
        """Whether there are peers that have ended, and nobody else can be asked, or asked once more."""
        is_last = time.monotonic() > self._limit - 2 * (ANSWER_SECONDS + ASK_AGAIN)
        return bool(self._ended) and not self._asked and (is_last or not self._silent)

    def _propose(self) -> None:
        self._proposed = max(self._next.values()) + self._margin
        for rank, peer in sorted(self._asked):
            self._tell(Kind.REJOIN_PROPOSE, rank, peer, first_of(self._proposed), 0)

    def _start_over(self) -> None:
        # A peer may have agreed although its REJOIN_ACCEPT is still on the way; it ignores another round.
        for rank, peer in sorted(self._asked):
            self._tell(Kind.DROP_EDGE, rank, peer, first_of(self._proposed or 0), 0)
        self._agreed.clear()
        self._margin = min(MOST_MARGIN, max(1, 2 * self._margin))
        self._propose()


def first_of(round: int) -> Key:
    """The first exchange of a round."""
    return round, 0, 0


def farewell(mailbox: Mailbox) -> tuple[Key, int]:
    """Key and seq of what a node says that ends: its last exchange, and 1 unless there was none."""
    return mailbox.sent_last or first_of(0), int(mailbox.sent_last is not None)
