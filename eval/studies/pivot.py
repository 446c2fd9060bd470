"""The headline metric of a study in two dimensions: python eval/studies/pivot.py DIRECTORY ROWS COLUMNS

ROWS and COLUMNS are axes of the study; each combination of the other axes has its own table, in Markdown.
Means over the seeds that finished, with half of the 95 % interval; runs that ended early are counted.
"""

import sys
from pathlib import Path

from decentnode.results import Study
from decentnode.results.study import Variant
from decentnode.results.table_cells import number


def main(directory: Path, rows: str, columns: str) -> None:
    """Prints the tables."""
    study = Study(directory)
    tables: dict[str, dict[tuple[str, str], str]] = {}
    for variant in study.variants:
        other_labels = ", ".join(label for axis, label in variant.axes.items() if axis not in (rows, columns))
        tables.setdefault(other_labels, {})[variant.axes[rows], variant.axes[columns]] = cell(study, variant)
    for title, cells in tables.items():
        across = list(dict.fromkeys(column for _, column in cells))
        print(f"\n{title}\n\n| {rows} | {' | '.join(across)} |\n|---|{'---|' * len(across)}")
        for row in dict.fromkeys(row for row, _ in cells):
            print(f"| {row} | {' | '.join(cells.get((row, column), '-') for column in across)} |")


def cell(study: Study, variant: Variant) -> str:
    """Mean and interval at the end, and how many runs ended early."""
    early = len(variant.runs) - len(variant.finished)
    text = number(variant.over_seeds(study.measures()["end"]), study.headline).text
    return f"{text} ({early} of {len(variant.runs)} ended early)" if early else text


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:4])
