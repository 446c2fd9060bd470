"""`pytest --workers N`: the tests are collected once, and N forks of that process share them.

Each worker takes a portion at a time: the tests of a file, in their order. So the fixtures of a module are
made once, and no two tests of a file run at the same time. A worker that dies fails the test that it was
running; another one takes what is left of its portion. `--costs files` prints what those of each file cost.
"""

import itertools
import os
import random
import resource
import signal
import time
from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait

import pytest

from tests.integration.spawner import WORKER, spent

ENDING_SECONDS = 20.0
"""How long interrupted workers may clean up."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--workers", type=int, default=0, help="processes that share the tests")
    parser.addoption("--costs", choices=("files", "tests"), help="with --workers: print what each took")


@dataclass
class Worker:
    """A fork, and those tests of its portions that it has not finished: the first one runs, or is next."""

    pid: int
    connection: Connection
    unfinished: deque[int] = field(default_factory=deque)

    def fileno(self) -> int:
        return self.connection.fileno()


class Costs:
    """Seconds of each file or test: of processors, with the processes that it started, and on the clock."""

    def __init__(self, of: str) -> None:
        self._of = of
        self._clock: Counter[str] = Counter()
        self._processor: Counter[str] = Counter()

    def add(self, item: pytest.Item, processor: float, clock: float) -> None:
        name = item.nodeid.split("[" if self._of == "tests" else "::")[0]
        self._processor[name] += processor
        self._clock[name] += clock

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        terminalreporter.section("seconds of a processor, on the clock")
        rows = [("all", self._processor.total(), self._clock.total())]
        rows += [(name, seconds, self._clock[name]) for name, seconds in self._processor.most_common()]
        for name, processor, clock in rows:
            terminalreporter.write_line(f"{processor:8.1f}{clock:8.1f}  {name}")


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> bool | None:
    options = session.config.option
    if not options.workers or options.collectonly or options.usepdb or session.testsfailed:
        return None
    costs = Costs(options.costs)
    if options.costs:
        session.config.pluginmanager.register(costs)
    share(session, options.workers, costs)
    return True


def share(session: pytest.Session, count: int, costs: Costs) -> None:
    """Runs all tests of a session in `count` forks, and passes their reports on."""
    hook, items = session.config.hook, session.items
    by_file = itertools.groupby(range(len(items)), key=lambda number: items[number].path)
    portions = deque(list(numbers) for _, numbers in by_file)
    # The folder of the session's files; made later, each worker would have another one.
    session.config._tmp_path_factory.getbasetemp()
    numbers = itertools.count()
    workers = [fork(session, next(numbers)) for _ in range(min(count, len(portions)))]
    try:
        while workers:
            for worker in wait(workers):
                try:
                    subject, content = worker.connection.recv()
                except EOFError:
                    workers.remove(worker)
                    status = os.waitstatus_to_exitcode(os.waitpid(worker.pid, 0)[1])
                    if worker.unfinished:
                        report_death(session, items[worker.unfinished.popleft()], status)
                        portions.appendleft(list(worker.unfinished))
                        workers.append(fork(session, next(numbers)))
                    elif status:
                        raise RuntimeError(f"a worker ended between tests, exit code {status}") from None
                    continue
                if subject == "portion":
                    portion = portions.popleft() if portions else None
                    worker.unfinished.extend(portion or ())
                    worker.connection.send(portion)
                elif subject == "report":
                    report = hook.pytest_report_from_serializable(config=session.config, data=content)
                    hook.pytest_runtest_logreport(report=report)
                else:
                    item = items[worker.unfinished.popleft()]
                    costs.add(item, *content)
                    hook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
                if session.shouldfail:
                    raise session.Failed(session.shouldfail)
                if session.shouldstop:
                    raise session.Interrupted(session.shouldstop)
    finally:
        end(workers)


def report_death(session: pytest.Session, item: pytest.Item, status: int) -> None:
    """Fails the test during which a worker died."""
    report = pytest.TestReport(
        item.nodeid, item.location, {}, "failed", f"the worker died in this test, exit code {status}", "call"
    )
    session.config.hook.pytest_runtest_logreport(report=report)
    session.config.hook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)


def end(workers: list[Worker]) -> None:
    """Interrupts workers that are left, as Ctrl-C does, and kills those that do not end."""
    for worker in workers:
        os.kill(worker.pid, signal.SIGINT)
    deadline = time.monotonic() + ENDING_SECONDS
    for worker in workers:
        # What it still has to say is read, so that it does not wait; the end of its pipe is its own end.
        try:
            while worker.connection.poll(max(0.0, deadline - time.monotonic())):
                worker.connection.recv()
            os.kill(worker.pid, signal.SIGKILL)
        except EOFError:
            pass
        os.waitpid(worker.pid, 0)


def fork(session: pytest.Session, number: int) -> Worker:
    """Starts a worker."""
    ours, theirs = Pipe()
    pid = os.fork()
    if pid:
        theirs.close()
        return Worker(pid, ours)
    code = 1
    try:
        ours.close()
        work(session, theirs, number)
        code = 0
    except KeyboardInterrupt:
        code = 2
    finally:
        os._exit(code)


def work(session: pytest.Session, connection: Connection, number: int) -> None:
    """Runs one portion after the other; only the session has a terminal."""
    config, hook = session.config, session.config.hook
    os.environ[WORKER] = str(number)
    random.seed()
    capturing = config.pluginmanager.getplugin("capturemanager")
    capturing.stop_global_capturing()
    capturing.start_global_capturing()
    capturing.suspend_global_capture()
    config.get_terminal_writer()._file = open(os.devnull, "w")  # noqa: PTH123, SIM115
    config.pluginmanager.register(Reports(config, connection))
    before = processor_seconds()
    for item, following in itertools.pairwise(itertools.chain(taken(session.items, connection), [None])):
        clock = time.perf_counter()
        hook.pytest_runtest_protocol(item=item, nextitem=following)
        after = processor_seconds()
        connection.send(("end", (after - before, time.perf_counter() - clock)))
        before = after


def taken(items: list[pytest.Item], connection: Connection) -> Iterator[pytest.Item]:
    """Yields the tests of one portion after the other, as the session gives them."""
    while True:
        connection.send(("portion", None))
        portion = connection.recv()
        if portion is None:
            return
        yield from (items[number] for number in portion)


def processor_seconds() -> float:
    """The processor seconds of this process, and of all that were started here and have ended."""
    usages = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    forked = spent(os.environ[WORKER])
    seconds = map(float, forked.read_text().split()) if forked.exists() else ()
    return sum(seconds) + sum(usage.ru_utime + usage.ru_stime for usage in usages)


class Reports:
    """Sends what a worker reports to the session."""

    def __init__(self, config: pytest.Config, connection: Connection) -> None:
        self._config = config
        self._connection = connection

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        # Nobody counts or prints these; with 12,000 tests they cost half a minute.
        if report.passed and report.when != "call":
            return
        content = self._config.hook.pytest_report_to_serializable(config=self._config, report=report)
        self._connection.send(("report", content))
