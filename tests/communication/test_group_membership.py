"""How ranks agree on a process group, and how it ends: without sockets, and groups are only names."""

import gc
import threading
import time
import weakref
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest

from decentnode.communication.torch_distributed.backend_choice import BackendChoice, Capabilities
from decentnode.communication.torch_distributed.group_membership import GroupMembership
from decentnode.errors import StartError

FACTS = Capabilities(True, "", "", True)
GLOO = BackendChoice("gloo", False)


class FakeProcessGroup:
    """What stands for a group."""

    def __init__(self, plan):
        self.members, self.is_broken = tuple(plan.members), False

    def abort(self):
        self.is_broken = True


class FakeFactory:
    """One rank's end of the store of a group; waits for ranks that are `dead` as long as it may."""

    def __init__(self, fake_group, rank, backend_choice):
        self.fake_group, self.rank, self.backend_choice = fake_group, rank, backend_choice
        self.rendezvous = SimpleNamespace(ranks=range(len(fake_group.facts)))

    def plan(self, seconds):
        limit = time.monotonic() + seconds
        while self.fake_group.silent and time.monotonic() < limit:
            time.sleep(0.01)
        if self.fake_group.silent:
            raise StartError(f"rank {self.rank}: {sorted(self.fake_group.silent)} did not arrive")
        if (plan := self.backend_choice(self.fake_group.facts)).error:
            raise StartError(plan.error)
        return plan

    def make(self, plan, seconds):
        if self.fake_group.dead & set(plan.members):
            self.fake_group.is_over.wait(seconds)
            raise StartError("a rank did not come")
        return FakeProcessGroup(plan)


class FakeGroup:
    """Some ranks that receive each other's notes at once; one that is `silent` neither sends nor receives."""

    def __init__(self, ranks):
        self.silent, self.dead, self.requested = set(), set(), []
        self.is_over = threading.Event()
        self.facts = dict.fromkeys(range(ranks), FACTS)
        self.memberships = {rank: self._membership(rank) for rank in range(ranks)}

    def _membership(self, rank):
        return GroupMembership(
            rank, lambda ranks, note: self.post(rank, ranks, note), lambda: self.requested.append(rank)
        )

    def post(self, sender, ranks, note):
        for rank in ranks:
            if not self.silent & {sender, rank}:
                self.memberships[rank].receive(note)

    def forming(self, threads, seconds=5.0, choose=GLOO):
        return {
            rank: threads.submit(membership.form, FakeFactory(self, rank, choose), seconds)
            for rank, membership in self.memberships.items()
        }

    def form(self, seconds=5.0, choose=GLOO):
        with ThreadPoolExecutor(len(self.memberships)) as threads:
            forming = self.forming(threads, seconds, choose)
        return [forming[rank].result() for rank in sorted(forming.keys() - self.silent)]

    def groups(self):
        for membership in self.memberships.values():
            if membership._thread is not None:
                membership._thread.join(10.0)
        return [membership.group for membership in self.memberships.values()]


@pytest.fixture
def fake_group():
    made = FakeGroup(4)
    plans = made.form()
    assert [(p.members, p.backend) for p in plans] == 4 * [([0, 1, 2, 3], "gloo")]
    assert {group.members for group in made.groups()} == {(0, 1, 2, 3)}
    return made


def test_a_start_that_fails_at_one_rank_fails_at_all_with_its_reason():
    """None continues because another one has ended."""
    fake_group = FakeGroup(3)
    fake_group.silent = {2}
    with ThreadPoolExecutor(3) as threads:
        forming = [
            threads.submit(
                fake_group.memberships[rank].form, FakeFactory(fake_group, rank, GLOO), 0.2 + 30 * rank
            )
            for rank in (0, 1)
        ]
    for future in forming:
        with pytest.raises(StartError, match=r"^rank 0: \[2\] did not arrive$"):
            future.result()
    fake_group.silent = set()


def test_a_rank_that_learns_nothing_does_not_wait_for_ever(monkeypatch):
    fake_group, is_over = FakeGroup(2), threading.Event()
    monkeypatch.setattr(
        FakeFactory, "plan", lambda factory, seconds: is_over.wait(5.0) and GLOO(fake_group.facts)
    )
    with pytest.raises(StartError, match=r"^rank 1: no process group within 0 s$"):
        fake_group.memberships[1].form(FakeFactory(fake_group, 1, GLOO), 0.1)
    is_over.set()


