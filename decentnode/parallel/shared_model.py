"""What a loop shares: a model, some of its parameters, tensors, or what two functions get and set."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

import torch
import xxhash
from torch import Tensor, nn
from torch.nn.modules.lazy import LazyModuleMixin

from decentnode.communication.launcher_link.attachment import SharedModel
from decentnode.core.registry import guess
from decentnode.core.vector import DTYPES, ModuleTensors, ParameterLayout, Vector, has_mean
from decentnode.errors import BadInput, RunFailed

GetTensors = Callable[[], Sequence[Tensor]]
SetTensors = Callable[[list[Tensor]], object]
Shared = Sequence[str] | Sequence[Tensor] | tuple[GetTensors, SetTensors] | None
"""Names of parameters with * for any letters; tensors; functions; None: all parameters that are trained."""
HASHED_ELEMENTS = 1 << 24
NAMES = {dtype: name for name, dtype in DTYPES.items()}


class LoopTensors(ModuleTensors):
    """The tensors of a loop's model: views of the vector, with gradients of their own."""

    def __init__(self, module: nn.Module, layout: ParameterLayout) -> None:
        super().__init__(module, layout, with_gradient=False)


class CopiedTensors(ModuleTensors):
    """Tensors that cannot be views, such as shards: they are copied into the vector, and out of it."""

    def __init__(self, holder: nn.Module, layout: ParameterLayout, get: GetTensors, set: SetTensors) -> None:
        self._get, self._set = get, set
        super().__init__(holder, layout, with_gradient=False)

    def set_views(self, views: list[Tensor]) -> None:
        with torch.no_grad():
            self._set(views)

    def copy_into(self, views: list[Tensor]) -> bool:
        with torch.no_grad():
            for view, tensor in zip(views, self._get(), strict=True):
                view.copy_(tensor)
        return True


