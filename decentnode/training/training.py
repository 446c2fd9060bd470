"""The local steps of one node. This module does not know peers; the `Reducer` of its steps does.

Order inside one step: seed torch, zero the gradient, forward and backward for each minibatch (private steps
also clip and add noise), the scheme's `adjust_gradient`, clipping, the optimizer. So the gradient of the
optimizer is bounded, whatever a scheme added.
"""

import math
import warnings
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from decentnode.core.clock import Clock
from decentnode.core.rng import key, seed_generators
from decentnode.core.vector import AdjustGradient, Vector
from decentnode.datasets.base import Batch
from decentnode.errors import BadInput, RunFailed
from decentnode.models.module_state import ModuleState, all_buffers, copied_state
from decentnode.training.augmentation.base import Augmentation, augmented
from decentnode.training.computation import SkippedStep
from decentnode.training.local_steps import LocalSteps, Tally, TrainReport
from decentnode.training.minibatches import Shard
from decentnode.training.pace import Pace
from decentnode.training.privacy.base import History, PrivacyPlan
from decentnode.training.reducer import Reducer, Rehearsed
from decentnode.training.settings import TrainingSettings

Pause = Callable[[], Awaitable[None]]
"""Lets the event loop run the other nodes of the process."""
CLIP_EPSILON = 1e-6


@dataclass(frozen=True)
class Hooks:
    """Functions of other parts that the local steps call."""

    adjust_gradient: AdjustGradient | None = None
    pause: Pause | None = None
    """A function awaited in every step where several nodes share the process."""
    beat: Callable[[], None] | None = None
    """A function called after every minibatch: the node makes progress."""
    pace: Pace | None = None
    """Slows every step down; None: steps are as fast as the processor."""
    clock: Clock = field(default_factory=Clock)
    """The clock of the node."""
    trains: Callable[[int], bool] = lambda round: True
    """Whether the node makes local steps in a round."""
    spends: Callable[[History], None] | None = None
    """A function called before the private steps of a round, with all steps up to its end."""


NO_HOOKS = Hooks()


class TimeBudget:
    """The seconds of a round's local steps; None: no limit (QuanTimed-DSGD: Reisizadeh et al., 2019)."""

    def __init__(self, seconds: float | None, clock: Clock) -> None:
        self.seconds, self.clock, self.began = seconds, clock, clock.now()

    def allows(self, losses: Sequence[Tensor]) -> bool:
        """Whether a step of the mean length so far would still fit; true before the first one."""
        if self.seconds is None or not losses:
            return True
        _ = float(losses[-1])  # waits for a GPU, which computes after the calls have returned
        return (self.clock.now() - self.began) * (1 + 1 / len(losses)) <= self.seconds


@dataclass(frozen=True)
class StepResult:
    """The result of one local step."""

    loss: Tensor
    """The loss before the step, a scalar."""
    is_skipped: bool
    """Whether mixed precision skipped the step, because a gradient was not finite."""
    count: float
    """How many terms the mean loss has."""
    samples: int


SubmittedStep = Callable[[], StepResult]
"""Returns the result of a submitted step; once it has, the step has changed the model. Called once."""


class StepExecutor:
    """Computes each step alone, in this process, when its result is asked for.

    From `submit` until the result, nobody else writes the vector of the node. So the steps that several nodes
    have submitted may be computed together, or in other processes.
    """

    news: str = ""
    """One line for the console at the start; empty: none."""

    def submit(self, training: "Training", round: int, step: int) -> SubmittedStep:
        """Takes a step of a node's round; both numbers count from 0."""
        return partial(training.compute, round, step)

    async def pause(self, clock: Clock) -> None:
        """Lets the other nodes of the process have their turn, while a step is submitted."""
        await clock.sleep(0)

    def optimizer_state(self, training: "Training") -> dict[str, Any]:
        """Returns `state_dict()` of a node's optimizer; tensors are references."""
        return training.optimizer.state_dict()

    def load_optimizer_state(self, training: "Training", state: dict[str, Any]) -> None:
        """Continues with what `optimizer_state` returned, in this run or in another one."""
        training.optimizer.load_state_dict(state)

    def follow_schedule(self, training: "Training", loss: float | None) -> None:
        """Takes a step of the learning rate schedule, which `training` has made with this loss."""

    def bring_network_state(self, training: "Training") -> None:
        """Makes the network of this process have the module state that the last step left."""

    def state_of(self, training: "Training") -> dict[str, Any]:
        """Returns all that a resumed node needs, where its steps are computed."""
        return training.local_state()

    def memory_mb(self) -> float:
        """Returns the memory of its other processes, in MB."""
        return 0.0

    def start(self, trainings: "Sequence[Training]") -> None:
        """Is called with the local steps of all nodes before the first step."""

    def close(self) -> None:
        """Is called after the last step."""


