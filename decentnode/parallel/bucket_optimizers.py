"""One optimizer per bucket, and one that represents them all."""

from collections.abc import Callable, Mapping, Sequence
from inspect import signature
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.utils._pytree import tree_map_only

from decentnode.errors import BadInput
from decentnode.parallel.buckets import BucketMemory
from decentnode.parallel.options import in_python

Factory = Callable[[list[tuple[str, nn.Parameter]]], Optimizer]
"""Makes the optimizer of some parameters, given with their names; called once for each bucket."""
BY_GRADIENT_ALONE = frozenset(
    {"SGD", "Adam", "AdamW", "NAdam", "RAdam", "Adamax", "Adagrad", "Adadelta", "RMSprop", "Rprop"}
    | {"AccumAdam", "AccumAdamW"}
)
"""Optimizers of torch and ours whose step does not depend on the parameters unless weights decay."""


class BucketOptimizer:
    """The optimizer of one bucket, with its schedule."""

    def __init__(
        self, bucket: BucketMemory, factory: Factory, schedule: Callable[[Optimizer], LRScheduler] | None
    ) -> None:
        named = [
            (entry.name, tensor)
            for entry, tensor in zip(bucket.layout.entries, bucket.tensors, strict=True)
            if isinstance(tensor, nn.Parameter)
        ]
        self.optimizer = _made(factory, named)
        self.names = {id(parameter): name for name, parameter in named}
        self.parameters = [parameter for _, parameter in named]
        self.chosen = [p for group in self.optimizer.param_groups for p in group["params"]]
        """The parameters of the optimizer; the others are only mixed."""
        if unknown := {id(p) for p in self.chosen} - self.names.keys():
            raise BadInput(
                f"the optimizer factory took {len(unknown)} parameters that it was not given: "
                "it is called once per bucket, and makes the optimizer of those parameters alone"
            )
        self.scheduler = None if schedule is None else schedule(self.optimizer)

    @property
    def by_gradient_alone(self) -> bool:
        """Whether its step is a function of the gradient alone, so that it can start from any parameters."""
        kind = type(self.optimizer)
        known = kind.__module__.startswith(("torch.optim.", "decentnode.training.optim."))
        known = known and kind.__name__ in BY_GRADIENT_ALONE
        return known and not any(group.get("weight_decay") for group in self.optimizer.param_groups)

    def step(self) -> None:
        """Makes one step of the parameters, and of the schedule."""
        self.optimizer.step()
        if self.scheduler is not None:
            self.scheduler.step()

    def schedule_state(self) -> dict[str, Any]:
        """The position of the schedule, and its parameters; a copy."""
        state = {} if self.scheduler is None else copied(self.scheduler.state_dict())
        return {"names": list(self.names.values()), "state": state}

    def load_schedule(self, saved: Sequence[Mapping[str, Any]]) -> None:
        """The inverse of `schedule_state`, for those of all buckets, whatever parameters they had."""
        if self.scheduler is None or not self.names:
            return
        first = next(iter(self.names.values()))
        state: dict[str, Any] = next((part["state"] for part in saved if first in part["names"]), {})
        self.scheduler.load_state_dict(_fitted(copied(state), self.scheduler.state_dict()))

    def clear(self) -> None:
        """Clears the gradients, without the overhead of torch's `zero_grad`."""
        for parameter in self.parameters:
            parameter.grad = None

    def by_name(self) -> dict[str, dict[str, Any]]:
        """Returns state and options of each parameter; copies, which later steps do not change."""
        states = {}
        for group in self.optimizer.param_groups:
            options = {key: value for key, value in group.items() if key not in ("params", "param_names")}
            for p in group["params"]:
                state = self.optimizer.state.get(p, {})
                whole = copied({"state": state, "options": options, "form": form_of(p, state)})
                states[self.names[id(p)]] = whole
        return states

    def load_by_name(self, saved: Mapping[str, Mapping[str, Any]]) -> None:
        """The inverse of `by_name`, for these or more parameters, from any buckets."""
        if lacking := [self.names[id(p)] for p in self.chosen if self.names[id(p)] not in saved]:
            raise BadInput(f"the saved state has no optimizer state of parameter '{lacking[0]}'")
        for p in self.chosen:
            check_form(self.names[id(p)], p, saved[self.names[id(p)]])
        state, groups = self.optimizer.state_dict(), self.optimizer.param_groups
        for group, numbered in zip(groups, state["param_groups"], strict=True):
            for p, number in zip(group["params"], numbered["params"], strict=True):
                restored = copied(saved[self.names[id(p)]])  # or steps would change what was saved
                numbered.update(restored["options"])
                state["state"].pop(number, None)
                if restored["state"]:
                    state["state"][number] = restored["state"]
        self.optimizer.load_state_dict(state)
        # Torch makes new groups, but schedules and `AllBuckets` keep references to these.
        for group, loaded in zip(groups, self.optimizer.param_groups, strict=True):
            group.clear()
            group.update(loaded)
        self.optimizer.param_groups = groups


