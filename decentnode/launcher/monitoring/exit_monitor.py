"""Host processes whose nodes have all ended: a launcher waits until they are gone, and not for ever.

What such a node has sent last may still be on its way, and one that has failed may be started again, which
the server does when its process is gone.
"""

import time
from collections.abc import Mapping, Sequence
from math import inf

from decentnode.core.timeouts import Timeouts
from decentnode.launcher.monitoring.membership import MembershipTable


class ExitMonitor:
    """Those of one machine."""

    def __init__(
        self, membership: MembershipTable, processes: Mapping[int, Sequence[int]], timeouts: Timeouts
    ) -> None:
        """`processes`: the ranks of each host process here, by its position."""
        self._membership = membership
        self._processes = processes
        self._timeouts = timeouts
        self._since: dict[int, float] = {}

    @property
    def pause(self) -> float:
        """Seconds until a process is overdue, or not waited for any longer; infinite without one."""
        limits = self._timeouts.process_exit, self._timeouts.process_gone
        passed = self._under_way(time.monotonic()).values()
        return min(
            (limit - seconds for seconds in passed for limit in limits if seconds < limit), default=inf
        )

    def are_awaited(self, now: float) -> bool:
        """Whether some process is still on its way out, and not even a kill has been in vain."""
        return any(seconds < self._timeouts.process_gone for seconds in self._under_way(now).values())

    def overdue(self, now: float) -> list[int]:
        """Positions of the processes that have not ended in all their time, and are to be killed."""
        return [
            position
            for position, seconds in self._under_way(now).items()
            if self._timeouts.process_exit <= seconds < self._timeouts.process_gone
        ]

    def _under_way(self, now: float) -> dict[int, float]:
        """For how many seconds processes have been there, as far as was seen, without a node at work."""
        members = self._membership.members
        found = [
            position
            for position, ranks in self._processes.items()
            if position not in self._membership.ended and not any(members[rank].is_active for rank in ranks)
        ]
        self._since = {position: self._since.get(position, now) for position in found}
        return {position: now - since for position, since in self._since.items()}
