"""Checks what two or more sections must agree on; each check runs when all its inputs were read.

The parameters of a check name its inputs: the document, and instances by section.
"""

import copy
import re
from collections.abc import Callable, Iterable, Sequence
from inspect import signature
from typing import Any, Protocol

import torch

from decentnode.communication.base import Communication
from decentnode.config.checks.time_model import TIME_CHECKS
from decentnode.config.settings import EvaluationSettings, FailureSettings
from decentnode.config.yaml_source import Document
from decentnode.core.registry import SHARINGS, name_of
from decentnode.core.vector import DTYPES, HALVES, Entry, ParameterLayout, needs_float32
from decentnode.errors import BadInput
from decentnode.graph.base import Graph
from decentnode.graph.connectivity import is_connected
from decentnode.graph.mixing import MetropolisHastings, Mixing, Uniform, WeightedGraph
from decentnode.mapping.base import Mapping
from decentnode.sharing.base import Sharing, SharingBase
from decentnode.training.gradient_sync import GradientSync
from decentnode.training.settings import TrainingSettings
from decentnode.transforms.base import Transform
from decentnode.transforms.chain import Chain, Wrapper

LAST_PORT = 65535
MOST_RESTARTS = 15
"""Per host process: the incarnation is part of every message, in 8 bits."""
TRIAL = ParameterLayout((Entry("trial.weight", torch.Size((8, 8)), 0),))
"""A model for trial chains."""


class InjectedFault(Protocol):
    """A fault to inject, which checks itself."""

    def defects(
        self, communication: Communication, mapping: Mapping, nodes: int, rounds: int
    ) -> Iterable[tuple[str, str]]:
        """Pairs of an option, or "" for the whole fault, and its defect in such a run."""


class CheckedAdversary(Protocol):
    """An adversary, which checks itself."""

    active: bool
    ranks: tuple[int, ...]

    def defects(self, graph: Graph, sharing: Sharing) -> Iterable[tuple[str, str]]:
        """Pairs of an option, or "" for the whole attack, and its defect in such a run."""


def check_all(document: Document, made: dict[str, Any]) -> None:
    """Adds the defects of all checks whose inputs were read."""
    for check in CHECKS:
        needed = list(signature(check).parameters)[1:]
        if all(made.get(name) is not None for name in needed):
            check(document, *(made[name] for name in needed))


def _count(document: Document, graph: Graph, mapping: Mapping) -> None:
    if mapping.num_nodes != graph.num_nodes:
        origin = f" ({mapping.origin})" if mapping.origin else ""
        document.add(
            ("mapping",),
            f"the machines carry {mapping.num_nodes} nodes{origin}, the graph has {graph.num_nodes}; "
            "correct either, they must be equal",
        )


def _start(document: Document, graph: Graph, failures: FailureSettings) -> None:
    least = failures.start.removeprefix("at_least ")
    if least.isdigit() and int(least) > graph.num_nodes:
        key = ("failures", "start")
        document.add(key, f"must be at most the {graph.num_nodes} nodes of the graph, not {least}")


def _evaluated(document: Document, graph: Graph, evaluation: EvaluationSettings) -> None:
    given, nodes = evaluation.nodes, graph.num_nodes
    if isinstance(given, int) and given > nodes:
        document.add(("evaluation", "nodes"), f"must be at most the {nodes} nodes of the graph, not {given}")
    elif outside := [rank for rank in given if rank >= nodes] if isinstance(given, tuple) else []:
        what = f"must be ranks of the graph, 0..{nodes - 1}, not {outside[0]}"
        document.add(("evaluation", "nodes"), what)


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


def _order(
    document: Document, sharing: Sharing, transforms: Sequence[Transform], training: TrainingSettings
) -> None:
    """Tries the chain with a model of one small matrix: a defect of its order is one for every model."""
    first, dtype = sharing.first_transforms(), DTYPES[training.dtype]
    for index in range(len(transforms)):
        if isinstance(transforms[index], Wrapper) and index + 1 < len(transforms):
            continue  # a wrapper can only be checked with the transforms after it
        try:
            Chain(copy.deepcopy([*first, *transforms[: index + 1]]), TRIAL.numel, dtype, TRIAL)
        except BadInput as error:
            _add_defects_of_chain(document, sharing, error)
            return
    try:
        sharing.make_chain(copy.deepcopy(transforms), TRIAL.numel, dtype, TRIAL)
    except BadInput as error:
        _add_defects_of_chain(document, sharing, error)


