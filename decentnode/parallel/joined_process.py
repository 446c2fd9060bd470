"""A process whose loops take part in a run: its place, its transport, and the nodes of its threads."""

import atexit
import contextlib
import os
import re
import shutil
import socket
import subprocess
import sys
import threading
import time
import weakref
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from math import inf
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from decentnode.communication.base import folder_for_sockets
from decentnode.communication.launcher_link import attachment
from decentnode.communication.launcher_link.attachment import AttachRequest, JoinRefusal, RunPlace
from decentnode.communication.launcher_link.handshakes import HandshakeBoard
from decentnode.communication.launcher_link.heartbeats import HeartbeatBoard
from decentnode.communication.launcher_link.reports import Failed, Reporter
from decentnode.communication.launcher_link.snapshots import EvaluatorBoard, SnapshotBuffers
from decentnode.config import loader as config
from decentnode.core.polling import ready
from decentnode.core.process_setup import close_here, close_in_children
from decentnode.core.registry import name_of
from decentnode.core.streams import log_name
from decentnode.core.timeouts import Timeouts
from decentnode.core.version import __version__
from decentnode.errors import (
    BadInput,
    DecentnodeError,
    ExitCode,
    RunFailed,
    StartError,
    explained,
    is_out_of_memory,
)
from decentnode.launcher import preflight
from decentnode.mapping.rank_place import RankPlace
from decentnode.node.checkpoint.node_checkpoints import RunIdentity
from decentnode.node.checkpoint.store import FOLDER
from decentnode.node.experiment import Experiment
from decentnode.node.factory import NodeHost, ParticipantFactory, ParticipantParts
from decentnode.node.host_process import (
    ForkContext,
    begin_run,
    prepare_process,
    run_participant,
)
from decentnode.node.own_loop.loop_node import BlockingNode
from decentnode.node.own_loop.loop_steps import LoopSteps
from decentnode.node.own_loop.turn import Turn
from decentnode.node.participant import Participant
from decentnode.parallel.shared_model import TensorsOfLoop

LAUNCHER = "DECENTNODE_LAUNCHER"
"""The variable with the socket of a launcher that has started this process."""
_joined: dict[str, int] = {}


@dataclass
class JoiningRank:
    """One rank of this process, as `join` was called for it."""

    rank: int
    tensors: TensorsOfLoop
    optimizers: Sequence[Optimizer]
    samples: int | None
    loss: Callable[[nn.Module], float] | None
    state: Mapping[str, Any] | None
    """The saved state of its node; None: it begins."""
    thread: threading.Thread = field(default_factory=threading.current_thread)
    node: BlockingNode | None = None


