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
from decentnode.communication.launcher_link.reports import Evaluated, Published, Reporter, ReportReader
from decentnode.communication.launcher_link.snapshots import EvaluatorBoard, SnapshotBuffers
from decentnode.core.clock import AwakeClock
from decentnode.core.process_setup import keep_freed_memory
from decentnode.core.rng import key, seed_generators
from decentnode.launcher.child_process import ChildProcess
from decentnode.launcher.control_groups import processors
from decentnode.node.checkpoint.packed_state import unpacked
from decentnode.node.experiment import Experiment, vector_test
from decentnode.node.host_process import TELL_STACKS
from decentnode.results.records import private_megabytes

NICENESS = 3
"""Half of the weight of a node, where both want the same processor.

Much less would make nodes that wait for an evaluator wait for all other programs of the machine, too.
"""
_TASK = struct.Struct("<II")
"""What an evaluator is asked for: rank and round."""


def evaluators_wanted(experiment: Experiment, local: Collection[int]) -> int:
    """The number of evaluators for these ranks of a machine; more than nodes are never busy."""
    given = experiment.settings.evaluation.background
    if given is True:
        # Where nodes keep all processors busy, an evaluator gains nothing and costs them time.
        processes = len({experiment.home[rank] for rank in local})
        return min(max(0, processors() - processes), len(local))
    return min(int(given), len(local))


@dataclass
class _Evaluator:
    """The launcher's end of one process."""

    index: int
    child: ChildProcess
    tasks: int
    """The pipe of its tasks."""
    reader: ReportReader
    task: Published | None = None
    beats: int = 0
    since: float = 0.0
    """When it last made progress."""

    def close(self) -> None:
        """Ends the process."""
        os.close(self.tasks)
        os.close(self.reader.fd)
        self.child.close()


class EvaluatorPool:
    """The evaluators of a machine and the vectors that its nodes publish.

    Without `evaluation.background` there is no evaluator, and every method does nothing.
    """

    def __init__(
        self, experiment: Experiment, local: Collection[int], run_dir: Path, say: Callable[[str, str], object]
    ) -> None:
        """`local`: the ranks of this machine; `say` gets the kind and the text of an event.

        Nothing runs before `start`.
        """
        self._experiment = experiment
        self._count = evaluators_wanted(experiment, local)
        layout, ranks = experiment.layout, sorted(local)
        self.snapshots = SnapshotBuffers(ranks, layout.numel, layout.dtype)
        """For the observer."""
        own = SnapshotBuffers(
            ranks if self._count else [],
            layout.numel,
            layout.dtype,
            experiment.room_beside if self._count else 0,
        )
        self.board = EvaluatorBoard(own, self._count)
        self._run_dir = run_dir
        self._say = say
        self._waiting: deque[Published] = deque()
        # An evaluator is hung if several looks have found no progress, not one after a suspension of both.
        self._clock = AwakeClock(experiment.settings.failures.deadline / 4)
        self._live: list[_Evaluator] = []

    def start(self, threads: int) -> None:
        """Forks the evaluators, with so many threads of torch each; raises StartError.

        No thread may run yet.
        """
        for index in range(self._count):
            self._live.append(self._fork(index, threads))

    @property
    def descriptors(self) -> list[int]:
        """Readable when `reports` has something to do."""
        return [one.reader.fd for one in self._live]

    @property
    def is_busy(self) -> bool:
        """Whether an evaluation is awaited."""
        return bool(self._waiting) or any(one.task for one in self._live)

    @property
    def memory_mb(self) -> float:
        """Memory that only the evaluators use now, in MB."""
        return sum(private_megabytes(one.child.pid) for one in self._live)

    def submit(self, published: Published) -> None:
        """Has a vector of this machine evaluated."""
        self._waiting.append(published)
        self._distribute()

    def reports(self) -> list[Evaluated]:
        """Finished evaluations; those that failed have no metrics."""
        found: list[Evaluated] = []
        now = self._clock.now()
        for one in [*self._live]:
            for report in one.reader.read():
                if isinstance(report, Evaluated):
                    found.append(report)
                    one.task = None
            if (beats := self.board.beats_of(one.index)) != one.beats:
                one.beats, one.since = beats, now
            elif one.task and now - one.since > self._experiment.settings.failures.deadline:
                one.child.kill()
            if one.reader.closed:
                found += self._bury(one)
        self._distribute()
        if not self._live:
            found += [self._failed(task) for task in self._waiting]
            self._waiting.clear()
        return found

    def close(self) -> None:
        """Ends all evaluators at once."""
        for one in self._live:
            one.close()
        self._live.clear()

    def _distribute(self) -> None:
        for one in self._live:
            if one.task is None and self._waiting:
                one.task = self._waiting.popleft()
                one.since = self._clock.now()
                # The end of the process shows in its reports.
                with contextlib.suppress(BrokenPipeError):
                    os.write(one.tasks, _TASK.pack(one.task.rank, one.task.round))

    def _bury(self, one: _Evaluator) -> list[Evaluated]:
        """Removes an evaluator that has ended; its evaluation has failed."""
        self._live.remove(one)
        self.board.note_end()
        one.close()
        log = f"{one.child.log}{'' if self._live else '; the nodes evaluate their models themselves'}"
        self._say("evaluation", f"a process that evaluates in the background has ended; its log: {log}")
        return [self._failed(one.task)] if one.task else []

    def _failed(self, task: Published) -> Evaluated:
        self.board.snapshots.release(task.rank, task.round)
        return Evaluated(task.rank, task.round, {})

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
    faulthandler.register(TELL_STACKS, file=sys.stderr.fileno())
    os.nice(NICENESS)
    keep_freed_memory()
    plan, beat, test_on = experiment.plan, partial(board.beat, index), cache(partial(vector_test, experiment))
    while task := os.read(tasks, _TASK.size):
        rank, round = _TASK.unpack(task)
        test = test_on(device_for(experiment.settings.device, experiment.mapping.local_rank(rank)))
        test.load(board.snapshots.vector(rank))
        test.beside.load_state_dict(unpacked(board.snapshots.beside(rank)))
        # The copy is made, so the node may publish again.
        board.snapshots.release(rank, round)
        beat()
        # As the node would have them.
        seed_generators(key(experiment.settings.seed, "evaluate", round, rank), on_cpu=False)
        scores = plan.measured(round, partial(test.run, batch_size=plan.batch_size, beat=beat))
        reporter.send(Evaluated(rank, round, scores))
