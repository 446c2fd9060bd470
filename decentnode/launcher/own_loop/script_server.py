"""The processes of a machine that are scripts: gives them their places, and reports their ends.

It takes the part that the fork server has elsewhere. It starts the scripts, or waits for those that torchrun,
Slurm or MPI have started. A script's part ends when its connection does, whatever the script does after that.

Threads: before the run and after it, the launcher's main thread; during the run a thread of its own, which
owns all connections. `kill`, `restart` and `close` are called by the main thread.
"""

import contextlib
import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from decentnode.communication.launcher_link import attachment
from decentnode.communication.launcher_link.attachment import AttachRequest, JoinRefusal, RunPlace
from decentnode.communication.launcher_link.heartbeats import NO_LAST_ROUND, Activity
from decentnode.communication.launcher_link.reports import Exited, Failed, Reporter, Restarted
from decentnode.config import loader as config
from decentnode.core.polling import ready
from decentnode.core.text import how_it_ended
from decentnode.core.timeouts import Timeouts
from decentnode.core.version import __version__
from decentnode.errors import BadInput, DecentnodeError, ExitCode, StartError
from decentnode.launcher.processes.fork_server import restarts_of
from decentnode.node.host_process import ForkContext

POLL_INTERVAL = 0.5


@dataclass
class Script:
    """One script, and its connection."""

    local_rank: int
    process: subprocess.Popen[bytes] | None = None
    """Its process, if this launcher has started it."""
    connection: socket.socket | None = None
    request: AttachRequest | None = None
    has_left: bool = False
    pidfd: int = -1


