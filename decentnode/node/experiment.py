"""Settings -> nodes. Pure assembly: nothing here starts, connects or waits."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from decentnode.communication.arena import Arena
from decentnode.communication.base import (
    STAGING_ALIGNMENT,
    BufferSpec,
    Communication,
    Endpoint,
    HostProcess,
    kept_links,
)
from decentnode.communication.device.staging import DeviceStaging, check_device, device_for
from decentnode.communication.launcher_link.reports import MOST_BYTES
from decentnode.config import loader as config
from decentnode.config.checks.workers import computes_on_gpu, why_no_workers
from decentnode.config.consistency import defects_of_chain
from decentnode.config.settings import Settings
from decentnode.config.type_check import unknown
from decentnode.core.clock import Clock
from decentnode.core.control_groups import processors
from decentnode.core.registry import name_of
from decentnode.core.rng import key, seed_generators
from decentnode.core.text import first_line
from decentnode.core.vector import DTYPES, ModuleTensors, ParameterLayout, Vector
from decentnode.datasets.base import Dataset, LoadedDataset, draw
from decentnode.errors import BadInput
from decentnode.graph.mixing import WeightedGraph
from decentnode.mapping.base import Mapping
from decentnode.models.base import (
    check_ids,
    check_padding,
    check_scores,
    has_batch_norm,
    initial_model,
    least_batch,
)
from decentnode.models.module_copies import copied
from decentnode.models.module_state import ModuleState, changes_itself, keeps_only_tensors
from decentnode.node.asynchronous.loop import AsyncNode, check_schedules
from decentnode.node.asynchronous.messages import MessageExchange
from decentnode.node.asynchronous.schedule import LiveSchedule, schedule_for
from decentnode.node.checkpoint.node_checkpoints import NodeCheckpoints
from decentnode.node.checkpoint.packed_state import most_bytes
from decentnode.node.checkpoint.privacy_journal import PrivacyJournal
from decentnode.node.child_answers import answer_of
from decentnode.node.evaluation import EvaluationPlan, NodeEvaluation, NodeResources, is_due
from decentnode.node.faults.injector import FaultInjector
from decentnode.node.local_update import AdaptThenCombine, AdaptWhileCommunicating
from decentnode.node.node import Node, RoundExchange
from decentnode.node.plugin_sources import PluginSources
from decentnode.node.privacy.plans import doubts_of, plans_of, shortened
from decentnode.node.recording.model_records import ModelRecords
from decentnode.node.recording.transcripts import writer_for
from decentnode.node.round_scheduler import RoundScheduler
from decentnode.node.run_samples import RunSamples
from decentnode.results.metrics import Metric
from decentnode.results.records import AuxiliaryRecords, RecordFile, Records
from decentnode.sharing.asynchronous.base import AsyncSharing
from decentnode.sharing.base import Setup, Sharing, SharingBase
from decentnode.sharing.blocks.buffers import stay_in_vector, with_averaged_buffers
from decentnode.sharing.overlays import on_overlay
from decentnode.training.batched.executor import BatchedExecutor, nodes_at_once
from decentnode.training.evaluation import LocalLoss, VectorTest, batch_size
from decentnode.training.gradient_sync import GradientSync
from decentnode.training.minibatches import Shard
from decentnode.training.optim.uncompiled import trial_step
from decentnode.training.privacy.base import PrivacyPlan
from decentnode.training.settings import BATCH_SIZE
from decentnode.training.training import Hooks, StepExecutor, Training

LEAST_NODES_FOR_WORKERS, LEAST_PARAMETERS_FOR_WORKERS = 32, 20_000
"""Nodes of a process, and parameters of the model, from which on `communication.workers: auto` uses other
processes for the steps: shorter steps take less than sending them away."""
REPORT_BYTES = 300
"""Bytes of the report of a node's end, without its metrics."""
NUMBER_BYTES = 21
"""Bytes of a number in that report, with its name and punctuation."""


