"""The settings of a run, typed and checked; `config.load` reads them from YAML."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from pydantic import AfterValidator

from decentnode.config.plugin import Named, Plugin
from decentnode.config.torch_classes import LOSSES, OPTIMIZERS, SCHEDULERS, rates_of
from decentnode.core import registry
from decentnode.core.rng import generator
from decentnode.core.text import counted
from decentnode.core.timeouts import Timeouts
from decentnode.datasets.validation import ValidationSettings
from decentnode.errors import BadInput
from decentnode.graph.base import SEED
from decentnode.graph.mixing import Mixing
from decentnode.graph.strength import StrengthMixing, relative_strength
from decentnode.options import (
    ENDLESS,
    Effect,
    NonNegative,
    NonNegativeFloat,
    Positive,
    PositiveFloat,
    Probability,
    option,
)
from decentnode.training.settings import TrainingSettings

STAND_INS = "decentnode.node.own_loop.stand_ins"
"""The module of what stands for the model and the samples of a script."""
OURS = ("decentnode.", "torch.")
"""Packages whose plug-ins draw from torch's global generator alone."""
MOST_TESTED = 256
"""Nodes that are tested by default; of more a sample is."""
_AT_LEAST = re.compile(r"at_least [1-9]\d{0,8}")
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")


def check_name(name: str) -> str:
    """Checks the name of a run, which becomes part of a directory's name."""
    if not _NAME.fullmatch(name):
        raise ValueError(f"must be made of letters, digits, '_', '-' and '.', at most 100, not '{name[:40]}'")
    return name


def check_start(start: str) -> str:
    """Checks how many nodes must be present before the first round: `all`, or `at_least N` nodes."""
    if start != "all" and not _AT_LEAST.fullmatch(start):
        raise ValueError(f"must be 'all' or 'at_least N' with the number of nodes, not '{start[:40]}'")
    return start


