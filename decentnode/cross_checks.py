"""What two or more sections must agree on; each check runs when everything that it names was read.

The names of a check's parameters say what it needs: the document, and instances by section.
"""

from collections.abc import Callable, Sequence
from inspect import signature
from typing import Any

from decentnode.communication.base import Communication
from decentnode.errors import BadInput
from decentnode.graph.base import Graph
from decentnode.mapping import Mapping
from decentnode.mixing import Mixing
from decentnode.sharing.base import Sharing
from decentnode.training import TrainingSettings
from decentnode.transforms.base import Transform
from decentnode.transforms.chain import check_order
from decentnode.yaml_source import Document

LAST_PORT = 65535


def check_all(document: Document, made: dict[str, Any]) -> None:
    """Adds the defects of all checks that can run."""
    for check in CHECKS:
        needed = list(signature(check).parameters)[1:]
        if all(made.get(name) is not None for name in needed):
            check(document, *(made[name] for name in needed))


def _count(document: Document, graph: Graph, mapping: Mapping) -> None:
    if mapping.num_nodes != graph.num_nodes:
        document.add(
            ("mapping",), f"the machines carry {mapping.num_nodes} nodes, the graph has {graph.num_nodes}"
        )


def _machine(document: Document, mapping: Mapping, machine: int) -> None:
    count = len(mapping.machines)
    if machine >= count:
        document.add(("machine",), f"must be the index of a machine, 0..{count - 1}, not {machine}")


def _lists(document: Document, training: TrainingSettings, mapping: Mapping) -> None:
    machines, nodes = len(mapping.machines), mapping.num_nodes
    for name in ("steps_per_round", "epochs_per_round"):
        value = getattr(training, name)
        if isinstance(value, tuple) and len(value) not in (machines, nodes):
            each = f"{nodes} ranks" if machines == 1 else f"{nodes} ranks or {machines} machines"
            what = f"must be one number, or one for each of the {each}, not a list of {len(value)}"
            document.add(("training", name), what)


def _order(document: Document, transforms: Sequence[Transform]) -> None:
    for index in range(len(transforms)):
        try:
            check_order(transforms[: index + 1])
        except BadInput as error:
            what = str(error).removeprefix(f"transforms[{index}] ")
            document.add(("sharing", "transforms", index), what)
            return


def _capabilities(document: Document, graph: Graph, sharing: Sharing) -> None:
    unmet = [
        (sharing.needs_static_graph and not graph.static, "that is the same in every round"),
        (sharing.needs_undirected_graph and graph.directed, "that is undirected"),
        (
            sharing.needs_complete_graph and not is_complete(graph),
            "where everyone hears everyone, such as fully_connected",
        ),
    ]
    scheme = type(sharing).__name__
    document.add(
        ("sharing",), *(f"{scheme} needs a graph {what}; this one is not" for fails, what in unmet if fails)
    )


def is_complete(graph: Graph) -> bool:
    """Whether every node sends to all others."""
    most = graph.num_nodes - 1
    return all(len(graph.targets(rank, 0)) == most for rank in range(graph.num_nodes))


def _weights(document: Document, graph: Graph, weights: Mixing) -> None:
    try:
        weights.check(graph)
    except BadInput as error:
        document.add(("sharing", "weights"), *error.defects)


def _one_process(document: Document, communication: Communication, mapping: Mapping) -> None:
    if getattr(communication, "one_process", False) and len(mapping.machines) > 1:
        what = f"carries all nodes in one process, but there are {len(mapping.machines)} machines; use zeromq"
        document.add(("communication",), what)


def _ports(document: Document, communication: Communication, mapping: Mapping) -> None:
    options = vars(communication)
    several = len(mapping.machines) > 1
    if "base_port" not in options or not (several or options.get("local") == "tcp"):
        return
    nodes = max(machine.nodes for machine in mapping.machines)
    first, processes = options["base_port"], -(-nodes // options.get("nodes_per_process", 1))
    key, needed = ("communication", "base_port"), range(first, first + processes)
    if needed[-1] > LAST_PORT:
        document.add(key, f"the ports {first}..{needed[-1]} are needed, the last that exists is {LAST_PORT}")
    elif several and mapping.rendezvous_port in needed:
        port = mapping.rendezvous_port
        document.add(
            key, f"the ports {first}..{needed[-1]} are needed, but {port} is mapping.rendezvous_port"
        )


CHECKS: tuple[Callable[..., None], ...] = (
    _count, _machine, _lists, _order, _capabilities, _weights, _one_process, _ports,
)  # fmt: skip
