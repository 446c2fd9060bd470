"""Passes evaluations to the writers of a run, each in a thread that may fail or hang alone."""

import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from queue import Full, Queue
from typing import Any

from decentnode.config.settings import Plugin
from decentnode.core.process_setup import leave_behind
from decentnode.core.text import counted
from decentnode.core.timeouts import Timeouts
from decentnode.errors import BadInput
from decentnode.results.reader import EvaluationRow
from decentnode.results.run import Run
from decentnode.results.writers import Writer

MOST_WAITING = 1000
"""Evaluations that wait for a slow writer, before it is dropped."""
POLL_INTERVAL = 0.05
Say = Callable[[str, str], object]
"""Records and shows an event, of a kind and with a text."""


class WriterThread(threading.Thread):
    """Calls one writer; nobody waits for it but `RowWriters.close`."""

    def __init__(self, name: str, writer: Writer, run: Run, rows: Sequence[EvaluationRow]) -> None:
        super().__init__(name=f"writer {name}", daemon=True)
        self.problem = ""
        """Why it has ended early, in one line."""
        self.waiting: Queue[EvaluationRow | dict[str, Any]] = Queue(MOST_WAITING)
        """Rows, and last the summary."""
        self._writer = writer
        self._run = run
        self._rows = list(rows)

    def run(self) -> None:
        """Writes until the summary comes, or the first error, which is of another library."""
        try:
            self._writer.begin(self._run, self._rows)
            while isinstance(item := self.waiting.get(), EvaluationRow):
                self._writer.row(item)
                if self.problem:  # dropped meanwhile, so no summary comes
                    return
            self._writer.close(item)
        except BaseException as error:
            text = next(iter(str(error).splitlines()), "")
            # An error of ours says enough without its class.
            is_ours = isinstance(error, BadInput) and text
            self.problem = text if is_ours else f"{type(error).__name__}: {text}".rstrip(": ")


class RowWriters:
    """All writers of a run; without plug-ins, and before `begin`, it does nothing."""

    def __init__(self, plugins: Sequence[Plugin], say: Say) -> None:
        """Starts no thread, because the fork server is not forked yet."""
        self._plugins = plugins
        self._say = say
        self._threads: list[WriterThread] = []

    def begin(self, run_dir: Path, rows: Sequence[EvaluationRow]) -> None:
        """Starts the threads; `rows`: the evaluations so far."""
        for plugin in self._plugins:
            # A description of its own, because it caches what it reads from files.
            thread = WriterThread(plugin.name, plugin.make(), Run(run_dir), rows)
            # A library may hang, also at the exit of the process.
            leave_behind(thread)
            thread.start()
            self._threads.append(thread)

    def put(self, item: EvaluationRow | dict[str, Any]) -> None:
        """Passes a row on, or the summary as the last item; never waits."""
        for thread in self._threads:
            try:
                thread.waiting.put_nowait(item)
            except Full:
                thread.problem = f"{counted(MOST_WAITING, 'evaluation')} wait for it"

    def drop_failed(self) -> None:
        """Reports each writer that has failed in one line, and passes it no more rows."""
        for thread in [thread for thread in self._threads if thread.problem]:
            self._threads.remove(thread)
            self._say("writer", f"{thread.name} is dropped: {thread.problem}")

    def close(self, summary: dict[str, Any], is_urgent: Callable[[], bool]) -> None:
        """Waits until all have finished, at most for the limit, or until it is urgent."""
        self.put(summary)
        limit = time.monotonic() + Timeouts.last_rows
        while any(t.is_alive() for t in self._threads) and not is_urgent() and time.monotonic() < limit:
            time.sleep(POLL_INTERVAL)
        for thread in self._threads:
            if thread.is_alive() and not thread.problem:
                thread.problem = "it had not finished in time; its last rows may be missing"
        self.drop_failed()
        self._threads = []
