"""The local steps of one node. This module does not know peers; the `Reducer` of its steps does.

Order inside one step: seed torch, zero the gradient, forward and backward for each minibatch, the scheme's
`adjust_gradient`, clipping, the optimizer. So the optimizer's gradient is bounded, whatever a scheme added.
"""

import math
import warnings
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from decentnode.core.rng import generator, key
from decentnode.core.vector import AdjustGradient, Vector
from decentnode.datasets.base import Batch, Samples
from decentnode.errors import RunFailed
from decentnode.training.augmentation.base import Augmentation, augmented
from decentnode.training.computation import SkippedStep
from decentnode.training.evaluation import own_buffers
from decentnode.training.reducer import Reducer
from decentnode.training.settings import TrainingSettings

Pause = Callable[[], Awaitable[None]]
"""Lets the event loop run the other nodes of the process."""
CLIP_EPSILON = 1e-6


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

    def starts(self, samples: int, batch_size: int) -> range:
        """The index at which each minibatch of an epoch of `samples` starts."""
        starts = range(0, samples, batch_size)
        is_short = len(starts) > 1 and samples - starts[-1] < self.least_batch
        return starts[:-1] if is_short else starts


class Minibatches:
    """A shard in minibatches, epoch after epoch, each in an order of its own.

    The last batch of an epoch may be short, so that an epoch uses every sample once. Where it has fewer
    samples than the model can be trained on, the batch before it gets them. Epochs continue over rounds.

    With `tokens` a batch has samples of similar length, at most so many tokens with its padding (Vaswani et
    al., 2017, section 5.1). All epochs have equally many batches; samples of equal length and the batches
    change their order.
    """

    def __init__(self, shard: Shard, size: int | None, tokens: int | None = None) -> None:
        """`size` samples, or so many `tokens`, make a batch."""
        self._shard = shard
        self._size = size or 1
        self._tokens = tokens
        self._epoch = -1
        self._upcoming: list[Tensor] = []

    @cached_property
    def per_epoch(self) -> int:
        """The number of minibatches of an epoch; 0 without samples."""
        return len(self._split(self._shard.indices[: self._shard.size]))

    def steps_per_epoch(self, accumulate: int) -> int:
        """The number of steps of an epoch, of so many minibatches each; the last may have fewer."""
        return -(-self.per_epoch // accumulate)

    def next(self) -> Batch:
        """The next minibatch."""
        if not self._upcoming:
            self._begin(self._epoch + 1)
        return self._shard.samples.batch(self._upcoming.pop())

    def several(self, count: int) -> list[Batch]:
        """The next minibatches, as many as `count` or as the epoch still has, at least one."""
        first = self.next()
        return [first, *(self.next() for _ in range(min(count - 1, len(self._upcoming))))]

    def trial(self) -> Batch:
        """A minibatch to try a step with, the longest of them; `next` still gives its samples."""
        batches = self._split(self._shard.indices)
        return self._shard.samples.batch(batches[0 if self._tokens is None else -1])

    def trials(self) -> list[Batch]:
        """A minibatch of each shape that an epoch has; `next` still gives their samples."""
        batches = self._split(self._shard.indices[: self._shard.size])
        longest = None if self._tokens is None else self._shard.samples.tokens
        shapes = {(len(one), 0 if longest is None else int(longest[one].max())): one for one in batches}
        return [self._shard.samples.batch(indices) for indices in shapes.values()]

    def _begin(self, epoch: int) -> None:
        self._epoch = epoch
        batches = self._split(self._shard.order(epoch))
        if self._tokens is not None:
            rng = generator(self._shard.seed, "batches", self._shard.rank, epoch)
            batches = [batches[place] for place in rng.permutation(len(batches))]
        self._upcoming = batches[::-1]

    def _split(self, indices: Tensor) -> list[Tensor]:
        """These samples in minibatches."""
        if not len(indices):
            return []
        if self._tokens is None:
            return list(indices.tensor_split(list(self._shard.starts(len(indices), self._size)[1:])))
        lengths, order = self._shard.samples.tokens[indices].sort(stable=True)
        return list(torch.split(indices[order], token_batches(lengths, self._tokens)))

    def state_dict(self) -> dict[str, int]:
        """The position in the samples."""
        return {"epoch": self._epoch, "upcoming": len(self._upcoming)}

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Continues from `state_dict()`."""
        self._epoch, self._upcoming = -1, []
        if state["epoch"] >= 0:
            self._begin(state["epoch"])
            del self._upcoming[state["upcoming"] :]


def token_batches(lengths: Tensor, most: int) -> list[int]:
    """How many samples each batch has, so that number times longest is at most `most`; `lengths` ascend."""
    sizes, start = list[int](), 0
    while start < len(lengths):
        window = lengths[start : start + most // int(lengths[start])]
        fits = torch.arange(1, len(window) + 1) * window <= most
        sizes.append(max(1, int(fits.sum())))
        start += sizes[-1]
    return sizes


@dataclass(frozen=True)
class Hooks:
    """Functions of other parts that the local steps call."""

    adjust_gradient: AdjustGradient | None = None
    pause: Pause | None = None
    """Awaited after every step where several nodes share the process."""
    beat: Callable[[], None] | None = None
    """Called after every minibatch: the node makes progress."""


NO_HOOKS = Hooks()


@dataclass(frozen=True)
class TrainReport:
    """One round of local steps."""

    loss: float | None
    """The mean over the samples used, of all nodes that the reducer joins; None when there was no step."""
    steps: int
    """Without those that mixed precision skipped, because a gradient was not finite."""
    samples: int
    learning_rate: float
    """The rate of the first step; `Training.learning_rate` is that of the next round already."""


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
        self.minibatches = Minibatches(shard, settings.batch_size, settings.batch_tokens)
        self.objective = settings.objective(module, vector.layout.channels_last)
        self.scaler = settings.scaler()
        self.augmentation: list[Augmentation] = [one.make() for one in settings.augmentation]
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
        self.objective.use(tie.wrap(self.module))
        if tie.rehearses:
            self.rehearse()

    def rehearse(self) -> None:
        """Computes two gradients, because some defects only appear in the second; restores the buffers.

        Where the network is compiled, two for each shape of a batch, so that no round waits for that.
        """
        batches = self.minibatches.trials() if self.settings.compile else [self.minibatches.trial()]
        before = {name: buffer.clone() for name, buffer in self.module.named_buffers()}
        self.module.train()
        for batch in [batch for batch in batches for _ in range(2)]:
            with self.tie.step(-1, -1):
                self.tie.backward(self.objective(batch)[1])
        for name, buffer in self.module.named_buffers():
            buffer.copy_(before[name])

    async def train(self, round: int) -> TrainReport:
        """Makes this round's steps, and those of the schedule; raises RunFailed when a loss is not finite."""
        losses: list[Tensor] = []
        sizes: list[float] = []
        samples, skipped, learning_rate = 0, 0, self.learning_rate
        steps = self._steps_in(round)
        if steps:
            self.module.train()
        for step in range(steps):
            batches = self._batches(round, step)
            loss, is_skipped = self._step(round, step, batches)
            losses.append(loss)
            sizes.append(sum(map(self.objective.count, batches)))
            samples += sum(map(len, batches))
            skipped += is_skipped
            self._beat()
            if self.hooks.pause is not None:
                await self.hooks.pause()
            if self.settings.schedule_step == "step":
                self._step_scheduler()
        mean = self._mean(round, losses, sizes)
        if self.settings.schedule_step == "round":
            self._step_scheduler(mean)
        self.loss = mean
        return TrainReport(mean, steps - skipped, samples, learning_rate)

    def skip(self, rounds: Sequence[int]) -> None:
        """Steps the scheduler for rounds in which this node did not take part."""
        per_step = self.settings.schedule_step == "step"
        for round in rounds:
            for _ in range(self._steps_in(round) if per_step else 1):
                self._step_scheduler()

    def _steps_in(self, round: int) -> int:
        per_epoch = self.minibatches.steps_per_epoch(self.settings.accumulate)
        return self.settings.steps(self.shard.rank, round, per_epoch)

    def _batches(self, round: int, step: int) -> list[Batch]:
        """The minibatches of a step, augmented by random numbers of their own."""
        batches = self.minibatches.several(self.settings.accumulate)
        if not self.augmentation:
            return batches
        return [
            augmented(batch, self.augmentation, self.shard.seed, round, self.shard.rank, step, index)
            for index, batch in enumerate(batches)
        ]

    def _step(self, round: int, step: int, batches: Sequence[Batch]) -> tuple[Tensor, bool]:
        """One step of the optimizer; returns the loss before it and whether it was skipped."""
        seed = key(self.shard.seed, "step", round, self.shard.rank, step)
        shares = self.objective.shares(batches)

        def closure() -> Tensor:
            self._seed_torch(seed)
            self.vector.gradient.zero_()
            with self.tie.step(round, step):
                loss = self._accumulate(shares)
            if self.scaler is not None and not self.scaler.unscale(self.vector.gradient):
                raise SkippedStep(loss)
            self._adjust(step)
            return loss

        # A closure, because some optimizers (L-BFGS) evaluate more than once in a step.
        try:
            loss: Tensor = self.optimizer.step(closure)  # type: ignore[assignment, arg-type]
        except SkippedStep as skipped:
            if self.scaler is not None and self.scaler.is_exhausted:
                raise RunFailed(
                    f"{self._place(round, step)}: the gradient is not finite in float16; training.amp: "
                    "bfloat16 has the range of float32"
                ) from None
            return skipped.loss, True
        return loss, False

    def _accumulate(self, shares: Sequence[tuple[Batch, float]]) -> Tensor:
        """Adds the gradients of these minibatches; returns the loss of all their samples, detached."""
        losses = []
        for index, (batch, share) in enumerate(shares, start=1):
            is_last = index == len(shares)
            with nullcontext() if is_last else self.tie.partial():
                loss = self.objective(batch)[1]
                loss = loss if share == 1.0 else share * loss
                losses.append(loss.detach())
                self.tie.backward(loss if self.scaler is None else self.scaler.scale * loss)
            if not is_last:
                self._beat()
        return sum(losses[1:], losses[0])

    def _beat(self) -> None:
        if self.hooks.beat is not None:
            self.hooks.beat()

    def _adjust(self, step: int) -> None:
        gradient = self.vector.gradient
        if self.hooks.adjust_gradient is not None:
            self.hooks.adjust_gradient(gradient, self.vector.trained, step)
        if self.settings.clip_norm is not None:
            gradient.mul_((self.settings.clip_norm / (gradient.norm() + CLIP_EPSILON)).clamp(max=1.0))

    def _mean(self, round: int, losses: list[Tensor], sizes: list[float]) -> float | None:
        """The mean loss of a round; None without a step. Raises RunFailed when a loss is not finite."""
        if not losses:
            return None
        # Read once per round: reading each loss would make a GPU wait in every step.
        values = torch.stack(losses).tolist()
        for step, value in enumerate(values):
            if not math.isfinite(value):
                raise RunFailed(
                    f"{self._place(round, step)}: the loss is {value}; a learning rate below "
                    f"{self.learning_rate:g} or training.clip_norm would help"
                )
        total = sum(map(self.objective.total, values, sizes))
        return self.tie.mean(round, len(sizes) - 1, total, sum(sizes))

    def _place(self, round: int, step: int) -> str:
        return f"rank {self.shard.rank}, round {round + 1}, step {step + 1}"

    def _step_scheduler(self, loss: float | None = None) -> None:
        """One step of the schedule; `loss`: the mean of the round, where there is one."""
        if isinstance(self.scheduler, ReduceLROnPlateau):
            if loss is not None:
                self.scheduler.step(loss)
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
            "scaler": self.scaler.state_dict() if self.scaler else {},
            "minibatches": self.minibatches.state_dict(),
            "buffers": self.own_buffers(),
            "loss": self.loss,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continues from `state_dict()`, bit for bit once the vector is restored, too."""
        self.optimizer.load_state_dict(state["optimizer"])
        if self.scheduler:
            self.scheduler.load_state_dict(state["scheduler"])
        if self.scaler:
            self.scaler.load_state_dict(state["scaler"])
        self.minibatches.load_state_dict(state["minibatches"])
        self.loss = state.get("loss")
        for name, buffer in self.own_buffers().items():
            buffer.copy_(state["buffers"][name])

    def own_buffers(self) -> dict[str, Tensor]:
        """Buffers that are not mixed and so are not in the vector."""
        return own_buffers(self.module, self.vector.layout)
