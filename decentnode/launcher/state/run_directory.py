"""The directory of a run on one machine: its name, its first files, and who may write there."""

import contextlib
import fcntl
import os
import time
from dataclasses import replace
from itertools import chain, count
from pathlib import Path

import msgspec

from decentnode.config import loader as config
from decentnode.core.atomic_files import write_durably
from decentnode.core.timeouts import Timeouts
from decentnode.errors import BadInput
from decentnode.formats.lease import LOCK, held_elsewhere, lease_in, own_lease
from decentnode.formats.partition_table import PARTITION_FILE
from decentnode.formats.records import write_atomically
from decentnode.node.experiment import Experiment

FINISHING = b"writers\n"
"""What a lock file has while it is held by writers of a killed launcher alone."""
HEARTBEAT_INTERVAL = Timeouts.lease / 6


class RunLock:
    """Held by a launcher and all its processes, so two starts of a run cannot write to one directory.

    It is also a lease that other hosts of a shared disk see, as long as `renew` is called.
    """

    def __init__(self, run_dir: Path) -> None:
        """Takes the lock; raises BadInput if another start holds it, here or on another host."""
        path = run_dir / LOCK
        try:
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise BadInput(f"{path} cannot be opened: {error.strerror}") from error
        limit, is_extended = time.monotonic() + Timeouts.run_lock, False
        while True:
            try:
                # The lock belongs to the open file, so forked processes hold it, too.
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if (holder := held_elsewhere(run_dir, fd)) is None:
                    os.ftruncate(fd, 0)
                    os.pwrite(fd, msgspec.json.encode(own_lease()), 0)
                    self._fd, self._renewed = fd, time.monotonic()
                    return
                fcntl.flock(fd, fcntl.LOCK_UN)
            except BlockingIOError:
                holder = lease_in(fd)
            except OSError as error:
                os.close(fd)
                raise BadInput(f"{path} cannot be locked: {error.strerror or error}") from error
            # Retried, because the processes of a killed launcher end a moment later.
            if time.monotonic() > limit:
                if is_extended or os.pread(fd, len(FINISHING), 0) != FINISHING:
                    os.close(fd)
                    of_holder = f" ({holder})" if holder else ""
                    raise BadInput(f"{run_dir}: this run is in progress{of_holder}; stop it first")
                limit, is_extended = limit + Timeouts.last_rows, True
            time.sleep(0.05)

    def renew(self) -> None:
        """Shows other hosts that the run goes on; may be called at any time, and as often as one likes."""
        if (now := time.monotonic()) - self._renewed > HEARTBEAT_INTERVAL:
            self._renewed = now
            with contextlib.suppress(OSError):
                os.utime(self._fd)

    def end_lease(self) -> None:
        """Lets other hosts have the run, whose last file is written; processes here may still hold it."""
        with contextlib.suppress(OSError):
            os.ftruncate(self._fd, 0)

    def note_finishing(self) -> None:
        """Lets other starts know that only writers hold it, which end within `Timeouts.last_rows`."""
        # A shared lock would tell the same, but flock first gives up the exclusive one.
        with contextlib.suppress(OSError):
            os.ftruncate(self._fd, 0)
            os.pwrite(self._fd, FINISHING, 0)

    def fileno(self) -> int:
        """Returns the descriptor of its file."""
        return self._fd

    def release(self) -> None:
        """Releases it in this process; it is free when the last process that has it ends."""
        self.end_lease()
        self.close()

    def close(self) -> None:
        """Leaves it to the processes that were forked meanwhile."""
        os.close(self._fd)


def locked_directory(run_dir: Path) -> RunLock:
    """Makes the directory of a run, unless an earlier start has, and takes its lock; raises BadInput."""
    try:
        run_dir.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadInput.at("run_dir", f"{run_dir} cannot be written: {error.strerror}") from error
    return RunLock(run_dir)


def unused_directory(name: str) -> Path:
    """Returns a new path under `runs` with the name of the run and the time."""
    first = Path("runs") / f"{name}-{time.strftime('%Y%m%d-%H%M%S')}"
    later = (first.with_name(f"{first.name}-{number}") for number in count(2))
    return next(path for path in chain([first], later) if not os.path.lexists(path))


def machine_directory(run_dir: Path, machine: int) -> Path:
    """Returns a machine's part of a directory that has the same name on all machines."""
    name = f"machine-{machine}"
    return run_dir if run_dir.name == name else run_dir / name


def make_run_directory(experiment: Experiment, machine: int = 0, or_resume: bool = False) -> Path:
    """Makes the directory of a new run with its resolved configuration; raises BadInput.

    Where another machine of the run has it already, because they share a file system, it is a part of it.
    `or_resume`: what is there may be of an earlier start that has ended before the run began.
    """
    settings, several = experiment.settings, len(experiment.mapping.machines) > 1
    if several:
        # Shows the others, and a resume on another host, whose directory it is.
        settings = replace(settings, machine=machine)
    path = Path(settings.run_dir or unused_directory(settings.name)).absolute()
    partition = experiment.samples.table(settings)
    try:
        while True:
            try:
                path.mkdir(parents=True, exist_ok=settings.run_dir is not None)
                break
            except FileExistsError:
                # Two runs that start in the same second have the same generated name.
                if settings.run_dir is not None or not os.path.lexists(path):
                    raise
                path = unused_directory(settings.name).absolute()
        if not _claim(path) and not (or_resume and _is_unused(path)):
            taken, is_shared = path, several and _is_of_another_machine(path, experiment, machine)
            if is_shared:
                path = machine_directory(path, machine)
                path.mkdir(exist_ok=True)
                taken = path
            if not is_shared or not _claim(path):
                raise BadInput.at("run_dir", f"{taken} is not empty; name another one, or remove it")
        (path / "summary.json").unlink(missing_ok=True)
        (path / "logs").mkdir(exist_ok=or_resume)
        write_durably(path / "config.yaml", [config.dump(settings).encode()])
        write_atomically(path / PARTITION_FILE, partition.content)
        if experiment.samples.released is not None:
            experiment.samples.released.write(path)
    except OSError as error:
        raise BadInput.at("run_dir", f"{path} cannot be written: {error.strerror}") from error
    return path


def _claim(path: Path) -> bool:
    """Makes the first folder of a run in an empty directory; False if it is not empty."""
    # The root of a file system has a folder of the system's; a sweep holds a run before its start.
    if any(entry.name not in ("lost+found", LOCK) for entry in path.iterdir()):
        return False
    try:
        (path / "records").mkdir()
    except FileExistsError:  # another machine was faster
        return False
    return True


def _is_unused(path: Path) -> bool:
    """Whether a start has made this directory, and has ended before its run began.

    One that was stopped while it waited for other machines has a summary.
    """
    records = path / "records"
    return not (path / "run.json").exists() and records.is_dir() and not any(records.iterdir())


def _is_of_another_machine(path: Path, experiment: Experiment, machine: int) -> bool:
    """Whether another machine has made the directory for this run, which has not ended."""
    limit = time.monotonic() + Timeouts.run_lock
    while not (path / "config.yaml").exists() and (path / "records").exists() and time.monotonic() < limit:
        time.sleep(0.05)
    try:
        other = config.load(path / "config.yaml")
    except BadInput:
        return False
    if other.machine in (None, machine) or (path / "summary.json").exists():
        return False
    graph = experiment.graph.graph
    return config.digest(other, graph) == config.digest(experiment.settings, graph)
