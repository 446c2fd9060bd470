"""Evaluates a node's own model in the rounds where that is due, and publishes its vector.

The observer of the machine reads published vectors, and with `evaluation.background` the evaluators do, too.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import prod
from pathlib import Path

from torch import nn

from decentnode.communication.launcher_link.heartbeats import Activity, HeartbeatBoard, HeartbeatSlot
from decentnode.communication.launcher_link.reports import (
    MOST_BYTES,
    DiskProblem,
    Evaluated,
    PooledPiece,
    Published,
    Reporter,
)
from decentnode.communication.launcher_link.snapshots import EvaluatorBoard, SnapshotBuffers
from decentnode.config.settings import EvaluationSettings, Settings
from decentnode.config.type_check import unknown
from decentnode.core.byte_counters import ByteCounters
from decentnode.core.clock import Clock
from decentnode.datasets.base import Dataset, Samples, draw
from decentnode.datasets.normalizer import Normalizer
from decentnode.datasets.ragged import Rows
from decentnode.errors import BadInput
from decentnode.formats.metrics import LOCAL, POOLED, VALIDATION, Metric
from decentnode.formats.records import Records, RoundRecord, private_megabytes
from decentnode.models.state_encoding import UnknownKind
from decentnode.node.checkpoint.node_checkpoints import RunIdentity
from decentnode.node.checkpoint.packed_state import packed, unpacked
from decentnode.node.checkpoint.safetensors_io import BadTensors
from decentnode.node.participant import AfterRound
from decentnode.node.run_samples import RunSamples
from decentnode.training.evaluation import EvaluationScores, MakeMeasure, batch_size, evaluate, specs_of
from decentnode.training.metrics.base import Kind, Measure
from decentnode.training.tasks.base import Task
from decentnode.training.training import Training

MOST_KEPT = 1 << 28
"""Predicted numbers that a metric may keep in an evaluation: 1 GB in float32."""
MOST_POOLED = 1 << 22
"""Numbers predicted for the test samples of all nodes that a metric may keep to be pooled: 16 MB."""
PIECE_BYTES = 2900
"""Bytes of a piece of what metrics have taken; text of a report has 4 letters for 3 of them."""
REPORT_BYTES = 300
"""Bytes of the report of a node's end, without its metrics."""
NUMBER_BYTES = 21
"""Bytes of a number in that report, with its name and punctuation."""


def report_bytes(names: Iterable[str]) -> int:
    """Returns how many bytes the report of a node's end needs at most, with numbers of these names."""
    return REPORT_BYTES + sum(len(name.encode()) + NUMBER_BYTES for name in names)


def is_due(round: int, every: int, rounds: int, final: bool = True) -> bool:
    """Whether evaluation is due after a round (from 0): each `every` rounds, if `final` after the last."""
    return (final and round + 1 == rounds) or (every > 0 and (round + 1) % every == 0)


