"""Reconstruction beyond neighbors: what a party that knows W solves for, from the messages of all rounds."""

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from math import inf, sqrt
from typing import Literal

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from decentnode.attacks.passive.base import PassiveAttack
from decentnode.attacks.passive.inversion import DeepLeakage, GradientInversion, InvertingGradients
from decentnode.attacks.passive.knowledge import (
    LEAST_LEVERAGE,
    JointNoise,
    auc_of,
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
from decentnode.training.privacy.base import PrivacyPlan
from decentnode.training.privacy.edges import Decor

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
    adversary of the accountant, under `muffliato`, and `dp_sgd` with a step of all samples in each round."""
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

    def sources_of(self, graph: Graph) -> set[int] | None:
        # It reaches beyond neighbors.
        return None

    def check(self, dataset: LoadedDataset, parts: Sequence[Tensor]) -> None:
        # Not of all: it needs no classes.
        inversion = self._inversion()
        if inversion is not None:
            inversion.check(dataset, parts)

    def require(self, scene: Scene) -> None:
        if not self.knows_others:
            return
        protection = noise_in_updates(scene, scene.rounds - 1, self.ranks)
        if protection is None or not protection.leaves_truth:
            raise BadInput.at(
                "adversaries",
                f"{name_of(self)}: knows_others needs updates whose noise is known: muffliato, or dp_sgd "
                "with one step of all samples in a round (batch_size: null, steps_per_round: 1, momentum: 0)",
            )
        if scene.has_secret_edges and self.ranks:
            raise BadInput.at(
                "adversaries",
                f"{name_of(self)}: knows_others needs the noise of edges of its ranks, whose keys are in no "
                "file; run with training.privacy.generator: seeded, which protects nothing",
            )
        known = {*self.ranks, *true_updates(scene, 1)}
        missing = [rank for rank in range(scene.graph.num_nodes) if rank not in known]
        if missing:
            raise BadInput.at(
                "adversaries",
                f"{name_of(self)}: knows_others needs the models of rank {missing[0]}, which has not "
                "recorded them; record in the run with "
                f"{{name: record, ranks: [{missing[0]}], every: 1, own: true}}",
            )

    def attack(self, scene: Scene, sight: Sight) -> Iterator[AttackResult]:
        t = sight.round
        self._messages |= {(t, *place): message for place, message in sight.messages.items()}
        self._trained |= {(t, rank): model for rank, model in sight.trained.items()}
        self._mixed |= {(t, rank): model for rank, model in sight.mixed.items()}
        if not self.gives_results(t, scene.rounds):
            return
        n, rounds = scene.graph.num_nodes, t + 1
        if len(self._messages) * rounds * n > MOST_NUMBERS:
            why = f"{name_of(self)}: too many messages to solve for all rounds; attack a run of fewer rounds"
            raise BadInput.at("adversaries", why)
        self._refuse_losses(scene, rounds)
        rows, values = self.known(scene, rounds)
        others = [rank for rank in range(n) if rank not in self.ranks]
        protection = noise_in_updates(scene, t, self.ranks)
        precision = message_noise(scene, self._messages.values())
        is_noisy = protection is not None or bool(scene.plans)
        is_exact, estimates = self._solved(scene, rows, values, others, is_noisy)
        truth, hops = true_updates(scene, rounds), hops_from(scene, self.listeners)
        bounds = None
        if protection is not None:
            bounds = protection.noise.sensitivities(rows, self.ranks)
        for place, victim in enumerate(others):
            if self.victims and victim not in self.victims:
                continue
            result = AttackResult(
                attack=name_of(self), adversary=self.adversary, victim=victim, round=t,
                solvable=int(is_exact[place].sum()), hops=hops.get(victim),
            )  # fmt: skip
            estimate, true = estimates[place], truth.get(victim)
            if protection is not None and bounds is not None:
                clip = float(protection.clips[victim])
                result.auc_bound = auc_of(float(bounds[victim]) * clip)
                if self.knows_others:
                    unseen = np.zeros((rounds, values.shape[1]))
                    updates = np.stack([truth.get(rank, unseen) for rank in range(n)], 1)
                    found = distinguished(
                        rows, values, updates, self.ranks, victim=victim, noise=protection.noise, clip=clip,
                        rounding=precision / float(protection.deviations[victim]),
                    )  # fmt: skip
                    result.auc, estimate = found.auc, found.estimate
            if true is not None:
                if len(estimate) < rounds:
                    true = true[:1] if self.unknowns == "models" else true.mean(0, keepdims=True)
                error = estimate - true
                result.relative_error = relative(error, true)
                noise = message_noise(scene, ()) if isinstance(scene.scheme(0), ZipDl) else inf
                if protection is not None and protection.leaves_truth:
                    noise = float(protection.deviations[victim])
                if noise < inf:
                    result.deviations = float(np.sqrt(np.mean(error**2))) / noise
            yield result
            inversion = self._inversion((victim,))
            if inversion is not None and result.solvable:
                start = scene.initial.float()
                model = start + torch.from_numpy(estimate[0]).float()
                for image in inversion.attack(scene, Sight(0, {victim: model}, {victim: start})):
                    name = f"{name_of(self)}_{self.invert}"
                    yield msgspec.structs.replace(image, attack=name, round=t, hops=result.hops)
        yield AttackResult(
            attack=name_of(self), adversary=self.adversary, victim=None, round=t,
            solvable=int(is_exact.all(1).sum()),
        )  # fmt: skip

    def _solved(
        self, scene: Scene, rows: Matrix, values: Matrix, others: Sequence[int], is_noisy: bool
    ) -> tuple[NDArray[np.bool_], NDArray[np.float64]]:
        """Which unknowns of each node are known exactly, shape (nodes, unknowns), and their values (.., d).

        `is_noisy`: whether updates have noise, which all messages with them have in common.
        """
        rounds = rows.shape[1] // scene.graph.num_nodes
        columns = rows.reshape(len(rows), rounds, -1)[:, :, others]
        flat_columns = columns.reshape(len(rows), -1)

        def of_unknowns(matrix: Matrix) -> Matrix:
            by_round = matrix.reshape(len(matrix), rounds, len(others))
            if self.unknowns == "updates":
                return matrix
            summed: Matrix = by_round[:, 0] if self.unknowns == "models" else by_round.sum(1)
            return summed

        unknowns = of_unknowns(flat_columns)
        precision = message_noise(scene, self._messages.values())
        scale = float(np.sqrt(np.mean(values**2))) or 1.0
        noise = LOSSY if precision == inf else precision / scale
        estimate = least_squares(unknowns, values, noise)
        solution = estimate.values
        if is_noisy:
            # Combinations of messages whose noise is white, so that least squares weight them equally.
            basis = row_basis(flat_columns)
            white = basis @ least_squares(flat_columns, values, noise).values
            solution = least_squares(of_unknowns(basis), white, ROUNDING).values
        size = np.sqrt(np.mean(solution**2, axis=1))
        is_exact = self._leverage(scene, columns, unknowns, rounds=rounds) > LEAST_LEVERAGE
        is_exact &= estimate.gain * precision <= self.tolerance * size
        if is_noisy and self.unknowns != "updates" and rounds > 1:
            # Each round has noise of its own, so no two updates are equal.
            is_exact[:] = False
        by_node = solution.reshape(-1, len(others), values.shape[1]).swapaxes(0, 1)
        return is_exact.reshape(-1, len(others)).T, by_node

    def known(self, scene: Scene, rounds: int) -> tuple[Matrix, Matrix]:
        """What the party knows: rows of coefficients, and their values without what its own ranks added.

        Nor have values the noise of edges of these ranks, as far as it is known. Shape (messages, rounds * n)
        and (messages, d), float64; values are differences to the initial model.
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
        for rank, noise in scene.noise_of_edges(self.ranks, rounds).items():
            values -= rows[:, rank :: scene.graph.num_nodes] @ noise
        return rows, values

    def _refuse_losses(self, scene: Scene, rounds: int) -> None:
        """Raises BadInput where a message is missing, so that nodes have mixed with other weights than W."""
        if any(place[3] < 0 for place in self._messages):
            return
        for t in range(rounds):
            for rank in self.ranks:
                for source in scene.graph.graph.sources(rank, t):
                    if (t, 0, rank, source) not in self._messages:
                        raise BadInput(
                            f"{name_of(self)}: rank {rank} did not receive from rank {source} in round "
                            f"{t + 1}, so that W was another one; attack a run without losses, with every: 1"
                        )

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
                (
                    factor * own * a + (1 - factor) * last[0],
                    factor * (own * b + arrived) + (1 - factor) * last[1],
                ),
                (a, b),
            )
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
        # Rows are in the order of rounds and exchanges.
        first = len([place for place in self._messages if place[:2] == (0, 0) and place[3] not in self.ranks])
        steps = rounds * len(coefficients)
        return leverage(krylov_basis(w(0)[np.ix_(others, others)], columns[:first, 0], steps))

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


