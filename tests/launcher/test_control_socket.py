"""Questions to a run: answered without ever waiting, and shown as a person reads them."""

import contextlib
import errno
import os
import socket
import subprocess
import sys
import threading
import time
from types import SimpleNamespace

import msgspec
import pytest

from decentnode.cli import status
from decentnode.communication.launcher_link.reports import PeerMissing, Stuck, Waiting
from decentnode.core.polling import ready
from decentnode.core.timeouts import Timeouts
from decentnode.errors import BadInput, RunFailed
from decentnode.formats.reader import Live, read_events
from decentnode.launcher.monitoring import control_socket
from decentnode.launcher.monitoring import control_socket as control
from decentnode.launcher.monitoring.control_socket import ControlServer, NodeStatus, Request, Status, query
from decentnode.launcher.monitoring.monitor import RunMonitor
from decentnode.launcher.monitoring.stragglers import StragglerTracker
from decentnode.launcher.state.event_log import EventLog
from decentnode.launcher.state.membership import MembershipTable
from tests.support.reported import report_to

STATUS = Status(
    "trial", 0, 1, 50, 12.5,
    [
        NodeStatus(0, "running", 41, "waiting", 3.25, [1], 0.25),
        NodeStatus(1, "stuck", 39, "training", 64.0, [], 0.5),
        NodeStatus(2, "lost", 3, "", 80.0, [], None),
    ],
    [(0, 1, 64)],
)  # fmt: skip


class Launcher:
    """Serves a control socket in a thread, in a loop as the launcher's."""

    def __init__(self, tmp_path, **requests):
        (tmp_path / "config.yaml").touch()
        self.control = ControlServer(tmp_path, str(tmp_path), 0, requests)
        self.path = f"{tmp_path}/control"
        self.stopped = threading.Event()
        self.slowest = 0.0
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self):
        while not self.stopped.is_set():
            readers, writers = self.control.readers, self.control.writers
            ready(readers, writers, 0.01)
            began = time.thread_time()
            self.control.serve()
            self.slowest = max(self.slowest, time.thread_time() - began)

    def end(self):
        self.stopped.set()
        self.thread.join()
        self.control.close()


@contextlib.contextmanager
def served(tmp_path, **requests):
    launcher = Launcher(tmp_path, **requests)
    try:
        yield launcher
    finally:
        launcher.end()


def test_a_question_is_answered(tmp_path):
    with served(tmp_path, status=lambda _: STATUS, echo=lambda text: {"said": text}) as launcher:
        assert msgspec.json.decode(query(launcher.path, Request("status")), type=Status) == STATUS
        assert msgspec.json.decode(query(launcher.path, Request("echo", "x"))) == {"said": "x"}
        live = msgspec.json.decode((tmp_path / "live.json").read_bytes(), type=Live)
        assert live == Live(os.getpid(), 0, launcher.path)
    assert not (tmp_path / "live.json").exists()


def test_what_is_wrong_with_a_question_is_reported(tmp_path):
    def refuse(text):
        raise BadInput(f"no rank {text}")

    with served(tmp_path, restart=refuse, status=lambda _: STATUS, count=int) as launcher:
        with pytest.raises(RunFailed, match=r"^unknown request 'stats' \(known: count, restart, status\)$"):
            query(launcher.path, Request("stats"))
        with pytest.raises(RunFailed, match=r"^no rank 99$"):
            query(launcher.path, Request("restart", "99"))
        with pytest.raises(RunFailed, match=r"^Exceeds the limit .* for integer string conversion"):
            query(launcher.path, Request("count", "9" * 5000))
        for junk in (
            b"\n",
            b"[]\n",
            b'{"request": 1}\n',
            b"[" * 3000 + b"\n",
            b"\xff\n",
            b'{"request":"\xff"}\n',
        ):
            with socket.socket(socket.AF_UNIX) as client:
                client.connect(launcher.path)
                client.sendall(junk)
                assert client.recv(4096).startswith(b'{"error":"not a request')


def test_an_answer_larger_than_any_buffer_arrives(tmp_path):
    with served(tmp_path, status=lambda _: "x" * 3_000_000) as launcher:
        assert len(query(launcher.path, Request("status"))) == 3_000_002


