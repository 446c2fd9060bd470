"""Checks what two or more sections must agree on; each check runs when all its inputs were read.

The parameters of a check name its inputs: instances by section.
"""

import copy
from collections.abc import Callable, Iterator, Sequence
from inspect import signature
from typing import Any, Protocol

import torch
from torch.optim.lr_scheduler import ReduceLROnPlateau

from decentnode.communication.base import Communication
from decentnode.config.checks.execution import EXECUTION_CHECKS
from decentnode.config.checks.own_loop import LOOP_CHECKS
from decentnode.config.checks.simulation import SIMULATION_CHECKS
from decentnode.config.checks.time_model import TIME_CHECKS
from decentnode.config.settings import EvaluationSettings, FailureSettings
from decentnode.core.registry import SHARINGS, name_of
from decentnode.core.vector import DTYPES, HALVES, needs_float32
from decentnode.errors import BadInput, Defect
from decentnode.graph.base import Graph
from decentnode.graph.connectivity import is_connected
from decentnode.graph.mixing import Mixing, WeightedGraph
from decentnode.graph.strength import are_points
from decentnode.mapping.base import Mapping
from decentnode.sharing.base import Sharing, SharingBase
from decentnode.training.gradient_sync import GradientSync
from decentnode.training.metrics.base import WORDS, Measure
from decentnode.training.settings import TrainingSettings
from decentnode.training.tasks.base import Task
from decentnode.transforms.base import Transform
from decentnode.transforms.chain import Chain, Wrapper, trial_layout

LAST_PORT = 65535
MOST_RESTARTS = 15
"""The limit for each host process: the incarnation is part of every message, in 8 bits."""


class InjectedFault(Protocol):
    """A fault to inject, which checks itself."""

    def defects(
        self, communication: Communication, mapping: Mapping, nodes: int, rounds: int
    ) -> Iterator[Defect]:
        """Yields the defects that the fault has in such a run."""


class CheckedAdversary(Protocol):
    """An adversary, which checks itself."""

    active: bool
    ranks: tuple[int, ...]

    def defects(self, graph: Graph, sharing: Sharing) -> Iterator[Defect]:
        """Yields the defects that the adversary has in such a run."""


def defects(made: dict[str, Any]) -> Iterator[Defect]:
    """Yields the defects of all checks whose inputs were read."""
    for check in CHECKS:
        needed = list(signature(check).parameters)
        if all(made.get(name) is not None for name in needed):
            yield from check(*(made[name] for name in needed))


def _count(graph: Graph, mapping: Mapping) -> Iterator[Defect]:
    if mapping.num_nodes != graph.num_nodes:
        origin = f" ({mapping.origin})" if mapping.origin else ""
        yield Defect(
            ("mapping",),
            f"the machines carry {mapping.num_nodes} nodes{origin}, the graph has {graph.num_nodes}; "
            "correct either, they must be equal",
        )


def _start(graph: Graph, failures: FailureSettings) -> Iterator[Defect]:
    least = failures.start.removeprefix("at_least ")
    if least.isdigit() and int(least) > graph.num_nodes:
        key = ("failures", "start")
        yield Defect(key, f"must be at most the {graph.num_nodes} nodes of the graph, not {least}")


def _evaluated(graph: Graph, evaluation: EvaluationSettings) -> Iterator[Defect]:
    given, nodes = evaluation.nodes, graph.num_nodes
    if isinstance(given, int) and given > nodes:
        yield Defect(("evaluation", "nodes"), f"must be at most the {nodes} nodes of the graph, not {given}")
    elif outside := [rank for rank in given if rank >= nodes] if isinstance(given, tuple) else []:
        what = f"must be ranks of the graph, 0..{nodes - 1}, not {outside[0]}"
        yield Defect(("evaluation", "nodes"), what)


def _metrics(task: Task, metrics: Sequence[Measure]) -> Iterator[Defect]:
    labels: dict[str, int] = {}
    for index, measure in enumerate(metrics):
        key, first = ("evaluation", "metrics", index), labels.setdefault(measure.label, index)
        if task.kind not in measure.kinds:
            wanted = " or ".join(WORDS[kind] for kind in measure.kinds)
            what = f"{name_of(measure)} is of {wanted}; task {name_of(task)} predicts {WORDS[task.kind]}"
            yield Defect(key, what)
        if first != index:
            what = f"evaluation.metrics[{first}] is named {measure.label}, too; give it a label"
            yield Defect(key, what)