@dataclass(eq=False)
class NodeHost:
    """What the nodes of one host process have in common."""

    communication: Communication
    clock: Clock
    is_shared: bool = False
    """Whether there are several nodes."""
    executor: StepExecutor = field(default_factory=StepExecutor)
    arena: Arena | None = None
    """Where the vectors are, if other processes compute the steps."""
    record_file: RecordFile | None = None
    """The file of the records of all nodes; None: each node has its own."""
    module_tensors: dict[torch.device, ModuleTensors] = field(default_factory=dict)
    """By device the network that all nodes use in turn, where one can serve them all."""


@dataclass(frozen=True)
class Experiment:
    """The data that all nodes of a machine read and none writes; made once, before the fork."""

    settings: Settings
    graph: WeightedGraph
    mapping: Mapping
    samples: RunSamples
    network: nn.Module
    """The initial model of every node."""
    layout: ParameterLayout
    """The layout of a node's vector; schemes are given its `shared` part."""
    planned_rounds: int
    """The rounds that the settings ask for; private steps may have spent their budget before."""
    plan: EvaluationPlan
    """When models are evaluated, which ones, and on which samples."""
    privacy: tuple[PrivacyPlan, ...] = ()
    """The plan of each rank; none where steps are not private."""
    injector: FaultInjector | None = None
    """The fault injector; None without faults. Its memory exists before the fork."""

    @classmethod
    def from_yaml(cls, path: Path, overrides: Sequence[str] = ()) -> "Experiment":
        """Reads, checks and loads everything; raises BadInput with every defect."""
        return cls.from_settings(config.load(path, overrides))

    @classmethod
    def from_settings(cls, settings: Settings, whole_dataset: LoadedDataset | None = None) -> "Experiment":
        """Loads what the settings name; raises BadInput. `whole`: all samples, where they are loaded."""
        # First, because it is cheap and loading may take minutes.
        check_device(settings.device)
        dtype = DTYPES[settings.training.dtype]
        samples = RunSamples.load(settings, settings.graph.make().num_nodes, whole_dataset)
        graph = samples.weighted_graph(settings)
        dataset = samples.dataset
        # Raises BadInput where a rank has no part of the steps, before a large model is made.
        settings.training.gradient_sync.make().shard(dataset.train, samples.parts, settings.seed, rank=0)
        network = initial_model(
            settings.model.make(), dataset.shape, dataset.num_classes, seed=settings.seed, dtype=dtype,
            zeros=dataset.train.zeros(2),
        )  # fmt: skip
        layout = ParameterLayout.of(
            network, settings.training.mix_buffers, settings.training.channels_last(network), dtype,
            personal=settings.sharing.personal,
        )  # fmt: skip
        labels = tuple(dataset.train.labels.shape[1:])
        check_scores(network, dataset.train.zeros(2), dataset.num_classes, labels=labels)
        for part in (dataset.train, dataset.test):
            check_ids(network, part.largest_ids())
        if dataset.train.is_ragged:
            check_padding(network, *dataset.train.alone_and_padded())
        plans = plans_of(settings, graph.graph, samples, network=network)
        rounds, settings = settings.rounds, shortened(settings, plans)
        mapping = settings.mapping.make()
        faults = [fault.make() for fault in settings.faults]
        machines = [mapping.machine_of(rank) for rank in range(graph.num_nodes)]
        experiment = cls(
            settings, graph, mapping, samples, network, layout, rounds,
            plan=evaluation_plan(settings, samples, network), privacy=plans,
            injector=FaultInjector(faults, machines, settings.seed) if faults else None,
        )  # fmt: skip
        experiment.check()
        return experiment

    def check(self) -> None:
        """Raises BadInput for what would only fail in a node: small batches, long reports, a chain.

        What needs to be computed, such as a step, is tried in the dry round.
        """
        settings, dataset = self.settings, self.samples.dataset
        for augmentation in settings.training.augmentation:
            augmentation.make().check(dataset)
        settings.training.check(dataset.train, self.least_batch, self.gradient_sync.one_model)
        settings.training.trained(self.network)
        self._check_computation()
        self._check_parts()
        _ = self.target
        needed = REPORT_BYTES + sum(len(metric.name) + NUMBER_BYTES for metric in self.metrics)
        if needed > MOST_BYTES:
            raise BadInput.at(
                "task",
                f"the {len(self.metrics)} metrics of an evaluation need {needed} bytes of a node's report, "
                f"which has {MOST_BYTES}; measure fewer, for instance with per_class: false",
            )
        self.bound(on_overlay(self._scheme(), self.graph), 0)
        check_schedules(settings, self.graph.num_nodes)

    def _check_computation(self) -> None:
        """Tries torch's loss and optimizer: those from outside are tried in the dry round."""
        training = replace(self.settings.training, amp=None, compile=False)
        batch = self.samples.dataset.train.batch(torch.arange(min(2, len(self.samples.dataset.train))))
        if training.loss.cls.__module__.startswith("torch."):
            objective = training.objective(copied(self.network).eval(), self.layout.channels_last)
            try:
                with torch.no_grad():
                    objective(batch)
            except (RuntimeError, ValueError, LookupError) as error:
                raise BadInput.at("training.loss", f"{first_line(error)}") from error
        is_torch = training.optimizer.cls.__module__.startswith("torch.")
        if is_torch and not computes_on_gpu(self.settings.device):
            try:
                trial_step(training.make_optimizer, DTYPES[training.dtype])
            except (RuntimeError, ValueError, AssertionError) as error:
                raise BadInput.at("training.optimizer", f"no step on a CPU: {first_line(error)}") from error

    def _check_parts(self) -> None:
        for rank in range(self.graph.num_nodes):
            if 0 < self.shard(rank).size < self.least_batch:
                raise BadInput.at(
                    "dataset.partition",
                    f"rank {rank} has a single sample, but batch norm needs {self.least_batch} at once; give "
                    f"each rank {self.least_batch} or none",
                )
        scheme: Sharing = self.settings.sharing.make()
        without = [rank for rank, part in enumerate(self.samples.parts) if not len(part)]
        if scheme.requirements.local_loss and without:
            raise BadInput.at(
                "sharing",
                f"{name_of(scheme)} tests models on a node's own samples, but rank {without[0]} has none; "
                "change dataset.partition, or use another scheme",
            )
        if scheme.asynchronous:
            for server in self.graph.graph.servers:
                if server not in without:
                    raise BadInput.at(
                        "dataset.partition",
                        f"rank {server} has samples, but a server of {name_of(scheme)} makes no local steps; "
                        "list the ranks that train in ranks",
                    )

    @property
    def metrics(self) -> tuple[Metric, ...]:
        """The metrics of an evaluation, the headline first; those on validation and own samples last."""
        task = self.settings.task.make()
        metrics = tuple(Metric(*metric) for metric in task.metrics(self.samples.dataset.num_classes))
        held_out = self.samples.dataset.validation is not None
        of_validation = tuple(metric.of_validation for metric in metrics if held_out)
        return metrics + of_validation + tuple(metric.of_local for metric in metrics if self.plan.local)

    @property
    def target(self) -> tuple[Metric, float] | None:
        """The metric and the value at which the run ends, None without a target; raises BadInput."""
        known = {metric.name: metric for metric in self.metrics}
        for name, value in (self.settings.evaluation.target or {}).items():
            if name not in known:
                raise BadInput.at(f"evaluation.target.{name}", unknown("metric", name, [*known]))
            if known[name].is_fraction and not 0 < value <= 1:
                reason = f"must be a number > 0 and <= 1, a fraction, not {value:g}"
                raise BadInput.at(f"evaluation.target.{name}", reason)
            return known[name], value
        return None

    @cached_property
    def processes(self) -> tuple[HostProcess, ...]:
        """All host processes of the run, by machine, with their ranks."""
        communication: Communication = self.settings.communication.make()
        processes = []
        for machine in range(len(self.mapping.machines)):
            ranks = self.mapping.ranks_of(machine)
            size = communication.plan.nodes_in_one_process(len(ranks))
            host = self.mapping.machines[machine]
            for index, first in enumerate(range(0, len(ranks), size)):
                part = tuple(ranks[first : first + size])
                processes.append(
                    HostProcess(machine, index, part, address=host.address, bound=host.bound, own=host.own)
                )
        return tuple(processes)

    @cached_property
    def workers(self) -> int:
        """The processes that compute the local steps of the host process; 0: it does so itself."""
        communication: Communication = self.settings.communication.make()
        asked, nodes = communication.plan.workers, self.graph.num_nodes
        if asked != "auto":
            return min(asked, nodes)
        settings = self.settings
        is_unfit = (
            nodes < LEAST_NODES_FOR_WORKERS
            or self.layout.numel < LEAST_PARAMETERS_FOR_WORKERS
            # Nodes of random speeds are hardly ever due at one time, and a message may change the model until
            # a step ends.
            or settings.time_model.is_asynchronous
            # A network may keep in plain attributes what its evaluation needs.
            or settings.has_foreign_plugins
            or computes_on_gpu(settings.device)
            or any(why_no_workers(settings.sharing.make(), settings.training, self.graph.graph))
        )
        # One processor is that of the host process, which mixes meanwhile.
        return 0 if is_unfit else max(0, processors() - 1)

    @cached_property
    def home(self) -> dict[int, int]:
        """The position of the process of each rank."""
        return {rank: i for i, process in enumerate(self.processes) for rank in process.ranks}

    @cached_property
    def sources(self) -> PluginSources:
        """The source files of plug-ins from outside the package, equal on all machines."""
        return PluginSources(self.settings)

    @cached_property
    def most_payload_bytes(self) -> int:
        """Bytes of the largest payload for one neighbor."""
        sharing = self.bound(on_overlay(self._scheme(), self.graph), 0)
        layouts = [sharing.payload_layout(phase) for phase in range(sharing.promises.phases)]
        return max(layout.max_bytes if layout else 0 for layout in layouts)

    @cached_property
    def gradient_sync(self) -> GradientSync:
        """The gradient sync of the run."""
        gradient_sync: GradientSync = self.settings.training.gradient_sync.make()
        return gradient_sync

    def sharing(self, rank: int = 0) -> SharingBase:
        """A new scheme of an honest node, ready to begin; without the exchanges of `on_overlay`."""
        return self.bound(self._scheme(), rank)

    def _scheme(self) -> SharingBase:
        """A new scheme, not bound yet, with averaged buffers around it where it needs them."""
        scheme: SharingBase = self.settings.sharing.make()
        transforms = [*scheme.first_transforms(), *(t.make() for t in self.settings.sharing.transforms)]
        if not isinstance(scheme, Sharing) or stay_in_vector(self.layout.shared, scheme, transforms):
            return scheme
        return with_averaged_buffers(scheme)

    def bound(self, scheme: SharingBase, rank: int, vector: Vector | None = None) -> SharingBase:
        """Gives a scheme, with all that is around it, what it needs on a node of the run.

        `vector`: the node's, with its personal parameters; None: they are the initial ones.
        """
        layout, settings, shard = self.layout.shared, self.settings, self.shard(rank)
        transforms = [t.make() for t in settings.sharing.transforms]
        local_loss = None
        if scheme.requirements.local_loss and shard.size:
            # In a network of its own.
            network = copied(self.network).train()
            objective = settings.training.objective(network, layout.channels_last)
            local_loss = LocalLoss(
                objective, layout, shard, batch_size=settings.training.batch_size or BATCH_SIZE,
                vector=vector,
            )  # fmt: skip
        try:
            chain = scheme.make_chain(transforms, layout.numel, layout.dtype, parameters=layout)
        except BadInput as error:
            raise BadInput(*defects_of_chain(scheme, error)) from None
        setup = Setup(
            layout=layout,
            chain=chain,
            graph=self.graph,
            rank=rank,
            samples=len(self.samples.parts[rank]),
            local_loss=local_loss,
            watched=frozenset() if rank in settings.adversary_ranks else settings.adversary_ranks,
        )
        scheme.bind(setup)
        return scheme

    def sharing_in_run(self, rank: int, vector: Vector | None = None) -> SharingBase:
        """A new scheme of a node as it runs: that of an adversary lies, and overlays agree on edges.

        `vector`: the node's own.
        """
        scheme = self._scheme()
        for plugin in self.settings.adversaries:
            attack = plugin.make()
            scheme = attack.wrap(scheme) if rank in attack.ranks else scheme
        return self.bound(on_overlay(scheme, self.graph), rank, vector)

    @cached_property
    def least_batch(self) -> int:
        """The smallest batch that the model can be trained on."""
        train, settings = self.samples.dataset.train, self.settings
        fields = train.batch(torch.arange(min(1, len(train)))).fields
        if has_batch_norm(self.network):
            return least_batch(self.network, fields)
        if not settings.has_foreign_plugins or not self._has_single_samples:
            return 1
        # In a child: steps of a plug-in must not change this process.
        answer = answer_of(
            lambda file: file.write(bytes([least_batch(self.network, fields)])),
            settings.failures.start_deadline,
        )
        return answer.content[0] if answer.content else 1

    @property
    def _has_single_samples(self) -> bool:
        """Whether some node would have a batch of one sample."""
        training = self.settings.training
        if training.batch_size is None or training.privacy is not None:
            return True
        sizes = [len(part) for part in self.samples.parts]
        return any(size and (size - 1) % training.batch_size == 0 for size in sizes)

    @property
    def module_state_bytes(self) -> int:
        """The most bytes of a network's module state that an evaluator takes."""
        names = [entry.name for entry in self.layout.entries]
        return most_bytes(ModuleState(self.network, names).state_dict(), self.layout.nbytes)

    @property
    def two_batches(self) -> list[tuple[Tensor, ...]]:
        """Two small batches of different training samples, for trials of the network."""
        train = self.samples.dataset.train
        size = min(2, len(train))
        starts = (0, max(0, len(train) - size))
        return [train.batch(torch.arange(start, start + size)).fields for start in starts]

    def shard(self, rank: int) -> Shard:
        """The training samples of a node."""
        shard = self.gradient_sync.shard(
            self.samples.dataset.train, self.samples.parts, self.settings.seed, rank=rank
        )
        return replace(shard, least_batch=self.least_batch)

    def first_peers(self, ranks: Sequence[int]) -> set[int]:
        """Peers to connect to before the first round: all future ones if few, otherwise those of round 0."""
        graph = self.graph.graph
        everybody = range(graph.num_nodes) if graph.has_cycle and not graph.static else ()
        most = max((len(graph.partners(rank)) for rank in everybody), default=0)
        if graph.static or 0 < most <= kept_links():
            return {peer for rank in ranks for peer in graph.partners(rank)}
        return {peer for rank in ranks for peer in graph.peers_in(rank, [0])}

    def build(self, rank: int, resources: NodeResources, host: NodeHost, clock: Clock | None = None) -> Node:
        """Builds one node of a process, ready to run; `clock`: its own, by default that of the process."""
        settings, clock, run = self.settings, clock or host.clock, resources.records.parent
        endpoint = self._endpoint(rank, host)
        module_tensors = self._module_tensors(host, endpoint.device)
        aside = None
        if host.arena is not None and settings.communication.overlap:
            aside = BufferSpec(self.layout.numel, self.layout.dtype, arena=host.arena).vector()
        network, vector = module_tensors.module, Vector(module_tensors, endpoint.slots, aside)
        sharing = self.sharing_in_run(rank, vector)
        # Between steps, other nodes of the same event loop get their turn.
        pause = (lambda: host.executor.pause(clock)) if host.is_shared else None
        scheduler = RoundScheduler(settings.rounds, endpoint, resources.heartbeats, clock=clock)
        if self.injector is not None:
            scheduler.heartbeat = self.injector.heartbeat(rank, scheduler.heartbeat, resources.reporter)
        trains = partial(self.graph.graph.trains, rank)
        slowed = settings.training.slowed
        pace = (
            None if slowed is None else slowed.of_rank(rank, self.graph.num_nodes, settings.seed, clock=clock)
        )
        # In the asynchronous loop a slow node answers while it sleeps.
        waits = None if sharing.asynchronous else pace
        journal = PrivacyJournal(run, rank) if self.privacy else None
        hooks = Hooks(
            sharing.adjust_gradient,
            pause,
            scheduler.heartbeat.beat,
            pace=waits,
            clock=clock,
            trains=trains,
            spends=journal.spend if journal else None,
        )
        plan, shard = self.privacy[rank] if self.privacy else None, self.shard(rank)
        foreign = settings.has_foreign_plugins
        training = Training(
            network, vector, settings.training, shard=shard, hooks=hooks, plan=plan, seeds_all=foreign,
            executor=host.executor,
        )  # fmt: skip
        if journal is not None and training.private is not None:
            journal.keep(training.private)
            for reason in doubts_of(self.graph.graph, self.samples.dataset):
                training.private.doubt(reason)
        reporter, failures = resources.reporter, settings.failures
        stop = "failures.on_loss: stop" if failures.on_loss == "stop" else ""
        if not sharing.promises.tolerates_loss:
            stop = f"{name_of(sharing)} tolerates no loss"
        exchange_class: type[RoundExchange] = MessageExchange if sharing.asynchronous else RoundExchange
        # Only neighbors in the graph may have the model.
        is_partner = partial(self.graph.graph.is_partner, rank) if sharing.gives_model else None
        exchange = exchange_class(
            endpoint, sharing, clock, reporter, scheduler.heartbeat, failures.timeouts, stop,
            may_fetch=is_partner,
        )  # fmt: skip
        warn = partial(resources.report_disk, rank)
        transcript = writer_for(run, rank, settings, mapping=self.mapping, scheme=sharing, warn=warn)
        auxiliary: list[AuxiliaryRecords] = [journal] if journal else []
        if transcript is not None:
            exchange.tap = transcript.take
            auxiliary.append(transcript)
        if (kept := settings.records.models) is not None:
            due = partial(is_due, every=kept.every, rounds=settings.rounds)
            auxiliary.append(ModelRecords(run, rank, network, is_due=due, warn=warn, attach=training.attach))
        record_file = host.record_file or RecordFile(resources.records, [rank], warn)
        records = Records(record_file, auxiliary=auxiliary, clock=clock)
        evaluation = NodeEvaluation(
            self.plan, training, endpoint.counters, resources=resources, clock=clock, records=records
        )
        checkpoints = NodeCheckpoints(
            resources.identity,
            settings.checkpoint.every,
            settings.checkpoint.final,
            reporter,
            rank=rank,
            scheduler=scheduler,
            records=records,
        )
        adaptation = (AdaptWhileCommunicating if settings.communication.overlap else AdaptThenCombine)(
            training, scheduler.heartbeat, clock
        )
        node_class: Callable[..., Node] = Node
        if isinstance(sharing, AsyncSharing) and isinstance(exchange, MessageExchange):
            # Before the first message of a faster peer.
            exchange.listen(settings.time_model.schedule == "replay")
            live = LiveSchedule(sharing, exchange, pace)
            node_class = partial(
                AsyncNode,
                schedule=schedule_for(settings, rank, live, run_dir=run, warn=warn),
                seconds=settings.time_model.seconds_per_round,
            )
        return node_class(
            rank=rank,
            training=training,
            adaptation=adaptation,
            graph=self.graph,
            sharing=sharing,
            exchange=exchange,
            evaluation=evaluation,
            records=records,
            scheduler=scheduler,
            checkpoints=checkpoints,
        )

    def step_executor(self, nodes: int) -> StepExecutor:
        """Returns what computes the local steps of so many nodes of a process."""
        most = self.settings.training.batch_nodes
        if most == "auto":
            device = device_for(self.settings.device, 0)
            most = nodes_at_once(self.network, self.layout, device)
            if most == 1:
                executor = StepExecutor()
                executor.news = "training.batch_nodes: auto: the steps of this model are faster one by one"
                return executor
        return StepExecutor() if most is None else BatchedExecutor(self.network, self.layout, nodes, most)

    def _module_tensors(self, host: NodeHost, device: torch.device) -> ModuleTensors:
        """The network of a node, which all nodes of its process take turns with if that is possible."""
        if device in host.module_tensors:
            return host.module_tensors[device]
        # A copy: the network itself is shared by all processes of the machine.
        made = ModuleTensors(copied(self.network).to(device), self.layout)
        settings = self.settings
        has_one_each = (
            settings.has_foreign_plugins or self.gradient_sync.one_model or settings.training.compile
        )
        if host.is_shared and not has_one_each and keeps_only_tensors(self.network):
            host.module_tensors[device] = made
        return made

    def _endpoint(self, rank: int, host: NodeHost) -> Endpoint:
        device = device_for(self.settings.device, self.mapping.local_rank(rank))
        memory = replace(self.memory(rank), device=device, arena=host.arena)
        endpoint = host.communication.endpoint(rank, memory)
        return endpoint if device == endpoint.device else DeviceStaging(endpoint, memory)

    def memory(self, rank: int) -> BufferSpec:
        """The memory that a node sends from."""
        sharing = self.sharing_in_run(rank)
        graph = self.graph.graph
        # Early payloads of other ranks would wait in memory without ever being read.
        peers = frozenset(graph.partners(rank)) if graph.has_cycle else None
        if isinstance(sharing, AsyncSharing):
            # A message owns its memory until it is sent, so no slot of an exchange is needed.
            return BufferSpec(self.layout.numel, self.layout.dtype, parts=sharing.burst, peers=peers)
        is_shared = sharing.promises.sends_one_payload and not sharing.chain.per_receiver
        # A payload per receiver needs room for each of them.
        several = 1 if is_shared else self.graph.most_targets(rank)
        return BufferSpec(
            self.layout.numel, self.layout.dtype, several * (self.most_payload_bytes + STAGING_ALIGNMENT),
            peers=peers,
        )  # fmt: skip