class TensorsOfLoop:
    """What one rank shares, and what else of its model messages are about."""

    def __init__(self, model: nn.Module, shared: Shared) -> None:
        """Raises BadInput for what cannot be shared."""
        self.model = model
        self.functions: tuple[GetTensors, SetTensors] | None = None
        lazy = (part for part in model.modules() if isinstance(part, LazyModuleMixin))
        if any(part.has_uninitialized_params() for part in lazy):
            raise BadInput("join: the model has lazy parameters without a shape; call it once before join")
        named = dict(_named(model, shared))
        self.tensors: dict[str, Tensor] = named
        if _is_pair(shared):
            self.functions = shared  # type: ignore[assignment]
        if meta := [name for name, tensor in named.items() if tensor.is_meta]:
            raise BadInput(f"join: '{meta[0]}' is on the meta device, without values; make the model's first")
        self.shards = shards_of(named)
        """The processes that the model is sharded over."""
        self.buffers = {}
        if shared is None:
            self.buffers = {n: b for n, b in model.named_buffers() if has_mean(b)}
        if self.shards > 1:
            self.buffers = {}
        dtypes = {t.dtype.to_real() if t.is_complex() else t.dtype for t in self.tensors.values()}
        if not dtypes:
            raise BadInput("join: there is nothing to share; no parameter of the model is trained")
        if len(dtypes) > 1 or not dtypes <= NAMES.keys():
            names = ", ".join(sorted(map(str, dtypes)))
            raise BadInput(
                f"join: shared tensors are {names}; they must all be one of {', '.join(DTYPES)} (shared= "
                "names those to share)"
            )
        if len({tensor.device for tensor in self.tensors.values()}) > 1:
            raise BadInput("join: shared tensors are on several devices; a rank shares those of one")
        self.dtype: torch.dtype = dtypes.pop()
        self._parameters = {n: p for n, p in model.named_parameters() if self.tensors.get(n) is p}
        self._count = sum(1 for p in model.parameters() if p.requires_grad)

    @property
    def described(self) -> SharedModel:
        """Returns it as a launcher has to know it."""
        state = xxhash.xxh3_64()
        with torch.no_grad():
            for tensor in self.tensors.values():
                flat = _local(tensor).reshape(-1)
                for block in torch.split(flat, HASHED_ELEMENTS):
                    state.update(block.cpu().contiguous().view(torch.uint8).numpy().data)
        return SharedModel(
            parameters={
                name: [padded_size(tensor)] if self.shards > 1 else list(tensor.shape)
                for name, tensor in self.tensors.items()
            },
            shards=self.shards,
            buffers={name: list(buffer.shape) for name, buffer in self.buffers.items()},
            complex=[name for name, tensor in self.tensors.items() if tensor.is_complex()],
            dtype=NAMES[self.dtype], digest=state.hexdigest(),
        )  # fmt: skip

    def begin_as(self, other_tensors: "TensorsOfLoop", rank: int) -> None:
        """Takes the values of another rank's model; raises BadInput where it has other tensors."""
        both = self, other_tensors
        kinds = [{name: (*t.shape, t.dtype) for name, t in one.tensors.items()} for one in both]
        if kinds[0] != kinds[1]:
            raise BadInput(
                f"rank {rank}: what it shares has other names, shapes or types than that of rank 0"
            )
        with torch.no_grad():
            for name, tensor in self.tensors.items():
                tensor.copy_(other_tensors.tensors[name])

    def module_tensors(self, layout: ParameterLayout) -> ModuleTensors:
        """Returns them as a vector needs them; raises BadInput for buffers of another type than it has."""
        for entry in layout.entries:
            if entry.is_buffer and self.buffers[entry.name].dtype != layout.dtype:
                dtype = self.buffers[entry.name].dtype
                raise BadInput(
                    f"join: buffer '{entry.name}' is {dtype}, and parameters are {layout.dtype}; leave "
                    "training.mix_buffers out, or give it their type"
                )
        if self.shards > 1:
            return ShardedTensors(self.tensors, layout)
        if self.functions is not None:
            return CopiedTensors(_holder(self.tensors), layout, *self.functions)
        is_whole = all(name in dict(self.model.named_parameters()) for name in self.tensors)
        return LoopTensors(self.model if is_whole else _holder(self.tensors), layout)

    def check(self, vector: Vector) -> None:
        """Raises RunFailed where the model is no longer the one that joined."""
        if self.functions is not None or self.shards > 1:
            return
        for entry, tensor in zip(vector.layout.entries, vector.tensors(), strict=True):
            if tensor.device != vector.values.device:
                raise RunFailed(
                    f"the model was moved to {tensor.device} after join ('{entry.name}' was on "
                    f"{vector.values.device}); move it before"
                )
        now = dict(self.model.named_parameters())
        for name, parameter in self._parameters.items():
            if now.get(name) is not parameter:
                raise RunFailed(f"the parameter '{name}' was replaced after join; change the model before")
        trained = sum(1 for p in now.values() if p.requires_grad)
        if trained > self._count:
            raise RunFailed(
                f"the model trains {trained} tensors, and {self._count} when it joined; add or unfreeze "
                "parameters before join"
            )


def _named(model: nn.Module, shared: Shared) -> Iterator[tuple[str, Tensor]]:
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    if shared is None:
        yield from trained.items()
        return
    if _is_pair(shared):
        get, _ = shared
        for index, tensor in enumerate(get()):  # type: ignore[operator]
            yield f"tensors.{index}", tensor.detach()
        return
    names = {id(tensor): name for name, tensor in model.named_parameters()}
    for index, item in enumerate(shared):
        if isinstance(item, Tensor):
            yield names.get(id(item), f"tensors.{index}"), item
            continue
        if not isinstance(item, str):
            raise BadInput(f"join: shared[{index}] is {type(item).__name__}, neither a name nor a tensor")
        found = {name: p for name, p in trained.items() if fnmatchcase(name, item)}
        if not found:
            raise BadInput(f"join: shared: no trained parameter matches '{item}'{guess(item, [*trained])}")
        yield from found.items()


def _is_pair(shared: Any) -> bool:
    return isinstance(shared, tuple) and len(shared) == 2 and all(map(callable, shared)) and not any(
        isinstance(part, Tensor) for part in shared
    )  # fmt: skip


