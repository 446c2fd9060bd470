"""`decentnode frontier`: runs a study, attacks its runs, and shows what protection costs."""

from collections.abc import Callable, Iterator, Sequence
from math import isfinite
from pathlib import Path

from decentnode.cli.pictures import check_picture
from decentnode.core.atomic_files import write_durably
from decentnode.core.text import first_line
from decentnode.errors import BadInput
from decentnode.formats.run import FINISHED
from decentnode.formats.transcript import FOLDER
from decentnode.results import Study
from decentnode.results.attack_results import ATTACKS_FILE
from decentnode.results.curves import metric_label
from decentnode.results.figures.plots_privacy import Panel, draw_frontier
from decentnode.results.statistics import Interval
from decentnode.studies.report.frontier import Frontier, FrontierPoint, not_dominated
from decentnode.studies.report.tables import as_csv, as_markdown

TABLE, NUMBERS, FIGURE = "frontier.md", "frontier.csv", "frontier.svg"
Row = list[str]


def directory_of(study: Path, overrides: Sequence[str]) -> Path:
    """The directory of a study's runs, by its file or by that directory; raises BadInput."""
    if study.is_dir():
        if overrides:
            raise BadInput(f"{overrides[0]}: a finished study has no options; name its file")
        return study
    from decentnode.studies.study_file import read_study

    return read_study(study, overrides).out


def attack_missing(directory: Path, with_plugins: bool) -> Iterator[str]:
    """Attacks what adversaries of finished runs have recorded, unless it is done; a line for each run.

    `with_plugins`: also runs that have plug-ins, whose code it runs; otherwise their line says so.
    """
    from decentnode.attacks.report import report

    for run in Study(directory).runs:
        is_recorded = (run.directory / FOLDER).exists()
        if run.state != FINISHED or not is_recorded or (run.directory / ATTACKS_FILE).exists():
            continue
        try:
            *_, last = report(run.directory, (), with_its_code=with_plugins)
        except BadInput as error:
            if with_plugins:
                raise
            last = f"{run.directory}: not attacked: {first_line(error)}"
        yield last


def show(directory: Path, out: Path | None = None) -> Iterator[str]:
    """Writes table, numbers and figure of a study; yields what to print. Raises BadInput."""
    study = Study(directory)
    if not study.compared:
        raise BadInput(f"{directory}: no run has finished yet, so there is no frontier")
    for run in study.runs:
        if run.state != FINISHED:
            yield f"{run.directory}: {run.state}, so it does not count"
    frontier, folder = Frontier(study), out or directory
    table = frontier.table()
    yield from aligned([table.headings, *([cell.text for cell in row] for row in table.rows)])
    yield ""
    yield from table.notes
    picture = folder / FIGURE
    check_picture(picture, "--out")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_durably(folder / TABLE, [as_markdown(table).encode()])
        write_durably(folder / NUMBERS, [as_csv(table).encode()])
    except OSError as error:
        raise BadInput(f"{error.filename or folder}: cannot be written: {error.strerror}") from error
    headline = study.headline
    rows = [panels(group, points, headline.higher_is_better) for group, points in frontier.groups.items()]
    draw_frontier(f"{study.name}: privacy frontier", metric_label(headline), rows, path=picture)
    yield from map(str, (folder / TABLE, folder / NUMBERS, picture))


def panels(group: str, points: Sequence[FrontierPoint], rising: bool) -> list[Panel]:
    """Utility against bytes, what attacks found, and what is proven."""
    of = f"{group}, " if group else ""
    kinds: list[tuple[str, str, bool, Callable[[FrontierPoint], Interval], float]] = [
        ("bytes", "sent per node (MB)", True, lambda point: point.bytes, 1e-6),
        ("attack", "AUC of membership", False, lambda point: point.auc, 1.0),
        ("proof", "epsilon", True, lambda point: point.epsilon, 1.0),
    ]
    return [
        Panel(f"{of}{name}", axis, is_logarithmic, points=values, front=front)
        for name, axis, is_logarithmic, cost, scale in kinds
        if any(isfinite(cost(point).mean) for point in points)
        for values, front in (_drawn(points, cost, rising, scale),)
    ]


def _drawn(
    points: Sequence[FrontierPoint], cost: Callable[[FrontierPoint], Interval], rising: bool, scale: float
) -> tuple[dict[str, tuple[float, float, float, float]], list[str]]:
    """x and y with their halves by label, and the labels of the front of these two."""
    values = {
        point.place.label: (
            scale * cost(point).mean, scale * cost(point).half, point.utility.mean, point.utility.half,
        )
        for point in points
    }  # fmt: skip
    best = not_dominated([(x, -y if rising else y) for x, _, y, _ in values.values()])
    labels = [*values]
    return values, [labels[i] for i in best]


def aligned(rows: Sequence[Row]) -> Iterator[str]:
    """The rows in columns; the first is to the left."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    for row in rows:
        cells = [cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)]
        yield "  ".join([row[0].ljust(widths[0]), *cells]).rstrip()
