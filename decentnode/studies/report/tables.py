"""The tables of a report as text, for the page and for papers: LaTeX, Markdown and CSV."""

import csv
import io
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Literal

from decentnode.core.text import readable_bytes, readable_seconds
from decentnode.formats.metrics import Metric
from decentnode.formats.run import FINISHED
from decentnode.results import Study
from decentnode.results.statistics import MOST_SEEDS, Comparison, Interval, interval, seeds_needed
from decentnode.results.study import graphs_and_seeds
from decentnode.results.table_cells import AT_MOST, UNKNOWN, Cell, number, of_bytes, of_seconds, plain
from decentnode.results.variants import Measure, Variant
from decentnode.studies.report.claims import Claims

COSTS: tuple[Literal["seconds", "bytes"], ...] = ("seconds", "bytes")
LONGEST_LINE = 10
"""Letters of a heading in LaTeX; a longer one takes two lines."""


@dataclass(frozen=True)
class Table:
    """Headings and rows; the first column holds names."""

    title: str
    headings: list[str]
    rows: list[list[Cell]]
    notes: list[str]
    """Notes for the reader, below the table."""


def main_table(study: Study, target: float) -> Table:
    """The headline metric of each variant, and what it costs; `target` as people read it."""
    headline, measures = study.headline, study.measures(target)
    unit = headline.unit.strip()
    of = f"{headline.name}{f' ({unit})' if unit else ''}"
    limit = readable_bytes(study.equal_bytes) if study.compared else UNKNOWN
    shown = f"{target:.4g}{headline.unit}"
    time = "simulated time" if study.is_simulated else "time"
    headings = [
        "variant", "seeds", f"{of} at the end", "best", f"at {limit}", "at equal time", "sent per node",
        time, f"bytes to {shown}", f"{time} to {shown}",
    ]  # fmt: skip
    rows = [_row(study, variant, measures, target=target) for variant in study.compared]
    claims = [Claims.of(variant.finished) for variant in study.compared]
    if any(claim.unit for claim in claims):
        headings.append("epsilon")
        rows = [[*row, plain(interval(claim.values), 3)] for row, claim in zip(rows, claims, strict=True)]
    notes = [
        "Mean over seeds ± half of the 95 % confidence interval (Student's t).",
        f"At equal bytes and time: between evaluations, at the smallest final total above 0 ({limit} and "
        f"{readable_seconds(study.equal_seconds)}); a dash where a run was not evaluated before.",
    ]
    if any(study.is_bound(variant, target) for variant in study.compared):
        notes.append(f"{AT_MOST.strip()}: a run is beyond {shown} at its first evaluation, so at most this.")
    if any(len(variant.finished) > 1 for variant in study.compared):
        varies = {variant.name: variant.graph_varies for variant in study.compared}
        notes.append(f"Graph: {graphs_and_seeds(varies)}.")
    if drawn := [variant.name for variant in study.compared if variant.tests_vary]:
        which = "" if len(drawn) == len(study.compared) else f" in {', '.join(drawn)}"
        notes.append(f"Test sets: another one for each seed{which}, so intervals also hold how these differ.")
    if any(run.judged_by.is_of_validation for variant in study.compared for run in variant.finished):
        notes.append(f"Best: at the evaluation with the best {headline.name} on the validation samples.")
    if "epsilon" in headings:
        by_unit: dict[str, list[str]] = {}
        for variant, claim in zip(study.compared, claims, strict=True):
            about = f"of {claim.unit}" if claim.unit else f"none is claimed, {claim.reason}"
            by_unit.setdefault(about, []).append(variant.name)
        notes += [f"Epsilon {about}: {', '.join(names)}." for about, names in by_unit.items()]
    runs = [run for variant in study.compared for run in variant.finished if run.rows]
    if over := dict.fromkeys(run.rows[-1].mean_over for run in runs if run.rows[-1].mean_over):
        notes.append(f"The value of a run is the mean over {' or '.join(over)}.")
    states = Counter(run.state for variant in study.variants for run in variant.runs)
    if others := states.keys() - {FINISHED}:
        counts = ", ".join(f"{states[state]} {state}" for state in sorted(others))
        notes.append(f"Runs that have not finished do not count: {counts}.")
    if study.is_simulated:
        notes.append("Times are those of a simulation: virtual seconds behind a modelled network.")
    elif simulated := [variant.name for variant in study.compared if variant.is_simulated]:
        notes.append(
            f"Times of some are simulated, and do not compare with the others': {', '.join(simulated)}."
        )
    if not all(variant.had_the_machine_alone for variant in study.compared):
        notes.append(
            "Seconds in parentheses are of runs that shared the machine with others: do not compare."
        )
    return Table(f"{headline.name} and cost", headings, rows, notes=notes)


