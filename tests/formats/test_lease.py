"""Leases of runs: on one host the kernel tells who lives, on others the heartbeat."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from decentnode.core.timeouts import Timeouts
from decentnode.errors import BadInput
from decentnode.formats.lease import Lease, lease_of, own_lease
from decentnode.launcher.state.run_directory import HEARTBEAT_INTERVAL, RunLock

HOLDER = """
import sys, time
from pathlib import Path
from decentnode.launcher.state.run_directory import RunLock
lock = RunLock(Path(sys.argv[1]))
print("held", flush=True)
time.sleep(100)
"""


def of_another_host(run_dir: Path, age: float) -> None:
    """The lock file as another host has left it, whose last heartbeat was some seconds ago."""
    path = run_dir / "lock"
    path.write_bytes(msgspec.json.encode(Lease("far", "another boot", 7)))
    now = path.stat().st_mtime
    os.utime(path, (now - age, now - age))


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    monkeypatch.setattr(Timeouts, "run_lock", 0.1)


def test_a_lease_whose_process_is_gone_is_free_at_once(tmp_path):
    holder = subprocess.Popen([sys.executable, "-c", HOLDER, str(tmp_path)], stdout=subprocess.PIPE)
    assert holder.stdout is not None and holder.stdout.readline() == b"held\n"
    assert lease_of(tmp_path) == msgspec.structs.replace(own_lease(), process=holder.pid)
    with pytest.raises(
        BadInput, match=rf"this run is in progress \(process {holder.pid} on .*\); stop it first"
    ):
        RunLock(tmp_path)
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    holder.stdout.close()
    assert (tmp_path / "lock").read_bytes() != b"" and lease_of(tmp_path) is None
    RunLock(tmp_path).release()


def test_a_lease_of_another_host_lasts_as_long_as_its_heartbeat(tmp_path):
    of_another_host(tmp_path, Timeouts.lease / 2)
    assert str(lease_of(tmp_path)) == "process 7 on far"
    with pytest.raises(BadInput, match=r"this run is in progress \(process 7 on far\); stop it first"):
        RunLock(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["lock"]
    of_another_host(tmp_path, 2 * Timeouts.lease)
    assert lease_of(tmp_path) is None
    lock = RunLock(tmp_path)
    assert lease_of(tmp_path) == own_lease()
    lock.release()
    assert (tmp_path / "lock").read_bytes() == b"" and lease_of(tmp_path) is None


def test_the_lease_of_a_job_names_what_scancel_stops(tmp_path, monkeypatch):
    monkeypatch.setenv("SLURM_JOB_ID", "77")
    lock = RunLock(tmp_path)
    assert str(lease_of(tmp_path)).startswith(f"process {os.getpid()} of Slurm job 77 on ")
    lock.release()
    (tmp_path / "lock").write_text('{"host": "far", "boot": "", "process": 7}')
    assert str(lease_of(tmp_path)) == "process 7 on far", "as earlier versions have written it"


def test_a_heartbeat_is_the_time_of_the_file(tmp_path, monkeypatch):
    lock = RunLock(tmp_path)
    of = (tmp_path / "lock").stat
    os.utime(tmp_path / "lock", (0, 0))
    lock.renew()
    assert of().st_mtime == 0.0
    now = lock._renewed + HEARTBEAT_INTERVAL + 1
    monkeypatch.setattr("decentnode.launcher.state.run_directory.time.monotonic", lambda: now)
    lock.renew()
    assert of().st_mtime > 0.0
    lock.release()