def test_silent_slow_and_endless_clients_hold_up_nobody(tmp_path, monkeypatch):
    monkeypatch.setattr(Timeouts, "control_answer", 0.3)
    with served(tmp_path, status=lambda _: "x" * 3_000_000, ping=lambda _: 1) as launcher:
        clients = [socket.socket(socket.AF_UNIX) for _ in range(12)]
        for number, client in enumerate(clients):
            client.connect(launcher.path)
            # Those beyond the limit may be disconnected by now.
            with contextlib.suppress(OSError):
                if number % 3 == 1:
                    client.sendall(b'{"request": "status"}\n')  # and reads nothing
                if number % 3 == 2:
                    client.sendall(b"x" * 50_000)
        limit = time.monotonic() + 10
        while True:
            try:
                assert bytes(query(launcher.path, Request("ping"))) == b"1"
                break
            except (RunFailed, OSError):
                assert time.monotonic() < limit
        for client in clients:
            client.close()
        assert launcher.slowest < 0.25


def test_a_launcher_that_does_not_answer_times_out(tmp_path, monkeypatch):
    monkeypatch.setattr(Timeouts, "control_answer", 0.2)
    (tmp_path / "config.yaml").touch()
    stopped = ControlServer(tmp_path, str(tmp_path), 0, {})
    with pytest.raises(
        RunFailed, match=rf"^{tmp_path}: the launcher does not answer within 0 s \(process \d+\)$"
    ):
        list(status.report(tmp_path))
    stopped.close()


def test_a_launcher_that_answers_as_many_as_it_can_is_not_taken_for_dead(tmp_path):
    with served(tmp_path, status=lambda _: STATUS) as launcher, contextlib.ExitStack() as clients:
        for _ in range(control.MOST_CLIENTS):
            clients.enter_context(socket.socket(socket.AF_UNIX)).connect(launcher.path)
        with pytest.raises(
            RunFailed, match=r"cannot be asked: (Broken pipe|Connection reset by peer) \(process"
        ):
            list(status.report(tmp_path))


def test_a_launcher_of_another_user_is_not_taken_for_dead(tmp_path, monkeypatch):
    class NotOurs(socket.socket):
        def connect(self, address):
            raise PermissionError(errno.EACCES, "Permission denied")

    with served(tmp_path, status=lambda _: STATUS):
        monkeypatch.setattr(control.socket, "socket", NotOurs)
        why = rf"^{tmp_path}: the launcher cannot be asked: Permission denied"
        with pytest.raises(RunFailed, match=rf"{why} \(process {os.getpid()}\)$"):
            list(status.report(tmp_path))
        with pytest.raises(BadInput, match=rf"{why}$"):
            status.request_restart(tmp_path, 0)
        monkeypatch.undo()


def test_whoever_finds_nobody_to_ask_reads_how_the_run_has_ended(tmp_path):
    """This holds even at the moment when the launcher stops taking questions."""
    (tmp_path / "config.yaml").touch()
    seen = []

    class Watched(ControlServer):
        def close(self):
            self._socket.close()
            seen.extend(status.report(tmp_path))
            super().close()

    run_monitor = RunMonitor.__new__(RunMonitor)
    run_monitor._event_log = EventLog(tmp_path / "events.jsonl", lambda text: None)
    run_monitor._control = Watched(tmp_path, str(tmp_path), 0, {})
    run_monitor.close("all nodes finished")
    assert seen == [f"{tmp_path}: has ended: all nodes finished"]


def test_what_a_node_has_just_begun_takes_no_negative_time():
    monitor = RunMonitor.__new__(RunMonitor)
    monitor._membership = MembershipTable([0], {0: (0,)})
    monitor._membership.start()
    seen = SimpleNamespace(round=4, since=10.02)
    monitor._membership.heartbeats = {0: SimpleNamespace(read=lambda: seen)}
    monitor.watchdog = SimpleNamespace(
        is_stuck=lambda rank: False,
        activity_of=lambda rank: "",
        waits_for=lambda rank, behind: [],
    )
    assert repr(monitor._node_status(0, now=10.0, behind={}).seconds) == "0.0"
    assert monitor._node_status(0, now=12.52, behind={}).seconds == 2.5


