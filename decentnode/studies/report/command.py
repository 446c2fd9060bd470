"""`decentnode report`: the page of a study, and its tables and figures for a paper."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from decentnode.core.atomic_files import write_durably
from decentnode.core.text import counted
from decentnode.errors import BadInput
from decentnode.formats.run import FINISHED
from decentnode.results import Study
from decentnode.results.run import Run

FILE = "report.html"


def report(
    directories: Sequence[Path], out: Path | None, paper: Path | None, target: float | None,
    style: Mapping[str, Any] | None = None,
) -> Iterator[str]:  # fmt: skip
    """Writes the page, and the files for a paper if a folder is given; yields what to tell the user.

    `style`: the options of `chosen_style` for the figures of the paper. Raises BadInput.
    """
    from decentnode.studies.report.page import page  # loads matplotlib

    study = Study(*directories)
    path = out or (directories[0] / FILE if len(directories) == 1 else Path(FILE))
    unfinished = [run for run in study.runs if run.state != FINISHED]
    try:
        write_durably(path, [page(study, target).encode()])
        written = _paper(study, paper, target, style or {}) if paper else []
    except OSError as error:
        raise BadInput(f"{error.filename or path}: cannot be written: {error.strerror}") from error
    for run in unfinished:
        yield f"{run.directory}: {run.state}, so it does not count"
    for run in study.runs:
        if run.state == FINISHED and not run.rows:
            yield f"{run.directory}: finished without an evaluation, so it does not count"
    for variant in study.compared:
        by_seed: dict[int, Run] = {}
        for run in variant.finished:
            if (first := by_seed.setdefault(run.seed, run)) is not run:
                yield f"{run.directory}: same settings and seed as {first.directory}, and both count as seeds"
    yield f"{counted(len(study.runs), 'run')} of {counted(len(study.variants), 'variant')}: {path}"
    yield from map(str, written)


def _paper(study: Study, folder: Path, target: float | None, style: Mapping[str, Any]) -> list[Path]:
    if not study.compared:
        raise BadInput(f"{study.directories[0]}: no run has finished yet, so there is nothing for a paper")
    from decentnode.results.figures.style import chosen_style  # loads matplotlib
    from decentnode.studies.report import paper

    return paper.write(
        study, folder, study.default_target if target is None else target, chosen_style(**style)
    )
