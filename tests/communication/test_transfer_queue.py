"""What a transfer queue gives to a group, and in which order: the group only writes it down."""

import torch

from decentnode.communication.torch_distributed.messages import Size
from decentnode.communication.torch_distributed.transfers import GroupExchange, TransferQueue

SIZES = {0: Size(100, 1), 1: Size(200, 2), 2: Size(300, 3)}
"""By part."""
SOONER, LATER = 0, 2
"""Peers, of which the second may say late how much it sends."""


class Journal:
    """Stands for a group; has the exchanges in the order in which they were posted."""

    device = torch.device("cpu")

    def __init__(self, gathers):
        self.gathers, self.is_broken, self.posted = gathers, False, []

    def post(self, key, transfers):
        self.posted += [(key, t.peer, "send" if t.sends else "receive", t.buffer.numel()) for t in transfers]
        return []

    def with_peer(self, peer):
        return [entry for entry in self.posted if entry[1] == peer]


def begun(transfer_queue, group, key, is_known=True):
    """Begins an exchange with both peers."""
    size = SIZES[key[2]]
    payload = torch.zeros(size.length, dtype=torch.uint8)
    sizes = {SOONER: size, LATER: size if is_known else None}
    transfer_queue.begin(GroupExchange(group, key, {SOONER: payload, LATER: payload}, sizes, 5.0))


def posted(gathers, is_late):
    transfer_queue, group = TransferQueue(None), Journal(gathers)
    begun(transfer_queue, group, (5, 0, 0))
    begun(transfer_queue, group, (5, 0, 1), is_known=not is_late)
    begun(transfer_queue, group, (5, 0, 2), is_known=not is_late)
    begun(transfer_queue, group, (6, 0, 0))
    if is_late:
        transfer_queue.receive_size(LATER, (5, 0, 2), SIZES[2])
        transfer_queue.receive_size(LATER, (5, 0, 1), SIZES[1])
    return group


def test_a_group_that_gathers_gets_exchanges_in_the_same_order_whoever_is_late():
    in_time, late = posted(True, is_late=False), posted(True, is_late=True)
    assert late.posted == in_time.posted
    assert [key for key, *_ in late.with_peer(SOONER)[::2]] == [(5, 0, 0), (5, 0, 1), (5, 0, 2), (6, 0, 0)]


def test_elsewhere_only_what_is_late_is_waited_for():
    late = posted(False, is_late=True)
    assert late.with_peer(SOONER) == posted(False, is_late=False).with_peer(SOONER)
    assert late.posted[-2:] == [((5, 0, 2), LATER, "receive", 300), ((5, 0, 1), LATER, "receive", 200)]


def test_what_is_held_back_ends_with_its_group():
    transfer_queue, group = TransferQueue(None), Journal(True)
    begun(transfer_queue, group, (5, 0, 0), is_known=False)
    assert group.posted == [] and transfer_queue.awaits(SOONER)
    transfer_queue.clear()
    assert not transfer_queue.awaits(SOONER)
