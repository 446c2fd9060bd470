"""Module state: what a network has that is not in its vector: buffers, extra state, frozen parameters.

A buffer may appear, be replaced, become longer or vanish while a network computes, and it may be sparse.
Extra state is what a module returns from `get_extra_state`. A network may change frozen parameters itself.
"""

import copy
from collections.abc import Collection, Iterator, Mapping
from typing import Any

import torch
import xxhash
from torch import Tensor, nn
from torch.nn.utils.parametrize import type_before_parametrizations

from decentnode.core.payload import as_bytes
from decentnode.core.rng import seeded
from decentnode.errors import BadInput
from decentnode.models.module_copies import ComputedTensors, copied
from decentnode.models.state_encoding import UnknownKind, components, encoded, in_one_block

KEEP_TENSORS = ("torch.nn.modules.", "torch.nn.utils.parametrize", "decentnode.models.")
"""Modules of these keep nothing but tensors from one batch to the next."""


class ModuleState:
    """The state of one network, to be saved and restored; tensors in what is saved are references."""

    def __init__(self, module: nn.Module, in_vector: Collection[str] = ()) -> None:
        """`in_vector`: names of the parameters and buffers that are kept elsewhere."""
        self.module = module
        self._in_vector = frozenset(in_vector)
        self._frozen = {n: p for n, p in module.named_parameters() if n not in self._in_vector}
        # The network itself may change them, as a teacher that follows its student; usually nothing does.
        self._hashes = {name: _hash(p) for name, p in self._frozen.items()}

    def state_dict(self) -> dict[str, Any]:
        """All buffers and extra state, and frozen parameters that differ from the first ones."""
        first: dict[int, str] = {}
        buffers, same, passing = dict[str, Tensor | None](), dict[str, str](), list[str]()
        for name, buffer, is_persistent in all_buffers(self.module):
            if buffer is not None and first.setdefault(id(buffer), name) != name:
                same[name] = first[id(buffer)]
            elif name not in self._in_vector:
                buffers[name] = buffer
            if not is_persistent:
                passing.append(name)
        frozen = {n: p.detach() for n, p in self._frozen.items() if _hash(p) != self._hashes[n]}
        extra = {path: part.get_extra_state() for path, part in with_extra_state(self.module)}
        return {"buffers": buffers, "same": same, "passing": passing, "frozen": frozen, "extra": extra}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continues from `state_dict()`, with memory of its own."""
        buffers, same, passing = dict(state["buffers"]), dict(state["same"]), set(state["passing"])
        for name in [name for name, _, _ in all_buffers(self.module)]:
            if not (name in buffers or name in same or name in self._in_vector):
                part, key = _place(self.module, name)
                delattr(part, key)
        for name, content in buffers.items():
            set_buffer(self.module, name, content, is_persistent=name not in passing)
        for name, first in same.items():
            part, key = _place(self.module, first)
            set_buffer(
                self.module, name, part._buffers[key], is_persistent=name not in passing, is_shared=True
            )
        for name, content in state["frozen"].items():
            self._frozen[name].data.copy_(content)
        for path, content in state["extra"].items():
            self.module.get_submodule(path).set_extra_state(content)


def all_buffers(module: nn.Module) -> Iterator[tuple[str, Tensor | None, bool]]:
    """Yields name, content and whether `state_dict` has it, for each buffer, also for those not made yet."""
    for path, part in module.named_modules():
        for key, buffer in part._buffers.items():
            is_persistent = key not in part._non_persistent_buffers_set
            yield f"{path}.{key}" if path else key, buffer, is_persistent


def set_buffer(
    module: nn.Module, name: str, content: Tensor | None, is_persistent: bool = True, is_shared: bool = False
) -> None:
    """Gives a module a copy of a buffer, or that tensor itself where it `is_shared`.

    In the memory of the present buffer where that fits: a part of the network may keep a view of it.
    """
    part, key = _place(module, name)
    present = part._buffers.get(key)
    if content is None or is_shared:
        made = content
    elif present is not None and _fits(present, content):
        present.data.copy_(content)
        return
    else:
        device = next((t.device for t in (*module.parameters(), *module.buffers())), content.device)
        made = content.detach().to(device, copy=True)
    if key in part._buffers:
        part._buffers[key] = made
    else:
        part.register_buffer(key, made, persistent=is_persistent)


def with_extra_state(module: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """The modules that have extra state, by their paths."""
    for path, part in module.named_modules():
        if type(part).get_extra_state is not nn.Module.get_extra_state:
            yield path, part


def check_extra_state(module: nn.Module) -> None:
    """Raises BadInput for extra state that cannot be saved as data, with the module."""
    for path, part in with_extra_state(module):
        try:
            encoded(part.get_extra_state(), {}, "it")
        except UnknownKind as error:
            whose = f"'{path}'" if path else type(part).__name__
            raise BadInput.at("model", f"the extra state of {whose} cannot be saved: {error}") from error


def keeps_only_tensors(network: nn.Module) -> bool:
    """Whether all that a network keeps from one batch to the next is in its parameters and buffers.

    So is it for modules of torch and of this package, also with adapters, without hooks and without tensors
    that are computed from others. Several nodes may take turns with such a network.
    """
    return not any(
        not type_before_parametrizations(part).__module__.startswith(KEEP_TENSORS)
        or part._forward_hooks
        or part._forward_pre_hooks
        or part._backward_hooks
        or any(isinstance(value, Tensor) for value in vars(part).values())
        for part in network.modules()
    )


def changes_itself(network: nn.Module, batches: list[tuple[Tensor, ...]], in_vector: Collection[str]) -> bool:
    """Whether training changes what is not in the vector, so that a vector is not a whole model.

    Tables that a network makes, or makes longer, are the same for all batches, and do not count.
    """
    states = []
    for fields in batches:
        tried = copied(network).train()
        state = ModuleState(tried, in_vector)
        before = copied_state(state)
        if not any(before.values()):
            return False
        with torch.no_grad(), seeded(0, "changes_itself"):
            tried(*fields)
        states.append(copied_state(state))
    first, second = states
    if not equal(first, second) or not equal(before["extra"], first["extra"]) or first["frozen"]:
        return True
    return any(
        content is not None
        and content.is_floating_point()
        and first["buffers"].get(name) is not None
        and first["buffers"][name].shape == content.shape
        and not equal(content, first["buffers"][name])
        for name, content in before["buffers"].items()
    )


def copied_state(state: ModuleState) -> dict[str, Any]:
    """Returns a copy of the current state of a network."""
    with ComputedTensors():
        return copy.deepcopy(state.state_dict())


def equal(left: Any, right: Any) -> bool:
    """Whether two states are the same, tensors bit for bit."""
    if isinstance(left, Tensor) or isinstance(right, Tensor):
        return isinstance(left, Tensor) and isinstance(right, Tensor) and _same(left, right)
    if isinstance(left, Mapping) and isinstance(right, Mapping):
        return left.keys() == right.keys() and all(equal(left[name], right[name]) for name in left)
    if isinstance(left, list | tuple) and isinstance(right, list | tuple):
        return len(left) == len(right) and all(map(equal, left, right))
    return bool(left == right) or (left != left and right != right)


def _same(left: Tensor, right: Tensor) -> bool:
    kinds = left.shape == right.shape and left.dtype == right.dtype and left.layout is right.layout
    return kinds and _hash(left) == _hash(right)


def _place(module: nn.Module, name: str) -> tuple[nn.Module, str]:
    path, _, key = name.rpartition(".")
    return module.get_submodule(path), key


def _fits(present: Tensor, content: Tensor) -> bool:
    dense = present.layout is content.layout is torch.strided
    alike = dense and present.shape == content.shape and present.dtype == content.dtype
    # An expanded tensor has several elements in one place.
    return alike and not any(
        step == 0 < size - 1 for step, size in zip(present.stride(), present.shape, strict=True)
    )


def _hash(tensor: Tensor) -> str:
    digest = xxhash.xxh3_128()
    for part in components(tensor.detach()):
        digest.update(as_bytes(in_one_block(part)).numpy().data)
    return digest.hexdigest()