def _holder(tensors: dict[str, Tensor]) -> nn.Module:
    """Returns a module with these tensors under their names, as they are."""
    holder = nn.Module()
    for name, tensor in tensors.items():
        *path, key = name.split(".")
        part = holder
        for word in path:
            if word not in part._modules:
                part.add_module(word, nn.Module())
            part = part.get_submodule(word)
        # Not register_parameter, which takes leaves that need gradients alone.
        part._parameters[key] = tensor  # type: ignore[assignment]
    return holder


# Shards of FSDP2 and tensor parallelism.


def _is_sharded(tensor: Tensor) -> bool:
    return hasattr(tensor, "to_local") and hasattr(tensor, "device_mesh")


def _local(tensor: Any) -> Tensor:
    local: Tensor = tensor.to_local() if _is_sharded(tensor) else tensor
    return local.detach()


class ShardedTensors(ModuleTensors):
    """The shards that this process has of a model's tensors, in memory of the same size in all processes.

    They are copied into the vector, and out of it in place: FSDP2 trains on a storage of its own.
    """

    def __init__(self, tensors: Mapping[str, Tensor], layout: ParameterLayout) -> None:
        self._sharded = [*tensors.values()]
        sizes = {name: padded_size(tensor) for name, tensor in tensors.items()}
        device = _local(self._sharded[0]).device
        dtype = _local(self._sharded[0]).dtype
        padded = {name: torch.zeros(size, dtype=dtype, device=device) for name, size in sizes.items()}
        super().__init__(_holder(padded), layout, False)
        self.copy_into(self.tensors)

    def set_views(self, views: list[Tensor]) -> None:
        with torch.no_grad():
            for tensor, view in zip(self._sharded, views, strict=True):
                local = _local(tensor).view(-1)
                local.copy_(view[: len(local)])

    def copy_into(self, views: list[Tensor]) -> bool:
        with torch.no_grad():
            for tensor, view in zip(self._sharded, views, strict=True):
                _copy_padded(_local(tensor), view)
        return True

    def gather_gradient(self) -> Tensor:
        for entry, tensor in zip(self.layout.entries, self._sharded, strict=True):
            view = entry.view(self.gradient)
            if tensor.grad is None:
                view.zero_()
            else:
                _copy_padded(_local(tensor.grad), view)
        return self.gradient

    def scatter_gradient(self) -> None:
        for entry, tensor in zip(self.layout.entries, self._sharded, strict=True):
            if tensor.grad is None:
                raise RunFailed(
                    f"'{entry.name}' has no gradient, which the scheme changes; train it, or freeze it"
                )
            local = _local(tensor.grad).view(-1)
            local.copy_(entry.view(self.gradient)[: len(local)])


def _copy_padded(local: Tensor, view: Tensor) -> None:
    flat = local.reshape(-1)
    view[: len(flat)].copy_(flat)
    view[len(flat) :].zero_()


def padded_size(tensor: Any) -> int:
    """Returns the most elements of any shard of a tensor, as FSDP2 cuts its first dimension."""
    if not _is_sharded(tensor):
        return int(tensor.numel())
    rows = tensor.shape[0] if tensor.dim() else 1
    return int(-(-rows // tensor.device_mesh.size()) * (tensor.numel() // max(1, rows)))


def shards_of(tensors: Mapping[str, Tensor]) -> int:
    """Returns over how many processes tensors are sharded; raises BadInput for what cannot join."""
    for name, tensor in tensors.items():
        if not _is_sharded(tensor):
            continue
        mesh: Any = tensor.device_mesh  # type: ignore[attr-defined]
        placements: Any = tensor.placements  # type: ignore[attr-defined]
        if mesh.ndim != 1 or not all(place.is_shard(0) for place in placements):
            raise BadInput(
                f"join: '{name}' is placed as {placements} on a mesh of {mesh.ndim} dimensions; shard nodes "
                "along the first dimension over a mesh of one (FSDP2: mesh['shard'])"
            )
        ranks, size = mesh.mesh.tolist(), mesh.size()
        if ranks != [*range(ranks[0], ranks[0] + size)] or ranks[0] % size:
            raise BadInput(f"join: the shards of a node are ranks {ranks}; they must follow each other")
        return int(size)
    return 1
