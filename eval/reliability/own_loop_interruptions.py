"""Shows that a loop of a user's own under `decentnode launch` survives any interruption, or ends in time.

Random kinds of interruption, ranks and moments by a seed: none hangs, exit codes are those of the table in
docs/own_loop_failures.md, no process is left, files of results can be read, and a run that was stopped and
started again ends with the models of one that was not. Some cases are ranks of torchrun's variables, or
threads.
"""

import argparse
import atexit
import contextlib
import ctypes
import json
import os
import random
import re
import runpy
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

import torch
import torch._dynamo
from _runs import CHECK_INTERVAL

import decentnode.cli.app
import decentnode.cli.launch
import decentnode.launcher.launcher
import decentnode.launcher.report.live_view
import decentnode.parallel.join
from decentnode.errors import BadInput
from decentnode.formats.records import read_records
from decentnode.launcher.own_loop import start as launching
from decentnode.launcher.processes.fork_server import die_with
from decentnode.results.run import Run

LOOP = Path(__file__).with_name("_foreign_loop.py")
NODES = 4
LIMIT = 75.0
"""Seconds after which a case counts as hung, many times what the slowest needs."""
AFTERLIFE = 20.0
"""Seconds that processes have to end after the launcher."""
SUBREAPER = 36
LOOP_TOLERATES, LOOP_NEEDS_ALL = "gossip", "gradient_tracking"


@dataclass(frozen=True)
class Case:
    """An interruption, and what must come of it."""

    number: int
    how: str
    """launch, environment (as torchrun's), or threads."""
    kind: str
    when: str = "during"
    victim: int = -1
    at: int = -1
    sharing: str = LOOP_TOLERATES
    attempts: int = 0
    signals: tuple[tuple[float, int], ...] = ()
    """Signals to the launcher, with their seconds after the first round of the run, or after its start."""
    codes: tuple[int, ...] = (0,)
    """Exit codes that are documented for it."""
    goes_on: bool = False
    """Whether it is started again, and must end as an undisturbed run."""
    real: bool = False
    """Whether it is started by a command, not forked."""

    def __str__(self) -> str:
        rank = f" of rank {self.victim}" if self.victim >= 0 else ""
        at = f" in step {self.at}" if self.at >= 0 else ""
        sent = "".join(f", signal {number} after {seconds:.2f} s" for seconds, number in self.signals)
        restart = ", restart" if self.attempts else ""
        return f"{self.number}: {self.how}: {self.kind} {self.when}{rank}{at}{sent} ({self.sharing}{restart})"


@dataclass
class Outcome:
    """What came of a case."""

    case: Case
    codes: list[int | None] = field(default_factory=list)
    """The exit code, and that after it was started again; None: hung."""
    wrong: list[str] = field(default_factory=list)
    seconds: float = 0.0
    text: str = ""


