"""A process that has imported what every `decentnode run` imports, and forks them: seconds each are spared.

It has no thread and nothing of a run, so that what it forks is as good as new. The tests of the documents
start theirs as a person does.
"""

import contextlib
import ctypes
import gc
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import traceback
from pathlib import Path

from decentnode.cli import app as cli
from decentnode.core.polling import ready

ROOT = Path(__file__).parents[2]
MOST_BYTES = 1 << 16
HIGHEST_FD = 1024
SECONDS_TO_IMPORT = 100.0
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

    def __init__(self) -> None:
        self._socket, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.settimeout(SECONDS_TO_IMPORT)
        with other:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.integration.spawner", str(other.fileno())],
                pass_fds=[other.fileno()], stdin=subprocess.DEVNULL, start_new_session=True,
                cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT)},
            )  # fmt: skip

    @classmethod
    def of_this_process(cls) -> "Spawner":
        if cls._only is None:
            cls._only = cls()
        return cls._only

    def start(
        self, arguments: list[str], cwd: Path, environment: dict[str, str], output: int, namespace: str = ""
    ) -> Command:
        """`decentnode` with these arguments, in a session of its own; what it says goes to `output`.

        `namespace`: of networks, where it is not to be in that of the tests.
        """
        status, end = os.pipe()
        try:
            wish = json.dumps([arguments, str(cwd), environment, namespace]).encode()
            socket.send_fds(self._socket, [wish], [output, end])
            return Command(int(self._socket.recv(MOST_BYTES)), status)
        finally:
            os.close(end)


def serve(wishes: socket.socket) -> None:
    """Forks what is wished for until nobody can wish any more, and passes on how it ended."""
    import torch._dynamo  # noqa: F401

    import decentnode.launcher.launcher
    import decentnode.launcher.report.live_view  # noqa: F401

    gc.freeze()
    selector = selectors.DefaultSelector()
    selector.register(wishes, selectors.EVENT_READ)
    while True:
        for key, _ in selector.select():
            if key.data is not None:
                selector.unregister(key.fd)
                os.close(key.fd)
                tell_end(*key.data)
                continue
            wish, fds, *_ = socket.recv_fds(wishes, MOST_BYTES, 2)
            if not wish:
                return
            pid = fork(*json.loads(wish), fds[0])
            os.close(fds[0])
            selector.register(os.pidfd_open(pid), selectors.EVENT_READ, (pid, fds[1]))
            wishes.send(str(pid).encode())


def fork(arguments: list[str], cwd: str, environment: dict[str, str], namespace: str, output: int) -> int:
    """The process of a command that has nothing of this one but what it has imported."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            signal.signal(signal.SIGHUP, signal.SIG_IGN if "UNDER_NOHUP" in environment else signal.SIG_DFL)
            os.setsid()
            os.dup2(output, 1)
            os.dup2(output, 2)
            os.closerange(3, HIGHEST_FD)
            if namespace:
                enter(namespace)
            os.chdir(cwd)
            os.environ.clear()
            os.environ.update(environment)
            sys.path[:0] = environment["PYTHONPATH"].split(":")
            tempfile.tempdir = None
            cli.main(arguments)
            code = 0
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else int(end.code is not None)
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            os._exit(code)
    return pid


def enter(namespace: str) -> None:
    """Puts this process into a network namespace that has a name; Python has the call from 3.12 on."""
    with Path("/run/netns", namespace).open() as file:
        if ctypes.CDLL(None, use_errno=True).setns(file.fileno(), CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), f"network namespace {namespace} cannot be entered")


def tell_end(pid: int, status: int) -> None:
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    with contextlib.suppress(BrokenPipeError):
        os.write(status, str(code).encode())
    os.close(status)


if __name__ == "__main__":
    with socket.socket(fileno=int(sys.argv[1])) as end:
        serve(end)
