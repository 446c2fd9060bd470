"""How the networks of a node compute: number formats, mixed precision, compilation."""

import importlib
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from decentnode.core.state import Stateful
from decentnode.core.vector import Precision
from decentnode.errors import BadInput
from decentnode.options import Positive

Network = Callable[..., Tensor]
AMP_TYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16}
BACKENDS = ("eager", "aot_eager")
"""Values of `compile` that capture a network without compiling it."""
FIRST_SCALE, LEAST_SCALE = 2.0**16, 2.0**-16
STEPS_BEFORE_GROWTH = 2000
"""Steps with finite gradients after which the scale doubles, as in torch.amp.GradScaler."""


@dataclass(frozen=True, kw_only=True)
class Computation:
    """The keys of `training` about how networks compute."""

    dtype: Precision = "float32"
    """The format of the vector's numbers, from the gradient to the wire."""
    amp: Literal["bfloat16", "float16"] | None = None
    """Mixed precision: the format in which most operations of a network compute; its weights have `dtype`."""
    compile: bool | Literal["default", "reduce-overhead", "max-autotune", "eager", "aot_eager"] = False
    """torch.compile of training steps, by its mode (true: default); eager and aot_eager only capture."""

    threads: Positive | Literal["auto"] = "auto"
    """Threads of torch in each process, on which the last bits of a model depend; auto: OMP_NUM_THREADS if
    that is set, otherwise the processors of the machine divided by its nodes. A resumed run keeps its own.
    """

    def __post_init__(self) -> None:
        if self.amp is not None and self.dtype != "float32":
            effect = "computes the same without amp" if self.dtype == "bfloat16" else "would lose its digits"
            raise BadInput.at("training.amp", f"needs training.dtype: float32; {self.dtype} {effect}")

    def autocast(self, device: torch.device) -> AbstractContextManager[object]:
        """The context of forward passes and losses on a device."""
        return nullcontext() if self.amp is None else torch.autocast(device.type, AMP_TYPES[self.amp])

    def prepare(self) -> None:
        """Imports the compiler where it is used, for this process and those that are forked later."""
        if self.compile is not False:
            importlib.import_module("torch._inductor.compile_fx")
            # Without that, each process would start others that compile.
            torch._inductor.config.compile_threads = 1

    def warm_up(self) -> None:
        """Compiles a small function on the CPU, where networks are compiled.

        It loads what the compiler imports only when it is used, in seconds, once for processes forked later.
        """
        if self.compile is not False:
            # A function of its own: the compiler remembers the shapes that a function was called with.
            doubled = self.compiled(lambda x: 2 * x)(torch.ones(8, requires_grad=True))
            torch.autograd.backward(doubled.sum())

    def compiled(self, network: Network) -> Network:
        """Returns what training calls instead of the network; it is compiled in its first calls."""
        if self.compile is False:
            return network
        mode = "default" if self.compile is True else self.compile
        how = {"backend": mode} if mode in BACKENDS else {"mode": mode}
        made: Network = torch.compile(network, **how)  # type: ignore[call-overload]

        def call(*fields: Tensor, **labels: Tensor) -> Tensor:
            for field in (*fields, *labels.values()):
                # Otherwise the code depends on which sizes of batches came first, and a resumed node could
                # round differently.
                torch._dynamo.maybe_mark_dynamic(field, 0)
            return made(*fields, **labels)

        return call

    def scaler(self) -> "LossScaler | None":
        """A new scaler of losses, where gradients would round to zero without one."""
        return LossScaler() if self.amp == "float16" else None


class SkippedStep(Exception):
    """Leaves a step of an optimizer before it changes anything, because the gradient is not finite."""

    def __init__(self, loss: Tensor) -> None:
        super().__init__("the gradient is not finite")
        self.loss = loss


class LossScaler(Stateful):
    """Scales losses so that gradients in float16 do not round to zero (Micikevicius et al., 2018, sec. 3.2).

    The rule of torch.amp.GradScaler, for one flat gradient and for optimizers that call a closure: the scale
    halves after a gradient that is not finite, and doubles after 2,000 steps without one.
    """

    state: ClassVar = ("scale", "finite_steps")

    def __init__(self) -> None:
        self.scale = FIRST_SCALE
        self.finite_steps = 0

    def unscale(self, gradient: Tensor) -> bool:
        """Divides the gradient by the scale in place; returns whether it is finite, and adapts the scale."""
        gradient.div_(self.scale)
        is_finite = bool(gradient.isfinite().all())
        self.finite_steps = self.finite_steps + 1 if is_finite else 0
        if not is_finite:
            self.scale /= 2
        elif self.finite_steps == STEPS_BEFORE_GROWTH:
            self.scale, self.finite_steps = 2 * self.scale, 0
        return is_finite

    @property
    def is_exhausted(self) -> bool:
        """Whether gradients were not finite at any scale that is of use."""
        return self.scale < LEAST_SCALE