def _add_defects_of_chain(document: Document, sharing: Sharing, error: BadInput) -> None:
    """Adds each defect at the key of the transform that its line names."""
    first = sharing.first_transforms()
    own = len(first)
    begun = f"; {name_of(sharing)} itself begins with {', '.join(map(name_of, first))}" if first else ""
    for line in error.defects:
        named = re.match(r"transforms\[(\d+)\] ", line)
        index, what = (int(named[1]), line[named.end() :]) if named else (own, line)
        if index < own:
            document.add(("sharing",), f"{what} ({name_of(sharing)} itself puts it into the chain)")
        else:
            place = ("sharing", "transforms", index - own) if named else ("sharing", "transforms")
            document.add(place, what + begun)


def _precision(document: Document, sharing: Sharing, training: TrainingSettings) -> None:
    dtype = DTYPES[training.dtype]
    if sharing.requirements.float32 and dtype in HALVES:
        document.add(("training", "dtype"), f"{name_of(sharing)} {needs_float32(dtype)}")


def _corrections(document: Document, sharing: Sharing, transforms: Sequence[Transform]) -> None:
    scheme = name_of(sharing)
    if sharing.promises.carries_errors:
        why = f"would count errors twice, because {scheme} itself sends later what was dropped; leave it out"
    elif sharing.promises.sends == "models" and not sharing.promises.takes_correction:
        why = f"is right for differences, but {scheme} sends models; leave it out"
    else:
        return
    for index, transform in enumerate(transforms):
        if transform.needs_differences:
            document.add(("sharing", "transforms", index), f"{name_of(transform)} {why}")


def _capabilities(document: Document, graph: Graph, sharing: Sharing) -> None:
    unmet = [
        (sharing.requirements.static_graph and not graph.static, "that is the same in every round"),
        (sharing.requirements.undirected_graph and graph.directed, "that is undirected"),
        (
            sharing.requirements.complete_graph and not is_complete(graph),
            "where every node receives from every other, such as fully_connected",
        ),
        (
            sharing.requirements.tree and not is_tree(graph),
            "that is a tree, such as chain, star or binary_tree",
        ),
    ]
    refused = [f"{name_of(sharing)} needs a graph {what}; this one is not" for fails, what in unmet if fails]
    if refused and unmet[0][0] and sharing.requirements.for_changing_graphs:
        refused[0] += f"; {sharing.requirements.for_changing_graphs}"
    document.add(("sharing",), *refused)


def _servers(document: Document, graph: Graph, sharing: Sharing) -> None:
    scheme, name = name_of(sharing), name_of(graph)
    if sharing.requirements.levels:
        what = f"{scheme} needs a graph of two levels, such as hierarchical; {name} has one"
        pairs = zip(graph.levels, getattr(sharing, "schemes", ()), strict=False)
        for level, inner in pairs:
            _capabilities(document, level, inner)
            _servers(document, level, inner)
        document.add(("sharing",), *(() if graph.levels else (what,)))
    elif sharing.requirements.server and not graph.servers:
        what = f"{scheme} needs a graph with a server, such as federated; {name} has none"
        document.add(("sharing",), what)
    elif graph.servers and not sharing.requirements.server:
        schemes = SHARINGS.classes().items()
        fitting = [
            known for known, cls in schemes if issubclass(cls, SharingBase) and cls.requirements.server
        ]
        fitting = ["levels"] if graph.levels else fitting
        what = f"{scheme} is for peers, but {name} has a server; use one of: {', '.join(fitting)}"
        document.add(("sharing",), what)
    elif sharing.requirements.server and graph.levels:
        document.add(("sharing",), f"{scheme} is for one level, but {name} has two; use levels")


def _scheme(document: Document, graph: Graph, sharing: Sharing, weights: Mixing) -> None:
    try:
        weighted = WeightedGraph(graph, weights)
    except BadInput:
        return
    try:
        sharing.check(weighted)
    except BadInput as error:
        document.add(("sharing",), *error.defects)


