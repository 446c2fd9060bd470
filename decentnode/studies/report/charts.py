"""The charts of the page, as plotly's JSON: curves with bands, spreads, partition and graph."""

from collections.abc import Iterator, Sequence
from math import cos, isfinite, pi, sin
from typing import Any

from decentnode.formats.metrics import LOSS, Metric
from decentnode.formats.partition_table import MOST_ROWS, ROWS_OF_MORE, label_rows, read_partition
from decentnode.formats.run import FINISHED
from decentnode.results import Run, Study
from decentnode.results.bands import AXES, Band, distance_band, metric_band
from decentnode.results.study import Variant
from decentnode.results.styles import PALETTE, CurveStyle, style_at

Chart = dict[str, Any]
"""A dict with `data` and `layout` of a plotly figure."""
AXIS_TITLES = {"rounds": "round", "bytes": "bytes sent per node", "seconds": "seconds"}
BAND_OPACITY = 0.18
MOST_MARKED = 30
MOST_POINTS = 2000
"""The most nodes that are a point each beside their box; of more the outliers are."""
"""Curves with more points than this have no markers."""


def styles_of(study: Study) -> dict[str, CurveStyle]:
    """The style of each variant, the same in all charts."""
    return {variant.name: style_at(place) for place, variant in enumerate(study.variants)}


def curve_charts(study: Study) -> dict[str, Chart]:
    """A chart for each metric and axis, named `METRIC_AXIS`; seconds only where they compare."""
    metrics = [study.headline, *([LOSS] if study.headline != LOSS else [])]
    judged = {run.judged_by for run in study.runs}
    # What runs without validation samples lack would be no curve.
    metrics += [metric for metric in judged if metric.is_of_validation and len(judged) == 1]
    local = study.headline.of_local
    metrics += [local] if all(local in run.metrics for run in study.runs) else []
    styles, charts = styles_of(study), {}
    for metric in metrics:
        bands = {variant.name: metric_band(variant.finished, metric) for variant in study.compared}
        for axis in AXES:
            title = AXIS_TITLES[axis]
            if axis == "seconds":
                title = "simulated seconds" if study.is_simulated else title
                title += f" ({study.time_doubt})" if study.time_doubt else ""
            traces = [
                t for name, band in bands.items() for t in _traces(name, band, axis, style=styles[name])
            ]
            traces += [
                _unfinished(variant, run, metric, axis=axis, style=styles[variant.name])
                for variant in study.variants
                for run in variant.runs
                if run.rows and run.state != FINISHED
            ]
            charts[f"{metric.name}_{axis}"] = {"data": traces, "layout": _layout(title, label(metric))}
    return charts


def label(metric: Metric) -> str:
    """The metric with its unit, for an axis."""
    return f"{metric.title}{' (%)' if metric.is_fraction else ''}"


def distance_chart(study: Study) -> Chart:
    """The consensus distance against rounds, on a logarithmic scale."""
    styles = styles_of(study)
    traces = [
        trace
        for variant in study.compared
        for trace in _traces(
            variant.name, distance_band(variant.finished), "rounds", style=styles[variant.name]
        )
    ]
    layout = _layout("round", "distance to the mean model, relative")
    layout["yaxis"] |= {"type": "log", "exponentformat": "power"}
    return {"data": traces, "layout": layout}


def _traces(name: str, band: Band, axis: str, style: CurveStyle) -> Iterator[dict[str, Any]]:
    x = band.x[axis]
    if band.has_interval:
        # One closed outline: there along the upper edge, and back along the lower one.
        yield {
            "x": [*x, *reversed(x)], "y": [*band.high, *reversed(band.low)], "fill": "toself",
            "fillcolor": style.color, "opacity": BAND_OPACITY, "line": {"width": 0}, "hoverinfo": "skip",
            "legendgroup": name, "showlegend": False, "mode": "lines",
        }  # fmt: skip
    yield {
        "x": x, "y": _finite(band.mean), "name": name, "legendgroup": name,
        "mode": "lines+markers" if len(x) <= MOST_MARKED else "lines",
        "line": {"color": style.color, "dash": style.dash, "width": 2},
        "marker": {"symbol": style.symbol, "size": 6},
    }  # fmt: skip