@dataclass
class JoinedProcess:
    """The part of one process in a run."""

    joining_ranks: dict[int, JoiningRank]
    connection: socket.socket
    context: ForkContext
    position: int
    host: NodeHost
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _codes: list[ExitCode] = field(default_factory=list)
    _is_closed: bool = False
    _end: str = ""
    """Why the launcher has ended, if it has."""
    _owner: int = field(default_factory=os.getpid)

    @classmethod
    def attached(
        cls, joining_ranks: Sequence[JoiningRank], place: RankPlace, config_name: str | None,
        values: Mapping[str, Any],
        start_deadline: float, quiet: bool,
    ) -> "JoinedProcess":  # fmt: skip
        """Connects to the launcher of this machine, builds everything, and begins.

        Raises BadInput and StartError, one line each.
        """
        first, given = joining_ranks[0], dict(values)
        or_resume = bool(given.pop("or_resume", False))
        request = AttachRequest(
            ranks=[joining.rank for joining in joining_ranks], size=place.size, pid=os.getpid(),
            version=__version__, model=first.tensors.described, config=config_name, values=given,
            optimizer=described_optimizer(first.optimizers), samples=first.samples, folder=str(Path.cwd()),
            script=script_name(), or_resume=or_resume,
            continues=continued_from(first.state),
        )  # fmt: skip
        for joining in joining_ranks[1:]:
            # Threads share the generators of torch, so their models begin as that of the first rank.
            if joining.state is None:
                joining.tensors.begin_as(first.tensors, joining.rank)
        connection = connected(place, len(joining_ranks), start_deadline, quiet)
        # A worker of a DataLoader must not hide the death of this process.
        close_in_children(connection.fileno())
        try:
            answer, fds = _place(connection, request, 2 * start_deadline)
            if LAUNCHER in os.environ:
                _write_to(Path(answer.run_dir) / log_name(request.ranks[0]))
            made = cls._built(joining_ranks, connection, answer, fds)
        except BaseException:
            close_here(connection.detach())
            raise
        atexit.register(made.close)
        return made

    @classmethod
    def _built(
        cls, joining_ranks: Sequence[JoiningRank], connection: socket.socket, place: RunPlace, fds: list[int]
    ) -> "JoinedProcess":
        run_dir = Path(place.run_dir)
        settings = config.load(run_dir / "config.yaml")
        experiment = Experiment.from_settings(settings)
        layout, nodes = experiment.layout, experiment.graph.num_nodes
        heartbeats, handshakes, identity, snapshots, pipe, start = fds
        context = ForkContext(
            snapshots=SnapshotBuffers(place.local_ranks, layout.shared.numel, layout.dtype, fd=snapshots),
            evaluators=EvaluatorBoard(SnapshotBuffers([], 1), 0),
            evaluator_timeout=settings.failures.timeouts.evaluator,
            reporter=Reporter(pipe),
            records=run_dir / "records",
            heartbeats=HeartbeatBoard(place.local_ranks, heartbeats),
            identity=RunIdentity(run_dir / FOLDER, place.state, nodes, identity),
            experiment=experiment,
            handshakes=HandshakeBoard(nodes, handshakes),
            start=start,
            socket_dir=place.socket_dir,
            threads=torch.get_num_threads(),
            credentials=preflight.credentials(settings, settings.machine or 0),
        )
        try:
            _, host = prepare_process(context, place.position, place.incarnation)
            process = cls(
                {joining.rank: joining for joining in joining_ranks},
                connection,
                context,
                place.position,
                host,
            )
            try:
                participants = [process._participant(joining) for joining in joining_ranks]
                begin_run(
                    context,
                    place.position,
                    place.incarnation,
                    host,
                    participants,
                    wait=process._wait_for_start,
                )
            except BaseException:
                host.communication.close(0.0)
                raise
        except BaseException as error:
            line = str(error) if isinstance(error, DecentnodeError) else explained(error)
            for joining in joining_ranks:
                failed = Failed(
                    joining.rank, line[:500], is_out_of_memory(error), isinstance(error, BadInput)
                )
                context.reporter.send(failed)
            with contextlib.suppress(OSError):
                connection.send(attachment.FAILED)
            raise
        for participant in participants:
            participant.begin()
        if len(joining_ranks) > 1:
            threading.Thread(target=process._watch_threads, name="loops", daemon=True).start()
        return process

    def _participant(self, joining: JoiningRank) -> Participant:
        experiment, shared = self.context.experiment, joining.tensors
        graph, training = experiment.graph.graph, experiment.settings.training
        rank, turn = joining.rank, Turn()

        def steps_in(round: int) -> float:
            if rank in graph.servers or not graph.trains(rank, round):
                return 0
            unlimited = inf if experiment.settings.time_model.is_asynchronous else 1
            return training.steps(rank, round, 1) if training.steps_per_round is not None else unlimited

        def trains(round: int) -> bool:
            return not round % training.train_every and graph.trains(rank, round)

        def make_steps(parts: ParticipantParts) -> LoopSteps:
            def check() -> None:
                self._check_launcher()
                shared.check(parts.vector)

            sharing, place = parts.sharing, f"rank {rank}"
            adjust = sharing.adjust_gradient
            needs = adjust is not None or sharing.requirements.plain_sgd
            if adjust is not None and shared.functions is not None:
                raise BadInput(
                    f"sharing: {name_of(sharing)} changes gradients, and functions share no gradients; share "
                    "parameters"
                )
            if needs and not joining.optimizers:
                raise BadInput(
                    f"sharing: {name_of(sharing)} works with the steps of an optimizer; "
                    "join(..., optimizer=...)"
                )
            return LoopSteps(
                parts.vector, place, steps_in, trains, turn, adjust,
                pace=None if sharing.asynchronous else parts.pace, beat=parts.scheduler.heartbeat.beat,
                check=check, are_parameters=shared.functions is None and shared.shards == 1,
            )  # fmt: skip

        schemes = experiment.schemes
        if joining.samples is not None or joining.loss is not None:
            schemes = replace(schemes, own_samples=joining.samples, own_loss=self._local_loss(joining))
        factory = ParticipantFactory(experiment, schemes)
        participant = factory.participant(
            rank, self.host, make_steps, shared.module_tensors(experiment.layout)
        )
        participant.exchange.ends_with_peers = True
        steps = participant.local_steps
        assert isinstance(steps, LoopSteps)
        joining.node = BlockingNode(
            participant, steps, self.context, shared.model, experiment.settings.seed,
            partition=experiment.settings.dataset.make().loop_partition,
            run=partial(run_participant, fork_context=self.context), closes=self._note_end,
        )  # fmt: skip
        for optimizer in joining.optimizers:
            joining.node.use(optimizer)
        return participant

    def _local_loss(self, joining: JoiningRank) -> Callable[[torch.Tensor, int], float] | None:
        loss, shared = joining.loss, joining.tensors
        if loss is None:
            return None
        from decentnode.models.module_copies import copied
        from decentnode.training.evaluation import load_flat

        network, layout = copied(shared.model), self.context.experiment.layout.shared

        def of(vector: torch.Tensor, round: int) -> float:
            load_flat(network, layout, vector)
            with torch.no_grad():
                return float(loss(network))

        return of

    def _check_launcher(self) -> None:
        """Raises RunFailed where the launcher has ended: nobody watches, and keeps results."""
        with self._lock:
            fd = self.connection.fileno()
            if not self._end and fd >= 0 and ready([fd], seconds=0.0):
                self._end = "the launcher of this machine has ended"
                with contextlib.suppress(OSError, ValueError):
                    self._end = attachment.receive(self.connection, JoinRefusal)[0].reason
        if self._end:
            raise RunFailed(
                f"rank {', '.join(map(str, self.joining_ranks))}: {self._end}; so does this rank's part"
            )

    def _wait_for_start(self, start: int) -> None:
        """Waits for the start signal; raises StartError where the launcher says that there is none."""
        deadline = time.monotonic() + 3 * self.context.experiment.settings.failures.start_deadline
        while time.monotonic() < deadline:
            found = ready([start, self.connection.fileno()], seconds=1.0)
            if self.connection.fileno() in found:
                try:
                    answer, _ = attachment.receive(self.connection, JoinRefusal)
                except (OSError, ValueError) as error:
                    raise StartError(
                        "the launcher of this machine has ended before the first round"
                    ) from error
                raise answer.error()
            if start in found:
                os.set_blocking(start, False)
                with contextlib.suppress(BlockingIOError):
                    os.eventfd_read(start)
                    return
        raise StartError("no start signal came from the launcher of this machine")

    def _watch_threads(self) -> None:
        """Ends the part of each thread that has ended without saying so: nobody may wait for it."""
        while not self._is_closed:
            for joining in self.joining_ranks.values():
                node = joining.node
                if node is not None and not joining.thread.is_alive() and not node.has_left:
                    error = _uncaught.get(joining.thread)
                    node.leave(failed=error is not None, error=error)
            time.sleep(Timeouts.thread_check)

    def _note_end(self, code: ExitCode) -> None:
        """Closes the process's part when all of its nodes have ended."""
        with self._lock:
            self._codes.append(code)
            if len(self._codes) < len(self.joining_ranks):
                return
        self.finish(max(self._codes))

    def finish(self, code: ExitCode) -> None:
        """Delivers what was sent, and tells the launcher that this process takes part no more; once."""
        if self._is_closed:
            return
        self._is_closed = True
        timeouts = self.context.experiment.settings.failures.timeouts
        self.host.communication.close(timeouts.farewell if code == ExitCode.OK else Timeouts.least_farewell)
        with contextlib.suppress(OSError):
            self.connection.send(attachment.LEFT if code == ExitCode.OK else attachment.FAILED)
        close_here(self.connection.detach())
        for fd in (self.context.reporter.fd, self.context.start):
            os.close(fd)
        # A process may join again and again, and keeps no model of before.
        atexit.unregister(self.close)

    def close(self) -> None:
        """Ends the parts of all nodes that have not left: the program ends."""
        if os.getpid() != self._owner:
            return
        for joining in self.joining_ranks.values():
            if joining.node is not None and not joining.node.has_left:
                error = _uncaught.get(joining.thread)
                joining.node.leave(failed=error is not None, error=error)


