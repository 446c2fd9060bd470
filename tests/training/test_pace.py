"""How long local steps last at least: factors by lists, distributions and traces against closed forms."""

import asyncio
from math import exp, pi, sqrt

import numpy as np
import pytest

from decentnode.core.clock import Clock
from decentnode.errors import BadInput
from decentnode.training.pace import Pace, PaceSettings, RandomSlowdown


def seconds(settings, rank=0, nodes=8, seed=1, rounds=1, steps=1):
    pace = Pace(settings, rank, nodes, seed, Clock())
    return np.array([pace.seconds(r, s) for r in range(rounds) for s in range(steps)])


def test_factors_have_the_moments_of_their_distribution():
    drawn = 4000
    for slowdown, mean, variance in (
        (RandomSlowdown("exponential"), 1, 1),
        (RandomSlowdown("lognormal", sigma=0.5), exp(0.125), (exp(0.25) - 1) * exp(0.25)),
    ):
        factors = seconds(PaceSettings(0.5, slowdown), rounds=40, steps=drawn // 40) / 0.5
        assert abs(factors.mean() - mean) < 5 * sqrt(variance / drawn)
        assert len(set(factors)) == drawn
        # The median of exp(sigma N) is 1; that of an exponential is ln 2. 5 standard errors of a median.
        median, density = (
            (np.log(2), 0.5) if slowdown.distribution == "exponential" else (1, 1 / (0.5 * sqrt(2 * pi)))
        )
        assert abs(np.median(factors) - median) < 5 / (2 * density * sqrt(drawn))
    by_rank = RandomSlowdown("exponential", drawn="rank")
    whole = [seconds(PaceSettings(1, by_rank), rank, rounds=3, steps=2) for rank in range(8)]
    assert all(len(set(number)) == 1 for number in whole) and len({number[0] for number in whole}) == 8


@pytest.mark.parametrize(("share", "slow"), [(0.25, 2), (0.5, 4), (1.0, 8)])
def test_a_share_of_the_ranks_straggles(share, slow):
    settings = PaceSettings(0.01, RandomSlowdown("stragglers", share=share, factor=4))
    by_rank = [seconds(settings, rank, rounds=3)[0] for rank in range(8)]
    assert sorted(by_rank) == pytest.approx([0.01] * (8 - slow) + [0.04] * slow)


def test_a_trace_multiplies_the_factor_of_the_rank_round_by_round(tmp_path):
    file = tmp_path / "trace.csv"
    file.write_text("1, 2,3\n4 0.5\n\n")
    settings = PaceSettings(0.1, (1.0, 10.0), str(file))
    settings.check(2)
    assert seconds(settings, 0, 2, rounds=4) == pytest.approx([0.1, 0.2, 0.3, 0.1])
    assert seconds(settings, 1, 2, rounds=3) == pytest.approx([4, 0.5, 4])
    with pytest.raises(BadInput, match=r"has 2 lines; it must have one for each of the 3 ranks"):
        settings.check(3)


@pytest.mark.parametrize(
    ("content", "line"),
    [
        (None, "cannot be read: No such file or directory"),
        (b"\xff\xfe\n", "must be text with one line of numbers per rank"),
        (b"1,two\n", "could not convert string to float: 'two'"),
        (b"1,0\n", "factors must be finite and > 0"),
        (b"1,inf\n", "factors must be finite and > 0"),
        (b"nan\n", "factors must be finite and > 0"),
    ],
)
def test_a_trace_that_is_none_is_one_line(content, line, tmp_path):
    file = tmp_path / "trace.csv"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(BadInput) as caught:
        PaceSettings(0.1, 1.0, str(file)).check(1)
    assert str(caught.value) == f"training.pace.trace_path: {file}: {line}"


def test_no_step_is_slowed_to_more_than_an_hour():
    slow = PaceSettings(1e300, RandomSlowdown("lognormal", sigma=3.0))
    assert slow.of_rank(0, 4, 1, Clock()).seconds(0, 0) == 3600.0


def test_a_step_that_took_its_time_is_not_followed_by_sleep():
    slept, beats = [], []

    class Still(Clock):
        time = 10.0

        def now(self):
            return self.time

        async def sleep(self, seconds):
            slept.append(seconds)
            self.time += seconds

    pace = Pace(PaceSettings(0.3, 2.0), 0, 1, 1, Still())
    asyncio.run(pace.keep(9.4, 0, 0, lambda: beats.append(1)))
    assert not slept
    asyncio.run(pace.keep(10.0, 0, 0, lambda: beats.append(1)))
    assert slept == pytest.approx([0.25, 0.25, 0.1]) and len(beats) == 3
