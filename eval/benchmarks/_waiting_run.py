"""A run in which one node's process is stopped and all others wait for it; and what they do meanwhile."""

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from _command import CONFIGS, LIMIT, ROOT

WARM_UP = 3.0
"""Seconds of rounds before the node is stopped: by then all know how long a usual one takes."""
END = 1.0
"""Seconds in which the server ends the nodes of a launcher that is gone."""
SETTLED = 10.0
"""Seconds until nobody gets on any more, and what is asked soon has been asked."""


@dataclass(frozen=True)
class Idle:
    """What one process did in a while, in all threads; by `main`, `libzmq` and `other`."""

    wakeups: Counter[str]
    seconds: Counter[str]
    """Of a processor."""

    def __sub__(self, before: "Idle") -> "Idle":
        wakeups, seconds = Counter(self.wakeups), Counter(self.seconds)
        wakeups.subtract(before.wakeups)
        seconds.subtract(before.seconds)
        return Idle(wakeups, seconds)


@dataclass(frozen=True)
class Waiting:
    """The processes of a run, of which one node is stopped."""

    launcher: int
    server: int
    nodes: list[int]
    """Without the one that is stopped."""


@contextmanager
def waiting_run(
    nodes: int, *overrides: str, warm_up: float = WARM_UP, settled: float = SETTLED
) -> Iterator[Waiting]:
    """Everybody waits inside the block; raises RuntimeError when the run ends or the nodes get on."""
    with tempfile.TemporaryDirectory(prefix="benchmark-") as folder:
        run_dir = Path(folder) / "run"
        words = ["-m", "decentnode", "run", str(CONFIGS / "idle.yaml"), f"run_dir={run_dir}", *overrides]
        graph = f"graph={{name: regular, nodes: {nodes}, degree: 4, seed: 1}}"
        with Path(folder, "output").open("w") as output:
            run = subprocess.Popen([sys.executable, *words, graph], cwd=ROOT, stdout=output, stderr=output)
        try:
            _await_start(run, run_dir)
            time.sleep(warm_up)
            processes = [pid for server in _children(run.pid) for pid in (server, *_children(server))]
            os.kill(processes[1], signal.SIGSTOP)
            time.sleep(settled)
            before = _progress(run_dir)
            yield Waiting(run.pid, processes[0], processes[2:])
            if run.poll() is not None or _progress(run_dir) != before:
                raise RuntimeError("the run ended, or the nodes got on")
        except (RuntimeError, IndexError) as error:
            log_end = Path(folder, "output").read_text()[-2000:]
            raise RuntimeError(f"the nodes did not wait ({error}):\n{log_end}") from error
        finally:
            run.kill()
            run.wait()
            time.sleep(END)


def _await_start(run: "subprocess.Popen[bytes]", run_dir: Path) -> None:
    events, limit = run_dir / "events.jsonl", time.monotonic() + LIMIT
    while not (events.exists() and '"started"' in events.read_text()):
        if run.poll() is not None or time.monotonic() > limit:
            raise RuntimeError(f"the run ended with {run.poll()} before its first round")
        time.sleep(0.1)


def _progress(run_dir: Path) -> list[int]:
    return [path.stat().st_size for path in sorted((run_dir / "records").iterdir())]


def _children(parent: int) -> list[int]:
    """Direct children, in the order of their numbers."""
    pids = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            fields = (path / "stat").read_text().rsplit(")", 1)[1].split()
        except OSError:
            continue
        if int(fields[1]) == parent:
            pids.append(int(path.name))
    return sorted(pids)


def idle(pid: int) -> Idle:
    """What a process has done so far; a wake-up is a voluntary switch away from the processor."""
    wakeups, seconds = Counter[str](), Counter[str]()
    for task in Path(f"/proc/{pid}/task").iterdir():
        name = (task / "comm").read_text()
        part = "main" if task.name == str(pid) else "libzmq" if name.startswith("ZMQ") else "other"
        for line in (task / "status").read_text().splitlines():
            if line.startswith("voluntary_ctxt_switches"):
                wakeups[part] += int(line.split()[1])
        seconds[part] += int((task / "schedstat").read_text().split()[0]) / 1e9
    return Idle(wakeups, seconds)
