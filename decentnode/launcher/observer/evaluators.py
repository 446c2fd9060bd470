"""Processes that evaluate published vectors while the nodes train (`evaluation.background`).

They have a lower priority, so they use what the nodes leave of the processors. A node that is due again
before its last vector was read waits for them, but not for long. Each gets one vector at a time, in the order
of their publication.
"""

import contextlib
import faulthandler
import os
import struct
import sys
from collections import deque
from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

import torch

from decentnode.communication.device.staging import device_for
from decentnode.communication.launcher_link.reports import (
    Evaluated,
    PooledPiece,
    Published,
    Report,
    Reporter,
    ReportReader,
)
from decentnode.communication.launcher_link.snapshots import EvaluatorBoard, SnapshotBuffers
from decentnode.core.clock import AwakeClock
from decentnode.core.control_groups import processors
from decentnode.core.process_setup import keep_freed_memory
from decentnode.core.rng import key, seed_generators
from decentnode.core.text import how_it_ended
from decentnode.formats.records import private_megabytes
from decentnode.launcher.processes.child_process import ChildProcess
from decentnode.launcher.state.dispatcher import Dispatcher
from decentnode.node.checkpoint.packed_state import unpacked
from decentnode.node.experiment import Experiment, vector_test
from decentnode.node.host_process import PRINT_STACKS

NICENESS = 3
"""Half of the weight of a node, where both want the same processor.

Much less would make nodes that wait for an evaluator wait for all other programs of the machine, too.
"""
VIRTUAL_SLOTS = 4
"""Evaluations that a node may be ahead of others in virtual time, which stands while it waits for them."""
_TASK = struct.Struct("<II")
"""What an evaluator is asked for: rank and round."""


def evaluators_wanted(experiment: Experiment, local: Collection[int]) -> int:
    """Returns the number of evaluators for these ranks of a machine; more than nodes are never busy."""
    wanted = experiment.settings.evaluation.background
    if wanted is True:
        # Where nodes keep all processors busy, an evaluator gains nothing and costs them time.
        processes = len({experiment.home[rank] for rank in local})
        return min(max(0, processors() - processes), len(local))
    return min(int(wanted), len(local))


@dataclass
class _Evaluator:
    """The launcher's end of one process."""

    index: int
    child: ChildProcess
    tasks: int
    """The pipe of its tasks."""
    reader: ReportReader
    published: Published | None = None
    beats: int = 0
    since: float = 0.0
    """The time at which it last made progress."""

    is_hung: bool = False
    """Whether it was killed because it made no progress."""

    def close(self) -> int:
        """Ends the process; returns its exit code, or minus the signal that ended it."""
        os.close(self.tasks)
        os.close(self.reader.fd)
        return self.child.close()


