"""Who has waited for whom, from the launchers' reports: the lines that a person sees, and the sums."""

from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

from decentnode.reports import Waiting
from decentnode.wording import ranks_in_words

CURRENT = 2.0
"""Seconds after which a wait that is not told again is over."""
TELL_EVERY = 10.0
MOST_NAMED = 3


class Delay(NamedTuple):
    """One node that others wait for, in words."""

    rank: int
    round: int
    peer: int
    """Whom they wait for; `rank` has waited longest, in `round`."""
    text: str


class Waits:
    """All waits that are known now, and how long each node has waited for each other in all."""

    def __init__(self) -> None:
        self.totals: Counter[tuple[int, int]] = Counter()
        """Seconds by (rank, peer), of waits that were long enough to be told."""
        self._current: dict[int, tuple[Waiting, float]] = {}
        self._counted: dict[int, tuple[int, int]] = {}
        """The round and the seconds of a rank's last wait, as far as they are in the sums."""
        self._told: dict[int, float] = {}

    def take(self, report: Waiting, now: float) -> None:
        """Learns that a node waits, or still does."""
        counted = self._counted.get(report.rank, (-1, 0))
        before = counted[1] if counted[0] == report.round else 0
        self._counted[report.rank] = (report.round, round(report.seconds))
        for peer in report.peers[:1]:
            self.totals[report.rank, peer] += max(0, round(report.seconds) - before)
        self._current[report.rank] = (report, now)

    def current(self, now: float) -> dict[int, Waiting]:
        """The waits that go on, by who waits."""
        self._current = {r: (w, at) for r, (w, at) in self._current.items() if now - at <= CURRENT}
        return {rank: waiting for rank, (waiting, _) in self._current.items()}

    def news(self, now: float) -> Iterator[Delay]:
        """For each node that others wait for and that does not itself wait, a line, but seldom."""
        current = self.current(now)
        for peer, waiters in sorted(_by_cause(current).items()):
            if now - self._told.get(peer, -TELL_EVERY) >= TELL_EVERY:
                self._told[peer] = now
                yield _delay(peer, waiters, current)


def _by_cause(current: dict[int, Waiting]) -> dict[int, list[int]]:
    """For each node that holds others up, all of those, directly or through others."""
    found: dict[int, list[int]] = {}
    for rank in current:
        for cause in _causes(rank, current):
            found.setdefault(cause, []).append(rank)
    return found


def _causes(rank: int, current: dict[int, Waiting]) -> set[int]:
    causes, seen, waiting = set(), {rank}, [rank]
    while waiting:
        for peer in current[waiting.pop()].peers:
            if peer in seen:
                continue
            seen.add(peer)
            if peer in current:
                waiting.append(peer)
            else:
                causes.add(peer)
    return causes


def _delay(peer: int, waiters: list[int], current: dict[int, Waiting]) -> Delay:
    waiters = sorted(waiters, key=lambda r: (peer not in current[r].peers, -current[r].seconds, r))
    first = current[waiters[0]]
    whys = [current[r].why for r in waiters if current[r].peers[:1] == [peer] and current[r].why]
    why = f" (rank {peer} {whys[0]})" if whys else ""
    have = "has" if len(waiters) == 1 else "have"
    who = ranks_in_words(waiters, MOST_NAMED)
    text = f"{who} {have} waited {first.seconds:.0f} s for rank {peer}, in round {first.round + 1}{why}"
    return Delay(first.rank, first.round, peer, text)
