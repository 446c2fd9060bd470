"""Many runs together: variants with a run per seed, their table, and how they differ."""

import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from math import isfinite, isnan, nan
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import yaml

from decentnode.core.text import counted, first_line, readable_bytes, readable_seconds
from decentnode.errors import BadInput
from decentnode.formats.metrics import Metric, chosen_metric
from decentnode.formats.reader import NOT_OURS, StrPath, check_run, machine_parts
from decentnode.formats.run import FINISHED, run_directory
from decentnode.results import cards
from decentnode.results.curves import MIXED_TIMES, RunCurves, read_runs, together
from decentnode.results.extra import missing, need
from decentnode.results.run import Run
from decentnode.results.statistics import (
    Comparison,
    compare_pairs,
    first_crossing,
    interval,
    value_at,
)
from decentnode.results.study_curves import StudyCurve, study_curves
from decentnode.results.styles import style_at
from decentnode.results.table_cells import AT_MOST, UNKNOWN, Cell, number, of_bytes, of_seconds
from decentnode.results.variants import Measure, Variant, are_simulated, time_doubt

if TYPE_CHECKING:
    from pandas import DataFrame

    from decentnode.results.figures.plots import NotebookFigure
    from decentnode.results.figures.style import FigureStyle

STUDY_FILE = "study.yaml"
"""The copy of its file in the directory of a study."""
OF_ONE_RUN = ("seed", "run_dir", "name", "machine")
"""Keys that do not make another variant."""
PLACES = ("port", "base_port", "group_port", "rendezvous_port", "address", "listen", "rendezvous")
"""Options of any section that say where a run takes place, as a sweep or a scheduler's job has chosen."""
MOST_ROWS = 40
"""Variants that the card of a study lists."""
MOST_COLUMNS = 6
"""Networks that have a column each in the figure of costs."""


