"""Testing a node's own model in the rounds where that is due, and showing its vector to the observer."""

from dataclasses import dataclass

from decentnode.communication.launcher_link.reports import Evaluated, Reporter
from decentnode.communication.launcher_link.snapshots import SnapshotBuffers
from decentnode.core.byte_counters import ByteCounters
from decentnode.core.clock import Clock
from decentnode.datasets.base import Samples
from decentnode.results.records import RoundRecord, private_megabytes
from decentnode.training.evaluation import Scores, evaluate
from decentnode.training.training import Training


def is_due(round: int, every: int, rounds: int, final: bool = True) -> bool:
    """Whether it is time after this round (counted from 0): every so often, and if `final` after the last."""
    return (final and round + 1 == rounds) or (every > 0 and (round + 1) % every == 0)


@dataclass(frozen=True)
class EvaluationPlan:
    """When models are tested, and on what."""

    samples: Samples
    every: int
    """Rounds between evaluations; 0: only after the last."""
    rounds: int
    batch_size: int
    final: bool = True
    """Whether models are tested after the last round in any case."""

    def is_due(self, round: int) -> bool:
        """Whether models are tested after this round (counted from 0)."""
        return is_due(round, self.every, self.rounds, self.final)


class NodeEvaluation:
    """The evaluations of one node."""

    def __init__(
        self, plan: EvaluationPlan, training: Training, counters: ByteCounters, snapshots: SnapshotBuffers,
        reporter: Reporter, clock: Clock,
    ) -> None:  # fmt: skip
        self.plan = plan
        self.scores: Scores | None = None
        self.peak_memory_mb = 0.0
        self._training = training
        self._counters = counters
        self._snapshots = snapshots
        self._reporter = reporter
        self._clock = clock
        self._began = clock.now()

    def resume(self, seconds: float) -> None:
        """Goes on as a node that has run for so long."""
        self._began = self._clock.now() - seconds

    async def after(self, record: RoundRecord) -> None:
        """Tests the model if that is due after the record's round, and fills in the record."""
        if not self.plan.is_due(record.round):
            return
        began = self._clock.now()
        training = self._training
        scores = self.scores = evaluate(
            training.module, self.plan.samples, training.objective.loss, self.plan.batch_size,
            training.vector.layout.channels_last, training.hooks.beat,
        )  # fmt: skip
        record.test_accuracy, record.test_loss = scores.accuracy, scores.loss
        record.memory_mb = private_megabytes()
        self.peak_memory_mb = max(self.peak_memory_mb, record.memory_mb)
        published = await self._snapshots.publish(
            record.rank, record.round, training.vector.values, self._clock
        )
        record.evaluate_seconds = self._clock.now() - began
        self._reporter.send(
            Evaluated(
                record.rank, record.round, scores.accuracy, scores.loss, record.loss, self._counters.sent,
                self._clock.now() - self._began, published,
            )
        )  # fmt: skip
