"""Memory in which nodes introduce themselves, shared with the processes forked after it was made."""

import os

import pytest

from decentnode.communication.launcher_link.handshakes import MOST_BYTES, HandshakeBoard


def test_what_was_put_is_reported_and_nothing_else():
    slots = HandshakeBoard(5)
    assert slots.contents() == {}
    slots.fill({3: b"three"})
    slots.fill({0: bytes(MOST_BYTES)})
    slots.fill({1: b""})
    assert slots.contents() == {0: bytes(MOST_BYTES), 3: b"three"}
    slots.fill({3: b"3", 4: b"four"})
    assert slots.contents() == {0: bytes(MOST_BYTES), 3: b"3", 4: b"four"}


def test_one_that_is_too_long_is_refused_and_leaves_its_neighbors_alone():
    slots = HandshakeBoard(2)
    slots.fill({1: b"one"})
    with pytest.raises(ValueError, match="at most 64 bytes, not 65"):
        slots.fill({0: bytes(MOST_BYTES + 1)})
    assert slots.contents() == {1: b"one"}


@pytest.mark.parametrize("rank", [-1, 2])
def test_a_rank_that_is_not_there_overwrites_nobody(rank):
    slots = HandshakeBoard(2)
    slots.fill({1: b"one"})
    with pytest.raises(ValueError, match=f"there is no rank {rank} to introduce"):
        slots.fill({rank: b"another key"})
    assert slots.contents() == {1: b"one"}


def test_both_sides_of_a_fork_see_it():
    slots = HandshakeBoard(2)
    slots.fill({0: b"parent"})
    pid = os.fork()
    if pid == 0:
        slots.fill({1: b"child"})
        os._exit(0 if slots.contents() == {0: b"parent", 1: b"child"} else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert slots.contents() == {0: b"parent", 1: b"child"}