@dataclass(frozen=True)
class EvaluationPlan:
    """When models are evaluated, which ones, and on which samples; after the last round on all."""

    samples: Samples
    every: int
    """Rounds between evaluations; 0: only after the last."""
    rounds: int
    batch_size: int
    final: bool = True
    """Whether models are always evaluated after the last round."""
    drawn: Samples | None = None
    """The samples before the last round; None: all."""
    ranks: frozenset[int] | None = None
    """The nodes whose models are evaluated before the last round; None: all."""
    last_ranks: frozenset[int] | None = None
    """The nodes whose models are evaluated after the last round; None: all."""
    adversaries: frozenset[int] = frozenset()
    """Nodes whose models are never evaluated, because they lie to the others."""
    validation: Samples | None = None
    """The validation samples, all of them in each evaluation; None: there are none."""
    local: tuple[Samples, ...] = ()
    """The test samples of each rank alone, all of them in each evaluation; empty: there are none."""
    normalizers: tuple[Normalizer, ...] = ()
    """How each rank normalizes samples; empty: all do it as the samples say."""
    listed: tuple[MakeMeasure, ...] = ()
    """The metrics of `evaluation.metrics`."""
    pooled: tuple[MakeMeasure, ...] = ()
    """Those of them that have a number for the own test samples of all nodes together."""
    metrics: tuple[Metric, ...] = ()
    """What is measured, the headline first; on validation and own samples last."""
    target: tuple[Metric, float] | None = None
    """The metric and the value at which the run ends; None: it has no target."""

    @classmethod
    def of(cls, settings: Settings, run_samples: RunSamples, network: nn.Module) -> "EvaluationPlan":
        """Draws the test samples of all evaluations; raises BadInput for what cannot be measured."""
        tests, dataset, samples = settings.evaluation, run_samples.dataset, run_samples.dataset.test
        source: Dataset = settings.dataset.make()
        size = source.available(tests.samples, samples)
        if size is not None and size > len(samples):
            what = f"{size} samples asked for, the test set has {len(samples)}"
            raise BadInput.at("evaluation.samples", what)
        nodes = len(run_samples.parts)
        sample = tests.sample(nodes, settings.seed, settings.adversary_ranks)
        task: Task = settings.task.make()
        width = 2 if task.kind == "binary" else run_samples.width
        listed = tuple(plugin.make for plugin in tests.metrics)
        tried = _tried(listed, task.kind, width, samples.labels)
        specs = specs_of(task, listed, dataset.num_classes, width)
        metrics = tuple(Metric(*spec) for spec in specs)
        of_validation = tuple(metric.of_validation for metric in metrics if dataset.validation is not None)
        local = run_samples.own_tests
        kept = width * sum(prod(of_node.labels.shape) for of_node in local)
        pooled = {
            make: metric.names(width)
            for make, metric in zip(listed, tried, strict=True)
            if local and metric.pools and not (metric.keeps_predictions and kept > MOST_POOLED)
        }
        of_pooled = {name for names in pooled.values() for name in names}
        metrics += (
            *of_validation,
            *(metric.of_local for metric in metrics if local),
            *(metric.of_pooled for metric in metrics if metric.name in of_pooled),
        )
        if (needed := report_bytes(metric.name for metric in metrics)) > MOST_BYTES:
            raise BadInput.at(
                "task",
                f"the {len(metrics)} metrics of an evaluation need {needed} bytes of a node's report, which "
                f"has {MOST_BYTES}; measure fewer, for instance with per_class: false",
            )
        return cls(
            samples, tests.every, settings.rounds, tests.batch_size or batch_size(network), tests.final,
            drawn=None if size is None else draw(samples, size, "evaluation", settings.seed),
            ranks=tests.tested(nodes) if sample is None else sample, last_ranks=sample,
            adversaries=settings.adversary_ranks, validation=dataset.validation, local=local,
            normalizers=run_samples.normalizers, listed=listed, pooled=(*pooled,), metrics=metrics,
            target=_target(tests, {metric.name: metric for metric in metrics}),
        )  # fmt: skip

    @property
    def shown(self) -> list[Metric]:
        """The metrics whose means are shown after each evaluation: those of `evaluation.metrics`."""
        labels = {make().label for make in self.listed}
        return [metric for metric in self.metrics if metric.name in labels]

    def is_due(self, round: int) -> bool:
        """Whether models are evaluated after this round (from 0)."""
        return is_due(round, self.every, self.rounds, final=self.final)

    def is_last(self, round: int) -> bool:
        """Whether the evaluation after this round is that of the end.

        A run that has reached its target ends with one that `every` does not ask for.
        """
        return round + 1 == self.rounds or not is_due(round, self.every, self.rounds, final=False)

    def includes(self, rank: int, round: int) -> bool:
        """Whether the model of this node is evaluated after this round, where that is due."""
        ranks = self.last_ranks if self.is_last(round) else self.ranks
        return rank not in self.adversaries and (ranks is None or rank in ranks)

    def samples_after(self, round: int) -> Samples:
        """The samples of the evaluation after this round."""
        return self.samples if self.drawn is None or self.is_last(round) else self.drawn

    def measured(
        self, round: int, test: Callable[[Samples], EvaluationScores], rank: int | None = None
    ) -> EvaluationScores:
        """The metrics after this round by name, those on the validation samples with `validation_` before it.

        `test`: the metrics of a model on some samples; `rank`: the node whose model it is, which is also
        tested on the node's own samples (`local_`), if there are any, and on all as the node normalizes them.
        The `measures` of what is returned are those of its own samples.
        """
        if rank is not None and self.normalizers:
            test = partial(_on_normalized, test, self.normalizers[rank])
        scores = EvaluationScores(test(self.samples_after(round)))
        if self.validation is not None:
            scores.update({VALIDATION + name: value for name, value in test(self.validation).items()})
        if rank is not None and self.local and len(self.local[rank]):
            of_own = test(self.local[rank])
            scores.update({LOCAL + name: value for name, value in of_own.items()})
            scores.measures = of_own.measures
        return scores

    def pieces(self, rank: int, round: int, scores: EvaluationScores) -> Iterator[PooledPiece]:
        """Yields what is pooled of a node's own samples, in pieces that a report has room for."""
        if self.pooled and scores.measures:
            by_label = {measure.label: measure for measure in scores.measures}
            content = packed([by_label[make().label].state_dict() for make in self.pooled])
            starts = range(0, len(content), PIECE_BYTES)
            for index, start in enumerate(starts):
                yield PooledPiece(rank, round, index, len(starts), content[start : start + PIECE_BYTES])

    def pool(self, contents: Iterable[bytes]) -> dict[str, float]:
        """The pooled metrics by name, from the joined pieces of each node."""
        measures = [make() for make in self.pooled]
        for content in contents:
            for measure, taken in zip(measures, unpacked(content), strict=True):
                measure.join(taken)
        return {POOLED + name: value for one in measures for name, value in one.values().items()}


