"""The launcher's end of the peer-sampling service, a process beside the nodes of machine 0."""

from pathlib import Path

from decentnode.communication.base import TransportPlan
from decentnode.communication.peer_sampling.service import SamplingService, endpoint_of
from decentnode.communication.security.curve import Credentials
from decentnode.config.settings import Settings
from decentnode.errors import BadInput
from decentnode.graph.base import Graph
from decentnode.graph.overlays.served import ServedGraph
from decentnode.launcher import preflight
from decentnode.launcher.processes.child_process import ChildProcess
from decentnode.mapping.base import Mapping
from decentnode.node.experiment import Experiment


def start_service(
    experiment: Experiment, machine: int, run_dir: Path, socket_dir: str, credentials: Credentials | None
) -> ChildProcess | None:
    """Forks the service, if the graph needs one on this machine; raises StartError.

    No thread may run yet.
    """
    graph, settings = experiment.graph.graph, experiment.settings
    if not isinstance(graph, ServedGraph) or machine or graph.address:
        return None

    def serve() -> None:
        _service(graph, settings, len(experiment.processes), socket_dir, credentials).serve()

    return ChildProcess("the peer-sampling service", serve, run_dir / "logs/peer-sampling.log")


def by_hand(settings: Settings) -> SamplingService:
    """Makes the service for the nodes of these settings, started beside the run; raises BadInput."""
    graph: Graph = settings.graph.make()
    if not (isinstance(graph, ServedGraph) and graph.address):
        raise BadInput.at("graph", "must be peer_sampler with the address of this service; see graph.address")
    mapping: Mapping = settings.mapping.make()
    plan: TransportPlan = settings.communication.make().plan
    processes = sum(plan.processes(machine.nodes) for machine in mapping.machines)
    # Nodes ask machine 0, so the service has its keys.
    keys = preflight.credentials(settings, 0)
    return _service(graph, settings, processes, "", keys)


def _service(
    graph: ServedGraph, settings: Settings, processes: int, socket_dir: str, credentials: Credentials | None
) -> SamplingService:
    mapping: Mapping = settings.mapping.make()
    host = mapping.machines[0].bound
    endpoint = endpoint_of(mapping, graph.address, graph.port, socket_dir, host)
    barrier = settings.failures.timeouts.sampling_barrier
    return SamplingService(graph.answer, endpoint, processes, barrier, credentials)