_uncaught: "weakref.WeakKeyDictionary[threading.Thread, Exception]" = weakref.WeakKeyDictionary()
"""By thread the error that has ended it."""


def note_uncaught_errors() -> None:
    """Has the error that ends the program, or a thread, noted for the nodes of that thread; once.

    One of this package is printed as one line.
    """
    if getattr(sys.excepthook, "notes_errors", False):
        return
    of_program, of_threads = sys.excepthook, threading.excepthook

    def note(thread: threading.Thread, error: BaseException | None) -> bool:
        if error is not None and not (isinstance(error, SystemExit) and not error.code):
            _uncaught[thread] = error if isinstance(error, Exception) else RunFailed(type(error).__name__)
        if isinstance(error, DecentnodeError):
            print(error, file=sys.stderr, flush=True)
            return True
        return False

    def note_of_program(kind: type[BaseException], error: BaseException, trace: Any) -> None:
        if not note(threading.current_thread(), error):
            of_program(kind, error, trace)

    def note_of_thread(arguments: Any) -> None:
        if arguments.thread is None or not note(arguments.thread, arguments.exc_value):
            of_threads(arguments)

    note_of_program.notes_errors = True  # type: ignore[attr-defined]
    sys.excepthook, threading.excepthook = note_of_program, note_of_thread