def _on_normalized(
    test: Callable[[Samples], EvaluationScores], normalizer: Normalizer, samples: Samples
) -> EvaluationScores:
    return test(normalizer.of(samples))


def _tried(metrics: Sequence[MakeMeasure], kind: Kind, width: int, labels: Rows) -> list[Measure]:
    """Returns an object of each; raises BadInput for the first that predictions for these labels lack."""
    numbers, tried = width * prod(labels.shape), []
    for index, make in enumerate(metrics):
        key, measure = f"evaluation.metrics[{index}]", make()
        try:
            measure.check(kind, width)
        except BadInput as error:
            raise BadInput.at(key, str(error)) from error
        if measure.keeps_predictions and numbers > MOST_KEPT:
            what = f"{measure.label} would keep {numbers:,} predicted numbers until the end of an evaluation"
            raise BadInput.at(key, f"{what}, more than {MOST_KEPT:,}; lower dataset.test_size")
        tried.append(measure)
    return tried


def _target(evaluation: EvaluationSettings, metrics: dict[str, Metric]) -> tuple[Metric, float] | None:
    """Returns the metric and the value of the target, None without one; raises BadInput."""
    for name, value in (evaluation.target or {}).items():
        if name not in metrics:
            raise BadInput.at(f"evaluation.target.{name}", unknown("metric", name, [*metrics]))
        if metrics[name].is_fraction and not 0 < value <= 1:
            reason = f"must be a number > 0 and <= 1, a fraction, not {value:g}"
            raise BadInput.at(f"evaluation.target.{name}", reason)
        return metrics[name], value
    return None


@dataclass(frozen=True)
class NodeResources:
    """The resources that all nodes of a machine use; made before the fork."""

    snapshots: SnapshotBuffers
    """The snapshots of vectors that the observer reads."""
    evaluators: EvaluatorBoard
    evaluator_timeout: float
    """Seconds that a node waits for evaluators that have not read its last vector."""
    reporter: Reporter
    """The pipe to the launcher."""
    records: Path
    """The folder of their records, in that of the run."""
    heartbeats: HeartbeatBoard
    identity: RunIdentity

    def report_disk(self, rank: int, text: str) -> None:
        """Reports in one line what a disk refused."""
        self.reporter.send(DiskProblem(rank, text[:500]))


