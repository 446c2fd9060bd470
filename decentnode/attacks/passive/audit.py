"""An audit with canaries: what an attack proves about epsilon."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor

from decentnode.attacks.passive.base import PassiveAttack
from decentnode.attacks.passive.measures import as_scores, auc, audited_epsilon, tpr_at
from decentnode.attacks.passive.scene import Scene
from decentnode.attacks.passive.sight import Sight
from decentnode.core.registry import ATTACKS, name_of
from decentnode.core.rng import generator
from decentnode.datasets.base import Samples
from decentnode.datasets.ragged import dense
from decentnode.datasets.skew import Skew, SkewedRank
from decentnode.errors import Defect
from decentnode.graph.base import Graph
from decentnode.options import Fraction, Positive, Probability
from decentnode.results.attack_results import AttackResult
from decentnode.sharing.base import Sharing


@ATTACKS.register("canary_audit")
@dataclass(kw_only=True)
class CanaryAudit(PassiveAttack):
    """Privacy auditing with one run (Steinke et al., NeurIPS 2023, algorithm 1 and theorem 5.2).

    `canaries` samples of each victim get random labels. A coin for each decides whether it stays in the shard
    or is left out of it. Afterwards the canaries with the lowest losses are guessed to be in, those with the
    highest to be out, and the others are passed over. The more guesses are right, the larger epsilon must be.
    """

    knowledge = "a model of the victim, and the canaries, which it has put in"

    canaries: Positive = 100
    """Canaries of each victim."""
    guesses: Fraction = 0.5
    """The share of canaries that are guessed, half of them in and half out."""
    delta: Probability = 1e-5
    confidence: Probability = 0.95

    def defects(self, graph: Graph, sharing: Sharing) -> Iterator[Defect]:
        yield from super().defects(graph, sharing)
        if not self.victims:
            yield Defect(("victims",), "none is given; name the ranks that get canaries")

    def skew(self) -> Skew:
        return RandomLabels(victims=self.victims, canaries=self.canaries)

    def parts(self, parts: list[Tensor], seed: int) -> list[Tensor]:
        return [self._kept(rank, part) if rank in self.victims else part for rank, part in enumerate(parts)]

    def _coins(self, rank: int, count: int) -> Tensor:
        """Whether each canary is in the shard, shape (canaries,)."""
        rng = generator(self.seed, "canaries", rank)
        return torch.from_numpy(rng.random(min(self.canaries, count)) < 0.5)

    def _kept(self, rank: int, part: Tensor) -> Tensor:
        coins = self._coins(rank, len(part))
        return torch.cat([part[: len(coins)][coins], part[len(coins) :]])

    def attack(self, scene: Scene, sight: Sight) -> Iterator[AttackResult]:
        for victim in [victim for victim in self.victims if victim in sight.models]:
            part = scene.assigned[victim]
            coins = self._coins(victim, len(part))
            canaries = scene.dataset.train.subset(part[: len(coins)])
            scores = as_scores(-scene.losses(sight.models[victim], canaries))
            is_in = coins.numpy()
            count = max(1, round(self.guesses * len(scores) / 2))
            order = np.argsort(scores, kind="stable")
            sides = scores[is_in], scores[~is_in]
            correct = int(is_in[order[-count:]].sum() + (~is_in[order[:count]]).sum())
            yield AttackResult(
                attack=name_of(self), adversary=self.adversary, victim=victim, round=sight.round,
                auc=auc(*sides), tpr_at_1_percent=tpr_at(*sides),
                epsilon_lower=audited_epsilon(
                    len(scores), 2 * count, correct, delta=self.delta, confidence=self.confidence
                ),
                accuracy=correct / (2 * count), chance=0.5,
            )  # fmt: skip


@dataclass(kw_only=True)
class RandomLabels(Skew):
    """Gives the first samples of some ranks random labels."""

    victims: tuple[int, ...]
    canaries: int
    _left: dict[int, int] = field(default_factory=dict, init=False, repr=False)
    """The canaries that are still missing, by rank."""

    def change(self, samples: Samples, rank: SkewedRank, rng: np.random.Generator) -> Samples:
        if rank.rank not in self.victims:
            return samples
        labels = dense(samples.labels).clone()
        # A rank is changed in blocks.
        count = min(self._left.get(rank.rank, self.canaries), len(labels))
        self._left[rank.rank] = self._left.get(rank.rank, self.canaries) - count
        labels[:count] = torch.from_numpy(rng.integers(rank.num_classes, size=count)).to(labels.dtype)
        return replace(samples, labels=labels)
