"""Checks of runs in virtual time."""

from collections.abc import Callable, Iterator, Sequence

from decentnode.communication.base import Communication
from decentnode.config.settings import FailureSettings, TimeModelSettings
from decentnode.core.registry import name_of
from decentnode.errors import BadInput, Defect
from decentnode.graph.base import Graph
from decentnode.training.settings import TrainingSettings


def _virtual_time(
    communication: Communication, training: TrainingSettings, graph: Graph, time_model: TimeModelSettings
) -> Iterator[Defect]:
    """Yields options that do not fit the nodes, and a simulation whose steps have no duration."""
    if not communication.plan.has_virtual_time:
        if training.pace == "instant":
            what = "instant: only in virtual time (communication: simulated); leave it out"
            yield Defect(("training", "pace"), what)
        return
    try:
        communication.check_nodes(graph.num_nodes)
    except BadInput as error:
        yield from (defect.below(("communication",)) for defect in error.defects)
    if training.pace is None:
        what = "missing: virtual time knows the duration of a step from here alone"
        yield Defect(
            ("training", "pace"),
            what,
            "write {step_seconds: 0.05}, what `decentnode calibrate` prints, or instant",
        )
    if training.seconds_per_round is not None and training.slowed is None:
        what = "needs training.pace in virtual time: steps without a duration never fill it"
        yield Defect(("training", "seconds_per_round"), what)
    limited = training.steps_per_round is not None or training.epochs_per_round is not None
    if time_model.is_asynchronous and training.pace == "instant" and not limited:
        what = "instant: a window of time has no end of steps without duration"
        yield Defect(
            ("training", "pace"), what, "write {step_seconds: 0.05}, or limit training.steps_per_round"
        )


def _flows(communication: Communication, graph: Graph, time_model: TimeModelSettings) -> Iterator[Defect]:
    """Yields more flows at once than `fair` computes, where the graph has a known number of edges."""
    most = communication.most_flows
    if most is None or time_model.is_asynchronous or not graph.changes.repeats:
        return
    flows = sum(graph.most_targets(rank) for rank in range(graph.num_nodes))
    if flows > most:
        what = f"fair computes at most {most:,} flows at once; the graph has {flows:,} directed edges"
        yield Defect(("communication", "network_model"), what, "use queue, or fewer nodes or neighbors")


def _several_processes(
    communication: Communication, graph: Graph, time_model: TimeModelSettings,
    faults: Sequence[object], failures: FailureSettings,
) -> Iterator[Defect]:  # fmt: skip
    """Yields what needs all nodes of a simulation in one process."""
    nodes = graph.num_nodes
    if not communication.plan.has_virtual_time or communication.plan.nodes_in_one_process(nodes) == nodes:
        return
    reasons = {
        "messages outside of rounds need": time_model.is_asynchronous,
        "faults need": bool(faults),
        "restarts (failures.restart) need": failures.restart.attempts > 0,
        f"the service of {name_of(graph)} needs": graph.needs_service,
    }
    for what, is_given in reasons.items():
        if is_given:
            what += " all nodes of a simulation in one process; leave it out"
            yield Defect(("communication", "nodes_per_process"), what)


def _keys(communication: Communication, security: object) -> Iterator[Defect]:
    """Yields keys, which protect links between machines."""
    if communication.plan.has_virtual_time and security not in ("auto", "none"):
        yield Defect(
            ("security",), "keys are of links between machines, and a simulation has none; leave them out"
        )


SIMULATION_CHECKS: tuple[Callable[..., Iterator[Defect]], ...] = (
    _virtual_time, _flows, _several_processes, _keys,
)  # fmt: skip
