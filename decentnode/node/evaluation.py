"""Evaluates a node's own model in the rounds where that is due, and publishes its vector to the observer."""

from dataclasses import dataclass

from decentnode.communication.launcher_link.reports import Evaluated, Reporter
from decentnode.communication.launcher_link.snapshots import SnapshotBuffers
from decentnode.core.byte_counters import ByteCounters
from decentnode.core.clock import Clock
from decentnode.datasets.base import Samples
from decentnode.results.records import RoundRecord, private_megabytes
from decentnode.training.evaluation import evaluate
from decentnode.training.training import Training


def is_due(round: int, every: int, rounds: int, final: bool = True) -> bool:
    """Whether evaluation is due after this round (from 0): every `every` rounds and, if `final`, after the
    last.
    """
    return (final and round + 1 == rounds) or (every > 0 and (round + 1) % every == 0)


@dataclass(frozen=True)
class EvaluationPlan:
    """When models are evaluated, and on which samples."""

    samples: Samples
    every: int
    """Rounds between evaluations; 0: only after the last."""
    rounds: int
    batch_size: int
    final: bool = True
    """Whether models are always evaluated after the last round."""

    def is_due(self, round: int) -> bool:
        """Whether models are evaluated after this round (from 0)."""
        return is_due(round, self.every, self.rounds, self.final)


class NodeEvaluation:
    """The evaluations of one node."""

    def __init__(
        self, plan: EvaluationPlan, training: Training, counters: ByteCounters, snapshots: SnapshotBuffers,
        reporter: Reporter, clock: Clock,
    ) -> None:  # fmt: skip
        self.plan = plan
        self.scores: dict[str, float] = {}
        """Of the last evaluation, by metric."""
        self.peak_memory_mb = 0.0
        self._training = training
        self._counters = counters
        self._snapshots = snapshots
        self._reporter = reporter
        self._clock = clock
        self._began = clock.now()

    def resume(self, seconds: float) -> None:
        """Continues with this elapsed time, in seconds."""
        self._began = self._clock.now() - seconds

    async def after(self, record: RoundRecord) -> None:
        """Evaluates the model if that is due after the record's round, and fills in the record."""
        if not self.plan.is_due(record.round):
            return
        began = self._clock.now()
        training = self._training
        scores = self.scores = evaluate(
            training.module, self.plan.samples, training.objective.loss, self.plan.batch_size,
            training.vector.layout.channels_last, training.hooks.beat,
        )  # fmt: skip
        record.metrics = scores
        record.memory_mb = private_megabytes()
        self.peak_memory_mb = max(self.peak_memory_mb, record.memory_mb)
        # May wait for the observer, but at most for its timeout.
        published = await self._snapshots.publish(
            record.rank, record.round, training.vector.values, self._clock
        )
        record.evaluate_seconds = self._clock.now() - began
        # After the vector is published: on this report the observer reads it.
        self._reporter.send(
            Evaluated(
                record.rank, record.round, record.metrics, record.loss, self._counters.sent,
                self._clock.now() - self._began, published,
            )
        )  # fmt: skip
