"""Copies of networks that compute what the original does, whatever torch's own copy leaves out.

`copy.deepcopy` refuses tensors that were computed from others (`torch.nn.utils.weight_norm` and pruning keep
such tensors as plain attributes), leaves out the hooks of parameters, and shares functions and weak
references: a hook with a module in its closure would read or write the original, and a replaced `forward`
would train it.
"""

import copy
import gc
import types
import weakref
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from decentnode.core.text import first_line
from decentnode.errors import BadInput, is_out_of_memory

COPIED_IN_CLOSURES = (nn.Module, Tensor, list, dict, set)
"""Types copied in closures whatever they hold: each copy of the function has a state of its own."""
COPIED_BY_TORCH = (torch.strided, torch.sparse_coo)
"""Layouts of the tensors that `copy.deepcopy` copies."""
NOT_FOLLOWED = (type, types.ModuleType, types.CodeType, str, bytes, int, float, complex)
"""Types of which nothing leads to a network: what a class or a Python module refers to is shared."""
OF_C = (types.BuiltinMethodType, types.MethodWrapperType)


class Memo(dict[int, Any]):
    """The copy of each object by its id, as `copy.deepcopy` keeps it."""

    def __init__(self) -> None:
        super().__init__()
        self.made = set[int]()
        """The ids of the copies."""

    def __setitem__(self, original_id: int, made: Any) -> None:
        super().__setitem__(original_id, made)
        self.made.add(id(made))

    def keep(self, original: Any, made: Any) -> None:
        """Notes a copy that `copy.deepcopy` has not made."""
        self[id(original)] = made
        # `copy.deepcopy` keeps what it has copied alive in this way, so that no id is used again.
        self.setdefault(id(self), []).append(original)

    @property
    def originals(self) -> list[Any]:
        """What was copied."""
        kept: list[Any] = self.get(id(self), [])
        return kept


