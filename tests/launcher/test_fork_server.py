"""The parent of the host processes, with processes that do nothing but end."""

import errno
import os
import signal
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from decentnode.communication.launcher_link.heartbeats import HeartbeatBoard
from decentnode.communication.launcher_link.reports import Exited, Failed, Reporter, ReportReader, Restarted
from decentnode.core.polling import ready
from decentnode.core.process_setup import ForkedProcess
from decentnode.core.timeouts import Timeouts
from decentnode.errors import StartError
from decentnode.launcher.processes import fork_server

SECONDS = 20.0
"""For each wait; far more than it takes."""


def serve(reporter, gate, lifeline, forks, error):
    """A server of two processes: the first fails at once, the second lasts until the gate opens.

    So many forks succeed, and those after them raise the error.
    """
    fork, count = os.fork, iter(range(10))

    def fork_or_raise():
        if next(count) >= forks:
            raise OSError(error, os.strerror(error))
        return fork()

    def run_host(fork_context, position, incarnation):
        if position == 1:
            os.read(gate, 1)
        os._exit(1 - position)

    os.fork, fork_server.run_host = fork_or_raise, run_host
    fork_context = SimpleNamespace(
        reporter=reporter, heartbeats=HeartbeatBoard([0, 1, 2]), identity=SimpleNamespace(message_id=5),
        experiment=SimpleNamespace(
            processes=[SimpleNamespace(ranks=(0, 1)), SimpleNamespace(ranks=(2,))],
            settings=SimpleNamespace(failures=SimpleNamespace(restart=SimpleNamespace(attempts=1))),
        ),
    )  # fmt: skip
    fork_server.ForkServerProcess(fork_context, [0, 1], lifeline).serve()


@pytest.mark.parametrize("error", [errno.EAGAIN, errno.ENOMEM])
def test_a_process_that_cannot_be_restarted_costs_no_other(error):
    read, write = os.pipe()
    gate_end, gate = os.pipe()
    lifeline_end, lifeline = os.pipe()
    server = os.fork()
    if server == 0:
        try:
            os.close(read)
            os.close(lifeline)
            serve(Reporter(write), gate_end, lifeline_end, forks=2, error=error)
        finally:
            os._exit(0)
    for fd in (write, gate_end, lifeline_end):
        os.close(fd)
    inflow, reports = ReportReader(read), []
    while not inflow.closed:
        ready([read], seconds=SECONDS)
        new_reports = inflow.read()
        assert new_reports or inflow.closed, "neither a report nor the end"
        reports += new_reports
        if len(reports) == 4:
            os.write(gate, b".")
    os.waitpid(server, 0)
    for fd in (read, gate, lifeline):
        os.close(fd)
    reason = f"its process could not be started: {os.strerror(error)}"
    lost = [Failed(rank, reason, error == errno.ENOMEM) for rank in (0, 1)]
    assert reports == [Restarted(0, 1, 1), *lost, Exited(0, 4), Exited(1, 0)]


def test_a_server_that_cannot_be_forked_is_an_error_in_words(monkeypatch):
    def refuse():
        raise OSError(errno.EAGAIN, "Resource temporarily unavailable")

    monkeypatch.setattr(os, "fork", refuse)
    message = "^the processes of this machine cannot be started: Resource temporarily unavailable$"
    with pytest.raises(StartError, match=message):
        fork_server.ForkServer(None, [0])


def test_a_server_that_does_not_end_is_waited_for_with_a_limit(monkeypatch):
    """As when the kernel keeps one of its children for ever."""
    monkeypatch.setattr(Timeouts, "server_end", 0.3)
    server = object.__new__(fork_server.ForkServer)
    server.process = ForkedProcess(lambda lifeline: time.sleep(60) or 0, down=1)
    os.kill(server.process.pid, signal.SIGSTOP)
    began = time.monotonic()
    server.close()
    assert time.monotonic() - began < 5.0
    assert not Path(f"/proc/{server.process.pid}").exists()


def test_a_server_that_is_killed_before_it_has_sent_anything_leaves_no_directory(tmp_path, monkeypatch):
    def die(fork_context, *_):
        fork_context.socket_dir.mkdir()
        os.kill(os.getpid(), signal.SIGKILL)

    monkeypatch.setattr(fork_server, "_serve", die)
    fork_context = SimpleNamespace(socket_dir=tmp_path / "sockets")
    with pytest.raises(StartError, match=r"^the process that starts the nodes was killed by signal 9$"):
        fork_server.ForkServer(fork_context, [0])
    assert list(tmp_path.iterdir()) == []
