"""Reports through a pipe: whole lines, whatever the pieces, and nobody is held up."""

import contextlib
import os
import signal
import threading
import time
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from decentnode.communication.launcher_link import reports as module
from decentnode.communication.launcher_link.reports import (
    MOST_BYTES,
    DiskProblem,
    Evaluated,
    Exited,
    Failed,
    Finished,
    PeerMissing,
    Published,
    Ready,
    Rejoined,
    Reporter,
    ReportReader,
    Restarted,
    RoundProgress,
    Stuck,
    Waiting,
)
from decentnode.core.timeouts import Timeouts

REAL = st.floats(allow_nan=False, allow_infinity=False)
COUNT = st.integers(0, 2**53)
WORDS = st.text(max_size=200).filter(lambda text: text.isprintable())
METRICS = st.dictionaries(WORDS, st.none() | REAL, max_size=3)
REPORTS = st.one_of(
    st.builds(Ready, COUNT, COUNT),
    st.builds(RoundProgress, COUNT, COUNT, st.none() | REAL, COUNT),
    st.builds(Published, COUNT, COUNT, st.none() | REAL, COUNT, REAL, st.booleans(), st.just("none")),
    st.builds(Evaluated, COUNT, COUNT, METRICS),
    st.builds(PeerMissing, COUNT, COUNT, COUNT, WORDS),
    st.builds(
        Finished,
        COUNT,
        COUNT,
        WORDS,
        COUNT,
        COUNT,
        REAL,
        METRICS,
    ),
    st.builds(Failed, COUNT, WORDS, st.booleans()),
    st.builds(Exited, COUNT, st.integers(-64, 255)),
    st.builds(Waiting, COUNT, COUNT, st.lists(COUNT, max_size=8), REAL, WORDS),
    st.builds(Stuck, COUNT, COUNT, WORDS, REAL),
    st.builds(DiskProblem, COUNT, WORDS, st.booleans()),
)


class Pipe:
    def __init__(self):
        read, self.write = os.pipe()
        self.inflow, self.reporter = ReportReader(read), Reporter(self.write)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        os.close(self.inflow.fd)
        if self.write is not None:
            os.close(self.write)

    def hang_up(self):
        os.close(self.write)
        self.write = None


@pytest.fixture
def pipe():
    with Pipe() as pipe:
        yield pipe


@given(st.lists(REPORTS, max_size=8))
def test_every_report_comes_back(reports):
    with Pipe() as pipe:
        assert all(pipe.reporter.send(report) for report in reports)
        assert pipe.inflow.read() == reports
        assert pipe.inflow.read() == []


@given(st.lists(REPORTS, min_size=1, max_size=4), st.integers(1, 60))
def test_reports_are_put_together_from_any_pieces(reports, size):
    with Pipe() as pipe, Pipe() as slow:
        for report in reports:
            pipe.reporter.send(report)
        content = os.read(pipe.inflow.fd, 1 << 16)
        read = []
        for start in range(0, len(content), size):
            os.write(slow.write, content[start : start + size])
            read += slow.inflow.read()
        assert read == reports


def test_nothing_there_is_no_report_and_no_waiting(pipe):
    began = time.monotonic()
    assert pipe.inflow.read() == []
    assert not pipe.inflow.closed
    assert time.monotonic() - began < 0.5


def test_the_end_of_all_writers_is_seen_after_their_last_report(pipe):
    pipe.reporter.send(Ready(1, 2))
    pipe.hang_up()
    assert pipe.inflow.read() == [Ready(1, 2)]
    assert pipe.inflow.closed
    assert pipe.inflow.read() == []


def fill(pipe, make):
    """Sends until nothing more goes in at once; how many went in."""
    sent = 0
    while pipe.reporter.send(make(sent)):
        sent += 1
    return sent


@pytest.fixture
def impatient(monkeypatch):
    monkeypatch.setattr(Timeouts, "report", 0.0)


