"""Lists of hosts and of tasks per host as SLURM writes them: `a[1-3,07-09],b` and `2(x3),1`."""

import re
import subprocess
from functools import cache

from decentnode.core.timeouts import Timeouts
from decentnode.errors import MappingError

MOST_HOSTS = 65_536
"""More than any cluster has; a longer list is a mistake."""
_TASKS = re.compile(r"(\d+)(?:\(x(\d+)\))?")


def expand_hosts(text: str) -> list[str]:
    """`a[1-3],b` as a1, a2, a3, b, by `scontrol`; raises MappingError."""
    hosts = list(_shown_by_scontrol(text)) if "[" in text or "]" in text else text.split(",")
    if not all(hosts):
        raise MappingError(f"'{text[:80]}' is no list of hosts, such as a[1-3,07-09],b")
    return hosts


@cache
def _shown_by_scontrol(text: str) -> tuple[str, ...]:
    """Every host of a list with ranges, expanded by scontrol; raises MappingError."""
    command, nothing = ["scontrol", "show", "hostnames", text], subprocess.DEVNULL
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=Timeouts.scontrol, stdin=nothing, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise _failed(text, str(error)) from error
    if done.returncode:
        raise _failed(text, " ".join(done.stderr.split()))
    return tuple(done.stdout.split())


def _failed(text: str, why: str) -> MappingError:
    return MappingError(f"`scontrol show hostnames '{text[:80]}'` failed: {why[:200]}; list mapping.machines")


def expand_counts(text: str) -> list[int]:
    """`2(x3),1` as 2, 2, 2, 1; raises MappingError."""
    counts: list[int] = []
    for word in text.split(","):
        match = _TASKS.fullmatch(word.strip())
        times = int(match[2] or 1) if match else 0
        if not match or len(counts) + times > MOST_HOSTS:
            raise MappingError(f"'{text[:80]}' is no list of tasks per machine, such as 2(x3),1")
        counts += [int(match[1])] * times
    return counts
