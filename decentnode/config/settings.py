"""The settings of a run, typed and checked; `config.load` reads them from YAML."""

import copy
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal, cast

from pydantic import AfterValidator

from decentnode.config.type_check import REQUIRED, parameters_of
from decentnode.core.timeouts import Timeouts
from decentnode.datasets.validation import ValidationSettings
from decentnode.errors import BadInput
from decentnode.graph.base import SEED
from decentnode.models.base import model_of
from decentnode.options import NonNegative, NonNegativeFloat, Positive, PositiveFloat
from decentnode.training.settings import Factory, TrainingSettings

OURS = ("decentnode.", "torch.")
"""Packages whose plug-ins draw from torch's global generator alone."""
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


SEEDED_KINDS = ("graph", "attack")
"""Kinds whose option `seed` is the run's seed where it is null."""


def takes_run_seed(kind: str, cls: Callable[..., Any]) -> bool:
    """Whether a plug-in draws from the run's seed if it is given none of its own.

    A class for which null is a value of its own keeps that meaning.
    """
    default = parameters_of(cls).get("seed", (Any, REQUIRED))[1] if kind in SEEDED_KINDS else REQUIRED
    return default is not REQUIRED and default is not None


@dataclass(frozen=True, kw_only=True)
class Plugin(Factory):
    """A class that YAML names, with its checked options; `make()` returns a new instance each time."""

    kind: str
    name: str
    """As in YAML: a registered name or `module:Class`."""
    run_seed: int = 0
    """What an option `seed` that is null stands for (`takes_run_seed`)."""

    def seeded(self, run_seed: int) -> "Plugin":
        """This plug-in, and those among its options, in a run with that seed."""
        inner = {k: v.seeded(run_seed) for k, v in self.options.items() if isinstance(v, Plugin)}
        return replace(self, run_seed=run_seed, options={**self.options, **inner})

    @property
    def draws_from_run(self) -> bool:
        """Whether it, or a plug-in among its options, is drawn from the run's seed."""
        inner = (value for value in self.options.values() if isinstance(value, Plugin))
        return self._lacks_seed or any(plugin.draws_from_run for plugin in inner)

    @property
    def _lacks_seed(self) -> bool:
        return self.options.get("seed", 0) is None and takes_run_seed(self.kind, self.cls)

    def make(self, *args: object) -> Any:
        """A new instance that shares nothing; raises BadInput when the class refuses its options."""
        # A model may also be any torch.nn.Module from outside the package, which is wrapped.
        is_model = self.kind == "model"
        maker = (lambda **options: model_of(cast(type, self.cls), options)) if is_model else self.cls
        options = {
            name: value.make() if isinstance(value, Plugin) else copy.deepcopy(value)
            for name, value in self.options.items()
        }
        if self._lacks_seed:
            options["seed"] = self.run_seed
        return Factory(maker, options).make(*args)


