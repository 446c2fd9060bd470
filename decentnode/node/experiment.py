"""Settings -> what all nodes of a run read; `factory.py` makes the nodes."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from decentnode.communication.base import Communication, HostProcess, kept_links
from decentnode.communication.device.staging import check_device
from decentnode.config import loader as config
from decentnode.config.checks.execution import computes_on_gpu
from decentnode.config.settings import Settings
from decentnode.core.registry import name_of
from decentnode.core.rng import key, seed_generators
from decentnode.core.text import first_line
from decentnode.core.vector import DTYPES, ParameterLayout
from decentnode.datasets.base import LoadedDataset
from decentnode.errors import BadInput
from decentnode.graph.mixing import WeightedGraph
from decentnode.mapping.base import Mapping
from decentnode.models.base import check_ids, check_padding, check_scores, initial_model
from decentnode.models.module_copies import copied
from decentnode.models.module_state import ModuleState, changes_itself
from decentnode.node.asynchronous.loop import check_schedules
from decentnode.node.checkpoint.packed_state import most_bytes
from decentnode.node.evaluation import EvaluationPlan
from decentnode.node.execution.choice import ExecutionChoice
from decentnode.node.faults.injector import FaultInjector
from decentnode.node.plugin_sources import PluginSources
from decentnode.node.privacy.plans import plans_of, shortened
from decentnode.node.run_samples import RunSamples
from decentnode.node.schemes import Schemes
from decentnode.sharing.base import Sharing
from decentnode.training.evaluation import VectorTest
from decentnode.training.optim.uncompiled import trial_step
from decentnode.training.privacy.base import PrivacyPlan


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
    def from_settings(
        cls, settings: Settings, whole_dataset: LoadedDataset | None = None, run_dir: Path | None = None
    ) -> "Experiment":
        """Loads what the settings name; raises BadInput.

        `whole_dataset`: all samples, where they are loaded; `run_dir`: that of a run which has begun.
        """
        # First, because it is cheap and loading may take minutes.
        check_device(settings.device)
        dtype = DTYPES[settings.training.dtype]
        samples = RunSamples.load(settings, settings.graph.make().num_nodes, whole_dataset, run_dir)
        graph = samples.weighted_graph(settings)
        dataset = samples.dataset
        # Raises BadInput where a rank has no part of the steps, before a large model is made.
        samples.shard(rank=0)
        network = initial_model(
            settings.model.make(), dataset.shape, samples.width, seed=settings.seed, dtype=dtype,
            zeros=dataset.train.zeros(2), arguments=dataset.arguments,
        )  # fmt: skip
        layout = ParameterLayout.of(
            network, settings.training.mix_buffers, settings.training.channels_last(network), dtype,
            personal=settings.sharing.personal,
        )  # fmt: skip
        (width, *labels), *others = samples.shapes
        check_scores(network, dataset.train.zeros(2), width, labels=tuple(labels), others=others)
        for part in (dataset.train, dataset.test):
            check_ids(network, part.largest_ids())
        if dataset.train.is_ragged:
            check_padding(network, *dataset.train.alone_and_padded())
        samples = samples.of_network(network, settings)
        plans = plans_of(settings, graph.graph, samples, network=network)
        rounds, settings = settings.rounds, shortened(settings, plans)
        mapping = settings.mapping.make()
        faults = [fault.make() for fault in settings.faults]
        machines = [mapping.machine_of(rank) for rank in range(graph.num_nodes)]
        experiment = cls(
            settings, graph, mapping, samples, network, layout, rounds,
            plan=EvaluationPlan.of(settings, samples, network), privacy=plans,
            injector=FaultInjector(faults, machines, settings.seed) if faults else None,
        )  # fmt: skip
        experiment.check()
        return experiment

    def check(self) -> None:
        """Raises BadInput for what would only fail in a node, such as a chain that does not fit the network.

        What needs to be computed, such as a step, is tried in the dry round.
        """
        settings, dataset = self.settings, self.samples.dataset
        for augmentation in settings.training.augmentation:
            augmentation.make().check(dataset)
        settings.training.trained(self.network)
        self._check_computation()
        self._check_parts()
        self.schemes.honest()
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

    @cached_property
    def processes(self) -> tuple[HostProcess, ...]:
        """All host processes of the run, by machine, with their ranks."""
        communication: Communication = self.settings.communication.make()
        processes = []
        for machine, host in enumerate(self.mapping.machines):
            ranks = self.mapping.ranks_of(machine)
            size = communication.plan.nodes_in_one_process(len(ranks))
            for index, first in enumerate(range(0, len(ranks), size)):
                part = tuple(ranks[first : first + size])
                processes.append(HostProcess(machine, index, part, host.address, host.bound, own=host.own))
        return tuple(processes)

    @cached_property
    def home(self) -> dict[int, int]:
        """The position of the process of each rank."""
        return {rank: i for i, process in enumerate(self.processes) for rank in process.ranks}

    @cached_property
    def sources(self) -> PluginSources:
        """The source files of plug-ins from outside the package, equal on all machines."""
        return PluginSources(self.settings)

    @cached_property
    def schemes(self) -> Schemes:
        """Makes the schemes of its nodes."""
        return Schemes(self.settings, self.graph, self.samples, self.network, self.layout)

    @cached_property
    def execution(self) -> ExecutionChoice:
        """Says who computes the local steps."""
        return ExecutionChoice(self.settings, self.graph.graph, self.network, self.layout)

    @property
    def module_state_bytes(self) -> int:
        """The most bytes of a network's module state that an evaluator takes."""
        names = [entry.name for entry in self.layout.entries]
        return most_bytes(ModuleState(self.network, names).state_dict(), self.layout.nbytes)

    def first_peers(self, ranks: Sequence[int]) -> set[int]:
        """Peers to connect to before the first round: all future ones if few, otherwise those of round 0."""
        graph = self.graph.graph
        everybody = range(graph.num_nodes) if graph.changes.repeats and not graph.static else ()
        most = max((len(graph.partners(rank)) for rank in everybody), default=0)
        if graph.static or 0 < most <= kept_links():
            return {peer for rank in ranks for peer in graph.partners(rank)}
        return {peer for rank in ranks for peer in graph.peers_in(rank, [0])}


def vector_test(experiment: Experiment, device: torch.device | None = None) -> VectorTest:
    """A test of vectors in a network of its own."""
    network = copied(experiment.network).to(device or "cpu")
    training, layout = experiment.settings.training, experiment.layout
    return VectorTest(training.objective(network, layout.channels_last), layout, experiment.plan.listed)


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
    mixed, batches = [entry.name for entry in experiment.layout.entries], experiment.samples.two_batches
    if settings.has_foreign_plugins and changes_itself(experiment.network, batches, mixed):
        return None
    tested, plan = vector_test(experiment), experiment.plan

    def test(vector: Tensor, round: int) -> dict[str, float]:
        seed_generators(key(settings.seed, "evaluate", round), on_cpu=True)
        tested.load(vector)
        return plan.measured(round, lambda samples: tested.run(samples, plan.batch_size))

    return test