class Study:
    """The runs below some directories, grouped by what differs between them.

        table = Study("runs/compression").table()

    A directory may be that of a study, or of a single run.
    """

    def __init__(self, *runs: str | Path | Run | Sequence[str | Path | Run]) -> None:
        """Takes directories and runs, or lists of them: `Study([first, second]).plot("accuracy")`.

        Raises BadInput if there is no run, or if runs are judged by different metrics.
        """
        listed: list[str | Path | Run] = []
        for each in runs:
            listed += [each] if isinstance(each, str | Path | Run) else each
        self.directories = [one.directory if isinstance(one, Run) else Path(one) for one in listed]
        by_directory: dict[Path, Run] = {}
        for run in (run for directory in self.directories for run in _runs_in(directory)):
            # A run below two of the directories is still one run.
            by_directory.setdefault(run.directory.resolve(), run)
        self.runs = [*by_directory.values()]
        judged = {run.headline.name: run for run in self.runs}
        if len(judged) > 1:
            by = ", ".join(f"{run.directory} by {name}" for name, run in judged.items())
            raise BadInput(f"these runs are judged by different metrics, so they do not compare: {by}")

    def __repr__(self) -> str:
        return f"Study({', '.join(repr(str(directory)) for directory in self.directories)})"

    @property
    def name(self) -> str:
        """The name of its directory, or of its first run."""
        single = len(self.directories) == 1
        return self.directories[0].resolve().name if single else f"{len(self.runs)} runs"

    @property
    def headline(self) -> Metric:
        """The metric that its runs are judged by."""
        return self.runs[0].headline

    @cached_property
    def variants(self) -> list[Variant]:
        """The variants, in the order in which their first runs are found."""
        groups: dict[str, list[Run]] = {}
        for run in self.runs:
            groups.setdefault(_identity(run), []).append(run)
        apart = [runs for group in groups.values() for runs in _by_axes(group)]
        together = [sorted(runs, key=lambda run: run.seed) for runs in apart]
        axes = _axes([runs[0] for runs in together])
        names = [_name(runs[0], labels) for runs, labels in zip(together, axes, strict=True)]
        taken = Counter(names)
        names = [
            name if taken[name] == 1 else f"{name} ({runs[0].directory})"
            for name, runs in zip(names, together, strict=True)
        ]
        return [Variant(*parts) for parts in zip(names, axes, together, strict=True)]

    @cached_property
    def compared(self) -> list[Variant]:
        """The variants with at least one finished run that was evaluated."""
        return [variant for variant in self.variants if variant.finished]

    @property
    def is_simulated(self) -> bool:
        """Whether the seconds of all its runs are virtual."""
        return are_simulated(self.variants)

    @property
    def time_doubt(self) -> str:
        """Returns why the seconds of its runs do not compare; empty where they do."""
        return time_doubt(self.variants)

    @cached_property
    def equal_bytes(self) -> float:
        """The smallest final number of bytes per node among the finished runs; 0 only if none sends.

        Nan without any run.
        """
        return self._smallest(lambda run: run.bytes_per_node[-1])

    @cached_property
    def equal_seconds(self) -> float:
        """The smallest final time among the finished runs; nan without any."""
        return self._smallest(lambda run: run.seconds[-1])

    def _smallest(self, measure: Measure) -> float:
        totals = [measure(run) for variant in self.compared for run in variant.finished]
        return min([total for total in totals if total > 0] or totals, default=nan)

    @cached_property
    def target(self) -> float | None:
        """Returns `target` of the study's file; None where there is none. Raises BadInput."""
        return _target_of(self.directories)

    @cached_property
    def default_target(self) -> float:
        """Returns `target` of the study's file, otherwise the best value that every finished run reaches.

        The latter is rounded to one that is easier; nan without finished runs.
        """
        if self.target is not None:
            return self.target
        measure = self.measures()["best"]
        best = [measure(run) for variant in self.compared for run in variant.finished]
        return self.headline.easier(self.headline.worst(best)) if best else nan

    def measures(self, target: float | None = None) -> dict[str, Measure]:
        """The numbers of a run that the table shows, by name; values as people read them."""
        headline = self.headline
        rising = headline.higher_is_better
        bytes_limit, seconds_limit = self.equal_bytes, self.equal_seconds
        measures: dict[str, Measure] = {
            "end": lambda run: run.curve()[-1],
            "best": lambda run: run.best,
            # Without communication no budget is a limit.
            "at_equal_bytes": lambda run: (
                value_at(bytes_limit, run.bytes_per_node, run.curve())
                if run.bytes_per_node[-1]
                else run.curve()[-1]
            ),
            "at_equal_seconds": lambda run: value_at(seconds_limit, run.seconds, run.curve()),
            "bytes": lambda run: run.bytes_per_node[-1],
            "seconds": lambda run: run.seconds[-1],
        }
        if target is not None:
            measures["bytes_to_target"] = lambda run: first_crossing(
                target, run.bytes_per_node, run.curve(), rising=rising
            )
            measures["seconds_to_target"] = lambda run: first_crossing(
                target, run.seconds, run.curve(), rising=rising
            )
        return measures

    def cost_to_target(self, variant: Variant, name: Literal["bytes", "seconds"], target: float) -> Cell:
        """Returns bytes per node or seconds of a variant until the target, with the 95 % interval over seeds.

        `<=` before an upper bound. Where runs have not reached it, the cell says in how much at least.
        """
        measures = self.measures(target)
        costs = [measures[f"{name}_to_target"](run) for run in variant.finished]
        totals = [
            measures[name](run) for run, cost in zip(variant.finished, costs, strict=True) if isnan(cost)
        ]
        readable = readable_bytes if name == "bytes" else readable_seconds
        if totals:
            by = "" if len(totals) == len(costs) else f" by {len(totals)} of {len(costs)}"
            return Cell(f"not reached{by} in {readable(min(totals))}")
        cost = interval(costs)
        half = f" ± {readable(cost.half)}" if isfinite(cost.half) else ""
        at_most = f"{AT_MOST}" if self.is_bound(variant, target) else ""
        return Cell(f"{at_most}{readable(cost.mean)}{half}", cost.mean, cost.half)

    def is_bound(self, variant: Variant, target: float) -> bool:
        """Whether the costs of a variant up to the target are upper bounds, as a run begins beyond it."""
        runs = (run for run in variant.finished if run.rows[0].round)
        return any(self.headline.reaches(run.curve()[0], target) for run in runs)

    def table(self, target: float | None = None) -> "DataFrame":
        """Returns a row for each variant: axes, mean and interval of each measure over seeds; needs pandas.

        `target`: the headline metric, as people read it, that bytes and seconds are counted up to; default:
        the best that every variant reaches. Columns NAME and NAME_half: the mean and half of its 95 %
        interval. `simulated`: whether seconds are virtual; `alone`: whether they compare; `target_is_bound`:
        whether the costs up to the target are upper bounds.
        """
        wanted = self.default_target if target is None else target
        measures = self.measures(wanted)
        rows = []
        for variant in self.compared:
            values = {name: variant.over_seeds(measure) for name, measure in measures.items()}
            figures = {
                key: value
                for name, interval in values.items()
                for key, value in ((name, interval.mean), (f"{name}_half", interval.half))
            }
            seeds, alone = len(variant.finished), variant.had_the_machine_alone
            row = {"variant": variant.name, **variant.axes, "seeds": seeds, **figures}
            row |= {"simulated": variant.is_simulated, "alone": alone}
            rows.append(row | {"target_is_bound": self.is_bound(variant, wanted)})
        return need("pandas").DataFrame(rows)

    def comparisons(self, name: str = "end", against: str = "") -> list[Comparison]:
        """Makes paired tests between all variants over the seeds that they share, by one of the measures.

        `against`: the variant that the others are compared with, instead of all pairs.
        """
        measure = self.measures(self.default_target)[name]
        return compare_pairs(
            {variant.name: {run.seed: measure(run) for run in variant.finished} for variant in self.compared},
            against,
        )

    @property
    def evaluations(self) -> "DataFrame":
        """The frames `Run.evaluations` of all runs, with a column `variant`; needs pandas."""
        return self._joined(lambda run: run.evaluations)

    @property
    def records(self) -> "DataFrame":
        """The frames `Run.records` of all runs, with a column `variant`; needs pandas."""
        return self._joined(lambda run: run.records)

    def _joined(self, frame_of: "Callable[[Run], DataFrame]") -> "DataFrame":
        frames = [
            frame_of(run).assign(variant=variant.name) for variant in self.variants for run in variant.runs
        ]
        return need("pandas").concat(frames, ignore_index=True)

    def plot(self, metric: str | None = None, x: str = "rounds") -> "NotebookFigure":
        """A matplotlib figure of a metric: for each variant the mean over seeds with its 95 % interval.

        Args:
            metric: a metric of the runs, by default the headline metric; `train_loss`; `consensus_distance`.
            x: `rounds`, `bytes` (sent per node) or `seconds`.

        Runs that have not finished are dotted. Raises BadInput for other names, and where no run has an
        evaluation yet. Intervals need scipy.
        """
        from decentnode.results.figures import plots_study  # loads matplotlib

        return plots_study.study_figure(
            study_curves(self.variants, chosen_metric(self.runs[0].metrics, metric), x)
        )

    def plot_costs(self, target: float | None = None, style: "FigureStyle | None" = None) -> "NotebookFigure":
        """A matplotlib figure of the headline metric against time and, below, against bytes sent per node.

        For each variant the mean over seeds with its 95 % interval. Where one axis of the study names the
        transport, each of its values has a column. `target`: a line, by default at the `target` of the
        study's file. Raises BadInput where no run has finished. Intervals need scipy.
        """
        from decentnode.results.figures import plots_study  # loads matplotlib
        from decentnode.results.figures.style import SCREEN

        if not self.compared:
            raise BadInput(f"{self.directories[0]}: no run has finished, so there is nothing to draw")
        axis = self._axis_of_networks()
        columns: dict[str, list[StudyCurve]] = {}
        for variant in self.compared:
            others = ", ".join(label for name, label in variant.axes.items() if name != axis)
            column, name = (variant.axes[axis], others) if axis else ("", variant.name)
            curves = columns.setdefault(column, [])
            curves.append(StudyCurve(name, variant, style_at(len(curves))))
        return plots_study.cost_figure(
            {
                column: [study_curves(self.variants, self.headline, x, curves) for x in ("seconds", "bytes")]
                for column, curves in columns.items()
            },
            self.target if target is None else target,
            style or SCREEN,
        )

    def _axis_of_networks(self) -> str | None:
        """The axis of a sweep whose values alone say how payloads travel; None where there is none."""
        variants = self.compared
        if any(run.entry is None for variant in variants for run in variant.runs):
            return None
        sections = {variant.name: _settings(variant.runs[0]).get("communication") for variant in variants}
        travels = {
            name: json.dumps(section, sort_keys=True, default=str) for name, section in sections.items()
        }
        for axis in variants[0].axes if len(variants[0].axes) > 1 else ():
            of_label: dict[str | None, set[str]] = {}
            for variant in variants:
                of_label.setdefault(variant.axes.get(axis), set()).add(travels[variant.name])
            is_decisive = all(len(each) == 1 for each in of_label.values()) and None not in of_label
            if is_decisive and 1 < len(of_label) <= MOST_COLUMNS and len(set(travels.values())) > 1:
                return axis
        return None

    def _repr_html_(self) -> str:
        """Returns a card for notebooks: the curves, and a row for each variant with 95 % intervals."""
        try:
            return Study(*self.directories)._card()  # of a sweep in progress as it is now
        except (BadInput, OSError) as error:  # a notebook shows a card even where files are damaged
            return cards.card(f"study {self.name}", "", "", cards.notes([first_line(error)]))

    def _card(self) -> str:
        line, picture = f"{counted(len(self.variants), 'variant')}, {counted(len(self.runs), 'run')}", b""
        if any(run.rows for run in self.runs) and not missing("matplotlib", "figures"):
            from decentnode.results.figures import plots_study

            picture = plots_study.study_thumbnail(study_curves(self.variants, self.headline, "rounds"))
        return cards.card(f"study {self.name}", "", line, self._card_table(), picture)

    def _card_table(self) -> str:
        headline, measures = self.headline, self.measures()
        unit = f" ({headline.unit.strip()})" if headline.unit else ""
        limit = readable_bytes(self.equal_bytes) if self.compared else UNKNOWN
        headings = [
            "variant",
            "seeds",
            f"{headline.title}{unit}",
            "best",
            f"at {limit}",
            "sent per node",
            "simulated time" if self.is_simulated else "time",
        ]
        rows = []
        for variant in self.variants[:MOST_ROWS]:
            values = {name: variant.over_seeds(measure) for name, measure in measures.items()}
            cells = [number(values[name], headline) for name in ("end", "best", "at_equal_bytes")]
            cells += [of_bytes(values["bytes"]), of_seconds(values["seconds"])]
            count, runs = len(variant.finished), len(variant.runs)
            seeds = str(count) if count == runs else f"{count} of {runs}"
            rows.append([variant.name, seeds, *(cell.text for cell in cells)])
        colors = [style_at(place).color for place in range(len(rows))]
        notes = [
            "Mean over seeds ± half of the 95 % interval; more in table() and comparisons().",
            f"At {limit} sent per node: the smallest final number of bytes of all runs.",
        ]
        if len(self.variants) > MOST_ROWS:
            notes.append(f"{counted(len(self.variants) - MOST_ROWS, 'more variant')} in table().")
        states = Counter(run.state for run in self.runs if run.state != FINISHED)
        if states:
            counts = ", ".join(f"{count} {state}" for state, count in sorted(states.items()))
            notes.append(f"Runs that have not finished do not count: {counts}.")
        if self.time_doubt == MIXED_TIMES:
            notes.append("Times of some runs are simulated, those of others real: they do not compare.")
        elif self.time_doubt:
            notes.append("Runs shared the machine with others: their times do not compare.")
        return cards.grid(headings, rows, colors) + cards.notes(notes)