class Training(LocalSteps):
    """The local steps of one node on its shard, round after round."""

    def __init__(
        self,
        vector: Vector,
        settings: TrainingSettings,
        shard: Shard,
        hooks: Hooks = NO_HOOKS,
        plan: PrivacyPlan | None = None,
        seeds_all: bool = True,
        executor: StepExecutor | None = None,
    ) -> None:
        """Raises BadInput when the optimizer, the scheduler or the loss refuses its options.

        `plan`: of private steps; `seeds_all`: whether the code of a step may draw from numpy and `random`;
        `executor`: what computes the steps, by default this object itself.
        """
        self.module = module = vector.module
        self.vector = vector
        self.settings = settings
        self.shard = shard
        self.hooks = hooks
        self.reducer = Reducer()
        self.loss: float | None = None
        """The mean over the samples of the last round."""
        self.minibatches = settings.make_minibatches(shard)
        self.objective = settings.objective(module, vector.layout.channels_last)
        self.private = settings.private_steps(plan, self.objective, vector, shard=shard)
        """The private steps; None: they are not private."""
        if self.private is not None:
            self.minibatches = self.private.minibatches
        self.scaler = settings.scaler()
        self.augmentation: list[Augmentation] = [plugin.make() for plugin in settings.augmentation]
        self.module_state = ModuleState(module, [entry.name for entry in vector.layout.entries])
        """The module state of the network."""
        self._loss_state = ModuleState(self.objective.loss)
        self.optimizer: Optimizer = settings.make_optimizer(settings.trained(module))
        self.scheduler: LRScheduler | None = None
        if settings.scheduler is not None:
            self.scheduler = settings.scheduler.make(self.optimizer)
        self._seeds_all = seeds_all
        self.executor = executor or StepExecutor()
        self._on_cpu = vector.values.device.type == "cpu"

    def handshake(self) -> bytes:
        return self.private.handshake() if self.private else b""

    def receive_handshakes(self, handshakes: Mapping[int, bytes]) -> None:
        if self.private is not None:
            self.private.receive_handshakes(handshakes)

    @property
    def epsilon(self) -> float | None:
        return self.private.claimed if self.private else None

    @property
    def doubts(self) -> tuple[str, ...]:
        return self.private.doubts if self.private else ()

    @property
    def memory_mb(self) -> float:
        return self.executor.memory_mb()

    @property
    def learning_rate(self) -> float:
        """The optimizer's rate for the next step (of its first group)."""
        return float(self.optimizer.param_groups[0]["lr"])

    def rate_in(self, round: int) -> float:
        """The rate of a round's steps, before the first; 0 where the node rests, or the round only mixes.

        Schemes make steps of their own at this rate, and must not move a model that rests.
        """
        return self.learning_rate if self.trains_in(round) else 0.0

    def trains_in(self, round: int) -> bool:
        """Whether a round is one of local steps: the node does not rest, and the round not only mixes."""
        return not round % self.settings.train_every and self.hooks.trains(round)

    def join(self, reducer: Reducer) -> None:
        """Connects the steps to those of other nodes before the first step; raises DecentnodeError."""
        self.reducer = reducer
        self.objective.use(
            reducer.wrap(self.module, self.rehearse_alone() if reducer.rehearses else Rehearsed())
        )
        if reducer.rehearses:
            self.rehearse()

    def rehearse_alone(self) -> Rehearsed:
        """Computes two gradients of this node's own; raises BadInput for those that others cannot have."""
        for part in self.module.modules():
            # The gradient is one dense vector anyway.
            if isinstance(part, nn.Embedding | nn.EmbeddingBag):
                part.sparse = False
        settings = replace(self.settings, compile=False)
        objective = settings.objective(self.module, self.vector.layout.channels_last)
        batch, named = self.minibatches.trial(), dict(self.module.named_parameters())
        unused = {name for name, parameter in named.items() if parameter.requires_grad}

        def note(name: str, gradient: Tensor) -> None:
            unused.discard(name)
            if gradient.layout is not torch.strided:
                raise BadInput.at(
                    "model",
                    f"the gradient of '{name}' is sparse, and nodes send dense ones; leave sparse=True out",
                )

        hooks = [named[name].register_hook(partial(note, name)) for name in unused]  # type: ignore[no-untyped-call]
        with self._unchanged():
            before = _kinds(self.module)
            for _ in range(2):
                objective(batch)[1].backward()  # type: ignore[no-untyped-call]
            varying = frozenset(
                name for name, kind in _kinds(self.module).items() if before.get(name) != kind
            )
        for hook in hooks:
            hook.remove()
        return Rehearsed(varying, frozenset(unused))

    @contextmanager
    def _unchanged(self) -> Iterator[None]:
        """A context in which the network trains, and which it leaves as it was."""
        self.vector.attach()
        state, vector = copied_state(self.module_state), self.vector.trained.clone()
        self.module.train()
        yield
        # Buffers that are mixed are in the vector.
        self.vector.adopt_replaced()
        self.vector.trained.copy_(vector)
        self.vector.gradient.zero_()
        self.module_state.load_state_dict(state)

    def rehearse(self) -> None:
        """Computes two gradients, because some defects only appear in the second; restores the network.

        Where the network is compiled, two for each shape of a batch, so that no round waits for that.
        """
        batches = self.minibatches.trials() if self.settings.compile else [self.minibatches.trial()]
        with self._unchanged():
            for batch in [batch for batch in batches for _ in range(2)]:
                with self.reducer.step(-1, -1):
                    self.reducer.backward(self.objective(batch)[1])

    async def train(self, round: int) -> TrainReport:
        """Makes this round's steps, and those of the schedule; raises RunFailed when a loss is not finite."""
        tally = self.begin(round)
        steps = self.steps_in(round)
        if self.private is not None:
            steps = self.private.begin(steps)
            if self.hooks.spends is not None:
                self.hooks.spends(self.private.after(steps))
        pace = self.hooks.pace
        clock = self.hooks.clock
        budget = TimeBudget(self.settings.seconds_per_round, clock)
        for _ in range(steps):
            if not budget.allows(tally.losses):
                break
            began, step = clock.now(), tally.steps
            # In virtual time a step takes none by itself, so its effect comes at its end.
            if pace is not None and clock.is_virtual:
                submitted = self.submit(tally)
                await pace.keep(began, round, step, self.beat)
                self._count(tally, submitted())
            else:
                await self.step(tally)
            if pace is not None and not clock.is_virtual:
                await pace.keep(began, round, step, self.beat)
        return self.finish(tally)

    def begin(self, round: int) -> Tally:
        """Begins the local steps of a round."""
        self.minibatches.begin_round()
        return Tally(round, self.rate_in(round))

    async def step(self, tally: Tally) -> None:
        """Makes one more local step of a round, in which other nodes of the process get their turn."""
        submitted = self.submit(tally)
        if self.hooks.pause is not None:
            await self.hooks.pause()
        self._count(tally, submitted())

    def submit(self, tally: Tally) -> SubmittedStep:
        """Begins one more local step of a round. Until its result is taken, nobody may write the vector."""
        return self.executor.submit(self, tally.round, tally.steps)

    def attach(self) -> None:
        """Makes the network that of this node as its last step has left it."""
        self.vector.attach()
        self.executor.bring_network_state(self)

    def compute(self, round: int, step: int) -> StepResult:
        """Computes a step of a round in this process; both numbers count from 0."""
        self.vector.attach()
        if not step:
            self.module.train()
        batches = self.batches(round, step)
        loss, is_skipped = self._step(round, step, batches)
        return StepResult(
            loss, is_skipped, count=sum(map(self.objective.count, batches)), samples=sum(map(len, batches))
        )

    def _count(self, tally: Tally, result: StepResult) -> None:
        """Adds a step to those of its round."""
        tally.losses.append(result.loss)
        tally.sizes.append(result.count)
        tally.samples += result.samples
        tally.skipped += result.is_skipped
        tally.steps += 1
        self.beat()
        if self.settings.schedule_step == "step":
            self._schedule()

    def finish(self, tally: Tally) -> TrainReport:
        """Ends the local steps of a round; raises RunFailed when a loss is not finite."""
        mean = self._mean(tally.round, tally.losses, tally.sizes)
        if self.settings.schedule_step == "round":
            self._schedule(mean)
        self.loss = mean
        return TrainReport(
            mean, tally.steps - tally.skipped, tally.samples, learning_rate=tally.learning_rate,
            epsilon=self.epsilon,
        )  # fmt: skip

    def skip(self, rounds: Sequence[int]) -> None:
        """Steps the scheduler for rounds in which this node did not take part."""
        per_step = self.settings.schedule_step == "step"
        for round in rounds:
            for _ in range(self.steps_in(round) if per_step else 1):
                self._schedule()

    def most_steps(self, round: int) -> int | None:
        # Given for rounds, they limit a window; a rank without samples makes no step in any window.
        limited = self.settings.steps_per_round is not None or self.settings.epochs_per_round is not None
        return (
            self.steps_in(round) if limited or not self.shard.size or not self.hooks.trains(round) else None
        )

    def steps_in(self, round: int) -> int:
        """The local steps that the settings have for this round."""
        if not self.hooks.trains(round):
            return 0
        per_epoch = self.minibatches.steps_per_epoch(self.settings.accumulate)
        return self.settings.steps(self.shard.rank, round, per_epoch)

    def batches(self, round: int, step: int) -> list[Batch]:
        """Takes the minibatches of a step, augmented by random numbers of their own."""
        batches = self.minibatches.several(self.settings.accumulate)
        if not self.augmentation:
            return batches
        return [
            augmented(batch, self.augmentation, self.shard.seed, round, self.shard.rank, step, index)
            for index, batch in enumerate(batches)
        ]

    def _step(self, round: int, step: int, batches: Sequence[Batch]) -> tuple[Tensor, bool]:
        """Makes one step of the optimizer; returns the loss before it and whether it was skipped."""
        seed = key(self.shard.seed, "step", round, self.shard.rank, step)
        compute = self._accumulate if self.private is None else self.private.gradient

        def closure() -> Tensor:
            self._seed(seed)
            self.vector.gradient.zero_()
            with self.reducer.step(round, step):
                loss = compute(batches)
            self.vector.adopt_replaced()
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
                    f"{self.place(round, step)}: the gradient is not finite in float16; training.amp: "
                    "bfloat16 has the range of float32"
                ) from None
            return skipped.loss, True
        return loss, False

    def _seed(self, number: int) -> None:
        """Seeds all global generators that code of this node may draw from."""
        if self._seeds_all:
            seed_generators(number, self._on_cpu)
        else:
            # Nothing of the package draws from others, and they take as long as a small step.
            (torch.default_generator.manual_seed if self._on_cpu else torch.manual_seed)(number)

    def prepare_evaluation(self, round: int) -> None:
        """Seeds the generators for an evaluation of the model after a round, and attaches the model."""
        self.attach()
        self._seed(key(self.shard.seed, "evaluate", round, self.shard.rank))

    def _accumulate(self, batches: Sequence[Batch]) -> Tensor:
        """Adds the gradients of these minibatches; returns the loss of all their samples, detached."""
        losses, shares = [], self.objective.shares(batches)
        for index, (batch, share) in enumerate(shares, start=1):
            is_last = index == len(shares)
            with nullcontext() if is_last else self.reducer.partial():
                outputs, loss = self.objective(batch)
                if not share:
                    # A mean over nothing is not a number, and its gradient neither.
                    loss = 0 * outputs.sum()
                elif share != 1.0:
                    loss = share * loss
                losses.append(loss.detach())
                self.reducer.backward(loss if self.scaler is None else self.scaler.scale * loss)
            if not is_last:
                self.beat()
        return sum(losses[1:], losses[0])

    def beat(self) -> None:
        """Shows that the node makes progress."""
        if self.hooks.beat is not None:
            self.hooks.beat()

    def _adjust(self, step: int) -> None:
        gradient = self.vector.gradient
        if self.hooks.adjust_gradient is not None:
            end = self.vector.layout.shared.numel
            self.hooks.adjust_gradient(gradient[:end], self.vector.trained[:end], step)
        if self.settings.clip_norm is not None:
            gradient.mul_((self.settings.clip_norm / (gradient.norm() + CLIP_EPSILON)).clamp(max=1.0))

    def _mean(self, round: int, losses: list[Tensor], sizes: list[float]) -> float | None:
        """The mean loss of a round; None without a step. Raises RunFailed when a loss is not finite."""
        if not losses:
            return None
        # Read once per round: reading each loss would make a GPU wait in every step.
        values = [loss.item() for loss in losses] if self._on_cpu else torch.stack(losses).tolist()
        for step, value in enumerate(values):
            if not math.isfinite(value):
                if not sizes[step]:
                    why = "the loss ignores all labels of a minibatch; set training.execution: alone"
                    raise RunFailed(f"{self.place(round, step)}: {why}")
                raise RunFailed(
                    f"{self.place(round, step)}: the loss is {value}; a learning rate below "
                    f"{self.learning_rate:g} or training.clip_norm would help"
                )
        if not sum(sizes):
            return None
        total = sum(map(self.objective.total, values, sizes))
        return self.reducer.mean(round, len(sizes) - 1, total, samples=sum(sizes))

    def place(self, round: int, step: int) -> str:
        """The rank and the step in words, for messages."""
        return f"rank {self.shard.rank}, round {round + 1}, step {step + 1}"

    def _schedule(self, loss: float | None = None) -> None:
        """Makes one step of the schedule, here and where steps are computed."""
        if self.scheduler is not None:
            self.step_scheduler(loss)
            self.executor.follow_schedule(self, loss)

    def step_scheduler(self, loss: float | None = None) -> None:
        """Makes one step of the schedule in this process; `loss`: the mean of the round, if there is one."""
        if isinstance(self.scheduler, ReduceLROnPlateau):
            if loss is not None:
                self.scheduler.step(loss)
        elif self.scheduler is not None:
            with warnings.catch_warnings():
                # A rank without samples follows the schedule although its optimizer never steps.
                warnings.filterwarnings("ignore", message="Detected call of `lr_scheduler.step")
                self.scheduler.step()

    def state_dict(self) -> dict[str, Any]:
        """Returns all that a resumed node needs except the vector; tensors are references, not copies."""
        return self.executor.state_of(self) | {"loss": self.loss}

    def local_state(self) -> dict[str, Any]:
        """Returns the state in this process, which is that of the node where it computes its steps."""
        self.vector.attach()
        return {
            "optimizer": self.executor.optimizer_state(self),
            "scheduler": self.scheduler.state_dict() if self.scheduler else {},
            "scaler": self.scaler.state_dict() if self.scaler else {},
            "minibatches": self.minibatches.state_dict(),
            **self.network_state(),
            "loss": self.loss,
            "private": self.private.state_dict() if self.private else {},
        }

    def network_state(self) -> dict[str, Any]:
        """Returns the module state of the network and of the loss; the vector must be attached."""
        return {"module": self.module_state.state_dict(), "loss_module": self._loss_state.state_dict()}

    def load_network_state(self, state: Mapping[str, Any]) -> None:
        """Continues from `network_state()`; the vector must be attached."""
        self.module_state.load_state_dict(state["module"])
        self._loss_state.load_state_dict(state["loss_module"])

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continues from `state_dict()`, bit for bit once the vector is restored, too."""
        self.vector.attach()
        self.executor.load_optimizer_state(self, state["optimizer"])
        if self.scheduler:
            self.scheduler.load_state_dict(state["scheduler"])
        if self.scaler:
            self.scaler.load_state_dict(state["scaler"])
        if self.private:
            self.private.load_state_dict(state["private"])
        self.minibatches.load_state_dict(state["minibatches"])
        self.loss = state["loss"]
        self.load_network_state(state)


def _kinds(module: nn.Module) -> dict[str, object]:
    """Returns shape, type and layout of each buffer."""
    return {
        name: buffer if buffer is None else (buffer.shape, buffer.dtype, buffer.layout)
        for name, buffer, _ in all_buffers(module)
    }
