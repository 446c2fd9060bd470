"""How often a run sent each coordinate, from its `coordinates/` (`records.coordinates`)."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from decentnode.errors import BadInput
from decentnode.formats.model_files import COORDINATES, model_rounds, read_model
from decentnode.formats.reader import StrPath

PERCENTS = np.linspace(0, 100, 201)
MOST_PLACES = 1000
"""Coordinates that a picture shows one by one; of more, the mean of as many next to each other."""
KEEPS = "records.coordinates"
Numbers = NDArray[np.float64]


@dataclass(frozen=True)
class SentShares:
    """In how many percent of the rounds coordinates were sent, at the end of a run."""

    percentiles: Numbers
    """Those over the coordinates of each node, at PERCENTS, shape (nodes, 201)."""
    places: Numbers
    """The mean over nodes in the order of the coordinates, shape (at most MOST_PLACES,)."""
    dimension: int
    """The number of coordinates."""

    @property
    def per_place(self) -> float:
        """The number of coordinates in each of `places`."""
        return self.dimension / max(len(self.places), 1)


def read_shares(run: Path) -> SentShares | None:
    """Reads the counts of the nodes of this machine after their last rounds; None where there are none.

    Raises BadInput.
    """
    kept = model_rounds(run, COORDINATES)
    if not kept:
        return None
    percentiles, total, dimension = list[Numbers](), np.zeros(0), 0
    for rank, rounds in kept.items():
        shares = 100 * counts_of(run, rank, rounds[-1])["rounds"] / (rounds[-1] + 1)
        dimension = len(shares)
        percentiles.append(np.percentile(shares, PERCENTS) if dimension else np.zeros(len(PERCENTS)))
        edges = np.linspace(0, dimension, min(dimension, MOST_PLACES) + 1).astype(int)
        sums = np.add.reduceat(shares, edges[:-1]) if dimension else np.zeros(0)
        total = sums / np.diff(edges) + (total if total.size else 0)
    return SentShares(np.array(percentiles), total / len(kept), dimension)


def counts_of(run: StrPath, rank: int, round: int | None = None) -> dict[str, NDArray[Any]]:
    """Returns `rounds`, in how many rounds each coordinate was sent, and `latest`, in which one last.

    `round` counts from 0, by default the last one that was written; `latest` likewise, -1 for none. Raises
    BadInput.
    """
    kept = model_rounds(run, COORDINATES)
    if not kept:
        raise BadInput(f"{run}: counts no coordinates; run it with {KEEPS}: {{}} in its configuration")
    if rank not in kept:
        raise BadInput(f"{run}: has no counts of rank {rank}; it has those of {', '.join(map(str, kept))}")
    return read_model(run, rank, kept[rank][-1] if round is None else round, COORDINATES)
