"""The settings of local steps, and classes from YAML with their options."""

import copy
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import ReduceLROnPlateau

from decentnode.core.registry import name_of
from decentnode.core.text import first_line
from decentnode.core.vector import Vector
from decentnode.datasets.base import Batch, Samples
from decentnode.errors import BadInput, Defect, refuse
from decentnode.options import NonNegative, NonNegativeFloat, Positive, PositiveFloat, option
from decentnode.training.augmentation.base import augmented
from decentnode.training.augmentation.mixup import Mixup
from decentnode.training.computation import Computation
from decentnode.training.minibatches import Minibatches, Shard
from decentnode.training.objective import Objective, ignored_by
from decentnode.training.optim import Muon, decay_groups, muon_groups
from decentnode.training.optim.uncompiled import uncompiled
from decentnode.training.pace import PaceSettings
from decentnode.training.privacy.base import Privacy, PrivacyPlan, PrivateSteps
from decentnode.training.tasks.classification import Classification

BATCH_SIZE = 32
ONE_OF_BOTH = "give exactly one of steps_per_round and epochs_per_round"
MOST_AT_A_TIME = 16
"""Channels that a convolution on a CPU processes at a time."""


@dataclass(frozen=True)
class Factory:
    """A class from YAML with its options, instantiated when its first arguments exist."""

    cls: Callable[..., Any]
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def needs_arguments(self) -> bool:
        """Whether an option has it as it is, because who uses the option calls `make` with arguments."""
        return False

    def make(self, *args: object) -> Any:
        """An instance; raises BadInput when the class refuses its options."""
        return instance(self.cls, args, {name: made(value) for name, value in self.options.items()})


def made(option: Any) -> Any:
    """Returns an option as a class takes it: with instances in place of factories, and shared by nobody."""
    if isinstance(option, Factory):
        return option.make if option.needs_arguments else option.make()
    return tuple(map(made, option)) if isinstance(option, tuple) else copy.deepcopy(option)


def instance(cls: Callable[..., Any], args: tuple[object, ...], options: Mapping[str, Any]) -> Any:
    """Returns an instance of a class; raises BadInput when it refuses its options."""
    try:
        return cls(*args, **options)
    except (TypeError, ValueError, RuntimeError, LookupError, ArithmeticError) as error:
        raise BadInput(f"{getattr(cls, '__name__', cls)}: {first_line(error)}") from error


@dataclass(frozen=True)
class BatchExecution:
    """Steps of several nodes of one process are computed together; sums are rounded in another order."""

    batches: Positive | Literal["auto"] = option(changes="rounding")
    """The nodes of a batch, at most; auto: by the size of the model."""


@dataclass(frozen=True)
class WorkerExecution:
    """Steps are computed by other processes than that of the nodes, with the same models."""

    workers: Positive | Literal["auto"] = option(changes="nothing")
    """These processes; auto: most processors that are left, where they pay, otherwise none."""


