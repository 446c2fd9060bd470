"""The steps of somebody's loop, as the local steps of a participant."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from torch import Tensor
from torch.optim import LBFGS, Optimizer

from decentnode.core.vector import AdjustGradient, Vector
from decentnode.errors import BadInput, RunFailed
from decentnode.node.own_loop.turn import Turn
from decentnode.training.local_steps import LocalSteps, Tally, TrainReport
from decentnode.training.pace import Pace

Arguments = tuple[Any, ...]
Keywords = dict[str, Any]


class LoopSteps(LocalSteps):
    """Gives the turn to a loop for the steps of each round; what a step is, the loop decides."""

    def __init__(
        self, vector: Vector, place: str, steps_in: Callable[[int], float], turn: Turn,
        adjust_gradient: AdjustGradient | None = None, pace: Pace | None = None,
        beat: Callable[[], None] = lambda: None, check: Callable[[], None] = lambda: None,
        are_parameters: bool = True,
    ) -> None:  # fmt: skip
        """`place`: what messages call it; `steps_in`: the steps of a round; `pace`: of steps in rounds.

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
        self._adjust_gradient = adjust_gradient
        self._pace = pace
        self._beat = beat
        self._check = check
        self._are_parameters = are_parameters
        self._losses: list[Tensor | float] = []
        self._adjusted = 0
        """Gradients of this round that the scheme has changed."""

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
        if not self.optimizers:
            optimizer.register_step_pre_hook(partial(self._before_step, before_step))
            optimizer.register_step_post_hook(self._after_step)
        self.optimizers.append(optimizer)
        self.state.give(len(self.optimizers) - 1, optimizer)

    def count(self, loss: Tensor | float | None = None) -> None:
        """Counts a step that the loop has made, with its loss."""
        self.has_stepped = False
        self.turn.made += 1
        if loss is not None:
            self._losses.append(loss.detach() if isinstance(loss, Tensor) else loss)
        self._beat()

    def _before_step(
        self, before_step: Callable[[], None], optimizer: Optimizer, arguments: Arguments, named: Keywords
    ) -> tuple[Arguments, Keywords] | None:
        before_step()
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
                f"{self._place}: the gradient is still scaled; call scaler.unscale_(optimizer) before the step"
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

    # What the participant asks.

    def rate_in(self, round: int) -> float:
        return self.learning_rate if self._steps_in(round) else 0.0

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
        self.rounds, self._adjusted = round, 0
        return Tally(round, self.rate_in(round))

    async def step(self, tally: Tally) -> None:
        tally.steps += await self.turn.steps(1)
        self.vector.adopt_replaced()

    def finish(self, tally: Tally) -> TrainReport:
        self._check()
        self.vector.adopt_replaced()
        losses = [float(loss) for loss in self._losses]
        self._losses.clear()
        for loss in losses:
            if not math.isfinite(loss):
                raise RunFailed(
                    f"{self._place}, round {tally.round + 1}: the loss is {loss}; a lower learning rate or "
                    "clipping of gradients would help"
                )
        self.loss = sum(losses) / len(losses) if losses else None
        return TrainReport(self.loss, tally.steps, samples=0, learning_rate=tally.learning_rate)

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
