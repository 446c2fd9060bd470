"""The processes beside a machine's first one: how they end."""

import os
import signal
import time

import pytest

from decentnode.errors import ExitCode, StartError
from decentnode.launcher.cluster import task_followers as companions
from decentnode.launcher.cluster.task_followers import Companions, Follower
from decentnode.mapping.job import SchedulerJob


@pytest.fixture
def job():
    return SchedulerJob("torchrun", f"test {os.getpid()} {time.monotonic()}", (3,), 0, 0)


def forked(work):
    """The process that does it; its exit code is what `work` gives."""
    child = os.fork()
    if child == 0:
        code = 99
        try:
            code = work()
        finally:
            os._exit(code)
    return child


def ended(child):
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.mark.parametrize("code", [0, 2, 3])
def test_all_end_as_the_first_one_whoever_comes_first(job, code):
    early = forked(Follower(job).wait)
    time.sleep(0.1)
    first = forked(lambda: Companions(job).dismiss(code) or 7)
    late = forked(Follower(job).wait)
    assert [ended(first), ended(early), ended(late)] == [7, code, code]


def test_who_does_not_appear_is_not_waited_for_for_ever(job, monkeypatch):
    monkeypatch.setattr(companions, "MOST_SECONDS_TO_APPEAR", 0.3)
    assert ended(forked(lambda: Companions(job).dismiss(0) or 7)) == 7
    with pytest.raises(StartError, match="torchrun: the first process of this machine did not"):
        Follower(job)._find()


def test_a_first_process_that_dies_takes_the_others_along(job):
    def dies():
        made = Companions(job)
        time.sleep(0.3)
        assert made
        os.kill(os.getpid(), signal.SIGKILL)

    first, follower = forked(dies), forked(Follower(job).wait)
    assert (ended(first), ended(follower)) == (-signal.SIGKILL, ExitCode.FAILED)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_who_is_asked_to_end_lets_the_first_one_do_so_before(job, number, monkeypatch):
    monkeypatch.setattr(companions, "MOST_SECONDS_TO_APPEAR", 3.0)  # the other one never does
    first = forked(lambda: [made := Companions(job), time.sleep(1.0), made.dismiss(5)] and 7)
    follower = forked(Follower(job).wait)
    time.sleep(0.5)
    os.kill(follower, number)
    assert (ended(follower), ended(first)) == (5, 7)


def test_but_not_for_long(job, monkeypatch):
    monkeypatch.setattr(companions, "SECONDS_AFTER_A_SIGNAL", 0.2)
    made = Companions(job)
    follower = forked(Follower(job).wait)
    time.sleep(0.3)
    os.kill(follower, signal.SIGTERM)
    assert ended(follower) == ExitCode.TERMINATED
    made._socket.close()


def test_a_second_first_process_is_refused(job):
    made = Companions(job)
    with pytest.raises(StartError, match="another first process of this job runs on this machine"):
        Companions(job)
    made._socket.close()


def test_jobs_do_not_meet():
    jobs = [("torchrun", "a", 0), ("torchrun", "a", 1), ("torchrun", "b", 0), ("srun", "a", 0)]
    places = {companions.meeting_place(SchedulerJob(starter, job, (2, 2), i, 0)) for starter, job, i in jobs}
    assert len(places) == 4
