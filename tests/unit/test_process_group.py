"""One gloo group among the threads of a process."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
import torch
from torch.distributed import PrefixStore, TCPStore

from decentnode.communication.group_notes import Plan
from decentnode.communication.process_group import UNUSED_TAG, GlooGroup, GroupBroken, Transfer, tag_of
from tests.contract.troupe import free_ports

RANKS = (0, 1, 2)
KEY = (1, 0, 0)


def gloo_groups():
    """One member's end for each rank, all connected."""
    limit, port = timedelta(seconds=20), free_ports(1)
    # A client for each: whoever waits for a key keeps others from using the same one.
    stores = [TCPStore("127.0.0.1", port, None, rank == 0, limit, wait_for_workers=False) for rank in RANKS]

    def member(rank):
        plan, store = Plan(1, list(RANKS), None, "gloo", ""), PrefixStore("test", stores[rank])
        group = GlooGroup(plan, rank, store, "127.0.0.1", 20.0)
        group.warm_up(RANKS, 10.0)
        return group

    with ThreadPoolExecutor(len(RANKS)) as threads:
        return list(threads.map(member, RANKS))


def receive(group, peer):
    [pending] = group.post(KEY, [Transfer(peer, torch.empty(8, dtype=torch.uint8), False)])
    return pending


def test_giving_a_gloo_group_up_wakes_who_waits_although_a_connection_is_closed_already():
    groups = gloo_groups()
    groups[0].abort()
    with pytest.raises(GroupBroken):
        receive(groups[1], 0).wait(5.0)  # until that has been noticed
    waits, began = receive(groups[1], 2), time.monotonic()
    threading.Timer(0.2, groups[1].abort).start()
    with pytest.raises(GroupBroken):
        waits.wait(8.0)
    assert time.monotonic() - began < 4.0


def test_exchanges_that_can_be_under_way_together_have_tags_of_their_own():
    parts = (*range(300), 1000, 65535)
    for round in (0, 7, 5000):
        keys = [(round + i, phase, part) for i in range(3) for phase in (0, 1, 255) for part in parts]
        tags = {tag_of(key) for key in keys}
        assert len(tags) == len(keys)
        assert min(tags) >= 0 and max(tags) < UNUSED_TAG


def test_tags_of_the_same_part_do_not_come_again_soon():
    rounds = range(100_000)
    assert len({tag_of((round, 0, 3)) for round in rounds}) == len(rounds)