def _target_of(directories: Sequence[Path]) -> float | None:
    """Reads the target that the file of a study names; None for others. Raises BadInput."""
    if len(directories) != 1 or not (path := directories[0] / STUDY_FILE).exists():
        return None
    try:
        target = (yaml.safe_load(path.read_text()) or {}).get("target")
    except (OSError, ValueError, AttributeError, yaml.YAMLError) as error:
        raise BadInput(f"{path}: {NOT_OURS}: {str(error).splitlines()[0]}") from error
    return None if target is None else float(target)


def read_variants(paths: Sequence[StrPath]) -> list[RunCurves]:
    """The curves of runs, those that differ only in the seed together; raises BadInput.

    `paths`: directories of runs, or of studies. Runs of a single variant, and repetitions of one seed, stay
    apart.
    """
    directories = [
        run
        for path in map(Path, paths)
        for run in ([path] if _is_run(path) else _directories_in(path) or [path])
    ]
    run_of = dict(zip(directories, read_runs(directories), strict=True))
    if len(run_of) < len(directories) or not all((path / "config.yaml").exists() for path in run_of):
        return read_runs(directories)
    variants = Study(*directories).variants
    seeds = [[run.seed for run in variant.runs] for variant in variants]
    if len(variants) < 2 or any(len(set(each)) < len(each) for each in seeds):
        return [*run_of.values()]
    return [
        together(variant.name, [run_of[run.directory] for run in variant.runs])
        if len(variant.runs) > 1
        else run_of[variant.runs[0].directory]
        for variant in variants
    ]


