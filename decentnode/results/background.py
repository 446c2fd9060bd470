"""Runs that work while the program goes on: `decentnode.start`."""

import atexit
import os
import signal
import sys
import threading
import weakref
from concurrent.futures import Future
from math import isnan, nan

from decentnode.api.commands import Configuration, values_of
from decentnode.api.display import Lines, display_for, standing
from decentnode.api.process import answer_of
from decentnode.api.work import CommandRequest
from decentnode.config.python_source import NAME_OF_RUN
from decentnode.core.streams import complain
from decentnode.errors import STOPPED_BY, ExitCode, RunFailed
from decentnode.formats.run import FINISHED
from decentnode.launcher.processes.launcher_process import LauncherProcess, RunProgress
from decentnode.results.api import run_of
from decentnode.results.run import Run


def start(
    config: Configuration, /, *, progress: bool = False, or_resume: bool = False, **overrides: object
) -> "BackgroundRun":
    """Starts an experiment, as `run` does, and returns at once.

        handle = decentnode.start("quickstart", rounds=200)
        print(handle.status)
        run = handle.wait()

    Objects are as they are now: what the program changes in them later is not in the run. `progress`: whether
    the lines of the run are shown. Where it fails, a line says so, and `wait` raises as `run`.
    """
    return BackgroundRun(CommandRequest("run", values_of(config), overrides, or_resume=or_resume), progress)


class BackgroundRun:
    """A run beside this program, which does not outlive it.

    At the end of the program a run in progress is stopped gracefully, and a line says so. A signal that kills
    the program kills the run, too, and `checkpoint.every` says how much of it is lost.
    """

    def __init__(self, request: CommandRequest, shows: bool) -> None:
        self._request, self._program = request, os.getpid()
        self._watcher = Watcher(display_for(shows and sys.stdout is not None))
        self._ended = Future[Run]()
        self._is_stopping = self._is_awaited = False
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()
        # Until the process is forked, which has the objects of the caller as they are now.
        self._watcher.has_begun.wait()
        _handles.add(self)
        if self._ended.done():
            self._ended.result()

    def __repr__(self) -> str:
        config = self._request.config
        name = config if isinstance(config, str) else config.get("name", NAME_OF_RUN)
        return f"<decentnode.start: {self._watcher.directory or name}, {self.status}>"

    @property
    def status(self) -> str:
        """How far the run is, or how it has ended, as text."""
        if not self._ended.done():
            is_known = not isnan(self._watcher.standing[0])
            return standing(*self._watcher.standing) if is_known else "starting"
        if (error := self._ended.exception()) is not None:
            return f"failed: {error}"
        state = self._ended.result().state
        return "stopped" if self._is_stopping and state != FINISHED else state

    @property
    def progress(self) -> tuple[float, int]:
        """The rounds that are done, in the mean of the nodes, and all of them; (0, 0) before the first."""
        return self._watcher.standing[1:3]

    @property
    def run(self) -> Run | None:
        """The run as its files are now; None before it has a directory."""
        directory = self._watcher.directory
        return self._run_in(directory) if directory else None

    def wait(self, timeout: float | None = None) -> Run:
        """Returns the run after its end, within so many seconds; raises as `run`, and TimeoutError.

        A Ctrl-C ends the wait, and not the run. One that was stopped is returned as it is.
        """
        self._is_awaited = True
        try:
            return self._ended.result(timeout)
        except TimeoutError:
            raise TimeoutError(f"{self!r} has not ended within {timeout:g} s, and goes on") from None

    def stop(self, timeout: float | None = None) -> Run:
        """Stops all nodes after their round, so that `decentnode.resume` continues them; then as `wait`."""
        if not self._ended.done() and not self._is_stopping:
            self._is_stopping = True
            self._watcher.stop()
        return self.wait(timeout)

    def _work(self) -> None:
        try:
            answer = answer_of(self._request, shows=False, lines=self._watcher)
            if not answer.directory and self._is_stopping:
                raise RunFailed("stopped before its directory was made")
            self._watcher.directory = answer.directory
            is_stopped = self._is_stopping and answer.code in STOPPED_BY.values()
            self._ended.set_result(self._run_in(answer.directory, ExitCode.OK if is_stopped else answer.code))
        except BaseException as error:
            if not self._is_awaited:
                complain(f"decentnode.start: {error}", ExitCode.FAILED)
            self._ended.set_exception(error)
        finally:
            self._watcher.has_begun.set()

    def _run_in(self, directory: str, code: int = ExitCode.OK) -> Run:
        found = run_of(directory, code)
        found.network = self._request.network
        return found

    def end_with_program(self) -> None:
        """Stops a run in progress, unless this is a fork of the program that has started it."""
        if self._program != os.getpid() or self._ended.done():
            return
        line = f"decentnode.start: the program ends, so {self._watcher.directory or 'the run'} is stopped"
        complain(f"{line}; handle.wait() waits for the end of a run", ExitCode.FAILED)
        self._is_stopping = self._is_awaited = True
        while self._thread.is_alive():
            # The launcher bounds the stop; a second Ctrl-C kills the nodes, as for `run`.
            try:
                self._watcher.stop()
                self._thread.join()
            except KeyboardInterrupt:
                continue


class Watcher(Lines):
    """Passes on what a run shows, and keeps how far it is."""

    def __init__(self, lines: Lines) -> None:
        super().__init__()
        self._lines = lines
        self.has_begun = threading.Event()
        """Set when the process of the run is there, or cannot be."""
        self.standing: tuple[float, float, int, float, float] = nan, 0.0, 0, nan, nan
        """The arguments of `show`."""
        self.directory = ""

    def begin(self, process: LauncherProcess, progress: RunProgress) -> None:
        self._process, self._progress = process, progress
        self.has_begun.set()

    def write(self, piece: bytes) -> None:
        self._lines.write(piece)

    def show(self, began: float, done: float, rounds: int, virtual: float = nan, wall: float = nan) -> None:
        self.standing = began, done, rounds, virtual, wall
        self.directory = self._progress.directory
        self._lines.show(*self.standing)

    def close(self) -> None:
        self._lines.close()

    def stop(self) -> None:
        """Stops the run gracefully; a second request kills its nodes."""
        self._process.stop(signal.SIGINT)


_handles: weakref.WeakSet[BackgroundRun] = weakref.WeakSet()


def _end_all() -> None:
    for handle in list(_handles):
        handle.end_with_program()


atexit.register(_end_all)
