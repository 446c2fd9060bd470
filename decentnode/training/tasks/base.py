"""The task of a run: what a model gives for samples, the loss of a batch, the metrics of an evaluation."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from torch import Tensor, nn

from decentnode.core.registry import name_of
from decentnode.datasets.base import LoadedDataset, Samples, counts
from decentnode.errors import BadInput
from decentnode.training.metrics.base import Kind, Measure, MetricSpec, Predictions

Network = Callable[..., Tensor]
"""The outputs for the fields of a batch, on the device of the network."""

LOSS = MetricSpec("loss", higher_is_better=False)


@dataclass(kw_only=True)
class Task(ABC):
    """What models learn; the fields of a subclass are its YAML options.

    Metrics are computed from sums over batches, so they do not depend on the size of batches.
    """

    default_loss: ClassVar[str] = "CrossEntropyLoss"
    """The class of torch.nn that training minimizes if `training.loss` names none."""

    labels_are_classes: ClassVar[bool] = True
    """Whether a label is a class, and not a number."""

    labels_show_ranks: ClassVar[bool] = True
    """Whether ranks may differ in the labels that they have; false for tokens, of which each rank has all."""

    num_classes: ClassVar[int | None] = None
    """The classes that labels may have, 1 for numbers; None: those of the dataset."""

    losses: ClassVar[tuple[type[nn.Module], ...]] = ()
    """The losses of torch that fit; empty: those that can be computed. Other losses are tried alone."""

    @property
    def kind(self) -> Kind:
        """What it predicts, for the metrics of `evaluation.metrics`."""
        return "multiclass" if self.labels_are_classes else "regression"

    def shapes(self, num_classes: int, label_shape: Sequence[int]) -> tuple[tuple[int, ...], ...]:
        """The shapes that the outputs for one sample may have; the first number of the first is what models
        are built with."""
        return ((num_classes, *label_shape),)

    def labelled(self, samples: Samples) -> Samples:
        """Returns samples with labels as the task has them; raises BadInput."""
        return samples

    def of(self, dataset: LoadedDataset) -> LoadedDataset:
        """Returns a dataset with labels as the task has them; raises BadInput."""
        held_out = None if dataset.validation is None else self.labelled(dataset.validation)
        train, test = map(self.labelled, (dataset.train, dataset.test))
        classes = self.num_classes or dataset.num_classes
        return replace(dataset, train=train, test=test, validation=held_out, num_classes=classes)

    @abstractmethod
    def metrics(self, num_classes: int) -> tuple[MetricSpec, ...]:
        """The metrics of an evaluation, the headline metric first; `loss` is one of them."""

    @abstractmethod
    def sums(self, outputs: Tensor, labels: Tensor) -> dict[str, Tensor]:
        """Scalars of a batch that add up over batches; any names but `loss`.

        Labels that do not count are -100, also where the loss ignores another one.
        """

    @abstractmethod
    def values(self, sums: Mapping[str, float], count: float) -> dict[str, float]:
        """The metrics by name, from the sums over all batches and their `count`; `loss` is a sum, too."""

    def measures(self) -> tuple[Measure, ...]:
        """Further metrics of every evaluation, new objects for each."""
        return ()

    def predictions(self, outputs: Tensor, labels: Tensor) -> Predictions:
        """The predictions of a batch, for metrics."""
        if self.kind == "multiclass":
            counted = counts(labels)
            return Predictions("multiclass", outputs.movedim(1, -1)[counted], labels[counted])
        return Predictions(self.kind, outputs.reshape(labels.shape), labels)

    def generated(
        self, network: Network, samples: Samples, batch_size: int, beat: Callable[[], None]
    ) -> dict[str, float]:
        """Returns more sums, of what the network generates for samples, such as texts; none by default.

        `network` is in evaluation mode; `beat` must be called every few seconds, after each step of a search.
        """
        return {}

    def loss(self, outputs: Tensor, labels: Tensor, loss: nn.Module) -> Tensor:
        """The loss of a batch: a scalar, or one number for each label where `loss` reduces nothing."""
        value: Tensor = loss(outputs, labels)
        return value

    def count(self, labels: Tensor) -> int:
        """How many terms the mean loss of a batch has."""
        return len(labels)

    def check(self, dataset: LoadedDataset, loss: object) -> None:
        """Raises BadInput unless the samples suit the task; `loss`: the class of the loss."""
        are_classes = not dataset.train.labels.is_floating_point()
        if are_classes != self.labels_are_classes:
            kinds = {True: "classes", False: "numbers"}
            wanted, actual = kinds[self.labels_are_classes], kinds[are_classes]
            remedy = "use floats" if are_classes else "give labels.long(), or use task: regression"
            what = f"{name_of(self)} needs labels that are {wanted}, those of the dataset are {actual}"
            raise BadInput.at("task", f"{what}; {remedy}")
        self.check_loss(loss)

    def check_loss(self, loss: object) -> None:
        """Raises BadInput for a loss of torch that compares something else."""
        if not self.losses or not isinstance(loss, type) or loss in self.losses:
            return
        if loss.__module__.startswith("torch."):
            fitting = " or ".join(cls.__name__ for cls in self.losses)
            raise BadInput.at("training.loss", f"{name_of(self)} needs {fitting}, not {loss.__name__}")


def share(part: float, whole: float) -> float:
    """A part of a whole; nan if there is nothing that counts."""
    return part / whole if whole else float("nan")
