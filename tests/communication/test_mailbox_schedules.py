"""In whatever order things happen: an exchange is done exactly when all has come and all have read."""

from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from decentnode.communication.peers.peers import Peers, PeerTransport
from decentnode.errors import PeerLost

PEERS = range(1, 5)
SOME = st.sets(st.sampled_from(PEERS))
EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("open"), SOME, SOME, st.integers(1, 2)),
        st.tuples(st.just("deliver"), st.sampled_from(PEERS), st.integers(-1, 2)),
        st.tuples(st.just("acknowledge"), st.sampled_from(PEERS), st.integers(-2, 3)),
        st.tuples(st.just("lose"), st.sampled_from(PEERS)),
    ),
    max_size=60,
)


@dataclass
class FakeMessage:
    seq: int

    def read(self, layout):
        raise NotImplementedError


@dataclass
class Ledger:
    """What should be so, kept as plain sets of facts."""

    round: int = -1
    seq: int = 0
    lost: set = field(default_factory=set)
    parked: set = field(default_factory=set)
    """(source, round) of letters that came early."""
    unread: set = field(default_factory=set)
    """(seq, reader) of what was sent and not released."""
    awaited: set = field(default_factory=set)
    arrived: set = field(default_factory=set)
    done: bool = True

    def note(self):
        """An exchange that is done stays so."""
        before = {reader for number, reader in self.unread if number < self.seq}
        self.done = self.done or not (self.awaited or before)


def play(events):
    """Yields the mailbox, the last handle and the ledger after each event that the protocol allows."""
    box, ledger, handle = Peers(0, PeerTransport()).mailbox, Ledger(), None
    for event in events:
        match event:
            case ("open", targets, sources, ahead):
                if not ledger.done:
                    continue  # a node waits before it goes on
                ledger.round, ledger.seq = ledger.round + ahead, ledger.seq + 1
                ledger.arrived = {s for s, round in ledger.parked if round == ledger.round and s in sources}
                ledger.parked = {(s, round) for s, round in ledger.parked if round > ledger.round}
                ledger.awaited = sources - ledger.arrived - ledger.lost
                ledger.unread |= {(ledger.seq, reader) for reader in targets - ledger.lost}
                ledger.done = False
                handle = box.open((ledger.round, 0, 0), ledger.seq, targets, sorted(sources), 10.0)
            case ("deliver", source, ahead):
                round = ledger.round + ahead
                if round < 0:
                    continue
                if round > ledger.round:
                    # Of who is lost, what came before that counts; nothing that comes later does.
                    ledger.parked |= {(source, round)} - {(s, round) for s in ledger.lost}
                elif round == ledger.round and not ledger.done and source in ledger.awaited:
                    ledger.awaited.discard(source)
                    ledger.arrived.add(source)
                box.deliver(source, (round, 0, 0), FakeMessage(1))
            case ("acknowledge", reader, offset):
                number = max(0, ledger.seq + offset)
                if number <= ledger.seq:
                    ledger.unread = {(n, r) for n, r in ledger.unread if r != reader or n > number}
                box.acknowledged(reader, number)
            case ("lose", peer):
                ledger.lost.add(peer)
                ledger.awaited.discard(peer)
                ledger.unread = {(n, r) for n, r in ledger.unread if r != peer}
                box.peers.lose(peer, PeerLost(peer, "gone"))
        ledger.note()
        yield event[0], box, handle, ledger


@pytest.mark.slow
@settings(max_examples=400)
@given(EVENTS)
def test_an_exchange_is_done_neither_early_nor_late(events):
    for _, box, handle, ledger in play(events):
        if handle is not None:
            assert handle.done == ledger.done
            assert set(handle.messages) == ledger.arrived
            assert handle.awaited == ledger.awaited
        assert box.is_read() == (not ledger.unread)


@settings(max_examples=200)
@given(EVENTS)
def test_every_message_is_used_waits_or_is_counted(events):
    handles, delivered, box = {}, 0, None
    for event, mailbox, handle, _ in play(events):
        box = mailbox
        delivered += event == "deliver"
        if handle is not None:
            handles[handle.seq] = handle
    if box is not None:
        used = sum(len(handle.messages) for handle in handles.values())
        waiting = sum(map(len, box._early._messages.values()))
        refused = sum(count for reason, count in box.refused.items() if reason != "acknowledgement")
        assert used + waiting + refused == delivered