@dataclass(frozen=True)
class TrainingSettings(Computation):
    """How every node trains; numbers per round may be one for each rank."""

    optimizer: Factory
    loop: Factory | None = None
    """A loop in place of the local steps; null: there is none."""
    loss: Factory = Factory(nn.CrossEntropyLoss)
    task: Factory = Factory(Classification)
    """The section `task`."""
    loss_weights: Mapping[str, float] | tuple[float, ...] | None = None
    """Of a model with several outputs, such as auxiliary heads: the weights of their losses, by their names,
    or in their order from the main one on; null: the main output alone has a loss. A scalar among them, such
    as `aux_loss`, is a loss by itself.
    """
    scheduler: Factory | None = None
    schedule_step: Literal["round", "step"] = "round"
    """What a step of the schedule is: a round, or a step of the optimizer."""
    batch_size: Positive | None = None
    """Samples of a minibatch; null: 32, unless batch_tokens is given."""
    batch_tokens: Positive | None = None
    """Instead of batch_size: the most tokens of a minibatch on each side, padding included."""
    accumulate: Positive = 1
    """The minibatches of a step, whose gradient is that of one batch of all their samples."""
    minibatches: Literal["epochs", "reshuffle"] = "epochs"
    """epochs: each sample once before any comes again, over rounds; reshuffle: a new order in each round."""
    drop_last: bool = False
    """Whether an epoch leaves out the samples that fill no step; false: its last step may have fewer."""
    augmentation: tuple[Factory, ...] = ()
    """Random changes of training batches, in this order."""
    privacy: Factory | None = None
    """How the steps are made private; null: they are not."""
    steps_per_round: NonNegative | tuple[NonNegative, ...] | None = None
    epochs_per_round: NonNegativeFloat | tuple[NonNegativeFloat, ...] | None = None
    """Fractions are carried over: 0.5 of an epoch of 7 steps is alternately 3 and 4 steps."""
    seconds_per_round: PositiveFloat | None = None
    """The most seconds of a round's steps: as many steps as fit, at least one and at most those of
    steps_per_round or epochs_per_round.
    """
    train_every: Positive = 1
    """Local steps in each k-th round alone, from the first on; the others only mix (Dhasade et al., 2024,
    SkipTrain).
    """
    pace: PaceSettings | Literal["instant"] | None = None
    """The least duration of each local step; null: that of the processor. instant: none, in virtual time."""
    execution: Literal["auto", "alone"] | BatchExecution | WorkerExecution = option(
        "auto", changes="rounding"
    )
    """Who computes the steps: the process of the nodes, one by one (`alone`) or in batches, which change
    rounding, or worker processes, which change nothing; auto: workers in virtual time, where they pay.
    """
    clip_norm: PositiveFloat | None = None
    """The largest Euclidean norm of the flat gradient."""
    decay: Literal["all", "weights"] = "all"
    """The parameters for the optimizer's weight_decay; `weights` leaves out biases and norms."""
    memory_format: Literal["auto", "contiguous", "channels_last"] = "auto"
    """auto: channels_last where there are convolutions, unless one of them would not be safe."""

    @cached_property
    def slowed(self) -> PaceSettings | None:
        """The pace; None where steps take what they take."""
        if isinstance(self.pace, Factory):
            made: PaceSettings = self.pace.make()
            return made
        return None if self.pace == "instant" else self.pace

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.batch_size is not None and self.batch_tokens is not None:
            raise BadInput.at("training", "give one of batch_size and batch_tokens, not both")
        if self.batch_size is None and self.batch_tokens is None:
            object.__setattr__(self, "batch_size", BATCH_SIZE)
        if self.drop_last and self.batch_tokens is not None:
            raise BadInput.at("training.drop_last", "minibatches of batch_tokens are all full; leave it out")
        if self.steps_per_round is not None and self.epochs_per_round is not None:
            raise BadInput.at("training", ONE_OF_BOTH)
        if self.optimizer.cls is torch.optim.SparseAdam:
            raise BadInput.at(
                "training.optimizer",
                "SparseAdam needs sparse gradients, and the gradient here is one dense vector; use Adam",
            )

        is_optimizer = isinstance(self.optimizer.cls, type) and issubclass(self.optimizer.cls, Optimizer)
        if self.decay == "weights" and is_optimizer and not self.optimizer.options.get("weight_decay"):
            raise BadInput.at("training.decay", "weights needs an optimizer with a weight_decay above 0")
        if self.amp == "float16" and self.optimizer.cls is torch.optim.LBFGS:
            raise BadInput.at(
                "training.amp",
                "float16 skips steps whose gradient overflows, and LBFGS cannot leave a line "
                "search; use bfloat16",
            )
        if self.amp is not None and self.loss.cls is nn.BCELoss:
            raise BadInput.at(
                "training.amp",
                "BCELoss is not safe in mixed precision; use BCEWithLogitsLoss, and a model "
                "without a sigmoid at its end",
            )
        if self.schedule_step == "step" and self.scheduler and self.scheduler.cls is ReduceLROnPlateau:
            raise BadInput.at(
                "training.schedule_step", "ReduceLROnPlateau needs the mean loss of a round; use round"
            )

        if sum(plugin.cls is Mixup for plugin in self.augmentation) > 1:
            raise BadInput.at("training.augmentation", "mixup mixes a batch once; name it once")
        if self.privacy is not None:
            refuse(defect.below(("training",)) for defect in self._defects_of_private())

    def _defects_of_private(self) -> Iterator[Defect]:
        """Yields the settings that private steps exclude."""
        name = name_of(self.privacy.make()) if self.privacy else ""
        if self.minibatches != "epochs" or self.drop_last:
            key = "drop_last" if self.drop_last else "minibatches"
            yield Defect((key,), f"{name} has its own ways to draw samples (privacy.sampling); leave it out")
        if self.batch_tokens is not None:
            yield Defect(("batch_tokens",), f"{name} draws each sample by itself; use batch_size")
        if self.seconds_per_round is not None:
            yield Defect(("seconds_per_round",), f"{name} plans its steps; use steps_per_round")
        if self.compile is not False:
            yield Defect(("compile",), f"{name} does not compile the gradients of samples; leave it out")
        if self.dtype == "bfloat16":
            yield Defect(("dtype",), f"{name} clips exactly, which bfloat16 cannot; use float32")
        if self.amp == "float16":
            yield Defect(("amp",), f"float16 scales losses, and {name} clips gradients; use bfloat16")
        if self.optimizer.cls is torch.optim.LBFGS:
            yield Defect(("optimizer",), "LBFGS takes several gradients in a step, and each spends; use SGD")
        if self.scheduler and self.scheduler.cls is ReduceLROnPlateau:
            yield Defect(("scheduler",), "ReduceLROnPlateau reads training losses, which are not private")
        if any(plugin.cls is Mixup for plugin in self.augmentation):
            yield Defect(
                ("augmentation",), f"mixup mixes samples, and {name} bounds what each adds; leave it out"
            )

    @property
    def ignored(self) -> int:
        """The label that the loss ignores; raises BadInput as `objective`."""
        return ignored_by(self.loss.make())

    def objective(self, module: nn.Module, channels_last: bool) -> Objective:
        """Returns the objective of the training; raises BadInput when the loss refuses its options."""
        return Objective(
            module, self.loss.make(), self.task.make(), channels_last=channels_last, computation=self,
            weights=self.loss_weights,
        )  # fmt: skip

    def make_optimizer(self, parameters: Sequence[Any]) -> Optimizer:
        """The optimizer of parameters, or of groups of them; raises BadInput when it refuses its options."""
        made: Optimizer = replace(self.optimizer, cls=uncompiled(self.optimizer.cls)).make(parameters)
        return made

    def trained(self, module: nn.Module) -> list[Any]:
        """The parameters of a module that the optimizer updates, or groups of them; raises BadInput."""
        options = self.optimizer.options
        if isinstance(self.optimizer.cls, type) and issubclass(self.optimizer.cls, Muon):
            try:
                matrices, others = muon_groups(
                    module, options.get("adamw_params", ()), options.get("hidden_only", True)
                )
            except ValueError as error:
                raise BadInput.at("training.optimizer", f"Muon: {error}") from error
            if self.decay == "all":
                return [matrices, others]
            rest = {id(p) for p in others["params"]}
            named = [(name, p) for name, p in module.named_parameters() if id(p) in rest]
            groups = decay_groups(named, options.get("adamw_weight_decay", 0.01), module)
            return [matrices, *({**group, "use_muon": False} for group in groups)]
        if self.decay == "weights":
            return decay_groups(module, options["weight_decay"])
        return [parameter for parameter in module.parameters() if parameter.requires_grad]

    def augmented(self, batch: Batch, seed: int, *counters: int) -> Batch:
        """A batch as training has it; the counters are those of its randomness."""
        return augmented(batch, [plugin.make() for plugin in self.augmentation], seed, *counters)

    def steps(self, rank: int, round: int, steps_per_epoch: int) -> int:
        """The number of steps of `rank` in `round`; 0 when it has no samples, or the round only mixes."""
        if not steps_per_epoch or round % self.train_every:
            return 0
        round //= self.train_every
        if self.steps_per_round is not None:
            return int(of_rank(self.steps_per_round, rank))
        rate = of_rank(self.epochs_per_round or 0.0, rank) * steps_per_epoch
        return whole(rate * (round + 1)) - whole(rate * round)

    def check(self, samples: Samples, least: int, in_step: bool) -> None:
        """Raises BadInput if minibatches of these samples are not as the settings need them.

        `least`: the fewest samples that the model can be trained on at once; `in_step`: all ranks must make
        the same number of steps.
        """
        if self.batch_size is not None and self.batch_size < least:
            defect = f"batch norm needs {least} samples or more at once, not {self.batch_size}"
            raise BadInput.at("training.batch_size", f"{defect}")
        if self.batch_tokens is None:
            return
        longest = int(samples.tokens.max())
        if not samples.has_ids:
            defect = "the samples of the dataset are no tokens; use batch_size"
        elif longest > self.batch_tokens:
            defect = f"must be at least {longest}, the length of the longest training sample"
        elif least > 1:
            defect = f"batch norm needs {least} samples at once; use batch_size"
        elif in_step and self.steps_per_round is None:
            defect = "ranks would make unequal numbers of steps in an epoch; use steps_per_round"
        else:
            return
        raise BadInput.at("training.batch_tokens", f"{defect}")

    def make_minibatches(self, shard: Shard) -> Minibatches:
        """The minibatches of a shard."""
        step = (self.batch_size or BATCH_SIZE) * self.accumulate if self.drop_last else None
        reshuffle = self.minibatches == "reshuffle"
        return Minibatches(shard, self.batch_size, self.batch_tokens, whole_steps=step, reshuffle=reshuffle)

    def private_steps(
        self, plan: PrivacyPlan | None, objective: Objective, vector: Vector, shard: Shard
    ) -> PrivateSteps | None:
        """The private steps of a node with a plan; None where steps are not private."""
        if self.privacy is None or plan is None:
            return None
        privacy: Privacy = self.privacy.make()
        return privacy.private_steps(
            plan, objective, vector, shard=shard, batch_size=self.batch_size or BATCH_SIZE
        )

    def channels_last(self, module: nn.Module) -> bool:
        """Whether 4-D weights and inputs are kept in that memory order.

        The answer depends on the settings and the network, never on the device. It decides the order of the
        numbers in the vector, which must be the same on all nodes.
        """
        if self.memory_format == "auto":
            # LBFGS flattens weights by view(-1), which a permuted weight refuses.
            allowed = self.optimizer.cls is not torch.optim.LBFGS
            convolutions = [part for part in module.modules() if isinstance(part, nn.Conv2d)]
            return allowed and bool(convolutions) and not any(map(_is_unsafe, convolutions))
        return self.memory_format == "channels_last"


def _is_unsafe(convolution: nn.Conv2d) -> bool:
    """Whether its gradient in channels-last order may overwrite foreign memory.

    On processors without AVX-512 oneDNN writes past its workspace for kernels of 1 x 1 with a stride and
    fewer channels than it processes at a time (github.com/uxlfoundation/oneDNN issue 6035).
    """
    is_point = all(extent == 1 for extent in convolution.kernel_size)
    has_stride = any(step != 1 for step in convolution.stride)
    return is_point and has_stride and convolution.in_channels // convolution.groups < MOST_AT_A_TIME


def of_rank(value: float | tuple[float, ...], rank: int) -> float:
    """The number of this rank; one number is for all ranks."""
    return value[rank] if isinstance(value, tuple) else value


def whole(number: float) -> int:
    """Rounds down, but tolerates rounding errors of products such as 0.1 * 30."""
    return math.floor(number + 1e-9)
