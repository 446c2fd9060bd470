"""Writers that fail, hang or are slow cost a line each, and neither others' rows nor the end of the run."""

import threading
import time
from dataclasses import dataclass

import pytest

from decentnode.config.settings import Plugin
from decentnode.core.timeouts import Timeouts
from decentnode.errors import BadInput
from decentnode.launcher.report import row_writers
from decentnode.launcher.report.row_writers import RowWriters
from decentnode.results.reader import EvaluationRow
from decentnode.results.writers import Writer

WRITTEN: list[int] = []
RELEASE = threading.Event()


@dataclass(kw_only=True)
class Keeps(Writer):
    """Keeps rounds in a list."""

    def begin(self, run, rows):
        WRITTEN.extend(row.round for row in rows)

    def row(self, row):
        WRITTEN.append(row.round)

    def close(self, summary):
        WRITTEN.append(summary["nodes"])


@dataclass(kw_only=True)
class Fails(Keeps):
    """Fails in one of its methods."""

    where: str

    def begin(self, run, rows):
        self.fail("begin")

    def row(self, row):
        self.fail("row")

    def close(self, summary):
        self.fail("close")

    def fail(self, method):
        if method == self.where:
            raise {"begin": BadInput("no key"), "row": OSError("disk\nfull"), "close": SystemExit(3)}[method]


@dataclass(kw_only=True)
class Hangs(Keeps):
    """Hangs at its first row."""

    def row(self, row):
        RELEASE.wait()


@pytest.fixture
def begun(tmp_path, monkeypatch):
    monkeypatch.setattr(Timeouts, "last_rows", 0.3)
    (tmp_path / "config.yaml").write_text("name: x\n")
    WRITTEN.clear()
    RELEASE.clear()
    told: list[str] = []

    def begin(*plugins, rows=()):
        named = [Plugin(cls=cls, options=o, kind="writer", name=cls.__name__) for cls, o in plugins]
        writers = RowWriters(named, lambda kind, text: told.append(f"{kind}: {text}"))
        writers.begin(tmp_path, rows)
        return writers, told

    yield begin
    RELEASE.set()
    # A thread that is left behind makes a command of a later test end its whole process.
    for thread in threading.enumerate():
        if thread.name.startswith("writer "):
            thread.join(10)
            assert not thread.is_alive()


def row(round: int) -> EvaluationRow:
    return EvaluationRow(round, 1.0, {"accuracy": {0: 0.5}}, {}, {})


def test_rows_come_in_order_after_those_of_earlier_starts(begun):
    writers, told = begun((Keeps, {}), rows=[row(2), row(4)])
    for round in (6, 8):
        writers.put(row(round))
    writers.close({"nodes": 99}, lambda: False)
    assert (WRITTEN, told) == ([2, 4, 6, 8, 99], [])


def test_a_writer_that_fails_is_dropped_and_named_once(begun):
    writers, told = begun(*((Fails, {"where": where}) for where in ("begin", "row", "close")), (Keeps, {}))
    for round in range(5):
        writers.put(row(round))
    limit = time.monotonic() + 20
    while len(told) < 2 and time.monotonic() < limit:
        writers.drop_failed()
        time.sleep(0.01)
    assert sorted(told) == [
        "writer: writer Fails is dropped: OSError: disk",
        "writer: writer Fails is dropped: no key",
    ]
    writers.close({"nodes": 7}, lambda: False)
    assert told[2:] == ["writer: writer Fails is dropped: SystemExit: 3"]
    assert WRITTEN == [0, 1, 2, 3, 4, 7]


def test_a_writer_that_hangs_is_left_behind_after_the_limit(begun):
    writers, told = begun((Hangs, {}), (Keeps, {}))
    writers.put(row(0))
    began = time.monotonic()
    writers.close({"nodes": 7}, lambda: False)
    assert 0.3 <= time.monotonic() - began < 20
    assert (WRITTEN, len(told)) == ([0, 7], 1) and "Hangs is dropped: it had not finished in time" in told[0]


def test_a_second_signal_ends_the_wait_at_once(begun, monkeypatch):
    monkeypatch.setattr(Timeouts, "last_rows", 60.0)
    writers, told = begun((Hangs, {}))
    writers.put(row(0))
    writers.close({"nodes": 7}, lambda: True)
    assert len(told) == 1


def test_rows_that_wait_for_a_slow_writer_are_bounded(begun, monkeypatch):
    monkeypatch.setattr(row_writers, "MOST_WAITING", 3)
    writers, told = begun((Hangs, {}))
    for round in range(9):
        writers.put(row(round))
    writers.drop_failed()
    assert told == ["writer: writer Hangs is dropped: 3 evaluations wait for it"]
    writers.close({"nodes": 7}, lambda: False)
    assert len(told) == 1