def pipeline_table(study: Study) -> Table:
    """What private steps of each variant presuppose of samples, by the first run that has finished."""
    by_row: dict[tuple[str, str, str], list[str]] = {}
    for variant in study.compared:
        private = next((run.summary.get("privacy") for run in variant.finished), None) or {}
        for row in private.get("pipeline") or ():
            epsilon = UNKNOWN if row["epsilon"] is None else f"{row['epsilon']:.3g}"
            by_row.setdefault((row["what"], row["how"], epsilon), []).append(variant.name)
    private_names = {name for names in by_row.values() for name in names}
    rows = []
    for cells, names in by_row.items():
        whose = "all with private steps" if len(names) == len(private_names) > 1 else ", ".join(names)
        rows.append([Cell(whose), *map(Cell, cells)])
    return Table(
        "before private steps",
        ["variant", "what", "how", "epsilon by itself"],
        rows,
        notes=["What steps need to know of samples. Epsilon of the noise is a part of that of the run."],
    )


def cost_lines(study: Study, target: float) -> Iterator[str]:
    """Yields the costs of each variant until the target, aligned for a screen."""
    shown = f"{target:.4g}{study.headline.unit}"
    time = "simulated time" if study.is_simulated else "time"
    rows = [[f"until {shown}", "seeds", time, "sent per node"]]
    for variant in study.compared:
        costs = [study.cost_to_target(variant, name, target).text for name in COSTS]
        rows.append([variant.name, _seeds(variant).text, *costs])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        yield "  " + "  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip()
    if study.time_doubt:
        yield f"  time: {study.time_doubt}"


def narrow(table: Table) -> Table:
    """The main table in the width of a paper's column: only what compares variants at equal cost."""
    kept = [table.headings.index(name) for name in table.headings if _is_kept(name)]
    rows = [[row[i] for i in kept] for row in table.rows]
    return Table(table.title, [table.headings[i] for i in kept], rows, notes=table.notes)


def _is_kept(heading: str) -> bool:
    # Real seconds depend on the machine; simulated ones are a result.
    measures = ("at ", "bytes to ", "simulated time to ")
    is_measure = heading.startswith(measures) and heading != "at equal time"
    return is_measure or heading == "variant" or heading.endswith("at the end")


def _row(study: Study, variant: Variant, measures: dict[str, Measure], target: float) -> list[Cell]:
    metric = study.headline
    values = {name: variant.over_seeds(measure) for name, measure in measures.items()}
    alone = variant.had_the_machine_alone
    return [
        Cell(variant.name),
        _seeds(variant),
        *(number(values[name], metric) for name in ("end", "best", "at_equal_bytes")),
        _shared(number(values["at_equal_seconds"], metric), alone),
        of_bytes(values["bytes"]),
        _shared(of_seconds(values["seconds"]), alone),
        study.cost_to_target(variant, "bytes", target),
        _shared(study.cost_to_target(variant, "seconds", target), alone),
    ]


def _seeds(variant: Variant) -> Cell:
    """The runs that count; of how many, where others have not finished."""
    count, all_runs = len(variant.finished), len(variant.runs)
    return Cell(str(count) if count == all_runs else f"{count} of {all_runs}", count)


def _shared(cell: Cell, alone: bool) -> Cell:
    return cell if alone or cell.text == UNKNOWN else Cell(f"({cell.text})", cell.value, cell.half)


