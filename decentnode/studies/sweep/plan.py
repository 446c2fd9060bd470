"""What a sweep is about to do: variants, seeds, and what they will take."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import isnan, nan
from statistics import fmean

from decentnode.core.text import counted, readable_bytes, readable_seconds
from decentnode.errors import BadInput
from decentnode.formats.reader import read_object
from decentnode.results.run import read_entry
from decentnode.results.study import graphs_and_seeds
from decentnode.studies.study_file import PlannedStudy
from decentnode.studies.sweep.directories import RunDirectory, RunStatus
from decentnode.studies.sweep.forecast import Forecast

MB = 1 << 20
LEAST_WIDTH = 8
COLUMN = 13
COSTS = ("a run", "sent", "memory")


@dataclass(frozen=True)
class Cost:
    """The cost of a run; nan where unknown."""

    seconds: float = nan
    sent_bytes: float = nan
    memory_bytes: float = nan


@dataclass
class SweepPlan:
    """The runs of a study, and what there is of each at the start."""

    study: PlannedStudy
    directories: Sequence[RunDirectory]
    statuses: Mapping[str, RunStatus]
    """The status of each run by its name."""
    forecasts: Mapping[str, Forecast]
    """The forecasts of the variants that have runs to do, by name."""
    _costs: dict[str, list[Cost]] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        for directory in self.directories:
            if self.statuses[directory.planned.name] is RunStatus.DONE:
                self.note(directory)

    @property
    def waiting(self) -> list[RunDirectory]:
        """The runs to do, in order."""
        return [run for run in self.directories if self.statuses[run.planned.name] is not RunStatus.DONE]

    def note(self, directory: RunDirectory) -> Cost:
        """Records and returns what a finished run took."""
        cost = cost_of(directory)
        self._costs.setdefault(directory.planned.variant.name, []).append(cost)
        return cost

    def cost(self, variant: str) -> Cost:
        """The mean of finished runs of the variant; otherwise the forecast, with its time as others took."""
        if done := self._costs.get(variant):
            means = (_mean([getattr(cost, name) for cost in done]) for name in Cost.__dataclass_fields__)
            return Cost(*means)
        known = self.forecasts.get(variant, Forecast())
        return Cost(known.seconds * self._bias, known.sent_bytes, known.memory_bytes)

    @property
    def _bias(self) -> float:
        """How much longer finished runs took than their forecasts said; 1 without any."""
        pairs = [
            (cost.seconds, self.forecasts[name].seconds)
            for name, costs in self._costs.items()
            if name in self.forecasts
            for cost in costs
        ]
        pairs = [(took, planned) for took, planned in pairs if took > 0 and planned > 0]
        return sum(took for took, _ in pairs) / sum(planned for _, planned in pairs) if pairs else 1.0

    # As text.

    def lines(self) -> Iterator[str]:
        """The table, and how its numbers were found."""
        waiting = self.waiting
        variants = list(dict.fromkeys(directory.planned.variant.name for directory in self.directories))
        seeds = counted(len(self.study.seeds), "seed")
        runs, left = counted(len(self.directories), "run"), len(waiting)
        done = f", {len(self.directories) - left} done" if left < len(self.directories) else ""
        yield f"{self.study.name}: {counted(len(variants), 'variant')}, {seeds}: {runs}{done}"
        width = max(LEAST_WIDTH, *map(len, variants))
        numbers = [max(2, len(str(seed))) for seed in self.study.seeds]
        heading = " ".join(f"{seed:>{size}}" for seed, size in zip(self.study.seeds, numbers, strict=True))
        yield f"  {'variant':<{width}}  {heading}{''.join(f'{name:>{COLUMN}}' for name in COSTS)}"
        for variant in variants:
            marks = {directory.planned.seed: self._mark(directory) for directory in self._of(variant)}
            row = " ".join(
                f"{marks.get(seed, ''):>{size}}" for seed, size in zip(self.study.seeds, numbers, strict=True)
            )
            cost = self.cost(variant)
            costs = (
                _shown(cost.seconds, readable_seconds),
                _shown(cost.sent_bytes, readable_bytes),
                _shown(cost.memory_bytes, readable_bytes),
            )
            yield f"  {variant:<{width}}  {row}{''.join(f'{text:>{COLUMN}}' for text in costs)}"
        if len(self.study.seeds) > 1:
            vary = {name: self._of(name)[0].planned.settings.graph.draws_from_run for name in variants}
            yield f"  graph: {graphs_and_seeds(vary)}"
        if waiting:
            yield f"  to do: {self._total(waiting)}"
            yield from self._origin()

    def _of(self, variant: str) -> list[RunDirectory]:
        return [directory for directory in self.directories if directory.planned.variant.name == variant]

    def _mark(self, directory: RunDirectory) -> str:
        marks = {RunStatus.DONE: "x", RunStatus.RESUMABLE: "~"}
        return marks.get(self.statuses[directory.planned.name], ".")

    def _total(self, directories: Sequence[RunDirectory]) -> str:
        costs = [self.cost(directory.planned.variant.name) for directory in directories]
        seconds, sent = sum(cost.seconds for cost in costs), sum(cost.sent_bytes for cost in costs)
        most = max((cost.memory_bytes for cost in costs if not isnan(cost.memory_bytes)), default=nan)
        time = (
            f"about {readable_seconds(seconds)} one after the other" if not isnan(seconds) else "time unknown"
        )
        bytes_sent = f", {_shown(sent, readable_bytes)} sent" if not isnan(sent) else ""
        memory = f", at most {readable_bytes(most)} of memory for a run" if not isnan(most) else ""
        return f"{counted(len(directories), 'run')}, {time}{bytes_sent}{memory}"

    def _origin(self) -> Iterator[str]:
        yield "  (x done, ~ to resume, . to do)"
        known = "where a variant has finished runs, their mean; otherwise " if self._costs else ""
        yield f"  estimated: {known}time from a few local steps, a few exchanges and one batch of the test,"
        yield "  bytes from the payloads of those exchanges and the graph, memory from the sizes of the model"


def cost_of(directory: RunDirectory) -> Cost:
    """Returns the cost of a finished run; nan for what its summary does not have."""
    try:
        summary = read_object(directory.path / "summary.json")
    except BadInput:
        return Cost()
    entry, memory = read_entry(directory.path), summary.get("peak_memory_mb")
    seconds = (entry and entry.wall_seconds) or summary["startup_seconds"] + summary["wall_seconds"]
    return Cost(seconds, summary["bytes_sent"], nan if memory is None else memory * MB)


def _mean(values: Sequence[float]) -> float:
    return fmean([value for value in values if not isnan(value)] or [nan])


def _shown(value: float, readable: Callable[[float], str]) -> str:
    return "-" if isnan(value) else readable(value)
