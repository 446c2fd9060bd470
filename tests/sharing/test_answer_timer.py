"""The retransmission timer: figures of RFC 6298 by hand."""

from math import inf

import pytest

from decentnode.core.timeouts import Timeouts
from decentnode.sharing.blocks.answer_timer import AnswerTimer

LEAST = Timeouts.unanswered


def answered(timer, peer, number, seconds, now=100.0):
    timer.start(peer, number, now)
    timer.stop(now + seconds)


def timeout(timer, peer, number=99, now=0.0):
    timer.start(peer, number, now)
    due, timer.due = timer.due - now, inf
    return due


def test_the_timeout_follows_the_answers_as_in_the_standard():
    timer = AnswerTimer()
    assert timeout(timer, 1) == LEAST
    answered(timer, 1, 1, 4.0)
    # SRTT 4, RTTVAR 2.
    assert timeout(timer, 1) == 4 + 4 * 2
    answered(timer, 1, 2, 8.0)
    # RTTVAR 3/4 2 + 1/4 4 = 2.5, SRTT 7/8 4 + 1/8 8 = 4.5.
    assert timeout(timer, 1) == pytest.approx(4.5 + 4 * 2.5)
    # A peer that never answered is taken for one as the others; it has an estimate of its own from then on.
    assert timeout(timer, 2) == timeout(timer, 1)
    answered(timer, 2, 3, 0.001)
    assert timeout(timer, 2) == LEAST and timeout(timer, 1) == pytest.approx(14.5)
    answered(timer, 3, 4, 500.0)
    assert timeout(timer, 3) == Timeouts.longest_unanswered


def test_an_answer_to_a_repeated_request_proves_nothing_and_the_longer_pause_stays():
    timer = AnswerTimer()
    timer.start(1, 1, 0.0)
    assert timer.is_for(1, 1) and not timer.is_for(1, 2) and not timer.is_for(2, 1)
    pauses = []
    for _ in range(3):
        now = timer.due
        timer.repeat(now)
        pauses.append(timer.due - now)
    assert pauses == [2 * LEAST, 4 * LEAST, 8 * LEAST]
    timer.stop(timer.due)
    assert timer.due == inf and not timer.is_for(1, 1)
    assert timeout(timer, 1) == 8 * LEAST
    # A request that was sent before may be answered by the first answer, too.
    timer.start(1, 1, 50.0, sent_before=True)
    timer.stop(50.1)
    assert timeout(timer, 1) == 8 * LEAST
    answered(timer, 1, 2, 1.0)
    assert timeout(timer, 1) == 3.0
    timer.start(1, 3, 0.0)
    timer.cancel()
    timer.stop(900.0)
    assert timeout(timer, 1) == 3.0, "a request that was given up is not measured"
