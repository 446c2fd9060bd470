"""The launcher's end of the peer-sampling service, a process beside the nodes of machine 0."""

from collections.abc import Callable
from pathlib import Path

from decentnode.communication.base import Communication
from decentnode.communication.peer_sampling.service import SamplingService, endpoint_of
from decentnode.communication.security.curve import Credentials
from decentnode.config.settings import Settings
from decentnode.errors import BadInput
from decentnode.graph.base import Graph
from decentnode.graph.overlays.peer_sampler import PeerSampler
from decentnode.launcher import preflight
from decentnode.launcher.child_process import ChildProcess
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
        self._child: ChildProcess | None = None

    def start(self, socket_dir: str, credentials: Credentials | None) -> None:
        """Forks the service; raises StartError. No thread may run yet."""
        if (graph := self._graph) is not None:
            settings, processes = self._experiment.settings, len(self._experiment.processes)

            def serve() -> None:
                _service(graph, settings, processes, socket_dir, credentials).serve()

            self._child = ChildProcess("the peer-sampling service", serve, self._log)

    @property
    def descriptors(self) -> list[int]:
        """Readable when `look` has something to say."""
        return [self._child.fd] if self._child else []

    def look(self) -> None:
        """Reports the end of the service, once; the nodes continue with the last views."""
        if self._child is not None and self._child.has_ended():
            self.close()
            text = f"the peer-sampling service has ended; nodes repeat its last views; its log: {self._log}"
            self._say("communication", text)

    def close(self) -> None:
        """Ends the service at once."""
        if self._child is not None:
            self._child.close()
            self._child = None


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
