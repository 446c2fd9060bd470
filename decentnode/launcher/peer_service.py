"""The launcher's end of the peer-sampling service, a process beside the nodes of machine 0."""

import contextlib
import os
import signal
import traceback
from collections.abc import Callable
from pathlib import Path

from decentnode.communication.base import Communication
from decentnode.communication.peer_sampling.service import SamplingService, endpoint_of
from decentnode.communication.security.curve import Credentials
from decentnode.config.settings import Settings
from decentnode.core.polling import ready
from decentnode.core.process_setup import end_thread_pools
from decentnode.core.streams import redirect_output
from decentnode.errors import STOPPED_BY, BadInput, StartError
from decentnode.graph.base import Graph
from decentnode.graph.overlays.peer_sampler import PeerSampler
from decentnode.launcher import preflight
from decentnode.launcher.fork_server import die_with
from decentnode.mapping.base import Mapping
from decentnode.node.experiment import Experiment

LOG = "logs/peer-sampling.log"
"""Relative to the run's directory."""


class PeerService:
    """The process of the service; without a graph that needs one here, every method does nothing."""

    def __init__(
        self, experiment: Experiment, machine: int, run_dir: Path, say: Callable[[str, str], object]
    ) -> None:
        """`say` gets the kind and the text of an event. Nothing runs before `start`."""
        graph = experiment.graph.graph
        self._graph = graph if isinstance(graph, PeerSampler) and not (machine or graph.address) else None
        self._experiment = experiment
        self._log = run_dir / LOG
        self._say = say
        self._pid = 0
        self._end = -1
        """Readable when the process has ended."""

    def start(self, socket_dir: str, credentials: Credentials | None) -> None:
        """Forks the service; raises StartError. No thread may run yet."""
        if self._graph is None:
            return
        end_thread_pools()
        self._end, is_alive = os.pipe()
        launcher = os.getpid()
        try:
            self._pid = os.fork()
        except OSError as error:
            raise StartError(f"the peer-sampling service cannot be started: {error.strerror}") from error
        if self._pid == 0:
            # First: it must not outlive a launcher that dies now.
            die_with(launcher)
            os.close(self._end)
            self._serve(self._graph, socket_dir, credentials)
        # The pipe must end with the service.
        os.close(is_alive)

    @property
    def descriptors(self) -> list[int]:
        """Readable when `look` has something to say."""
        return [self._end] if self._pid else []

    def look(self) -> None:
        """Reports the end of the service, once; the nodes continue with the last views."""
        if self._pid and ready([self._end], seconds=0.0):
            self._reap()
            text = f"the peer-sampling service has ended; nodes repeat its last views; its log: {self._log}"
            self._say("communication", text)

    def close(self) -> None:
        """Ends the service at once."""
        if self._pid:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._pid, signal.SIGKILL)
            self._reap()

    def _reap(self) -> None:
        os.close(self._end)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self._pid, 0)
        self._pid = 0

    def _serve(self, graph: PeerSampler, socket_dir: str, credentials: Credentials | None) -> None:
        """Runs the service and ends its process."""
        try:
            # A signal may go to all processes of a terminal, but only the launcher ends the service.
            for signum in STOPPED_BY:
                signal.signal(signum, signal.SIG_IGN)
            redirect_output(self._log)
            processes, settings = len(self._experiment.processes), self._experiment.settings
            _service(graph, settings, processes, socket_dir, credentials).serve()
        except BaseException as error:
            with contextlib.suppress(OSError):
                traceback.print_exception(error)
        finally:
            # Not sys.exit: the interpreter's clean-up belongs to the parent of the fork.
            os._exit(1)


def by_hand(settings: Settings) -> SamplingService:
    """The service for the nodes of these settings, started beside the run; raises BadInput."""
    graph: Graph = settings.graph.make()
    if not (isinstance(graph, PeerSampler) and graph.address):
        raise BadInput("graph: must be peer_sampler with the address of this service; see graph.address")
    mapping: Mapping = settings.mapping.make()
    communication: Communication = settings.communication.make()
    processes = 0
    for machine in mapping.machines:
        processes += -(-machine.nodes // communication.nodes_in_one_process(machine.nodes))
    # Nodes ask machine 0, so the service has its keys.
    keys = preflight.credentials(settings, 0)
    return _service(graph, settings, processes, "", keys)


def _service(
    graph: PeerSampler, settings: Settings, processes: int, socket_dir: str, credentials: Credentials | None
) -> SamplingService:
    endpoint = endpoint_of(settings.mapping.make(), graph.address, graph.port, socket_dir)
    barrier = settings.failures.timeouts.sampling_barrier
    return SamplingService(graph.answer, endpoint, processes, barrier, credentials)
