"""How long a process serves its neighbors after its last node has finished."""

from decentnode.config.settings import FailureSettings

FAREWELL_SECONDS = 5.0
"""How long a process serves at least, after its last node, those that still read what was sent."""


def farewell_seconds(failures: FailureSettings) -> float:
    """How long a process serves at most those that still read what its nodes have sent."""
    # A slower node may not have begun to read, and a group sends nothing to who does not.
    return max(FAREWELL_SECONDS, failures.deadline)
