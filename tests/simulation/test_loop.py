"""Virtual time: what happens when, and that no run hangs in it."""

import asyncio
import threading
import time
from contextlib import suppress
from functools import partial

import pytest

from decentnode.errors import RunFailed
from decentnode.simulation import loop as virtual
from decentnode.simulation.clock import VirtualClock
from decentnode.simulation.loop import VirtualLoop


def run(main, clock):
    with asyncio.Runner(loop_factory=partial(VirtualLoop, clock)) as runner:
        return runner.run(main)


def test_hours_pass_at_once_and_in_order():
    clock, seen = VirtualClock(), []

    async def node(name, pauses):
        for pause in pauses:
            await clock.sleep(pause)
            seen.append((name, clock.now()))

    async def main():
        await asyncio.gather(node("a", [1.0, 3600.0]), node("b", [0.5, 0.5, 3600.0]), node("c", [1.0]))
        timer = asyncio.get_running_loop().call_later(5.0, seen.append, "cancelled")
        timer.cancel()
        assert not await asyncio.wait_for(asyncio.sleep(1.0, False), 2.0)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.Event().wait(), 2.0)

    began = time.monotonic()
    run(main(), clock)
    assert time.monotonic() - began < 5
    # Of equal times the timer that was asked for first: c before the second of b.
    order = [("b", 0.5), ("a", 1.0), ("c", 1.0), ("b", 1.0), ("a", 3601.0), ("b", 3601.0)]
    assert seen == order
    assert clock.nanoseconds == 3604 * 10**9


def test_no_time_is_missed_by_a_rounding():
    """0.2 + 0.1 is above the float of 300,000,000 ns: one who waits for it must not look again for ever."""
    clock, looks = VirtualClock(), []

    async def main():
        await clock.sleep(0.2)
        due = 0.2 + 0.1
        while clock.now() < due:
            looks.append(clock.now())
            assert len(looks) < 10
            # As `asyncio.wait_for` of Python 3.12 and later.
            with suppress(TimeoutError):
                async with asyncio.timeout(due - clock.now()):
                    await asyncio.Event().wait()

    run(main(), clock)
    assert clock.nanoseconds in (300_000_000, 300_000_001)


def test_an_error_of_a_callback_ends_the_run():
    clock = VirtualClock()

    def deliver():
        raise RunFailed("too many messages")

    async def main():
        asyncio.get_running_loop().call_at_nanosecond(5, deliver)
        await clock.sleep(1.0)

    with pytest.raises(RunFailed, match="too many messages"):
        run(main(), clock)
    assert clock.nanoseconds == 5


def test_time_stands_while_a_coroutine_waits_outside():
    clock, ended, seen = VirtualClock(), threading.Event(), []
    threading.Timer(0.3, ended.set).start()

    async def waits():
        await clock.wait_outside(ended.is_set, 0.01)
        assert clock.now() == 0.0
        seen.append("first")

    async def is_ready():
        # It waited for nothing, and continues after the one that began before it.
        await clock.wait_outside(lambda: True, 0.01)
        seen.append("second")

    async def main():
        await asyncio.gather(waits(), is_ready(), clock.sleep(10.0))

    run(main(), clock)
    assert clock.now() == 10.0 and seen == ["first", "second"]


def test_a_run_in_which_nothing_is_on_its_way_ends(monkeypatch):
    monkeypatch.setattr(virtual, "STANDSTILL", 0.1)
    monkeypatch.setattr(virtual, "LONGEST_BLOCK", 0.05)
    clock = VirtualClock()

    async def main():
        await clock.sleep(2.5)
        await asyncio.Event().wait()

    with pytest.raises(
        RunFailed, match=r"virtual time stands at 2.5 s: nodes wait, and nothing is on its way"
    ):
        run(main(), clock)