def _place(connection: socket.socket, request: AttachRequest, seconds: float) -> tuple[RunPlace, list[int]]:
    """Asks for a place; raises BadInput and StartError."""
    try:
        attachment.send(connection, request)
        connection.settimeout(seconds)
        answer, fds = attachment.receive(connection, RunPlace, JoinRefusal)
    except (OSError, ValueError) as error:
        raise StartError(f"the launcher of this machine gave no place: {error}") from error
    if isinstance(answer, JoinRefusal):
        raise answer.error()
    return answer, fds


def continued_from(state: Mapping[str, Any] | None) -> str:
    """Returns the place in a run at which a node's state was saved; empty without one."""
    return "" if state is None else f"after {state['rounds']} rounds and {state['steps']} steps"


def script_name() -> str:
    """Returns the name of the script that runs, as a run may have it."""
    name = re.sub(r"[^A-Za-z0-9_.-]", "_", Path(sys.argv[0]).stem)[:60]
    return name if name.strip("_.-") else "script"


def described_optimizer(optimizers: Sequence[Optimizer]) -> dict[str, Any] | None:
    """Returns name and options of the first optimizer as a configuration has them; None without one."""
    if not optimizers:
        return None
    optimizer = optimizers[0]
    cls = type(optimizer)
    kept = {"lr": float(optimizer.param_groups[0]["lr"])} if "lr" in optimizer.param_groups[0] else {}
    if cls is torch.optim.SGD:
        group = optimizer.param_groups[0]
        kept |= {name: group[name] for name in ("momentum", "dampening", "weight_decay", "nesterov")}
        return {"name": "SGD", **kept}
    # Schemes ask for plain SGD, or for none in particular.
    return {"name": cls.__name__ if getattr(torch.optim, cls.__name__, None) is cls else "Adam", **kept}


