"""A fake GPU: its tensors report its device, compute in host memory, and count what leaves it.

As on a real one, each operation must have all its tensors on one device, but for single numbers of the
CPU. What is copied to or from host memory is kept in lists, and how often the host waits is counted.
"""

from dataclasses import dataclass, field

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map

GPU, CPU = torch.device("cuda", 0), torch.device("cpu")
NUMBERS = {"item", "__float__", "__int__", "__bool__", "__index__"}
SIZES = {"nonzero", "masked_select", "unique", "argwhere"}


class OnGpu(torch.Tensor):
    """A tensor that says it is on the GPU."""


@dataclass
class Crossings:
    """What left or entered the device; lengths of the tensors."""

    out: list[int] = field(default_factory=list)
    into: list[int] = field(default_factory=list)
    waits: int = 0
    """How often the host waited for a number, or to know how many there are."""


class FakeGpu(TorchFunctionMode):
    """A machine with a GPU, as long as the mode lasts."""

    def __init__(self):
        super().__init__()
        self.crossings = Crossings()

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        name, owner = func.__name__, getattr(func, "__self__", None)
        tensors = [x for x in _leaves((args, kwargs)) if isinstance(x, torch.Tensor)]
        there = any(isinstance(x, OnGpu) for x in tensors)
        if name == "__get__" and there and owner in (torch.Tensor.device, torch.Tensor.is_cuda):
            return GPU if owner is torch.Tensor.device else True
        if name == "tolist" and there:
            return self._to(args[0], CPU).tolist()
        if name in ("numpy", "__array__") and there:
            raise TypeError(f"{name} of a tensor on the GPU; its numbers are not in host memory")
        if name in ("to", "cpu", "copy_"):
            return getattr(self, f"_{name.strip('_')}")(*args, **kwargs)
        if there:
            self._check(name, tensors)
        goes = there
        if kwargs.get("device") is not None:
            goes, kwargs["device"] = torch.device(kwargs["device"]).type == "cuda", CPU
        return self._labeled(func(*_plain(args), **_plain(kwargs)), goes)

    def _check(self, name, tensors):
        strangers = [x for x in tensors if not isinstance(x, OnGpu) and x.dim()]
        assert not strangers, f"{name} of tensors on the GPU and one in host memory, {strangers[0].shape}"
        self.crossings.waits += name in NUMBERS or name in SIZES

    def _to(self, x, *args, **kwargs):
        wanted = [w for w in (*args, *kwargs.values()) if isinstance(w, torch.device | str | torch.Tensor)]
        there = isinstance(x, OnGpu)
        goes = there
        if wanted:
            goes = isinstance(wanted[0], OnGpu) or (
                not isinstance(wanted[0], torch.Tensor) and torch.device(wanted[0]).type == "cuda"
            )
        if goes != there:
            (self.crossings.into if goes else self.crossings.out).append(x.numel())
        swap = lambda w: CPU if isinstance(w, torch.device | str) else w
        made = torch.Tensor.to(
            _plain(x), *map(swap, _plain(args)), **{k: swap(_plain(v)) for k, v in kwargs.items()}
        )
        return self._labeled(made.clone() if goes != there else made, goes)

    def _cpu(self, x):
        return self._to(x, CPU)

    def _copy(self, target, source, non_blocking=False):
        there = isinstance(target, OnGpu), isinstance(source, OnGpu)
        if there[0] != there[1]:
            (self.crossings.into if there[0] else self.crossings.out).append(source.numel())
        torch.Tensor.copy_(_plain(target), _plain(source))
        return target

    @staticmethod
    def _labeled(given, goes):
        return _mapped(on_gpu, given) if goes else given


def on_gpu(x):
    """A tensor as one on the GPU, in the same memory; anything else as it is."""
    return x.as_subclass(OnGpu) if isinstance(x, torch.Tensor) else x


def in_memory(x):
    """The tensor that a tensor on the GPU is made of; to be looked at by tests alone."""
    with torch._C.DisableTorchFunctionSubclass():
        return x.as_subclass(torch.Tensor)


def _plain(tree):
    return _mapped(lambda x: in_memory(x) if isinstance(x, OnGpu) else x, tree)


def _leaves(tree):
    """As torch's `tree_flatten`, which takes many times as long."""
    if isinstance(tree, tuple | list | dict):
        for inner in tree.values() if isinstance(tree, dict) else tree:
            yield from _leaves(inner)
    else:
        yield tree


def _mapped(change, tree):
    """As torch's `tree_map`, which takes many times as long."""
    if type(tree) in (tuple, list):
        return type(tree)(_mapped(change, inner) for inner in tree)
    if type(tree) is dict:
        return {key: _mapped(change, inner) for key, inner in tree.items()}
    return tree_map(change, tree) if isinstance(tree, tuple | list | dict) else change(tree)
