"""Machines that are started over ssh; `ssh` is a script that runs the command here."""

import os
import signal
import sys
import threading

import pytest

from decentnode.cli.ssh import run_over_ssh
from decentnode.errors import BadInput

MACHINE = """
import os, signal, sys, time
def end(*_):
    print("saved", flush=True)
    sys.exit(143)
signal.signal(signal.SIGTERM, end)
print("secret", os.environ["DECENTNODE_SECRET"], sys.argv[1], flush=True)
for _ in range(int(sys.argv[1])):
    time.sleep(0.1)
"""


@pytest.fixture
def ssh(tmp_path, monkeypatch):
    path = tmp_path / "ssh"
    reach = 'case "$*" in *nowhere*) exit 255;; esac'
    lines = ["#!/bin/sh", "for last; do :; done", reach, 'exec sh -c "$last"']
    path.write_text("\n".join(lines))
    path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("DECENTNODE_SECRET", "a b'c")
    handlers = {number: signal.getsignal(number) for number in signal.Signals}
    yield path
    for number, handler in handlers.items():
        if number not in (signal.SIGKILL, signal.SIGSTOP) and handler is not None:
            signal.signal(number, handler)


def test_all_machines_run_and_a_signal_stops_all(ssh, capfd):
    command = [sys.executable, "-c", MACHINE]
    assert run_over_ssh([(None, [*command, "1"]), ("host1", [*command, "2"])]) == 0
    shown = capfd.readouterr().out
    assert "secret a b'c 1\n" in shown and "machine 1: secret a b'c 2\n" in shown

    timer = threading.Timer(1.5, os.kill, (os.getpid(), signal.SIGTERM))
    timer.start()
    assert run_over_ssh([(None, [*command, "300"]), ("host1", [*command, "300"])]) == 143
    shown = capfd.readouterr().out
    assert "machine 1: saved\n" in shown and shown.count("saved\n") == 2


def test_who_is_not_reached_is_named(ssh, capfd):
    waiting = [sys.executable, "-c", MACHINE, "300"]
    assert run_over_ssh([(None, waiting), ("host1", waiting), ("nowhere", ["true"])]) in (143, 4)
    shown = capfd.readouterr().out
    assert "machine 2: ssh nowhere has not run it; the lines above say why" in shown
    ssh.unlink()
    os.environ["PATH"] = str(ssh.parent)
    with pytest.raises(BadInput, match=r"^ssh: is not installed here"):
        run_over_ssh([("host1", ["true"])])