def _machine(mapping: Mapping, machine: int) -> Iterator[Defect]:
    count = len(mapping.machines)
    if machine >= count:
        yield Defect(("machine",), f"must be the index of a machine, 0..{count - 1}, not {machine}")


def _lists(training: TrainingSettings, mapping: Mapping) -> Iterator[Defect]:
    machines, nodes = len(mapping.machines), mapping.num_nodes
    for name in ("steps_per_round", "epochs_per_round"):
        value = getattr(training, name)
        if isinstance(value, tuple) and len(value) not in (machines, nodes):
            each = f"{nodes} ranks" if machines == 1 else f"{nodes} ranks or {machines} machines"
            what = f"must be one number, or one for each of the {each}, not a list of {len(value)}"
            yield Defect(("training", name), what)


def _order(sharing: Sharing, transforms: Sequence[Transform], training: TrainingSettings) -> Iterator[Defect]:
    """Tries the chain with a model of small matrices: a defect of its order is one for every model."""
    first, dtype = sharing.first_transforms(), DTYPES[training.dtype]
    trial = trial_layout(transforms)
    for index in range(len(transforms)):
        if isinstance(transforms[index], Wrapper) and index + 1 < len(transforms):
            continue  # a wrapper can only be checked with the transforms after it
        try:
            Chain(copy.deepcopy([*first, *transforms[: index + 1]]), trial.numel, dtype, parameters=trial)
        except BadInput as error:
            yield from defects_of_chain(sharing, error)
            return
    try:
        sharing.make_chain(copy.deepcopy(transforms), trial.numel, dtype, parameters=trial)
    except BadInput as error:
        yield from defects_of_chain(sharing, error)


def defects_of_chain(sharing: SharingBase, error: BadInput) -> Iterator[Defect]:
    """Yields each defect at the key of its transform; the scheme's own transforms come first in its chain."""
    first = sharing.first_transforms()
    begun = f"; {name_of(sharing)} itself begins with {', '.join(map(name_of, first))}" if first else ""
    for defect in error.defects:
        index = next((part for part in defect.key if isinstance(part, int)), None)
        if index is not None and index < len(first):
            yield Defect(("sharing",), f"{defect.what} ({name_of(sharing)} itself puts it into the chain)")
        else:
            place = () if index is None else (index - len(first),)
            yield Defect(("sharing", "transforms", *place), defect.what + begun)


def _precision(sharing: Sharing, training: TrainingSettings) -> Iterator[Defect]:
    dtype = DTYPES[training.dtype]
    if sharing.requirements.float32 and dtype in HALVES:
        yield Defect(("training", "dtype"), f"{name_of(sharing)} {needs_float32(dtype)}")


def _corrections(sharing: Sharing, transforms: Sequence[Transform]) -> Iterator[Defect]:
    scheme = name_of(sharing)
    if sharing.promises.carries_errors:
        why = f"would count errors twice, because {scheme} itself sends later what was dropped; leave it out"
    elif sharing.promises.sends == "models" and not sharing.promises.takes_correction:
        why = f"is right for differences, but {scheme} sends models; leave it out"
    else:
        return
    for index, transform in enumerate(transforms):
        if transform.needs_differences:
            yield Defect(("sharing", "transforms", index), f"{name_of(transform)} {why}")


def _capabilities(graph: Graph, sharing: Sharing) -> Iterator[Defect]:
    # Models that have moved by different terms stay apart where a scheme tolerates no loss.
    may_rest = sharing.promises.tolerates_loss
    unmet = [
        (sharing.requirements.static_graph and not graph.static, "that is the same in every round"),
        (sharing.requirements.undirected_graph and graph.directed, "that is undirected"),
        (
            sharing.requirements.complete_graph and not is_complete(graph, may_rest),
            "where every node receives from every other"
            f"{'' if may_rest else ' in every round'}, such as fully_connected",
        ),
        (
            sharing.requirements.tree and not is_tree(graph),
            "that is a tree, such as chain, star or binary_tree",
        ),
    ]
    refused = [f"{name_of(sharing)} needs a graph {what}; this one is not" for fails, what in unmet if fails]
    if refused and unmet[0][0] and sharing.requirements.for_changing_graphs:
        refused[0] += f"; {sharing.requirements.for_changing_graphs}"
    yield from (Defect(("sharing",), what) for what in refused)