def _negotiated(
    document: Document, graph: Graph, sharing: Sharing, weights: Mixing, failures: FailureSettings,
    overlap: bool,
) -> None:  # fmt: skip
    """Where nodes agree on edges by messages, their own state is part of the graph."""
    if not graph.is_negotiated:
        return
    name, scheme = name_of(graph), name_of(sharing)
    if sharing.promises.sends == "nothing":
        document.add(("graph",), f"{scheme} exchanges nothing, so no node needs {name}; use ring")
    if sharing.requirements.co_senders:
        what = f"{scheme} needs to know all that a neighbor receives from, and {name} does not say so"
        document.add(("sharing",), f"{what}; use epidemic_oracle")
    if not isinstance(weights, MetropolisHastings | Uniform):
        document.add(("sharing", "weights"), f"{name} has metropolis_hastings weights; leave it out")
    if overlap and graph.needs_local_steps:
        what = f"{name} of gradients needs the models as the local steps have left them; leave it out"
        document.add(("communication", "overlap"), what)
    why = f"nodes of {name} cannot rejoin: a new process does not know its neighbors; leave it out"
    if failures.restart.attempts:
        document.add(("failures", "restart", "attempts"), why)
    if failures.start != "all":
        document.add(("failures", "start"), why)


def _gradient_steps(document: Document, sharing: Sharing, training: TrainingSettings) -> None:
    if not sharing.requirements.plain_sgd:
        return
    options = training.optimizer.options
    wrong = [f"{name} {options[name]}" for name in ("momentum", "weight_decay") if options.get(name)]
    if options.get("maximize"):
        wrong.append("maximize: true")
    if training.optimizer.cls is not torch.optim.SGD:
        wrong = [training.optimizer.cls.__name__]
    if wrong:
        what = (
            f"{name_of(sharing)} needs plain SGD, as its equations are about gradient steps; not {wrong[0]}"
        )
        document.add(("training", "optimizer"), what)


def _overlap(document: Document, sharing: Sharing, overlap: bool) -> None:
    if overlap and not sharing.promises.overlaps:
        what = f"{name_of(sharing)} needs the models as the local steps have left them; leave it out"
        document.add(("communication", "overlap"), what)


def _losses(document: Document, sharing: Sharing, failures: FailureSettings) -> None:
    if failures.on_loss == "continue" and not sharing.promises.tolerates_loss:
        what = f"{name_of(sharing)} does not stay right when a node is lost; use stop, or leave it out"
        document.add(("failures", "on_loss"), what)
    if reason := why_not_taken_back(sharing):
        why = f"{reason}; leave it out, and continue with all from checkpoints: checkpoint.every and "
        why += "`decentnode resume`"
        if failures.restart.attempts:
            document.add(("failures", "restart", "attempts"), why)
        if failures.start != "all":
            document.add(("failures", "start"), why)
    elif failures.start != "all" and failures.on_loss == "stop":
        document.add(
            ("failures", "start"), "would end in round 1 with failures.on_loss: stop; use continue there"
        )
    if failures.restart.attempts > MOST_RESTARTS:
        document.add(("failures", "restart", "attempts"), f"must be at most {MOST_RESTARTS}")


def why_not_taken_back(sharing: Sharing, gradient_sync: GradientSync | None = None) -> str:
    """Why a lost node cannot rejoin under this scheme; empty when it can."""
    if gradient_sync is not None and gradient_sync.one_model:
        return f"{name_of(gradient_sync)} cannot continue without a node"
    taken = sharing.promises.tolerates_loss and sharing.promises.allows_rejoin
    return "" if taken else f"{name_of(sharing)} does not let lost nodes rejoin"


def _private(
    document: Document, gradient_sync: GradientSync, sharing: Sharing, training: TrainingSettings
) -> None:
    if training.privacy is not None and sharing.requirements.local_loss:
        what = f"{name_of(sharing)} mixes by losses of a node's samples, and no noise covers those; use a "
        document.add(("sharing",), what + "scheme that sees models alone, or leave out training.privacy")
    if training.privacy is not None and name_of(gradient_sync) != "local":
        what = (
            f"makes the steps of each node private by itself, but {name_of(gradient_sync)} sends gradients "
        )
        document.add(("training", "privacy"), what + "within them; use training.name: local")


