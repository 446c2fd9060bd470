"""A process that has imported what every `decentnode run` imports, and forks them: seconds each are spared.

It has no thread and nothing of a run, so that what it forks is as good as new. `Spawner.python` is for
scripts and commands that start others: with it in PYTHON_EXEC, which torchrun reads, these are forked, too.
"""

import atexit
import contextlib
import ctypes
import gc
import json
import os
import runpy
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import traceback
import weakref
from pathlib import Path

from decentnode.core.polling import ready
from decentnode.core.timeouts import Timeouts
from tests.integration.warm_python import request

ROOT = Path(__file__).parents[2]
SHARED = "DECENTNODE_TESTS_SPAWNER"
"""A variable with the folder of the spawner that the workers of one start of the tests share."""
WORKER = "DECENTNODE_TESTS_WORKER"
"""A variable with the number of the worker that runs a test."""
MOST_BYTES = 1 << 17
HIGHEST_FD = 1024
CLONE_NEWNET = 0x40000000


class Command:
    """A forked command, used as a Popen is."""

    def __init__(self, pid: int, status: int) -> None:
        """`status`: a pipe through which the exit code comes."""
        self.pid = pid
        self.returncode: int | None = None
        self._status = status

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            if not ready([self._status], seconds=timeout):
                raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0.0)
            self.returncode = int(os.read(self._status, MOST_BYTES) or -signal.SIGKILL)
            os.close(self._status)
        return self.returncode

    def poll(self) -> int | None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self.wait(0.0)
        return None

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class Spawner:
    """The test's end; the other one ends with it."""

    _only: "Spawner | None" = None

    def __init__(self, folder: Path | None = None) -> None:
        """`folder`: of one that another process has started."""
        self.folder = folder or Path(tempfile.mkdtemp(prefix="dt-", dir="/tmp"))
        self._door = str(self.folder / "door")
        if folder is None:
            weakref.finalize(self, shutil.rmtree, self.folder, ignore_errors=True)
            self._process = self._begun()

    def _begun(self) -> subprocess.Popen[bytes]:
        client = Path(__file__).with_name("warm_python.py")
        script = f'#!/bin/sh\nexec {sys.executable} -IS {client} {self._door} {sys.executable} "$@"\n'
        self.python().write_text(script)
        self.python().chmod(0o755)
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as door:
            door.bind(self._door)
            door.listen()
            return subprocess.Popen(
                [sys.executable, "-m", "tests.integration.spawner", str(door.fileno())],
                pass_fds=[door.fileno()], stdin=subprocess.PIPE, start_new_session=True,
                cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT), SHARED: str(self.folder)},
            )  # fmt: skip

    @classmethod
    def of_this_process(cls) -> "Spawner":
        if cls._only is None:
            shared = os.environ.get(SHARED)
            cls._only = cls(Path(shared) if shared else None)
        return cls._only

    def start(
        self, words: list[str], cwd: Path, environment: dict[str, str], output: int, namespace: str = ""
    ) -> Command:
        """`python` with these words; what it says goes to `output`.

        `namespace`: of networks, where it is not to be in that of the tests.
        """
        status, end = os.pipe()
        try:
            wish = json.dumps([words, str(cwd), environment, namespace]).encode()
            return Command(request(self._door, wish, [output, output, end]), status)
        finally:
            os.close(end)

    def python(self) -> Path:
        """An executable that is `python`; what comes from the standard input goes to the real one."""
        return self.folder / "python"


def serve(door: socket.socket) -> None:
    """Forks what is wished for until the test has ended, and passes on how it ended."""
    # Nothing is imported before the first wish: there may be none.
    if door.fileno() not in ready([door.fileno(), sys.stdin.fileno()]):
        return
    import torch._dynamo  # noqa: F401

    import decentnode.attacks.passive.attacker
    import decentnode.cli.app
    import decentnode.launcher.report.live_view
    import decentnode.launcher.start
    import decentnode.results.attack_results
    import decentnode.results.cards
    import decentnode.results.writers.process
    import decentnode.sharing.blocks.lockstep  # noqa: F401
    from decentnode.node.plugin_sources import package_digest, package_hashes

    # Each run would read 600 files for these.
    package_digest()
    package_hashes()
    gc.freeze()
    selector = selectors.DefaultSelector()
    selector.register(door, selectors.EVENT_READ)
    selector.register(sys.stdin.fileno(), selectors.EVENT_READ)
    while True:
        for key, _ in selector.select():
            if key.data is not None:
                selector.unregister(key.fd)
                os.close(key.fd)
                report_end(*key.data)
            elif key.fileobj is door:
                pid, *ending = grant(door)
                selector.register(os.pidfd_open(pid), selectors.EVENT_READ, (pid, *ending))
            else:
                return


