"""The privacy frontier of a study: utility, cost, what is proven and what attacks found, by variant."""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import inf, isfinite, nan
from statistics import fmean

from decentnode.formats.metrics import Metric
from decentnode.results import Study
from decentnode.results.attack_results import AttackResult, read_results
from decentnode.results.run import Run
from decentnode.results.statistics import Interval, interval
from decentnode.results.table_cells import UNKNOWN, Cell, number, of_bytes, of_seconds, plain
from decentnode.results.variants import Variant
from decentnode.studies.report.claims import Claims
from decentnode.studies.report.tables import Table

ON_FRONT = "*"
AUDIT = "canary_audit"


@dataclass(frozen=True)
class Place:
    """The place of a variant among the others."""

    group: str
    """The data set that it was trained on; only variants of one group compare."""
    label: str
    """The name of the variant inside the group."""


@dataclass(frozen=True)
class FrontierPoint:
    """One variant: every figure with its interval over seeds; nan where there is none."""

    name: str
    place: Place
    seeds: int
    utility: Interval
    worst_node: Interval
    bytes: Interval
    seconds: Interval
    epsilon: Interval
    no_claim: str
    """The reason why there is no epsilon."""
    unit: str
    """The subject of epsilon."""
    audited: Interval
    """The lower bound of epsilon by an audit."""
    canary_auc: Interval
    """How well its canaries are distinguished."""
    attack: str
    """The membership attack with the highest AUC; empty without any."""
    auc: Interval
    tpr: Interval

    def losses(self, rising: bool) -> tuple[float, ...]:
        """Returns what better variants have less of: error, bytes, success of attacks, or else epsilon."""
        leaked = self.auc.mean if isfinite(self.auc.mean) else self.epsilon.mean
        return (
            -self.utility.mean if rising else self.utility.mean,
            self.bytes.mean,
            leaked if isfinite(leaked) else inf,
        )


class Frontier:
    """The points of a study, by group, and which of them no other one beats."""

    def __init__(self, study: Study) -> None:
        """Raises BadInput for files that decentnode has not written."""
        self.study, self.headline = study, study.headline
        places = _places(study.compared)
        self.points = [_point(variant, places[variant.name], study.headline) for variant in study.compared]

    @property
    def groups(self) -> dict[str, list[FrontierPoint]]:
        """The points of each group."""
        by_group: dict[str, list[FrontierPoint]] = {}
        for point in self.points:
            by_group.setdefault(point.place.group, []).append(point)
        return by_group

    @cached_property
    def front(self) -> set[str]:
        """The names of the points that no other point of their group beats in utility, bytes and leakage."""
        rising = self.headline.higher_is_better
        return {
            points[i].name
            for points in self.groups.values()
            for i in not_dominated([point.losses(rising) for point in points])
        }

    def table(self) -> Table:
        """Returns one row for each variant."""
        headline = self.headline
        time = "simulated time" if self.study.is_simulated else "time"
        headings = [
            "variant", "front", "seeds", f"{headline.name}{headline.unit}", "worst node", "sent per node",
            time, "epsilon", "audited", "canary AUC", "attack", "AUC", "TPR at 1 % FPR",
        ]  # fmt: skip
        rows = [self._row(point) for point in self.points]
        return Table(f"{headline.name}, cost and privacy", headings, rows, notes=[*self._notes()])

    def _row(self, point: FrontierPoint) -> list[Cell]:
        is_best = point.name in self.front
        return [
            Cell(point.name),
            Cell(ON_FRONT if is_best else "", float(is_best)),
            Cell(str(point.seeds), point.seeds),
            number(point.utility, self.headline), number(point.worst_node, self.headline),
            of_bytes(point.bytes), of_seconds(point.seconds),
            plain(point.epsilon, 3), plain(point.audited, 2), plain(point.canary_auc, 3),
            Cell(point.attack or UNKNOWN), plain(point.auc, 3), plain(point.tpr, 3),
        ]  # fmt: skip

    def _notes(self) -> Iterator[str]:
        yield "Mean over seeds ± half of the 95 % confidence interval (Student's t)."
        yield (
            "front: no other variant on the same data is at least as good in "
            f"{self.headline.name}, bytes and AUC (epsilon, where nothing was attacked), and better in one "
            "of them; intervals do not count."
        )
        units: dict[str, list[str]] = {}
        reasons: dict[str, list[str]] = {}
        for point in self.points:
            units.setdefault(point.unit, []).append(point.name)
            reasons.setdefault(point.no_claim, []).append(point.name)
        for unit, names in units.items():
            if unit:
                yield f"epsilon of {unit}: {', '.join(names)}."
        for reason, names in reasons.items():
            if reason:
                yield f"no epsilon, {reason}: {', '.join(names)}."
        if any(point.attack for point in self.points):
            yield (
                "AUC and TPR are those of the membership attack that is the strongest on the variant, after "
                "its last round, over all victims. audited: the lower bound of epsilon by a canary audit, "
                "each with 95 % confidence, mean over victims; canary AUC: of samples with random labels."
            )
        else:
            yield "No run has attacks.jsonl: nothing was attacked."


