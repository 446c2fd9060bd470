"""The file `lock` of a run's directory: who writes to the run, as all hosts of a shared disk see it.

Between the processes of one host the lock of the kernel decides, which ends with the last of them. A disk may
not carry that lock to other hosts, so the file also names the process, which touches it again and again: its
heartbeat. Without one for `Timeouts.lease` the run is free. Ages are those of the disk's own clock.
"""

import contextlib
import os
import socket
import tempfile
from pathlib import Path

import msgspec

from decentnode.core.clock import boot
from decentnode.core.timeouts import Timeouts
from decentnode.errors import UNDECODABLE

try:
    import fcntl
except ModuleNotFoundError:  # a system on which no node runs
    fcntl = None  # type: ignore[assignment]

LOCK = "lock"
MOST_BYTES = 1 << 12


class Lease(msgspec.Struct, frozen=True):
    """Who holds a run."""

    host: str
    boot: str
    """The kernel's id of the boot of that host."""
    process: int
    job: str = ""
    """The job of Slurm that the process belongs to, which `scancel` stops; empty: none."""

    @property
    def is_here(self) -> bool:
        """Whether its process is, or was, on this host, where the kernel's lock tells whether it lives."""
        return self.boot == boot()

    def __str__(self) -> str:
        of_job = f" of Slurm job {self.job}" if self.job else ""
        return f"process {self.process}{of_job} on {self.host}"


def own_lease() -> Lease:
    """Returns the lease of this process."""
    return Lease(socket.gethostname(), boot(), os.getpid(), os.environ.get("SLURM_JOB_ID", ""))


def lease_in(fd: int) -> Lease | None:
    """Returns what an open lock file says; None where nobody has written there, or has given it back."""
    with contextlib.suppress(OSError, *UNDECODABLE):
        return msgspec.json.decode(os.pread(fd, MOST_BYTES, 0), type=Lease)
    return None


def held_elsewhere(run_dir: Path, fd: int) -> Lease | None:
    """Returns the lease of another host if its heartbeat is not old; `fd`: the open lock file."""
    lease = lease_in(fd)
    if lease is None or lease.is_here:
        return None
    try:
        with tempfile.TemporaryFile(dir=run_dir) as now:
            age = os.fstat(now.fileno()).st_mtime - os.fstat(fd).st_mtime
    except OSError:  # a reader who cannot write there cannot know
        return lease
    return lease if age < Timeouts.lease else None


def lease_of(run_dir: Path) -> Lease | None:
    """Returns who holds a run now, on this host or another one; None: nobody."""
    try:
        fd = os.open(run_dir / LOCK, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        if fcntl is not None:
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return held_elsewhere(run_dir, fd)
    except OSError:
        return lease_in(fd) or Lease("an unknown host", "", 0)
    finally:
        os.close(fd)
