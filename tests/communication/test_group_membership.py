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


class Name:
    """What stands for a group."""

    def __init__(self, plan):
        self.members, self.is_broken = tuple(plan.members), False

    def abort(self):
        self.is_broken = True


class Factory:
    """One rank's end of the store of a town; waits for ranks that are `dead` as long as it may."""

    def __init__(self, town, rank, backend_choice):
        self.town, self.rank, self.backend_choice = town, rank, backend_choice
        self.rendezvous = SimpleNamespace(ranks=range(len(town.facts)))

    def plan(self, seconds):
        limit = time.monotonic() + seconds
        while self.town.deaf and time.monotonic() < limit:
            time.sleep(0.01)
        if self.town.deaf:
            raise StartError(f"rank {self.rank}: {sorted(self.town.deaf)} did not arrive")
        if (plan := self.backend_choice(self.town.facts)).error:
            raise StartError(plan.error)
        return plan

    def make(self, plan, seconds):
        if self.town.dead & set(plan.members):
            time.sleep(seconds)
            raise StartError("a rank did not come")
        return Name(plan)


class Town:
    """Some ranks that receive each other's notes at once; one that is `deaf` neither sends nor receives."""

    def __init__(self, ranks):
        self.deaf, self.dead, self.requested = set(), set(), []
        self.facts = dict.fromkeys(range(ranks), FACTS)
        self.memberships = {rank: self._membership(rank) for rank in range(ranks)}

    def _membership(self, rank):
        return GroupMembership(
            rank, lambda ranks, note: self.post(rank, ranks, note), lambda: self.requested.append(rank)
        )

    def post(self, sender, ranks, note):
        for rank in ranks:
            if not self.deaf & {sender, rank}:
                self.memberships[rank].receive(note)

    def forming(self, threads, seconds=5.0, choose=GLOO):
        return {
            rank: threads.submit(membership.form, Factory(self, rank, choose), seconds)
            for rank, membership in self.memberships.items()
        }

    def form(self, seconds=5.0, choose=GLOO):
        with ThreadPoolExecutor(len(self.memberships)) as threads:
            forming = self.forming(threads, seconds, choose)
        return [forming[rank].result() for rank in sorted(forming.keys() - self.deaf)]

    def groups(self):
        for membership in self.memberships.values():
            if membership._thread is not None:
                membership._thread.join(10.0)
        return [membership.group for membership in self.memberships.values()]


@pytest.fixture
def town():
    made = Town(4)
    plans = made.form()
    assert [(p.members, p.backend) for p in plans] == 4 * [([0, 1, 2, 3], "gloo")]
    assert {group.members for group in made.groups()} == {(0, 1, 2, 3)}
    return made


def test_a_start_that_fails_at_one_rank_fails_at_all_with_its_reason():
    """None continues because another one has ended."""
    town = Town(3)
    town.deaf = {2}
    with ThreadPoolExecutor(3) as threads:
        forming = [
            threads.submit(town.memberships[rank].form, Factory(town, rank, GLOO), 0.2 + rank)
            for rank in (0, 1)
        ]
    for one in forming:
        with pytest.raises(StartError, match=r"^rank 0: \[2\] did not arrive$"):
            one.result()


def test_a_rank_that_learns_nothing_does_not_wait_for_ever(monkeypatch):
    town, is_over = Town(2), threading.Event()
    monkeypatch.setattr(Factory, "plan", lambda factory, seconds: is_over.wait(5.0) and GLOO(town.facts))
    with pytest.raises(StartError, match=r"^rank 1: no process group within 0 s$"):
        town.memberships[1].form(Factory(town, 1, GLOO), 0.1)
    is_over.set()


def test_an_error_of_the_plan_ends_the_start_everywhere():
    town = Town(2)
    with ThreadPoolExecutor(2) as threads:
        forming = town.forming(threads, choose=BackendChoice("nccl", False))
    for one in forming.values():
        with pytest.raises(StartError, match=r"^communication\.backend: nccl: no node is on a GPU$"):
            one.result()


@pytest.mark.parametrize(("dead", "noticed_by"), [(3, 0), (3, 2), (0, 1)])
@pytest.mark.parametrize("is_planned", [False, True])
def test_a_rank_that_is_lost_while_the_group_is_made_is_not_waited_for(dead, noticed_by, is_planned):
    town, began = Town(4), time.monotonic()
    town.dead = {dead}
    town.deaf = set() if is_planned else {dead}
    with ThreadPoolExecutor(4) as threads:
        forming = town.forming(threads, 0.8)
        time.sleep(0.1)
        town.deaf = {dead}
        town.memberships[noticed_by].note_lost([dead])
        plans = [forming[rank].result() for rank in range(4) if rank != dead]
        assert time.monotonic() - began < 0.7
    assert {(tuple(plan.members), plan.backend, plan.reason) for plan in plans} == {
        ((), "", f"rank {dead} is lost")
    }
    assert town.groups() == 4 * [None]


def test_a_rank_that_was_lost_before_is_not_waited_for():
    town = Town(2)
    town.memberships[0].note_lost([1])
    town.deaf = {1}
    assert town.memberships[0].form(Factory(town, 0, GLOO), 5.0).reason == "rank 1 is lost"


@pytest.mark.parametrize("why", ["lost", "slow"])
def test_the_group_ends_for_all_with_the_first_loss_and_each_requests_what_is_missing(town, why, capsys):
    groups = town.groups()
    if why == "lost":
        town.deaf = {3}
        town.memberships[0].note_lost([3])
        town.memberships[3].note_lost([0, 1, 2])
    else:
        town.memberships[0].break_up(groups[0], "too slow")
    assert town.groups() == 4 * [None]
    assert all(group.is_broken for group in groups)
    assert sorted(town.requested) == [0, 1, 2, 3]
    for rank in (0, 1, 2):
        town.memberships[rank].note_lost([3])
        town.memberships[rank].break_up(groups[rank], "again")
    assert capsys.readouterr().out.count("no process group from here on") == 4


def test_a_rank_that_has_finished_neither_ends_the_group_nor_keeps_what_it_did_not_bring(town):
    groups = town.groups()
    town.memberships[2].leave()
    town.memberships[2].break_up(groups[2], "its connections are closed")
    assert town.groups() == groups
    town.memberships[0].break_up(groups[0], "too slow")
    assert groups[2].is_broken and town.memberships[2].group is groups[2]


def test_a_rank_outside_the_group_has_no_part_in_its_end(capsys):
    town = Town(3)
    town.facts[1] = Capabilities(False, "", "", True)
    assert [plan.members for plan in town.form()] == 3 * [[0, 2]]
    town.memberships[1].note_lost([2])
    assert [group and group.members for group in town.groups()] == [(0, 2), None, (0, 2)]
    assert "no process group" not in capsys.readouterr().out


def test_a_rank_outside_the_group_keeps_the_store_that_the_others_use():
    town = Town(3)
    town.facts[0] = Capabilities(False, "", "", True)
    factory = Factory(town, 0, GLOO)
    assert town.memberships[0].form(factory, 5.0).members == [1, 2]
    kept = weakref.ref(factory)
    del factory
    gc.collect()
    assert kept() is not None