@dataclass(frozen=True)
class EvaluationSettings:
    """When and how models are tested."""

    every: NonNegative = option(10, changes="results")
    """Rounds between evaluations; 0: only at the end."""
    final: bool = option(True, changes="results")
    """Whether models are tested after the last round, whatever `every` is."""
    background: bool | Positive = option(False, changes="results")
    """Processes of each machine that test models while nodes train; true: one for each idle processor."""
    nodes: Literal["all"] | Positive | tuple[NonNegative, ...] | None = option(None, changes="results")
    """The nodes that are tested before the last round: so many, evenly spaced, these ranks, or all.

    null: all where there are at most MOST_TESTED; of more as many, drawn by the seed, even at the end.
    """
    samples: Positive | None = option(None, changes="results")
    """The number of test samples before the last round, drawn by the seed; null: all."""
    batch_size: Positive | None = option(None, changes="results")
    """Null: 512 where all layers are linear, otherwise 64."""
    average_model: bool = option(True, changes="results")
    """Whether the mean of all models is tested too."""
    figures: bool = option(True, changes="results")
    """Whether pictures are drawn after the nodes have ended."""
    target: Mapping[str, float] | None = option(None, changes="results")
    """A metric and its value; the run ends when the mean over nodes has reached it in an evaluation."""

    metrics: Annotated[tuple[Plugin, ...], Named(registry.METRICS)] = option((), changes="results")
    """Metrics beside those of the task, a list; the first one is the headline metric."""
    node_test_split: bool = option(False, changes="results")
    """Whether each model is also tested on test samples of its node, drawn as the node's training samples."""

    def __post_init__(self) -> None:
        if self.target is not None and len(self.target) != 1:
            raise BadInput.at("target", f"must be one metric and its value, not {len(self.target)}")
        if self.target is not None and not self.every:
            raise BadInput.at("target", "nothing is tested before the end; give every (evaluation.every)")
        if self.nodes == ():
            raise BadInput.at("nodes", "no node is given; give a number, ranks, or all")

    def tested(self, num_nodes: int) -> frozenset[int] | None:
        """Returns the ranks of `nodes`, whose models are tested before the last round; None: all."""
        if isinstance(self.nodes, int):
            return frozenset(i * num_nodes // self.nodes for i in range(self.nodes))
        return frozenset(self.nodes) if isinstance(self.nodes, tuple) else None

    def sample(self, num_nodes: int, seed: int, excluded: frozenset[int]) -> frozenset[int] | None:
        """Returns the ranks that are tested in all evaluations of many nodes; None: `tested` says.

        `excluded`: ranks that are never tested.
        """
        if self.nodes is not None or num_nodes - len(excluded) <= MOST_TESTED:
            return None
        ranks = np.array([rank for rank in range(num_nodes) if rank not in excluded])
        drawn = generator(seed, "evaluation_nodes").choice(ranks, MOST_TESTED, replace=False)
        return frozenset(drawn.tolist())

    def happens(self, rounds: int) -> bool:
        """Whether models are tested at all in a run of so many rounds."""
        return self.final or 0 < self.every <= rounds


@dataclass(frozen=True)
class TimeModelSettings:
    """Whether nodes exchange in rounds, or whenever they like (docs/asynchronous.md)."""

    name: Literal["synchronous", "asynchronous"] = "synchronous"
    """asynchronous: a round is a window of time, without a barrier between the nodes."""
    seconds_per_round: PositiveFloat = 0.5
    """The length of that window."""
    schedule: Literal["record", "replay"] | None = None
    """Whether the order of each node's events is written down, or is that of a recorded run."""
    schedule_path: str | None = None
    """The recorded run, or the folder `schedule` in it."""

    @property
    def is_asynchronous(self) -> bool:
        """Whether there are no rounds for which nodes wait."""
        return self.name == "asynchronous"


@dataclass(frozen=True)
class RestartSettings:
    """Whether a node whose process died is restarted."""

    attempts: NonNegative = option(0, changes="nothing")
    """Most restarts of each host process."""


@dataclass(frozen=True)
class FailureSettings:
    """What happens when a node is lost, and the timeouts in seconds."""

    on_loss: Literal["auto", "continue", "stop"] = option("auto", changes="results", timing=True)
    """When a node is lost: `continue` without it; `stop` the run; `auto`: continue if the scheme can."""
    deadline: PositiveFloat = option(60.0, changes="nothing", timing=True)
    """Timeout for a silent peer in a round, or five usual rounds where that is longer."""
    grace: NonNegativeFloat = option(5.0, changes="nothing", timing=True)
    """How long a broken link may take to reconnect before the peer counts as lost."""
    start_deadline: PositiveFloat = option(60.0, changes="nothing")
    """Timeout of the rendezvous of all nodes."""
    stop_deadline: PositiveFloat | Literal["auto"] = option("auto", changes="nothing")
    """Timeout for the end of all nodes after a stop was requested; auto: as long as they make progress.

    Nodes that are left then, or that hang, are killed.
    """
    start: Annotated[str, AfterValidator(check_start)] = option("all", changes="nothing")
    """Nodes that must be present at the start: `all`, or `at_least N`; the others may join later."""
    restart: RestartSettings = RestartSettings()
    """`{attempts: K}`: how often a host process that died is restarted."""
    allow_different_code: bool = option(False, changes="nothing")
    """Whether machines may run together that differ in the sources of the package, plug-ins or torch."""

    @property
    def timeouts(self) -> Timeouts:
        """All limits that follow from these."""
        stop = inf if self.stop_deadline == "auto" else self.stop_deadline
        return Timeouts(self.deadline, self.grace, self.start_deadline, stop_deadline=stop)


@dataclass(frozen=True)
class CheckpointSettings:
    """How often whole nodes are saved, so that the run or a node can resume."""

    every: NonNegative = option(0, changes="nothing")
    """Rounds between checkpoints; 0: only at the end."""
    final: bool = option(True, changes="nothing")
    """Whether the end of a run keeps the state of its nodes, so that it can be continued with more rounds.

    A graceful stop always keeps it.
    """


@dataclass(frozen=True)
class ModelRecordSettings:
    """Which models are kept as results."""

    every: NonNegative = option(0, changes="results")
    """Rounds between them; 0: only that after the last round, which is always kept."""


@dataclass(frozen=True)
class CoordinateRecordSettings:
    """When it is written down how often each coordinate was sent, and in which round last."""

    every: NonNegative = option(0, changes="results")
    """Rounds between them; 0: only after the last round, when it is always written."""


@dataclass(frozen=True)
class RecordSettings:
    """What is recorded in addition to the numbers of each round."""

    models: ModelRecordSettings | None = option(None, changes="results")
    """None: no models."""
    coordinates: CoordinateRecordSettings | None = option(None, changes="results")
    """Which coordinates each node has sent, and how often; None: they are not counted."""
    writers: Annotated[tuple[Plugin, ...], Named(registry.WRITERS)] = option(
        (), changes="nothing", per_host=True
    )
    """What machine 0 writes evaluations with, in addition to evaluations.jsonl."""


@dataclass(frozen=True)
class KeyFolder:
    """The place of this machine's key files."""

    keys: Path


@dataclass(frozen=True)
class SecretFile:
    """A file with the secret that all machines of the job have."""

    secret: Path


@dataclass(frozen=True, kw_only=True)
class DatasetSettings(Plugin):
    """The dataset, and what becomes of its samples."""

    partition: Annotated[Plugin, Named(registry.PARTITIONS, "iid")]
    skew: Annotated[tuple[Plugin, ...], Named(registry.SKEWS)] = ()
    """What changes the training samples of each rank, in this order."""
    validation: ValidationSettings | None = None


@dataclass(frozen=True, kw_only=True)
class TrainingSection(TrainingSettings):
    """How every node trains; steps and epochs per round are one number for all ranks or one for each."""

    optimizer: Annotated[Plugin, Named(OPTIMIZERS)]
    loss: Annotated[Plugin, Named(LOSSES)]
    scheduler: Annotated[Plugin | None, Named(SCHEDULERS)] = None
    augmentation: Annotated[tuple[Plugin, ...], Named(registry.AUGMENTATIONS)] = ()
    privacy: Annotated[Plugin | None, Named(registry.PRIVACIES)] = None
    loop: Annotated[Plugin | None, Named(registry.LOOPS)] = None
    """A loop of your own in place of the local steps, as `module:function`; it is called with a node."""
    gradient_sync: Annotated[Plugin, Named(registry.TRAININGS, "local")]
    """The key `name` and the options of that plug-in, which are keys of `training`, too."""
    mix_buffers: bool = False
    """Whether float buffers (running statistics) are part of the shared vector."""


@dataclass(frozen=True, kw_only=True)
class SharingSettings(Plugin):
    """The scheme, what it weights neighbors with, and how it encodes."""

    weights: Annotated[Plugin, Named(registry.MIXINGS)]
    transforms: Annotated[tuple[Plugin, ...], Named(registry.TRANSFORMS)] = ()
    personal: tuple[str, ...] = ()
    """Names of parameters that no node sends or averages; * stands for any letters."""
    mixing_strength: Probability | Literal["learning_rate"] | tuple[tuple[NonNegative, Probability], ...] = (
        1.0
    )
    """a of (1 - a) I + a W, in place of W: a number; pairs of round and number, linear between them; or the
    learning rate of the round, divided by the largest one of the run.
    """


@dataclass(frozen=True, kw_only=True)
class CommunicationSettings(Plugin):
    """The transport, and when it is used."""

    overlap: bool = False
    """Whether nodes exchange their models of the start of a round while they train."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The settings of a run, nested as its file is; runs with equal settings end with equal models.

    Sections, the JSON schema and the resolved file follow from these fields and their types.
    """

    name: Annotated[str, AfterValidator(check_name)] = option(changes="nothing")
    """The run's name, part of its directory; by default that of the file."""
    seed: NonNegative = SEED
    """The seed of every random choice."""
    rounds: Positive = option(changes="results")
    """The number of rounds: train, exchange, mix."""
    graph: Annotated[Plugin, Named(registry.GRAPHS)]
    """Which nodes exchange, in every round or by turns."""
    mapping: Annotated[Plugin, Named(registry.MAPPINGS, "linear")] = option(changes="nothing")
    """Machines (address and number of nodes), by default this one; ranks are assigned in their order. A
    resumed run keeps the nodes of each machine.
    """
    dataset: Annotated[DatasetSettings, Named(registry.DATASETS)]
    """The samples; `partition` distributes them to the ranks, `skew` changes those of each rank, `validation`
    holds some out.
    """
    task: Annotated[Plugin, Named(registry.TASKS)]
    """What models learn and how they are judged; mostly `classification`."""
    model: Annotated[Plugin, Named(registry.MODELS)]
    """The network."""
    training: TrainingSection
    """The local steps; `name: ddp` gives all nodes one gradient, the all-reduce baseline."""
    sharing: Annotated[SharingSettings, Named(registry.SHARINGS, "gossip")]
    """The scheme, its mixing weights, its transforms."""
    communication: Annotated[CommunicationSettings, Named(registry.COMMUNICATIONS, "zeromq")] = option(
        changes="results", timing=True
    )
    """What carries the models; with `overlap: true` they are exchanged while the nodes train."""
    time_model: TimeModelSettings = TimeModelSettings()
    """Rounds in which nodes wait for their neighbors, or windows of time in which nobody waits."""
    evaluation: EvaluationSettings
    """When and how models are tested."""
    failures: FailureSettings
    """What happens when a node is lost, and all timeouts."""
    checkpoint: CheckpointSettings = CheckpointSettings()
    """When each node is saved, so that the run can be resumed."""
    records: RecordSettings = RecordSettings()
    """What is recorded in addition to the numbers of each round."""
    after_round: Annotated[tuple[Plugin, ...], Named(registry.AFTER_ROUND)] = option((), changes="nothing")
    """Functions of your own, as `module:function`, called after each evaluation; the run ends where one
    returns true.
    """
    faults: Annotated[tuple[Plugin, ...], Named(registry.FAULTS)] = ()
    """Injected faults, a list."""
    adversaries: Annotated[tuple[Plugin, ...], Named(registry.ATTACKS)] = ()
    """Nodes that send wrong models, and parties that look at what arrives, a list."""
    security: Literal["auto", "none", "environment"] | KeyFolder | SecretFile = option(
        "auto", changes="nothing"
    )
    """Keys of links between machines; auto: where needed, `DECENTNODE_SECRET`, or `keys` beside the file."""
    device: Literal["cpu", "cuda", "auto"] = option("cpu", per_host=True)
    """Where models are trained; auto: a GPU where there is one for each node."""
    run_dir: str | None = option(None, changes="nothing", per_host=True)
    """The directory of the results; null: `runs/<name>-<time>`."""
    machine: NonNegative | None = option(None, changes="nothing", per_host=True)
    """The index of this machine; null: found by its addresses."""

    def __post_init__(self) -> None:
        # So that `replace(settings, seed=...)` draws other graphs, too.
        object.__setattr__(self, "graph", self.graph.seeded(self.seed))
        object.__setattr__(self, "communication", self.communication.seeded(self.seed))
        adversaries = tuple(attack.seeded(self.seed) for attack in self.adversaries)
        object.__setattr__(self, "adversaries", adversaries)
        if self.training.task != self.task:
            object.__setattr__(self, "training", replace(self.training, task=self.task))

    def make_mixing(self) -> Mixing:
        """The rule of the mixing weights, with the mixing strength; raises BadInput."""
        rule: Mixing = self.sharing.weights.make()
        a = self.sharing.mixing_strength
        if a == "learning_rate":
            rates = rates_of(self.training.optimizer, self.training.scheduler, self.rounds)
            return StrengthMixing(rule, relative_strength(rates))
        return rule if a == 1 else StrengthMixing(rule, a)

    @property
    def rounds_text(self) -> str:
        """The number of rounds in words; empty where loops decide it."""
        return "" if self.rounds >= ENDLESS else counted(self.rounds, "round")

    @property
    def is_of_scripts(self) -> bool:
        """Whether models are trained by scripts, which join, and not by nodes of a run."""
        return self.model.name.startswith(STAND_INS)

    def decides_models(self, effect: Effect) -> bool:
        """Whether another value of an option with this effect would end in other models.

        Limits of time and a modelled network do where virtual time decides who averages what: in asynchronous
        runs, and where nodes or links fail.
        """
        if effect.changes == "models" or not effect.timing:
            return effect.changes == "models"
        has_virtual_time = self.communication.make().plan.has_virtual_time
        return has_virtual_time and (self.time_model.is_asynchronous or bool(self.faults))

    @property
    def why_resume_differs(self) -> str | None:
        """Why a resumed run has other models than one that was not interrupted; None: it has the same."""
        if self.time_model.is_asynchronous:
            return "steps and messages in progress are not saved"
        if self.communication.make().plan.has_virtual_time and self.faults:
            return "nodes that faults put at different times continue together"
        return self.why_repeat_differs

    @property
    def why_repeat_differs(self) -> str | None:
        """Why a second run with these settings has other models; None: on the CPU it has the same."""
        private = self.training.privacy
        plugins = [self.sharing.make(), private.make() if private else None]
        if any(getattr(plugin, "generator", None) == "secure" for plugin in plugins):
            return "generator: secure draws other numbers"
        is_virtual = self.communication.make().plan.has_virtual_time
        is_timed = self.time_model.is_asynchronous and self.time_model.schedule != "replay"
        if is_timed and not is_virtual:
            return "who averages with whom depends on the speed of machines"
        if self.training.seconds_per_round is not None and not is_virtual:
            return "the steps of a round depend on the speed of machines"
        return None

    @property
    def adversary_ranks(self) -> frozenset[int]:
        """The ranks of all adversaries that lie; others only look at what they receive."""
        lying = [adversary for adversary in self.adversaries if getattr(adversary.cls, "active", True)]
        return frozenset(rank for adversary in lying for rank in adversary.options.get("ranks", ()))

    @property
    def has_foreign_plugins(self) -> bool:
        """Whether any plug-in that computes comes from outside this package and torch."""
        training = self.training
        plugins = [
            self.graph, self.sharing.weights, self.dataset, self.dataset.partition, *self.dataset.skew,
            self.model, self.sharing, *self.sharing.transforms, training.optimizer, training.loss, self.task,
            *training.augmentation,
        ]  # fmt: skip
        plugins += [training.scheduler] if training.scheduler else []
        return not all(str(plugin.cls.__module__).startswith(OURS) for plugin in plugins)
