"""A run depends on nothing that a user, a shell or a service has left around it."""

import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from decentnode.communication.base import folder_for_sockets
from tests.integration.spawner import ROOT

CONFIG = """
rounds: 2
graph: {name: ring, nodes: 3}
dataset: {name: digits, train_size: 300}
model: {name: mlp, hidden: [8]}
training: {optimizer: {name: SGD, lr: 0.1}, batch_size: 16, steps_per_round: 1}
evaluation: {every: 1}
"""


def test_a_run_in_a_hostile_environment(tmp_path):
    """Files with names of Python's own modules, a style of figures, a long TMPDIR, no home, other signals."""
    for name in ("random.py", "statistics.py", "platform.py"):
        (tmp_path / name).write_text("raise RuntimeError('a file of the user')\n")
    (tmp_path / "matplotlibrc").write_text("text.usetex: True\n")
    (tmp_path / "x.yaml").write_text(CONFIG)
    long = tmp_path / ("x" * 90)
    long.mkdir()

    def ignore():
        for signum in (signal.SIGCHLD, signal.SIGINT, signal.SIGHUP):
            signal.signal(signum, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})

    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), "TMPDIR": str(long), "CDPATH": "."}
    command = [sys.executable, "-P", "-m", "decentnode", "run", "x.yaml", "run_dir=r"]
    started = {"cwd": tmp_path, "env": environment, "preexec_fn": ignore}
    done = subprocess.run(command, **started, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads((tmp_path / "r" / "summary.json").read_text())["finished_nodes"] == 3
    assert (tmp_path / "r" / "overview.png").stat().st_size > 10_000
    script = 'source eval/setup.sh; echo "$root"'
    root = subprocess.run(["bash", "-c", script], cwd=ROOT, env=environment, capture_output=True, text=True)
    assert root.stdout == f"{ROOT}\n"


def test_sockets_are_in_a_folder_with_a_short_name(monkeypatch):
    """The kernel takes paths of 107 bytes."""
    monkeypatch.setattr(tempfile, "tempdir", "/somewhere")
    assert folder_for_sockets() == "/somewhere"
    monkeypatch.setattr(tempfile, "tempdir", "/" + "x" * 100)
    assert folder_for_sockets() == "/tmp"
    assert Path(folder_for_sockets()).is_dir()
