"""The output of `decentnode privacy`: what nodes learn of each other in a run."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from decentnode.cli.pictures import drawing_function
from decentnode.config.settings import Settings
from decentnode.core.text import counted
from decentnode.errors import BadInput
from decentnode.graph.mixing import WeightedGraph
from decentnode.node.privacy.network_accountant import NetworkPrivacy, account
from decentnode.sharing.blocks.network_privacy import Matrix

LEGEND = {
    "proven": "whatever the training does: only rounds whose updates can have arrived count",
    "fixed": "all messages together, for updates that do not depend on models received",
    "published": "by the theorem of the paper, which is no bound where messages share their noise",
}


def colluders_of(text: str | None) -> list[int] | None:
    """The ranks of `3,5`; None without any. Raises BadInput."""
    if text is None:
        return None
    try:
        return [int(word) for word in text.split(",")]
    except ValueError as error:
        raise BadInput(f"--colluders: ranks as in 3,5, not '{text}'") from error


def report(
    settings: Settings, delta: float | None, colluders: Sequence[int] | None = None, draw: Path | None = None
) -> Iterator[str]:
    """The lines to print; raises BadInput where no accountant covers the noise of the run."""
    result = account(settings, delta, colluders)
    yield f"protects           {result.unit}"
    yield f"epsilon            at delta {result.delta:g}, after {counted(settings.rounds, 'round')}"
    yield ""
    yield from _of_pairs(result, settings) if colluders is None else _of_colluders(result)
    yield ""
    yield f"local extreme      {_span(result.local)}: all others together, as without a graph"
    yield f"central extreme    {_span(result.central)}: who sees only the mean of all models"
    yield from (f"{name:<18} {LEGEND[name]}" for name in _tables(result))
    yield from (f"note               {remark}" for remark in result.notes)
    yield from (f"no claim           {doubt}" for doubt in result.doubts)
    if draw is not None:
        title = f"{settings.name}: epsilon at delta {result.delta:g}"
        drawing_function("privacy", draw)(title, _tables(result), draw)
        yield f"picture            {draw}"


def _tables(privacy: NetworkPrivacy) -> dict[str, Matrix]:
    tables = {"proven": privacy.proven, "fixed": privacy.fixed, "published": privacy.published}
    return {name: table for name, table in tables.items() if table is not None}


def _of_pairs(privacy: NetworkPrivacy, settings: Settings) -> Iterator[str]:
    """Returns the least, the median and the most of each figure, by the distance of the pairs."""
    tables = _tables(privacy)
    apart = _distances(WeightedGraph(settings.graph.make(), settings.make_mixing()))
    yield f"{'':>8} {'':>7}" + "".join(f" {name:^32}" for name in tables)
    yield f"{'distance':>8} {'pairs':>7}" + f" {'least':>10} {'median':>10} {'most':>10}" * len(tables)
    for hops in sorted({*apart[~np.eye(len(apart), dtype=bool)].tolist()}):
        line = f"{hops if hops > 0 else 'none':>8} {(apart == hops).sum():7}"
        for table in tables.values():
            values = table[apart == hops]
            line += f" {values.min():10.4g} {np.median(values):10.4g} {values.max():10.4g}"
        yield line


def _of_colluders(privacy: NetworkPrivacy) -> Iterator[str]:
    tables = _tables(privacy)
    group = [*privacy.observers[0]]
    yield f"of each node, for ranks {', '.join(map(str, group))} together"
    yield f"{'rank':>8}" + "".join(f" {name:>10}" for name in tables)
    for rank in range(len(privacy.proven)):
        if rank not in group:
            yield f"{rank:>8}" + "".join(f" {table[rank, 0]:10.4g}" for table in tables.values())


def _span(values: Sequence[float]) -> str:
    least, most = min(values), max(values)
    return f"{most:.4g}" if most - least <= 1e-4 * most else f"{least:.4g} to {most:.4g}"


def _distances(graph: WeightedGraph) -> NDArray[np.int64]:
    """The distances of all pairs in hops, -1 where there is no path; 1 for all where the graph changes."""
    n = graph.num_nodes
    if not graph.static:
        return 1 - np.eye(n, dtype=np.int64)
    linked = graph.matrix() != 0
    apart, reached, hops = np.full((n, n), -1), np.eye(n, dtype=bool), 0
    while (reached & (apart < 0)).any():
        apart[reached & (apart < 0)] = hops
        reached, hops = reached | (reached.astype(float) @ linked > 0), hops + 1
    return apart
