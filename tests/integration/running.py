"""Experiments as processes of their own, as a person starts them, and what they leave behind."""

import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
import weakref
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from decentnode.formats.records import RoundRecord, read_records
from tests.integration.spawner import ROOT, Command, Spawner

QUICKSTART = ROOT / "configs" / "quickstart.yaml"


STARTED: list["Run"] = []
"""By the test that runs now; what still runs at its end is killed."""


@dataclass
class Run:
    """One `decentnode run`, started at once."""

    run_dir: Path
    overrides: list[str] = field(default_factory=list)
    config: Path = QUICKSTART
    environment: dict[str, str] = field(default_factory=dict)
    figures: bool = False
    verb: str = "run"
    """`resume` goes on with what is in the directory."""
    namespace: str = ""
    """Of networks, where it is not to be in that of the tests."""
    limits: dict[str, float] = field(default_factory=dict)
    """Fixed ones of `Timeouts`, for what must expire."""

    def __post_init__(self) -> None:
        STARTED.append(self)
        arguments = [self.verb]
        arguments += (
            [str(self.config), f"run_dir={self.run_dir}"] if self.verb == "run" else [str(self.run_dir)]
        )
        arguments += [f"evaluation.figures={str(self.figures).lower()}", *self.overrides]
        # Short, because the paths of ipc sockets are limited.
        self.temporary = Path(tempfile.mkdtemp(prefix="dt-", dir="/tmp"))
        weakref.finalize(self, shutil.rmtree, self.temporary, ignore_errors=True)
        self.output = self.run_dir.with_suffix(".out")
        variables = self.environment | {"TMPDIR": str(self.temporary), "LIMITS": json.dumps(self.limits)}
        folder = self.run_dir.parent
        self.process = start_command(
            self.output, *arguments, cwd=folder, namespace=self.namespace, **variables
        )

    def wait(self, seconds: float = 120) -> int:
        """The exit code; kills everything and fails when it takes longer."""
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            raise AssertionError(f"still running after {seconds} s:\n{self.story}") from None

    @property
    def text(self) -> str:
        return self.output.read_text(errors="replace")

    @property
    def story(self) -> str:
        """What this run and the others beside it, the other machines of a test, have said last."""
        below = self.run_dir.parent
        logs = [*below.glob("*.out"), *below.glob("*/logs/*.log")]
        return "\n".join(f"{path}:\n{path.read_text(errors='replace')[-3000:]}" for path in sorted(logs))

    @property
    def summary(self) -> dict:
        return json.loads((self.run_dir / "summary.json").read_text())

    def wait_for_round(self, round: int, seconds: float = 60) -> None:
        """Until rank 0 has recorded this round."""
        record = self.run_dir / "records" / "00000.jsonl"
        wait_until(
            lambda: record.exists() and record.read_bytes().count(b"\n") > round, seconds, lambda: self.story
        )

    def records(self, rank: int) -> list[RoundRecord]:
        """What this rank has recorded so far."""
        path = self.run_dir / "records" / f"{rank:05d}.jsonl"
        return read_records(path) if path.exists() else []

    def leftovers(self) -> list[str]:
        """What the run left in the temporary directory that only it uses (torch keeps a cache there)."""
        return [path.name for path in self.temporary.glob("decentnode*")]

    def tree(self) -> list[int]:
        """All living processes of the run below the launcher."""
        return descendants(self.process.pid)

    def pid_of(self, rank: int) -> int:
        """The host process that writes to this rank's log."""
        log = str(self.run_dir / "logs" / f"{rank:05d}.log")
        for pid in self.tree():
            try:
                if str(Path(f"/proc/{pid}/fd/1").readlink()) == log:
                    return pid
            except OSError:
                continue
        raise AssertionError(f"no process of rank {rank}:\n{self.text}")


def children(pid: int) -> list[int]:
    """The living processes that any thread of a process has started."""
    found = []
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):
            found += map(int, path.read_text().split())
    return found


def descendants(pid: int) -> list[int]:
    """All living processes below this one."""
    messages, queue = [], [pid]
    while queue:
        below = children(queue.pop())
        messages += below
        queue += below
    return messages


def wait_until(condition, seconds: float, explain=lambda: "") -> None:
    limit = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < limit, f"not within {seconds} s\n{explain()}"
        time.sleep(0.02)


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def call(*arguments: str, seconds: float = 60) -> subprocess.CompletedProcess:
    """A `decentnode` command that has ended, and what it said."""
    command = [Spawner.of_this_process().python(), "-m", "decentnode", *arguments]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    return subprocess.run(
        command, env=environment, capture_output=True, text=True, check=False, timeout=seconds
    )


def run_command(output: Path, *arguments: str, seconds: float = 200) -> int:
    """The exit code of a `decentnode` command; what it prints goes to `output`."""
    return start_command(output, *arguments).wait(seconds)


def start_command(
    output: Path, *arguments: str, cwd: Path = ROOT, namespace: str = "", **environment: str
) -> Command:
    """Such a command, started at once."""
    python_path = {"PYTHONPATH": f"{ROOT}:{Path(__file__).parent}"}
    with output.open("wb") as out:
        spawner = Spawner.of_this_process()
        words = ["-m", "decentnode", *arguments]
        return spawner.start(words, cwd, os.environ | python_path | environment, out.fileno(), namespace)
