"""Reconstruction beyond neighbors: what a party that knows W solves for, from the messages of all rounds."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from math import inf, sqrt
from typing import Literal

import msgspec
import networkx as nx
import numpy as np
import torch
from torch import Tensor

from decentnode.attacks.passive.base import PassiveAttack
from decentnode.attacks.passive.inversion import DeepLeakage, GradientInversion, InvertingGradients
from decentnode.attacks.passive.knowledge import (
    LEAST_LEVERAGE,
    Estimate,
    distinguished,
    krylov_basis,
    least_squares,
    leverage,
    row_basis,
)
from decentnode.attacks.passive.scene import Scene
from decentnode.attacks.passive.sight import Sight
from decentnode.core.registry import ATTACKS, name_of
from decentnode.datasets.base import LoadedDataset
from decentnode.errors import BadInput, Defect
from decentnode.formats.transcript import Transcript
from decentnode.graph.base import Graph
from decentnode.graph.relayed import Relayed
from decentnode.options import PositiveFloat
from decentnode.results.attack_results import AttackResult
from decentnode.sharing.base import Sharing, SharingBase
from decentnode.sharing.blocks.masked_sums import MaskedSums
from decentnode.sharing.blocks.network_privacy import Matrix, sent_mixes
from decentnode.sharing.gossip import Gossip
from decentnode.sharing.muffliato import Muffliato
from decentnode.sharing.multi_gossip import MultiGossip
from decentnode.sharing.secure_aggregation import SecureAggregation
from decentnode.sharing.shatter import Shatter
from decentnode.sharing.zip_dl import ZipDl, variance

MOST_NUMBERS = 4e8
"""The largest matrix of coefficients, 3 GB."""
LOSSY = 0.03
"""The relative size of what a lossy chain hides in messages, for the decision of which directions count."""
ROUNDING = 1e-9
"""The relative size of singular values that rounding in float64 leaves of none."""
INVERSIONS = {"dlg": DeepLeakage, "inverting_gradients": InvertingGradients}
Message = tuple[int, int, int, int]
"""Round, exchange, receiver and source; the source is -1 for the mean of all that arrived."""


@ATTACKS.register("reconstruction")
@dataclass(kw_only=True)
class Reconstruction(PassiveAttack):
    """Solves for the updates of all nodes, neighbors or not (El Mrini, Cyffers and Bellet, ICML 2024).

    Messages are mixes of updates, with coefficients that follow from W: the knowledge matrix. A node is known
    exactly if its unit vector is in the space of the rows (leverage 1), and if the messages are precise
    enough for the gain of the solution; others are estimated by least squares. `unknowns` says what nodes
    hide: `models`: one update in the first round, after which they only mix; `gradient`: the same update in
    all rounds, the paper's assumption, good for small learning rates; `updates`: another in each round.
    """

    knowledge = "W, the models of its own ranks, and all messages of all rounds"
    needs_all_rounds = True

    unknowns: Literal["models", "gradient", "updates"] = "gradient"
    tolerance: PositiveFloat = 0.01
    """The largest relative error, predicted by the gain, of what counts as known exactly."""
    knows_others: bool = False
    """Whether the party also knows the updates of all nodes but the victim, without their noise: the
    adversary of the accountant, under `muffliato`."""
    invert: Literal["none", "dlg", "inverting_gradients"] = "none"
    """The attack that is made on the reconstructed updates of the first round."""
    _messages: dict[Message, Tensor] = field(default_factory=dict, init=False, repr=False)
    _trained: dict[tuple[int, int], Tensor] = field(default_factory=dict, init=False, repr=False)
    _mixed: dict[tuple[int, int], Tensor] = field(default_factory=dict, init=False, repr=False)
    """Own models by round and rank."""

    def defects(self, graph: Graph, sharing: Sharing) -> Iterator[Defect]:
        yield from super().defects(graph, sharing)
        if why := not_linear(sharing):
            yield Defect((), f"{name_of(self)} {why}")
        if self.online:
            yield Defect(("online",), f"{name_of(self)} solves for all rounds after the run; set false")
        if graph.is_negotiated or graph.needs_service:
            yield Defect((), f"{name_of(self)} needs W, and this graph depends on messages of the run")
        if self.knows_others and not isinstance(sharing, Muffliato):
            yield Defect(
                ("knows_others",), "needs noise that recorded models do not have, as that of muffliato; set false"
            )

    def sources_of(self, graph: Graph) -> set[int] | None:
        # It reaches beyond neighbors.
        return None

    def check(self, dataset: LoadedDataset, parts: Sequence[Tensor]) -> None:
        inversion = self._inversion()
        if inversion is not None:
            inversion.check(dataset, parts)

    def attack(self, scene: Scene, sight: Sight) -> Iterator[AttackResult]:
        t = sight.round
        self._messages |= {(t, *place): message for place, message in sight.messages.items()}
        self._trained |= {(t, rank): model for rank, model in sight.trained.items()}
        self._mixed |= {(t, rank): model for rank, model in sight.mixed.items()}
        if not self.gives_results(t, scene.rounds):
            return
        n, rounds = scene.graph.num_nodes, t + 1
        if len(self._messages) * rounds * n > MOST_NUMBERS:
            raise BadInput.at("adversaries", f"{name_of(self)}: too many messages for one solution; fewer rounds")
        rows, values = self.known(scene, rounds)
        others = [rank for rank in range(n) if rank not in self.ranks]
        columns = rows.reshape(len(rows), rounds, n)[:, :, others]
        unknowns = {
            "models": columns[:, 0], "gradient": columns.sum(1), "updates": columns.reshape(len(rows), -1)
        }[self.unknowns]  # fmt: skip
        shares = self._leverage(scene, columns, unknowns, rounds=rounds)
        precision = message_noise(scene, self._messages.values())
        scale = float(np.sqrt(np.mean(values**2))) or 1.0
        noise = LOSSY if np.isinf(precision) else precision / scale
        if isinstance(scene.scheme(0), Muffliato) or scene.noises:
            # Noise is in the updates, so messages have it in common: combinations with white noise.
            basis = least_squares(columns.reshape(len(rows), -1), values, noise)
            directions = row_basis(columns.reshape(len(rows), -1))
            white = (directions @ basis.values).reshape(len(directions), -1)
            mixes = directions.reshape(len(directions), rounds, len(others))
            design = {"models": mixes[:, 0], "gradient": mixes.sum(1), "updates": directions}[self.unknowns]
            estimate = Estimate(
                least_squares(design, white, ROUNDING).values, least_squares(unknowns, values, noise).gain
            )
        else:
            estimate = least_squares(unknowns, values, noise)
        each = len(unknowns.T) // len(others) or 1
        size = np.sqrt(np.mean(estimate.values**2, axis=1))
        is_exact = (shares > LEAST_LEVERAGE) & (estimate.gain * precision <= self.tolerance * size)
        truth = clean_updates(scene, rounds)
        hops = hops_from(scene, self.listeners)
        known_exactly = 0
        for place, victim in enumerate(others):
            of_victim = slice(place, None, len(others))
            exact = int(is_exact[of_victim].sum())
            known_exactly += exact == each
            if self.victims and victim not in self.victims:
                continue
            estimated, true = estimate.values[of_victim], truth.get(victim)
            error = None
            if true is not None:
                true = true[:each]
                error = float(np.linalg.norm(estimated - true) / max(np.linalg.norm(true), 1e-300))
            result = AttackResult(
                attack=name_of(self), adversary=self.adversary, victim=victim, round=t, exact=exact,
                relative_error=error, hops=hops.get(victim),
            )  # fmt: skip
            yield self._distinguishes(scene, result, rows, values, truth=truth, estimated=estimated)
            inversion = self._inversion((victim,))
            if inversion is not None and exact:
                start = scene.initial.float()
                model = start + torch.from_numpy(estimated[0]).float()
                for each_result in inversion.attack(scene, Sight(0, {victim: model}, {victim: start})):
                    yield msgspec.structs.replace(
                        each_result, attack=f"{name_of(self)}_{self.invert}", round=t, hops=hops.get(victim)
                    )
        yield AttackResult(
            attack=name_of(self), adversary=self.adversary, victim=None, round=t, exact=known_exactly
        )

    def known(self, scene: Scene, rounds: int) -> tuple[Matrix, Matrix]:
        """What the party knows: rows of coefficients, and their values without what its own ranks added.

        Shape (messages, rounds * n) and (messages, d), float64; values are differences to the initial model.
        """
        w, coefficients = mixing_of(scene)
        sent = {(t, phase): mixes for t, phase, mixes in sent_mixes(w, rounds, coefficients)}
        places = sorted(place for place in self._messages if place[3] not in self.ranks)
        rows = np.zeros((len(places), rounds * scene.graph.num_nodes))
        for k, (t, phase, receiver, source) in enumerate(places):
            if source >= 0:
                rows[k] = sent[t, phase][source]
            else:
                weights = w(t)[receiver].copy()
                weights[receiver] = 0.0
                rows[k] = weights @ sent[t, phase] / weights.sum()
        start = scene.initial.double()
        values = np.array([(self._messages[place].double() - start).numpy() for place in places])
        for rank in self.ranks:
            for t in range(rounds):
                update = self._own_update(scene, t, rank).numpy()
                values -= rows[:, t * scene.graph.num_nodes + rank, None] * update
        return rows, values

    def _own_update(self, scene: Scene, t: int, rank: int) -> Tensor:
        """What a rank of the party added in a round, with its noise."""
        before = self._mixed[t - 1, rank] if t else scene.initial
        scheme = scene.scheme(rank)
        if not isinstance(scheme, Muffliato):
            return self._trained[t, rank].double() - before.double()
        for (round, phase, _, source), message in self._messages.items():
            if (round, phase, source) == (t, 0, rank):
                return message.double() - before.double()
        # Not heard by another rank of the party: x after the mix is a m + b, m the noisy model.
        weights, c = scene.graph.view(rank, t, 0.0).weights, scheme.coefficients(scene.graph)
        (a, b), last = (1.0, torch.zeros_like(before, dtype=torch.float64)), (1.0, 0.0 * before.double())
        for phase, factor in enumerate(c):
            arrived = sum(
                (weights[j] * self._messages[t, phase, rank, j].double() for j in weights if j != rank),
                torch.zeros_like(b),
            )
            own = weights[rank]
            (a, b), last = (
                factor * own * a + (1 - factor) * last[0],
                factor * (own * b + arrived) + (1 - factor) * last[1],
            ), (a, b)
        return (self._mixed[t, rank].double() - b) / a - before.double()

    def _leverage(self, scene: Scene, columns: Matrix, unknowns: Matrix, rounds: int) -> Matrix:
        """The leverage of each unknown."""
        w, coefficients = mixing_of(scene)
        n, listeners = scene.graph.num_nodes, set(self.listeners) - set(self.ranks)
        others = [rank for rank in range(n) if rank not in self.ranks]
        per_round = len({place[1:] for place in self._messages if place[0] == 0})
        is_complete = len(self._messages) == per_round * rounds and not listeners
        is_static = scene.graph.static and not isinstance(scene.graph.graph, Relayed)
        if self.unknowns == "updates" or not (is_complete and is_static and len(columns)):
            return leverage(row_basis(unknowns))
        first = [k for k in range(len(columns)) if not columns[k, 1:].any()]
        steps = rounds * len(coefficients)
        return leverage(krylov_basis(w(0)[np.ix_(others, others)], columns[first, 0], steps))

    def _distinguishes(
        self, scene: Scene, result: AttackResult, rows: Matrix, values: Matrix, truth: dict[int, Matrix],
        estimated: Matrix,
    ) -> AttackResult:  # fmt: skip
        """The result with what the accountant allows, and what its adversary finds."""
        scheme, rounds, victim = scene.scheme(0), result.round + 1, result.victim
        if not isinstance(scheme, Muffliato) or victim is None or victim not in truth:
            return result
        deviation = scheme.noise * scheme.clip
        if not self.knows_others:
            error = estimated - truth[victim][: len(estimated)]
            return msgspec.structs.replace(
                result, deviations=float(np.sqrt(np.mean(error**2))) / deviation
            )
        n = scene.graph.num_nodes
        if missing := [rank for rank in range(n) if rank not in truth and rank not in self.ranks]:
            raise BadInput.at(
                "adversaries",
                f"{name_of(self)}: knows_others needs the updates of rank {missing[0]}, which it has not recorded; "
                f"record in the run with adversaries: [{{name: record, ranks: [{missing[0]}], every: 1, own: true}}]",
            )
        updates = np.zeros((rounds, n, values.shape[1]))
        for rank, of_rank in truth.items():
            updates[:, rank] = of_rank
        rounding = message_noise(scene, self._messages.values()) / deviation
        found = distinguished(
            rows, values, updates, self.ranks, victim=victim, deviation=deviation, clip=scheme.clip,
            rounding=rounding,
        )  # fmt: skip
        error = found.estimate - truth[victim]
        return msgspec.structs.replace(
            result, auc=found.auc, auc_bound=found.bound, deviations=found.deviations,
            relative_error=float(np.linalg.norm(error) / max(np.linalg.norm(truth[victim]), 1e-300)),
        )  # fmt: skip

    def _inversion(self, victims: tuple[int, ...] = ()) -> GradientInversion | None:
        if self.invert == "none":
            return None
        made: GradientInversion = INVERSIONS[self.invert](
            ranks=self.ranks, links=self.links, victims=victims, seed=self.seed
        )
        return made


def not_linear(sharing: SharingBase) -> str:
    """Why messages of a scheme are no mixes with coefficients that W gives; empty if they are."""
    is_masked = isinstance(sharing, SecureAggregation | Shatter) and not getattr(sharing, "threshold", None)
    is_gossip = type(sharing) is Gossip and sharing.outer is None
    if is_masked or is_gossip or isinstance(sharing, MultiGossip | ZipDl):
        return ""
    known = "gossip, multi_gossip, muffliato, zip_dl, secure_aggregation and shatter"
    return f"does not know how {name_of(sharing)} mixes; it knows {known}"


def mixing_of(scene: Scene) -> tuple[Callable[[int], Matrix], Sequence[float]]:
    """Returns W by round, and the coefficients of the exchanges of a round, as `multi_gossip` has them."""
    scheme, graph = scene.scheme(0), scene.graph
    if isinstance(scheme, Shatter) and isinstance(graph.graph, Relayed):
        # A chunk arrives from that many of the neighbors, and all count the same.
        heard = graph.graph.degree * scheme.per_neighbor / scheme.chunks
        neighbors, n = graph.graph.neighbors, graph.num_nodes

        def means(t: int) -> Matrix:
            w: Matrix = np.eye(n) / (1 + heard)
            for r in range(n):
                sources = neighbors.sources(r, t)
                w[r, list(sources)] += heard / (1 + heard) / len(sources)
            return w

        return means, [1.0]
    return graph.matrix, scheme.coefficients(graph) if isinstance(scheme, MultiGossip) else [1.0]


def message_noise(scene: Scene, messages: Iterable[Tensor]) -> float:
    """The deviation of what a message has beside a mix of updates; infinite where it is unknown."""
    scheme, graph = scene.scheme(0), scene.graph
    if scheme.chain.rounds or scheme.chain.selects or scheme.chain.protects:
        return inf
    if isinstance(scheme, Shatter):
        if scheme.per_neighbor < scheme.chunks:
            return inf
    elif isinstance(scheme, ZipDl):
        views = [graph.view(rank, 0) for rank in range(graph.num_nodes)]
        return sqrt(max(variance(view, v, scheme.sigma) for view in views for v in view.targets))
    elif isinstance(scheme, MaskedSums):
        # Each summand is rounded to 1 / scale, before the mean divides by the weight of the others.
        views = [graph.view(rank, 0) for rank in range(graph.num_nodes)]
        sums = [(len(view.sources), 1 - view.weights[view.rank]) for view in views if view.sources]
        return max(sqrt(count / 12) / weight for count, weight in sums) / scheme.scale
    mean_square = np.mean([float(message.double().square().mean()) for message in messages])
    return float(torch.finfo(scene.layout.dtype).eps * np.sqrt(mean_square))


def clean_updates(scene: Scene, rounds: int) -> dict[int, Matrix]:
    """The updates of the ranks that have recorded their own models, shape (rounds, d): the truth.

    With the noise of private steps, which is part of a model, and without that of a scheme.
    """
    scheme, found = scene.scheme(0), dict[int, Matrix]()
    for rank in range(scene.graph.num_nodes):
        transcript = Transcript(scene.run, rank)
        transcript.advance()
        trained = [scene.own_model(transcript, "trained", t) for t in range(rounds)]
        before = [scene.initial, *(scene.own_model(transcript, "mixed", t) for t in range(rounds - 1))]
        pairs = [(y, x) for y, x in zip(trained, before, strict=True) if y is not None and x is not None]
        if len(pairs) < rounds:
            continue
        updates = np.array([(y.double() - x.double()).numpy() for y, x in pairs])
        if isinstance(scheme, Muffliato):
            lengths = np.linalg.norm(updates, axis=1, keepdims=True)
            updates *= np.minimum(1, scheme.clip / np.maximum(lengths, 1e-30))
        found[rank] = updates
    return found


def hops_from(scene: Scene, ranks: Sequence[int]) -> dict[int, int]:
    """The hops that an update needs to reach one of some ranks; empty where the graph changes."""
    if not scene.graph.static:
        return {}
    sources = nx.from_numpy_array(scene.graph.matrix(), create_using=nx.DiGraph)
    return dict(nx.multi_source_dijkstra_path_length(sources, {*ranks}, weight=None))
