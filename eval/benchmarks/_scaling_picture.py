"""The picture of strong scaling: the time of a step against the number of workers."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import LogFormatter

from decentnode.results.figures.style import DPI, PALE, drawing
from decentnode.results.styles import MARKERS, PALETTE

SERIES = {
    ("run", "scheme_ms"): 0,
    ("run", "all_reduce_ms"): 1,
    ("wrapper", "scheme_ms"): 2,
    ("wrapper", "all_reduce_ms"): 3,
}
"""The place of the color of each curve."""


def draw(rows: Sequence[Mapping[str, Any]], path: Path, title: str, processors: int) -> None:
    """Draws measured curves solid and modelled ones dashed, with a line at the processors of this machine."""
    with drawing():
        figure = Figure(figsize=(7, 4.4), layout="constrained")
        axes = figure.add_subplot()
        for (loop, column), place in SERIES.items():
            for kind, line in (("measured", "-"), ("modelled", "--")):
                chosen = sorted(
                    (row["workers"], row[column], row["scheme"])
                    for row in rows
                    if (row["loop"], row["kind"]) == (loop, kind)
                )
                # The modelled all-reduce is the same ring for both loops.
                if not chosen or (place == 3 and kind == "modelled"):
                    continue
                baseline = "all-reduce" if loop == "run" else "torch's DDP"
                name = chosen[0][2] if column == "scheme_ms" else baseline
                axes.plot(
                    [x for x, _, _ in chosen], [y for _, y, _ in chosen], line, color=PALETTE[place],
                    marker=MARKERS[place], label=f"{name}, {kind}",
                )  # fmt: skip
        counts = sorted({row["workers"] for row in rows})
        measured = [row["workers"] for row in rows if row["kind"] == "measured"]
        if measured and max(measured) > processors:
            axes.axvline(processors, color=PALE, linestyle=":", linewidth=1.2, label="processors here")
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.set_xticks(counts, [str(count) for count in counts])
        # Less than a decade has no major tick; then the minor ones have the numbers.
        axes.yaxis.set_major_formatter(LogFormatter())
        axes.yaxis.set_minor_formatter(LogFormatter(minor_thresholds=(2.0, 0.5)))
        axes.set(xlabel="workers, one global batch", ylabel="time of a step, ms", title=title)
        figure.legend(loc="outside lower center", ncols=2, handlelength=2.6)
        figure.savefig(path, dpi=DPI)
