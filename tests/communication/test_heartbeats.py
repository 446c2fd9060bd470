"""Where nodes are, seen by whoever shares the memory; and the round that is the last."""

import asyncio
import os

from decentnode.communication.launcher_link.heartbeats import (
    NO_LAST_ROUND,
    UNDECIDED,
    Activity,
    HeartbeatBoard,
    NodeProgress,
)
from decentnode.core.clock import Clock
from decentnode.node.round_scheduler import RoundScheduler


def test_another_process_sees_where_a_node_is():
    heartbeats = HeartbeatBoard([3, 7])
    child = os.fork()
    if child == 0:
        heartbeats.of(7).mark(12, Activity.RECEIVE)
        heartbeats.of(7).beat()
        os._exit(0)
    os.waitpid(child, 0)
    seen = heartbeats.of(7).read()
    assert (seen.round, seen.activity, seen.marks) == (12, Activity.RECEIVE, 3)
    assert heartbeats.of(3).read()[:2] == (-1, Activity.START)
    assert seen.since >= heartbeats.of(3).read().since


def test_a_run_has_begun_when_its_last_node_begins_its_first_round():
    heartbeats = HeartbeatBoard([3, 7])
    assert heartbeats.last_to_begin == 0.0
    heartbeats.of(3).mark(0, Activity.BEGIN)
    first = heartbeats.of(3).read().since
    assert heartbeats.last_to_begin == first
    heartbeats.of(7).mark(0, Activity.BEGIN)
    last = heartbeats.of(7).read().since
    for round in (1, 2):
        heartbeats.of(3).mark(round, Activity.BEGIN)
    assert first < heartbeats.last_to_begin == last


def test_progress_is_read_once_and_only_of_nodes_that_have_done_a_round_since():
    heartbeats = HeartbeatBoard([3, 7, 9])
    assert heartbeats.new_progress() == {}
    first, second = NodeProgress(0, 0.5, 1 << 40, None), NodeProgress(4, None, 7, 1.25, 133.5)
    heartbeats.of(3).record_progress(first)
    heartbeats.of(9).record_progress(second)
    assert heartbeats.new_progress() == {3: first, 9: second}
    assert heartbeats.new_progress() == {}
    heartbeats.of(7).mark(1, Activity.TRAIN)
    heartbeats.of(9).go_back_to(2)
    assert {rank: done.round for rank, done in heartbeats.new_progress().items()} == {9: 1}


class Alone:
    """The endpoint of a node that may learn that its peers are ahead."""

    rank, ahead, told = 0, 0, None

    def skip_to(self, round):
        self.told = round


def upcoming(course, round):
    return asyncio.run(course.after(round))


def test_rounds_follow_each_other_until_the_last():
    course = RoundScheduler(3, Alone(), HeartbeatBoard([0]), Clock())
    assert [upcoming(course, round) for round in (-1, 0, 1, 2)] == [0, 1, 2, None]
    assert not course.is_cut_short


def test_a_run_that_is_to_stop_has_an_earlier_last_round():
    heartbeats = HeartbeatBoard([0])
    course = RoundScheduler(10, Alone(), heartbeats, Clock())
    heartbeats.last_round = 4
    assert upcoming(course, 3) == 4
    assert upcoming(course, 4) is None
    assert course.is_cut_short


def test_no_round_begins_while_the_last_one_is_undecided():
    heartbeats = HeartbeatBoard([0])
    course = RoundScheduler(10, Alone(), heartbeats, Clock())

    async def decide_later():
        waiting = asyncio.create_task(course.after(5))
        await asyncio.sleep(0.05)
        assert not waiting.done()
        assert heartbeats.of(0).read()[:2] == (6, Activity.BEGIN)  # announced, so it counts
        heartbeats.last_round = NO_LAST_ROUND
        return await waiting

    heartbeats.last_round = UNDECIDED
    assert asyncio.run(decide_later()) == 6


def test_a_node_whose_peers_are_far_ahead_continues_there_and_says_so():
    endpoint = Alone()
    course = RoundScheduler(100, endpoint, HeartbeatBoard([0]), Clock())
    assert upcoming(course, 4) == 5
    endpoint.ahead = 40
    assert upcoming(course, 5) == endpoint.told == 40
    endpoint.told = None
    assert upcoming(course, 40) == 41
    assert endpoint.told is None


def test_a_node_that_rejoins_begins_where_that_was_agreed():
    endpoint = Alone()
    course = RoundScheduler(100, endpoint, HeartbeatBoard([0]), Clock())
    course.start_at(17)
    assert [upcoming(course, round) for round in (-1, 11, 17)] == [17, 17, 18]
    assert endpoint.told is None
