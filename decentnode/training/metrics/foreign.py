"""Metrics from outside: functions, and the classes of torchmetrics."""

import re
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from inspect import isfunction, signature
from typing import Any

import torch
from torch import Tensor

from decentnode.errors import BadInput, explained, is_out_of_memory
from decentnode.training.metrics.base import Kind, Measure, Predictions, State

OF_ALL = ("label", "higher_is_better", "is_fraction")
"""The options that all metrics have."""
TRIAL = 8
"""The fewest samples that a metric from outside is tried with."""


def metric_of(cls: Callable[..., Any], options: Mapping[str, Any]) -> Measure:
    """The metric for `module:name`: a Measure with these options, a function, or a class as of torchmetrics.

    The options of all metrics are its own beside those of the function or class, unless that has one of the
    name.
    """
    if isinstance(cls, type) and issubclass(cls, Measure):
        return cls(**options)
    own = signature(cls).parameters
    ours = {name: options[name] for name in OF_ALL if name in options and name not in own}
    rest = {name: value for name, value in options.items() if name not in ours}
    return (OfFunction if isfunction(cls) else OfModule)(given=cls, options=rest, **ours)


@dataclass(kw_only=True)
class Foreign(Measure):
    """A metric whose number somebody else's code computes."""

    given: Callable[..., Any]
    options: Mapping[str, Any]

    def __post_init__(self) -> None:
        name = self.given.__name__.strip("<>")
        self.label = self.label or re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()
        for option in ("higher_is_better", "is_fraction"):
            if getattr(self, option) is None:
                setattr(self, option, getattr(self.given, option, None))
        super().__post_init__()

    @contextmanager
    def _explaining(self) -> Iterator[None]:
        """Explains in one line what the code raises."""
        try:
            yield
        except Exception as error:  # the code of others may raise anything
            if isinstance(error, BadInput) or is_out_of_memory(error):
                raise
            raise BadInput(f"metric {self.label} raises {explained(error)}") from error

    def check(self, kind: Kind, width: int) -> None:
        """Tries it on a few predictions, so the object is of no use afterwards."""
        count = max(TRIAL, 2 * width)
        labels, scores = torch.arange(count) % max(2, width), torch.linspace(-1.0, 1.0, count)
        if kind == "multiclass":
            scores = scores[:, None] * torch.linspace(1.0, 2.0, width)
        elif kind == "multilabel" or (kind == "regression" and width > 1):
            labels, scores = labels[:, None].expand(-1, width), scores[:, None].expand(-1, width)
        if kind != "multiclass":
            labels = labels % 2
        trial = Predictions(kind, scores, labels.float() if kind == "regression" else labels)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self.add(trial)
            self.values()


@dataclass(kw_only=True)
class OfFunction(Foreign):
    """The number that a function gives for the values and labels of all samples (`Predictions.values`)."""

    def value(self, state: State) -> float:
        assert isinstance(state, Predictions)
        with self._explaining():
            return float(self.given(state.values, state.labels, **self.options))


@dataclass(kw_only=True)
class OfModule(Foreign):
    """The number of an object with `update` and `compute`, as of torchmetrics (Detlefsen et al., 2022).

    It joins batches by its own rules. `num_classes`, `num_labels` and `task` are what the run has, unless
    options give them.
    """

    _module: Any = field(default=None, init=False, repr=False, compare=False)
    _kind: Kind = field(default="multiclass", init=False, repr=False, compare=False)
    _joined: list[Mapping[str, Tensor]] = field(default_factory=list, init=False, repr=False, compare=False)
    """States of other objects, by name."""

    def __post_init__(self) -> None:
        bounds = (getattr(self.given, f"plot_{end}_bound", None) for end in ("lower", "upper"))
        if self.is_fraction is None:
            self.is_fraction = tuple(bounds) == (0.0, 1.0)
        super().__post_init__()
        if missing := [name for name in ("update", "compute") if not hasattr(self.given, name)]:
            raise BadInput(f"{self.given.__name__} has no method {missing[0]}; give a torchmetrics.Metric")

    @property
    def keeps_predictions(self) -> bool:
        """Whether it has lists; known once it was tried."""
        states = getattr(self._module, "metric_state", {})
        return any(isinstance(state, list) for state in states.values())

    def value(self, state: State) -> float:
        raise NotImplementedError("the object computes it of its own state")

    def _add(self, predictions: Predictions) -> None:
        with self._explaining():
            if self._module is None:
                self._kind = predictions.kind
                self._module = self._made().to(predictions.scores.device)
            self._module.update(predictions.values, predictions.labels)

    def _made(self) -> Any:
        kind, width = self._kind, self._width
        of_run = {"task": kind, "num_classes": width if kind == "multiclass" else None}
        of_run["num_labels"] = width if kind == "multilabel" else None
        known = {name: of_run[name] for name in of_run if name in signature(self.given).parameters}
        given = {
            name: value for name, value in self.options.items() if value is not None or name not in known
        }
        made = self.given(**known | given)
        # Its sums are in 32 bits otherwise.
        return made.set_dtype(torch.float64) if hasattr(made, "set_dtype") else made

    @property
    def pools(self) -> bool:
        return hasattr(self._module, "metric_state")

    def state_dict(self) -> dict[str, Any]:
        taken = super().state_dict()
        if self._module is not None:
            states = {n: s for n, s in self._module.metric_state.items() if not isinstance(s, list) or s}
            joined = {
                n: torch.cat([*map(torch.atleast_1d, s)]) if isinstance(s, list) else s
                for n, s in states.items()
            }
            taken |= {"kind": self._kind, "states": {name: state.cpu() for name, state in joined.items()}}
        return taken

    def join(self, taken: Mapping[str, Any]) -> None:
        self._width = max(self._width, taken["width"])
        self._are_finite &= taken["finite"]
        if "states" in taken:
            self._kind = taken["kind"]
            self._joined.append(taken["states"])

    def _reduced(self) -> Any:
        """The object with the states of all that were joined, as it reduces those of processes."""
        module, of_each = self._made(), iter(self._joined[0])
        for name, state in self._joined[0].items():
            setattr(module, name, [state] if isinstance(getattr(module, name), list) else state)

        def gather(state: Tensor, group: object = None) -> list[Tensor]:
            name = next(of_each)
            return [states[name] for states in self._joined]

        module.dist_sync_fn, module.distributed_available_fn = gather, lambda: True
        module._update_count = len(self._joined)
        return module

    def _numbers(self) -> list[float] | None:
        if self._module is None and not self._joined:
            return None
        with self._explaining():
            value = (self._module if self._module is not None else self._reduced()).compute()
            if not isinstance(value, Tensor) or value.numel() != 1:
                what = f"{value.numel()} numbers" if isinstance(value, Tensor) else type(value).__name__
                raise BadInput(
                    f"metric {self.label} gives {what}; it must give one, such as with average: macro"
                )
            return [float(value)]
