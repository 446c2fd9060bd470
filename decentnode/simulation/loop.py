"""The event loop of simulated nodes (discrete-event simulation on asyncio).

Everything that happens at one time happens before anything later, and in the order in which it was asked for.
So two runs with one seed are the same event by event.
"""

import asyncio
import heapq
import selectors
import time
from collections.abc import Callable
from contextvars import Context
from typing import Any, Protocol

from decentnode.errors import RunFailed
from decentnode.simulation.clock import SECOND, VirtualClock
from decentnode.simulation.outages import NEVER

LONGEST_BLOCK = 0.5
"""Real seconds that the loop waits at most for another thread or process before it looks again."""
STANDSTILL = 30.0
"""Real seconds without any event after which the run is given up."""
EVENTS_AT_ONCE = 64
"""Events after which the loop looks at its files, where other threads and signals show that they want it."""

Event = tuple[int, int, Callable[..., object], tuple[Any, ...], asyncio.TimerHandle | None]
"""Its time in nanoseconds, its number, the call, and the handle by which it may be cancelled."""


class Others(Protocol):
    """The other processes of one virtual time."""

    def meet(self, earliest: int) -> int:
        """Waits until all have done what is before the end of the window; returns the end of the next one.

        `earliest`: the next event here, in nanoseconds. NEVER, for both: there is none.
        """


class VirtualLoop(asyncio.SelectorEventLoop):
    """Sets the clock to the next timer when nothing else is left to do at the present time."""

    def __init__(self, clock: VirtualClock) -> None:
        super().__init__(selectors.DefaultSelector())
        self._virtual_clock = clock
        self._events: list[Event] = []
        """A heap of all events to come."""
        self._asked = 0
        """The number of events so far: of those of one time the first that was asked for is first."""
        self._cancelled = 0
        """How many of the events may be cancelled."""
        self._others: Others | None = None
        self._window_end = NEVER
        """The time before which no message of another process can arrive that is not there yet."""

    def join(self, others: Others) -> None:
        """Shares its time with other processes."""
        self._others, self._window_end = others, self._virtual_clock.nanoseconds

    def time(self) -> float:
        return self._virtual_clock.now()

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        clock, due = self._virtual_clock, round(when * SECOND)
        # A time that rounds to the present must pass, too: who waits for it would look again for ever.
        due = max(due, clock.nanoseconds + 1) if when > clock.now() else due
        return self._timer(due, callback, args, context)

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        nanoseconds = max(1, round(delay * SECOND)) if delay > 0 else 0
        due = self._virtual_clock.nanoseconds + nanoseconds
        return self._timer(due, callback, args, context)

    def _timer(
        self, due: int, callback: Callable[..., Any], args: tuple[Any, ...], context: Context | None
    ) -> asyncio.TimerHandle:
        """Plans an event that may be cancelled."""
        handle = asyncio.TimerHandle(due / SECOND, callback, args, self, context)
        self._asked += 1
        heapq.heappush(self._events, (due, self._asked, handle._run, (), handle))
        return handle

    def call_at_nanosecond(self, due: int, callback: Callable[..., object], *args: Any) -> None:
        """Calls back at a virtual time in nanoseconds, at once if that is past; it cannot be cancelled.

        An error of the callback ends the run.
        """
        self._asked += 1
        heapq.heappush(self._events, (due, self._asked, callback, args, None))

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Ends the run with the error of a callback: a message that it did not deliver would be missed."""
        if "handle" in context and isinstance(error := context.get("exception"), Exception):
            raise error
        super().call_exception_handler(context)

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """Drops cancelled timers when they are most of all; otherwise one is dropped when its turn comes."""
        self._cancelled += 1
        if self._cancelled > 1000 + len(self._events) // 2:
            self._events = [event for event in self._events if event[4] is None or not event[4].cancelled()]
            heapq.heapify(self._events)
            self._cancelled = 0

    def _run_once(self) -> None:
        """Does all that is ready; if nothing is, takes what other threads bring, or the next events."""
        ready: Any = self._ready  # type: ignore[attr-defined]
        self._process_events(self._selector.select(0))  # type: ignore[attr-defined]
        for _ in range(EVENTS_AT_ONCE):
            if self._stopping:  # type: ignore[attr-defined]
                return
            if not ready and not self._jump():
                self._wait_outside()
            for _ in range(len(ready)):
                handle = ready.popleft()
                if not handle._cancelled:
                    handle._run()

    def _jump(self) -> bool:
        """Sets the clock to the next event and makes it happen; False where virtual time must stand."""
        clock = self._virtual_clock
        if clock.outside_waits:
            return False
        while self._events and self._events[0][0] < self._window_end:
            due, _, callback, args, handle = heapq.heappop(self._events)
            if handle is not None and handle.cancelled():
                continue
            if due > clock.nanoseconds:
                clock.nanoseconds = due
            callback(*args)
            return True
        if self._others is None:
            return False
        self._window_end = self._others.meet(self._events[0][0] if self._events else NEVER)
        return self._window_end < NEVER or bool(self._events)

    def _wait_outside(self) -> None:
        """Waits in real time for another thread or process; raises RunFailed if nothing can come."""
        limit = time.monotonic() + STANDSTILL
        ready: Any = self._ready  # type: ignore[attr-defined]
        clock = self._virtual_clock
        pending = list(clock.outside_waits)
        while not ready and not self._stopping:  # type: ignore[attr-defined]
            waits = bool(clock.outside_waits)
            pending = [wait for wait in pending if not wait.is_over()]
            if waits and not pending:
                # All of them together, in the order in which they began: the speed of other processes must
                # not decide which node continues first.
                ended, clock.outside_waits = clock.outside_waits, []
                for wait in ended:
                    if not wait.over.done():
                        wait.over.set_result(None)
                return
            pause = min((wait.interval for wait in pending), default=LONGEST_BLOCK)
            self._process_events(self._selector.select(pause))  # type: ignore[attr-defined]
            if not ready and not waits and time.monotonic() > limit:
                stands = f"virtual time stands at {self._virtual_clock.now():g} s"
                raise RunFailed(f"{stands}: nodes wait, and nothing is on its way")
