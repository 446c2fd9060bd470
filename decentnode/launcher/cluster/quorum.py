"""Who must be here when the first round begins, as `failures.start` says."""

import time
from collections.abc import Iterable

from decentnode.config.settings import FailureSettings
from decentnode.mapping.base import Mapping


class StartQuorum:
    """Machine 0's rule: all machines; or enough nodes, and some time in which the others may still come."""

    def __init__(self, mapping: Mapping, failures: FailureSettings | None = None) -> None:
        """All machines, unless `failures` names a number of nodes; the others then have the grace time."""
        failures = failures or FailureSettings()
        start = failures.start
        self._mapping = mapping
        self._least = mapping.num_nodes if start == "all" else int(start.removeprefix("at_least "))
        self._grace = failures.grace
        self._since: float | None = None

    def suffices(self, missing: Iterable[int]) -> bool:
        """Whether the nodes of the other machines are enough."""
        without = sum(len(self._mapping.ranks_of(machine)) for machine in missing)
        return self._mapping.num_nodes - without >= self._least

    def is_met(self, missing: Iterable[int], is_last_chance: bool) -> bool:
        """Whether the run may begin without these machines; at the last chance nobody is waited for."""
        if not self.suffices(missing):
            self._since = None
            return False
        now = time.monotonic()
        if self._since is None:
            self._since = now
        return is_last_chance or now - self._since > self._grace