class ComputedTensors(TorchFunctionMode):
    """Copies values of tensors that were computed from others, and of those in compressed sparse layouts."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Iterable[type], args: Any = (), kwargs: Any = None
    ) -> Any:
        if func is Tensor.__deepcopy__ and not (args[0].is_leaf and args[0].layout in COPIED_BY_TORCH):
            tensor, memo = args
            if id(tensor) not in memo:
                memo[id(tensor)] = tensor.detach().clone()
            return memo[id(tensor)]
        return func(*args, **(kwargs or {}))


def deep_copy(value: Any, gradient_hooks: bool = True) -> Any:
    """Returns a copy of an object with networks in it, as `copied`; raises what their classes raise."""
    memo = Memo()
    with ComputedTensors():
        made = copy.deepcopy(value, memo)
        rebound = Rebinding(memo)
        for tensor in [part for part in memo.originals if gradient_hooks and isinstance(part, Tensor)]:
            # `register_hook` has the form for both: a function of the gradient.
            for hook in (getattr(tensor, "_backward_hooks", None) or {}).values():
                memo[id(tensor)].register_hook(rebound(hook))
            for hook in (getattr(tensor, "_post_accumulate_grad_hooks", None) or {}).values():
                memo[id(tensor)].register_post_accumulate_grad_hook(rebound(hook))
        return rebound(made)


def copied(network: nn.Module, gradient_hooks: bool = True) -> nn.Module:
    """A network of its own memory with the same hooks; raises BadInput that names what cannot be copied.

    `gradient_hooks`: with those of its parameters, too.
    """
    try:
        made: nn.Module = deep_copy(network, gradient_hooks)
    except Exception as error:  # the user's own classes may raise anything
        if isinstance(error, BadInput) or is_out_of_memory(error):
            raise
        raise BadInput.at(
            "model",
            f"{_culprit(network)} cannot be copied for each node ({first_line(error)}); make it when "
            "it is used, or define __deepcopy__",
        ) from error
    originals = {id(parameter) for parameter in network.parameters() if parameter.requires_grad}
    if shared := [name for name, parameter in made.named_parameters() if id(parameter) in originals]:
        raise BadInput.at(
            "model",
            f"a copy of {type(network).__name__} has the same '{shared[0]}' as the original, but each node "
            "trains its own; let __deepcopy__ copy it, or leave __deepcopy__ out",
        )
    return made


class Rebinding:
    """Makes what `copy.deepcopy` has shared with the original refer to the copy.

    That is functions (closures, default values and attributes), methods, weak references, and what these
    refer to, in whatever container or object of the copy they are.
    """

    def __init__(self, memo: Memo) -> None:
        self.memo = memo
        self._visited = set[int]()
        self._originals = set[int]()
        """The ids of the modules and tensors among the first `_searched` that were copied."""
        self._searched = 0

    def __call__(self, value: Any) -> Any:
        """The value as the copy has it; what was copied is changed in place."""
        if id(value) in self.memo:
            return self.memo[id(value)]
        if isinstance(value, types.FunctionType):
            return value if id(value) in self.memo.made else self._function(value)
        if isinstance(value, types.MethodType):
            parts = (value.__func__, value.__self__)
            made = tuple(map(self, parts))
            return value if _same(parts, made) else types.MethodType(*made)
        if isinstance(value, OF_C):
            owner = self(value.__self__)
            return value if owner is value.__self__ else getattr(owner, value.__name__)
        if isinstance(value, weakref.ReferenceType):
            target = value()
            made = self(target)
            return value if made is target else type(value)(made)
        if isinstance(value, partial):
            made = self((value.func, value.args, value.keywords))
            return value if made[0] is value.func else partial(made[0], *made[1], **made[2])
        if isinstance(value, tuple | frozenset):
            items = tuple(value)
            made = tuple(map(self, items))
            if _same(items, made):
                return value
            return type(value)._make(made) if hasattr(value, "_make") else type(value)(made)
        if id(value) not in self.memo.made:
            if not self._leads_to_original(value):
                return value
            value = copy.deepcopy(value, self.memo)
        if id(value) not in self._visited:
            self._visited.add(id(value))
            self._change(value)
        return value

    def _change(self, made: Any) -> None:
        """Gives a copy what it has in place of what the original has."""
        if isinstance(made, weakref.WeakValueDictionary | weakref.WeakKeyDictionary):
            entries = [*made.items()]
            made.clear()
            made.update({self(key): self(item) for key, item in entries})
            return
        if isinstance(made, dict):
            _change_items(made, made.items(), self)
        elif isinstance(made, list | deque):
            _change_items(made, enumerate(made), self)
        elif isinstance(made, set):
            items = tuple(made)
            if not _same(items, changed := tuple(map(self, items))):
                made.clear()
                made.update(changed)
        if isinstance(attributes := getattr(made, "__dict__", None), dict):
            _change_items(attributes, attributes.items(), self)
        for cls in type(made).__mro__:
            slots = vars(cls).get("__slots__", ())
            for name in (slots,) if isinstance(slots, str) else slots:
                value = getattr(made, name, None)
                if (changed := self(value)) is not value:
                    setattr(made, name, changed)

    def _function(self, function: types.FunctionType) -> Any:
        """The function with copies of the parts of a network to which its closure and default values lead."""
        if not function.__closure__ and not self._leads_to_original(function):
            return function
        cells = function.__closure__ or ()
        new = [cell for cell in cells if id(cell) not in self.memo]
        for cell in new:
            self.memo.keep(cell, types.CellType())
        made = types.FunctionType(
            function.__code__,
            function.__globals__,
            function.__name__,
            function.__defaults__,
            tuple(self.memo[id(cell)] for cell in cells),
        )
        # Before what it refers to: a function may refer to itself.
        self.memo.keep(function, made)
        for cell in new:
            try:
                content = cell.cell_contents
            except ValueError:  # not assigned yet
                continue
            if isinstance(content, COPIED_IN_CLOSURES) and id(content) not in self.memo.made:
                content = copy.deepcopy(content, self.memo)
            self.memo[id(cell)].cell_contents = self(content)
        made.__defaults__ = self(function.__defaults__)
        if function.__kwdefaults__ is not None:
            made.__kwdefaults__ = {name: self(value) for name, value in function.__kwdefaults__.items()}
        made.__dict__.update({name: self(value) for name, value in vars(function).items()})
        return made

    def _leads_to_original(self, start: object) -> bool:
        """Whether a module or tensor of the original can be reached from an object that was not copied."""
        copied_so_far = self.memo.originals
        for part in copied_so_far[self._searched :]:
            if isinstance(part, nn.Module | Tensor):
                self._originals.add(id(part))
        self._searched = len(copied_so_far)
        pending, seen = [start], dict[int, object]()
        while pending:
            value = pending.pop()
            if id(value) in self._originals:
                return True
            if issubclass(type(value), NOT_FOLLOWED) or id(value) in seen or id(value) in self.memo.made:
                continue
            seen[id(value)] = value
            if isinstance(value, types.FunctionType):
                # Not its globals, which are shared.
                cells = value.__closure__ or ()
                pending += (value.__defaults__, value.__kwdefaults__, vars(value), *cells)
            elif isinstance(value, weakref.ReferenceType):
                pending.append(value())
            elif isinstance(value, OF_C):
                pending.append(value.__self__)
            else:
                pending += gc.get_referents(value)
        return False


def _change_items(container: Any, items: Iterable[tuple[Any, Any]], rebound: Callable[[Any], Any]) -> None:
    for key, item in [*items]:
        if (made := rebound(item)) is not item:
            container[key] = made


def _same(items: tuple[Any, ...], others: tuple[Any, ...]) -> bool:
    return all(item is other for item, other in zip(items, others, strict=True))


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
