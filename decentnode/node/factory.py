"""Makes the nodes of a run, and for trials their parts. Pure assembly: nothing starts, connects or waits."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from math import inf

import torch

from decentnode.communication.arena import Arena
from decentnode.communication.base import BufferSpec, Communication, Endpoint
from decentnode.communication.device.staging import DeviceStaging, device_for
from decentnode.config.settings import Settings
from decentnode.core.clock import Clock
from decentnode.core.registry import name_of
from decentnode.core.vector import ModuleTensors, Vector
from decentnode.formats.records import AuxiliaryRecords, RecordFile, Records
from decentnode.models.module_copies import copied
from decentnode.models.module_state import keeps_only_tensors
from decentnode.node.asynchronous.loop import AsyncParticipant
from decentnode.node.asynchronous.messages import MessageExchange
from decentnode.node.asynchronous.schedule import LiveSchedule, schedule_for
from decentnode.node.checkpoint.checkpoint_file import CheckpointFile
from decentnode.node.checkpoint.node_checkpoints import NodeCheckpoints
from decentnode.node.checkpoint.privacy_journal import PrivacyJournal
from decentnode.node.evaluation import NodeEvaluation, NodeResources, is_due
from decentnode.node.execution.workers import StepWorkers
from decentnode.node.experiment import Experiment
from decentnode.node.local_update import AdaptThenCombine, AdaptWhileCommunicating
from decentnode.node.node import AsyncNode, Node
from decentnode.node.own_loop.loop_steps import LoopSteps
from decentnode.node.own_loop.turn import Turn
from decentnode.node.participant import Participant
from decentnode.node.privacy.plans import doubts_of
from decentnode.node.recording.coordinate_records import CoordinateRecords
from decentnode.node.recording.model_records import ModelRecords
from decentnode.node.recording.transcripts import writer_for
from decentnode.node.round_exchange import RoundExchange
from decentnode.node.round_scheduler import RoundScheduler
from decentnode.node.schemes import Schemes
from decentnode.sharing.asynchronous.base import AsyncSharing
from decentnode.sharing.base import SharingBase
from decentnode.training.local_steps import LocalSteps
from decentnode.training.pace import Pace
from decentnode.training.settings import TrainingSettings
from decentnode.training.training import NO_HOOKS, Hooks, StepExecutor, Training

CPU = torch.device("cpu")


def is_on_cpu(settings: Settings) -> bool:
    """Whether nodes on this machine compute on its CPU."""
    return settings.device == "cpu" or (settings.device == "auto" and not torch.cuda.device_count())


def settings_on_cpu(settings: Settings) -> TrainingSettings:
    """The settings of local steps on a CPU, which may not have what the nodes' GPU has."""
    training = settings.training
    return training if is_on_cpu(settings) else replace(training, amp=None, compile=False)


@dataclass(eq=False)
class NodeHost:
    """What the nodes of one host process have in common."""

    resources: NodeResources
    communication: Communication
    clock: Clock
    is_shared: bool = False
    """Whether there are several nodes."""
    executor: StepExecutor = field(default_factory=StepExecutor)
    record_file: RecordFile | None = None
    """The file of the records of all nodes; None: each node has its own."""
    checkpoint_file: CheckpointFile | None = None
    """That of their checkpoints, likewise."""
    module_tensors: dict[torch.device, ModuleTensors] = field(default_factory=dict)
    """By device the network that all nodes use in turn, where one can serve them all."""

    @property
    def arena(self) -> Arena | None:
        """Where the vectors are, if other processes compute the steps."""
        return self.executor.arena if isinstance(self.executor, StepWorkers) else None


@dataclass(frozen=True)
class ParticipantParts:
    """What the local steps of a participant may use of it."""

    rank: int
    vector: Vector
    sharing: SharingBase
    scheduler: RoundScheduler
    pace: Pace | None
    clock: Clock


