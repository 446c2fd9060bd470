"""The local steps of one node. This module does not know peers; the `Reducer` of its steps does.

Order inside one step: seed torch, zero the gradient, forward, backward, the scheme's `adjust_gradient`,
clipping, the optimizer. So the optimizer's gradient is bounded, whatever a scheme added.
"""

import math
import warnings
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from decentnode.core.rng import generator, key
from decentnode.core.text import first_line
from decentnode.core.vector import AdjustGradient, Precision, Vector
from decentnode.datasets.base import Batch, Samples
from decentnode.errors import BadInput, RunFailed
from decentnode.options import NonNegative, NonNegativeFloat, Positive, PositiveFloat
from decentnode.training.evaluation import own_buffers
from decentnode.training.objective import Objective
from decentnode.training.optim import decay_groups
from decentnode.training.reducer import Reducer
from decentnode.training.tasks.classification import Classification

Pause = Callable[[], Awaitable[None]]
"""Lets the event loop run the other nodes of the process."""
CLIP_EPSILON = 1e-6
MOST_AT_A_TIME = 16
"""Channels that a convolution on a CPU processes at a time."""


@dataclass(frozen=True)
class Factory:
    """A class from YAML with its options, instantiated when its first arguments exist."""

    cls: Callable[..., Any]
    options: Mapping[str, Any] = field(default_factory=dict)

    def make(self, *args: object) -> Any:
        """An instance; raises BadInput when the class refuses its options."""
        try:
            return self.cls(*args, **self.options)
        except (TypeError, ValueError, RuntimeError, LookupError, ArithmeticError) as error:
            raise BadInput(f"{getattr(self.cls, '__name__', self.cls)}: {first_line(error)}") from error


@dataclass(frozen=True)
class TrainingSettings:
    """How every node trains; numbers per round may be one for each rank."""

    optimizer: Factory
    loss: Factory = Factory(nn.CrossEntropyLoss)
    task: Factory = Factory(Classification)
    """The section `task`."""
    scheduler: Factory | None = None
    """Stepped once per round."""
    batch_size: Positive = 32
    steps_per_round: NonNegative | tuple[NonNegative, ...] | None = None
    epochs_per_round: NonNegativeFloat | tuple[NonNegativeFloat, ...] | None = None
    """Fractions are carried over: 0.5 of an epoch of 7 steps is alternately 3 and 4 steps."""
    clip_norm: PositiveFloat | None = None
    """The largest Euclidean norm of the flat gradient."""
    decay: Literal["all", "weights"] = "all"
    """The parameters for the optimizer's weight_decay; `weights` leaves out biases and norms."""
    dtype: Precision = "float32"
    """The format of the vector's numbers, from the gradient to the wire."""
    memory_format: Literal["auto", "contiguous", "channels_last"] = "auto"
    """auto: channels_last where there are convolutions, unless one of them would not be safe."""

    def __post_init__(self) -> None:
        if (self.steps_per_round is None) == (self.epochs_per_round is None):
            raise BadInput("training: give exactly one of steps_per_round and epochs_per_round")
        if self.optimizer.cls is torch.optim.SparseAdam:
            raise BadInput(
                "training.optimizer: SparseAdam needs sparse gradients, and the gradient here is one dense "
                "vector; use Adam"
            )

        is_optimizer = isinstance(self.optimizer.cls, type) and issubclass(self.optimizer.cls, Optimizer)
        if self.decay == "weights" and is_optimizer and not self.optimizer.options.get("weight_decay"):
            raise BadInput("training.decay: weights needs an optimizer with a weight_decay above 0")

    def trained(self, module: nn.Module) -> list[Any]:
        """The parameters of a module that the optimizer updates, or groups of them."""
        if self.decay == "weights":
            return decay_groups(module, self.optimizer.options["weight_decay"])
        return [parameter for parameter in module.parameters() if parameter.requires_grad]

    def steps(self, rank: int, round: int, steps_per_epoch: int) -> int:
        """The number of steps of `rank` in `round`; 0 when it has no samples."""
        if not steps_per_epoch:
            return 0
        if self.steps_per_round is not None:
            return int(of_rank(self.steps_per_round, rank))
        rate = of_rank(self.epochs_per_round or 0.0, rank) * steps_per_epoch
        return whole(rate * (round + 1)) - whole(rate * round)

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


