"""Optimizers, schedulers and losses by their class names: those of torch, and ours like them."""

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import ModuleType
from typing import Any, get_args, get_origin

import torch
from torch import Tensor
from torch.optim import Optimizer, lr_scheduler
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from decentnode.config.plugin import Plugin
from decentnode.config.type_check import parameters_of
from decentnode.core.registry import Registry, is_third_party
from decentnode.core.text import first_line
from decentnode.datasets.base import Batch
from decentnode.errors import BadInput
from decentnode.training import optim as optimizers
from decentnode.training.objective import Objective
from decentnode.training.optim.uncompiled import uncompiled
from decentnode.training.settings import Factory
from decentnode.training.tasks.base import Task

_Loss = torch.nn.modules.loss._Loss  # the only base that all losses share
# YAML cannot express the arguments of these: functions, or other schedulers.
_NOT_FROM_YAML = {"LambdaLR", "MultiplicativeLR", "SequentialLR", "ChainedScheduler"}
# These compare other inputs than scores and labels, or are old names of other losses.
_NOT_FROM_YAML |= {
    "CTCLoss", "CosineEmbeddingLoss", "GaussianNLLLoss", "HingeEmbeddingLoss", "KLDivLoss",
    "LinearCrossEntropyLoss", "MarginRankingLoss", "MultiLabelMarginLoss", "NLLLoss2d", "PoissonNLLLoss",
    "SoftMarginLoss", "TripletMarginLoss", "TripletMarginWithDistanceLoss",
}  # fmt: skip
_WHAT_TORCH_RAISES = (TypeError, ValueError, RuntimeError, LookupError, ArithmeticError, AttributeError)
MOST_TRIAL_STEPS = 100
MOST = {"lr": 1e6, "momentum": 1.0, "dampening": 1.0, "alpha": 1.0, "eps": 1e3, "lr_decay": 1e3}
"""The largest values of an optimizer's options; torch takes any."""


class TorchClasses(Registry):
    """The public classes of some modules under a base class; the first `given` arguments are ours."""

    def __init__(
        self, kind: str, modules: Sequence[ModuleType], base: type, given: int, outside: type | None = None,
        endings: Sequence[str] = (),
    ) -> None:  # fmt: skip
        """`outside` is the required base of a class from outside the package; default: `base`."""
        super().__init__(kind, "torch", endings=endings)
        self._outside = outside or base
        self._given = given
        self._modules = modules
        self._base = base

    @property
    def bases(self) -> tuple[type, ...]:
        return (self._outside,)

    def classes(self) -> dict[str, type]:
        """Returns all classes by name, sorted."""
        # Ours come last, and `Muon` replaces torch's, which takes matrices alone.
        public = {name: cls for module in self._modules for name, cls in vars(module).items()}
        return dict(sorted((name, cls) for name, cls in public.items() if self._is_one(name, cls)))

    def _is_one(self, name: str, cls: object) -> bool:
        public = not name.startswith("_") and name not in _NOT_FROM_YAML
        return public and isinstance(cls, type) and issubclass(cls, self._base) and cls is not self._base

    def parameters(self, cls: type) -> dict[str, tuple[Any, Any]]:
        """Returns the options of a class; types follow the defaults, because torch's hints are too loose."""
        found = parameters_of(cls, skip=self._given)
        return {name: (_type_of(default, hint), default) for name, (hint, default) in found.items()}


OPTIMIZERS = TorchClasses("optimizer", (torch.optim, optimizers), Optimizer, given=1)
SCHEDULERS = TorchClasses(
    "scheduler", (lr_scheduler, optimizers), LRScheduler, given=1, endings=("lr", "decay")
)
LOSSES = TorchClasses("loss", (torch.nn,), _Loss, given=0, outside=torch.nn.Module)
OPTIMIZERS.explain("SGD", momentum="momentum: 0.9", sgdm="momentum: 0.9", nesterov="nesterov: true")
SCHEDULERS.explain("CosineAnnealingLR", cosine="")
SCHEDULERS.explain("WarmupCosine", cosine_with_warmup="", linear_warmup_cosine="")
SCHEDULERS.explain("InverseSquareRoot", inverse_sqrt="", noam="")
SCHEDULERS.explain("PolynomialLR", poly="")
SCHEDULERS.explain("ReduceLROnPlateau", plateau="", reduce_on_plateau="")
LOSSES.explain("CrossEntropyLoss", categorical_crossentropy="", sparse_categorical_crossentropy="", ce="")
LOSSES.explain("L1Loss", mae="", mean_absolute_error="")
LOSSES.explain("MSELoss", l2="", mean_squared_error="")