def graphs_and_seeds(varies: dict[str, bool]) -> str:
    """Whether graphs vary with the seed, for each variant, as text."""
    drawn = [name for name, varied in varies.items() if varied]
    fixed = [name for name, varied in varies.items() if not varied]
    if drawn and fixed:
        return (
            f"another one for each seed in {', '.join(drawn)}; the same for all seeds in {', '.join(fixed)}"
        )
    return "another one for each seed" if drawn else "the same for all seeds"


def _is_run(path: Path) -> bool:
    """Whether this is a run, or at least no directory of a study."""
    return not path.is_dir() or (path / "evaluations.jsonl").exists() or (path / "config.yaml").exists()


def _directories_in(directory: Path) -> list[Path]:
    """The directories of the runs below, by path, without attempts that a sweep has moved aside.

    A run on several machines is that of the machine which knows of most nodes.
    """
    paths = sorted(path.parent for path in directory.rglob("config.yaml"))
    wholes = (run_directory(path.parent) if path in machine_parts(path.parent) else path for path in paths)
    return [path for path in dict.fromkeys(wholes) if "." not in path.name or path == directory]


def _runs_in(directory: Path) -> Iterator[Run]:
    """The runs in a directory and below; raises BadInput if there is none."""
    directories = _directories_in(directory)
    if not directories:
        check_run(directory, ", nor of a study")
    yield from map(Run, directories)