@dataclass(frozen=True, eq=False)
class Shard:
    """The samples that one rank trains on, and the key of its random choices."""

    samples: Samples
    indices: Tensor
    """The training samples of the rank, int64; may be empty."""
    seed: int
    rank: int
    epoch_size: int | None = None
    """The number of samples of an epoch; None: all of them."""
    least_batch: int = 1
    """The fewest samples that the model can be trained on at once."""

    @property
    def size(self) -> int:
        """The number of samples of an epoch, limited by `epoch_size`."""
        return len(self.indices) if self.epoch_size is None else self.epoch_size

    def order(self, epoch: int) -> Tensor:
        """The samples of an epoch in their order, int64 indices."""
        order = generator(self.seed, "shuffle", self.rank, epoch).permutation(len(self.indices))
        return self.indices[torch.from_numpy(order)]


class Minibatches:
    """A shard in minibatches, epoch after epoch, each in an order of its own.

    The last batch of an epoch may be short, so that an epoch uses every sample once. Where it has fewer
    samples than the model can be trained on, the batch before it gets them. Epochs continue over rounds.
    """

    def __init__(self, shard: Shard, batch_size: int) -> None:
        self._shard = shard
        self._batch_size = batch_size
        self._epoch = -1
        self._upcoming: list[Tensor] = []

    @property
    def per_epoch(self) -> int:
        """The number of minibatches of an epoch; 0 without samples."""
        return len(self._starts(self._shard.size))

    def next(self) -> Batch:
        """The next minibatch."""
        if not self._upcoming:
            self._begin(self._epoch + 1)
        return self._shard.samples.batch(self._upcoming.pop())

    def _begin(self, epoch: int) -> None:
        self._epoch = epoch
        shuffled = self._shard.order(epoch)
        self._upcoming = list(shuffled.tensor_split(list(self._starts(len(shuffled))[1:])))[::-1]

    def _starts(self, samples: int) -> range:
        """The index at which each minibatch of `samples` starts."""
        starts = range(0, samples, self._batch_size)
        is_short = len(starts) > 1 and samples - starts[-1] < self._shard.least_batch
        return starts[:-1] if is_short else starts

    def state_dict(self) -> dict[str, int]:
        """The position in the samples."""
        return {"epoch": self._epoch, "upcoming": len(self._upcoming)}

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Continues from `state_dict()`."""
        self._epoch, self._upcoming = -1, []
        if state["epoch"] >= 0:
            self._begin(state["epoch"])
            del self._upcoming[state["upcoming"] :]


@dataclass(frozen=True)
class Hooks:
    """Functions of other parts that the local steps call."""

    adjust_gradient: AdjustGradient | None = None
    pause: Pause | None = None
    """Awaited after every step where several nodes share the process."""
    beat: Callable[[], None] | None = None
    """Called after every step: the node makes progress."""


NO_HOOKS = Hooks()


@dataclass(frozen=True)
class TrainReport:
    """One round of local steps."""

    loss: float | None
    """The mean over the samples used, of all nodes that the reducer joins; None when there was no step."""
    steps: int
    samples: int
    learning_rate: float
    """The rate of these steps; `Training.learning_rate` is that of the next round already."""


class Training:
    """The local steps of one node on its shard, round after round."""

    def __init__(
        self,
        module: nn.Module,
        vector: Vector,
        settings: TrainingSettings,
        shard: Shard,
        hooks: Hooks = NO_HOOKS,
    ) -> None:
        """Raises BadInput when the optimizer, the scheduler or the loss refuses its options."""
        self.module = module
        self.vector = vector
        self.settings = settings
        self.shard = shard
        self.hooks = hooks
        self.tie = Reducer()
        self.loss: float | None = None
        """The mean over the samples of the last round."""
        self.minibatches = Minibatches(shard, settings.batch_size)
        self.objective = Objective(
            module, settings.loss.make(), settings.task.make(), vector.layout.channels_last
        )
        self.optimizer: Optimizer = settings.optimizer.make(settings.trained(module))
        self.scheduler: LRScheduler | None = None
        if settings.scheduler is not None:
            self.scheduler = settings.scheduler.make(self.optimizer)
        # On the CPU this seeds no other generator.
        on_cpu = vector.values.device.type == "cpu"
        self._seed_torch: Callable[[int], object] = (
            torch.default_generator.manual_seed if on_cpu else torch.manual_seed
        )

    @property
    def learning_rate(self) -> float:
        """The optimizer's rate for the next step (of its first group)."""
        return float(self.optimizer.param_groups[0]["lr"])

    def join(self, tie: Reducer) -> None:
        """Connects the steps to those of other nodes before the first step; raises DecentnodeError."""
        self.tie = tie
        self.objective.module = tie.wrap(self.module)
        if tie.rehearses:
            self._rehearse()

    def _rehearse(self) -> None:
        """Computes two gradients, because some defects only appear in the second; restores the buffers."""
        batch = self.shard.samples.batch(self.shard.indices[: self.settings.batch_size])
        before = {name: buffer.clone() for name, buffer in self.module.named_buffers()}
        self.module.train()
        for _ in range(2):
            with self.tie.step(-1, -1):
                self.tie.backward(self.objective(batch)[1])
        for name, buffer in self.module.named_buffers():
            buffer.copy_(before[name])

    async def train(self, round: int) -> TrainReport:
        """Makes this round's steps, then steps the scheduler; raises RunFailed when a loss is not finite."""
        losses: list[Tensor] = []
        sizes: list[float] = []
        samples = 0
        steps = self.settings.steps(self.shard.rank, round, self.minibatches.per_epoch)
        if steps:
            self.module.train()
        for step in range(steps):
            batch = self.minibatches.next()
            losses.append(self._step(round, step, batch))
            sizes.append(self.objective.count(batch))
            samples += len(batch)
            if self.hooks.beat is not None:
                self.hooks.beat()
            if self.hooks.pause is not None:
                await self.hooks.pause()
        report = self._report(round, losses, sizes, samples)
        self._step_scheduler(report)
        self.loss = report.loss
        return report

    def skip(self, rounds: int) -> None:
        """Steps the scheduler for rounds in which this node did not take part."""
        if not isinstance(self.scheduler, ReduceLROnPlateau):
            for _ in range(rounds):
                self._step_scheduler(None)

    def _step(self, round: int, step: int, batch: Batch) -> Tensor:
        """One step of the optimizer; returns the loss before it, detached and still on its device."""
        seed = key(self.shard.seed, "step", round, self.shard.rank, step)

        def closure() -> Tensor:
            self._seed_torch(seed)
            self.vector.gradient.zero_()
            with self.tie.step(round, step):
                _, loss = self.objective(batch)
                self.tie.backward(loss)
            self._adjust(step)
            return loss.detach()

        # A closure, because some optimizers (L-BFGS) evaluate more than once in a step.
        loss: Tensor = self.optimizer.step(closure)  # type: ignore[assignment, arg-type]
        return loss

    def _adjust(self, step: int) -> None:
        gradient = self.vector.gradient
        if self.hooks.adjust_gradient is not None:
            self.hooks.adjust_gradient(gradient, self.vector.trained, step)
        if self.settings.clip_norm is not None:
            gradient.mul_((self.settings.clip_norm / (gradient.norm() + CLIP_EPSILON)).clamp(max=1.0))

    def _report(self, round: int, losses: list[Tensor], sizes: list[float], samples: int) -> TrainReport:
        if not losses:
            return TrainReport(None, 0, 0, self.learning_rate)
        # Read once per round: reading each loss would make a GPU wait in every step.
        values = torch.stack(losses).tolist()
        for step, value in enumerate(values):
            if not math.isfinite(value):
                raise RunFailed(
                    f"rank {self.shard.rank}, round {round + 1}, step {step + 1}: the loss is {value}; "
                    f"a learning rate below {self.learning_rate:g} or training.clip_norm would help"
                )
        total = sum(map(self.objective.total, values, sizes))
        loss = self.tie.mean(round, len(sizes) - 1, total, sum(sizes))
        return TrainReport(loss, len(values), samples, self.learning_rate)

    def _step_scheduler(self, report: TrainReport | None) -> None:
        if isinstance(self.scheduler, ReduceLROnPlateau):
            if report is not None and report.loss is not None:
                self.scheduler.step(report.loss)
        elif self.scheduler is not None:
            with warnings.catch_warnings():
                # A rank without samples follows the schedule although its optimizer never steps.
                warnings.filterwarnings("ignore", message="Detected call of `lr_scheduler.step")
                self.scheduler.step()

    def state_dict(self) -> dict[str, Any]:
        """Everything a resumed node needs beside the vector; tensors are references, not copies."""
        return {
            "optimizer": self.optimizer.state_dict(),
            "scheduler": self.scheduler.state_dict() if self.scheduler else {},
            "minibatches": self.minibatches.state_dict(),
            "buffers": self.own_buffers(),
            "loss": self.loss,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continues from `state_dict()`, bit for bit once the vector is restored, too."""
        self.optimizer.load_state_dict(state["optimizer"])
        if self.scheduler:
            self.scheduler.load_state_dict(state["scheduler"])
        self.minibatches.load_state_dict(state["minibatches"])
        self.loss = state.get("loss")
        for name, buffer in self.own_buffers().items():
            buffer.copy_(state["buffers"][name])

    def own_buffers(self) -> dict[str, Tensor]:
        """Buffers that are not mixed and so are not in the vector."""
        return own_buffers(self.module, self.vector.layout)
