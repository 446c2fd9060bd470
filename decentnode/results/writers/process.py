"""Has the evaluations of a run written for other tools, by processes that may fail, hang or be slow alone.

Each writer is a process, which reads what is new in `evaluations.jsonl` whenever the launcher notifies it. So
a library that takes seconds to import, or a slow server, loses no evaluation. When the launcher is killed,
a writer still writes all rows of the file, and ends within a limit.
"""

import contextlib
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

from decentnode.config.plugin import Plugin
from decentnode.core.polling import ready
from decentnode.core.text import how_it_ended
from decentnode.core.timeouts import Timeouts
from decentnode.errors import BadInput
from decentnode.formats.reader import EvaluationFollower, EvaluationRow
from decentnode.launcher.extension import RunExtension
from decentnode.launcher.processes.child_process import ChildProcess
from decentnode.launcher.state.run_directory import RunLock
from decentnode.results.run import Run
from decentnode.results.writers.base import Writer

BEGIN, ROWS, END = b"b", b"r", b"e"
"""What the launcher notifies a writer of: the run is described, the file has more rows, the run has ended."""
MOST_PROBLEM_BYTES = 1000
POLL_INTERVAL = 0.05


class WriterProcess:
    """The launcher's end of the process of one writer."""

    def __init__(self, plugin: Plugin, run_dir: Path, run_lock: RunLock, log: Path) -> None:
        """Forks the process; raises StartError. No thread may run yet."""
        self.name = plugin.name
        launcher = os.getpid()

        def work(notices: int, problems: int) -> None:
            # It may outlive the launcher, and then must not keep what that held, such as the lock of a sweep.
            kept = {0, 1, 2, notices, problems, run_lock.fileno()}
            for fd in {int(name) for name in os.listdir("/proc/self/fd")} - kept:  # noqa: PTH208 - numbers
                with contextlib.suppress(OSError):  # that of the listing
                    os.close(fd)
            try:
                _follow(plugin, run_dir, run_lock, notices, launcher)
            except BaseException as error:  # whatever the library raises
                text = next(iter(str(error).splitlines()), "")
                # An error of ours says enough without its class.
                is_ours = isinstance(error, BadInput) and text
                problem = text if is_ours else f"{type(error).__name__}: {text}".rstrip(": ")
                os.write(problems, problem.encode()[:MOST_PROBLEM_BYTES])
                raise

        self.child = ChildProcess(f"writer {self.name}", work, log, outlives=True, down=1, up=1)
        self._notices, self._problems = self.child.ends
        # A writer that hangs must not block the launcher; one that ended has said what it had to say.
        os.set_blocking(self._notices, False)
        os.set_blocking(self._problems, False)

    def notify(self, notice: bytes) -> None:
        """Passes a notice on; never waits."""
        with contextlib.suppress(BlockingIOError, BrokenPipeError):
            os.write(self._notices, notice)

    def close(self) -> str:
        """Kills the process unless it has ended; returns in one line why it failed, or an empty text."""
        status, problem = self.child.close(), b""
        with contextlib.suppress(BlockingIOError):
            problem = os.read(self._problems, MOST_PROBLEM_BYTES)
        self.child.close_ends()
        return problem.decode(errors="replace") or (how_it_ended(status) if status else "")


class RowWriters(RunExtension):
    """All writers of a run, on machine 0; without plug-ins it does nothing."""

    def __post_init__(self) -> None:
        self._plugins = () if self.machine else self.experiment.settings.records.writers
        self._processes: list[WriterProcess] = []

    def start(self) -> None:
        for index, plugin in enumerate(self._plugins):
            log = self.run_dir / f"logs/writer-{index}.log"
            self._processes.append(WriterProcess(plugin, self.run_dir, self.run_lock, log))

    def begin(self) -> None:
        self._notify(BEGIN)

    def after_round(self, row: EvaluationRow) -> bool:
        self._notify(ROWS)
        return False

    def check(self) -> None:
        for writer in [writer for writer in self._processes if writer.child.has_ended()]:
            self._processes.remove(writer)
            if problem := writer.close():
                text = f"writer {writer.name} is dropped: {problem}; it lacks the evaluations after that"
                self.log_event("writer", text)

    def finish(self, is_urgent: Callable[[], bool]) -> None:
        self._notify(END)
        limit = time.monotonic() + Timeouts.last_rows
        self.check()
        while self._processes and not is_urgent() and time.monotonic() < limit:
            time.sleep(POLL_INTERVAL)
            self.check()
        for writer in self._processes:
            why = "it had not finished in time; its last rows may be missing"
            self.log_event("writer", f"writer {writer.name} is dropped: {why}")
        self.close()

    def close(self) -> None:
        for writer in self._processes:
            writer.close()
        self._processes.clear()

    def _notify(self, notice: bytes) -> None:
        for writer in self._processes:
            writer.notify(notice)


def _follow(plugin: Plugin, run_dir: Path, run_lock: RunLock, notices: int, launcher: int) -> None:
    """Writes rows as they come until the run ends; after the launcher's death, those that are in the file."""
    alive = os.pidfd_open(launcher)
    if os.getppid() != launcher:  # it died before that, and its number may be another's
        return

    def limit() -> None:
        ready([alive])
        run_lock.note_finishing()
        time.sleep(Timeouts.last_rows)
        # A library may hang.
        os._exit(1)

    threading.Thread(target=limit, daemon=True).start()

    def read_notices() -> bytes:
        """Waits for notices; empty when all were read and the launcher has died."""
        return os.read(notices, 1 << 16) if notices in ready([notices, alive]) else b""

    # Some runs end before they begin.
    if BEGIN not in (latest := read_notices()):
        return
    writer: Writer = plugin.make()
    follower = EvaluationFollower(run_dir / "evaluations.jsonl")
    writer.begin(Run(run_dir), sorted(follower.read(), key=lambda row: row.round))
    while latest and END not in latest:
        latest = read_notices()
        for row in follower.read():
            writer.row(row)
    # A new description: the first one may have read an earlier summary.
    writer.close(Run(run_dir).summary if latest else {})