@dataclass(frozen=True)
class ParticipantFactory:
    """Makes participants from the inputs of the run, which all of them read."""

    experiment: Experiment
    own_schemes: Schemes | None = None
    """What makes their schemes; None: that of the experiment."""

    @property
    def schemes(self) -> Schemes:
        """Makes their schemes."""
        return self.own_schemes or self.experiment.schemes

    def participant(
        self, rank: int, host: NodeHost, make_steps: Callable[[ParticipantParts], LocalSteps],
        module_tensors: ModuleTensors | None = None, clock: Clock | None = None,
        auxiliary: Sequence[AuxiliaryRecords] = (), is_node: bool = False,
    ) -> Participant:  # fmt: skip
        """One participant of a process, ready to run.

        `make_steps`: makes its local steps; `module_tensors`: those of its model, by default of a copy of the
        initial one; `clock`: its own, by default that of the process; `auxiliary`: records of its steps;
        `is_node`: whether it is to become a node.
        """
        experiment, settings, resources = self.experiment, self.experiment.settings, host.resources
        graph, reporter, run = experiment.graph, resources.reporter, resources.records.parent
        clock = clock or host.clock
        endpoint = self._endpoint(rank, host, module_tensors)
        aside = None
        if host.arena is not None and settings.communication.overlap:
            layout = experiment.layout
            aside = BufferSpec(layout.numel, layout.dtype, arena=host.arena).vector()
        vector = Vector(module_tensors or self._module_tensors(endpoint.device, host), endpoint.slots, aside)
        sharing = self.schemes.of_node(rank, vector)
        scheduler = RoundScheduler(settings.rounds, endpoint, resources.heartbeats, clock=clock)
        if experiment.injector is not None:
            scheduler.heartbeat = experiment.injector.heartbeat(rank, scheduler.heartbeat, reporter)
        slowed = settings.training.slowed
        pace = None if slowed is None else slowed.of_rank(rank, graph.num_nodes, settings.seed, clock=clock)
        local_steps = make_steps(ParticipantParts(rank, vector, sharing, scheduler, pace, clock))
        stop = "failures.on_loss: stop" if settings.failures.on_loss == "stop" else ""
        if not sharing.promises.tolerates_loss:
            stop = f"{name_of(sharing)} tolerates no loss"
        exchange_class: type[RoundExchange] = MessageExchange if sharing.asynchronous else RoundExchange
        exchange = exchange_class(
            endpoint, sharing, clock, reporter, scheduler.heartbeat, settings.failures.timeouts, stop,
            # Only neighbors in the graph may have the model.
            may_fetch=partial(graph.graph.is_partner, rank) if sharing.gives_model else None,
        )  # fmt: skip
        warn = partial(resources.report_disk, rank)
        transcript = writer_for(
            run, rank, settings, mapping=experiment.mapping, scheme=sharing, vector=vector, warn=warn
        )
        auxiliary = [*auxiliary]
        if transcript is not None:
            exchange.tap = transcript.take
            auxiliary.append(transcript)
        if (kept := settings.records.models) is not None:
            due = partial(is_due, every=kept.every, rounds=settings.rounds)
            auxiliary.append(
                ModelRecords(run, rank, vector.module, is_due=due, warn=warn, attach=local_steps.attach)
            )
        if (counts := settings.records.coordinates) is not None and sharing.chain.sent is not None:
            due = partial(is_due, every=counts.every, rounds=settings.rounds)
            auxiliary.append(CoordinateRecords(run, rank, sharing.chain.sent, is_due=due, warn=warn))
        record_file = host.record_file or RecordFile(resources.records, [rank], warn)
        records = Records(record_file, auxiliary=auxiliary, clock=clock)
        checkpoints = NodeCheckpoints(
            resources.identity, settings.checkpoint.every, settings.checkpoint.final, reporter,
            rank=rank, scheduler=scheduler, records=records, file=host.checkpoint_file,
        )  # fmt: skip
        adaptation = (AdaptWhileCommunicating if settings.communication.overlap else AdaptThenCombine)(
            local_steps, scheduler.heartbeat, clock
        )
        participant_class: Callable[..., Participant] = Node if is_node else Participant
        if isinstance(sharing, AsyncSharing) and isinstance(exchange, MessageExchange):
            # Before the first message of a faster peer.
            exchange.listen(settings.time_model.schedule == "replay")
            live = LiveSchedule(sharing, exchange, pace)
            participant_class = partial(
                AsyncNode if is_node else AsyncParticipant,
                schedule=schedule_for(settings, rank, live, run_dir=run, warn=warn),
                seconds=settings.time_model.seconds_per_round,
            )
        return participant_class(
            rank=rank, local_steps=local_steps, adaptation=adaptation, graph=graph, sharing=sharing,
            exchange=exchange, records=records, scheduler=scheduler, checkpoints=checkpoints,
        )  # fmt: skip

    def _endpoint(self, rank: int, host: NodeHost, module_tensors: ModuleTensors | None) -> Endpoint:
        experiment = self.experiment
        if module_tensors is not None:
            device = module_tensors.tensors[0].device
        else:
            device = device_for(experiment.settings.device, experiment.mapping.local_rank(rank))
        memory = replace(experiment.schemes.memory(rank), device=device, arena=host.arena)
        if module_tensors is not None:
            # The mean of all models is exchanged with everybody.
            memory = replace(memory, peers=None)
        endpoint = host.communication.endpoint(rank, memory)
        return endpoint if device == endpoint.device else DeviceStaging(endpoint, memory)

    def _module_tensors(self, device: torch.device, host: NodeHost | None = None) -> ModuleTensors:
        """The network of a node, which all nodes of its process take turns with if that is possible."""
        if host is not None and device in host.module_tensors:
            return host.module_tensors[device]
        experiment, settings = self.experiment, self.experiment.settings
        # A copy: the network itself is shared by all processes of the machine.
        made = ModuleTensors(copied(experiment.network).to(device), experiment.layout)
        has_one_each = (
            settings.has_foreign_plugins
            or experiment.samples.gradient_sync.one_model
            or settings.training.compile
            or settings.training.loop is not None
        )
        may_be_shared = host is not None and host.is_shared and not has_one_each
        if host and may_be_shared and keeps_only_tensors(experiment.network):
            host.module_tensors[device] = made
        return made