def cases(count: int, seed: int, real_every: int) -> Iterator[Case]:
    """Draws interruptions."""
    draw = random.Random(seed)
    for number in range(count):
        how = draw.choices(("launch", "environment", "threads"), (10, 1, 1))[0]
        victim, at = draw.randrange(NODES), draw.randrange(0, 60)
        sharing = draw.choice((LOOP_TOLERATES, LOOP_TOLERATES, LOOP_NEEDS_ALL))
        lost = (3,) if sharing == LOOP_TOLERATES else (4,)
        is_real = real_every > 0 and number % real_every == 0
        fields = {"number": number, "how": how, "victim": victim, "sharing": sharing, "real": is_real}
        if how == "launch":
            kind = draw.choice(
                ("raise", "kill", "exit", "interrupt", "terminate", "slow", "hang", "sys.exit", "sys.exit 3",
                 "before", "after", "unsaid", "stop", "stop", "stop", "stop twice", "stop early",
                 "launcher killed", "restart")
            )  # fmt: skip
        elif how == "environment":
            kind = draw.choice(("raise", "kill", "sys.exit", "interrupt", "terminate"))
        else:
            kind = draw.choice(("raise", "sys.exit", "slow"))
        if kind in ("raise", "kill", "exit", "interrupt", "terminate"):
            yield Case(kind=kind, at=at, codes=lost, **fields)
        elif kind == "slow":
            # A slow rank is waited for as far as the deadline, and continues.
            yield Case(kind=kind, at=at, codes=(0, *lost), **fields)
        elif kind == "hang":
            yield Case(kind=kind, at=at, codes=lost, **fields)
        elif kind == "sys.exit":
            yield Case(kind=kind, at=at, codes=(0,), **fields)
        elif kind == "sys.exit 3":
            yield Case(kind=kind, at=at, codes=(4,), **fields)
        elif kind in ("before", "after", "unsaid"):
            what = draw.choice(("raise", "kill", "exit", "sys.exit", "sys.exit 3"))
            # Without a word, a rank whose others have done all their rounds is lost alone.
            codes = {"before": (4,), "after": (4,)}.get(kind, (3, 4))
            if what.startswith("sys.exit"):
                codes = (4,) if what == "sys.exit 3" or kind == "before" else (0,)
            yield Case(kind=what, when=kind, codes=codes, **fields)
        elif kind == "stop":
            number_of = draw.choice((signal.SIGINT, signal.SIGTERM))
            sent = ((draw.uniform(0.0, 1.2), int(number_of)),)
            yield Case(kind=kind, signals=sent, codes=(128 + number_of,), goes_on=True, **fields)
        elif kind == "stop twice":
            first = draw.uniform(0.0, 1.0)
            sent = ((first, signal.SIGINT), (first + draw.uniform(0.0, 0.4), signal.SIGINT))
            yield Case(kind=kind, signals=sent, codes=(130,), **fields)
        elif kind == "stop early":
            number_of = draw.choice((signal.SIGINT, signal.SIGTERM))
            sent = ((draw.uniform(-1.5, 0.0), int(number_of)),)
            # Before the command handles signals, nothing is started.
            yield Case(kind=kind, signals=sent, codes=(128 + number_of, -number_of), **fields)
        elif kind == "launcher killed":
            yield Case(kind=kind, signals=((draw.uniform(-1.0, 1.2), 9),), codes=(-9,), **fields)
        else:
            what = draw.choice(("raise", "kill", "exit"))
            tolerates = {**fields, "sharing": LOOP_TOLERATES}
            yield Case(kind=what, at=at // 3, attempts=1, codes=(0,), **tolerates)


class Running:
    """A case that is tried."""

    def __init__(self, case: Case, folder: Path) -> None:
        self.case, self.folder, self.outcome = case, folder, Outcome(case)
        # Short, because the paths of ipc sockets are limited.
        (folder / "tmp").mkdir(parents=True)
        self.began = time.monotonic()
        self._start()

    def _start(self) -> None:
        case, self._round_at, self._sent = self.case, None, 0
        self.started = time.monotonic()
        self.sessions: set[int] = set()
        undisturbed = bool(self.outcome.codes)
        options = ["--sharing", case.sharing, "--attempts", str(case.attempts)]
        if not undisturbed and case.victim >= 0 and (case.at >= 0 or case.when != "during"):
            options += ["--kind", case.kind, "--when", case.when, "--victim", str(case.victim),
                        "--at", str(case.at)]  # fmt: skip
        if case.signals and not undisturbed:
            options += ["--seconds", "0.06"]
        if case.attempts:
            # The others are still at it when it comes back.
            options += ["--seconds", "0.1"]
        words = [str(LOOP), str(self.folder), *options]
        environment = {"TMPDIR": str(self.folder / "tmp"), "PYTHONUNBUFFERED": "1", "OMP_NUM_THREADS": "1"}
        self.output = self.folder / "out"
        if case.how == "launch":
            command = ["-m", "decentnode", "launch", "--nodes", str(NODES), *words]
            self.pids = [self._command(command, environment)]
        elif case.how == "threads":
            self.pids = [forked([*words, "--threads", str(NODES)], environment, self.output)]
        else:
            shared = {"WORLD_SIZE": str(NODES), "LOCAL_WORLD_SIZE": str(NODES), "MASTER_ADDR": "127.0.0.1",
                      "MASTER_PORT": str(20000 + case.number), "GROUP_RANK": "0", "GROUP_WORLD_SIZE": "1",
                      "TORCHELASTIC_RUN_ID": f"case-{case.number}-{os.getpid()}"}  # fmt: skip
            self.pids = [
                forked(words, {**environment, **shared, "RANK": str(r), "LOCAL_RANK": str(r)}, self.output)
                for r in range(NODES)
            ]
        self.living = dict.fromkeys(self.pids)

    def _command(self, command: Sequence[str], environment: dict[str, str]) -> int:
        if not self.case.real:
            return forked(command, environment, self.output, launches=True)
        with self.output.open("ab") as out:
            return subprocess.Popen(
                [sys.executable, *command], env={**os.environ, **environment}, stdin=subprocess.DEVNULL,
                stdout=out, stderr=out, start_new_session=True,
            ).pid  # fmt: skip

    def has_ended(self) -> bool:
        """Goes on with the case; returns whether it is done."""
        self._signal()
        for pid, code in self.living.items():
            if code is None:
                found, status = os.waitpid(pid, os.WNOHANG)
                if found:
                    self.living[pid] = os.waitstatus_to_exitcode(status)
        if None not in self.living.values():
            self._note_end()
            return not self._goes_on()
        if time.monotonic() - self.started > LIMIT:
            self.outcome.codes.append(None)
            self.outcome.wrong.append(f"hangs: {self._stacks()}")
            self._kill()
            return True
        return False

    def _signal(self) -> None:
        """Sends what is due."""
        if self.outcome.codes or self._sent == len(self.case.signals):
            return
        if self._round_at is None and self._has_round():
            self._round_at = time.monotonic()
        after, number = self.case.signals[self._sent]
        if after < 0:
            due = self.started + (1.6 + after) * (6.0 if self.case.real else 1.0)
        elif self._round_at is None:
            return
        else:
            due = self._round_at + after
        if time.monotonic() >= due:
            self._sent += 1
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pids[0], number)

    def _has_round(self) -> bool:
        return any(path.stat().st_size for path in (self.folder / "run" / "records").glob("*.jsonl"))

    def _note_end(self) -> None:
        case, ends = self.case, [*self.living.values()]
        outcome = self.outcome
        outcome.codes.append(ends[0] if case.how != "environment" else max(ends, key=abs))
        limit = time.monotonic() + AFTERLIFE
        while (left := self._left()) and time.monotonic() < limit:
            time.sleep(CHECK_INTERVAL)
        outcome.wrong += [f"left: {process}" for process in left.values()]
        self._kill()
        code = outcome.codes[-1]
        documented = (0,) if len(outcome.codes) > 1 else case.codes
        if case.signals and len(outcome.codes) == 1 and self._sent != len(case.signals):
            documented = (*documented, 0)
        if case.signals and code == 0 and self._has_finished():
            documented = (*documented, 0)
        # What was stopped at once has written nothing.
        text = self.output.read_text(errors="replace") if self.output.exists() else ""
        if case.how != "launch":
            # A rank has the code of its script; the launcher beside them says that of the run.
            code = int((re.findall(r"\(exit code (\d+)\)", text) or ["-1"])[-1])
        if code not in documented:
            outcome.wrong.append(f"exit code {code}, not {documented}")
        logs = [path.read_text(errors="replace") for path in sorted((self.folder / "run").glob("logs/*.log"))]
        outcome.text = "\n".join([text, *logs])
        for strange in ("never awaited", "was destroyed but", "Exception ignored", "Segmentation", "Fatal"):
            if strange in outcome.text:
                outcome.wrong.append(f"output has '{strange}'")
        outcome.wrong += self._unreadable()

    def _unreadable(self) -> Iterator[str]:
        run = self.folder / "run"
        if not (run / "records").is_dir():
            return
        try:
            for path in (run / "records").glob("*.jsonl"):
                read_records(path)
            if any((run / "records").glob("*.jsonl")):
                found = Run(run)
                _ = found.settings, found.summary, found.rows, found.state, repr(found)
        except (BadInput, OSError, ValueError) as error:
            yield f"results cannot be read: {error}"

    def _has_finished(self) -> bool:
        ends = [json.loads(path.read_text()) for path in self.folder.glob("end-*.json")]
        return len(ends) == NODES and all(end["step"] == 60 for end in ends)

    def _goes_on(self) -> bool:
        """Starts a stopped run again; after that its models must be those of an undisturbed one."""
        if not self.case.goes_on or self.outcome.wrong:
            return False
        if len(self.outcome.codes) == 1:
            if self.outcome.codes == [0]:
                return False
            missing = [rank for rank in range(NODES) if not (self.folder / f"{rank}.pt").exists()]
            if missing:
                self.outcome.wrong.append(f"ranks {missing} saved nothing")
                return False
            shutil.move(self.folder / "run", self.folder / "first-run")
            self._start()
            return True
        ends = [json.loads((self.folder / f"end-{rank}.json").read_text()) for rank in range(NODES)]
        hashes = [end["hash"] for end in ends]
        if hashes != undisturbed(self.case.sharing):
            self.outcome.wrong.append("its models are not those of an undisturbed run")
        return False

    def _left(self) -> dict[int, str]:
        """The processes that belong to this case, by the folder in their environment."""
        found = {}
        mark = f"TMPDIR={self.folder / 'tmp'}".encode()
        for entry in Path("/proc").iterdir():
            with contextlib.suppress(OSError, ValueError, IndexError):
                pid = int(entry.name)
                state = (entry / "stat").read_text().rsplit(")", 1)[1].split()[0]
                if state == "Z" or pid == os.getpid():
                    continue
                is_ours = mark in (entry / "environ").read_bytes() or pid in self._members()
                if is_ours:
                    words = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()[-100:]
                    found[pid] = f"{pid} {state} {words}"
        return found

    def _members(self) -> set[int]:
        """Forked processes have the environment of this one in /proc, so they note themselves."""
        with contextlib.suppress(OSError):
            return {int(line) for line in (self.folder / "pids").read_text().split()}
        return set()

    def _stacks(self) -> str:
        return "; ".join(self._left().values())

    def _kill(self) -> None:
        for pid in self._left():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for pid, code in self.living.items():
            if code is None:
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(pid, 0)