def not_dominated(losses: Sequence[Sequence[float]]) -> list[int]:
    """The rows that no other row beats: none is at most as large everywhere and smaller somewhere."""

    def beats(row: Sequence[float], other_row: Sequence[float]) -> bool:
        pairs = [*zip(row, other_row, strict=True)]
        return all(a <= b for a, b in pairs) and any(a < b for a, b in pairs)

    known = [i for i, row in enumerate(losses) if not any(value != value for value in row)]
    return [i for i in known if not any(beats(losses[j], losses[i]) for j in known)]


def _places(variants: Sequence[Variant]) -> dict[str, Place]:
    """Places variants by the label of an axis that names the data, or by a number where none does."""
    trained = {
        variant.name: json.dumps(variant.runs[0].settings.get("dataset"), sort_keys=True)
        for variant in variants
    }
    axis = next(
        (axis for axis in (variants[0].axes if variants else ()) if _labels_match(axis, variants, trained)),
        "",
    )
    numbers = {dataset: i for i, dataset in enumerate(dict.fromkeys(trained.values()), 1)}
    places = {}
    for variant in variants:
        label = "_".join(label for name, label in variant.axes.items() if name != axis)
        group = variant.axes[axis] if axis else f"data {numbers[trained[variant.name]]}"
        name = variant.name
        places[name] = Place(group, label or name) if len(numbers) > 1 else Place("", name)
    return places


def _labels_match(axis: str, variants: Sequence[Variant], trained: dict[str, str]) -> bool:
    """Whether each label of the axis goes with one data set, and the other way round."""
    pairs = {(trained[variant.name], variant.axes.get(axis, "")) for variant in variants}
    return len(pairs) == len({dataset for dataset, _ in pairs}) == len({label for _, label in pairs})


def _point(variant: Variant, place: Place, metric: Metric) -> FrontierPoint:
    runs = variant.finished
    claims = Claims.of(runs)
    results = [_at_the_end(read_results(run.directory)) for run in runs]
    names = {result.attack for of_run in results for result in of_run if result.auc is not None}
    curves = {name: _over_runs(results, name, "auc") for name in sorted(names - {AUDIT})}
    attack = max(curves, key=lambda name: curves[name].mean, default="")
    nothing = Interval(nan, nan, len(runs))
    return FrontierPoint(
        name=variant.name,
        place=place,
        seeds=len(runs),
        utility=variant.over_seeds(lambda run: run.curve()[-1]),
        worst_node=variant.over_seeds(lambda run: _worst(run, metric)),
        bytes=variant.over_seeds(lambda run: run.bytes_per_node[-1]),
        seconds=variant.over_seeds(lambda run: run.seconds[-1]),
        epsilon=interval(claims.values),
        no_claim=claims.reason,
        unit=claims.unit,
        audited=_over_runs(results, AUDIT, "epsilon_lower"),
        canary_auc=_over_runs(results, AUDIT, "auc"),
        attack=attack,
        auc=curves.get(attack, nothing),
        tpr=_over_runs(results, attack, "tpr_at_1_percent") if attack else nothing,
    )


def _worst(run: Run, metric: Metric) -> float:
    """The worst node after the last evaluation, as people read it."""
    values = [nan if value is None else value for value in run.rows[-1].values(metric.name)]
    return metric.scale * metric.worst(values) if values and all(map(isfinite, values)) else nan


def _at_the_end(results: Sequence[AttackResult]) -> list[AttackResult]:
    """The results of the last round that each adversary attacked."""
    last: dict[tuple[str, str], int] = {}
    for result in results:
        key = (result.attack, result.adversary)
        last[key] = max(result.round, last.get(key, result.round))
    return [result for result in results if result.round == last[result.attack, result.adversary]]


def _over_runs(results: Sequence[Sequence[AttackResult]], attack: str, measure: str) -> Interval:
    """Computes a number for each run, then over runs: of all victims together, or the mean over victims."""
    value: Callable[[AttackResult], float | None] = lambda result: getattr(result, measure)  # noqa: E731
    by_run = []
    for of_run in results:
        known = [result for result in of_run if result.attack == attack and value(result) is not None]
        pooled = [result for result in known if result.victim is None] or known
        by_run.append(fmean(value(result) or 0.0 for result in pooled) if pooled else nan)
    return interval(by_run)