def _edges(graph: Graph, sharing: Sharing) -> Iterator[Defect]:
    """Yields a graph in which nobody ever exchanges, unless that is wanted."""
    is_wanted = sharing.promises.sends == "nothing" or graph.allow_disconnected or graph.num_nodes == 1
    if is_wanted or not graph.changes.repeats:
        return
    if not any(
        graph.targets(rank, round) for round in graph.changes.rounds() for rank in range(graph.num_nodes)
    ):
        what = f"{name_of(graph)} has no edges, so {name_of(sharing)} would exchange nothing"
        yield Defect(("graph",), what, "use sharing: none, or by_rounds with a graph that has edges")


def _by_rounds(graph: Graph, rounds: int) -> Iterator[Defect]:
    """Yields graphs that hold in no round of the run."""
    for index, (span, part) in enumerate(graph.changes.spans):
        if span.start >= rounds:
            what = f"{name_of(part)} would begin in round {span.start}, and the rounds are 0..{rounds - 1}"
            yield Defect(("graph", "schedule", index, 0), what, "write one of these, or more rounds")


def _servers(graph: Graph, sharing: Sharing) -> Iterator[Defect]:
    scheme, name = name_of(sharing), name_of(graph)
    if sharing.requirements.levels:
        what = f"{scheme} needs a graph of two levels, such as hierarchical; {name} has one"
        pairs = zip(graph.levels, sharing.schemes, strict=False)
        for level, inner in pairs:
            yield from _capabilities(level, inner)
            yield from _servers(level, inner)
        if not graph.levels:
            yield Defect(("sharing",), what)
    elif sharing.requirements.server and not graph.servers:
        what = f"{scheme} needs a graph with a server, such as federated; {name} has none"
        yield Defect(("sharing",), what)
    elif graph.servers and not sharing.requirements.server:
        schemes = SHARINGS.classes().items()
        fitting = [
            known
            for known, cls in schemes
            if issubclass(cls, SharingBase)
            and cls.requirements.server
            and cls.asynchronous == sharing.asynchronous
        ]
        fitting = ["levels"] if graph.levels else fitting
        what = f"{scheme} is for peers, but {name} has a server; use one of: {', '.join(fitting)}"
        yield Defect(("sharing",), what)
    elif sharing.requirements.server and graph.levels:
        yield Defect(("sharing",), f"{scheme} is for one level, but {name} has two; use levels")


def _scheme(graph: Graph, sharing: Sharing, weights: Mixing) -> Iterator[Defect]:
    try:
        weighted = WeightedGraph(graph, weights)
    except BadInput:
        return
    try:
        sharing.check(weighted)
    except BadInput as error:
        yield from (defect.below(("sharing",)) for defect in error.defects)


def _negotiated(
    graph: Graph, sharing: Sharing, weights: Mixing, failures: FailureSettings,
    overlap: bool,
) -> Iterator[Defect]:  # fmt: skip
    """Checks a graph whose nodes agree on edges by messages: their own state is part of it."""
    if not graph.is_negotiated:
        return
    name, scheme = name_of(graph), name_of(sharing)
    if sharing.promises.sends == "nothing":
        yield Defect(("graph",), f"{scheme} exchanges nothing, so no node needs {name}; use ring")
    if sharing.requirements.co_senders:
        what = f"{scheme} needs to know all that a neighbor receives from, and {name} does not say so"
        yield Defect(("sharing",), f"{what}; use epidemic_oracle")
    if not weights.serves_negotiated:
        yield Defect(("sharing", "weights"), f"{name} has metropolis_hastings weights; leave it out")
    if overlap and graph.needs_local_steps:
        what = f"{name} of gradients needs the models as the local steps have left them; leave it out"
        yield Defect(("communication", "overlap"), what)
    why = f"nodes of {name} cannot rejoin: a new process does not know its neighbors; leave it out"
    yield from _of_rejoin(failures, why)


def _gradient_steps(sharing: Sharing, training: TrainingSettings) -> Iterator[Defect]:
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
        yield Defect(("training", "optimizer"), what)