# Processes that are forked from this one, which has imported everything.


def forked(words: Sequence[str], environment: dict[str, str], output: Path, launches: bool = False) -> int:
    """Starts `python WORDS` by a fork; returns its process id."""
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        if launches:
            ctypes.CDLL(None).prctl(SUBREAPER, 1)
            # Before it has threads.
            launching.starter = Nursery(environment).starter
        as_python(words, environment, output)
    return pid


def as_python(words: Sequence[str], environment: dict[str, str], output: Path) -> NoReturn:
    """Does in this process what `python` does with these words, from its start to its end."""
    code = 1
    try:
        with contextlib.suppress(PermissionError):
            os.setsid()
        folder = Path(environment["TMPDIR"]).parent
        with (folder / "pids").open("a") as pids:
            pids.write(f"{os.getpid()}\n")
        os.environ.update(environment)
        tempfile.tempdir = None
        out = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(out, 1)
        os.dup2(out, 2)
        sys.stdout, sys.stderr = (os.fdopen(fd, "w", buffering=1, closefd=False) for fd in (1, 2))
        atexit._clear()
        signal.signal(signal.SIGINT, signal.default_int_handler)
        code = executed([*words])
        threading._shutdown()
        atexit._run_exitfuncs()
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def executed(words: list[str]) -> int:
    """Runs a script or a module; returns its exit code, after what `python` prints."""
    try:
        if words[0] == "-m":
            sys.argv = words[1:]
            decentnode.cli.app.main()
        else:
            sys.argv = words
            runpy.run_path(words[0], run_name="__main__")
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            return end.code or 0
        print(end.code, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        sys.excepthook(*sys.exc_info())
        return 130
    except BaseException:
        sys.excepthook(*sys.exc_info())
        return 1
    return 0


@dataclass
class Child:
    """A script that was forked, used as a Popen is."""

    pid: int
    returncode: int | None = None

    def poll(self) -> int | None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(0.0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        limit = time.monotonic() + (timeout if timeout is not None else float("inf"))
        while self.returncode is None:
            found, status = 0, 0
            try:
                found, status = os.waitpid(self.pid, os.WNOHANG)
            except ChildProcessError:
                # Not yet a child of this process, if it is there.
                if not Path(f"/proc/{self.pid}").exists():
                    self.returncode = -signal.SIGKILL
            if found:
                self.returncode = os.waitstatus_to_exitcode(status)
            elif time.monotonic() >= limit:
                raise subprocess.TimeoutExpired("script", timeout or 0.0)
            else:
                time.sleep(CHECK_INTERVAL)
        return self.returncode

    def kill(self) -> None:
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)


class Nursery:
    """A process without threads that forks scripts; they become children of the launcher, its reaper."""

    def __init__(self, environment: dict[str, str]) -> None:
        self._environment = environment
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        launcher = os.getpid()
        if os.fork() == 0:
            try:
                ours.close()
                die_with(launcher)
                os.setsid()
                self._serve(theirs)
            finally:
                os._exit(0)
        theirs.close()
        self._door = ours

    def _serve(self, door: socket.socket) -> None:
        while wish := door.recv(1 << 17):
            words, environment, log = json.loads(wish)
            between = os.fork()
            if between == 0:
                script = os.fork()
                if script:
                    door.send(str(script).encode())
                    os._exit(0)
                door.close()
                as_python(words, environment, Path(log))
            os.waitpid(between, 0)

    def starter(
        self, command: Sequence[str], socket_path: Path, logs: Callable[[int], Path], first_rank: int,
        size: int, local_size: int, more: Mapping[str, str],
    ) -> Callable[[int], Child]:  # fmt: skip
        """As `starter` of decentnode, with forks."""

        def start(local_rank: int) -> Child:
            environment = {
                **self._environment, **more, "DECENTNODE_LAUNCHER": str(socket_path),
                "DECENTNODE_RANK": str(first_rank + local_rank), "DECENTNODE_SIZE": str(size),
                "DECENTNODE_LOCAL_RANK": str(local_rank), "DECENTNODE_LOCAL_SIZE": str(local_size),
            }  # fmt: skip
            self._door.send(json.dumps([command[2:], environment, str(logs(local_rank))]).encode())
            return Child(int(self._door.recv(64)))

        return start


_undisturbed: dict[str, list[str]] = {}


def undisturbed(sharing: str) -> list[str]:
    """The hashes of the models of a run that nothing has disturbed."""
    if sharing not in _undisturbed:
        folder = Path(tempfile.mkdtemp(prefix="dn-", dir="/tmp"))
        running = Running(Case(-1, "launch", "nothing", sharing=sharing), folder)
        while not running.has_ended():
            time.sleep(CHECK_INTERVAL)
        assert not running.outcome.wrong, (running.outcome.wrong, running.outcome.text)
        ends = [json.loads((folder / f"end-{rank}.json").read_text()) for rank in range(NODES)]
        _undisturbed[sharing] = [end["hash"] for end in ends]
        shutil.rmtree(folder, ignore_errors=True)
    return _undisturbed[sharing]


def main() -> int:
    """Tries all cases."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=3)
    parser.add_argument("--real-every", type=int, default=25, help="one in so many is a command of its own")
    parser.add_argument("--only", type=int, nargs="*", help="numbers of cases")
    parser.add_argument("--keep", action="store_true", help="keep what the cases leave in /tmp")
    wanted = parser.parse_args()
    torch.set_num_threads(1)
    for sharing in (LOOP_TOLERATES, LOOP_NEEDS_ALL):
        undisturbed(sharing)
    waiting = [*cases(wanted.count, wanted.seed, wanted.real_every)]
    if wanted.only is not None:
        waiting = [case for case in waiting if case.number in wanted.only]
    total, running, bad = len(waiting), list[Running](), list[Outcome]()
    kinds: Counter[tuple[str, str]] = Counter()
    resumed, longest = 0, 0.0
    waiting.reverse()
    while waiting or running:
        while waiting and len(running) < wanted.jobs:
            running.append(Running(waiting.pop(), Path(tempfile.mkdtemp(prefix="dn-", dir="/tmp"))))
        for one in [each for each in running if each.has_ended()]:
            running.remove(one)
            outcome = one.outcome
            outcome.seconds = time.monotonic() - one.began
            longest = max(longest, outcome.seconds)
            resumed += len(outcome.codes) == 2 and not outcome.wrong
            code = "+".join(map(str, outcome.codes))
            kinds[one.case.kind if one.case.when == "during" else f"{one.case.when}", code] += 1
            print(f"{one.case}: {code}, {outcome.seconds:.1f} s {'; '.join(outcome.wrong)}", flush=True)
            if outcome.wrong:
                bad.append(outcome)
                print("\n".join(f"    {line}" for line in outcome.text.splitlines()[-60:]), flush=True)
            if not wanted.keep:
                shutil.rmtree(one.folder, ignore_errors=True)
        time.sleep(CHECK_INTERVAL)
    for (kind, code), number in sorted(kinds.items()):
        print(f"{kind:18} exit {code:8} {number} times")
    print(f"{total} interruptions, {len(bad)} wrong; {resumed} went on after a stop, with the same models; "
          f"longest {longest:.0f} s")  # fmt: skip
    return int(bool(bad))


if __name__ == "__main__":
    sys.exit(main())
