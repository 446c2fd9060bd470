"""Writers that fail, hang or are slow cost a line each, and neither others' rows nor the end of the run."""

import json
import os
import signal
import time
from dataclasses import dataclass
from types import SimpleNamespace

import msgspec
import pytest

from decentnode.config.plugin import Plugin
from decentnode.core.timeouts import Timeouts
from decentnode.errors import BadInput
from decentnode.formats.reader import EvaluationFollower, EvaluationRow
from decentnode.launcher.state.run_directory import RunLock
from decentnode.results.writers import Writer
from decentnode.results.writers.process import RowWriters
from tests.integration.running import wait_until


@dataclass(kw_only=True)
class Keeps(Writer):
    """Keeps rounds in a file of the run's directory, and at the end the number of nodes."""

    def begin(self, run, rows):
        self.path = run.directory / "kept"
        self.keep(*(row.round for row in rows))
        (run.directory / f"begun-{os.getpid()}").touch()

    def row(self, row):
        self.keep(row.round)

    def close(self, summary):
        self.keep(summary.get("nodes", "killed"))

    def keep(self, *items):
        with self.path.open("a") as file:
            file.write("".join(f"{item}\n" for item in items))


@dataclass(kw_only=True)
class Fails(Keeps):
    """Fails in one of its methods."""

    where: str

    def begin(self, run, rows):
        self.fail("begin")
        super().begin(run, rows)

    def row(self, row):
        self.fail("row")

    def close(self, summary):
        self.fail("close")

    def keep(self, *items):
        """Nothing: the file is that of another writer."""

    def fail(self, method):
        if method == self.where:
            raise {"begin": BadInput("no key"), "row": OSError("disk\nfull"), "close": SystemExit(3)}[method]


@dataclass(kw_only=True)
class Crashes(Keeps):
    """Dies at its first row, as by an error in the C code of a library."""

    def row(self, row):
        os.kill(os.getpid(), signal.SIGKILL)


@dataclass(kw_only=True)
class Hangs(Keeps):
    """Hangs at its first row."""

    def row(self, row):
        time.sleep(1000)


@dataclass(kw_only=True)
class Slow(Keeps):
    """Takes as long to begin as the import of a large library."""

    def begin(self, run, rows):
        time.sleep(1.5)
        super().begin(run, rows)


class Started:
    """Writers of a run without nodes."""

    def __init__(self, run_dir, *plugins):
        self.run_dir, self.events = run_dir, []
        named = [Plugin(cls=cls, options=o, kind="writer", name=cls.__name__) for cls, o in plugins]
        experiment = SimpleNamespace(settings=SimpleNamespace(records=SimpleNamespace(writers=named)))
        log_event = lambda kind, text: self.events.append(f"{kind}: {text}")
        self.writers = RowWriters(experiment, 0, run_dir, run_lock=RunLock(run_dir), log_event=log_event)
        self.writers.start()

    def add(self, *rounds: int) -> None:
        with (self.run_dir / "evaluations.jsonl").open("ab") as file:
            file.writelines(msgspec.json.encode(row(round)) + b"\n" for round in rounds)
        self.writers.after_round(None)

    def finish(self, is_urgent: bool = False) -> None:
        (self.run_dir / "summary.json").write_text(json.dumps({"schema": 3, "nodes": 99}))
        self.writers.finish(lambda: is_urgent)

    def begin(self, working: int) -> None:
        """Begins, and waits until so many writers have no error in it."""
        self.writers.begin()
        self.wait(lambda: len([*self.run_dir.glob("begun-*")]) == working)

    @property
    def kept(self) -> list[str]:
        path = self.run_dir / "kept"
        return path.read_text().split() if path.exists() else []

    def wait(self, condition) -> None:
        def holds():
            self.writers.check()
            return condition()

        wait_until(holds, 20, lambda: f"{self.events} {self.kept}")


@pytest.fixture
def start(tmp_path):
    (tmp_path / "config.yaml").write_text("name: x\n")
    (tmp_path / "logs").mkdir()
    made = []

    def start(*plugins):
        made.append(Started(tmp_path, *plugins))
        return made[-1]

    yield start
    for started in made:
        started.writers.close()


def row(round: int) -> EvaluationRow:
    return EvaluationRow(round, 1.0, {"accuracy": {0: 0.5}}, {}, {})


