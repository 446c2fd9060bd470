"""One gloo group among the threads of a process."""

import contextlib
import gc
import os
import threading
import time
import weakref
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from torch.distributed import HashStore, PrefixStore, TCPStore

from decentnode.communication.torch_distributed import process_group
from decentnode.communication.torch_distributed import torch_groups as collectives
from decentnode.communication.torch_distributed.backend_choice import GroupPlan
from decentnode.communication.torch_distributed.process_group import (
    NCCL_SETTINGS,
    UNUSED_TAG,
    GlooGroup,
    Group,
    GroupBroken,
    GroupFactory,
    NcclGroup,
    Transfer,
    prepare_nccl,
    tag_of,
)
from decentnode.core.timeouts import Timeouts
from decentnode.errors import StartError
from tests.support.processes import free_ports

RANKS = (0, 1, 2)
KEY = (1, 0, 0)


class FakeNccl:
    """What torch has for NCCL, the group and its backend in one: writes down what it is asked for."""

    def __init__(self):
        self.asked, self.lost = [], None

    def _start_coalescing(self, device):
        self.asked.append("start")

    def _end_coalescing(self, device):
        self.asked.append("end")

    def _group_end(self):
        self.asked.append("end")
        raise RuntimeError("NCCL error: in progress")  # as torch says, because this does not wait

    def send(self, buffers, peer, tag):
        self.asked.append(f"send {peer}")
        if peer == self.lost:
            raise RuntimeError("the communicator was aborted")

    def abort(self):
        self.asked.append("abort")


class FakeNcclGroup(NcclGroup):
    """Rank 0's end of a group, without a GPU."""

    def __init__(self, nccl):
        Group.__init__(self, GroupPlan(list(RANKS), "nccl", ""), 0)
        self.device, self._group, self._backend = torch.device("cpu"), nccl, nccl
        self._launching = threading.Lock()


