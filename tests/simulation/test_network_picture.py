"""`decentnode graph CONFIG --network`: quantiles on the screen, and a picture that can be read."""

from math import inf
from pathlib import Path

import numpy as np
import pytest
from matplotlib.colors import LogNorm

from decentnode.cli.graph import Drawing
from decentnode.cli.network import report_network
from decentnode.config.loader import load
from decentnode.core.text import readable_rate, short_time
from decentnode.errors import BadInput
from decentnode.results.figures import plots_network
from decentnode.results.figures.plots_network import NetworkPicture, block_means, scale_of

CONFIG = Path(__file__).parents[2] / "configs/simulated.yaml"
REGIONS = "communication={name: simulated, latency: {table: azure, regions: [East US, Japan East]}}"


def test_the_screen_has_quantiles_and_the_picture_all_nodes(tmp_path, monkeypatch):
    """16 nodes are a graph, 64 a matrix beside bars; regions have their names in both."""
    figures = []
    for name in ("_graph", "_matrix"):
        draw = getattr(plots_network, name)
        monkeypatch.setattr(
            plots_network, name, lambda *args, draw=draw: figures.append(draw(*args)) or figures[-1]
        )
    path = tmp_path / "made" / "network.png"
    lines = [*report_network(load(CONFIG), Drawing(path))]
    assert lines[0].split() == ["nodes", "16"] and lines[-1].endswith(str(path)) and path.stat().st_size > 1e4
    least, median, most = (float(lines[3].split()[3 + 2 * place]) for place in (0, 2, 4))
    assert lines[3].startswith("latency, all pairs") and 5 < least < 22 < median < 28 < most, "milliseconds"
    assert [line.split()[0] for line in lines[4:7]] == ["latency,", "uplink", "downlink"]
    labels = {axes.get_ylabel() for axes in figures[0].axes}
    assert labels >= {"latency of an edge, mean of both directions", "uplink of a node"}
    assert {text.get_text() for text in figures[0].axes[0].texts} == {str(rank) for rank in range(16)}

    lines = [*report_network(load(CONFIG, [REGIONS]), Drawing(path))]
    assert "regions            East US (8), Japan East (8)" in lines
    assert lines[-2].split() == ["downlink", *["unlimited"] * 5]
    assert [text.get_text() for text in figures[1].legends[0].get_texts()] == ["East US", "Japan East"]

    lines = [*report_network(load(CONFIG, ["communication={name: simulated, bandwidth: 2 Mbit/s}"]))]
    assert lines[-1].split() == ["bandwidth,", "pairs", *["2", "Mbit/s"] * 5]

    many = ["graph={name: regular, nodes: 64, degree: 4}"]
    many += [f"{REGIONS[:-1]}, uplink: {{distribution: lognormal, median: 1 Mbit/s, sigma: 1.5}}}}"]
    list(report_network(load(CONFIG, many), Drawing(tmp_path / "network.svg")))
    matrix, bars = figures[2].axes[:2]
    assert matrix.images[0].get_array().shape == (64, 64) and bars.get_xlabel() == "uplink"
    assert [text.get_text() for text in matrix.get_yticklabels()] == ["East US", "Japan East"]
    assert len(bars.patches) == 64 and bars.get_xscale() == "log"


def test_the_scale_is_logarithmic_only_where_most_numbers_are_far_apart():
    assert isinstance(scale_of(np.geomspace(1e4, 1e7, 9)), LogNorm)
    # Times within a region are few and small.
    assert not isinstance(scale_of(np.array([5e-4, *np.linspace(0.05, 0.2, 9)])), LogNorm)
    alike = scale_of(np.full(4, 3.0))
    assert alike.vmin < alike.vmax == 3.0 and scale_of(np.full(2, inf)).vmax == 1.0
    assert [short_time(t) for t in (2.5e-4, 0.0125, 1.0, 0.0)] == ["250 us", "12.5 ms", "1 s", "0"]
    assert [readable_rate(r) for r in (999_900, 64e3, 10.0, inf)] == [
        "1 Mbit/s", "64 kbit/s", "10 bit/s", "unlimited",
    ]  # fmt: skip


def test_a_network_that_is_not_modelled_is_refused_in_one_line(tmp_path):
    quickstart = load(CONFIG.parent / "quickstart.yaml")
    with pytest.raises(BadInput, match="--network: communication is zeromq, which models no network"):
        list(report_network(quickstart))
    with pytest.raises(BadInput, match="no --color, --rounds"):
        list(report_network(load(CONFIG), Drawing(tmp_path / "x.png", color="machine")))
    empty = np.zeros((1, 1))
    picture = NetworkPicture("one node", empty, np.full(1, inf), np.full(1, inf))
    plots_network.draw_network(picture, tmp_path / "one.png")
    assert (tmp_path / "one.png").stat().st_size > 1000


def test_of_many_nodes_a_cell_is_the_mean_of_a_block_and_quantiles_are_of_some_pairs(monkeypatch, tmp_path):
    matrix = np.random.default_rng(1).random((7, 7))
    apart = np.where(np.eye(7, dtype=bool), np.nan, matrix)
    for size in (1, 3):
        begins = range(0, 7, size)
        blocks = [[apart[i : i + size, j : j + size] for j in begins] for i in begins]
        expected = [[np.nan if np.isnan(of).all() else np.nanmean(of) for of in row] for row in blocks]
        assert np.allclose(block_means(matrix, size), expected, equal_nan=True)
    monkeypatch.setattr("decentnode.cli.network.MOST_COUNTED", 64)
    monkeypatch.setattr(plots_network, "MOST_CELLS", 8)
    many = ["graph={name: regular, nodes: 65, degree: 4}"]
    lines = [*report_network(load(CONFIG, many), Drawing(tmp_path / "a.png"))]
    median = float(next(line for line in lines if line.startswith("latency, some pairs")).split()[7])
    assert 22 < median < 28
