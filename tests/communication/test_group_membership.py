"""How ranks agree on a process group, and how it ends: without sockets, and groups are only names."""

import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from decentnode.communication.torch_distributed import group_membership
from decentnode.communication.torch_distributed.backend_choice import BackendChoice
from decentnode.communication.torch_distributed.group_membership import GroupMembership
from decentnode.communication.torch_distributed.messages import Capabilities
from decentnode.communication.torch_distributed.process_group import GroupBroken
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
    """Makes names; waits for ranks that are `dead` as long as it may."""

    dead = frozenset()

    def __init__(self, rank):
        self.rank, self.device = rank, torch.device("cpu")

    def open_store(self):
        return "127.0.0.1", 1000 + self.rank

    def make(self, plan, seconds):
        if self.dead & set(plan.members):
            time.sleep(seconds)
            raise GroupBroken("a rank did not come")
        return Name(plan)


class Town:
    """Some ranks that receive each other's notes at once; one that is `deaf` neither sends nor receives."""

    def __init__(self, ranks):
        self.deaf, self.requested = set(), []
        self.memberships = {rank: self._membership(rank) for rank in range(ranks)}

    def _membership(self, rank):
        made = GroupMembership(
            Factory(rank), FACTS, lambda ranks, note: self.post(rank, ranks, note),
            lambda: self.requested.append(rank),
        )  # fmt: skip
        return made

    def post(self, sender, ranks, note):
        for rank in ranks:
            if self.deaf & {sender, rank}:
                continue
            self.memberships[rank].hear(sender, note)

    def forming(self, threads, seconds=5.0, choose=GLOO):
        return {
            rank: threads.submit(membership.form, range(len(self.memberships)), choose, seconds)
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
    assert [(p.members, p.backend, p.port) for p in plans] == 4 * [([0, 1, 2, 3], "gloo", 1000)]
    assert {group.members for group in made.groups()} == {(0, 1, 2, 3)}
    return made


def test_a_rank_that_never_comes_is_named_by_all():
    town = Town(3)
    town.deaf = {2}
    with pytest.raises(StartError, match=r"^no message from ranks \[2\] about the process group within 0 s$"):
        town.form(0.3)


def test_a_rank_that_receives_no_plan_does_not_wait_for_ever():
    town = Town(3)
    town.deaf = {0}
    with pytest.raises(StartError, match=r"^rank 1: no plan for the process group within 0 s$"):
        town.form(0.2)


def test_an_error_of_the_plan_ends_the_start_everywhere():
    town = Town(2)
    with ThreadPoolExecutor(2) as threads:
        forming = town.forming(threads, choose=BackendChoice("nccl", False))
    for one in forming.values():
        with pytest.raises(StartError, match=r"^communication\.backend: nccl: no node is on a GPU$"):
            one.result()


def test_a_request_that_came_too_early_is_repeated(monkeypatch):
    monkeypatch.setattr(group_membership, "REQUEST_INTERVAL", 0.05)
    town = Town(2)
    hear, dropped = town.memberships[0].hear, []

    def drop_first(sender, note):
        if dropped:
            hear(sender, note)
        dropped.append(sender)

    town.memberships[0].hear = drop_first
    assert [plan.members for plan in town.form()] == [[0, 1], [0, 1]]


@pytest.mark.parametrize(("dead", "noticed_by"), [(3, 0), (3, 2), (0, 1)])
@pytest.mark.parametrize("is_planned", [False, True])
def test_a_rank_that_is_lost_while_the_group_is_made_is_not_waited_for(
    dead, noticed_by, is_planned, monkeypatch
):
    monkeypatch.setattr(group_membership, "REQUEST_INTERVAL", 0.1)
    town, began = Town(4), time.monotonic()
    for membership in town.memberships.values():
        membership.group_factory.dead = {dead}
    town.deaf = set() if is_planned else {dead}
    with ThreadPoolExecutor(4) as threads:
        forming = town.forming(threads, 0.8)
        time.sleep(0.1)
        town.deaf = {dead}
        town.memberships[noticed_by].lose([dead])
        plans = [forming[rank].result() for rank in range(4) if rank != dead]
        assert time.monotonic() - began < 0.7
    assert {(tuple(plan.members), plan.backend, plan.reason) for plan in plans} == {
        ((), "", f"rank {dead} is lost")
    }
    assert town.groups() == 4 * [None]


def test_a_rank_that_was_lost_before_is_not_waited_for():
    town = Town(2)
    town.memberships[0].lose([1])
    town.deaf = {1}
    assert town.memberships[0].form([0, 1], GLOO, 5.0).reason == "rank 1 is lost"


@pytest.mark.parametrize("why", ["lost", "slow"])
def test_the_group_ends_for_all_with_the_first_loss_and_each_requests_what_is_missing(town, why, capsys):
    groups = town.groups()
    if why == "lost":
        town.deaf = {3}
        town.memberships[0].lose([3])
        town.memberships[3].lose([0, 1, 2])
    else:
        town.memberships[0].break_up(groups[0], "too slow")
    assert town.groups() == 4 * [None]
    assert all(group.is_broken for group in groups)
    assert sorted(town.requested) == [0, 1, 2, 3]
    for rank in (0, 1, 2):
        town.memberships[rank].lose([3])
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
    town.memberships[1]._facts = Capabilities(False, "", "", True)
    assert [plan.members for plan in town.form()] == 3 * [[0, 2]]
    town.memberships[1].lose([2])
    assert [group and group.members for group in town.groups()] == [(0, 2), None, (0, 2)]
    assert "no process group" not in capsys.readouterr().out
