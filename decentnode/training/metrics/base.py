"""Metrics of an evaluation beside those of a task: what batches add to one, and its number in the end."""

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import nan
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from decentnode.core.registry import name_of
from decentnode.datasets.base import counts
from decentnode.errors import BadInput

Kind = Literal["binary", "multiclass", "multilabel", "regression"]
"""What a task predicts, in the words of torchmetrics."""
WORDS: dict[Kind, str] = {
    "binary": "one logit", "multiclass": "classes", "multilabel": "several labels", "regression": "numbers"
}  # fmt: skip
"""What the kinds are, for messages."""
OF_CLASSES: tuple[Kind, ...] = ("binary", "multiclass", "multilabel")
LABEL = re.compile(r"[A-Za-z]\w*")
TAKEN = ("validation_", "local_", "pooled_")
"""How names begin on other samples than those of the test."""


class MetricSpec(NamedTuple):
    """A number that an evaluation gives for a model."""

    name: str
    higher_is_better: bool
    is_fraction: bool = False
    """Whether it is a number from 0 to 1 that people read in percent."""


@dataclass(frozen=True, eq=False)
class Predictions:
    """What a model predicts for labels, m of them, of which none is ignored unless it is one of several."""

    kind: Kind
    scores: Tensor
    """Binary: log-odds of class 1, shape (m,); multiclass: scores (m, classes); multilabel: log-odds (m,
    labels); regression: numbers, of the shape of the labels."""
    labels: Tensor
    """Classes, shape (m,); multilabel: 0, 1 or IGNORED, (m, labels); regression: (m,) or (m, outputs)."""

    @classmethod
    def joined(cls, predictions: Sequence["Predictions"]) -> "Predictions":
        """Returns the predictions of several batches, or nodes, as those of one."""
        scores, labels = (
            torch.cat(of) for of in zip(*((p.scores, p.labels) for p in predictions), strict=True)
        )
        return cls(predictions[0].kind, scores, labels)

    @property
    def width(self) -> int:
        """The number of classes, labels or outputs; two classes where they are 0 and 1."""
        columns = self.scores.shape[1] if self.scores.dim() > 1 else 1
        return 2 if self.kind == "binary" else columns

    @cached_property
    def are_finite(self) -> bool:
        """Whether all scores are numbers."""
        return bool(self.scores.isfinite().all())

    @cached_property
    def values(self) -> Tensor:
        """Probabilities in float64, of the shape of the scores; for regression the numbers."""
        scores = self.scores.double()
        if self.kind == "regression":
            return scores
        return scores.softmax(1) if self.kind == "multiclass" else scores.sigmoid()

    @cached_property
    def classes(self) -> Tensor:
        """The predicted classes, of the shape of the labels; not for regression."""
        return self.scores.argmax(1) if self.kind == "multiclass" else (self.scores > 0).long()

    @property
    def by_class(self) -> list[tuple[Tensor, Tensor]]:
        """For each class or label the values and whether it is the right one, each of shape (m,).

        Binary: class 1 alone. Labels that are ignored are left out.
        """
        if self.kind == "binary":
            return [(self.values, self.labels == 1)]
        columns = enumerate(self.values.unbind(1))
        if self.kind == "multiclass":
            return [(values, self.labels == c) for c, values in columns]
        counted = counts(self.labels)
        return [(values[counted[:, c]], self.labels[counted[:, c], c] == 1) for c, values in columns]


State = Tensor | Predictions