def test_a_run_that_is_under_way(tmp_path):
    with served(tmp_path, status=lambda _: STATUS):
        assert list(status.report(tmp_path)) == [
            "trial: running for 12.5 s, 50 rounds",
            "  rank   round  state     doing               since      loss  waits for",
            "     0      42  running   waiting             3.2 s    0.2500  rank 1",
            "     1      40  stuck     training           64.0 s    0.5000",
            "     2       4  lost      -                  80.0 s         -",
            "slowest: rank 1, in round 40; fastest: rank 0, in round 42",
            "waited longest so far: rank 0 for rank 1: 64 s",
        ]


def test_what_other_machines_have_reported_has_its_age(tmp_path):
    far = NodeStatus(3, "running", 39, "", 1.25, [], 0.5, is_here=False)
    seen = msgspec.structs.replace(STATUS, machines=2, nodes=[STATUS.nodes[0], far])
    with served(tmp_path, status=lambda _: seen):
        lines = [*status.report(tmp_path)]
    assert "slowest: rank 3, 1.2 s ago in round 40; fastest: rank 0, in round 42" in lines


def test_of_many_nodes_the_lost_and_the_slowest_have_lines(tmp_path):
    nodes = [NodeStatus(rank, "running", 10 + rank, "training", 1.0, [], 0.5) for rank in range(100)]
    nodes[90] = NodeStatus(90, "lost", 3, "", 80.0, [], None)
    with served(tmp_path, status=lambda _: msgspec.structs.replace(STATUS, nodes=nodes)):
        _, states, _, *lines, others, slowest, _ = status.report(tmp_path)
    assert states == "100 nodes: 99 running, 1 lost" and others == "  and 84 other nodes"
    assert [int(line.split()[0]) for line in lines] == [*range(15), 90]
    assert slowest == "slowest: rank 0, in round 11; fastest: rank 99, in round 110"


def test_a_run_that_was_killed_has_its_files(tmp_path):
    (tmp_path / "config.yaml").touch()
    event_log = EventLog(tmp_path / "events.jsonl", lambda text: None)
    event_log.log("peer_lost", "rank 3, round 10: continuing without rank 5: killed", 3, 9, 5)
    event_log.close()
    (tmp_path / "live.json").write_bytes(msgspec.json.encode(Live(7, 0, str(tmp_path / "gone"))))
    (tmp_path / "checkpoints" / "00000").mkdir(parents=True)
    (tmp_path / "checkpoints" / "00000" / "00000009.json").touch()
    first, going_on, *fields = status.report(tmp_path)
    assert first == (f"{tmp_path}: its launcher (pid 7) not found: it was killed, or runs on another machine")
    assert going_on == f"resume with: decentnode resume {tmp_path}"
    assert fields[0] == "events:"
    assert fields[1].endswith("peer_lost   rank 3, round 10: continuing without rank 5: killed")


def test_a_run_that_has_ended_says_how(tmp_path):
    (tmp_path / "config.yaml").touch()
    event_log = EventLog(tmp_path / "events.jsonl", lambda text: None)
    for kind, text in [("started", ""), ("ended", "by SIGTERM"), ("started", "")]:
        event_log.log(kind, text)
    assert "no record of how it ended" in next(status.report(tmp_path))
    event_log.log("ended", "trial: all 16 nodes finished 5 rounds (exit code 0)")
    event_log.close()
    assert list(status.report(tmp_path)) == [
        f"{tmp_path}: has ended: trial: all 16 nodes finished 5 rounds (exit code 0)"
    ]


@pytest.mark.parametrize("content", [b'{"pid":1,"machine":0,"control":"\xff"}', b"[" * 5000, b"{}"])
def test_a_damaged_word_of_where_the_launcher_is_is_none(tmp_path, content):
    (tmp_path / "config.yaml").touch()
    (tmp_path / "live.json").write_bytes(content)
    assert control_socket.live_of(tmp_path) is None