def _type_of(default: Any, hint: Any = Any) -> Any:
    if isinstance(default, bool | str):
        return type(default)
    if isinstance(default, int | float):
        return float if isinstance(default, float) else int | float
    if isinstance(default, tuple) and get_origin(hint) is tuple and Ellipsis not in get_args(hint):
        return tuple[tuple(map(_type_of, default))]  # type: ignore[misc]
    return Any


def plain_defaults(parameters: Mapping[str, tuple[Any, Any]]) -> dict[str, Any]:
    """Returns the defaults that YAML can express and that have a meaning there."""
    return {name: value for name, (_, value) in parameters.items() if _is_plain(value)}


def _is_plain(value: Any) -> bool:
    if isinstance(value, tuple):
        return all(map(_is_plain, value))
    return isinstance(value, bool | int | float | str) and value != "deprecated"


def try_optimizer(optimizer: Factory) -> Optimizer:
    """Makes an optimizer of one small layer, to get torch's errors; raises BadInput with their text."""
    quick = replace(optimizer, cls=uncompiled(optimizer.cls))
    made: Optimizer = quick.make(list(torch.nn.Linear(1, 1).parameters()))
    check_sizes(optimizer)
    return made


def check_sizes(optimizer: Factory) -> None:
    """Raises BadInput for options that torch takes, but with which no model learns."""
    if optimizer.cls.__module__.partition(".")[0] not in ("torch", "decentnode"):
        return
    name = getattr(optimizer.cls, "__name__", "")
    numbers = {o: value for o, value in optimizer.options.items() if isinstance(value, int | float)}
    for option, value in numbers.items():
        if not math.isfinite(value):
            raise BadInput(f"{name}: {option} is {value}; it must be finite")
        if value > MOST.get(option, math.inf):
            raise BadInput(f"{name}: {option} is {value:g}; it must be at most {MOST[option]:g}")
    rate, decay = numbers.get("lr", 0.0), numbers.get("weight_decay", 0.0)
    if rate * decay > 1:
        raise BadInput(
            f"{name}: lr * weight_decay is {rate * decay:g}, what a step takes of each weight; it must be at "
            "most 1"
        )


def rates_of(optimizer: Factory, scheduler: Factory | None, rounds: int) -> list[float]:
    """The learning rate of each round, where the schedule makes a step after each and reads no loss."""
    made = try_optimizer(optimizer)
    schedule: LRScheduler | None = scheduler.make(made) if scheduler else None
    rates = [float(made.param_groups[0]["lr"])]
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Detected call of `lr_scheduler.step")
        for _ in range(rounds - 1):
            if schedule is not None:
                schedule.step()
            rates.append(float(made.param_groups[0]["lr"]))
    return rates


def try_scheduler(scheduler: Plugin, optimizer: Optimizer, steps: int, unit: str) -> None:
    """Makes so many steps of the schedule, because torch checks many options only then; raises BadInput.

    `unit`: what a step is, a round or a step of the optimizer.
    """
    made = scheduler.make(optimizer)
    arguments = (1.0,) if isinstance(made, ReduceLROnPlateau) else ()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for _ in range(steps):
                made.step(*arguments)
    except _WHAT_TORCH_RAISES as error:
        raise BadInput(f"{scheduler.name}: cannot be stepped once per {unit}: {first_line(error)}") from error


def try_loss(loss: Plugin, task: Task) -> None:
    """Computes the loss of scores and labels as in training; raises BadInput."""
    task.check_loss(loss.cls)
    made: torch.nn.Module = loss.make()
    of_classes = (getattr(made, name, None) for name in ("weight", "pos_weight"))
    classes = next((len(w) for w in of_classes if isinstance(w, Tensor) and w.dim()), 2)
    labels = torch.eye(2, classes).long() if task.kind == "multilabel" else torch.tensor([0, 1])
    (width, *_), *_ = task.shapes(classes, labels.shape[1:])
    network = torch.nn.Sequential(torch.nn.Linear(2, width), torch.nn.Sigmoid())
    objective = Objective(network, made, task)
    # A user's own loss or task may need another number of classes.
    if ":" in loss.name or is_third_party(task) or not task.labels_are_classes:
        return
    try:
        _, value = objective(Batch((torch.eye(2),), labels))
    except _WHAT_TORCH_RAISES as error:
        raise BadInput(f"{loss.name}: no loss of scores and labels: {first_line(error)}") from error
    if value.dim():
        raise BadInput(f"{loss.name}: gives {tuple(value.shape)} for a batch; it must give one number")
