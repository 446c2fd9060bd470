"""Copies of networks that compute what the original does, whatever torch's own copy leaves out.

`copy.deepcopy` refuses tensors that were computed from others (`torch.nn.utils.weight_norm` and pruning keep
such tensors as plain attributes), leaves out the hooks of parameters, and shares functions: a hook with a
module in its closure would read or write the original.
"""

import copy
import types
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from decentnode.core.text import first_line
from decentnode.errors import BadInput, is_out_of_memory

Memo = dict[int, Any]
"""The copy of each object by its id, as `copy.deepcopy` keeps it."""
COPIED_IN_CLOSURES = (nn.Module, Tensor, list, dict, set, types.FunctionType, types.MethodType)
"""Types copied in closures: a function may refer to a part of the network; all else is shared."""
COPIED_BY_TORCH = (torch.strided, torch.sparse_coo)
"""Layouts of the tensors that `copy.deepcopy` copies."""


class ComputedTensors(TorchFunctionMode):
    """Copies values of tensors that were computed from others, and of those in compressed sparse layouts."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Iterable[type], args: Any = (), kwargs: Any = None
    ) -> Any:
        if func is Tensor.__deepcopy__ and not (args[0].is_leaf and args[0].layout in COPIED_BY_TORCH):
            tensor, memo = args
            return memo.setdefault(id(tensor), tensor.detach().clone())
        return func(*args, **(kwargs or {}))


def copied(network: nn.Module, gradient_hooks: bool = True) -> nn.Module:
    """A network of its own memory with the same hooks; raises BadInput that names what cannot be copied.

    `gradient_hooks`: with those of its parameters, too.
    """
    memo: Memo = {}
    try:
        with ComputedTensors():
            made = copy.deepcopy(network, memo)
            if gradient_hooks:
                _copy_hooks(network, memo)
            _copy_functions(made, memo)
    except Exception as error:  # the user's own classes may raise anything
        if isinstance(error, BadInput) or is_out_of_memory(error):
            raise
        raise BadInput.at(
            "model",
            f"{_culprit(network)} cannot be copied for each node ({first_line(error)}); make it when "
            "it is used, or define __deepcopy__",
        ) from error
    return made


def _copy_hooks(network: nn.Module, memo: Memo) -> None:
    """Gives copies of parameters and buffers the hooks of their gradients."""
    for tensor in (*network.parameters(), *network.buffers()):
        made = memo.get(id(tensor))
        if made is None or made is tensor:
            continue
        # `register_hook` has the form for both: a function of the gradient.
        for hook in (getattr(tensor, "_backward_hooks", None) or {}).values():
            made.register_hook(_rebound(hook, memo))
        for hook in (getattr(tensor, "_post_accumulate_grad_hooks", None) or {}).values():
            made.register_post_accumulate_grad_hook(_rebound(hook, memo))


def _copy_functions(made: nn.Module, memo: Memo) -> None:
    """Makes functions in attributes and hooks of the copy refer to the copy."""
    for part in made.modules():
        for name, value in vars(part).items():
            if isinstance(value, types.FunctionType):
                vars(part)[name] = _rebound(value, memo)
            elif isinstance(value, dict):
                value |= {k: _rebound(v, memo) for k, v in value.items() if isinstance(v, types.FunctionType)}
            elif isinstance(value, list):
                value[:] = [_rebound(v, memo) if isinstance(v, types.FunctionType) else v for v in value]


def _rebound(function: Any, memo: Memo) -> Any:
    """The function, or bound method, with copies of the parts of a network that its closure refers to."""
    if isinstance(function, types.MethodType):
        return copy.deepcopy(function, memo)
    if not isinstance(function, types.FunctionType) or not function.__closure__:
        return function
    if id(function) in memo:
        return memo[id(function)]
    cells = tuple(types.CellType() for _ in function.__closure__)
    made = types.FunctionType(
        function.__code__, function.__globals__, function.__name__, function.__defaults__, cells
    )
    made.__kwdefaults__, made.__dict__ = function.__kwdefaults__, {**function.__dict__}
    # First: a function may refer to itself.
    memo[id(function)] = made
    # `copy.deepcopy` keeps what it has copied alive in this way, so that no id is used again.
    memo.setdefault(id(memo), []).append(function)
    for cell, original in zip(cells, function.__closure__, strict=True):
        try:
            content = original.cell_contents
        except ValueError:  # not assigned yet
            continue
        if isinstance(content, types.FunctionType | types.MethodType):
            content = _rebound(content, memo)
        elif isinstance(content, COPIED_IN_CLOSURES):
            content = copy.deepcopy(content, memo)
        cell.cell_contents = content
    return made


def _culprit(network: nn.Module) -> str:
    """The first attribute of a module that cannot be copied alone."""
    for path, part in network.named_modules():
        for name, value in vars(part).items():
            if name == "_modules":
                continue
            try:
                with ComputedTensors():
                    copy.deepcopy(value)
            except Exception:  # as above
                return f"'{f'{path}.' if path else ''}{name}'"
    return type(network).__name__