@pytest.fixture
def nccl(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device", lambda device: contextlib.nullcontext())
    return FakeNccl()


def gloo_groups():
    """One member's end for each rank, all connected."""
    limit, port = timedelta(seconds=20), free_ports(1)
    # A client for each: whoever waits for a key keeps others from using the same one.
    stores = [TCPStore("127.0.0.1", port, None, rank == 0, limit, wait_for_workers=False) for rank in RANKS]

    def member(rank):
        plan, store = GroupPlan(list(RANKS), "gloo", ""), PrefixStore("test", stores[rank])
        group = GlooGroup(plan, rank, store, "127.0.0.1", 20.0)
        group.warm_up(RANKS, 10.0)
        return group

    with ThreadPoolExecutor(len(RANKS)) as threads:
        return list(threads.map(member, RANKS))


def receive(group, peer):
    [pending] = group.post(KEY, [Transfer(peer, torch.empty(8, dtype=torch.uint8), False)])
    return pending.work


def test_giving_a_gloo_group_up_wakes_who_waits_although_a_connection_is_closed_already():
    groups = gloo_groups()
    groups[0].abort()
    with pytest.raises(GroupBroken):
        groups[1].wait(receive(groups[1], 0), 5.0)  # until that has been noticed
    waits, began = receive(groups[1], 2), time.monotonic()
    threading.Timer(0.2, groups[1].abort).start()
    with pytest.raises(GroupBroken):
        groups[1].wait(waits, 40.0)
    assert time.monotonic() - began < 20.0


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


def sending(*peers):
    return [Transfer(peer, torch.empty(8, dtype=torch.uint8), True) for peer in peers]


def test_a_launch_that_fails_half_way_leaves_no_group_of_nccl_open(nccl):
    group = FakeNcclGroup(nccl)
    nccl.lost = 2
    with pytest.raises(GroupBroken, match=r"^the communicator was aborted$"):
        group.post(KEY, sending(1, 2))
    assert nccl.asked == ["start", "send 1", "send 2", "end"]


def test_a_launch_that_failed_is_the_last_one_of_its_group(nccl):
    group = FakeNcclGroup(nccl)
    nccl.lost = 1
    for _ in range(2):
        with pytest.raises(GroupBroken):
            group.post(KEY, sending(1))
    assert nccl.asked == ["start", "send 1", "end"]


@pytest.mark.slow
def test_nccl_is_not_aborted_while_a_launch_is_queued_but_while_it_waits(nccl, monkeypatch):
    group = FakeNcclGroup(nccl)
    giving_up = threading.Thread(target=group.abort)

    def send(buffers, peer, tag):
        giving_up.start()
        giving_up.join(0.1)
        nccl.asked.append("send")

    nccl.send = send
    nccl._end_coalescing = lambda device: giving_up.join(10.0) or nccl.asked.append("end")
    group.post(KEY, sending(1))
    assert nccl.asked == ["start", "send", "abort", "end"]


def waits_for(work, group, seconds=5.0):
    """What a node's thread gets that waits for one launch."""
    return group.wait(work, seconds)


def test_nccl_is_asked_nothing_any_more_once_it_is_ended(nccl):
    """In torch the question would wait for the giving up, and all threads of Python with it."""
    group, asked = FakeNcclGroup(nccl), []

    def is_completed():
        asked.append(group.is_broken)
        group.is_broken = True
        return False

    with pytest.raises(GroupBroken, match=r"^NCCL failed$"):
        waits_for(SimpleNamespace(is_completed=is_completed), group)
    assert asked == [False]


def test_nccl_is_not_asked_while_it_is_being_ended(nccl):
    group, is_over = FakeNcclGroup(nccl), threading.Event()
    nccl.abort = lambda: is_over.wait(10.0)
    giving_up = threading.Thread(target=group._abort)
    giving_up.start()
    assert not group.completes(SimpleNamespace())
    is_over.set()
    giving_up.join(10.0)


def test_whoever_waits_does_not_free_what_another_thread_is_queueing_for(nccl):
    """Torch gives NCCL up in `wait` when an operation has failed."""
    group = FakeNcclGroup(nccl)

    def fail():
        nccl.asked.append("wait")
        raise RuntimeError("the peer closed the connection")

    work = SimpleNamespace(is_completed=lambda: True, wait=fail)
    with ThreadPoolExecutor(1) as thread:

        def send(buffers, peer, tag):
            nccl.waiting = thread.submit(waits_for, work, group)
            time.sleep(0.2)
            nccl.asked.append("send")

        nccl.send = send
        group.post(KEY, sending(1))
        with pytest.raises(GroupBroken, match=r"^the peer closed the connection$"):
            nccl.waiting.result(5.0)
    assert nccl.asked == ["start", "send", "end", "wait"]
    assert group.is_broken


def test_nccl_that_hangs_when_it_is_ended_is_left_alone(nccl, monkeypatch):
    monkeypatch.setattr(Timeouts, "nccl_abort", 0.2)
    is_over, began = threading.Event(), time.monotonic()
    nccl.abort = lambda: is_over.wait(20.0)
    FakeNcclGroup(nccl).abort()
    assert time.monotonic() - began < 5.0
    is_over.set()


def test_an_nccl_group_that_was_ended_outlasts_whoever_used_it(nccl):
    given_up = weakref.ref(group := FakeNcclGroup(nccl))
    group.abort()
    del group
    gc.collect()
    assert given_up() is not None


def test_a_group_that_does_not_warm_up_is_ended(nccl, monkeypatch):
    group = FakeNcclGroup(nccl)
    monkeypatch.setattr(group, "_wait_for_all", lambda seconds: nccl.send([], nccl.lost, 0))
    monkeypatch.setattr(process_group, "NcclGroup", lambda *args: group)
    group_factory = GroupFactory(SimpleNamespace(rank=0), None, None, torch.device("cpu"))
    group_factory._store = HashStore()
    with pytest.raises(StartError, match=r"^rank 0: .* within 1 s: the communicator was aborted$"):
        group_factory.make(GroupPlan(list(RANKS), "nccl", ""), 1.0)
    assert nccl.asked[-1] == "abort"


def test_what_torch_would_sleep_for_is_off_unless_the_user_wants_it(monkeypatch):
    monkeypatch.setattr(os, "environ", {"TORCH_NCCL_DUMP_ON_TIMEOUT": "1"})
    prepare_nccl(0, shares_gpu=False)
    assert os.environ == NCCL_SETTINGS | {"TORCH_NCCL_DUMP_ON_TIMEOUT": "1"}
    assert os.environ["TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC"] == "0"


def test_the_watchdog_of_the_baseline_does_not_sleep_before_it_ends_the_process(monkeypatch):
    when_made = []

    class Backend:
        Options = SimpleNamespace

        def __init__(self, store, rank, nodes, options):
            when_made.append(dict(os.environ))

    monkeypatch.setattr(os, "environ", {"TORCH_NCCL_DUMP_ON_TIMEOUT": "1"})
    monkeypatch.setattr(dist, "ProcessGroupNCCL", Backend, raising=False)
    collectives._nccl(None, SimpleNamespace(rank=0, ranks=(0, 1)), timedelta(seconds=5))
    assert when_made == [{"TORCH_NCCL_DUMP_ON_TIMEOUT": "1", "TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC": "0"}]


@pytest.mark.parametrize(("peers", "connected"), [(frozenset({2, 7}), [2]), (None, [1, 2])])
def test_a_group_is_warmed_up_with_the_members_that_may_exchange(nccl, monkeypatch, peers, connected):
    group, met = FakeNcclGroup(nccl), []
    monkeypatch.setattr(group, "_wait_for_all", lambda seconds: None)
    monkeypatch.setattr(group, "post", lambda key, moved: met.extend(t.peer for t in moved if t.sends) or [])
    group.warm_up(peers, 1.0)
    assert met == connected