@dataclass(frozen=True)
class EvaluationSettings:
    """When and how models are tested."""

    every: NonNegative = 10
    """Rounds between evaluations; 0: only at the end."""
    final: bool = True
    """Whether models are tested after the last round, whatever `every` is."""
    background: bool | Positive = False
    """Whether other processes of each machine test the models while the nodes train: so many, or, where true,
    one for each processor that the nodes' processes leave.
    """
    nodes: Positive | tuple[NonNegative, ...] | None = None
    """The nodes that are tested before the last round: so many, evenly spaced, or these ranks; null: all."""
    samples: Positive | None = None
    """The number of test samples before the last round, drawn by the seed; null: all."""
    batch_size: Positive | None = None
    """Null: 512 where all layers are linear, otherwise 64."""
    average_model: bool = True
    """Whether the mean of all models is tested too."""
    figures: bool = True
    """Whether pictures are drawn after the nodes have ended."""

    def __post_init__(self) -> None:
        if self.nodes == ():
            raise BadInput.at("nodes", "no node is given; give a number or ranks, or leave it out for all")

    def tested(self, num_nodes: int) -> frozenset[int] | None:
        """The ranks whose models are tested before the last round; None: all."""
        if isinstance(self.nodes, int):
            return frozenset(i * num_nodes // self.nodes for i in range(self.nodes))
        return None if self.nodes is None else frozenset(self.nodes)

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

    attempts: NonNegative = 0
    """Most restarts of each host process."""


@dataclass(frozen=True)
class FailureSettings:
    """What happens when a node is lost, and the timeouts in seconds."""

    on_loss: Literal["auto", "continue", "stop"] = "auto"
    """auto: continue, unless the sharing scheme does not tolerate a loss."""
    deadline: PositiveFloat = 60.0
    """Timeout for a silent peer in a round."""
    grace: NonNegativeFloat = 5.0
    """How long a broken link may take to reconnect before the peer counts as lost."""
    start_deadline: PositiveFloat = 60.0
    """Timeout of the rendezvous of all nodes."""
    stop_deadline: PositiveFloat = 60.0
    """Timeout for the end of all nodes after a stop was requested; the rest are killed."""
    start: Annotated[str, AfterValidator(check_start)] = "all"
    """Nodes that must be present at the start: all, or at_least N; the others may join later."""
    restart: RestartSettings = RestartSettings()
    allow_different_code: bool = False
    """Whether machines may run together that differ in the sources of the package, plug-ins or torch."""

    @property
    def timeouts(self) -> Timeouts:
        """All limits that follow from these."""
        return Timeouts(self.deadline, self.grace, self.start_deadline, self.stop_deadline)


@dataclass(frozen=True)
class CheckpointSettings:
    """How often whole nodes are saved, so that the run or a node can resume."""

    every: NonNegative = 0
    """Rounds between checkpoints; 0: only at a graceful stop."""


@dataclass(frozen=True)
class ModelRecordSettings:
    """Which models are kept as results."""

    every: NonNegative = 0
    """Rounds between them; 0: only that after the last round, which is always kept."""


@dataclass(frozen=True)
class RecordSettings:
    """What is recorded in addition to the numbers of each round."""

    models: ModelRecordSettings | None = None
    """None: no models."""
    writers: tuple[Plugin, ...] = ()
    """What machine 0 writes evaluations with, beside evaluations.jsonl."""


@dataclass(frozen=True)
class KeyFolder:
    """The place of this machine's key files."""

    keys: Path


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The settings of a run; runs with equal settings end with equal models."""

    name: Annotated[str, AfterValidator(check_name)]
    rounds: Positive
    seed: NonNegative = SEED
    graph: Plugin
    mapping: Plugin
    dataset: Plugin
    partition: Plugin
    skew: tuple[Plugin, ...] = ()
    """What changes the training samples of each rank, in this order."""
    validation: ValidationSettings | None = None
    model: Plugin
    gradient_sync: Plugin
    """The gradient sync: `training.name` and its options."""
    training: TrainingSettings
    """Steps and epochs per round are one number for all ranks or one for each."""
    mix_buffers: bool = False
    """Whether float buffers (running statistics) are part of the shared vector."""
    sharing: Plugin
    weights: Plugin
    transforms: tuple[Plugin, ...] = ()
    communication: Plugin
    overlap: bool = False
    """Whether nodes exchange their models of the start of a round while they train."""
    evaluation: EvaluationSettings
    failures: FailureSettings
    time_model: TimeModelSettings = TimeModelSettings()
    checkpoint: CheckpointSettings = CheckpointSettings()
    records: RecordSettings = RecordSettings()
    faults: tuple[Plugin, ...] = ()
    """Injected faults."""
    adversaries: tuple[Plugin, ...] = ()
    """Attacks, each with the ranks that make it."""
    security: Literal["auto", "none"] | KeyFolder = "auto"
    """Keys for links between machines; auto: those in `keys` beside the file, if links need them."""
    device: Literal["cpu", "cuda", "auto"] = "cpu"
    run_dir: str | None = None
    """The directory of the results; None: runs/<name>-<time>."""
    machine: NonNegative | None = None
    """The index of this machine; None: found by its addresses."""

    def __post_init__(self) -> None:
        # So that `replace(settings, seed=...)` draws other graphs, too.
        object.__setattr__(self, "graph", self.graph.seeded(self.seed))
        adversaries = tuple(attack.seeded(self.seed) for attack in self.adversaries)
        object.__setattr__(self, "adversaries", adversaries)

    @property
    def adversary_ranks(self) -> frozenset[int]:
        """The ranks of all adversaries that lie; others only look at what they receive."""
        lying = [one for one in self.adversaries if getattr(one.cls, "active", True)]
        return frozenset(rank for one in lying for rank in one.options.get("ranks", ()))

    @property
    def has_foreign_plugins(self) -> bool:
        """Whether any plug-in comes from outside this package and torch."""
        training = self.training
        plugins = [
            self.graph, self.weights, self.dataset, self.partition, *self.skew, self.model, self.sharing,
            *self.transforms, training.optimizer, training.loss, training.task, *training.augmentation,
        ]  # fmt: skip
        plugins += [training.scheduler] if training.scheduler else []
        return not all(str(plugin.cls.__module__).startswith(OURS) for plugin in plugins)
