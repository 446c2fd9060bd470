"""What the kernel lets a run have: limits of this process's control group, of its parents, and of the user.

A container, a job of a scheduler or a service has a control group (cgroup v2); a limit may stand at any of
its parents. Where there is none, or no such limit, nothing is limited. Of version 1 the quota of processors
counts.
"""

import math
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

GROUPS = Path("/sys/fs/cgroup")
OF_THIS_PROCESS = Path("/proc/self/cgroup")


def control_group() -> Path:
    """Returns the folder of this process's control group; the root if it has none."""
    names = [path for controllers, path in _memberships() if not controllers]
    return GROUPS / "".join(names[:1])


def cpu_group() -> Path:
    """Returns the folder of the group of version 1 that has its processors; the root if it has none."""
    names = [f"{c}/{path}" for c, path in _memberships() if "cpu" in c.split(",")]
    return GROUPS / "".join(names[:1])


def _memberships() -> Iterator[tuple[str, str]]:
    """Yields the controllers, empty in version 2, and the path of each group that this process is in."""
    with suppress(OSError):
        for line in OF_THIS_PROCESS.read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            yield controllers, path.lstrip("/")


def with_parents(group: Path) -> list[Path]:
    """Returns the group and all groups around it."""
    return [group, *(parent for parent in group.parents if parent.is_relative_to(GROUPS))]


def room(limit: str, usage: str) -> float:
    """Returns the least that a group leaves, as of `memory.max` and `memory.current`; infinity: no limit."""
    return min((most - used for most, used in _numbers(limit, usage)), default=math.inf)


def _numbers(*names: str, group: Path | None = None) -> Iterator[list[int]]:
    """Yields the numbers in these files of each group that has them all; `max` is none."""
    for folder in with_parents(group or control_group()):
        with suppress(OSError, ValueError):
            yield [int((folder / name).read_text()) for name in names]


def processors() -> int:
    """Counts processors that this process may keep busy, within the quotas of its groups."""
    # macOS has no such masks.
    allowed = float(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)
    for group in with_parents(control_group()):
        with suppress(OSError, ValueError):
            quota, period = map(int, (group / "cpu.max").read_text().split())
            allowed = min(allowed, quota / period)
    for quota, period in _numbers("cpu.cfs_quota_us", "cpu.cfs_period_us", group=cpu_group()):
        if quota > 0:
            allowed = min(allowed, quota / period)
    return max(1, math.floor(allowed))


def room_for_processes() -> float:
    """Returns how many more processes and threads may start; infinity without a limit.

    The kernel counts those of a user (`ulimit -u`), but not for root, and those of each group (`pids.max`).
    """
    of_groups = room("pids.max", "pids.current")
    import resource

    soft, _ = resource.getrlimit(resource.RLIMIT_NPROC)
    if soft == resource.RLIM_INFINITY or os.getuid() == 0:
        return of_groups
    return min(of_groups, soft - _threads_of(os.getuid()))


def _threads_of(user: int) -> int:
    count = 0
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended
            if folder.stat().st_uid == user:
                count += sum(1 for _ in (folder / "task").iterdir())
    return count
