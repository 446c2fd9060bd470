"""Experiments as processes of their own, as a person starts them, and what they leave behind."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import weakref
from dataclasses import dataclass, field
from pathlib import Path

from decentnode import cli
from decentnode.logs import redirect_output

ROOT = Path(__file__).parents[2]
QUICKSTART = ROOT / "configs" / "quickstart.yaml"


@dataclass
class Run:
    """One `decentnode run`, started at once."""

    run_dir: Path
    overrides: list[str] = field(default_factory=list)
    config: Path = QUICKSTART
    prefix: list[str] = field(default_factory=list)
    environment: dict[str, str] = field(default_factory=dict)
    figures: bool = False
    verb: str = "run"
    """`resume` goes on with what is in the directory."""

    def __post_init__(self) -> None:
        command = [sys.executable, "-m", "decentnode", self.verb]
        command += (
            [str(self.config), f"run_dir={self.run_dir}"] if self.verb == "run" else [str(self.run_dir)]
        )
        command.append(f"evaluation.figures={str(self.figures).lower()}")
        # Short, because the paths of ipc sockets are limited.
        self.temporary = Path(tempfile.mkdtemp(prefix="dt-", dir="/tmp"))
        weakref.finalize(self, shutil.rmtree, self.temporary, ignore_errors=True)
        self.output = self.run_dir.with_suffix(".out")
        paths = f"{ROOT}:{Path(__file__).parent}"
        own = {"PYTHONPATH": paths, "TMPDIR": str(self.temporary)}
        with self.output.open("wb") as out:
            self.process = subprocess.Popen(
                [*self.prefix, *command, *self.overrides],
                stdout=out, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, start_new_session=True,
                cwd=self.run_dir.parent, env=os.environ | own | self.environment,
            )  # fmt: skip

    def wait(self, seconds: float = 60) -> int:
        """The exit code; kills everything and fails when it takes longer."""
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            raise AssertionError(f"still running after {seconds} s:\n{self.text}") from None

    @property
    def text(self) -> str:
        return self.output.read_text(errors="replace")

    @property
    def summary(self) -> dict:
        return json.loads((self.run_dir / "summary.json").read_text())

    def wait_for_round(self, round: int, seconds: float = 40) -> None:
        """Until rank 0 has recorded this round."""
        record = self.run_dir / "records" / "00000.jsonl"
        wait_until(
            lambda: record.exists() and record.read_bytes().count(b"\n") > round, seconds, lambda: self.text
        )

    def leftovers(self) -> list[str]:
        """What the run left in the temporary directory that only it uses (torch keeps a cache there)."""
        return [path.name for path in self.temporary.glob("decentnode*")]

    def tree(self) -> list[int]:
        """All living processes of the run below the launcher."""
        found, queue = [], [self.process.pid]
        while queue:
            below = children(queue.pop())
            found += below
            queue += below
        return found

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
    try:
        return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


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


def run_forked(output: Path, *arguments: str) -> int:
    """The exit code of a `decentnode` command in a fork of the test, which spares it importing torch.

    What it prints goes to `output`.
    """
    return os.waitstatus_to_exitcode(os.waitpid(fork_command(output, *arguments), 0)[1])


def fork_command(output: Path, *arguments: str, **environment: str) -> int:
    """The process of such a command, started at once."""
    import torch._dynamo  # noqa: F401  (once, and not in every fork)

    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.setsid()
            os.environ.update(environment)
            redirect_output(output)
            cli.main(arguments)
        except SystemExit as end:
            code = int(end.code or 0)
        finally:
            os._exit(code)
    return child
