"""How long a process serves its neighbors after its last node has finished."""

from decentnode.config.settings import FailureSettings

FAREWELL_SECONDS = 5.0
"""The least time in seconds that a process serves readers after its last node has ended."""


def farewell_seconds(failures: FailureSettings) -> float:
    """The longest time in seconds that a process serves readers of what its nodes have sent."""
    # A slower node may not have started to read, and a group cannot send to a node that does not receive.
    return max(FAREWELL_SECONDS, failures.deadline)
