"""The page of a report: one HTML file with everything inside, which no network is needed for."""

import json
import shlex
from collections.abc import Iterator
from dataclasses import asdict
from math import isfinite
from pathlib import Path
from typing import Any

from decentnode.core.version import __version__
from decentnode.formats.run import FINISHED
from decentnode.results import Run, Study, read_object
from decentnode.results.extra import need
from decentnode.results.statistics import Comparison
from decentnode.results.study import OF_ONE_RUN
from decentnode.studies.report import pictures, tables
from decentnode.studies.report.pictures import Picture
from decentnode.studies.report.tables import Table

FILES = Path(__file__).parent / "files"
MOST_IN_PAIRS = 12
"""Variants of which all pairs are compared; of more, each with the best one."""


def page(study: Study, target: float | None = None) -> str:
    """The HTML of a report; raises BadInput for files that decentnode has not written.

    `target`: the headline metric, as people read it, that costs are counted up to; default: what all reach.
    """
    return render(study, target, is_live=False)


def render(study: Study, target: float | None, is_live: bool) -> str:
    """The page; a live one asks its server for newer versions, and shows them."""
    environment = need("jinja2").Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    template = environment.from_string((FILES / "page.html").read_text())
    return str(
        template.render(
            page_content(study, study.default_target if target is None else target),
            pictures={picture.name: picture for picture in pictures_of(study, target, is_live)},
            is_live=is_live,
            style=(FILES / "page.css").read_text(),
            script=(FILES / "page.js").read_text(),
        )
    )


def page_content(study: Study, target: float) -> dict[str, Any]:
    """Returns the content of the page, without its figures, as plain values: tables and runs with states."""
    content: dict[str, Any] = {
        "name": study.name, "version": __version__, "headline": study.headline.name,
        "tables": [asdict_table(table) for table in _tables(study, target)],
        "differences": None,
        "runs": [_run(variant.name, run) for variant in study.variants for run in variant.runs],
    }  # fmt: skip
    if comparisons := _comparisons(study):
        content["differences"] = asdict_table(tables.difference_table(comparisons, study.headline))
    content["settings"] = {
        variant.name: json.dumps(_own_settings(variant.runs[0]), indent=2, default=str)
        for variant in study.variants
    }
    return content


def _tables(study: Study, target: float) -> Iterator[Table]:
    if study.compared:
        yield tables.main_table(study, target)
        if (before := tables.pipeline_table(study)).rows:
            yield before


def _comparisons(study: Study) -> list[Comparison]:
    """All pairs of variants; of many those with the best one."""
    ends = {variant.name: variant.over_seeds(lambda run: run.curve()[-1]).mean for variant in study.compared}
    if len(ends) <= MOST_IN_PAIRS:
        return study.comparisons()
    known = {name: end for name, end in ends.items() if isfinite(end)}
    best = next((name for name, end in known.items() if end == study.headline.best([*known.values()])), "")
    return study.comparisons(against=best)


def pictures_of(study: Study, target: float | None, is_live: bool) -> Iterator[Picture]:
    """All figures of the page."""
    if any(run.rows for run in study.runs):
        yield from pictures.curve_pictures(study, is_live)
    if study.compared:
        yield pictures.spread_picture(study)
        if study.is_simulated:
            yield pictures.cost_picture(study, target)
    graph = pictures.graph_picture(study.runs[0])
    yield Picture("graph", "Graph", "", f"Not drawn: {graph}.") if isinstance(graph, str) else graph
    if partition := pictures.partition_picture(study.runs[0]):
        yield partition


def asdict_table(table: Table) -> dict[str, Any]:
    """The table as plain values; a number that is not finite is None."""
    content = asdict(table)
    for cell in (cell for row in content["rows"] for cell in row):
        cell.update({key: None for key in ("value", "half") if not isfinite(cell[key])})
    return content


def _run(variant: str, run: Run) -> dict[str, Any]:
    summary = run.summary
    return {
        "variant": variant, "seed": run.seed, "state": run.state, "is_counted": run.state == FINISHED,
        "round": run.rows[-1].round + 1 if run.rows else 0,
        "directory": str(run.directory),
        "command": f"decentnode run {shlex.quote(str(run.directory / 'config.yaml'))} run_dir=NEW_DIRECTORY",
        "version": summary.get("version", ""), "torch": summary.get("torch_version", ""),
        "model_hash": summary.get("model_hash", ""), "code": _code(run),
    }  # fmt: skip


def _code(run: Run) -> str:
    """The hash of the plug-ins and, where it is recorded, of decentnode itself."""
    path = run.directory / "run.json"
    versions = read_object(path).get("code") if path.exists() else None
    if not versions:
        return ""
    newest = versions[-1]
    return " ".join(str(newest[key])[:12] for key in ("digest", "package") if newest.get(key))


def _own_settings(run: Run) -> dict[str, Any]:
    return {key: value for key, value in run.settings.items() if key not in OF_ONE_RUN}