def message_noise(scene: Scene, messages: Collection[Tensor]) -> float:
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


@dataclass(frozen=True)
class NoiseInUpdates:
    """The noise that nodes add to their updates."""

    deviations: Matrix
    """That of each node's own, shape (n,)."""
    clips: Matrix
    """How far one unit of the accountant moves an update of each node: an update, or a sample; shape (n,)."""
    leaves_truth: bool
    """Whether the updates without noise are known afterwards."""
    noise: JointNoise
    """How it hangs together over nodes and rounds, for a party that knows what its ranks know."""


def noise_in_updates(scene: Scene, round: int, ranks: Sequence[int]) -> NoiseInUpdates | None:
    """The noise of the updates of the rounds up to this one; None: they have none, or one that differs.

    `ranks`: those of the party, which know the noise of their edges.
    """
    scheme, n = scene.scheme(0), scene.graph.num_nodes
    encoder: Matrix = np.eye(round + 1)
    if isinstance(scheme, Muffliato):
        clips = np.full(n, scheme.clip)
        deviations = scheme.noise * clips
        return NoiseInUpdates(
            deviations, clips, leaves_truth=True, noise=JointNoise(np.diag(deviations), encoder)
        )
    if not scene.plans or scene.clip is None or not all(plan.noise for plan in scene.plans):
        return None
    rate = float(scene.training.optimizer.options.get("lr", 0.001))
    made = [[scene.steps_until(rank, t) for t in range(-1, round + 1)] for rank in range(n)]
    sizes = [
        max(plan.rate * len(part) / plan.period, 1)
        for plan, part in zip(scene.plans, scene.parts, strict=True)
    ]
    lengths = rate * scene.clip / np.array(sizes)
    most = max(int(np.diff(steps).max()) for steps in made)
    noises = np.array([plan.noise if plan.edges is None else plan.edges.own for plan in scene.plans])
    # C of all steps, where the noise of private steps is correlated.
    matrices = [plan.strategy.matrix for plan in scene.plans if plan.strategy is not None]
    if matrices:
        first, total = matrices[0], made[0][-1]
        are_equal = all(np.array_equal(matrix, first) for matrix in matrices)
        if not are_equal or len(matrices) < n or any(steps != made[0] for steps in made):
            return None
        encoder = encoder_of_rounds(first[:total, :total], np.diff(made[0]))
    deviations = noises * lengths * (1.0 if matrices else sqrt(most))
    factor = np.diag(deviations) @ np.linalg.cholesky(covariance_over_nodes(scene.plans, ranks))
    noise = JointNoise(factor, encoder)
    return NoiseInUpdates(deviations, most * lengths, leaves_truth=scene.repeats_steps, noise=noise)


