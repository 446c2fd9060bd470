"""Tables and figures for a paper: LaTeX, Markdown, CSV, and figures that fit a column and print in gray."""

from collections.abc import Callable
from pathlib import Path

from decentnode.results import Study
from decentnode.results.figures.plots_study import study_figure
from decentnode.results.figures.style import PAPER, FigureStyle, drawing, write_all
from decentnode.results.study_curves import figures_of
from decentnode.studies.report import tables

WRITERS: dict[str, Callable[[tables.Table], str]] = {
    "tex": tables.as_latex, "md": tables.as_markdown, "csv": tables.as_csv
}  # fmt: skip


def write(study: Study, out: Path, target: float, style: FigureStyle = PAPER) -> list[Path]:
    """Writes all tables and figures into a folder; returns their paths. Raises OSError.

    Figures against seconds are left out where these do not compare.
    """
    out.mkdir(parents=True, exist_ok=True)
    written = []
    main = tables.main_table(study, target)
    files = {
        "results": main,
        "results_column": tables.narrow(main),
        "differences": tables.difference_table(study.comparisons(), study.headline),
    }
    for name, table in files.items():
        for ending, text in WRITERS.items():
            path = out / f"{name}.{ending}"
            path.write_text(text(table))
            written.append(path)
    with drawing(style):
        for curves in figures_of(study.variants):
            if curves.bands and not (curves.axis.key == "seconds" and study.time_doubt):
                written += write_all(study_figure(curves, style), out / curves.name, style.formats)
    return written
