"""The time limit of a child counts the time in which it could compute."""

import os
import time

import pytest

from decentnode.errors import BadInput, StartError
from decentnode.node import child_answers
from decentnode.node.child_answers import ChildAnswer, answer_of


def test_a_child_on_a_busy_machine_has_more_time(monkeypatch):
    def work(file):
        time.sleep(0.6)
        file.write(b"done")

    assert answer_of(work, 0.2).is_late
    # As if others had the processor for a second meanwhile.
    monkeypatch.setattr(child_answers, "_waited", lambda pid: 1.0)
    answer = answer_of(work, 0.3)
    assert answer.content == b"done" and not answer.is_late
    answer.refuse_late("it", "give it more time")


def test_the_time_without_a_processor_is_that_of_the_kernel():
    assert 0 <= child_answers._waited(os.getpid()) < time.clock_gettime(time.CLOCK_BOOTTIME)
    assert child_answers._waited(2**22 + 1) == 0.0


def test_what_takes_too_long_is_bad_input_only_where_it_could_compute():
    answer = ChildAnswer(b"", is_late=True, seconds=2.0, waited=0.5, status=-9)
    with pytest.raises(BadInput, match=r"^model: a step did not end within 2 s; take a smaller one$"):
        answer.refuse_late("a step", "take a smaller one", "model")
    answer = ChildAnswer(b"", is_late=True, seconds=2.0, waited=8.0, status=-9)
    with pytest.raises(
        StartError, match=r"^a step did not end, because this machine is busy: in 10 s it had"
    ):
        answer.refuse_late("a step", "take a smaller one", "model")