def covariance_over_nodes(plans: Sequence[PrivacyPlan], ranks: Sequence[int]) -> Matrix:
    """I + ratio^2 L, shape (n, n): in variances of nodes' own noise, with L of the graph without `ranks`."""
    adjacency = np.zeros((len(plans), len(plans)))
    ratio = 0.0
    for rank, plan in enumerate(plans):
        if plan.edges is not None and rank not in ranks:
            adjacency[rank, [other for other in plan.edges.neighbors if other not in ranks]] = 1
            ratio = plan.edges.edge / plan.edges.own
    return Decor().covariance(adjacency, ratio)


def encoder_of_rounds(c: Matrix, steps: Sequence[int] | NDArray[np.int64]) -> Matrix:
    """C of rounds, whose noise is the sum of that of their steps, from C of all steps."""
    sums = np.repeat(np.eye(len(steps)), steps, axis=1) @ np.linalg.inv(c)
    inverse: Matrix = np.linalg.inv(np.linalg.cholesky(sums @ sums.T))
    return inverse


def true_updates(scene: Scene, rounds: int) -> dict[int, Matrix]:
    """The updates of the ranks that have recorded their own models, shape (rounds, d).

    Without the noise of the scheme. Without that of private steps where these can be computed again.
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
        if scene.plans and scene.repeats_steps:
            found[rank] = np.array([scene.private_step(rank, x).double().numpy() for _, x in pairs])
            continue
        updates = np.array([(y.double() - x.double()).numpy() for y, x in pairs])
        if isinstance(scheme, Muffliato):
            lengths = np.linalg.norm(updates, axis=1, keepdims=True)
            updates *= np.minimum(1, scheme.clip / np.maximum(lengths, 1e-30))
        found[rank] = updates
    return found


def relative(error: Matrix, truth: Matrix) -> float:
    """The norm of an error over that of the truth."""
    return float(np.linalg.norm(error)) / max(float(np.linalg.norm(truth)), 1e-300)


def hops_from(scene: Scene, ranks: Sequence[int]) -> dict[int, int]:
    """The hops that an update needs to reach one of some ranks; empty where the graph changes."""
    if not scene.graph.static:
        return {}
    hears, hops = scene.graph.matrix() != 0, dict.fromkeys(ranks, 0)
    for hop in range(1, scene.graph.num_nodes):
        near = np.flatnonzero(hears[[rank for rank in hops if hops[rank] == hop - 1]].any(0))
        hops |= {int(rank): hop for rank in near if rank not in hops}
    return hops