def _one_model(
    document: Document, gradient_sync: GradientSync, sharing: Sharing, failures: FailureSettings,
    communication: Communication, mapping: Mapping, overlap: bool,
) -> None:  # fmt: skip
    """With one common model there is nothing to share, and no node may be missing."""
    if not gradient_sync.one_model:
        return
    name = name_of(gradient_sync)
    if sharing.promises.sends != "nothing":
        document.add(
            ("sharing",), f"{name} keeps one model on all nodes, so nothing is left to share; use none"
        )
    if overlap:
        what = f"{name} overlaps its all-reduce with the backward pass by itself; leave it out"
        document.add(("communication", "overlap"), what)
    fullest = max(communication.nodes_in_one_process(machine.nodes) for machine in mapping.machines)
    if communication.has_group:
        document.add(
            ("communication",), f"{name} has a process group of its own, and this one idles; use zeromq"
        )
    if communication.one_process or fullest > 1:
        what = f"{name} needs a process for each node; use zeromq with nodes_per_process: 1"
        document.add(("communication",), what)
    why = f"{name} cannot continue without a node; leave it out, and continue with all from checkpoints: "
    why += "checkpoint.every and `decentnode resume`"
    if failures.on_loss == "continue":
        document.add(("failures", "on_loss"), why)
    if failures.restart.attempts:
        document.add(("failures", "restart", "attempts"), why)
    if failures.start != "all":
        document.add(("failures", "start"), why)


def _same_steps(
    document: Document, gradient_sync: GradientSync, training: TrainingSettings, graph: Graph
) -> None:  # fmt: skip
    """Nodes that step together need the same number of steps, and of evaluations in each."""
    if not gradient_sync.one_model:
        return
    name = name_of(gradient_sync)
    for key in ("steps_per_round", "epochs_per_round"):
        value = getattr(training, key)
        if isinstance(value, tuple) and len(set(value)) > 1:
            document.add(("training", key), f"{name} makes the same steps on all ranks; give one number")
    if training.seconds_per_round is not None:
        what = f"{name} makes the same steps on all ranks; leave it out"
        document.add(("training", "seconds_per_round"), what)
    if graph.has_rests:
        document.add(
            ("graph",), f"{name} makes the same steps on all ranks, and nodes of {name_of(graph)} rest"
        )
    if training.optimizer.cls is torch.optim.LBFGS:
        what = f"LBFGS looks at each rank's own loss, and {name} has one step for all; use another"
        document.add(("training", "optimizer"), what)


def is_tree(graph: Graph) -> bool:
    """Whether an undirected static graph is connected by n - 1 edges."""
    if graph.directed or not graph.static:
        return False
    adjacency = tuple(graph.targets(rank, 0) for rank in range(graph.num_nodes))
    return sum(map(len, adjacency)) == 2 * (graph.num_nodes - 1) and is_connected(adjacency)


def is_complete(graph: Graph) -> bool:
    """Whether every node sends to all others, in every round."""
    most, ranks = graph.num_nodes - 1, range(graph.num_nodes)
    known = graph.period is not None
    return known and all(len(graph.targets(rank, round)) == most for round in graph.cycle for rank in ranks)


def _weights(document: Document, graph: Graph, weights: Mixing) -> None:
    try:
        weights.check(graph)
    except BadInput as error:
        document.add(("sharing", "weights"), *error.defects)


def _faults(
    document: Document, faults: Sequence[InjectedFault], graph: Graph, communication: Communication,
    mapping: Mapping, rounds: int,
) -> None:  # fmt: skip
    for index, fault in enumerate(faults):
        for option, what in fault.defects(communication, mapping, graph.num_nodes, rounds):
            document.add(("faults", index, option) if option else ("faults", index), what)


def _one_process(document: Document, communication: Communication, mapping: Mapping) -> None:
    if communication.one_process and len(mapping.machines) > 1:
        what = f"carries all nodes in one process, but there are {len(mapping.machines)} machines; use zeromq"
        document.add(("communication",), what)