def difference_table(comparisons: Sequence[Comparison], metric: Metric) -> Table:
    """How variants differ at the end: first the difference with its interval, then the p-values."""
    rows = [
        [
            Cell(f"{pair.first} - {pair.second}"),
            Cell(str(pair.difference.count), pair.difference.count),
            number(pair.difference, metric),
            _seeds_needed(pair.difference),
            _p_value(pair.t_test), _p_value(pair.adjusted_t), _p_value(pair.rank_test),
            _p_value(pair.adjusted_rank),
        ]
        for pair in comparisons
    ]  # fmt: skip
    unit = " (points)" if metric.is_fraction else ""
    return Table(
        f"differences in {metric.name}",
        [
            "pair", "seeds", f"difference{unit}", "seeds needed", "t-test", "t-test, Holm", "rank test",
            "rank test, Holm",
        ],
        rows,
        notes=[
            "Mean of the differences over the seeds that both have ± half of the 95 % interval; two-sided "
            "p-values of the paired t-test and of Wilcoxon's signed-rank test (from six seeds on), and the "
            "same after Holm's correction over all pairs.",
            "Seeds needed: with so many a t-test at 5 % finds a difference of the seen size in 80 % of all "
            "studies, if seeds vary as they did here. Fewer seeds than that leave the pair undecided.",
            f"The differences are those of the last points of figure {metric.name}_rounds.",
        ],
    )  # fmt: skip


def _seeds_needed(difference: Interval) -> Cell:
    needed = seeds_needed(difference)
    if needed is not None:
        return Cell(str(needed), needed)
    return Cell(f"> {MOST_SEEDS}", MOST_SEEDS + 1) if isfinite(difference.half) else Cell(UNKNOWN)


def _p_value(p: float) -> Cell:
    if not isfinite(p):
        return Cell(UNKNOWN)
    return Cell("< 0.0001" if p < 1e-4 else f"{p:.4f}", p)


def as_markdown(table: Table) -> str:
    """The table in Markdown."""
    lines = [
        _markdown_row(table.headings),
        _markdown_row([":--", *["--:"] * (len(table.headings) - 1)]),
        *(_markdown_row([cell.text for cell in row]) for row in table.rows),
    ]
    return "\n".join([*lines, "", *table.notes, ""])


def _markdown_row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def as_csv(table: Table) -> str:
    """The table as comma-separated values, with the numbers that the texts were made from."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    numeric = [any(isfinite(row[i].value) for row in table.rows) for i in range(len(table.headings))]
    halves = [any(isfinite(row[i].half) for row in table.rows) for i in range(len(table.headings))]
    columns = [
        (i, part) for i, half in enumerate(halves) for part in (("value", "half") if half else ("value",))
    ]
    writer.writerow([table.headings[i] + (" ±" if part == "half" else "") for i, part in columns])
    for row in table.rows:
        writer.writerow([_plain(row[i], part, numeric[i]) for i, part in columns])
    return text.getvalue()


def _plain(cell: Cell, part: str, is_numeric: bool) -> str:
    if not is_numeric:
        return cell.text
    value = cell.half if part == "half" else cell.value
    return f"{value:.10g}" if isfinite(value) else ""


LATEX = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{",
    "}": r"\}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "±": r"$\pm$", "<": "$<$", ">": "$>$",
}  # fmt: skip


def as_latex(table: Table) -> str:
    """The table in LaTeX, for \\usepackage{booktabs}; long headings take two lines."""
    columns = "l" + "r" * (len(table.headings) - 1)
    body = [_latex_row([_latex(cell.text) for cell in row]) for row in table.rows]
    lines = [
        rf"\begin{{tabular}}{{{columns}}}", r"\toprule", _latex_row(map(_latex_heading, table.headings)),
        r"\midrule", *body, r"\bottomrule", r"\end{tabular}",
    ]  # fmt: skip
    return "\n".join([*(f"% {remark}" for remark in table.notes), *lines, ""])


def _latex_heading(text: str) -> str:
    """A long heading in two lines of about the same length."""
    words = text.split(" ")
    if len(text) <= LONGEST_LINE or len(words) == 1:
        return _latex(text)
    at = min(range(1, len(words)), key=lambda i: max(len(" ".join(words[:i])), len(" ".join(words[i:]))))
    first, second = (_latex(" ".join(part)) for part in (words[:at], words[at:]))
    return rf"\shortstack[r]{{{first}\\{second}}}"


def _latex(text: str) -> str:
    return "".join(LATEX.get(letter, letter) for letter in text)


def _latex_row(cells: Iterable[str]) -> str:
    return " & ".join(cells) + r" \\"
