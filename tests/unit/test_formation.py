"""How ranks agree on a process group and on the next one: without sockets, and groups are only names."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest
import torch

from decentnode.communication.torch_distributed.backend_choice import BackendChoice
from decentnode.communication.torch_distributed.group_membership import GroupMembership
from decentnode.communication.torch_distributed.messages import Capabilities, GroupPlan, JoinRequest
from decentnode.communication.torch_distributed.process_group import GroupBroken
from decentnode.errors import StartError

FACTS = Capabilities(True, "", "", True)


class Name:
    """What stands for a group."""

    def __init__(self, plan):
        self.generation, self.members, self.is_broken = plan.generation, tuple(plan.members), False

    def abort(self):
        self.is_broken = True


class Workshop:
    """Makes names; fails as often as it is told to, and waits for who is `dead` as long as it may."""

    dead = frozenset()

    def __init__(self, rank):
        self.rank, self.failures, self.device = rank, 0, torch.device("cpu")

    def open_store(self):
        return "127.0.0.1", 1000 + self.rank

    def make(self, plan, seconds):
        if self.failures:
            self.failures -= 1
            raise GroupBroken("not this time")
        if self.dead & set(plan.members):
            time.sleep(seconds)
            raise GroupBroken("somebody did not come")
        return Name(plan)


class Town:
    """Some ranks that hear each other at once; who is `deaf` neither hears nor speaks."""

    def __init__(self, ranks, patience=0.3):
        self.deaf = set()
        self.formations = {rank: self._formation(rank, patience) for rank in range(ranks)}

    def _formation(self, rank, patience):
        return GroupMembership(
            Workshop(rank), FACTS, lambda ranks, note: self.post(rank, ranks, note), patience
        )

    def post(self, sender, ranks, note):
        for rank in ranks:
            if not self.deaf & {sender, rank}:
                formation = self.formations[rank]
                hear = {JoinRequest: formation.hear_joining, GroupPlan: formation.hear_plan}[type(note)]
                hear(sender, note)

    def form(self, seconds=5.0):
        speaking = [f for rank, f in self.formations.items() if rank not in self.deaf]
        with ThreadPoolExecutor(len(speaking)) as threads:
            forming = [
                threads.submit(f.form_first, self.formations.keys(), BackendChoice("gloo", False), seconds)
                for f in speaking
            ]
        return [one.result() for one in forming]

    def groups(self, *ranks):
        """The members of the group that carries what comes next at these ranks, once it is made."""
        for rank in ranks:
            thread = self.formations[rank]._thread
            if thread is not None:
                thread.join(10.0)
        return {self.formations[rank].group and self.formations[rank].group.members for rank in ranks}


@pytest.fixture
def town():
    made = Town(4)
    plans = made.form()
    assert [(p.members, p.backend, p.port, p.after) for p in plans] == 4 * [
        ([0, 1, 2, 3], "gloo", 1000, None)
    ]
    return made


def test_a_rank_that_never_comes_is_named_by_all():
    town = Town(3)
    town.deaf = {2}
    with pytest.raises(StartError, match=r"^no word from ranks \[2\] about the process group within 0 s$"):
        town.form(0.3)


def test_who_hears_of_no_plan_does_not_wait_for_ever():
    town = Town(3)
    town.deaf = {0}
    with pytest.raises(StartError, match=r"^rank 1: no plan for the process group within 0 s$"):
        town.form(0.2)


def test_an_error_of_the_plan_ends_the_start_everywhere():
    town = Town(2)
    chooser = BackendChoice("nccl", False)
    with ThreadPoolExecutor(2) as threads:
        forming = [threads.submit(f.form_first, [0, 1], chooser, 5.0) for f in town.formations.values()]
    for one in forming:
        with pytest.raises(StartError, match=r"^communication\.backend: nccl: no node is on a GPU$"):
            one.result()


@pytest.mark.parametrize(("dead", "noticed_by"), [(3, [0]), (3, [2]), (0, [1]), (0, [2, 3]), (2, [0, 1, 3])])
def test_who_ends_while_the_first_group_is_made_is_not_waited_for(dead, noticed_by):
    town, began = Town(4), time.monotonic()
    for formation in town.formations.values():
        formation.workshop.dead = {dead}
    with ThreadPoolExecutor(4) as threads:
        forming = {
            rank: threads.submit(formation.form_first, range(4), BackendChoice("gloo", False), 3.0)
            for rank, formation in town.formations.items()
        }
        time.sleep(0.5)
        town.deaf = {dead}
        for rank in noticed_by:
            town.formations[rank].lose([dead])
        plans = [forming[rank].result() for rank in range(4) if rank != dead]
        assert time.monotonic() - began < 2.5, "no longer than it takes to agree anew"
        with pytest.raises(StartError, match=r"could not be made within 3 s: somebody did not come$"):
            forming[dead].result()
    alive = tuple(rank for rank in range(4) if rank != dead)
    assert {tuple(plan.members) for plan in plans} == {alive} == town.groups(*alive)


def test_the_next_group_begins_after_the_furthest_exchange_that_anybody_has_begun(town):
    for rank, round in {0: 4, 1: 5, 2: 5, 3: 4}.items():
        assert town.formations[rank].enter((round, 0, 0)) is not None
    for rank in (0, 1, 2):
        town.formations[rank].lose([3])
    assert town.groups(0, 1, 2) == {(0, 1, 2)}
    assert [town.formations[rank].plan.after for rank in (0, 1, 2)] == 3 * [(5, 0, 0)]
    assert town.formations[0].enter((5, 0, 0)) is None
    assert {town.formations[rank].enter((5, 1, 0)) for rank in (0, 1, 2)} == {
        town.formations[rank].group for rank in (0, 1, 2)
    }


def test_whoever_notices_tells_the_others_and_the_next_rank_leads(town):
    town.deaf = {0}
    town.formations[2].lose([0])
    assert town.groups(2, 1, 3) == {(1, 2, 3)}
    assert town.formations[3].plan.port == 1001


def test_a_silent_rank_is_left_out_and_told_so_when_it_speaks_again(town):
    town.deaf = {1}
    old = town.formations[1].group
    town.formations[3].break_up(town.formations[3].group, "too slow")
    assert town.groups(3, 0, 2) == {(0, 2, 3)}
    town.deaf = set()
    town.formations[1].break_up(old, "closed")
    assert town.groups(1) == {None}
    assert town.groups(0, 2, 3) == {(0, 2, 3)}
    assert town.formations[1].enter((9, 0, 0)) is None


def test_a_leader_that_falls_silent_is_replaced(town):
    town.formations[0].hear_joining = lambda sender, note: None
    town.deaf = {0}
    town.formations[1].break_up(town.formations[1].group, "too slow")
    assert town.groups(1, 2, 3) == {(1, 2, 3)}


def test_a_group_that_cannot_be_made_is_tried_again():
    town = Town(4, patience=10.0)
    town.form()
    town.formations[1].workshop.failures = 2
    town.formations[2].break_up(town.formations[2].group, "a wire fell out")
    limit = time.monotonic() + 20.0
    while time.monotonic() < limit:
        groups = [formation.group for formation in town.formations.values()]
        if all(groups) and {group.generation for group in groups} == {4}:
            break
        time.sleep(0.01)
    assert {group.members for group in groups} == {(0, 1, 2, 3)}


def test_a_plan_that_is_overtaken_while_it_is_drawn_up_is_followed_by_another():
    """Another rank gives up the same group in that moment."""
    town = Town(3, patience=10.0)
    town.form()
    leader, overtaken = town.formations[0], []
    open_store = leader.workshop.open_store

    def open_late():
        if not overtaken:
            overtaken.append(leader._generation)
            for rank in (1, 2):
                leader.hear_joining(rank, JoinRequest(overtaken[0] + 1, None, [], FACTS))
        return open_store()

    leader.workshop.open_store = open_late
    leader.break_up(leader.group, "a wire fell out")
    assert town.groups(0) == {(0, 1, 2)}
    assert leader.group.generation == overtaken[0] + 1


@pytest.mark.parametrize("patience", [0.3, 8.0])
def test_who_falls_silent_while_the_next_group_is_made_is_not_waited_for(patience):
    """Either nobody notices in time, and the backend waits longer than it may; or somebody does."""
    town, is_over = Town(4, patience), threading.Event()
    town.form()
    for formation in town.formations.values():
        formation.workshop.make = partial(make_without, {3}, is_over)
    town.formations[0].break_up(town.formations[0].group, "a wire fell out")
    time.sleep(1.5)  # all have a plan by then, and rank 3 is in it
    town.deaf, began = {3}, time.monotonic()
    if patience > 1.0:
        town.formations[1].lose([3])
    assert town.groups(0, 1, 2) == {(0, 1, 2)}
    assert time.monotonic() - began < 5.0
    is_over.set()


def make_without(dead, is_over, plan, seconds):
    """As `Workshop.make`, of a backend that takes no notice of how long it may wait for the dead."""
    if dead & set(plan.members):
        is_over.wait(30.0)
        raise GroupBroken("somebody did not come")
    return Name(plan)


def test_nothing_is_begun_while_a_group_is_made(town):
    formation = town.formations[0]
    formation.enter((1, 0, 0))
    town.deaf = {1, 2, 3}
    formation.break_up(formation.group, "too slow")
    begun = threading.Thread(target=formation.enter, args=((2, 0, 0),))
    begun.start()
    begun.join(0.1)
    assert begun.is_alive()
    begun.join(5.0)
    assert not begun.is_alive() and formation.group is None


def test_who_has_ended_is_not_waited_for(town):
    town.formations[2].leave()
    town.formations[0].break_up(town.formations[0].group, "too slow")
    assert town.groups(0, 1, 3) == {(0, 1, 3)}
