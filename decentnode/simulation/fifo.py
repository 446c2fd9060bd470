"""First in, first out: an uplink or a downlink that carries one message after the other."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from decentnode.simulation.clock import EventLoop
from decentnode.simulation.fair import Flow


@dataclass(eq=False, slots=True)
class Job:
    """What a message asks of one end of its way."""

    flow: Flow
    duration: int
    """Nanoseconds for which it has this end to itself."""
    begin: Callable[[int], object] = lambda now: None
    """Called with the time at which its turn comes."""
    end: Callable[[int], object] = lambda now: None


class FifoServer:
    """Does jobs in the order in which they came, and passes over those of messages that were withdrawn."""

    def __init__(self) -> None:
        self._jobs: deque[Job] = deque()
        self._current_job: Job | None = None

    def add(self, loop: EventLoop, now: int, job: Job) -> None:
        """Does a job at once if nothing else is to be done, otherwise when its turn comes."""
        self._jobs.append(job)
        if self._current_job is None:
            self._next(loop, now)

    def withdraw(self, loop: EventLoop, now: int, flow: Flow) -> None:
        """Has the next job begin if the present one is of this message, which was withdrawn."""
        if self._current_job is not None and self._current_job.flow is flow:
            self._next(loop, now)

    def _next(self, loop: EventLoop, now: int) -> None:
        self._current_job = None
        while self._jobs:
            job = self._jobs.popleft()
            if job.flow.is_withdrawn:
                continue
            job.begin(now)
            if job.duration:
                self._current_job = job
                loop.call_at_nanosecond(now + job.duration, self._end, loop, now + job.duration, job)
                return
            job.end(now)

    def _end(self, loop: EventLoop, now: int, job: Job) -> None:
        if job is self._current_job:
            job.end(now)
            self._next(loop, now)
