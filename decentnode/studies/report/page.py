"""The page of a report: one HTML file with everything inside, which no network is needed for."""

import json
import shlex
from base64 import b64encode
from dataclasses import asdict
from math import isfinite
from pathlib import Path
from typing import Any

import networkx as nx  # type: ignore[import-untyped]

from decentnode.config.loader import load_plugin
from decentnode.core.registry import GRAPHS, reading_only
from decentnode.core.text import first_line
from decentnode.core.version import __version__
from decentnode.errors import BadInput
from decentnode.formats.run import FINISHED
from decentnode.graph.base import Graph
from decentnode.results import Run, Study, read_object
from decentnode.results.extra import need
from decentnode.results.study import OF_ONE_RUN
from decentnode.studies.report import charts, tables
from decentnode.studies.report.tables import Table

FILES = Path(__file__).parent / "files"
MOST_DRAWN = 200
"""Nodes of the largest graph that is drawn."""


def page(study: Study, target: float | None = None) -> str:
    """The HTML of a report; raises BadInput for files that decentnode has not written.

    `target`: the headline metric, as people read it, that costs are counted up to; default: what all reach.
    """
    return render(study, target, is_live=False)


def render(study: Study, target: float | None, is_live: bool) -> str:
    """The page; a live one asks its server for newer versions, and loads them."""
    content = page_content(study, study.default_target if target is None else target)
    environment = need("jinja2").Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    costs = ""
    if study.compared and study.is_simulated and not is_live:
        from decentnode.results.figures.plots import as_png  # loads matplotlib

        costs = b64encode(as_png(study.plot_costs(target))).decode()
    template = environment.from_string((FILES / "page.html").read_text())
    return str(
        template.render(
            content,
            is_live=is_live,
            costs=costs,
            charts_json=as_script(content["charts"]),
            style=(FILES / "page.css").read_text(),
            script=(FILES / "page.js").read_text(),
            plotly=need("plotly.offline").get_plotlyjs(),
        )
    )


def page_content(study: Study, target: float) -> dict[str, Any]:
    """Returns the content of the page as plain values: tables, charts and the runs with their states."""
    content: dict[str, Any] = {
        "name": study.name, "version": __version__, "headline": study.headline.name,
        "tables": [asdict_table(tables.main_table(study, target))] if study.compared else [],
        "differences": None,
        "runs": [_run(variant.name, run) for variant in study.variants for run in variant.runs],
        "charts": charts.curve_charts(study) if any(run.rows for run in study.runs) else {},
    }  # fmt: skip
    for i, group in enumerate(("curves", "axes")):
        content[group] = list(dict.fromkeys(name.rsplit("_", 1)[i] for name in content["charts"]))
    if study.compared:
        content["charts"]["spread"] = charts.spread_chart(study)
        content["charts"]["distance"] = charts.distance_chart(study)
    if comparisons := study.comparisons():
        content["differences"] = asdict_table(tables.difference_table(comparisons, study.headline))
    first = study.runs[0]
    if partition := charts.partition_chart(first):
        content["charts"]["partition"] = partition
    graph = _graph_chart(first)
    content["graph_lacks"] = graph if isinstance(graph, str) else ""
    if not isinstance(graph, str):
        content["charts"]["graph"] = graph
    content["settings"] = {
        variant.name: json.dumps(_own_settings(variant.runs[0]), indent=2, default=str)
        for variant in study.variants
    }
    return content


def asdict_table(table: Table) -> dict[str, Any]:
    """The table as plain values; a number that is not finite is None."""
    content = asdict(table)
    for cell in (cell for row in content["rows"] for cell in row):
        cell.update({key: None for key in ("value", "half") if not isfinite(cell[key])})
    return content


def as_script(value: object) -> str:
    """Returns JSON that may be inside a script element; numbers that are not finite are null."""
    text = json.dumps(value, allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


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


def _graph_chart(run: Run) -> charts.Chart | str:
    """The graph of a run, or why it is not drawn."""
    try:
        with reading_only():
            graph: Graph = load_plugin(run.directory / "config.yaml", "graph", GRAPHS).make()
    except BadInput as error:
        return first_line(error)
    if graph.num_nodes > MOST_DRAWN:
        return f"it has more than {MOST_DRAWN} nodes"
    edges = [(a, b) for a in range(graph.num_nodes) for b in graph.partners(a) if a < b]
    drawn = nx.Graph(edges)
    drawn.add_nodes_from(range(graph.num_nodes))
    places = nx.kamada_kawai_layout(drawn) if nx.is_connected(drawn) else {}
    return charts.graph_chart(
        edges, graph.num_nodes, {i: (float(x), float(y)) for i, (x, y) in places.items()}
    )