def evaluation_plan(settings: Settings, run_samples: RunSamples, network: nn.Module) -> EvaluationPlan:
    """Draws the test samples of all evaluations; raises BadInput where there are too few."""
    tests, samples = settings.evaluation, run_samples.dataset.test
    source: Dataset = settings.dataset.make()
    size = source.available(tests.samples, samples)
    if size is not None and size > len(samples):
        raise BadInput.at("evaluation.samples", f"{size} samples asked for, the test set has {len(samples)}")
    nodes = len(run_samples.parts)
    sample = tests.sample(nodes, settings.seed, settings.adversary_ranks)
    return EvaluationPlan(
        samples=samples,
        every=tests.every,
        rounds=settings.rounds,
        batch_size=tests.batch_size or batch_size(network),
        final=tests.final,
        drawn=None if size is None else draw(samples, size, "evaluation", settings.seed),
        ranks=tests.tested(nodes) if sample is None else sample,
        last_ranks=sample,
        adversaries=settings.adversary_ranks,
        validation=run_samples.dataset.validation,
        local=run_samples.own_tests,
    )


def vector_test(experiment: Experiment, device: torch.device | None = None) -> VectorTest:
    """A test of vectors in a network of its own."""
    network = copied(experiment.network).to(device or "cpu")
    training, layout = experiment.settings.training, experiment.layout
    return VectorTest(training.objective(network, layout.channels_last), layout)


def average_model_test(experiment: Experiment) -> Callable[[Tensor, int], dict[str, float]] | None:
    """A test of a vector, after a round, on the nodes' test samples of that round.

    None if a mean is not a whole model, because the network changes what is not mixed, such as running
    statistics, or because parameters are personal.
    """
    settings = experiment.settings
    if experiment.layout.personal.entries:
        return None
    norms = (part for part in experiment.network.modules() if isinstance(part, _NormBase))
    if not settings.training.mix_buffers and any(norm.track_running_stats for norm in norms):
        return None
    mixed = [entry.name for entry in experiment.layout.entries]
    if settings.has_foreign_plugins and changes_itself(experiment.network, experiment.two_batches, mixed):
        return None
    tested, plan = vector_test(experiment), experiment.plan

    def test(vector: Tensor, round: int) -> dict[str, float]:
        seed_generators(key(settings.seed, "evaluate", round), on_cpu=True)
        tested.load(vector)
        return plan.measured(round, lambda samples: tested.run(samples, plan.batch_size))

    return test
