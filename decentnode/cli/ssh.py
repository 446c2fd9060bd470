"""`decentnode commands CONFIG --ssh`: starts the machines over ssh, shows their lines, stops them all."""

import contextlib
import os
import shlex
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from decentnode.communication.security.job_secret import VARIABLE
from decentnode.core.process_setup import signals_that_stop
from decentnode.errors import BadInput, ExitCode

SSH = ("ssh", "-o", "BatchMode=yes", "-o", "ConnectTimeout=15")
"""Without a question: what ssh would ask for belongs into its own configuration."""
NO_CONNECTION = 255
"""The exit code of ssh where it has reached nobody."""
# The first line is the job's secret, which no list of processes shows. Each later line asks to stop, as does
# the end of the connection. A shell has its background processes ignore SIGINT, so SIGTERM stands for all.
REMOTE = """read -r DECENTNODE_SECRET; export DECENTNODE_SECRET; exec 3<&0
cd {folder} || exit 2
{command} </dev/null 3<&- & run=$!
{{ while read -r line; do kill $run; done; kill $run; }} <&3 >/dev/null 2>&1 &
wait $run"""


@dataclass
class RemoteMachine:
    """The command of one machine, and the connection that has started it; None: it is this host."""

    index: int
    command: Sequence[str]
    address: str | None

    def start(self) -> None:
        """Starts it; lines of another host are shown with its index."""
        if self.address is None:
            # With this terminal: what it shows is the run's live view.
            self.process = subprocess.Popen(self.command)
            return
        remote = REMOTE.format(folder=shlex.quote(str(Path.cwd())), command=shlex.join(self.command))
        # Of a session of its own, so that a Ctrl-C does not break the connection.
        self.process = subprocess.Popen(
            [*SSH, self.address, f"sh -c {shlex.quote(remote)}"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        self._send(os.environ.get(VARIABLE, ""))
        self._lines = threading.Thread(target=self._show, daemon=True)
        self._lines.start()

    def _show(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            print(f"machine {self.index}: {line.decode(errors='replace').rstrip()}", flush=True)

    def signal(self, number: signal.Signals) -> None:
        """Passes a signal on."""
        if self.address is None:
            # A terminal sends its own to this process's whole group.
            if number is not signal.SIGINT or not sys.stdin.isatty():
                self.process.send_signal(number)
            return
        self._send("stop")

    def _send(self, line: str) -> None:
        assert self.process.stdin is not None
        with contextlib.suppress(OSError):
            self.process.stdin.write(f"{line}\n".encode())
            self.process.stdin.flush()

    def wait(self) -> int:
        """Waits for its end; returns the exit code."""
        code = self.process.wait()
        if self.address is not None:
            self._lines.join()
            if code == NO_CONNECTION:
                print(f"machine {self.index}: ssh {self.address} has not started it; its lines say why")
        return code


def run_over_ssh(commands: Sequence[tuple[str | None, Sequence[str]]]) -> int:
    """Runs the commands of all machines to their ends, and returns the worst exit code.

    `commands`: by machine its address, None for this host, and its words. Raises BadInput without ssh.
    """
    machines = [RemoteMachine(index, words, address) for index, (address, words) in enumerate(commands)]
    started: list[RemoteMachine] = []

    def pass_on(number: int, _: object) -> None:
        for machine in started:
            machine.signal(signal.Signals(number))

    for signum in signals_that_stop():
        signal.signal(signum, pass_on)
    try:
        # This host last: machine 0 may be it, and waits for the others in any case.
        for machine in sorted(machines, key=lambda one: one.address is None):
            machine.start()
            started.append(machine)
    except FileNotFoundError as error:
        pass_on(signal.SIGTERM, None)
        raise BadInput(f"{error.filename}: is not installed here; --ssh needs it") from error
    codes = [machine.wait() for machine in machines]
    return next((code for code in codes if code), int(ExitCode.OK))