def test_an_error_of_the_plan_ends_the_start_everywhere():
    fake_group = FakeGroup(2)
    with ThreadPoolExecutor(2) as threads:
        forming = fake_group.forming(threads, choose=BackendChoice("nccl", False))
    for future in forming.values():
        with pytest.raises(StartError, match=r"^communication\.backend: nccl: no node is on a GPU$"):
            future.result()


@pytest.mark.parametrize(("dead", "noticed_by"), [(3, 0), (3, 2), (0, 1)])
@pytest.mark.parametrize("is_planned", [False, True])
def test_a_rank_that_is_lost_while_the_group_is_made_is_not_waited_for(dead, noticed_by, is_planned):
    fake_group, began = FakeGroup(4), time.monotonic()
    fake_group.dead = {dead}
    fake_group.silent = set() if is_planned else {dead}
    with ThreadPoolExecutor(4) as threads:
        forming = fake_group.forming(threads, 40.0)
        time.sleep(0.1)
        fake_group.silent = {dead}
        fake_group.memberships[noticed_by].note_lost([dead])
        plans = [forming[rank].result() for rank in range(4) if rank != dead]
        assert time.monotonic() - began < 20.0
        # What stands for the dead one ends, too.
        fake_group.memberships[dead].note_lost([noticed_by])
    fake_group.is_over.set()
    assert {(tuple(plan.members), plan.backend, plan.reason) for plan in plans} == {
        ((), "", f"rank {dead} is lost")
    }
    assert fake_group.groups() == 4 * [None]


def test_a_rank_that_was_lost_before_is_not_waited_for():
    fake_group = FakeGroup(2)
    fake_group.memberships[0].note_lost([1])
    fake_group.silent = {1}
    assert fake_group.memberships[0].form(FakeFactory(fake_group, 0, GLOO), 5.0).reason == "rank 1 is lost"


@pytest.mark.parametrize("why", ["lost", "slow"])
def test_the_group_ends_for_all_with_the_first_loss_and_each_requests_what_is_missing(
    fake_group, why, capsys
):
    groups = fake_group.groups()
    if why == "lost":
        fake_group.silent = {3}
        fake_group.memberships[0].note_lost([3])
        fake_group.memberships[3].note_lost([0, 1, 2])
    else:
        fake_group.memberships[0].break_up(groups[0], "too slow")
    assert fake_group.groups() == 4 * [None]
    assert all(group.is_broken for group in groups)
    assert sorted(fake_group.requested) == [0, 1, 2, 3]
    for rank in (0, 1, 2):
        fake_group.memberships[rank].note_lost([3])
        fake_group.memberships[rank].break_up(groups[rank], "again")
    assert capsys.readouterr().out.count("no process group from here on") == 4


def test_a_rank_that_has_finished_neither_ends_the_group_nor_keeps_what_it_did_not_bring(fake_group):
    groups = fake_group.groups()
    fake_group.memberships[2].leave()
    fake_group.memberships[2].break_up(groups[2], "its connections are closed")
    assert fake_group.groups() == groups
    fake_group.memberships[0].break_up(groups[0], "too slow")
    assert groups[2].is_broken and fake_group.memberships[2].group is groups[2]


def test_a_rank_outside_the_group_has_no_part_in_its_end(capsys):
    fake_group = FakeGroup(3)
    fake_group.facts[1] = Capabilities(False, "", "", True)
    assert [plan.members for plan in fake_group.form()] == 3 * [[0, 2]]
    fake_group.memberships[1].note_lost([2])
    assert [group and group.members for group in fake_group.groups()] == [(0, 2), None, (0, 2)]
    assert "no process group" not in capsys.readouterr().out


def test_a_rank_outside_the_group_keeps_the_store_that_the_others_use():
    fake_group = FakeGroup(3)
    fake_group.facts[0] = Capabilities(False, "", "", True)
    factory = FakeFactory(fake_group, 0, GLOO)
    assert fake_group.memberships[0].form(factory, 5.0).members == [1, 2]
    kept = weakref.ref(factory)
    del factory
    gc.collect()
    assert kept() is not None