def test_an_answer_that_cannot_be_read_is_reported(tmp_path):
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(f"{tmp_path}/control")
        server.listen(1)

        def answer():
            connection = server.accept()[0]
            assert connection.recv(1000)  # else it would be closed under who asks
            connection.sendall(b'{"error":"\xff"}\n')
            connection.close()

        thread = threading.Thread(target=answer)
        thread.start()
        with pytest.raises(RunFailed, match=r"^the launcher's answer cannot be read"):
            query(f"{tmp_path}/control", Request("status"))
        thread.join()


def test_asking_loads_no_torch():
    code = "import sys, decentnode.cli.status; sys.exit('torch' in sys.modules or 'numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_a_event_log_keeps_what_it_shows(tmp_path):
    shown = []
    event_log = EventLog(tmp_path / "events.jsonl", shown.append)
    stragglers, members = StragglerTracker(), MembershipTable(range(6), {})
    members.start()
    waiting = Waiting(3, 9, [5], 4.0, "training for 5 s")
    reports = PeerMissing(3, 9, 5, "silent for 2 s"), Stuck(5, 9, "training", 61.0), waiting
    report_to(members, *reports, parts=[stragglers], event_log=event_log)
    stragglers.report(event_log, time.monotonic())
    stragglers.report(event_log, time.monotonic())
    report_to(members, PeerMissing(4, 9, 5, "left"), event_log=event_log, is_stopping=True)
    event_log.close()
    assert event_log.lost_results == []
    events = read_events(tmp_path / "events.jsonl")
    assert [(e.kind, e.rank, e.round, e.peer) for e in events] == [
        ("peer_lost", 3, 9, 5), ("stuck", 5, 9, None), ("waiting", 3, 9, 5), ("peer_lost", 4, 9, 5),
    ]  # fmt: skip
    assert shown == [event.text for event in events[:3]]
    assert shown[1:] == [
        "rank 5, round 10: no progress for 61 s (training)",
        "rank 3 waiting for 4 s in round 10, for rank 5 (rank 5: training for 5 s)",
    ]


def test_a_path_that_is_no_text_can_be_reported(tmp_path):
    event_log = EventLog(tmp_path / "events.jsonl", lambda text: None)
    event_log.log("disk", "caf\udce9.log: é is text")
    event_log.close()
    (event,) = read_events(tmp_path / "events.jsonl")
    assert event.text == r"caf\udce9.log: é is text"


def test_results_that_are_lost_are_reported_and_kept(tmp_path):
    event_log = EventLog(tmp_path / "events.jsonl", lambda text: None)
    event_log.disk_problem(3, "records wait in memory", is_lost=False)
    assert event_log.lost_results == []
    event_log.disk_problem(3, "records could not be written", is_lost=True)
    assert event_log.lost_results == ["rank 3: records could not be written"]
    event_log.close()
    assert [event.kind for event in read_events(tmp_path / "events.jsonl")] == ["disk"] * 2


def test_one_line_a_minute_is_shown_of_a_disk(tmp_path, monkeypatch):
    shown, now = [], [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    event_log = EventLog(tmp_path / "events.jsonl", shown.append)
    for second in (0, 1, 59, 61):
        now[0] = float(second)
        for rank in range(4):
            event_log.disk_problem(rank, "records wait in memory", is_lost=False)
    event_log.close()
    assert shown == ["rank 0: records wait in memory"] * 2
    assert len(read_events(tmp_path / "events.jsonl")) == 16


def test_a_event_log_that_cannot_be_written_says_so_once_and_at_the_end(tmp_path):
    shown = []
    event_log = EventLog(tmp_path / "no" / "events.jsonl", shown.append)
    for _ in range(5):
        event_log.log("started", "", shown=False)
    assert len(shown) == 1
    assert "No such file or directory" in shown[0]
    event_log.close()
    assert "(6 missing)" in shown[1]
    assert event_log.lost_results == shown[1:]


def test_a_launcher_that_ends_while_it_is_asked_is_gone(tmp_path):
    """Its socket has accepted the question, and nobody reads it."""
    path = tmp_path / "socket"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as server:
        server.bind(str(path))
        server.listen()

        def end():
            time.sleep(0.2)
            path.unlink()
            server.close()

        ending = threading.Thread(target=end)
        ending.start()
        with pytest.raises(FileNotFoundError):
            query(str(path), Request("status"))
        ending.join()