def connected(place: RankPlace, joining_ranks: int, seconds: float, quiet: bool) -> socket.socket:
    """Returns a connection to this machine's launcher, which the first rank starts; raises StartError."""
    path = os.environ.get(LAUNCHER)
    if path:
        return attachment.connect(Path(path), 0.0)
    if joining_ranks > 1 or place.local_size == 1:
        # All ranks of this machine are here.
        return _started_launcher(place, joining_ranks, None, seconds, quiet)
    key = "/".join(
        [place.starter, *(os.environ.get(name, "") for name in _JOB), str(os.getuid()), str(place.machine)]
    )
    number = _joined[key] = _joined.get(key, -1) + 1
    name = f"decentnode-join-{zlib.crc32(f'{key}/{number}'.encode()):08x}"
    where = Path(folder_for_sockets()) / name
    if place.local_rank == 0:
        return _started_launcher(place, joining_ranks, where, seconds, quiet)
    return attachment.connect(where, seconds)


_JOB = (
    "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "SLURM_JOB_ID",
    "SLURM_STEP_ID", "OMPI_MCA_ess_base_jobid", "PMI_ID", "PMIX_NAMESPACE",
)  # fmt: skip
"""Variables that tell jobs on one machine apart."""


def _started_launcher(
    place: RankPlace, joining_ranks: int, where: Path | None, seconds: float, quiet: bool
) -> socket.socket:
    own = Path(folder_for_sockets()) / f"decentnode-join-{os.getpid()}-{time.monotonic_ns():x}"
    path = where or own
    listener = attachment.listen(path)
    processes = 1 if joining_ranks > 1 else place.local_size
    arguments = [processes, place.local_size, place.machines, seconds, os.devnull if quiet else ""]
    environ = {name: value for name, value in os.environ.items() if name != "TORCHELASTIC_ERROR_FILE"}
    environ["PYTHONPATH"] = os.pathsep.join(filter(None, [*sys.path, environ.get("PYTHONPATH", "")]))
    if place.machines > 1:
        # For the launchers, each machine has one process of the job.
        environ |= {
            "RANK": str(place.machine), "WORLD_SIZE": str(place.machines), "LOCAL_RANK": "0",
            "LOCAL_WORLD_SIZE": "1", "GROUP_RANK": str(place.machine),
            "GROUP_WORLD_SIZE": str(place.machines),
            "SLURM_STEP_TASKS_PER_NODE": f"1(x{place.machines})",
        }  # fmt: skip
    else:
        for name in ("RANK", "WORLD_SIZE", "SLURM_STEP_ID", "SLURM_JOB_ID"):
            environ.pop(name, None)
    try:
        launcher = subprocess.Popen(
            [sys.executable, "-m", "decentnode.launcher.own_loop.start", str(listener.fileno()),
             *map(str, arguments)],
            env=environ, pass_fds=[listener.fileno()], stdin=subprocess.DEVNULL,
        )  # fmt: skip
        connection = attachment.connect(path, seconds)
    finally:
        listener.close()
    # Whoever has started the ranks may end what they have started: results are written then.
    atexit.register(_await_launcher, launcher)
    return connection


def _await_launcher(launcher: "subprocess.Popen[bytes]") -> None:
    with contextlib.suppress(subprocess.TimeoutExpired):
        launcher.wait(Timeouts.launcher_end)


def _write_to(log: Path) -> None:
    """Has this process write to its log in the run's directory, with what it has written so far."""
    sys.stdout.flush()
    sys.stderr.flush()
    with contextlib.suppress(OSError):
        before = Path(f"/proc/self/fd/{sys.stdout.fileno()}").resolve()
        with log.open("ab") as kept:
            if before.is_file() and before != log.resolve():
                with before.open("rb") as early:
                    shutil.copyfileobj(early, kept)
            kept.flush()
            for stream in (1, 2):
                os.dup2(kept.fileno(), stream)