def _identity(run: Run) -> str:
    """Returns an identity that is equal for runs of one variant."""
    return json.dumps(_settings(run), sort_keys=True, default=str)


def _by_axes(runs: Sequence[Run]) -> list[list[Run]]:
    """Separates runs that a sweep has in several variants, as an axis may be about places alone."""
    found: dict[str, list[Run]] = {}
    several = len({run.entry.variant for run in runs if run.entry}) > 1
    for run in runs:
        found.setdefault(_variant_in_sweep(run) if several else "", []).append(run)
    return [*found.values()]


def _settings(run: Run) -> dict[str, Any]:
    """Returns the settings that make a variant."""
    settings = {key: value for key, value in run.settings.items() if key not in OF_ONE_RUN}
    return {key: _without_places(value) for key, value in settings.items()}


def _without_places(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_places(inner) for key, inner in value.items() if key not in PLACES}
    return [*map(_without_places, value)] if isinstance(value, list) else value


def _variant_in_sweep(run: Run) -> str:
    """Returns the name of its variant in the sweep that made it; empty without any."""
    if run.entry is not None:
        return run.entry.variant
    # A run of a sweep before its first round.
    return run.directory.parent.name if (run.directory.parent.parent / STUDY_FILE).exists() else ""


def _axes(runs: Sequence[Run]) -> list[dict[str, str]]:
    """Returns how each of these runs differs from the others: labels of a sweep, or the differing keys."""
    entries = [run.entry for run in runs]
    if any(entries):
        return [dict(entry.axes) if entry else {} for entry in entries]
    flat = [dict(_flat(_settings(run))) for run in runs]
    keys = dict.fromkeys(key for each in flat for key in each)
    differing = [key for key in keys if len({each.get(key) for each in flat}) > 1]
    return [{key: each[key] for key in differing if key in each} for each in flat]


def _flat(settings: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    for key, value in settings.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", json.dumps(value, default=str).strip('"')


def _name(run: Run, axes: dict[str, str]) -> str:
    named = _variant_in_sweep(run) or axes.get("sharing.name")
    return named or ", ".join(f"{key}={value}" for key, value in axes.items()) or run.name
