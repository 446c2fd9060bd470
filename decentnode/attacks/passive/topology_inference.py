"""Topology inference: which nodes exchange, and with which weights, from models that a party sees."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from torch import Tensor

from decentnode.attacks.passive.base import PassiveAttack
from decentnode.attacks.passive.replay import is_mixed
from decentnode.attacks.passive.scene import Scene
from decentnode.attacks.passive.sight import Sight
from decentnode.core.registry import ATTACKS, name_of
from decentnode.datasets.base import LoadedDataset
from decentnode.errors import Defect
from decentnode.graph.base import Graph
from decentnode.options import Fraction
from decentnode.results.attack_results import AttackResult
from decentnode.sharing.base import Sharing
from decentnode.sharing.blocks.network_privacy import Matrix


@ATTACKS.register("topology_inference")
@dataclass(kw_only=True)
class TopologyInference(PassiveAttack):
    """Finds the edges between nodes whose models it sees, without knowing W (setting of Feng et al., 2025).

    d_i^(t+1) = sum_j w_ij d_j^t, d^t = y^(t+1) - y^t: non-negative least squares over all rounds so far
    (Lawson and Hanson, 1974). A row is exact as soon as the party sees all neighbors of i, where local steps
    are none or the same in all rounds; what differs in them, noise and unseen neighbors are errors. There is
    an edge where a weight is at least `threshold`, in one of the directions. The party knows its own edges,
    which do not count. `method: models` uses the models themselves, one round earlier, and takes steps for
    errors.
    """

    knowledge = "the models that it sees, and those of its own ranks"
    needs_all_rounds = True

    method: Literal["differences", "models"] = "differences"
    threshold: Fraction = 0.05
    """The least weight of an edge."""
    _last: list[Matrix] = field(default_factory=list, init=False, repr=False)
    """The models of the last exchanges, or their differences, shape (d, nodes)."""
    _triangle: Matrix | None = field(default=None, init=False, repr=False)
    """R of a QR decomposition of all models, those before beside those after."""
    _seen: list[int] = field(default_factory=list, init=False, repr=False)

    def defects(self, graph: Graph, sharing: Sharing) -> Iterator[Defect]:
        yield from super().defects(graph, sharing)
        if is_mixed(sharing):
            yield Defect(
                (), f"{name_of(self)} needs single models, and {name_of(sharing)} shows their mean alone"
            )
        if not graph.static:
            yield Defect((), f"{name_of(self)} looks for edges that stay, and this graph changes")

    def sources_of(self, graph: Graph) -> set[int] | None:
        return None

    def check(self, dataset: LoadedDataset, parts: Sequence[Tensor]) -> None:
        return None

    def attack(self, scene: Scene, sight: Sight) -> Iterator[AttackResult]:
        phases = sorted({phase for phase, _, _ in sight.messages})
        if len(phases) > 1:
            # Within a round nobody trains, and no rank records its own models there.
            self._last = []
        for phase in phases:
            models = {source: m.double() for (p, _, source), m in sight.messages.items() if p == phase}
            if len(phases) == 1:
                models |= {rank: model.double() for rank, model in sight.trained.items()}
            self._seen = self._seen or sorted(models)
            if self._seen == sorted(models):
                start = scene.initial.double()
                self._add(np.stack([(models[i] - start).numpy() for i in self._seen], 1))
            else:
                self._last = []
        if self._triangle is None or not self.gives_results(sight.round, scene.rounds):
            return
        count = len(self._seen)
        before, after = self._triangle[:, :count], self._triangle[:, count:]
        weights = mixing_matrix(before, after, sees_all=count == scene.graph.num_nodes)
        w = scene.graph.matrix()[np.ix_(self._seen, self._seen)]
        guesses = np.maximum(weights, weights.T) >= self.threshold
        edges = np.maximum(w, w.T) > 0
        own = np.isin(self._seen, self.ranks)
        judged = np.triu(~(own[:, None] | own[None, :]), 1)
        if not judged.any():
            return
        right = int((guesses & edges & judged).sum())
        named, there = int((guesses & judged).sum()), int((edges & judged).sum())
        victims = ~own
        yield AttackResult(
            attack=name_of(self), adversary=self.adversary, victim=None, round=sight.round,
            accuracy=float((guesses == edges)[judged].mean()),
            chance=max(there, int(judged.sum()) - there) / int(judged.sum()),
            f1=2 * right / (named + there) if named + there else 1.0,
            relative_error=float(np.linalg.norm((weights - w)[victims]) / np.linalg.norm(w[victims])),
        )  # fmt: skip

    def _add(self, models: Matrix) -> None:
        """Takes the models of the next exchange, shape (d, nodes)."""
        self._last = [*self._last, models][-3:]
        last = list(np.diff(self._last, axis=0)) if self.method == "differences" else self._last[-2:]
        if len(last) == 2:
            rows = np.hstack(last)
            stacked = rows if self._triangle is None else np.vstack([self._triangle, rows])
            self._triangle = np.asarray(np.linalg.qr(stacked, mode="r"))


def mixing_matrix(before: Matrix, after: Matrix, sees_all: bool = True) -> Matrix:
    """W of shape (n, n), non-negative and with rows that sum to 1: after = before W'.

    Columns are nodes, rows their values in all exchanges. Where not all nodes are seen, sums are free.
    """
    n = before.shape[1]
    w: Matrix = np.zeros((n, n))
    for i in range(n):
        if not sees_all:
            w[i] = nonnegative(before, after[:, i])
            continue
        others = [j for j in range(n) if j != i]
        w[i, others] = nonnegative(before[:, others] - before[:, [i]], after[:, i] - before[:, i])
        w[i, i] = 1 - w[i].sum()
    return w


def nonnegative(design: Matrix, target: Matrix) -> Matrix:
    """Solves min |design x - target| over x >= 0 (Lawson and Hanson, 1974, chapter 23)."""
    x: Matrix = np.zeros(design.shape[1])
    is_free = np.zeros(len(x), bool)
    least = 1e-12 * float(np.linalg.norm(design, 2)) * max(float(np.linalg.norm(target)), 1e-300)
    for _ in range(3 * len(x)):
        slope: Matrix = np.where(is_free, -np.inf, design.T @ (target - design @ x))
        if is_free.all() or float(slope.max()) <= least:
            break
        is_free[int(slope.argmax())] = True
        while is_free.any():
            trial: Matrix = np.zeros(len(x))
            trial[is_free] = np.linalg.lstsq(design[:, is_free], target, rcond=None)[0]
            if (trial[is_free] > 0).all():
                x = trial
                break
            falling = is_free & (trial <= 0)
            step = float((x[falling] / np.maximum(x[falling] - trial[falling], 1e-300)).min())
            x = x + step * (trial - x)
            is_free &= x > 1e-300
            x[~is_free] = 0.0
    return x