def _strength(
    graph: Graph, sharing: Sharing, mixing_strength: object, training: TrainingSettings
) -> Iterator[Defect]:
    key = ("sharing", "mixing_strength")
    if mixing_strength == 1:
        return
    if isinstance(mixing_strength, tuple) and not are_points(mixing_strength):
        yield Defect(key, "must have pairs of round and number, in the order of their rounds")
    if not sharing.promises.takes_strength:
        remedy = "; its gamma is such a factor" if hasattr(sharing, "gamma") else ""
        yield Defect(key, f"the equations of {name_of(sharing)} hold for W alone{remedy}; leave it out")
    elif graph.is_negotiated or (graph.has_weights and graph.has_rests):
        yield Defect(key, f"{name_of(graph)} has weights of its own that must stay as they are; leave it out")
    if mixing_strength != "learning_rate":
        return
    if training.scheduler is None:
        yield Defect(key, "learning_rate needs a rate that changes; give training.scheduler, or a number")
    elif training.scheduler.cls is ReduceLROnPlateau:
        what = "learning_rate needs one rate for all nodes, and ReduceLROnPlateau gives each its own"
        yield Defect(key, f"{what}; use another training.scheduler")
    elif training.schedule_step == "step":
        yield Defect(key, "learning_rate needs one rate in a round; use training.schedule_step: round")


def _overlap(
    sharing: Sharing, transforms: Sequence[Transform], overlap: bool, training: TrainingSettings
) -> Iterator[Defect]:
    if not overlap:
        return
    key = ("communication", "overlap")
    if not sharing.promises.overlaps:
        what = f"{name_of(sharing)} needs the models as the local steps have left them; leave it out"
        yield Defect(key, what)
    elif not sharing.promises.keeps_change and all(t.least_layers == 1 for t in transforms):
        # A round of an outer step may have no local steps beside it.
        every = training.train_every
        if every == 1 or sharing.promises.lost_every % every:
            what = "would lose all local steps beside an outer step, which replaces the whole model"
            remedy = "sharing.blend, fragments in the chain, or training.train_every: 2 with outer_every: 2"
            yield Defect(key, f"{what}; give {remedy}")


def _losses(sharing: Sharing, failures: FailureSettings) -> Iterator[Defect]:
    if failures.on_loss == "continue" and not sharing.promises.tolerates_loss:
        what = f"{name_of(sharing)} does not stay right when a node is lost; use stop, or leave it out"
        yield Defect(("failures", "on_loss"), what)
    if reason := why_not_taken_back(sharing):
        why = f"{reason}; leave it out, and continue with all from checkpoints: checkpoint.every and "
        why += "`decentnode resume`"
        yield from _of_rejoin(failures, why)
    elif failures.start != "all" and failures.on_loss == "stop":
        yield Defect(
            ("failures", "start"), "would end in round 1 with failures.on_loss: stop; use continue there"
        )
    if failures.restart.attempts > MOST_RESTARTS:
        yield Defect(("failures", "restart", "attempts"), f"must be at most {MOST_RESTARTS}")


def _of_rejoin(failures: FailureSettings, why: str) -> Iterator[Defect]:
    """Yields settings that need a node to take part later, where none can."""
    if failures.restart.attempts:
        yield Defect(("failures", "restart", "attempts"), why)
    if failures.start != "all":
        yield Defect(("failures", "start"), why)


def why_not_taken_back(sharing: Sharing, gradient_sync: GradientSync | None = None) -> str:
    """Returns why a lost node cannot rejoin under this scheme; an empty text when it can."""
    if gradient_sync is not None and gradient_sync.one_model:
        return f"{name_of(gradient_sync)} cannot continue without a node"
    taken = sharing.promises.tolerates_loss and sharing.promises.allows_rejoin
    return "" if taken else f"{name_of(sharing)} does not let lost nodes rejoin"


def _private(gradient_sync: GradientSync, sharing: Sharing, training: TrainingSettings) -> Iterator[Defect]:
    if training.privacy is not None and sharing.requirements.local_loss:
        what = f"{name_of(sharing)} mixes by losses of a node's samples, and no noise covers those; use a "
        yield Defect(("sharing",), what + "scheme that sees models alone, or leave out training.privacy")
    if training.privacy is not None and name_of(gradient_sync) != "local":
        what = (
            f"makes the steps of each node private by itself, but {name_of(gradient_sync)} sends gradients "
        )
        yield Defect(("training", "privacy"), what + "within them; use training.name: local")


def _personal(gradient_sync: GradientSync, personal: Sequence[str]) -> Iterator[Defect]:
    if personal and name_of(gradient_sync) != "local":
        what = f"{name_of(gradient_sync)} averages the gradients of all parameters; leave it out"
        yield Defect(("sharing", "personal"), what)