def test_rows_come_in_order_after_those_of_earlier_starts(start):
    started = start((Keeps, {}))
    started.add(4, 2)
    started.writers.begin()
    started.wait(lambda: started.kept == ["2", "4"])
    started.add(6)
    started.wait(lambda: started.kept == ["2", "4", "6"])
    started.add(8)
    started.finish()
    assert (started.kept, started.events) == (["2", "4", "6", "8", "99"], [])


LACKS = "; it lacks the evaluations after that"


def test_a_writer_that_fails_is_dropped_and_named_once(start):
    plugins = [(Fails, {"where": where}) for where in ("begin", "row", "close")]
    started = start(*plugins, (Crashes, {}), (Keeps, {}))
    started.begin(working=4)
    started.add(*range(5))
    started.wait(lambda: len(started.events) == 3)
    assert sorted(started.events) == [
        f"writer: writer Crashes is dropped: killed by signal 9{LACKS}",
        f"writer: writer Fails is dropped: OSError: disk{LACKS}",
        f"writer: writer Fails is dropped: no key{LACKS}",
    ]
    started.finish()
    assert started.events[3:] == [f"writer: writer Fails is dropped: SystemExit: 3{LACKS}"]
    assert started.kept == ["0", "1", "2", "3", "4", "99"]


def test_a_writer_that_hangs_is_ended_after_the_limit(start, monkeypatch):
    monkeypatch.setattr(Timeouts, "last_rows", 2.0)
    started = start((Hangs, {}), (Keeps, {}))
    started.begin(working=2)
    started.add(0)
    began = time.monotonic()
    started.finish()
    assert 2.0 <= time.monotonic() - began < 20
    assert started.kept == ["0", "99"] and len(started.events) == 1
    assert "Hangs is dropped: it had not finished in time" in started.events[0]


def test_a_second_signal_ends_the_wait_at_once(start):
    started = start((Hangs, {}))
    started.begin(working=1)
    started.add(0)
    began = time.monotonic()
    started.finish(is_urgent=True)
    assert len(started.events) == 1 and time.monotonic() - began < Timeouts.last_rows / 2


@pytest.mark.parametrize("cls", [Slow, Hangs])
def test_a_writer_outlives_a_killed_launcher_until_it_has_the_rows(start, tmp_path, monkeypatch, cls):
    """However long it takes to begin, and not for ever."""
    monkeypatch.setattr(Timeouts, "last_rows", 20.0 if cls is Slow else 0.5)
    pid = os.fork()
    if pid == 0:
        started = start((cls, {}))
        if cls is Slow:
            started.writers.begin()
        else:
            started.begin(working=1)
        started.add(0, 1)
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(pid, 0)
    # Another start waits for the writer.
    monkeypatch.setattr(Timeouts, "run_lock", 10.0)
    RunLock(tmp_path).release()
    assert (tmp_path / "kept").read_text().split() == (["0", "1", "killed"] if cls is Slow else [])


def test_a_run_that_never_begins_has_no_writers(start):
    started = start((Keeps, {}))
    started.finish()
    assert (started.kept, started.events) == ([], [])


def test_a_writer_ends_with_a_launcher_that_dies_before_the_run_begins(start, tmp_path):
    pid = os.fork()
    if pid == 0:
        start((Keeps, {}))
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(pid, 0)
    RunLock(tmp_path).release()
    assert not (tmp_path / "kept").exists()


def test_a_follower_reads_whole_lines_once(tmp_path):
    path = tmp_path / "evaluations.jsonl"
    follower = EvaluationFollower(path)
    assert follower.read() == []
    lines = [msgspec.json.encode(row(round)) + b"\n" for round in range(4)]
    path.write_bytes(lines[0] + lines[1] + lines[2][:9])
    assert [kept_row.round for kept_row in follower.read()] == [0, 1]
    assert follower.read() == []
    path.write_bytes(b"".join(lines[:3]))
    assert [kept_row.round for kept_row in follower.read()] == [2]
    # A late machine has discarded rows that its nodes repeat.
    path.write_bytes(b"".join(lines[:2]))
    assert follower.read() == []
    path.write_bytes(b"".join(lines))
    assert [kept_row.round for kept_row in follower.read()] == [3]
    path.write_bytes(b"".join(lines) + b"{}\n")
    with pytest.raises(BadInput, match="not written by this version"):
        follower.read()
