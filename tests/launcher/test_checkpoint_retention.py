"""Which checkpoints stay, and which round all ranks have."""

import errno
import os

import pytest

from decentnode.errors import BadInput
from decentnode.launcher.cluster.agreement import agreed, newest_of_all
from decentnode.launcher.recovery.checkpoint_retention import CheckpointRetention
from decentnode.launcher.state.messages import Join
from decentnode.mapping.base import Linear, Machine
from decentnode.node.checkpoint import store as checkpoint
from decentnode.node.checkpoint.store import RunStamp
from tests.support import checkpoints

STAMP = RunStamp(1, 0, "")


def kept(directory, rank):
    return checkpoint.rounds(directory, rank)


def save(directory, found, rank, *rounds):
    for round in rounds:
        checkpoints.save(directory, rank, round, {"round": round}, STAMP)
        found.note(rank, round)


def test_what_a_slower_rank_may_need_stays_and_one_before_it(tmp_path):
    retention = CheckpointRetention(tmp_path, range(2), range(2))
    save(tmp_path, retention, 0, 0, 1, 2, 3, 4)
    assert not retention.tend(lost=[])
    save(tmp_path, retention, 1, 0, 1, 2)
    assert retention.tend(lost=[])
    assert (kept(tmp_path, 0), kept(tmp_path, 1)) == ([1, 2, 3, 4], [1, 2])
    assert (retention.settled, retention.newest_round) == (2, 2)
    assert not retention.tend(lost=[])


def test_what_a_rank_has_undone_does_not_count(tmp_path):
    retention = CheckpointRetention(tmp_path, range(2), range(2))
    save(tmp_path, retention, 0, 0, 1, 2, 3)
    save(tmp_path, retention, 1, 0, 1, 2, 3)
    retention.undo(1, 2)
    retention.undo(7, 2)  # of another machine
    assert retention.newest_round == 1
    assert retention.tend(lost=[])
    assert (retention.settled, retention.kept) == (1, 0)


def test_two_are_there_as_soon_as_two_were_written(tmp_path):
    retention = CheckpointRetention(tmp_path, range(1), range(1))
    for round in range(6):
        save(tmp_path, retention, 0, round)
        retention.tend(lost=[])
        assert kept(tmp_path, 0) == list(range(max(0, round - 1), round + 1))


def test_a_lost_rank_holds_up_no_deletion_and_the_last_round_of_all_stays(tmp_path):
    """So the run can be resumed as a whole; when the rank is back, it needs that round no more."""
    retention = CheckpointRetention(tmp_path, range(3), [0, 1])
    elsewhere = CheckpointRetention(tmp_path, [2], [2])
    for rank, last in ((0, 7), (1, 1), (2, 7)):
        save(tmp_path, retention, rank, *range(last + 1))
    retention.tend(lost=[1])
    elsewhere.settle(retention.settled, retention.kept, retention.whole)
    assert [kept(tmp_path, rank) for rank in range(3)] == [[1, 6, 7], [1], [1, 6, 7]]
    assert retention.newest_round == 1
    for rank in (0, 2):
        save(tmp_path, retention, rank, 8, 9)
    retention.tend(lost=[1])
    assert (kept(tmp_path, 0), retention.newest_round) == ([1, 8, 9], 1)
    for rank in (0, 1, 2):
        save(tmp_path, retention, rank, 10, 11)
    retention.tend(lost=[])
    assert (kept(tmp_path, 0), kept(tmp_path, 1), retention.newest_round) == ([10, 11], [10, 11], 11)


def test_only_local_ranks_are_deleted_from_and_machine_0_decides(tmp_path):
    elsewhere = CheckpointRetention(tmp_path, range(3), [1])
    save(tmp_path, elsewhere, 1, 4, 9, 14)
    assert elsewhere.settle(14, kept=9)
    assert kept(tmp_path, 1) == [9, 14]
    assert not elsewhere.settle(9, kept=4)


def test_what_is_kept_is_a_round_that_all_have(tmp_path):
    """Rank 0 was away in round 30; should one file of round 40 be bad, all can go on from round 20."""
    retention, elsewhere = (
        CheckpointRetention(tmp_path, range(3), [0, 1]),
        CheckpointRetention(tmp_path, [2], [2]),
    )
    for rank in range(3):
        save(tmp_path, retention, rank, 10, 20, *([30] if rank else []), 40)
    assert retention.tend(lost=[])
    elsewhere.settle(retention.settled, retention.kept)
    assert [kept(tmp_path, rank) for rank in range(3)] == [[20, 40], [20, 30, 40], [20, 30, 40]]
    assert newest_of_all({0: [20], 1: [20, 30, 40], 2: [20, 30, 40]}, range(3)) == 20


def test_where_the_last_of_all_is_no_round_of_all_two_that_are_stay(tmp_path):
    retention = CheckpointRetention(tmp_path, range(2), range(2))
    save(tmp_path, retention, 0, 10, 20, 30, 60)
    save(tmp_path, retention, 1, 10, 20, 30, 40, 50)
    assert retention.tend(lost=[])
    assert (retention.settled, retention.newest_round) == (50, 30)
    assert (kept(tmp_path, 0), kept(tmp_path, 1)) == ([20, 30, 60], [20, 30, 40, 50])


