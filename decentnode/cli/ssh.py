"""`decentnode commands CONFIG --ssh`: starts the machines over ssh, shows their lines, stops them all."""

import contextlib
import os
import shlex
import signal
import subprocess
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from decentnode.communication.security.job_secret import VARIABLE
from decentnode.core.process_setup import signals_that_stop
from decentnode.errors import BadInput, ExitCode

SSH = ("ssh", "-o", "BatchMode=yes", "-o", "ConnectTimeout=15")
"""Without a question: what ssh would ask for belongs into its own configuration."""
POLL_INTERVAL = 0.1
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
            # It shows the live view on this terminal. Its signals come from here alone, as those of all.
            self.process = subprocess.Popen(self.command, start_new_session=True)
            return
        remote = REMOTE.format(folder=shlex.quote(str(Path.cwd())), command=shlex.join(self.command))
        # A Ctrl-C must not break the connection.
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
            self.process.send_signal(number)
            return
        self._send("stop")

    def _send(self, line: str) -> None:
        assert self.process.stdin is not None
        with contextlib.suppress(OSError):
            self.process.stdin.write(f"{line}\n".encode())
            self.process.stdin.flush()

    def close(self) -> int:
        """Waits for its end and its last lines; returns the exit code."""
        code = self.process.wait()
        if self.address is not None:
            self._lines.join()
        if code == NO_CONNECTION:
            print(f"machine {self.index}: ssh {self.address} has not run it; the lines above say why")
            return int(ExitCode.FAILED)
        return code if code >= 0 else 128 - code


def run_over_ssh(commands: Sequence[tuple[str | None, Sequence[str]]]) -> int:
    """Runs the commands of all machines to their ends; returns the exit code of the first that ended badly.

    A host that ssh does not reach stops the others, which would wait for it. `commands`: by machine its
    address, None for this host, and its words. Raises BadInput without ssh.
    """
    machines = [RemoteMachine(index, words, address) for index, (address, words) in enumerate(commands)]
    started: list[RemoteMachine] = []

    def pass_on(number: int, _: object) -> None:
        for machine in started:
            machine.signal(signal.Signals(number))

    for signum in signals_that_stop():
        signal.signal(signum, pass_on)
    try:
        for machine in machines:
            machine.start()
            started.append(machine)
    except FileNotFoundError as error:
        pass_on(signal.SIGTERM, None)
        raise BadInput(f"{error.filename}: is not installed here; --ssh needs it") from error
    codes: dict[int, int] = {}
    while len(codes) < len(machines):
        time.sleep(POLL_INTERVAL)
        for machine in machines:
            if machine.index in codes or machine.process.poll() is None:
                continue
            codes[machine.index] = machine.close()
            if machine.process.returncode == NO_CONNECTION:
                pass_on(signal.SIGTERM, None)
    return next((codes[index] for index in sorted(codes) if codes[index]), int(ExitCode.OK))
