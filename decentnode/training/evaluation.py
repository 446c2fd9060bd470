"""Evaluates a model: the metrics of its task on samples that it was not trained on."""

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from decentnode.core.rng import generator
from decentnode.core.vector import ParameterLayout, Vector
from decentnode.datasets.base import Samples
from decentnode.errors import DatasetError
from decentnode.models.module_state import ModuleState
from decentnode.training.metrics.base import Measure, MetricSpec, OfEach
from decentnode.training.minibatches import Shard
from decentnode.training.objective import Objective
from decentnode.training.tasks.base import Task


class EvaluationScores(dict[str, float]):
    """The metrics of an evaluation, by name."""

    measures: Sequence[Measure] = ()
    """What has measured those beside the sums of the task."""


MakeMeasure = Callable[[], Measure]
"""Returns a new object, for one evaluation."""
BATCH_SIZE, LINEAR_BATCH_SIZE = 64, 512
"""The fastest measured on a CPU: activations of convolutions exceed its caches from 128 samples on."""


def batch_size(network: nn.Module) -> int:
    """The number of samples to evaluate a network on at once, larger where all its layers are linear."""
    layers = [part for part in network.modules() if any(True for _ in part.parameters(recurse=False))]
    return LINEAR_BATCH_SIZE if all(isinstance(part, nn.Linear) for part in layers) else BATCH_SIZE


def evaluate(
    objective: Objective,
    samples: Samples,
    batch_size: int = BATCH_SIZE,
    beat: Callable[[], None] | None = None,
    metrics: Sequence[MakeMeasure] = (),
) -> EvaluationScores:
    """The metrics over all samples, by name, in evaluation mode; restores the mode of the module.

    These are first the `metrics`, then those of the task. `beat` is called after every batch.
    """
    if not len(samples):
        raise DatasetError("there are no samples to evaluate on; the test set is empty")
    # Not torch.inference_mode: a network may train later with what it keeps now, such as a table.
    sums, count = defaultdict[str, float](float), 0.0
    measures = measures_of(objective.task, metrics)
    with evaluation_mode(objective.module), torch.no_grad():
        for rows in samples.in_batches(batch_size):
            batch = samples.batch(rows)
            outputs, loss = objective(batch)
            size = objective.count(batch)
            # A mean over nothing is not a number.
            if size:
                sums["loss"] += objective.total(loss.item(), size)
            count += size
            for name, value in objective.sums(outputs, batch).items():
                sums[name] += value.item()
            if measures:
                predictions = objective.predictions(outputs, batch)
                for metric in measures:
                    metric.add(predictions)
            if beat is not None:
                beat()
        for name, number in objective.generated(samples, batch_size, beat).items():
            sums[name] += number
    measured = {name: value for metric in measures for name, value in metric.values().items()}
    scores = EvaluationScores(measured | objective.task.values(sums, count))
    scores.measures = measures
    return scores


def measures_of(task: Task, metrics: Sequence[MakeMeasure]) -> list[Measure]:
    """Returns new objects of these metrics, and of those of the task that they do not have.

    A metric that both have is as detailed as the task has it, such as with `per_output`.
    """
    of_task = {metric.label: metric for metric in task.measures()}
    found: list[Measure] = [make() for make in metrics]
    for metric in found:
        same = of_task.pop(metric.label, None)
        if isinstance(metric, OfEach) and type(same) is type(metric):
            metric.per_class |= same.per_class
    return [*found, *of_task.values()]


def specs_of(
    task: Task, metrics: Sequence[MakeMeasure], num_classes: int, width: int
) -> tuple[MetricSpec, ...]:
    """Returns what `evaluate` measures, in its order; `width`: of classes, labels or outputs."""
    specs = {spec.name: spec for metric in measures_of(task, metrics) for spec in metric.specs(width)}
    return tuple((specs | {spec.name: spec for spec in task.metrics(num_classes)}).values())


@contextmanager
def evaluation_mode(module: nn.Module) -> Iterator[None]:
    """Disables dropout and uses running batch statistics, then restores the mode of each part."""
    training = [part for part in module.modules() if part.training]
    module.eval()
    try:
        yield
    finally:
        for part in training:
            part.training = True


class VectorTest:
    """Evaluates vectors in a network of its own."""

    def __init__(
        self, objective: Objective, layout: ParameterLayout, metrics: Sequence[MakeMeasure] = ()
    ) -> None:
        """`load` changes the network of the objective; `metrics`: as for `evaluate`."""
        self._metrics = metrics
        self._objective = objective
        self._layout = layout
        self.module_state = ModuleState(objective.module, [entry.name for entry in layout.entries])
        """The module state of the network, to be loaded before a test."""

    def load(self, vector: Tensor) -> None:
        """Copies a vector of shape (d,) into the network."""
        load_flat(self._objective.module, self._layout, vector)

    def run(
        self, samples: Samples, batch_size: int, beat: Callable[[], None] | None = None
    ) -> EvaluationScores:
        """The metrics of the loaded vector over all samples, by name."""
        return evaluate(self._objective, samples, batch_size, beat=beat, metrics=self._metrics)


class LocalLoss:
    """The loss of vectors on samples that a node trains on, for rules that test models of neighbors."""

    def __init__(
        self, objective: Objective, layout: ParameterLayout, shard: Shard, batch_size: int,
        vector: Vector | None = None,
    ) -> None:  # fmt: skip
        """The network of the objective is for this alone; batch norm uses the statistics of the batch.

        `vector`: the node's own, whose personal parameters complete what others send.
        """
        self._objective, self._layout, self._vector = objective, layout, vector
        self._shard = shard
        self._size = min(shard.size, max(batch_size, shard.least_batch))

    def __call__(self, vector: Tensor, round: int) -> float:
        """The mean loss of a vector, shape (d,), on the minibatch of this round."""
        load_flat(self._objective.module, self._layout, vector)
        if self._vector is not None:
            load_flat(self._objective.module, self._vector.layout.personal, self._vector.values)
        random = generator(self._shard.seed, "local_loss", round, self._shard.rank)
        chosen = random.choice(len(self._shard.indices), self._size, replace=False)
        batch = self._shard.batch(self._shard.indices[torch.from_numpy(chosen)], round)
        with torch.no_grad():
            return float(self._objective(batch)[1])


def load_flat(module: nn.Module, layout: ParameterLayout, flat: Tensor) -> None:
    """Copies a vector of shape (d,), such as the average model, into a module of the same layout."""
    tensors = dict(module.named_parameters()) | dict(module.named_buffers())
    with torch.no_grad():
        for entry in layout.entries:
            tensors[entry.name].copy_(entry.view(flat))
