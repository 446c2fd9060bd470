"""Two ends of an edge under loss, duplication, reordering, timeouts, restarts and leaving, in any order."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from decentnode.communication.exchange.handle import Message
from decentnode.communication.peers.edges import EdgeProtocol, farewell
from decentnode.communication.peers.peer import CONNECTED, TRANSITIONS, PeerEvent, PeerState
from decentnode.communication.peers.peers import Peers, PeerTransport
from decentnode.communication.peers.rejoin import RejoinProtocol, first_of
from decentnode.communication.wire import Header, Kind
from decentnode.errors import PeerLost, PeerTimeout

TIMEOUT = 10.0
DEPTH = 4
"""Events of the exhaustive check."""
EVENTS = "begin", "request_from", "time_out", "propose", "restart", "leave"
COMPARED = "state", "round", "last_exchange", "fresh_from", "requested", "margin", "proposals"


class FakeMessage(Message):
    def _parse(self, layout):
        raise AssertionError("nobody reads it")


class End(PeerTransport):
    """One process with one node, which mixes with one peer."""

    def __init__(self, edge, rank, incarnation=0):
        self.edge, self.rank, self.peer, self.incarnation = edge, rank, 1 - rank, incarnation
        self.box = Peers(rank, self).mailbox
        peers = {rank: self.box.peers}
        self.protocol = EdgeProtocol(peers, edge.send_control, lambda peer: True)
        if incarnation:
            self.protocol.rejoining = RejoinProtocol(peers, edge.send_control)
        self.next, self.handle, self.sent, self.linked = 0, None, {}, True

    def is_linked(self, peer):
        return self.linked

    def acknowledge(self, source, message):
        self.edge.ends[source].box.acknowledged(self.rank, message.seq)

    def resend(self, peer, key):
        if key in self.sent:
            self.edge.send_control(Kind.PAYLOAD, self.rank, peer, key, self.sent[key])
        return key in self.sent

    @property
    def is_waiting(self):
        return self.handle is not None and not self.handle.done

    def begin(self):
        """Ends the last exchange and begins the next one, if the node can."""
        box = self.box
        if self.is_waiting or box.ended or self.protocol.is_seeking:
            return
        self.mix()
        self.next = max(self.next, box.next_round)
        if box.peers.ahead > self.next:
            self.next = box.peers.ahead
            for peer in box.peers.skip_to(self.next, [self.peer]):
                self.edge.send_control(Kind.SKIP, self.rank, peer, first_of(self.next), 0)
        key = first_of(self.next)
        box.peers.admit(self.next)
        self.handle = box.open(key, self.next + 1, [self.peer], [self.peer], TIMEOUT)
        self.handle.start_waiting()
        if box.peers.error(self.peer) is None:
            self.sent[key] = self.next + 1
            self.edge.send_control(Kind.PAYLOAD, self.rank, self.peer, key, self.next + 1)
        self.next += 1

    def mix(self):
        if self.handle is not None:
            self.edge.mixed[self.rank][self.handle.key[0]] = bool(self.handle.messages)
            self.handle.release()
            self.handle = None

    def mark(self):
        """Everything that decides what this end does next."""
        peer, box = self.box.peers[self.peer], self.box
        fields = [
            self.linked,
            self.next,
            self.is_waiting,
            self.incarnation,
            self.protocol.is_seeking,
            sorted(self.sent),
        ]
        arrived = sorted(self.handle.messages) if self.handle is not None else None
        return [
            self.linked,
            *fields,
            arrived,
            box.ended,
            box.peers.ahead,
            box.next_round,
            sorted(box._early._messages),
        ] + [getattr(peer, name) for name in COMPARED]

    def receive(self, header):
        if header.kind == Kind.PAYLOAD:
            self.box.deliver(header.sender, header.key, FakeMessage(header.sender, header.seq, 0))
        elif header.kind == Kind.RESEND:
            self.box.peers.note_waiting(header.sender, header.key, True)
            if not self.protocol.is_seeking:
                self.protocol.answer_request(self.box.peers, header.sender, header.key)
        else:
            self.protocol.receive(self.box.peers, header.kind, header)


class Edge:
    """Both ends, what is on the way between them, and what each has mixed."""

    def __init__(self):
        self.post, self.mixed, self.losses = [], [{}, {}], 0
        self.ends = [End(self, rank) for rank in (0, 1)]

    def send_control(self, kind, sender, peer, key, seq):
        end = self.ends[sender]
        if not end.linked:
            # A message opens the link that it needs.
            end.linked = True
            end.box.peers.link(peer)
        self.post.append(Header(kind, 1, sender, peer, *key, seq=seq))

    def deliver(self, index, is_lost=False, is_repeated=False):
        if self.post:
            index %= len(self.post)
            header = self.post[index] if is_repeated else self.post.pop(index)
            self.losses += is_lost
            if not is_lost:
                self.ends[header.receiver].receive(header)

    def drain(self):
        for _ in range(200):
            if not self.post:
                break
            self.deliver(0)
        assert self.post == [], "messages without end"

    def begin(self, rank):
        self.ends[rank].begin()

    def request_from(self, rank):
        end = self.ends[rank]
        if end.is_waiting:
            self.send_control(Kind.RESEND, rank, end.peer, end.handle.key, 0)

    def time_out(self, rank):
        end = self.ends[rank]
        if end.is_waiting and end.box.peers.error(end.peer) is None:
            self.losses += 1
            # No seconds: the back-off is tested elsewhere.
            end.protocol.time_out(end.box.peers, end.handle.key, PeerTimeout(end.peer, "silent", 0.0), 0.0)

    def propose(self, rank):
        self.ends[rank].protocol.propose()

    def leave(self, rank):
        end = self.ends[rank]
        if not end.is_waiting and not end.protocol.is_seeking and not end.box.ended:
            end.mix()
            self.losses += 1
            end.box.ended = True
            self.send_control(Kind.LEAVE, rank, end.peer, *farewell(end.box))

    def unlink(self, rank):
        """Closes the link of this end if that is allowed; the other one does not notice."""
        end = self.ends[rank]
        if end.linked and end.box.peers.may_unlink(end.peer):
            end.linked = False
            end.box.peers.unlink(end.peer)

    def restart(self, rank):
        """The end is replaced by a new process, whose first message has arrived."""
        end = self.ends[rank]
        self.losses += 1
        self.ends[rank] = new = End(self, rank, end.incarnation + 1)
        # Messages from and to the old incarnation are refused.
        self.post = []
        self.ends[end.peer].box.peers.replace(rank, PeerLost(rank, "connection lost"))
        new.protocol.rejoining.request_positions([(rank, end.peer)])

    def seek(self, rank):
        """Lets a restarted end ask again; of two that seek, both begin where the caller says."""
        end, other = self.ends[rank], self.ends[1 - rank]
        if end.protocol.is_seeking and other.protocol.is_seeking:
            end.protocol.rejoining.settle(1 + max(end.next, other.next))
        elif end.protocol.is_seeking:
            end.protocol.rejoining.request_positions([(rank, end.peer)])

    def check(self):
        for end in self.ends:
            excluded = end.box.peers.error(end.peer) is not None
            # A link that is closed is needed for nothing.
            state = end.box.peers[end.peer].state
            assert (state is PeerState.LIVE) <= end.linked, "LIVE without a link"
            assert (state is PeerState.UNLINKED) <= (not end.linked), "UNLINKED with a link"
            # Never waited for twice: a peer without an edge is awaited by no exchange, as source or reader.
            assert not (excluded and end.is_waiting), (end.rank, end.box.peers[end.peer].state)
            for handle, peers in end.box.awaited():
                for peer in peers:
                    assert end.box.peers.times_out_at(peer, handle) < float("inf")
        both = self.mixed[0].keys() & self.mixed[1].keys()
        one_sided = [round for round in both if self.mixed[0][round] != self.mixed[1][round]]
        # A lost message, a timeout and a restart cost at most one such round each.
        assert len(one_sided) <= self.losses, (one_sided, self.mixed)

    def heal(self):
        """Nothing is lost from here on: after some rounds W is symmetric again."""
        for _ in range(12):
            self.drain()
            for rank in (0, 1):
                self.ends[rank].begin()
            self.drain()
            for rank in (0, 1):
                self.request_from(rank)
            self.drain()
            for rank in (0, 1):
                self.seek(rank)
                self.propose(rank)
            self.drain()
            self.check()
        states = [end.box.peers[end.peer].state for end in self.ends]
        ended = [end.box.ended for end in self.ends]
        for rank, state in enumerate(states):
            if ended[1 - rank] and not ended[rank]:
                # The lower rank proposes: if it has ended, nobody asks for a LEAVE that was lost.
                assert state in (PeerState.LEFT, PeerState.LOST)
        if not any(ended):
            rounds = [end.box.peers.rejoin_round(end.peer) for end in self.ends]
            assert PeerState.LOST not in states and len({*rounds, None}) <= 2, (states, rounds)
            if set(states) <= CONNECTED:
                last = max(self.mixed[0].keys() & self.mixed[1].keys())
                assert self.mixed[0][last] and self.mixed[1][last], self.mixed

    def events(self):
        """What may happen next, as calls by name and arguments."""
        steps = [(name, rank) for rank in (0, 1) for name in EVENTS]
        for index in range(min(len(self.post), 2)):
            steps += [("deliver", index), ("deliver", index, True), ("deliver", index, False, True)]
        return steps

    def fingerprint(self):
        """Equal for two edges on which the same can follow."""
        return repr(
            (
                [end.mark() for end in self.ends],
                [(h.kind, h.sender, h.key, h.seq) for h in self.post],
                self.mixed,
            )
        )


def after(events):
    """The edge after two first exchanges have begun and these events have happened."""
    edge = Edge()
    for name, *arguments in [("begin", 0), ("begin", 1), *events]:
        getattr(edge, name)(*arguments)
        edge.check()
    return edge


def test_all_orders_of_a_few_events_keep_the_promises():
    """Exhaustive up to `DEPTH` events, among equal states once; each then heals."""
    seen, paths = set(), [()]
    for _ in range(DEPTH):
        longer = []
        for path in paths:
            for event in after(path).events():
                edge = after((*path, event))
                if (mark := edge.fingerprint()) not in seen:
                    seen.add(mark)
                    longer.append((*path, event))
                    edge.heal()
        paths = longer
    assert len(seen) > 1000


class AnyOrder(RuleBasedStateMachine):
    def __init__(self):
        super().__init__()
        self.edge = Edge()

    ranks = st.sampled_from((0, 1))

    @rule(index=st.integers(0, 5))
    def deliver(self, index):
        self.edge.deliver(index)

    @rule(index=st.integers(0, 5))
    def lose(self, index):
        self.edge.deliver(index, is_lost=True)

    @rule(index=st.integers(0, 5))
    def repeat(self, index):
        self.edge.deliver(index, is_repeated=True)

    @rule(rank=ranks, name=st.sampled_from((*EVENTS, "unlink")))
    def event(self, rank, name):
        getattr(self.edge, name)(rank)

    @invariant()
    def promises_hold(self):
        self.edge.check()

    def teardown(self):
        self.edge.heal()


TestAnyOrder = AnyOrder.TestCase
TestAnyOrder.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)


def test_the_table_has_the_drawn_ways_out_of_each_state():
    ways = {
        state: {after for (before, _), after in TRANSITIONS.items() if before is state} for state in PeerState
    }
    live, unlinked, leaving, left, lost, rejoining = PeerState
    assert ways == {
        live: {live, unlinked, lost, leaving, left},
        # A part of LIVE: whatever may happen to a live peer may happen to one without a link.
        unlinked: {live, unlinked, lost, leaving, left},
        leaving: {leaving, left, lost},
        left: {left, lost},
        lost: {lost, left, rejoining},
        rejoining: {rejoining, live, lost, left},
    }
    assert [key for key in TRANSITIONS if key[0] is left and TRANSITIONS[key] is lost] == [
        (left, PeerEvent.RESTART)
    ]
