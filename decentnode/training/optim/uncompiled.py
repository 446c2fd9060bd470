"""Torch's optimizers without torch's compiler.

Torch tells its compiler, `torch._dynamo`, to leave methods of its optimizers alone. For that it imports the
compiler: when an optimizer is made, in each step, when its state is read. The import takes about as long as
that of torch itself, also where nothing is compiled. `uncompiled` makes a subclass that has these methods
without it. Torch's own classes and `sys.modules` stay as they are.

It depends on private decorators of torch (2.6 to 2.13), which keep the method itself in `__wrapped__`:

- `torch._disable_dynamo` does no more than that: add_param_group, zero_grad, state_dict, load_state_dict;
- `_use_grad_for_differentiable` sets the grad mode, too: step of SGD, Adam and most others.

What they made is recognized by its code, and nothing else is changed. So an optimizer of another version of
torch, or of another package, works as well, but may import the compiler. A process that forks nodes makes a
`trial_step` before. That import then happens there, once for all of them.
"""

import functools
from collections.abc import Callable
from types import CodeType
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer, optimizer

Method = Callable[..., Any]
MakeOptimizer = Callable[..., Optimizer]
"""A class of optimizers, or a function that makes one."""


@functools.cache
def uncompiled(cls: MakeOptimizer) -> MakeOptimizer:
    """A subclass whose methods do the same and import no compiler; `cls` itself where none is to change."""
    methods = {name: plain for name in dir(cls) if (plain := _plain(getattr(cls, name))) is not None}
    if not isinstance(cls, type) or not methods:
        return cls
    # Its name is in messages and profiles.
    return type(cls.__name__, (cls,), {"__module__": cls.__module__, "__doc__": cls.__doc__, **methods})


def trial_step(make: MakeOptimizer, dtype: torch.dtype) -> dict[str, Any]:
    """The state of an optimizer after a step on four parameters; it is saved and loaded, too."""
    # A matrix, which every optimizer takes.
    parameter = nn.Parameter(torch.zeros(2, 2, dtype=dtype))
    parameter.grad = torch.zeros_like(parameter)
    trial = make([parameter])
    trial.step(lambda: 0.0)
    state = trial.state_dict()
    trial.load_state_dict(state)
    return state


def _made_by(place: Any, decorator: str) -> CodeType | None:
    """The code of what a decorator makes of a function; None where torch has no such decorator."""
    try:
        code: CodeType = getattr(place, decorator)(lambda: None).__code__
    except (AttributeError, TypeError):
        return None
    return code


_MARKED = _made_by(torch, "_disable_dynamo")
_IN_GRAD_MODE = _made_by(optimizer, "_use_grad_for_differentiable")
_PROFILED = _made_by(Optimizer, "profile_hook_step")


def _is_by(code: CodeType | None, method: Any) -> bool:
    return code is not None and getattr(method, "__code__", None) is code


def _plain(method: Any) -> Method | None:
    """The method without the compiler; None where it has none of torch's two decorators."""
    if _is_by(_PROFILED, method):
        # Torch adds this to the step of a class when it makes an optimizer of it, and so to ours.
        method = method.__wrapped__
    if _is_by(_IN_GRAD_MODE, method):
        return _in_grad_mode(method.__wrapped__)
    if _is_by(_MARKED, method):
        plain: Method = method.__wrapped__
        return plain
    return None


def _in_grad_mode(step: Method) -> Method:
    """The step as torch's decorator calls it: with gradients only where `differentiable` asks for them."""

    @functools.wraps(step)
    def call(self: Optimizer, *args: Any, **kwargs: Any) -> Any:
        with torch.set_grad_enabled(self.defaults["differentiable"]):
            return step(self, *args, **kwargs)

    return call