def _ports_of_training(
    document: Document, gradient_sync: GradientSync, communication: Communication, mapping: Mapping
) -> None:
    if gradient_sync.port is None or len(mapping.machines) == 1:
        return
    key = ("training", "port")
    if gradient_sync.port == mapping.rendezvous_port:
        document.add(key, f"{gradient_sync.port} is mapping.rendezvous_port; take another")
        return
    for option, ports in communication.ports(mapping.machines[0].nodes, several=True).items():
        if gradient_sync.port in ports:
            what = f"{gradient_sync.port} is one of the ports from communication.{option} on; take another"
            document.add(key, what)


def _port_of_service(
    document: Document, graph: Graph, communication: Communication, mapping: Mapping
) -> None:  # fmt: skip
    port = graph.service_port(len(mapping.machines))
    ports = communication.ports(mapping.machines[0].nodes, several=True)
    uses = {one: f"one of the ports from communication.{key} on" for key in ports for one in ports[key]}
    uses[mapping.rendezvous_port] = "mapping.rendezvous_port"
    if port in uses:
        document.add(("graph", "port"), f"{port} is {uses[port]}; take another")


def _members(document: Document, communication: Communication, graph: Graph) -> None:
    ranks = communication.group_ranks or ()
    if unknown := [rank for rank in ranks if rank >= graph.num_nodes]:
        key = ("communication", "group_ranks")
        document.add(key, f"must be ranks of the {graph.num_nodes} nodes of the graph, not {unknown[0]}")


def _trust(
    document: Document, communication: Communication, gradient_sync: GradientSync, mapping: Mapping
) -> None:
    """Payloads in a process group are neither encrypted nor authenticated."""
    addresses = [machine.address for machine in mapping.machines]
    listening = [i for i, machine in enumerate(mapping.machines) if machine.listen]
    if listening and (communication.has_group or gradient_sync.port is not None):
        behind = "gloo and NCCL bind the addresses that others use; use zeromq and training.name: local"
        document.add(("mapping", "machines", listening[0], "listen"), behind)
    what = (
        "gloo and NCCL send in plain between machines, to ports that anybody there can reach; write true "
        "where nobody else is in that network, or use"
    )
    if communication.crosses_network(addresses):
        document.add(("communication", "trusted_network"), f"{what} zeromq")
    if gradient_sync.crosses_network(addresses):
        document.add(("training", "trusted_network"), f"{what} training.name: local")


def _ports(document: Document, communication: Communication, mapping: Mapping) -> None:
    several = len(mapping.machines) > 1
    uses = {mapping.rendezvous_port: "is mapping.rendezvous_port"} if several else {}
    nodes = max(machine.nodes for machine in mapping.machines)
    for option, ports in communication.ports(nodes, several).items():
        key, needed = ("communication", option), f"the ports {ports[0]}..{ports[-1]} are needed"
        if ports[-1] > LAST_PORT:
            document.add(key, f"{needed}, the last that exists is {LAST_PORT}")
        elif taken := uses.keys() & set(ports):
            document.add(key, f"{needed}, but {min(taken)} {uses[min(taken)]}")
        uses |= dict.fromkeys(ports, "has another use")


def _adversaries(
    document: Document, adversaries: Sequence[CheckedAdversary], graph: Graph, sharing: Sharing
) -> None:
    seen: dict[int, int] = {}
    for index, attack in enumerate(adversaries):
        for option, line in attack.defects(graph, sharing):
            document.add(("adversaries", index, *([option] if option else [])), line)
        for rank in attack.ranks if attack.active else ():
            if seen.setdefault(rank, index) != index:
                line = f"rank {rank} already makes the attack of adversaries[{seen[rank]}]; name it once"
                document.add(("adversaries", index, "ranks"), line)
    if seen and not set(range(graph.num_nodes)) - seen.keys():
        document.add(("adversaries",), "all nodes are adversaries; leave some honest")


CHECKS: tuple[Callable[..., None], ...] = (
    _count, _start, _evaluated, _machine, _lists, _order, _precision, _corrections, _capabilities, _servers,
    _weights, _scheme, _negotiated, _gradient_steps, _overlap, _losses, _one_process, _members, _trust,
    _ports, _faults, _adversaries, _one_model, _same_steps, _ports_of_training, _private,
    _port_of_service, *TIME_CHECKS,
)  # fmt: skip