def _one_model(
    gradient_sync: GradientSync, sharing: Sharing, failures: FailureSettings,
    communication: Communication, mapping: Mapping, overlap: bool,
) -> Iterator[Defect]:  # fmt: skip
    """Checks settings for one common model: there is nothing to share, and no node may be missing."""
    if not gradient_sync.one_model:
        return
    name = name_of(gradient_sync)
    if sharing.promises.sends != "nothing":
        yield Defect(
            ("sharing",), f"{name} keeps one model on all nodes, so nothing is left to share; use none"
        )
    if overlap:
        what = f"{name} overlaps its all-reduce with the backward pass by itself; leave it out"
        yield Defect(("communication", "overlap"), what)
    fullest = max(communication.plan.nodes_in_one_process(machine.nodes) for machine in mapping.machines)
    if communication.plan.has_group:
        yield Defect(
            ("communication",), f"{name} has a process group of its own, and this one idles; use zeromq"
        )
    if communication.plan.one_machine or fullest > 1:
        what = f"{name} needs a process for each node; use zeromq with nodes_per_process: 1"
        yield Defect(("communication",), what)
    why = f"{name} cannot continue without a node; leave it out, and continue with all from checkpoints: "
    why += "checkpoint.every and `decentnode resume`"
    if failures.on_loss == "continue":
        yield Defect(("failures", "on_loss"), why)
    yield from _of_rejoin(failures, why)


def _same_steps(
    gradient_sync: GradientSync, training: TrainingSettings, graph: Graph
) -> Iterator[Defect]:  # fmt: skip
    """Checks that nodes that step together make the same number of steps, and of evaluations in each."""
    if not gradient_sync.one_model:
        return
    name = name_of(gradient_sync)
    for key in ("steps_per_round", "epochs_per_round"):
        value = getattr(training, key)
        if isinstance(value, tuple) and len(set(value)) > 1:
            yield Defect(("training", key), f"{name} makes the same steps on all ranks; give one number")
    if training.seconds_per_round is not None:
        what = f"{name} makes the same steps on all ranks; leave it out"
        yield Defect(("training", "seconds_per_round"), what)
    if graph.has_rests:
        yield Defect(
            ("graph",), f"{name} makes the same steps on all ranks, and nodes of {name_of(graph)} rest"
        )
    if training.optimizer.cls is torch.optim.LBFGS:
        what = f"LBFGS looks at each rank's own loss, and {name} has one step for all; use another"
        yield Defect(("training", "optimizer"), what)


def is_tree(graph: Graph) -> bool:
    """Whether an undirected static graph is connected by n - 1 edges."""
    if graph.directed or not graph.static:
        return False
    adjacency = tuple(graph.targets(rank, 0) for rank in range(graph.num_nodes))
    return sum(map(len, adjacency)) == 2 * (graph.num_nodes - 1) and is_connected(adjacency)


def is_complete(graph: Graph, may_rest: bool) -> bool:
    """Whether every node sends to all others in every round; `may_rest`: in which any of them exchange."""
    most, ranks = graph.num_nodes - 1, range(graph.num_nodes)
    rounds = [{len(graph.targets(rank, round)) for rank in ranks} for round in graph.changes.rounds()]
    complete = ({0}, {most}) if may_rest else ({most},)
    return graph.changes.repeats and {most} in rounds and all(degrees in complete for degrees in rounds)


def _weights(graph: Graph, weights: Mixing) -> Iterator[Defect]:
    try:
        weights.check(graph)
    except BadInput as error:
        yield from (defect.below(("sharing", "weights")) for defect in error.defects)


def _faults(
    faults: Sequence[InjectedFault], graph: Graph, communication: Communication,
    mapping: Mapping, rounds: int,
) -> Iterator[Defect]:  # fmt: skip
    for index, fault in enumerate(faults):
        for defect in fault.defects(communication, mapping, graph.num_nodes, rounds=rounds):
            yield defect.below(("faults", index))


def _one_machine(communication: Communication, mapping: Mapping) -> Iterator[Defect]:
    if communication.plan.one_machine and len(mapping.machines) > 1:
        what = f"carries nodes of one machine, but there are {len(mapping.machines)} machines; use zeromq"
        yield Defect(("communication",), what)


