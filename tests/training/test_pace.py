"""How long local steps last at least: factors by lists, distributions and traces against closed forms."""

import asyncio
from dataclasses import replace
from math import exp, pi, sqrt

import numpy as np
import pytest

from decentnode.core.clock import Clock
from decentnode.errors import BadInput
from decentnode.training.pace import ExponentialSlowdown, LognormalSlowdown, Pace, PaceSettings, Stragglers


def seconds(settings, rank=0, nodes=8, seed=1, rounds=1, steps=1):
    pace = Pace(settings, rank, nodes, seed, Clock())
    return np.array([pace.seconds(r, s) for r in range(rounds) for s in range(steps)])


def test_factors_have_the_moments_of_their_distribution():
    drawn = 4000
    for slowdown, mean, variance in (
        (ExponentialSlowdown(), 1, 1),
        (LognormalSlowdown(sigma=0.5), exp(0.125), (exp(0.25) - 1) * exp(0.25)),
    ):
        factors = seconds(PaceSettings(0.5, slowdown), rounds=40, steps=drawn // 40) / 0.5
        assert abs(factors.mean() - mean) < 5 * sqrt(variance / drawn)
        assert len(set(factors)) == drawn
        # The median of exp(sigma N) is 1; that of an exponential is ln 2. 5 standard errors of a median.
        median, density = (
            (np.log(2), 0.5) if isinstance(slowdown, ExponentialSlowdown) else (1, 1 / (0.5 * sqrt(2 * pi)))
        )
        assert abs(np.median(factors) - median) < 5 / (2 * density * sqrt(drawn))
    by_rank = ExponentialSlowdown(drawn="rank")
    whole = [seconds(PaceSettings(1, by_rank), rank, rounds=3, steps=2) for rank in range(8)]
    assert all(len(set(number)) == 1 for number in whole) and len({number[0] for number in whole}) == 8


@pytest.mark.parametrize(("share", "slow"), [(0.25, 2), (0.5, 4), (1.0, 8)])
def test_a_share_of_the_ranks_straggles(share, slow):
    settings = PaceSettings(0.01, Stragglers(share=share, factor=4))
    by_rank = [seconds(settings, rank, rounds=3)[0] for rank in range(8)]
    assert sorted(by_rank) == pytest.approx([0.01] * (8 - slow) + [0.04] * slow)


def test_a_trace_multiplies_the_factor_of_the_rank_round_by_round(tmp_path):
    file = tmp_path / "trace.csv"
    file.write_text("1, 2,3\n4 0.5\n\n")
    settings = PaceSettings("100 ms", (1.0, 10.0), trace_path=str(file))
    settings.check(2, rounds=9)
    assert seconds(settings, 0, 2, rounds=4) == pytest.approx([0.1, 0.2, 0.3, 0.1])
    assert seconds(settings, 1, 2, rounds=3) == pytest.approx([4, 0.5, 4])
    with pytest.raises(BadInput, match=r"has 2 lines; it must have one for each of the 3 ranks"):
        settings.check(3, rounds=9)
    once = replace(settings, trace_repeats=False)
    once.check(2, rounds=2)
    with pytest.raises(BadInput) as caught:
        once.check(2, rounds=3)
    assert str(caught.value) == (
        f"training.pace.trace_path: {file}:2: ends after 2 rounds, and the run has 3; add numbers, or let it "
        "begin again (trace_repeats: true)"
    )


@pytest.mark.parametrize(
    ("content", "line"),
    [
        (None, ": cannot be read: No such file or directory"),
        (b"\xff\xfe\n", ": must be text with one line of numbers per rank"),
        (b"1,two\n", ":1: a factor must be a finite number > 0, not 'two'"),
        (b"\n1,0\n", ":2: a factor must be a finite number > 0, not '0'"),
        (b"1,inf\n", ":1: a factor must be a finite number > 0, not 'inf'"),
        (b"nan\n", ":1: a factor must be a finite number > 0, not 'nan'"),
    ],
)
def test_a_trace_that_is_none_is_one_line(content, line, tmp_path):
    file = tmp_path / "trace.csv"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(BadInput) as caught:
        PaceSettings(0.1, trace_path=str(file)).check(1, rounds=1)
    assert str(caught.value) == f"training.pace.trace_path: {file}{line}"


DEVICES = "class,factor,share\n# slow ones\nphone, 8, 0.25\nlaptop,1,0.5\n\ntablet,2.5,.25\n"


def factors(settings, nodes=8, seed=1):
    settings.check(nodes, rounds=1)
    return [seconds(settings, rank, nodes, seed)[0] for rank in range(nodes)]


def test_a_class_of_devices_scales_the_step(tmp_path):
    file = tmp_path / "devices.csv"
    file.write_text(DEVICES)
    by_share = PaceSettings(0.5, device_classes=file)
    drawn = factors(by_share)
    assert sorted(drawn) == [0.5] * 4 + [1.25] * 2 + [4.0] * 2
    assert drawn == factors(by_share) and drawn != factors(by_share, seed=2)
    assert str(by_share) == "steps of 0.5 s, devices of devices.csv"
    phones = PaceSettings(0.5, 3.0, device_classes=file, device="phone")
    assert factors(phones) == [12.0] * 8 and str(phones) == "steps of 0.5 s x 3, phone"
    assert factors(replace(phones, device=("phone", "laptop")), 2) == [12.0, 1.5]
    # 1.36 of 4 are rounded to 1, and 2.68 to 3.
    thirds = replace(phones, device={"phone": 0.34, "laptop": 0.33, "tablet": 0.33})
    assert sorted(factors(thirds, 4)) == [1.5, 1.5, 3.75, 12.0]
    file.write_text("class,factor\nphone,8\n")
    with pytest.raises(
        BadInput, match=r"^training.pace.device: missing: the file has no shares; name a class"
    ):
        PaceSettings(0.5, device_classes=file).check(1, 1)


@pytest.mark.parametrize(
    ("content", "line"),
    [
        (b"\xff\xfe\n", ": must be a CSV file with the header class,factor,share"),
        (b"# nothing\n", ": has no classes; write lines such as phone,4"),
        (b"name,factor\na,1\n", ":1: the header must be class,factor or class,factor,share"),
        (b"class,factor\na,1,1\n", ":2: has 3 columns; it must have 2: class,factor"),
        (b"class,factor\na,1\na,2\n", ":3: class 'a' is there twice"),
        (b"class,factor\n,1\n", ":2: the class has no name"),
        (b"class,factor\na,-1\n", ":2: factor must be a finite number > 0, not '-1'"),
        (b"class,factor,share\na,1,half\n", ":2: share must be a finite number > 0, not 'half'"),
        (b"class,factor,share\na,1,.5\nb,1,.6\n", ": the shares add up to 1.1; they must be 1"),
    ],
)
def test_a_file_of_devices_that_is_none_is_one_line(content, line, tmp_path):
    file = tmp_path / "devices.csv"
    file.write_bytes(content)
    with pytest.raises(BadInput) as caught:
        PaceSettings(0.1, device_classes=file).check(4, rounds=1)
    assert str(caught.value) == f"training.pace.device_classes: {file}{line}"


def test_no_step_is_slowed_to_more_than_an_hour():
    slow = PaceSettings(1e300, LognormalSlowdown(sigma=3.0))
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