@dataclass
class ScriptServer:
    """The scripts of one machine."""

    listener: socket.socket
    expected: int
    """How many processes join here."""
    start_script: Callable[[int], "subprocess.Popen[bytes]"] | None = None
    """Starts the script of a local rank; None: somebody else starts them."""
    scripts: dict[int, Script] = field(default_factory=dict)
    """By local rank."""
    run_request: AttachRequest = field(init=False)
    """The request that the settings of the run are of."""
    _pending: list[tuple[socket.socket, AttachRequest]] = field(default_factory=list)
    _script_at: dict[int, Script] = field(default_factory=dict)
    _incarnations: dict[int, int] = field(default_factory=dict)
    _is_over: bool = False
    """How many processes were told that there is no run."""

    # Before the run.

    def start(self) -> None:
        """Starts the scripts, if that is this launcher's task; raises StartError."""
        for local_rank in range(self.expected) if self.start_script is not None else ():
            self._start(local_rank)

    def _start(self, local_rank: int) -> Script:
        assert self.start_script is not None
        try:
            process = self.start_script(local_rank)
        except OSError as error:
            raise StartError(f"the script cannot be started: {error.strerror}: {error.filename}") from error
        script = Script(local_rank, process, pidfd=os.pidfd_open(process.pid))
        self.scripts[local_rank] = script
        return script

    def first_request(self, seconds: float) -> AttachRequest:
        """Waits for the first script that joins; raises StartError where none does."""
        limit = time.monotonic() + seconds
        while not self._pending:
            left = limit - time.monotonic()
            if left <= 0:
                raise StartError(f"no script has joined within {seconds:.0f} s (decentnode.join)")
            pidfds = {script.pidfd: script for script in self.scripts.values()}
            for fd in ready([self.listener.fileno(), *pidfds], seconds=min(left, POLL_INTERVAL)):
                if fd in pidfds:
                    code = pidfds[fd].process.wait()  # type: ignore[union-attr]
                    local_rank = pidfds[fd].local_rank
                    raise StartError(f"local rank {local_rank}: {how_it_ended(code)} before it joined")
                self._accept()
        self.run_request = self._pending[0][1]
        return self.run_request

    def _accept(self) -> None:
        connection, _ = self.listener.accept()
        connection.settimeout(Timeouts.attach)
        try:
            request, _ = attachment.receive(connection, AttachRequest)
        except (OSError, ValueError) as error:
            print(f"a process that joined was refused: {error}", flush=True)
            connection.close()
            return
        self._pending.append((connection, request))

    # The fork server's part.

    def serve(self, fork_context: ForkContext, positions: Sequence[int]) -> "ScriptServer":
        """Gives the scripts their places, in a thread that runs until `close`."""
        # The launcher closes its own end of the pipe.
        reporter = Reporter(os.dup(fork_context.reporter.fd))
        self._context, self._positions = replace(fork_context, reporter=reporter), [*positions]
        self._report = reporter.send
        self._incarnations = dict.fromkeys(positions, 0)
        Path(fork_context.socket_dir).mkdir(0o700, exist_ok=True)
        self._wake, self._woken = os.pipe()
        self._thread = threading.Thread(target=self._run, name="scripts", daemon=True)
        self._thread.start()
        return self

    def kill(self) -> None:
        """Kills all scripts that take part, at once."""
        self._is_over = True
        for script in list(self._script_at.values()):
            if not script.has_left and script.request is not None:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(script.request.pid, signal.SIGKILL)

    def restart(self, position: int, incarnation: int) -> None:
        """Starts the script of a position again, after its end; does nothing where others start scripts."""
        if self.start_script is None or self._is_over or incarnation <= self._incarnations[position]:
            return
        self._incarnations[position] = incarnation
        script = self._script_at.get(position)
        if script is not None and script.process is not None and script.process.poll() is None:
            script.process.kill()
        else:
            self._start_again(position)

    def close(self) -> None:
        """Takes no further notice of the scripts; those that still take part hear why by `dismiss`."""
        self._is_over = True
        if getattr(self, "_thread", None) is not None and self._thread.is_alive():
            os.write(self._woken, b"x")
            self._thread.join(Timeouts.server_end)

    def dismiss(self, refusal: JoinRefusal, late: float = 0.0) -> None:
        """Ends the parts of all scripts that still have one, and says why; the scripts themselves go on.

        `late`: seconds in which those that join only now are told, too; their connections would be reset.
        """
        self.close()
        told, limit = self._refuse(refusal), time.monotonic() + late
        while told < self.expected and self._may_still_join and time.monotonic() < limit:
            if ready([self.listener.fileno()], seconds=POLL_INTERVAL):
                self._accept()
                told += self._refuse(refusal)
        with contextlib.suppress(OSError):
            Path(self.listener.getsockname()).unlink(missing_ok=True)
        self.listener.close()

    def _refuse(self, refusal: JoinRefusal) -> int:
        """Refuses all that have a connection; returns how many these are."""
        connections = [connection for connection, _ in self._pending]
        connections += [s.connection for s in self._script_at.values() if s.connection is not None]
        for connection in connections:
            with contextlib.suppress(OSError):
                attachment.send(connection, refusal)
            connection.close()
        self._pending.clear()
        return len(connections)

    @property
    def _may_still_join(self) -> bool:
        """Whether a script is alive, as far as this launcher knows."""
        processes = [script.process for script in self.scripts.values() if script.process is not None]
        return self.start_script is None or any(process.poll() is None for process in processes)

    def kill_scripts(self) -> None:
        """Kills all scripts that it has started, and what they have started."""
        for script in self.scripts.values():
            if script.process is not None and script.process.poll() is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(script.process.pid, signal.SIGKILL)

    def wait_for_scripts(self, seconds: float = float("inf")) -> list[int]:
        """Waits for the ends of the scripts that it has started; returns their exit codes."""
        limit = time.monotonic() + seconds
        codes = []
        for script in self.scripts.values():
            if script.process is not None:
                left = limit - time.monotonic()
                codes.append(script.process.wait(None if left == float("inf") else max(0.0, left)))
        return codes

    # In the thread.

    def _run(self) -> None:
        while True:
            for connection, request in self._pending:
                self._admit(connection, request)
            self._pending.clear()
            watched = {
                s.connection.fileno(): position
                for position, s in self._script_at.items()
                if s.connection is not None and not s.has_left
            }
            unborn = {
                script.pidfd: script for script in self.scripts.values()
                if script.connection is None and script.pidfd >= 0 and not script.has_left
            }  # fmt: skip
            fds = [self._wake, self.listener.fileno(), *watched, *unborn]
            for fd in ready(fds, seconds=POLL_INTERVAL):
                if fd == self._wake:
                    return
                if fd == self.listener.fileno():
                    self._accept()
                elif fd in watched:
                    self._hear(watched[fd])
                else:
                    self._lose_unborn(unborn[fd])

    def _position_of(self, request: AttachRequest) -> int | None:
        processes = self._context.experiment.processes
        return next((p for p in self._positions if processes[p].ranks == tuple(request.ranks)), None)

    def _admit(self, connection: socket.socket, request: AttachRequest) -> None:
        """Gives a process its place, or refuses it in one line."""
        context, position = self._context, self._position_of(request)
        reason = self._objection(request, position)
        if reason or position is None:
            with contextlib.suppress(OSError):
                attachment.send(connection, JoinRefusal(reason, is_bad_input=True))
            connection.close()
            if position is not None and position not in self._script_at:
                for rank in request.ranks:
                    self._report(Failed(rank, reason[:500], False, is_bad_input=True))
                self._report(Exited(position, int(ExitCode.BAD_INPUT)))
            return
        experiment = context.experiment
        script = next((s for s in self.scripts.values() if s.process and s.process.pid == request.pid), None)
        script = script or self.scripts.setdefault(position, Script(position))
        script.connection, script.request = connection, request
        self._script_at[position] = script
        place = RunPlace(
            settings=config.dump(experiment.settings), position=position,
            incarnation=self._incarnations[position], local_ranks=sorted(self._local_ranks()),
            run_dir=str(context.records.parent), socket_dir=context.socket_dir,
            state=context.identity.settings,
        )  # fmt: skip
        boards = (context.heartbeats, context.handshakes, context.identity, context.snapshots)
        fds = [*(board.memory.fd for board in boards), context.reporter.fd, context.start]
        try:
            attachment.send(connection, place, fds)
        except OSError:
            self._end(position)

    def _local_ranks(self) -> list[int]:
        processes = self._context.experiment.processes
        return [rank for position in self._positions for rank in processes[position].ranks]

    def _objection(self, request: AttachRequest, position: int | None) -> str:
        """Returns why a process cannot have a place; empty if it can."""
        first = self.run_request
        ranks = ", ".join(map(str, request.ranks))
        if position is None:
            here = sorted(self._local_ranks())
            return f"rank {ranks} joins at the launcher of ranks {here[0]} to {here[-1]}"
        present = self._script_at.get(position)
        if present is not None and present.connection is not None and not present.has_left:
            return (
                f"rank {ranks} has joined already, as process {present.request.pid if present.request else 0}"
            )
        values = {
            "decentnode": (request.version, __version__),
            "the number of ranks": (request.size, first.size),
            "the configuration": (request.config, first.config),
            "the arguments of join": (request.values, first.values),
            "the parameters": (request.model.parameters, first.model.parameters),
            "the buffers": (request.model.buffers, first.model.buffers),
            "the complex parameters": (request.model.complex, first.model.complex),
            "the dtype": (request.model.dtype, first.model.dtype),
            "the optimizer": (request.optimizer, first.optimizer),
        }
        shards = first.model.shards
        is_same_shard = request.ranks[0] % shards == first.ranks[0] % shards
        if restarts_of(self._incarnations[position]) == 0:
            values["the saved state"] = request.continues, first.continues
            if is_same_shard and not first.continues:
                values["the initial model"] = request.model.digest, first.model.digest
        for name, (own, expected) in values.items():
            if own != expected:
                remedy = "; make it after torch.manual_seed(...)" if name == "the initial model" else ""
                difference = _difference(own, expected)
                return f"rank {ranks}: {name} differs from rank {first.ranks[0]}'s: {difference}{remedy}"
        return ""

    def _hear(self, position: int) -> None:
        """Takes the last word of a script, or the end of its connection."""
        script = self._script_at[position]
        word = b""
        with contextlib.suppress(OSError):
            word = script.connection.recv(1) if script.connection is not None else b""
        self._end(position, word)

    def _end(self, position: int, word: bytes = b"") -> None:
        script = self._script_at[position]
        if script.connection is not None:
            script.connection.close()
            script.connection = None
        script.has_left = True
        if word == attachment.LEFT:
            self._report(Exited(position, 0))
            return
        code: int | None = None
        if script.process is not None and word != attachment.FAILED:
            with contextlib.suppress(subprocess.TimeoutExpired):
                code = script.process.wait(Timeouts.script_end)
        if self._may_start_again(position):
            self._incarnations[position] += 1
            self._start_again(position, code)
            return
        if word != attachment.FAILED:
            # Of a node that has reported its end this changes nothing.
            how = "its process has ended" if code is None else how_it_ended(code)
            for rank in self._context.experiment.processes[position].ranks:
                self._report(Failed(rank, f"{how} while it took part"))
        self._report(Exited(position, code or int(ExitCode.FAILED)))

    def _lose_unborn(self, script: Script) -> None:
        """Reports a script that has ended before it joined."""
        script.has_left = True
        code = script.process.wait() if script.process is not None else 1
        if self._positions and script.local_rank < len(self._positions):
            position = self._positions[script.local_rank]
            for rank in self._context.experiment.processes[position].ranks:
                self._report(Failed(rank, f"{how_it_ended(code)} before it joined"))
            self._report(Exited(position, code or int(ExitCode.FAILED)))

    def _may_start_again(self, position: int) -> bool:
        context = self._context
        attempts = context.experiment.settings.failures.restart.attempts
        ranks = context.experiment.processes[position].ranks
        activities = {context.heartbeats.of(rank).read().activity for rank in ranks}
        is_amid = bool(context.identity.message_id) and Activity.END not in activities
        return (
            self.start_script is not None
            and not self._is_over
            and is_amid
            and context.heartbeats.last_round == NO_LAST_ROUND
            and restarts_of(self._incarnations[position]) < attempts
        )

    def _start_again(self, position: int, status: int | None = None) -> None:
        self._report(Restarted(position, status, self._incarnations[position]))
        try:
            local_rank = self._script_at[position].local_rank
            self._script_at[position] = self._start(local_rank)
        except DecentnodeError as error:
            for rank in self._context.experiment.processes[position].ranks:
                self._report(Failed(rank, str(error)[:500], False, isinstance(error, BadInput)))
            self._report(Exited(position, int(ExitCode.FAILED)))


def _difference(own: object, expected: object) -> str:
    """Returns what differs, in few words."""
    if isinstance(own, dict) and isinstance(expected, dict):
        keys = [key for key in {**expected, **own} if own.get(key) != expected.get(key)]
        return f"{keys[0]} is {own.get(keys[0], 'missing')}, not {expected.get(keys[0], 'missing')}"
    return f"{own or 'none'}, not {expected or 'none'}"[:300]
