"""Limits of control groups hold wherever they stand, and what they leave is counted."""

import fcntl
import math
import os
import resource
import signal

import pytest

from decentnode.config import loader
from decentnode.core import control_groups, process_setup
from decentnode.errors import STOPPED_BY, BadInput
from decentnode.launcher import preflight
from decentnode.launcher.processes import fork_server

CONFIG = """
rounds: 1
graph: {name: ring, nodes: 16}
dataset: digits
model: mlp
training: {optimizer: {name: SGD, lr: 0.1}, steps_per_round: 1}
"""


@pytest.fixture
def group(tmp_path, monkeypatch):
    """A group two levels below the root."""
    monkeypatch.setattr(control_groups, "GROUPS", tmp_path)
    folder = tmp_path / "job" / "step"
    folder.mkdir(parents=True)
    monkeypatch.setattr(control_groups, "control_group", lambda: folder)
    return folder


def write(folder, **files):
    for name, content in files.items():
        (folder / name.replace("_", ".", 1)).write_text(f"{content}\n")


def test_the_narrowest_of_all_limits_counts(group):
    assert control_groups.room("memory.max", "memory.current") == math.inf
    write(group, memory_max="max", memory_current=5)
    write(group.parent, memory_max=100, memory_current=30)
    assert control_groups.room("memory.max", "memory.current") == 70
    write(group, memory_max=60)
    assert control_groups.room("memory.max", "memory.current") == 55


def test_a_quota_of_processors_counts_as_so_many(group, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)))
    assert control_groups.processors() == 8
    write(group.parent, cpu_max="250000 100000")
    assert control_groups.processors() == 2
    write(group, cpu_max="50000 100000")
    assert control_groups.processors() == 1
    write(group.parent, cpu_max="max 100000")
    write(group, cpu_max="max 100000")
    assert control_groups.processors() == 8


def test_a_quota_of_version_1_counts_as_so_many_and_bounds_threads(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)))
    for name in ("MKL_NUM_THREADS", "OMP_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(control_groups, "GROUPS", tmp_path)
    memberships = tmp_path / "memberships"
    memberships.write_text("4:memory:/job\n3:cpu,cpuacct:/job/step\n2:cpuset:/\n0::/other\n")
    monkeypatch.setattr(control_groups, "OF_THIS_PROCESS", memberships)
    job = tmp_path / "cpu,cpuacct" / "job"
    (job / "step").mkdir(parents=True)
    write(job / "step", cpu_cfs_quota_us=-1, cpu_cfs_period_us=100000)
    assert control_groups.processors() == 8 == process_setup.default_threads(1)
    write(job, cpu_cfs_quota_us=300000, cpu_cfs_period_us=100000)
    assert control_groups.processors() == 3 == process_setup.default_threads(1)
    # In a container the path of the host does not exist.
    memberships.write_text("3:cpu,cpuacct:/docker/0123\n")
    write(tmp_path / "cpu,cpuacct", cpu_cfs_quota_us=200000, cpu_cfs_period_us=100000)
    assert (control_groups.processors(), process_setup.default_threads(2)) == (2, 1)


def test_too_few_processes_are_refused_before_the_start(group, tmp_path, monkeypatch):
    (tmp_path / "x.yaml").write_text(CONFIG)
    settings = loader.load(tmp_path / "x.yaml")
    write(group.parent, pids_max=100, pids_current=20)
    preflight.check_processes(settings, 0)
    write(group, pids_max=60, pids_current=20)
    with pytest.raises(BadInput, match=r"16 processes of nodes need about 70 .* leaves 40; raise it"):
        preflight.check_processes(settings, 0)
    shared = loader.load(tmp_path / "x.yaml", ["communication.nodes_per_process=8"])
    preflight.check_processes(shared, 0)
    # The kernel does not count those of root.
    write(group, pids_max="max")
    monkeypatch.setattr(resource, "getrlimit", lambda which: (50, 50))
    monkeypatch.setattr(control_groups, "_threads_of", lambda user: 30)
    monkeypatch.setattr(os, "getuid", lambda: 1000)
    assert control_groups.room_for_processes() == 20
    monkeypatch.setattr(os, "getuid", lambda: 0)
    assert control_groups.room_for_processes() == 80


def test_a_kernel_without_pidfds_is_named(monkeypatch):
    def refuse(pid, flags=0):
        raise OSError(38, "Function not implemented")

    process_setup.check_kernel()
    monkeypatch.setattr(os, "pidfd_open", refuse)
    with pytest.raises(
        BadInput, match=r"^this kernel .* has no pidfd_open, .*: Function not implemented; use"
    ):
        process_setup.check_kernel()


def test_signals_that_the_parent_ignores_stay_ignored_but_the_end_of_a_child_is_seen():
    others = {*STOPPED_BY, signal.SIGCHLD} - {signal.SIGTERM}
    before = {s: signal.getsignal(s) for s in others}
    try:
        for signum in before:
            signal.signal(signum, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        process_setup.reset_inherited_signals()
        assert process_setup.signals_that_stop() == [signal.SIGTERM]
        assert signal.getsignal(signal.SIGCHLD) is signal.SIG_DFL
        assert signal.SIGTERM not in signal.pthread_sigmask(signal.SIG_BLOCK, ())
        signal.signal(signal.SIGINT, signal.default_int_handler)
        assert signal.SIGINT in process_setup.signals_that_stop()
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)


def test_socket_directories_of_killed_runs_are_removed_at_the_next_start(tmp_path, monkeypatch):
    monkeypatch.setattr(fork_server, "folder_for_sockets", lambda: str(tmp_path))
    for name in ("decentnode-stale", "decentnode-running", "decentnode-a_run"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "control").touch()
    (tmp_path / "decentnode-a_run" / "lock").touch()
    (tmp_path / "decentnode-stale" / fork_server.HELD).touch()
    with (tmp_path / "decentnode-running" / fork_server.HELD).open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        name = fork_server.name_socket_directory()
    assert name.startswith(str(tmp_path))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["decentnode-a_run", "decentnode-running"]