@dataclass(eq=False)
class NodeEvaluation(AfterRound):
    """The evaluations of one node."""

    plan: EvaluationPlan
    training: Training
    counters: ByteCounters
    resources: NodeResources
    clock: Clock
    records: Records
    heartbeat: HeartbeatSlot
    scores: dict[str, float] = field(default_factory=dict, init=False)
    """The scores of the last evaluation, by metric; empty where other processes made it."""
    round: int = field(default=-1, init=False)
    """The round of the last evaluation since this process began, here or in the background."""
    peak_memory_mb: float = field(default=0.0, init=False)

    def scores_after(self, round: int) -> dict[str, float]:
        return self.scores if self.round == round else {}

    async def after(self, record: RoundRecord) -> bool:
        """Evaluates the model, or has it evaluated, if that is due after the record's round."""
        if self.plan.is_due(record.round):
            await self._evaluate(record)
        return False

    async def at_the_end(self, record: RoundRecord) -> None:
        """Evaluates the model after the last round of a run, if that is wanted.

        Repeats the last evaluation in a node that was saved after its last round and resumes from there: the
        record of that round exists; the launcher knows whether the evaluation's row does.
        """
        if self.round < record.round and (self.plan.final or self.plan.is_due(record.round)):
            self.heartbeat.mark(record.round, Activity.EVALUATE)
            await self._evaluate(record)

    async def _evaluate(self, record: RoundRecord) -> None:
        self.round, self.scores = record.round, {}
        began, elapsed, resources = self.clock.now(), self.records.seconds, self.resources
        # May wait for the observer, but at most for its timeout.
        published = await resources.snapshots.publish(
            record.rank, record.round, self.training.vector.shared, clock=self.clock
        )
        is_tested = self.plan.includes(record.rank, record.round)
        in_background = is_tested and await self._hand_over(record)
        # After the vector is published: on this report the observer and an evaluator read it.
        resources.reporter.send(
            Published(
                rank=record.rank,
                round=record.round,
                train_loss=record.loss,
                bytes_sent=self.counters.sent,
                seconds=elapsed,
                published=published,
                evaluation="background" if in_background else "here" if is_tested else "none",
                wall_seconds=self.records.wall_seconds if self.records.are_virtual else None,
            )
        )
        if is_tested and not in_background:
            training, plan = self.training, self.plan
            training.prepare_evaluation(record.round)
            scores = plan.measured(
                record.round,
                lambda samples: evaluate(
                    training.objective, samples, plan.batch_size, training.hooks.beat, plan.listed
                ),
                record.rank,
            )
            record.metrics = self.scores = dict(scores)
            for piece in plan.pieces(record.rank, record.round, scores):
                resources.reporter.send(piece)
            resources.reporter.send(Evaluated(record.rank, record.round, record.metrics))
        record.memory_mb = private_megabytes()
        self.peak_memory_mb = max(self.peak_memory_mb, record.memory_mb)
        record.evaluate_seconds = self.clock.now() - began

    async def _hand_over(self, record: RoundRecord) -> bool:
        """Gives the model to the evaluators, unless they are too far behind.

        So at most one vector of each node waits for them. After the last round this process has nothing else
        to do, so it leaves to them only what they begin at once.
        """
        evaluators, training = self.resources.evaluators, self.training
        is_last = self.plan.is_last(record.round)
        if not evaluators.are_there or (is_last and evaluators.snapshots.has_pending):
            return False
        training.attach()
        try:
            module_state = packed(training.module_state.state_dict())
        except (UnknownKind, BadTensors):
            # The node has what no other process can have.
            return False
        return await evaluators.snapshots.publish(
            record.rank,
            record.round,
            training.vector.values,
            clock=self.clock,
            module_state=module_state,
            timeout=self.resources.evaluator_timeout,
        )