def spent(worker: str) -> Path:
    """The file with the processor seconds of all processes that were forked for a worker, one in a line."""
    return Path(os.environ[SHARED], f"spent-{worker}")


def grant(door: socket.socket) -> tuple[int, int, Path]:
    """The process that was wished for, where to write its exit code, and the seconds that it has spent."""
    asking, _ = door.accept()
    with asking:
        wish, (output, errors, status), *_ = socket.recv_fds(asking, MOST_BYTES, 3)
        words, cwd, environment, namespace = json.loads(wish)
        pid = fork(words, cwd, environment, namespace, (output, errors))
        os.close(output)
        os.close(errors)
        with contextlib.suppress(BrokenPipeError):
            asking.send(str(pid).encode())
    return pid, status, spent(environment.get(WORKER, ""))


def fork(
    words: list[str], cwd: str, environment: dict[str, str], namespace: str, outputs: tuple[int, int]
) -> int:
    """A process that has nothing of this one but what it has imported, and does what `python` would do."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            signal.signal(signal.SIGHUP, signal.SIG_IGN if "UNDER_NOHUP" in environment else signal.SIG_DFL)
            os.setsid()
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            for stream, fd in enumerate(outputs, 1):
                os.dup2(fd, stream)
            # Those that are there do not know whether they could be sought in.
            sys.stdout = os.fdopen(1, "w", closefd=False)
            sys.stderr = os.fdopen(2, "w", buffering=1, errors="backslashreplace", closefd=False)
            os.closerange(3, HIGHEST_FD)
            if namespace:
                enter(namespace)
            os.chdir(cwd)
            os.environ.clear()
            os.environ.update(environment)
            sys.path[:0] = environment["PYTHONPATH"].split(":")
            sys.executable = environment.get("PYTHON_EXEC", sys.executable)
            tempfile.tempdir = None
            set_limits(environment.get("LIMITS", "{}"))
            execute(words)
            code = 0
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else int(end.code is not None)
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            os._exit(code)
    return pid


def set_limits(limits: str) -> None:
    """Puts fixed limits of `Timeouts`, as JSON, in the place of those that are too long for a test."""
    for name, seconds in json.loads(limits).items():
        assert isinstance(vars(Timeouts)[name], float), name
        setattr(Timeouts, name, seconds)


def execute(words: list[str]) -> None:
    """What `python` does with a module, a script or code, and its arguments."""
    if words[0] == "-m":
        sys.argv = [words[1], *words[2:]]
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
        return
    try:
        if words[0] == "-c":
            sys.argv = ["-c", *words[2:]]
            exec(compile(words[1], "<string>", "exec"), vars(sys.modules["__main__"]))
        else:
            sys.argv = words
            sys.path.insert(0, str(Path(words[0]).parent))
            runpy.run_path(words[0], run_name="__main__")
    finally:
        atexit._run_exitfuncs()


def enter(namespace: str) -> None:
    """Puts this process into a network namespace that has a name; Python has the call from 3.12 on."""
    with Path("/run/netns", namespace).open() as file:
        if ctypes.CDLL(None, use_errno=True).setns(file.fileno(), CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), f"network namespace {namespace} cannot be entered")


def report_end(pid: int, status: int, seconds: Path) -> None:
    """Passes on how a process has ended, and adds a line with its processor seconds to a file."""
    _, ended, usage = os.wait4(pid, 0)
    with seconds.open("a") as file:
        file.write(f"{usage.ru_utime + usage.ru_stime}\n")
    with contextlib.suppress(BrokenPipeError):
        os.write(status, str(os.waitstatus_to_exitcode(ended)).encode())
    os.close(status)


if __name__ == "__main__":
    with socket.socket(fileno=int(sys.argv[1])) as door:
        serve(door)