def _ports_of_training(
    gradient_sync: GradientSync, communication: Communication, mapping: Mapping
) -> Iterator[Defect]:
    if gradient_sync.port is None or len(mapping.machines) == 1:
        return
    key = ("training", "port")
    if gradient_sync.port == mapping.rendezvous_port:
        yield Defect(key, f"{gradient_sync.port} is mapping.rendezvous_port; take another")
        return
    for option, ports in communication.plan.ports(mapping.machines[0].nodes, several=True).items():
        if gradient_sync.port in ports:
            what = f"{gradient_sync.port} is one of the ports from communication.{option} on; take another"
            yield Defect(key, what)


def _port_of_service(
    graph: Graph, communication: Communication, mapping: Mapping
) -> Iterator[Defect]:  # fmt: skip
    port = graph.service_port(len(mapping.machines))
    ports = communication.plan.ports(mapping.machines[0].nodes, several=True)
    uses = {used: f"one of the ports from communication.{key} on" for key in ports for used in ports[key]}
    uses[mapping.rendezvous_port] = "mapping.rendezvous_port"
    if port in uses:
        yield Defect(("graph", "port"), f"{port} is {uses[port]}; take another")


def _members(communication: Communication, graph: Graph) -> Iterator[Defect]:
    ranks = communication.plan.group_ranks or ()
    if unknown := [rank for rank in ranks if rank >= graph.num_nodes]:
        key = ("communication", "group_ranks")
        yield Defect(key, f"must be ranks of the {graph.num_nodes} nodes of the graph, not {unknown[0]}")


def _trust(communication: Communication, gradient_sync: GradientSync, mapping: Mapping) -> Iterator[Defect]:
    """Checks the trust in networks: process groups neither encrypt nor authenticate payloads."""
    addresses = [machine.address for machine in mapping.machines]
    listening = [i for i, machine in enumerate(mapping.machines) if machine.listen]
    if listening and (communication.plan.has_group or gradient_sync.port is not None):
        behind = "gloo and NCCL bind the addresses that others use; use zeromq and training.name: local"
        yield Defect(("mapping", "machines", listening[0], "listen"), behind)
    what = (
        "gloo and NCCL send in plain between machines, to ports that anybody there can reach; write true "
        "where nobody else is in that network, or use"
    )
    if communication.plan.crosses_network(addresses):
        yield Defect(("communication", "trusted_network"), f"{what} zeromq")
    if gradient_sync.crosses_network(addresses):
        yield Defect(("training", "trusted_network"), f"{what} training.name: local")


def _ports(communication: Communication, mapping: Mapping) -> Iterator[Defect]:
    several = len(mapping.machines) > 1
    uses = {mapping.rendezvous_port: "is mapping.rendezvous_port"} if several else {}
    nodes = max(machine.nodes for machine in mapping.machines)
    for option, ports in communication.plan.ports(nodes, several).items():
        key, needed = ("communication", option), f"the ports {ports[0]}..{ports[-1]} are needed"
        if ports[-1] > LAST_PORT:
            yield Defect(key, f"{needed}, the last that exists is {LAST_PORT}")
        elif taken := uses.keys() & set(ports):
            yield Defect(key, f"{needed}, but {min(taken)} {uses[min(taken)]}")
        uses |= dict.fromkeys(ports, "has another use")


def _adversaries(adversaries: Sequence[CheckedAdversary], graph: Graph, sharing: Sharing) -> Iterator[Defect]:
    seen: dict[int, int] = {}
    for index, attack in enumerate(adversaries):
        yield from (defect.below(("adversaries", index)) for defect in attack.defects(graph, sharing))
        for rank in attack.ranks if attack.active else ():
            if seen.setdefault(rank, index) != index:
                line = f"rank {rank} already makes the attack of adversaries[{seen[rank]}]; name it once"
                yield Defect(("adversaries", index, "ranks"), line)
    if seen and not set(range(graph.num_nodes)) - seen.keys():
        yield Defect(("adversaries",), "all nodes are adversaries; leave some honest")


CHECKS: tuple[Callable[..., Iterator[Defect]], ...] = (
    _count, _start, _evaluated, _metrics, _machine, _lists, _order, _precision,
    _corrections, _capabilities, _edges,
    _by_rounds, _servers,
    _weights, _scheme, _negotiated, _gradient_steps, _strength, _overlap, _losses, _one_machine, _members,
    _trust, _ports, _faults, _adversaries, _one_model, _same_steps, _ports_of_training, _private, _personal,
    _port_of_service, *TIME_CHECKS, *SIMULATION_CHECKS, *EXECUTION_CHECKS, *LOOP_CHECKS,
)  # fmt: skip
