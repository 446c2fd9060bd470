"""Settings -> nodes. Pure assembly: nothing in here starts, connects or waits."""

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import xxhash
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from decentnode import config
from decentnode.adaptation import Adaptation, Overlapped
from decentnode.beacons import Beacons
from decentnode.checkpointing import Lineage, NodeCheckpoints
from decentnode.clock import Clock
from decentnode.communication.base import Communication, Endpoint, HostProcess, Memory
from decentnode.communication.on_device import OnDevice, check_device, device_for
from decentnode.coupling import Coupling
from decentnode.course import Course
from decentnode.datasets.base import LoadedDataset
from decentnode.errors import BadInput
from decentnode.evaluation import Scores, evaluate, load_flat
from decentnode.faults.nemesis import Ledger, Nemesis
from decentnode.mapping import Mapping
from decentnode.mixing import WeightedGraph
from decentnode.models.base import check_scores, initial_model
from decentnode.node import Exchanger, Node
from decentnode.node_evaluation import EvaluationPlan, NodeEvaluation
from decentnode.records import Records
from decentnode.registry import name_of
from decentnode.reports import DiskProblem, Reporter
from decentnode.settings import Settings
from decentnode.sharing.base import Sharing
from decentnode.snapshots import Snapshots
from decentnode.training import Hooks, Training
from decentnode.transforms.chain import Chain
from decentnode.vector import ParameterLayout, Vector

STAGING_ALIGNMENT = 64


@dataclass(frozen=True)
class Surroundings:
    """What a node is connected to on its machine; made by the host process."""

    communication: Communication
    snapshots: Snapshots
    reporter: Reporter
    records: Path
    clock: Clock
    beacons: Beacons
    lineage: Lineage
    shares_process: bool