@dataclass(frozen=True)
class NodeFactory(ParticipantFactory):
    """Makes nodes, their vectors and their local steps."""

    def vector(self, device: torch.device = CPU) -> Vector:
        """A vector with a network of its own, both with the values of the initial model."""
        layout = self.experiment.layout
        return Vector(self._module_tensors(device), BufferSpec(layout.numel, layout.dtype).slots(device))

    def training(
        self, rank: int, vector: Vector | None = None, settings: TrainingSettings | None = None,
        hooks: Hooks = NO_HOOKS, executor: StepExecutor | None = None, is_trial: bool = False,
    ) -> Training:  # fmt: skip
        """The local steps of a node; raises BadInput where torch refuses options.

        `vector`: by default a new one on the CPU; `settings`: by default those of the run; `is_trial`: of a
        node that is no part of a run.
        """
        experiment = self.experiment
        plan = experiment.privacy[rank] if experiment.privacy else None
        plan = plan.for_trial if plan is not None and is_trial else plan
        return Training(
            vector or self.vector(), settings or experiment.settings.training, experiment.samples.shard(rank),
            hooks, plan, seeds_all=experiment.settings.has_foreign_plugins, executor=executor,
        )  # fmt: skip

    def node(self, rank: int, host: NodeHost, clock: Clock | None = None) -> Node:
        """One node of a process, ready to run; `clock`: its own, by default that of the process."""
        experiment, graph = self.experiment, self.experiment.graph.graph
        journal = PrivacyJournal(host.resources.records.parent, rank) if experiment.privacy else None

        def make_training(parts: ParticipantParts) -> Training:
            hooks = Hooks(
                parts.sharing.adjust_gradient,
                # Between steps, other nodes of the same event loop get their turn.
                (lambda: host.executor.pause(parts.clock)) if host.is_shared else None,
                parts.scheduler.heartbeat.beat,
                # In the asynchronous loop a slow node answers while it sleeps.
                pace=None if parts.sharing.asynchronous else parts.pace,
                clock=parts.clock,
                trains=partial(graph.trains, rank),
                spends=journal.spend if journal else None,
            )
            training = self.training(rank, parts.vector, hooks=hooks, executor=host.executor)
            if journal is not None and training.private is not None:
                journal.keep(training.private)
                for reason in doubts_of(graph, experiment.samples.dataset):
                    training.private.doubt(reason)
            trainings.append(training)
            return training

        def make_steps(parts: ParticipantParts) -> LocalSteps:
            training = make_training(parts)
            return training if experiment.settings.training.loop is None else loop_steps(parts, training)

        def loop_steps(parts: ParticipantParts, training: Training) -> LoopSteps:
            settings = experiment.settings.training
            is_given = (settings.steps_per_round, settings.epochs_per_round) != (None, None)
            unlimited = inf if parts.sharing.asynchronous else 1
            has_samples = bool(training.shard.size)

            def steps_in(round: int) -> float:
                if is_given or not has_samples or not graph.trains(rank, round):
                    return training.steps_in(round)
                return unlimited

            return LoopSteps(
                parts.vector, f"rank {rank}", steps_in, training.trains_in, Turn(),
                parts.sharing.adjust_gradient, pace=training.hooks.pace, beat=training.beat,
            )  # fmt: skip

        trainings: list[Training] = []
        node = self.participant(rank, host, make_steps, None, clock, [journal] if journal else [], True)
        assert isinstance(node, Node)
        node.training = training = trainings[0]
        node.evaluation = NodeEvaluation(
            experiment.plan, training, node.exchange.endpoint.counters, resources=host.resources,
            clock=node.exchange.clock, records=node.records, heartbeat=node.scheduler.heartbeat,
        )  # fmt: skip
        node.after_round = [node.evaluation]
        return node