@dataclass(kw_only=True)
class Measure(ABC):
    """One number over all samples, or several; the fields of a subclass are its YAML options.

    `state` takes of a batch what the numbers need: a tensor, which adds up over batches, or the predictions
    themselves, which are joined. So the numbers do not depend on the size of batches.
    """

    label: str = ""
    """The name in records and figures; empty: that of the metric."""
    higher_is_better: bool | None = None
    """Whether a model with a higher number is better; null: as the metric says, and else true."""
    is_fraction: bool | None = None
    """Whether it is from 0 to 1, and shown in percent; null: as the metric says, and else false."""
    _total: Tensor | None = field(default=None, init=False, repr=False, compare=False)
    _predictions: list[Predictions] = field(default_factory=list, init=False, repr=False, compare=False)
    _are_finite: bool = field(default=True, init=False, repr=False, compare=False)
    _width: int = field(default=0, init=False, repr=False, compare=False)

    kinds: ClassVar[tuple[Kind, ...]] = (*OF_CLASSES, "regression")
    """The kinds of predictions that have such a number."""

    def __post_init__(self) -> None:
        self.label = self.label or name_of(self)
        if not LABEL.fullmatch(self.label) or self.label.startswith(TAKEN):
            what = f"must be letters, digits and _, begin with a letter, and not with {' or '.join(TAKEN)}"
            raise BadInput.at("label", what)

    @abstractmethod
    def value(self, state: State) -> float | Tensor:
        """The numbers of `names`, from what `state` gives for all samples."""

    def state(self, predictions: Predictions) -> State:
        """What the numbers need of a batch; by default all of it."""
        return predictions

    @property
    def keeps_predictions(self) -> bool:
        """Whether all predictions of an evaluation are kept until its end."""
        return type(self).state is Measure.state

    @property
    def pools(self) -> bool:
        """Whether the number of all nodes' samples together can be had from what each node has taken."""
        return True

    def names(self, width: int) -> tuple[str, ...]:
        """The names of its numbers; `width`: the number of classes, labels or outputs."""
        return (self.label,)

    def specs(self, width: int) -> tuple[MetricSpec, ...]:
        """Its numbers, as records and figures know them."""
        rises, is_fraction = self.higher_is_better is not False, bool(self.is_fraction)
        return tuple(MetricSpec(name, rises, is_fraction) for name in self.names(width))

    def check(self, kind: Kind, width: int) -> None:  # noqa: B027
        """Raises BadInput where predictions of one of its kinds have no such number, by their width."""

    def add(self, predictions: Predictions) -> None:
        """Takes a batch of an evaluation, on any device."""
        self._width = predictions.width
        self._are_finite &= predictions.are_finite
        if self._are_finite and len(predictions.labels):
            self._add(predictions)

    def _add(self, predictions: Predictions) -> None:
        state = self.state(predictions)
        if isinstance(state, Tensor):
            self._total = state.double() if self._total is None else self._total + state
        else:
            self._predictions.append(state)

    def values(self) -> dict[str, float]:
        """Its numbers by name; nan without samples, and after outputs that were not finite."""
        names = self.names(self._width)
        numbers = self._numbers() if self._are_finite else None
        return dict(zip(names, numbers or [nan] * len(names), strict=True))

    def state_dict(self) -> dict[str, Any]:
        """What it has taken, for `join`: numbers, texts and tensors on the CPU."""
        taken: dict[str, Any] = {"width": self._width, "finite": self._are_finite}
        if self._predictions:
            whole = Predictions.joined(self._predictions)
            taken |= {"kind": whole.kind, "scores": whole.scores.cpu(), "labels": whole.labels.cpu()}
        elif self._total is not None:
            taken["total"] = self._total.cpu()
        return taken

    def join(self, taken: Mapping[str, Any]) -> None:
        """Takes what another object of the same options has taken, such as that of another node."""
        self._width = max(self._width, taken["width"])
        self._are_finite &= taken["finite"]
        if "kind" in taken:
            self._predictions.append(Predictions(taken["kind"], taken["scores"], taken["labels"]))
        elif "total" in taken:
            self._total = taken["total"] if self._total is None else self._total + taken["total"]

    def _numbers(self) -> list[float] | None:
        """The numbers in the order of `names`; None without samples."""
        whole = Predictions.joined(self._predictions) if self._predictions else self._total
        if whole is None:
            return None
        numbers: list[float] = torch.as_tensor(self.value(whole), dtype=torch.float64).reshape(-1).tolist()
        return numbers


@dataclass(kw_only=True)
class OfEach(Measure):
    """A metric that each class, label or output has, and the mean over them."""

    per_class: bool = False
    """Adds the number of each class, label or output: `f1_of_0`, or with a label `LABEL_of_0`."""

    stem: ClassVar[str]
    """The name of the number of one class."""

    @abstractmethod
    def each(self, state: State) -> Tensor:
        """The number of each class, float64; nan for one that has none."""

    def mean(self, state: State, each: Tensor) -> Tensor:
        """The mean, by default over the classes that have a number."""
        return each.nanmean()

    def value(self, state: State) -> Tensor:
        each = self.each(state)
        mean = self.mean(state, each).reshape(1)
        return torch.cat([mean, each]) if self.per_class else mean

    def names(self, width: int) -> tuple[str, ...]:
        stem = self.stem if self.label == name_of(self) else self.label
        return (self.label, *(f"{stem}_of_{c}" for c in range(width if self.per_class else 0)))
