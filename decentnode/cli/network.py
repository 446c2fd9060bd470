"""The output of `decentnode graph CONFIG --network`: latency and rates of a simulated network."""

from collections.abc import Iterator
from itertools import groupby
from typing import TYPE_CHECKING, Any

import numpy as np

from decentnode.cli.pictures import drawing_function
from decentnode.communication.simulated import Simulated
from decentnode.core.rng import generator
from decentnode.core.text import counted, readable_rate, short_time
from decentnode.errors import BadInput

if TYPE_CHECKING:
    from decentnode.cli.graph import Drawing
    from decentnode.config.settings import Settings

MOST_COUNTED = 2048
"""Up to so many nodes quantiles are those of all pairs; of more, those of as many pairs, drawn at random."""
QUANTILES = {"least": 0.0, "10 %": 0.1, "median": 0.5, "90 %": 0.9, "most": 1.0}


def report_network(settings: "Settings", drawing: "Drawing | None" = None) -> Iterator[str]:
    """Yields quantiles of latency and rates of a configuration, a line each, and draws them.

    Raises BadInput where its network is not simulated.
    """
    communication = settings.communication.make()
    if not isinstance(communication, Simulated):
        name = settings.communication.name
        raise BadInput(f"--network: communication is {name}, which models no network; use simulated")
    if drawing is not None and (drawing.rounds is not None or drawing.color is not None):
        raise BadInput("--network: latency and uplink have the colors, for all rounds; no --color, --rounds")
    graph = settings.graph.make()
    nodes = graph.num_nodes
    network, regions = communication.network_of(nodes), communication.regions_of(nodes)
    yield f"nodes              {nodes}"
    yield f"network            {communication.network_text}"
    if regions:
        blocks = [(name, len([*ranks])) for name, ranks in groupby(regions)]
        yield f"regions            {', '.join(f'{name} ({count})' for name, count in blocks)}"
    pairs: Any = ~np.eye(min(nodes, MOST_COUNTED), dtype=bool)
    if nodes > MOST_COUNTED:
        drawn = generator(0, "pairs").integers(nodes, size=(2, MOST_COUNTED**2))
        pairs = tuple(drawn[:, drawn[0] != drawn[1]])
    all_pairs = "all pairs" if nodes <= MOST_COUNTED else "some pairs"
    shares = [*QUANTILES.values()]
    rows = [["", *QUANTILES]]
    if nodes > 1:
        rows.append([f"latency, {all_pairs}", *map(short_time, np.quantile(network.latency[pairs], shares))])
    edges = [(i, j) for i in range(nodes) for j in graph.targets(i, 0)]
    if edges:
        latency = network.latency[tuple(np.array(edges).T)]
        along = "latency, edges" if graph.static else "latency, round 1"
        rows.append([along, *map(short_time, np.quantile(latency, shares))])
    rates = {"uplink": network.uplink, "downlink": network.downlink}
    if network.bandwidth is not None and nodes > 1:
        rates["bandwidth, pairs"] = network.bandwidth[pairs]
    for name, values in rates.items():
        # No interpolation: some rates may be infinite.
        quantiles = np.quantile(values, shares, method="inverted_cdf")
        rows.append([name, *map(readable_rate, quantiles)])
    for name, *cells in rows:
        yield f"{name:<18} {' '.join(f'{cell:>12}' for cell in cells)}"
    if drawing is not None:
        title = f"{settings.name}: {counted(nodes, 'node')}"
        drawing_function("network", drawing.path)(title, graph, communication, drawing.path)
        yield f"picture            {drawing.path}"
