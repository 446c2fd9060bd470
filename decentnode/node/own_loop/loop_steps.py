"""The steps of somebody's loop, as the local steps of a participant."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.optim import LBFGS, Optimizer

from decentnode.core.text import counted
from decentnode.core.vector import AdjustGradient, Vector
from decentnode.errors import BadInput, RunFailed
from decentnode.node.own_loop.turn import Turn
from decentnode.training.local_steps import LocalSteps, Tally, TrainReport
from decentnode.training.pace import Pace

MOST_UNCOUNTED = 1000
"""Calls without a step of the optimizer; more of them accumulate no gradients, but another one steps."""
MOST_CHANGED = 3
"""Such calls in sequence although the model has changed."""
MOST_UNCHANGED = 10
"""Steps of an optimizer that leave the model as it is."""
Arguments = tuple[Any, ...]
Keywords = dict[str, Any]


class LoopSteps(LocalSteps):
    """Gives the turn to a loop for the steps of each round; what a step is, the loop decides."""

    def __init__(
        self, vector: Vector, place: str, steps_in: Callable[[int], float], trains: Callable[[int], bool],
        turn: Turn, adjust_gradient: AdjustGradient | None = None, pace: Pace | None = None,
        beat: Callable[[], None] = lambda: None, check: Callable[[], None] = lambda: None,
        are_parameters: bool = True,
    ) -> None:  # fmt: skip
        """`place`: what messages call it; `steps_in`: the steps of a round; `pace`: of steps in rounds.

        `trains`: whether a round is one of steps, also on a server, which makes none.
        `are_parameters`: whether the vector's tensors are those of optimizers, and not copies of them.
        `check`: raises DecentnodeError after steps that the model must not have made.
        """
        self.vector = vector
        self.turn = turn
        self.optimizers: list[Optimizer] = []
        """The optimizers that the loop has shown; the first one counts the steps."""
        self.state: LoopState = LoopState()
        self.rounds = 0
        """The rounds that are done."""
        self.has_stepped = False
        """Whether the first optimizer has made a step that is not counted yet."""
        self._place = place
        self._steps_in = steps_in
        self._trains = trains
        self._adjust_gradient = adjust_gradient
        self._pace = pace
        self._beat = beat
        self._check = check
        self._are_parameters = are_parameters
        self._losses: list[Tensor | float] = []
        self._adjusted = 0
        """Gradients of this round that the scheme has changed."""
        self._rate: float | None = None
        """The learning rate of the round's first step; None: it is still to come."""
        self._uncounted = self._changed = self._unchanged = 0
        self._versions = self._versions_now()
        self._is_trained = False
        """Whether a round's steps have changed the vector."""
        self._before: tuple[float, ...] = ()

    # What the loop does.

    def use(self, optimizer: Optimizer, before_step: Callable[[], None] = lambda: None) -> None:
        """Takes an optimizer of the loop: its steps are seen from here on, and its learning rate is known.

        `before_step` is called before each of its steps. Raises BadInput where the scheme cannot adjust its
        gradients.
        """
        adjusts = self._adjust_gradient is not None
        if adjusts and isinstance(optimizer, LBFGS):
            raise BadInput(
                f"{self._place}: LBFGS computes gradients inside its step, where the scheme cannot change "
                "them; use another optimizer, or another scheme"
            )
        if adjusts and self.optimizers:
            raise BadInput(f"{self._place}: this scheme changes the gradients of one optimizer alone")
        trained = {id(p) for group in optimizer.param_groups for p in group["params"]}
        tensors = zip(self.vector.layout.entries, self.vector.tensors(), strict=True)
        shared = [tensor for entry, tensor in tensors if not (entry.is_buffer or entry.is_personal)]
        if adjusts and self._are_parameters and not all(id(tensor) in trained for tensor in shared):
            raise BadInput(f"{self._place}: the optimizer has not all parameters that are shared")
        own = [id(tensor) for tensor in shared if tensor.requires_grad]
        if own and not self.optimizers and self._are_parameters and trained.isdisjoint(own):
            raise BadInput(
                f"{self._place}: the optimizer has none of the parameters that are shared; make it of the "
                "model that joins"
            )
        if not self.optimizers:
            optimizer.register_step_pre_hook(partial(self._before_step, before_step))
            optimizer.register_step_post_hook(self._after_step)
        else:
            # Its steps change the model, too, and count for nothing.
            optimizer.register_step_post_hook(self._after_another)
        self.optimizers.append(optimizer)
        self.state.give(len(self.optimizers) - 1, optimizer)

    def is_step(self) -> bool:
        """Whether the loop has made a step since the last one; RunFailed: another optimizer has."""
        if not self.optimizers or self.has_stepped:
            return True
        # Gradients are accumulated, or a step was skipped because they were not finite.
        versions = self._versions_now()
        self._changed = self._changed + 1 if versions != self._versions else 0
        self._versions = versions
        self._uncounted += 1
        if self._changed >= MOST_CHANGED or self._uncounted >= MOST_UNCOUNTED:
            raise self.lacks_steps()
        return False

    def lacks_steps(self) -> RunFailed:
        """Returns the error of a loop whose optimizer is not the one that it has shown."""
        return RunFailed(
            f"{self._place}: {counted(self._uncounted, 'call')} of step() without a step of the optimizer "
            "that joined; show the node the one that steps: node.use(optimizer), or join without"
        )

    @property
    def never_steps(self) -> bool:
        """Whether the loop has called for steps, and its optimizer has made none."""
        return self._uncounted > 0 and not self.rounds and not self.turn.made

    def count(self, loss: Tensor | float | None = None) -> None:
        """Counts a step that the loop has made, with its loss."""
        self.has_stepped = False
        self._uncounted = self._changed = 0
        self._versions = self._versions_now()
        self.turn.made += 1
        if loss is not None:
            self._losses.append(loss.detach() if isinstance(loss, Tensor) else loss)
        self._beat()

    def _before_step(
        self, before_step: Callable[[], None], optimizer: Optimizer, arguments: Arguments, named: Keywords
    ) -> tuple[Arguments, Keywords] | None:
        before_step()
        if self._rate is None:
            # Here, because the loop may show its optimizer, or change the rate, after the round's start.
            self._rate = self.learning_rate
        if self._adjust_gradient is None or self.turn.is_over:
            return None
        # The gradient of a closure is computed inside of the step; all optimizers but LBFGS call it once.
        closure = arguments[1] if len(arguments) > 1 else named.get("closure")
        if closure is None:
            self._adjust(optimizer)
            return None

        def adjusted() -> Any:
            loss = closure()
            self._adjust(optimizer)
            return loss

        others = {name: value for name, value in named.items() if name != "closure"}
        return (arguments[0], adjusted, *arguments[2:]), others

    def _adjust(self, optimizer: Optimizer) -> None:
        assert self._adjust_gradient is not None
        # A fused optimizer divides by the scale inside its step.
        if getattr(optimizer, "grad_scale", None) is not None:
            raise RunFailed(
                f"{self._place}: the gradient is still scaled; call scaler.unscale_(optimizer) before the "
                "step"
            )
        vector = self.vector
        gradient, end = vector.gather_gradient(), vector.layout.shared.numel
        self._adjust_gradient(gradient[:end], vector.trained[:end], self._adjusted)
        vector.scatter_gradient()
        self._adjusted += 1

    def _after_step(self, optimizer: Optimizer, *_: Any) -> None:
        # A fused optimizer is called for a step that a GradScaler skips, too, and has its finding then.
        found_inf = getattr(optimizer, "found_inf", None)
        self.has_stepped |= found_inf is None or not bool(found_inf)

    def _after_another(self, *_: Any) -> None:
        self._versions = self._versions_now()

    def _versions_now(self) -> int:
        return sum(tensor._version for tensor in self.vector.tensors())

    def _fingerprint(self) -> tuple[float, ...]:
        """Returns numbers that any step changes."""
        values = self.vector.trained
        return float(values.sum(dtype=torch.float64)), float(values.abs().sum(dtype=torch.float64))

    def _check_trained(self, tally: Tally) -> None:
        """Raises RunFailed where steps of the optimizer leave the model as it is: the loop trains another."""
        # A scheme that changes gradients may leave none, and make the step itself.
        if self._is_trained or not self.optimizers or not tally.steps or self._adjust_gradient is not None:
            return
        self._is_trained = self._fingerprint() != self._before
        self._unchanged += int(tally.steps) if tally.learning_rate else 0
        if not self._is_trained and self._unchanged >= MOST_UNCHANGED:
            raise RunFailed(
                f"{self._place}: {self._unchanged} steps have not changed the model that joined; the loop "
                "trains another one, such as a copy"
            )

    # What the participant asks.

    def rate_in(self, round: int) -> float:
        return self.learning_rate if self._trains(round) else 0.0

    @property
    def learning_rate(self) -> float:
        """The rate of the first optimizer's first group; 0 where the loop has shown none."""
        return float(self.optimizers[0].param_groups[0]["lr"]) if self.optimizers else 0.0

    async def train(self, round: int) -> TrainReport:
        tally, steps = self.begin(round), self._steps_in(round)
        if steps and self._pace is None:
            tally.steps = await self.turn.steps(steps)
        while self._pace is not None and tally.steps < steps:
            began = self._pace.clock.now()
            if self._pace.clock.is_virtual:
                # In virtual time a step takes none by itself, so its effect comes at its end.
                await self._pace.keep(began, round, tally.steps, self._beat)
            if not await self.turn.steps(1):
                break
            tally.steps += 1
            if not self._pace.clock.is_virtual:
                await self._pace.keep(began, round, tally.steps - 1, self._beat)
        return self.finish(tally)

    def begin(self, round: int) -> Tally:
        self.rounds, self._adjusted, self._rate = round, 0, None
        if self.optimizers and not self._is_trained:
            self._before = self._fingerprint()
        return Tally(round, self.rate_in(round))

    async def step(self, tally: Tally) -> None:
        tally.steps += await self.turn.steps(1)
        self.vector.adopt_replaced()

    def finish(self, tally: Tally) -> TrainReport:
        self._check()
        self.vector.adopt_replaced()
        self._check_trained(tally)
        losses = [float(loss) for loss in self._losses]
        self._losses.clear()
        for loss in losses:
            if not math.isfinite(loss):
                raise RunFailed(
                    f"{self._place}, round {tally.round + 1}: the loss is {loss}; a lower learning rate or "
                    "clipping of gradients would help"
                )
        self.loss = sum(losses) / len(losses) if losses else None
        rate = tally.learning_rate if self._rate is None else self._rate
        return TrainReport(self.loss, tally.steps, samples=0, learning_rate=rate)

    async def left(self) -> None:
        self.turn.end()
        await self.turn.left()

    def most_steps(self, round: int) -> int | None:
        steps = self._steps_in(round)
        return None if math.isinf(steps) else int(steps)

    def state_dict(self) -> dict[str, Any]:
        return {"loss": self.loss, "loop": self.state.of(self.optimizers)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.loss = state["loss"]
        self.state.load(state["loop"], self.optimizers)


@dataclass
class LoopState:
    """The state of a loop in the checkpoints of a run: of its optimizers, and what else it keeps there."""

    kept: dict[str, Any] = field(default_factory=dict)
    """Objects with `state_dict` and `load_state_dict`, by name."""
    _loaded: dict[str, Any] = field(default_factory=dict, init=False)
    """What was loaded for objects that the loop has not shown yet."""

    def keep(self, name: str, kept: Any) -> None:
        """Saves an object with each checkpoint; it is given what was saved for it."""
        self.kept[name] = kept
        if name in self._loaded:
            kept.load_state_dict(self._loaded.pop(name))

    def give(self, index: int, optimizer: Optimizer) -> None:
        """Gives an optimizer what was saved for it."""
        saved = self._loaded.pop(f"optimizer.{index}", None)
        if saved is not None:
            optimizer.load_state_dict(saved)

    def of(self, optimizers: Sequence[Optimizer]) -> dict[str, Any]:
        """Returns the states of everything; tensors are references."""
        shown = {f"optimizer.{i}": optimizer for i, optimizer in enumerate(optimizers)}
        return self._loaded | {name: one.state_dict() for name, one in (self.kept | shown).items()}

    def load(self, saved: Mapping[str, Any], optimizers: Sequence[Optimizer]) -> None:
        """Loads the states of everything that the loop has shown, and keeps the others."""
        self._loaded = dict(saved)
        for name, kept in self.kept.items():
            self.keep(name, kept)
        for index, optimizer in enumerate(optimizers):
            self.give(index, optimizer)