def peer_missing(i):
    return PeerMissing(0, i, 1, "gone")


@pytest.fixture
def now(monkeypatch):
    """The seconds that writers have waited for room, by a clock that only such waits move."""
    now = [0.0]

    def ready(read, write, seconds):
        now[0] += seconds
        return []

    monkeypatch.setattr(module, "AwakeClock", lambda interval: SimpleNamespace(now=lambda: now[0]))
    monkeypatch.setattr(module, "ready", ready)
    return now


def test_other_reports_wait_a_second_for_room(pipe, now, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(Timeouts, "report", 0.0)
        fill(pipe, peer_missing)
    assert now == [0.0]
    assert not pipe.reporter.send(peer_missing(1))
    assert now == [pytest.approx(1.0)]


@pytest.mark.parametrize("report", [Failed(1, "late"), Restarted(1, -9, 1), Rejoined(1, 5), Ready(1, 2)])
def test_what_nobody_may_miss_goes_out_as_soon_as_there_is_room(pipe, impatient, report):
    sent = fill(pipe, peer_missing)
    with contextlib.suppress(BlockingIOError):  # a shorter line would find room
        while os.write(pipe.write, b" "):
            pass
    read = []
    reader = threading.Timer(0.1, lambda: read.extend(pipe.inflow.read()))
    reader.start()
    assert pipe.reporter.send(report)
    reader.join()
    read += pipe.inflow.read()
    assert read == [*map(peer_missing, range(sent)), report]


def test_the_last_word_waits_longer_but_once_only(impatient, now):
    with Pipe() as pipe:
        fill(pipe, peer_missing)
        with contextlib.suppress(BlockingIOError):  # a shorter line would find room
            while os.write(pipe.write, b" "):
                pass
        for rank in range(2):
            assert not pipe.reporter.send(Failed(rank, "nobody reads"))
            assert now == [pytest.approx(Timeouts.last_report)]


def test_a_reader_that_is_gone_is_no_error():
    read, write = os.pipe()
    reporter = Reporter(write)
    os.close(read)
    assert not reporter.send(Failed(1, "nobody hears"))
    os.close(write)


def test_a_forked_writer_notices_that_the_reader_is_gone():
    read, write = os.pipe()
    reporter = Reporter(write, read)
    child = os.fork()
    if child == 0:
        reporter.close_reading_end()
        signal.signal(signal.SIGPIPE, signal.SIG_IGN)
        status = 1
        while reporter.send(Failed(1, "x" * 2000)):
            status = 0
        os._exit(status)
    os.close(write)
    assert os.read(read, 1)
    os.close(read)
    began = time.monotonic()
    assert os.waitpid(child, 0)[1] == 0
    assert time.monotonic() - began < Timeouts.last_report / 2


def test_a_line_that_could_mix_with_others_is_refused(pipe):
    with pytest.raises(
        ValueError, match=rf"^a report of \d+ bytes; at most {MOST_BYTES} go through the pipe"
    ):
        pipe.reporter.send(Failed(1, "x" * MOST_BYTES))
    assert pipe.inflow.read() == []


def test_lines_of_many_writers_never_mix(pipe):
    writers, lines, received = 6, 200, []
    done = threading.Event()

    def write(rank):
        for i in range(lines):
            assert pipe.reporter.send(PeerMissing(rank, i, 0, "x" * (rank * 150)))

    def read():
        while not done.is_set() or len(received) < writers * lines:
            received.extend(pipe.inflow.read())
            time.sleep(0.001)

    reader = threading.Thread(target=read, daemon=True)
    threads = [threading.Thread(target=write, args=(rank,)) for rank in range(writers)]
    for thread in (reader, *threads):
        thread.start()
    for thread in threads:
        thread.join()
    done.set()
    reader.join(5.0)
    for rank in range(writers):
        assert [r.round for r in received if r.rank == rank] == list(range(lines))
