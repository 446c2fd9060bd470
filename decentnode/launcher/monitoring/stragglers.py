"""Which node waits for which, from the launchers' reports: lines for the user, and sums."""

import time
from collections import Counter

from decentnode.communication.launcher_link.reports import Report, Waiting
from decentnode.core.text import counted, ranks_in_words
from decentnode.core.timeouts import Timeouts
from decentnode.launcher.state.dispatcher import Dispatcher
from decentnode.launcher.state.event_log import EventLog
from decentnode.launcher.state.membership import MembershipTable

NEWS_INTERVAL = 10.0
MOST_NAMED = 3
MOST_LINES = 5
"""Lines in one NEWS_INTERVAL; one more has the number of the others."""


class StragglerTracker:
    """All current waits, and how long each node has waited for each other in total."""

    def __init__(self) -> None:
        self.totals: Counter[tuple[int, int]] = Counter()
        """Seconds by (rank, peer) of reported waits."""
        self._current: dict[int, tuple[Waiting, float]] = {}
        self._counted: dict[int, tuple[int, int]] = {}
        """(round, seconds) of a rank's last wait, as counted in the totals."""
        self._has_news = False
        self._reported: dict[int, float] = {}
        self._named: dict[int, float] = {}
        """By straggler the time since when others wait for it."""
        self._lines: list[float] = []
        """When the last lines were shown."""
        self._unshown: set[int] = set()
        """Stragglers without a line, to be counted."""
        self._last_count = -NEWS_INTERVAL

    def register(self, dispatcher: Dispatcher[Report]) -> None:
        """Registers for waits, which the launcher of a machine reports of its nodes."""
        dispatcher.register(Waiting, lambda report: self.take(report, time.monotonic()))

    def take(self, report: Waiting, now: float) -> None:
        """Records that a node waits."""
        self._count(report, report.seconds)
        self._current[report.rank] = (report, now)
        self._has_news = True

    def _count(self, report: Waiting, seconds: float) -> None:
        round_counted, seconds_counted = self._counted.get(report.rank, (-1, 0))
        # A wait is reported repeatedly; only the growth since the last report counts.
        before = seconds_counted if round_counted == report.round else 0
        self._counted[report.rank] = (report.round, round(seconds))
        for peer in report.peers[:1]:
            self.totals[report.rank, peer] += max(0, round(seconds) - before)

    def end(self, rank: int, done: int, now: float) -> None:
        """Records that a node has done a round, so its wait in that round is over."""
        if rank in self._current and self._current[rank][0].round <= done:
            report, reported_at = self._current.pop(rank)
            self._count(report, report.seconds + now - reported_at)

    def end_waits(self, membership: MembershipTable, now: float) -> None:
        """Ends the waits of nodes that have done the rounds in which they waited."""
        for rank in [*self._current]:
            self.end(rank, membership.members[rank].round, now)

    def current(self, now: float) -> dict[int, Waiting]:
        """Returns the current waits, by waiting rank."""
        self._current = {r: (w, at) for r, (w, at) in self._current.items() if now - at <= w.lasts}
        return {rank: waiting for rank, (waiting, _) in self._current.items()}

    def report(self, event_log: EventLog, now: float) -> None:
        """Shows a line for each straggler that does not wait itself, at most one per NEWS_INTERVAL.

        All stragglers with unknown activity share one line. Beyond MOST_LINES they are counted, those that
        the fewest wait for. Nothing without new reports. Call it after all
        reports of a check, because a node that waits is no straggler.
        """
        if not self._has_news:
            return
        self._has_news = False
        # Only now, because it would delay the start of every run.
        import networkx as nx  # type: ignore[import-untyped]

        current = self.current(now)
        waits = nx.DiGraph((rank, peer) for rank, waiting in current.items() for peer in waiting.peers)
        # By straggler, which does not wait itself, all that wait for it, directly or through others.
        causes: dict[int, set[int]] = {p: nx.ancestors(waits, p) for p in waits.nodes - current.keys()}
        self._named = {peer: self._named.get(peer, now) for peer in causes}
        seen = {peer for waiting in current.values() if waiting.why for peer in waiting.peers[:1]}
        # At most one line per straggler and interval, however many reports arrive.
        due = [
            peer for peer in sorted(causes) if now - self._reported.get(peer, -NEWS_INTERVAL) >= NEWS_INTERVAL
        ]
        unseen = [p for p in due if p not in seen and now - self._named[p] >= Timeouts.unseen_straggler]
        groups = [*([peer] for peer in due if peer in seen), *([unseen] if unseen else [])]
        waiters = {peers[0]: set[int]().union(*map(causes.__getitem__, peers)) for peers in groups}
        self._lines = [at for at in self._lines if now - at < NEWS_INTERVAL]
        room = MOST_LINES - len(self._lines)
        first = {peers[0] for peers in sorted(groups, key=lambda peers: -len(waiters[peers[0]]))[:room]}
        for peers in groups:
            self._reported |= dict.fromkeys(peers, now)
            if peers[0] in first:
                self._lines.append(now)
                _log(event_log, peers, waiters[peers[0]], current)
            else:
                self._unshown |= {*peers}
        if self._unshown and now - self._last_count >= NEWS_INTERVAL:
            text = f"{counted(len(self._unshown), 'other node is', 'other nodes are')} waited for, too"
            event_log.log("waiting", text)
            self._unshown, self._last_count = set(), now


def _log(event_log: EventLog, peers: list[int], waiting_ranks: set[int], waiting: dict[int, Waiting]) -> None:
    """Shows who waits for these stragglers: first those that wait directly, the longest wait first."""
    directly = {rank for rank in waiting_ranks if not set(peers).isdisjoint(waiting[rank].peers)}
    waiters = sorted(waiting_ranks, key=lambda r: (r not in directly, -waiting[r].seconds, r))
    first = waiting[waiters[0]]
    whys = [waiting[r].why for r in waiters if waiting[r].peers[:1] == peers and waiting[r].why]
    why = f" (rank {peers[0]}: {whys[0]})" if whys else ""
    waiters_text, peers_text = ranks_in_words(waiters, MOST_NAMED), ranks_in_words(peers, MOST_NAMED)
    text = (
        f"{waiters_text} waiting for {first.seconds:.0f} s in round {first.round + 1}, for {peers_text}{why}"
    )
    event_log.log("waiting", text, first.rank, first.round, peers[0])