class EvaluatorPool:
    """The evaluators of a machine and the vectors that its nodes publish.

    Without `evaluation.background` there is no evaluator, and every method does nothing.
    """

    def __init__(
        self,
        experiment: Experiment,
        local: Collection[int],
        run_dir: Path,
        log_event: Callable[[str, str], object],
    ) -> None:
        """`local`: the ranks of this machine; `log_event` gets the kind and the text of an event.

        Nothing runs before `start`.
        """
        self._experiment = experiment
        self.count = evaluators_wanted(experiment, local)
        """The number of evaluators."""
        layout, ranks = experiment.layout, sorted(local)
        is_virtual = experiment.settings.communication.make().plan.has_virtual_time
        slots = VIRTUAL_SLOTS if is_virtual else 1
        self.snapshots = SnapshotBuffers(ranks, layout.shared.numel, layout.dtype, slots=slots)
        """For the observer, which measures the shared part of models."""
        snapshots = SnapshotBuffers(
            ranks if self.count else [],
            layout.numel,
            layout.dtype,
            experiment.module_state_bytes if self.count else 0,
        )
        self.board = EvaluatorBoard(snapshots, self.count)
        self._local = frozenset(local)
        self._run_dir = run_dir
        self._log_event = log_event
        self._waiting_published: deque[Published] = deque()
        # An evaluator is hung if several looks have found no progress, not one after a suspension of both.
        self._clock = AwakeClock(experiment.settings.failures.deadline / 4)
        self._evaluators: list[_Evaluator] = []

    def register(self, dispatcher: Dispatcher[Report]) -> None:
        """Registers for models of this machine that are to be evaluated here."""
        dispatcher.register(Published, self._note_publication)

    def _note_publication(self, published: Published) -> None:
        if published.evaluation == "background" and published.rank in self._local:
            self.submit(published)

    def start(self, threads: int) -> None:
        """Forks the evaluators, with so many threads of torch each; raises StartError.

        No thread may run yet.
        """
        for index in range(self.count):
            self._evaluators.append(self._fork(index, threads))

    @property
    def descriptors(self) -> list[int]:
        """Readable when `reports` has something to do."""
        return [evaluator.reader.fd for evaluator in self._evaluators]

    @property
    def is_busy(self) -> bool:
        """Whether an evaluation is awaited."""
        return bool(self._waiting_published) or any(evaluator.published for evaluator in self._evaluators)

    @property
    def memory_mb(self) -> float:
        """Memory that only the evaluators use now, in MB."""
        return sum(private_megabytes(evaluator.child.pid) for evaluator in self._evaluators)

    def submit(self, published: Published) -> None:
        """Has a vector of this machine evaluated."""
        self._waiting_published.append(published)
        self._distribute()

    def reports(self) -> list[Evaluated | PooledPiece]:
        """Returns finished evaluations; those that failed have no metrics."""
        evaluated: list[Evaluated | PooledPiece] = []
        now = self._clock.now()
        for evaluator in [*self._evaluators]:
            for report in evaluator.reader.read():
                if isinstance(report, Evaluated | PooledPiece):
                    evaluated.append(report)
                if isinstance(report, Evaluated):
                    evaluator.published = None
            if (beats := self.board.beats_of(evaluator.index)) != evaluator.beats:
                evaluator.beats, evaluator.since = beats, now
            elif evaluator.published and now - evaluator.since > self._experiment.settings.failures.deadline:
                evaluator.is_hung = True
                evaluator.child.kill()
            if evaluator.reader.closed:
                evaluated += self._remove(evaluator)
        self._distribute()
        if not self._evaluators:
            evaluated += [self._failed(task) for task in self._waiting_published]
            self._waiting_published.clear()
        return evaluated

    def close(self) -> None:
        """Ends all evaluators at once."""
        for evaluator in self._evaluators:
            evaluator.close()
        self._evaluators.clear()

    def _distribute(self) -> None:
        for evaluator in self._evaluators:
            if evaluator.published is None and self._waiting_published:
                evaluator.published = self._waiting_published.popleft()
                evaluator.since = self._clock.now()
                # The end of the process shows in its reports.
                with contextlib.suppress(BrokenPipeError):
                    os.write(evaluator.tasks, _TASK.pack(evaluator.published.rank, evaluator.published.round))

    def _remove(self, evaluator: _Evaluator) -> list[Evaluated]:
        """Removes an evaluator that has ended; its evaluation has failed."""
        self._evaluators.remove(evaluator)
        self.board.note_end()
        how, published = how_it_ended(evaluator.close()), evaluator.published
        if evaluator.is_hung:
            how = f"no progress for {self._experiment.settings.failures.deadline:.0f} s"
        event = f"a process that evaluates in the background has ended ({how})"
        if published:
            event += f"; the evaluation of rank {published.rank} after round {published.round + 1} is missing"
        then = "" if self._evaluators else "; the nodes evaluate their models themselves"
        self._log_event("evaluation", f"{event}{then}; its log: {evaluator.child.log}")
        return [self._failed(published)] if published else []

    def _failed(self, published: Published) -> Evaluated:
        self.board.snapshots.release(published.rank, published.round)
        return Evaluated(published.rank, published.round, {})

    def _fork(self, index: int, threads: int) -> _Evaluator:
        task_end, tasks = os.pipe()
        read, write = os.pipe()

        def work() -> None:
            # Otherwise no write would fail after the launcher has died.
            os.close(read)
            # As the nodes have, so the numbers are the same.
            torch.set_num_threads(threads)
            _serve(self._experiment, self.board, index, task_end, Reporter(write))

        child = ChildProcess("a process for evaluation", work, self._run_dir / f"logs/evaluator-{index}.log")
        os.close(task_end)
        # Its end must show here as the end of the pipe.
        os.close(write)
        return _Evaluator(index, child, tasks, ReportReader(read))


def _serve(experiment: Experiment, board: EvaluatorBoard, index: int, tasks: int, reporter: Reporter) -> None:
    """Evaluates what the launcher asks for, until that kills this process."""
    faulthandler.register(PRINT_STACKS, file=sys.stderr.fileno())
    os.nice(NICENESS)
    keep_freed_memory()
    plan, beat, test_on = experiment.plan, partial(board.beat, index), cache(partial(vector_test, experiment))
    while task := os.read(tasks, _TASK.size):
        rank, round = _TASK.unpack(task)
        test = test_on(device_for(experiment.settings.device, experiment.mapping.local_rank(rank)))
        test.load(board.snapshots.vector(rank, round))
        test.module_state.load_state_dict(unpacked(board.snapshots.module_state(rank)))
        # The copy is made, so the node may publish again.
        board.snapshots.release(rank, round)
        beat()
        # As the node would have them.
        seed_generators(key(experiment.settings.seed, "evaluate", round, rank), on_cpu=False)
        scores = plan.measured(round, partial(test.run, batch_size=plan.batch_size, beat=beat), rank)
        for piece in plan.pieces(rank, round, scores):
            reporter.send(piece)
        reporter.send(Evaluated(rank, round, scores))
