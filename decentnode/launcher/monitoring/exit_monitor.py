"""Host processes whose nodes have all ended: a launcher waits for their exit, for a limited time.

The last report of such a node may still be on its way. The fork server may restart a failed one after its
process has exited.
"""

import time
from math import inf

from decentnode.core.timeouts import Timeouts
from decentnode.launcher.monitoring.membership import MembershipTable


class ExitMonitor:
    """The exits of one machine's processes."""

    def __init__(self, membership: MembershipTable, timeouts: Timeouts) -> None:
        self._membership = membership
        self._timeouts = timeouts
        self._since: dict[int, float] = {}

    @property
    def pause(self) -> float:
        """Seconds until the next process is overdue, or is not waited for any more; infinite without one."""
        limits = self._timeouts.process_exit, self._timeouts.process_gone
        passed = self._under_way(time.monotonic()).values()
        return min(
            (limit - seconds for seconds in passed for limit in limits if seconds < limit), default=inf
        )

    def are_awaited(self, now: float) -> bool:
        """Whether some process is still exiting and has not outlived a kill."""
        return any(seconds < self._timeouts.process_gone for seconds in self._under_way(now).values())

    def overdue(self, now: float) -> list[int]:
        """Positions of processes that have exceeded their time, and must be killed."""
        return [
            position
            for position, seconds in self._under_way(now).items()
            if self._timeouts.process_exit <= seconds < self._timeouts.process_gone
        ]

    def _under_way(self, now: float) -> dict[int, float]:
        """By position the seconds for which a process without active nodes has been seen."""
        members = self._membership.members
        found = [
            position
            for position, ranks in self._membership.here.items()
            if position not in self._membership.ended and not any(members[rank].is_active for rank in ranks)
        ]
        # Positions that are gone or have active nodes again drop out.
        self._since = {position: self._since.get(position, now) for position in found}
        return {position: now - since for position, since in self._since.items()}