def form_of(parameter: Tensor, state: Mapping[str, Any]) -> str:
    """Returns the shape of a parameter, and what its state consists of; a text, which is loaded whole."""
    parts = [
        f"{key} {list(value.shape)}" if isinstance(value, Tensor) else key for key, value in state.items()
    ]
    return f"{list(parameter.shape)}: {', '.join(sorted(parts)) or 'no state'}"


def check_form(name: str, parameter: Tensor, saved: Mapping[str, Any]) -> None:
    """Raises BadInput where a parameter's saved state is not whole, or is that of another shape."""
    wanted = saved["form"]
    shape = str(list(parameter.shape))
    if wanted.partition(":")[0] != shape:
        raise BadInput(
            f"the optimizer state of parameter '{name}' is of shape {wanted}; the parameter is {shape}"
        )
    if (found := form_of(parameter, saved["state"])) != wanted:
        raise BadInput(
            f"the optimizer state of parameter '{name}' is not whole: {wanted} was saved, {found} is here; "
            "torch.distributed.checkpoint loads only into what is there: make a step before it"
        )


def copied(state: Mapping[str, Any]) -> dict[str, Any]:
    """A copy of the state with containers and tensors of its own."""
    copy: dict[str, Any] = tree_map_only(Tensor, Tensor.clone, dict(state))
    return copy


def _made(factory: Factory, named: list[tuple[str, nn.Parameter]]) -> Optimizer:
    if not callable(factory):
        raise BadInput(
            f"optimizer: must be a function that makes one of parameters, not {in_python(factory)}"
        )
    try:
        optimizer = factory(named)
    except ValueError as error:
        last = f" to '{named[-1][0]}'" if len(named) > 1 else ""
        raise BadInput(f"the optimizer factory, given '{named[0][0]}'{last}: {error}") from error
    if not isinstance(optimizer, Optimizer):
        raise BadInput(f"the optimizer factory must return an Optimizer, not {in_python(optimizer)}")
    if _needs_closure(optimizer):
        defect = f"gives {type(optimizer).__name__}, whose step needs a closure that computes the loss"
        raise BadInput(f"the optimizer factory {defect}; use one that needs none")
    return optimizer


def _needs_closure(optimizer: Optimizer) -> bool:
    try:
        signature(optimizer.step).bind()
    except TypeError:
        return True
    return False


def _fitted(saved: Mapping[str, Any], current: Mapping[str, Any]) -> dict[str, Any]:
    """A schedule's saved state, except lists of another length: they belong to another number of groups."""
    fitted = dict(current)
    for key, value in saved.items():
        mine = current.get(key)
        if isinstance(value, list) and isinstance(mine, list):
            if len(value) == len(mine):
                # Schedules that consist of schedules keep the states of these in a list.
                pairs = zip(value, mine, strict=True)
                fitted[key] = [_fitted(v, m) if isinstance(m, Mapping) else v for v, m in pairs]
        else:
            fitted[key] = value
    return fitted


class AllBuckets(Optimizer):
    """The optimizers of all buckets as one: for training loops, gradient scalers, clipping and schedulers.

    Its groups are those of the buckets' own optimizers, so they use a learning rate that is set here.
    """

    _step_supports_amp_scaling = True  # so that a scaler calls `step` even if nothing may be stepped

    def __init__(
        self, optimizers: Sequence[BucketOptimizer], update: Callable[[Tensor | None, bool], None]
    ) -> None:
        """`update` makes the step of all buckets, given the scale of the gradients and whether to skip."""
        # Some schedules read the optimizer's options there.
        defaults = optimizers[0].optimizer.defaults if optimizers else {}
        super().__init__([{"params": [nn.Parameter(torch.empty(0))]}], defaults)
        self.param_groups = [group for part in optimizers for group in part.optimizer.param_groups]
        self.optimizers = optimizers
        self._update = update

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Mixes and updates all buckets; does nothing where the backward pass has done so already."""
        if closure is not None:
            raise BadInput("step: closures are for optimizers that look several times; none of them is here")
        scale: Tensor | None = getattr(self, "grad_scale", None)
        try:
            self._update(scale, bool(getattr(self, "found_inf", False)))
        except BaseException:
            # A scaler removes them only after a step; after an error it would multiply its scale by them.
            for name in ("grad_scale", "found_inf"):
                self.__dict__.pop(name, None)
            raise

    def state_dict(self) -> dict[str, Any]:
        """Returns state and options of each parameter by its name; `model.state_dict()` has them, too."""
        return {name: state for part in self.optimizers for name, state in part.by_name().items()}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """The inverse of `state_dict`, also with other buckets; raises BadInput."""
        known = {name for part in self.optimizers for name in part.names.values()}
        if unknown := sorted(set(state_dict) - known):
            raise BadInput(f"the saved state is that of another model: it has a parameter '{unknown[0]}'")
        for part in self.optimizers:
            part.load_by_name(state_dict)