def test_where_no_round_is_of_all_each_keeps_its_last_but_one(tmp_path):
    retention = CheckpointRetention(tmp_path, range(2), range(2))
    save(tmp_path, retention, 0, 10, 30, 50)
    save(tmp_path, retention, 1, 20, 40, 60)
    assert retention.tend(lost=[])
    assert (kept(tmp_path, 0), kept(tmp_path, 1)) == ([30, 50], [40, 60])


def test_a_disk_that_lets_nothing_go_ends_nothing_and_is_reported_once(tmp_path, monkeypatch):
    def refuse(directory, ranks, round, only_files):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    retention = CheckpointRetention(tmp_path, range(2), range(2))
    for rank in range(2):
        save(tmp_path, retention, rank, 0, 1, 2)
    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "delete", refuse)
        assert retention.tend(lost=[])
    assert retention.problem == "checkpoints of round 1 cannot be deleted: Read-only file system"
    assert kept(tmp_path, 0) == kept(tmp_path, 1) == [0, 1, 2]
    for rank in range(2):
        save(tmp_path, retention, rank, 3)
    assert retention.tend(lost=[])
    assert kept(tmp_path, 0) == kept(tmp_path, 1) == [2, 3]


def test_a_run_that_continues_knows_the_round_it_began_with(tmp_path):
    retention = CheckpointRetention(tmp_path, range(2), range(2))
    retention.begin(7, range(4))
    assert retention.newest_round == 7


def test_who_is_not_here_when_a_run_continues_may_lack_its_round(tmp_path):
    retention = CheckpointRetention(tmp_path, range(2), range(2))
    retention.begin(7, [0, 2, 3])
    assert retention.newest_round is None
    retention.note(1, 7)
    assert retention.newest_round == 7


@pytest.mark.parametrize(
    ("offers", "round"),
    [({0: [1], 1: [1]}, 1), ({0: [1, 3, 5], 1: [5, 3]}, 5), ({0: [1, 3, 5], 1: [3, 4]}, 3)],
)
def test_the_newest_round_of_all_is_taken(offers, round):
    assert newest_of_all(offers, range(2)) == round


def test_without_a_round_of_all_it_is_reported_who_lacks_what():
    with pytest.raises(BadInput, match=r"round 10 is missing here: rank 0 has round 2; rank 2 has none$"):
        newest_of_all({0: [1], 1: [1, 9]}, range(3))
    with pytest.raises(BadInput, match="no rank has a checkpoint"):
        newest_of_all({}, range(3))
    many = {0: [9]} | {rank: [1] for rank in range(1, 40)}
    with pytest.raises(BadInput, match=r"; and 34 more ranks$"):
        newest_of_all(many, range(40))


def joined(machine, run_id, rounds, **more):
    """What a machine of one node says that repeats its command."""
    return Join(machine, "1", "d", "s", run_id=run_id, offers={machine: rounds}, or_resume=True, **more)


def test_machines_that_repeat_their_command_resume_or_begin_together():
    mapping, run = Linear((Machine("10.0.0.1", 1), Machine("10.0.0.2", 1))), f"{77:016x}"

    def start(*joins):
        begun = agreed(dict(enumerate(joins)), mapping, [])
        return begun.run_id == 77, begun.incarnation, begun.round

    assert start(joined(0, "", [-1]), joined(1, "", [-1])) == (False, 0, -1)
    # The first one was killed before its run began; one before its first checkpoint.
    assert start(joined(0, "", [-1]), joined(1, run, [-1], incarnation=2)) == (True, 3, -1)
    assert start(joined(0, run, [-1, 9]), joined(1, run, [-1])) == (True, 1, -1)
    assert start(joined(0, run, [-1, 9, 19]), joined(1, run, [-1, 9])) == (True, 1, 9)
    # One was away when the other began again.
    assert start(joined(0, run, [-1, 9]), joined(1, run, [-1, 9], starts=[-1])) == (True, 1, -1)
    lost = r"^machine 1 \(10.0.0.2, ranks 1\) has nothing of the run that the others resume; restore its"
    with pytest.raises(BadInput, match=lost):
        start(joined(0, run, [-1, 9]), joined(1, "", [-1]))


def test_reports_of_thousands_of_ranks_are_not_a_pass_over_all_of_them_each(tmp_path, monkeypatch):
    looks = 0

    class Counted(dict):
        def __getitem__(self, rank):
            nonlocal looks
            looks += 1
            return super().__getitem__(rank)

    count = 2000
    retention = CheckpointRetention(tmp_path, range(count), ())
    monkeypatch.setattr(retention, "_known", Counted(retention._known))
    for round in (3, 5):
        for number in range(count):
            # In an order that is not that of the ranks; rank 7 is lost, and never reports.
            rank = number * 7919 % count
            if rank == 7:
                continue
            retention.note(rank, round)
            changed = retention.tend([7])
        assert changed
        assert retention.settled == round
    assert looks < 20 * count
