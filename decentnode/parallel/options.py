"""All options of DecentralizedDataParallel (docs/library.md)."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from math import inf
from numbers import Real
from types import NoneType
from typing import TYPE_CHECKING, Any, Literal, get_args

import torch
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from decentnode.config.type_check import describe, known_names, show
from decentnode.errors import BadInput
from decentnode.graph.strength import Strength, are_points, is_share, strength_in

if TYPE_CHECKING:
    from decentnode.parallel.mixture import MixInput

Scheme = Literal["communicate_while_adapt", "adapt_then_combine"]
StepFrom = Literal["own", "mix"]
UpdateIn = Literal["backward", "step"]
Buffers = Literal["local", "average", "mix"]
OnLoss = Literal["stop", "continue"]
CHOICES: dict[str, Any] = {
    "scheme": Scheme,
    "step_from": StepFrom,
    "update_in": UpdateIn,
    "buffers": Buffers,
    "on_loss": OnLoss,
}
FUNCTIONS = {
    "scheduler": "a function that makes an LRScheduler of an optimizer",
    "before_mixing": "a function of a MixInput",
}
"""Options that may be None, and must be callable otherwise."""
MOST = {"bucket_mb": 1e9, "deadline": 1e9, "clip_norm": inf}
"""Limits of positive numbers: a petabyte, and thirty years."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """Every keyword of `DecentralizedDataParallel` with its default."""

    scheme: Scheme = "communicate_while_adapt"
    """x(t+1) = W x(t) + d(x(t)), exchanged while the step is computed; or x(t+1) = W (x(t) + d(x(t)))."""
    step_from: StepFrom = "own"
    """Where d starts with communicate_while_adapt: at x(t), or at W x(t), with the gradient at x(t) in both.
    They differ where weights decay.
    """
    update_in: UpdateIn = "backward"
    """Whether buckets are updated as soon as their gradients are ready, or all in `optimizer.step()`."""
    mixing_strength: Strength = 1.0
    """a of (1 - a) x + a W x: a number, pairs of step and number with straight lines between them, or a
    function of the step; the same on all ranks.
    """
    bucket_mb: float = 25.0
    """Megabytes after which a bucket is closed; results do not depend on it."""
    in_flight: int | None = None
    """The number of buckets exchanged at a time, which bounds the memory that they hold; None: all."""
    clip_norm: float | None = None
    """The largest norm of this rank's whole gradient."""
    scaler: torch.amp.GradScaler | None = None
    """Unscales, and skips a step whose gradient is not finite; for `update_in="backward"`."""
    scheduler: Callable[[Optimizer], LRScheduler] | None = None
    """Makes the schedule of an optimizer's learning rate, stepped once per step."""
    before_mixing: "Callable[[MixInput], None] | None" = None
    """A function that gets each MixInput before it is mixed, and may change it."""
    buffers: Buffers = "average"
    """Float buffers: never exchanged; part of averages over all ranks; or also mixed in every step."""
    broadcast: bool = True
    """Whether all ranks start with the parameters and buffers of rank 0."""
    deadline: float = 300.0
    """Timeout for a silent peer, in seconds."""
    keep_freed_memory: bool = True
    """Whether malloc keeps the memory that gradients free, 128 MB at most."""
    on_loss: OnLoss = "stop"
    """Whether the loss of a peer is an error, or the own model gets its weight."""
    communication: str | Mapping[str, Any] = "auto"
    """The name of a transport, or a mapping with its `name` and options."""

    def __post_init__(self) -> None:
        for name, hint in CHOICES.items():
            if getattr(self, name) not in get_args(hint):
                raise _unfit(name, describe(hint), getattr(self, name))
        for name, most in MOST.items():
            value = getattr(self, name)
            if value is not None and not (isinstance(value, int | float) and value > 0):
                raise _unfit(name, "a number > 0", value)
            if value is not None and value > most:
                raise _unfit(name, f"at most {most:g}", value)
        if self.in_flight is not None and not (isinstance(self.in_flight, int) and self.in_flight > 0):
            raise _unfit("in_flight", "a whole number > 0 or None", self.in_flight)
        a = self.mixing_strength
        if not (callable(a) or is_share(a) or are_points(a)):
            raise _unfit(
                "mixing_strength", "a number from 0 to 1, pairs of step and number, or a function", a
            )
        if self.scaler is not None and not isinstance(self.scaler, torch.amp.GradScaler):
            raise _unfit("scaler", "a torch.amp.GradScaler or None", self.scaler)
        for name, wanted in FUNCTIONS.items():
            if getattr(self, name) is not None and not callable(getattr(self, name)):
                raise _unfit(name, f"{wanted}, or None", getattr(self, name))
        if self.step_from == "mix" and self.scheme != "communicate_while_adapt":
            raise BadInput("step_from='mix' is for scheme='communicate_while_adapt'; leave it out")
        if self.update_in == "step" and (self.scaler is not None or self.clip_norm is not None):
            raise BadInput(
                "scaler and clip_norm are for update_in='backward'; with 'step' the loop unscales and clips"
            )

    @classmethod
    def read(cls, words: Mapping[str, Any]) -> "Options":
        """The options from these keywords; raises BadInput."""
        known = [field.name for field in fields(cls)]
        for name in words:
            if name not in known:
                raise BadInput(f"DecentralizedDataParallel has no option '{name}'{known_names(name, known)}")
        return cls(**words)

    def strength(self, step: int) -> float:
        """The strength a in this step."""
        a = strength_in(step, self.mixing_strength)
        if not is_share(a):
            raise BadInput(f"mixing_strength: gives {in_python(a)} for step {step}; it must be from 0 to 1")
        return float(a)


def _unfit(name: str, wanted: str, value: Any) -> BadInput:
    return BadInput(f"{name}: must be {wanted}, not {in_python(value)}")


def in_python(value: Any) -> str:
    """A value in Python notation."""
    if isinstance(value, Real | NoneType):
        return str(value)
    known = isinstance(value, str | list | tuple | dict)
    return show(value) if known else f"a value of type {type(value).__name__}"