@dataclass(frozen=True)
class Experiment:
    """Everything that all nodes of a machine read and none writes; made once, before the fork."""

    settings: Settings
    graph: WeightedGraph
    mapping: Mapping
    dataset: LoadedDataset
    parts: list[Tensor]
    """The training samples of each rank, as indices."""
    network: nn.Module
    """The model that every node starts from."""
    layout: ParameterLayout

    @classmethod
    def from_yaml(cls, path: Path, overrides: Sequence[str] = ()) -> "Experiment":
        """Reads, checks and loads everything; raises BadInput with every defect that was found."""
        return cls.from_settings(config.load(path, overrides))

    @classmethod
    def from_settings(cls, settings: Settings) -> "Experiment":
        """Loads what the settings name; raises BadInput."""
        check_device(settings.device)
        graph = WeightedGraph(settings.graph.make(), settings.weights.make())
        dataset = settings.dataset.make().load(settings.seed)
        if not len(dataset.test):
            raise BadInput("dataset: the test set is empty, so no model can be evaluated")
        if dataset.num_classes == 1 and settings.training.loss.cls is nn.CrossEntropyLoss:
            raise BadInput(
                "training.loss: CrossEntropyLoss is always 0 where there is one class; use NLLLoss"
            )
        parts = settings.partition.make().split(dataset.train, graph.num_nodes, settings.seed)
        _ = settings.coupling.make().shard(dataset.train, parts, settings.seed, 0)  # refuses what cannot be
        network = initial_model(settings.model.make(), dataset.shape, dataset.num_classes, settings.seed)
        check_scores(network, dataset.shape, dataset.num_classes)
        layout = ParameterLayout.of(network, settings.mix_buffers, settings.training.channels_last(network))
        experiment = cls(settings, graph, settings.mapping.make(), dataset, parts, network, layout)
        _ = experiment.most_payload_bytes  # makes the chain once: what cannot work is refused here
        _ = experiment.nemesis  # its memory is shared by all processes
        return experiment

    @cached_property
    def processes(self) -> tuple[HostProcess, ...]:
        """All host processes of the run, machine by machine, each with its ranks."""
        communication: Communication = self.settings.communication.make()
        found = []
        for machine in range(len(self.mapping.machines)):
            ranks = self.mapping.ranks_of(machine)
            size = communication.nodes_in_one_process(len(ranks))
            address = self.mapping.address(machine)
            for index, first in enumerate(range(0, len(ranks), size)):
                found.append(HostProcess(machine, index, tuple(ranks[first : first + size]), address))
        return tuple(found)

    @cached_property
    def home(self) -> dict[int, int]:
        """For each rank the position of its process."""
        return {rank: i for i, process in enumerate(self.processes) for rank in process.ranks}

    @cached_property
    def dataset_digest(self) -> str:
        """A hash of the loaded samples and their partition, which all machines must agree on."""
        state = xxhash.xxh3_128()
        for samples in (self.dataset.train, self.dataset.test):
            for tensor in (samples.inputs, samples.labels):
                state.update(tensor.contiguous().numpy().data.cast("B"))
        for part in self.parts:
            state.update(part.numpy().tobytes())
        return state.hexdigest()

    @cached_property
    def most_payload_bytes(self) -> int:
        """The largest payload that a node sends to one neighbor."""
        sharing = self.sharing()
        layouts = [sharing.payload_layout(phase) for phase in range(sharing.phases)]
        return max(layout.max_bytes if layout else 0 for layout in layouts)

    @cached_property
    def coupling(self) -> Coupling:
        """How the nodes' local steps belong together."""
        coupling: Coupling = self.settings.coupling.make()
        return coupling

    @cached_property
    def nemesis(self) -> Nemesis | None:
        """What brings faults about; None in a run without."""
        faults = [fault.make() for fault in self.settings.faults]
        nodes = self.graph.num_nodes
        machines = [self.mapping.machine_of(rank) for rank in range(nodes)]
        ledger = Ledger(len(faults), nodes)
        return Nemesis(faults, machines, self.settings.seed, ledger) if faults else None

    def sharing(self) -> Sharing:
        """A fresh scheme for one node, bound to the model."""
        sharing: Sharing = self.settings.sharing.make()
        transforms = [*sharing.first_transforms(), *(t.make() for t in self.settings.transforms)]
        chain = Chain(transforms, self.layout.numel, parameters=self.layout)
        sharing.check_chain(chain)
        sharing.bind(self.layout, self.graph.num_nodes, chain, self.settings.seed)
        return sharing

    def met_first(self, ranks: Sequence[int]) -> set[int]:
        """Whom these ranks meet before the first round: all that they will ever meet, where that is known."""
        graph = self.graph.graph
        if graph.period is not None:
            return {peer for rank in ranks for peer in graph.partners(rank)}
        return {peer for rank in ranks for peer in (*graph.targets(rank, 0), *graph.sources(rank, 0))}

    def build(self, rank: int, surroundings: Surroundings) -> Node:
        """One node, ready to run."""
        settings, clock = self.settings, surroundings.clock
        endpoint = self._endpoint(rank, surroundings.communication)
        network = copy.deepcopy(self.network).to(endpoint.device)
        vector = Vector(network, self.layout, endpoint.slots)
        sharing = self.sharing()
        shard = self.coupling.shard(self.dataset.train, self.parts, settings.seed, rank)
        pause = (lambda: clock.sleep(0)) if surroundings.shares_process else None
        course = Course(settings.rounds, endpoint, surroundings.beacons, clock)
        if self.nemesis is not None:
            course.beacon = self.nemesis.beacon(rank, course.beacon, surroundings.reporter)
        hooks = Hooks(sharing.adjust_gradient, pause, course.beacon.beat)
        training = Training(network, vector, settings.training, shard, hooks)
        plan = EvaluationPlan(
            self.dataset.test, settings.evaluation.every, settings.rounds, settings.evaluation.batch_size
        )
        snapshots, reporter = surroundings.snapshots, surroundings.reporter
        evaluation = NodeEvaluation(plan, training, endpoint.counters, snapshots, reporter, clock)
        failures = settings.failures
        stop = f"failures.on_loss: {failures.on_loss}" if failures.on_loss in ("stop", "wait") else ""
        if not sharing.tolerates_loss:
            stop = f"{name_of(sharing)} tolerates no loss"
        exchanger = Exchanger(endpoint, sharing, clock, reporter, course.beacon, failures.deadline, stop)
        if sharing.gives_model:
            exchanger.may_fetch = self.graph.graph.partners(rank).__contains__
        records = Records(
            surroundings.records, rank, lambda text: reporter.send(DiskProblem(rank, text[:500]))
        )
        checkpoints = NodeCheckpoints(surroundings.lineage, settings.checkpoint.every, reporter)
        adaptation = (Overlapped if settings.overlap else Adaptation)(training, course.beacon, clock)
        return Node(
            rank, training, adaptation, self.graph, sharing, exchanger, evaluation, records, course,
            checkpoints,
        )  # fmt: skip

    def _endpoint(self, rank: int, communication: Communication) -> Endpoint:
        device = device_for(self.settings.device, self.mapping.local_rank(rank))
        memory = replace(self.memory(rank), device=device)
        endpoint = communication.endpoint(rank, memory)
        return endpoint if device == endpoint.device else OnDevice(endpoint, memory, device)

    def memory(self, rank: int) -> Memory:
        """What a node needs to send from."""
        sharing = self.sharing()
        one = sharing.sends_one_payload and not sharing.chain.per_receiver
        several = 1 if one else self.graph.most_targets(rank)
        return Memory(
            self.layout.numel, payload_bytes=several * (self.most_payload_bytes + STAGING_ALIGNMENT),
            peers=frozenset(self.graph.graph.partners(rank)),
        )  # fmt: skip


def average_model_test(experiment: Experiment) -> Callable[[Tensor], Scores] | None:
    """What tests a vector as the nodes test theirs, with a network of its own.

    None where a vector makes no model: running statistics that are not mixed are each node's own.
    """
    network, layout = copy.deepcopy(experiment.network), experiment.layout
    norms = (part for part in network.modules() if isinstance(part, _NormBase))
    if not experiment.settings.mix_buffers and any(norm.track_running_stats for norm in norms):
        return None
    loss = experiment.settings.training.loss.make()

    def test(vector: Tensor) -> Scores:
        load_flat(network, layout, vector)
        return evaluate(
            network, experiment.dataset.test, loss, experiment.settings.evaluation.batch_size,
            layout.channels_last,
        )  # fmt: skip

    return test