def _unfinished(variant: Variant, run: Run, metric: Metric, axis: str, style: CurveStyle) -> dict[str, Any]:
    """The curve of a run that counts nowhere yet."""
    return {
        "x": AXES[axis](run), "y": _finite(run.curve(metric)), "mode": "lines",
        "name": f"{variant.name}, seed {run.seed} ({run.state})",
        "line": {"color": style.color, "dash": "dot", "width": 1},
    }  # fmt: skip


def _finite(values: Sequence[float]) -> list[float | None]:
    return [value if isfinite(value) else None for value in values]


def _layout(x: str, y: str) -> dict[str, Any]:
    return {
        "xaxis": {"title": {"text": x}, "exponentformat": "SI", "automargin": True},
        "yaxis": {"title": {"text": y}},
        "margin": {"t": 20, "r": 20, "b": 50, "l": 70}, "height": 430, "hovermode": "closest",
        "legend": {"orientation": "h", "y": -0.2}, "paper_bgcolor": "white", "plot_bgcolor": "white",
    }  # fmt: skip


def spread_chart(study: Study) -> Chart:
    """Every node's headline metric at the end, of all seeds."""
    headline, styles = study.headline, styles_of(study)
    traces = [
        {
            "type": "box", "name": variant.name, "pointpos": 0, "jitter": 0.5,
            "y": (values := [headline.scale * value for value in _last_values(variant, headline)]),
            "boxpoints": "all" if len(values) <= MOST_POINTS else "outliers",
            "marker": {"color": styles[variant.name].color, "size": 4}, "showlegend": False,
        }
        for variant in study.compared
    ]  # fmt: skip
    return {"data": traces, "layout": _layout("", f"{label(headline)} of each node")}


def _last_values(variant: Variant, metric: Metric) -> list[float]:
    values = [value for run in variant.finished for value in run.rows[-1].values(metric.name)]
    return [value for value in values if value is not None]


def partition_chart(run: Run) -> Chart | None:
    """How many training samples every node has, of each label if they have labels; None if not known."""
    table = read_partition(run.directory)
    if table is None:
        return None
    if not table.labels:
        samples, order = table.samples, "rank"
        if len(samples) > MOST_ROWS:
            samples, order = sorted(samples, reverse=True), "nodes, the most first"
        bars = {"type": "bar", "y": samples, "marker": {"color": PALETTE[0], "line": {"width": 0}}}
        return {"data": [bars], "layout": _layout(order, "training samples") | {"bargap": 0}}
    rows, order = label_rows(table.labels), "rank"
    if len(table.labels) > MOST_ROWS:
        order = f"nodes by their most frequent label, {len(table.labels) / ROWS_OF_MORE:.0f} a row (mean)"
    heat = {
        "type": "heatmap",
        "z": rows.round(2).tolist(),
        "colorscale": "Blues",
        "reversescale": True,
        "zmin": 0,
    }
    return {"data": [heat], "layout": _layout("label", order)}


def graph_chart(
    edges: Sequence[tuple[int, int]], nodes: int, places: dict[int, tuple[float, float]]
) -> Chart:
    """The nodes of a graph at these places, in [-1, 1] x [-1, 1]; without places on a circle."""
    at = places or {i: (cos(2 * pi * i / nodes), sin(2 * pi * i / nodes)) for i in range(nodes)}
    lines: dict[str, list[float | None]] = {"x": [], "y": []}
    for a, b in edges:
        for axis, i in (("x", 0), ("y", 1)):
            lines[axis] += [at[a][i], at[b][i], None]
    hidden = {"visible": False}
    layout = _layout("", "") | {"xaxis": hidden, "yaxis": hidden | {"scaleanchor": "x"}, "showlegend": False}
    nodes_drawn = {
        "x": [at[i][0] for i in range(nodes)], "y": [at[i][1] for i in range(nodes)],
        "text": [str(i) for i in range(nodes)], "textposition": "middle center", "hoverinfo": "text",
        "mode": "markers+text", "textfont": {"color": "white", "size": 10},
        "marker": {"size": 20, "color": PALETTE[0]},
    }  # fmt: skip
    edges_drawn = {**lines, "mode": "lines", "line": {"color": "#999999", "width": 1}, "hoverinfo": "skip"}
    return {"data": [edges_drawn, nodes_drawn], "layout": layout}
