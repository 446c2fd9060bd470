"""What the runs of a study will take, estimated before the first one starts.

In a child process, because the dry round changes the state of plug-ins, and a plug-in may hang or crash.
"""

import json
import os
import signal
import sys
import time
from collections.abc import Sequence
from math import nan
from typing import BinaryIO

import msgspec

from decentnode.config.error_locations import defect_of, with_locations
from decentnode.core.control_groups import processors
from decentnode.core.timeouts import Timeouts
from decentnode.errors import BadInput
from decentnode.launcher import run_costs
from decentnode.launcher.dataset_cache import DatasetCache
from decentnode.launcher.monitoring.memory_estimate import bytes_needed
from decentnode.launcher.observer.evaluators import evaluators_wanted
from decentnode.launcher.preflight import check_group
from decentnode.node.child_answers import answer_of
from decentnode.node.evaluation import EvaluationPlan
from decentnode.node.experiment import Experiment
from decentnode.studies.expansion import PlannedRun

START_SECONDS = 0.4
"""The seconds for start and end of a run that forks from a warm process."""
MOST_ROUNDS = 16
"""Rounds of which steps and edges are counted."""


class Forecast(msgspec.Struct, frozen=True):
    """The resources that one run will take; nan where unknown."""

    nodes: int = 0
    processes: int = 1
    parameters: int = 0
    seconds: float = nan
    """Seconds of the run with the machine alone."""
    sent_bytes: float = nan
    """Bytes that all nodes send in all rounds."""
    memory_bytes: float = nan

    @property
    def size(self) -> tuple[int, int, int]:
        """Returns a key that is equal for runs that load a machine alike."""
        return self.nodes, self.processes, self.parameters


class _Answer(msgspec.Struct):
    """The child's report about one variant."""

    forecast: Forecast
    defects: list[str] = []


def forecasts(runs: Sequence[PlannedRun], datasets: DatasetCache) -> dict[str, Forecast]:
    """Returns the forecast of each run by the name of its variant; raises BadInput for what cannot start.

    `runs`: one of each variant. Those that are not reached in time have a forecast without numbers.
    """
    for run in runs:
        with with_locations(run.base, ()):
            datasets.of(run.settings)
    child_answer = answer_of(
        lambda file: _write_forecasts(runs, datasets, file), Timeouts.forecast + Timeouts.dry_round
    )
    # A line that a kill has cut off is no answer.
    lines = child_answer.content.split(b"\n")[:-1]
    answers = [msgspec.convert(json.loads(line), _Answer) for line in lines]
    if defects := [defect for answer in answers for defect in answer.defects]:
        raise BadInput(*dict.fromkeys(defects))
    if child_answer.status not in (0, -signal.SIGKILL):
        name = runs[len(answers)].variant.name
        raise BadInput(f"{name}: a dry round of one batch did not end: {child_answer.end}")
    made = [answer.forecast for answer in answers] + [Forecast()] * (len(runs) - len(answers))
    return {run.variant.name: forecast for run, forecast in zip(runs, made, strict=True)}


def _write_forecasts(runs: Sequence[PlannedRun], datasets: DatasetCache, file: BinaryIO) -> None:
    """Writes one line for each run, in the child, as long as there is time."""
    limit = time.monotonic() + Timeouts.forecast
    # Nor is what plug-ins complain of a part of the plan.
    os.dup2(1, 2)
    for run in runs:
        if time.monotonic() < limit:
            # Not msgspec, whose JSON has no nan.
            answer = json.dumps(msgspec.to_builtins(_answer(run, datasets)))
            file.write(answer.encode() + b"\n")
            file.flush()


def _answer(run: PlannedRun, datasets: DatasetCache) -> _Answer:
    settings = run.settings
    try:
        with with_locations(run.base, ()):
            check_group(settings, 0)
            experiment = Experiment.from_settings(settings, datasets.of(settings))
    except BadInput as error:
        return _Answer(Forecast(), [f"{line} (variant {run.variant.name})" for line in error.lines])
    try:
        return _Answer(forecast(experiment))
    # An estimate must not prevent a run that would work; the run itself has a dry round for such errors.
    except Exception as error:
        print(defect_of(error), file=sys.stderr)
        return _Answer(sizes(experiment))


def sizes(experiment: Experiment) -> Forecast:
    """Returns what is known without any measurement."""
    return Forecast(experiment.graph.num_nodes, len(experiment.processes), experiment.layout.numel)


def forecast(experiment: Experiment) -> Forecast:
    """The forecast of a run, from a dry round and the sizes of its parts."""
    settings = experiment.settings
    if settings.time_model.is_asynchronous:
        # As long as it was told to, whatever a step takes; what is sent depends on the speed of all nodes.
        seconds = START_SECONDS + settings.rounds * settings.time_model.seconds_per_round
        return msgspec.structs.replace(sizes(experiment), seconds=seconds, memory_bytes=_memory(experiment))
    costs = run_costs.measure(experiment)
    nodes, rounds = experiment.graph.num_nodes, settings.rounds
    rounds_counted = range(min(rounds, MOST_ROUNDS))
    steps = sum(run_costs.steps(experiment, rank, round) for rank in range(nodes) for round in rounds_counted)
    graph = experiment.graph.graph
    sent = sum(len(graph.targets(rank, round)) for rank in range(nodes) for round in rounds_counted)
    tests = _whole_tests(experiment.plan, nodes)
    of_rounds = steps * costs.step_seconds / len(rounds_counted) + nodes * costs.share_seconds
    work = rounds * of_rounds + tests * costs.test_seconds
    workers = min(processors(), len(experiment.processes))
    known = sizes(experiment)
    return msgspec.structs.replace(
        known,
        seconds=START_SECONDS + work / workers if settings.device == "cpu" else nan,
        sent_bytes=rounds * sent / len(rounds_counted) * costs.sent_bytes,
        memory_bytes=_memory(experiment),
    )


def _memory(experiment: Experiment) -> float:
    """The bytes that a run on one machine needs."""
    return float(bytes_needed(experiment, 0, evaluators_wanted(experiment, experiment.mapping.ranks_of(0))))


def _whole_tests(plan: EvaluationPlan, nodes: int) -> float:
    """Evaluations of one model on all samples that cost as much as those of the plan."""
    tested, at_end = (nodes if ranks is None else len(ranks) for ranks in (plan.ranks, plan.last_ranks))
    validation = 0 if plan.validation is None else len(plan.validation)
    due = [round for round in range(plan.rounds) if plan.is_due(round)]
    return sum(
        (at_end if round + 1 == plan.rounds else tested) * (len(plan.samples_after(round)) + validation)
        for round in due
    ) / len(plan.samples)
