"""Membership inference: was a sample among those that a victim trained on?"""

from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from decentnode.attacks.passive.base import PassiveAttack
from decentnode.attacks.passive.measures import Scores, as_scores, auc, tpr_at
from decentnode.attacks.passive.scene import Scene
from decentnode.attacks.passive.sight import Sight
from decentnode.core.registry import ATTACKS, name_of
from decentnode.core.rng import generator, key
from decentnode.datasets.base import Samples
from decentnode.options import Positive
from decentnode.results.attack_results import AttackResult

LEAST_LOSS = 1e-12
LEAST_DEVIATION = 1e-3
FEW_SHADOWS = 64
"""With fewer shadow models, Gaussians share one deviation (Carlini et al., 2022, section VI.B)."""


@dataclass(frozen=True)
class Candidates:
    """The samples that an attack has to judge: as many members as others."""

    members: Samples
    others: Samples

    @classmethod
    def of(cls, scene: Scene, victim: int, attack: "MembershipInference") -> "Candidates":
        """Drawn by the seed: from the shard of the victim, and from test samples that the party lacks."""
        rng = generator(attack.seed, "candidates", victim)
        part, others = scene.parts[victim], scene.public_rows(attack.public, attack.seed)[1]
        count = min(attack.samples, len(part), len(others))
        members, others = (
            torch.from_numpy(rng.choice(rows.numpy(), count, replace=False)) for rows in (part, others)
        )
        return cls(scene.dataset.train.subset(members), scene.dataset.test.subset(others))

    def __len__(self) -> int:
        return len(self.members)


@dataclass(kw_only=True)
class MembershipInference(PassiveAttack):
    """Scores candidates by a victim's model: a high score says member."""

    samples: Positive = 500
    """The number of members, and of other samples, that are judged for each victim."""

    @abstractmethod
    def scores(
        self, scene: Scene, victim: int, sight: Sight, candidates: Candidates
    ) -> tuple[Tensor, Tensor]:
        """The scores of members and others, each of shape (n,)."""

    def attack(self, scene: Scene, sight: Sight) -> Iterator[AttackResult]:
        score_pairs: list[tuple[Scores, Scores]] = []
        for victim in sight.models:
            candidates = Candidates.of(scene, victim, self)
            if not len(candidates):
                continue
            members, others = self.scores(scene, victim, sight, candidates=candidates)
            score_pairs.append((as_scores(members), as_scores(others)))
            yield self._result(victim, sight.round, *score_pairs[-1])
        if len(score_pairs) > 1:
            yield self._result(None, sight.round, *map(np.concatenate, zip(*score_pairs, strict=True)))

    def _result(self, victim: int | None, round: int, members: Scores, others: Scores) -> AttackResult:
        return AttackResult(
            attack=name_of(self), adversary=self.adversary, victim=victim, round=round,
            auc=auc(members, others), tpr_at_1_percent=tpr_at(members, others),
        )  # fmt: skip


@ATTACKS.register("membership", "mia", "membership_inference")
@dataclass(kw_only=True)
class LossThreshold(MembershipInference):
    """A sample with a low loss is taken for a member (Yeom et al., IEEE CSF 2018, adversary 1)."""

    knowledge = "a model of the victim, and the candidates"

    def scores(
        self, scene: Scene, victim: int, sight: Sight, candidates: Candidates
    ) -> tuple[Tensor, Tensor]:
        model = sight.models[victim]
        return -scene.losses(model, candidates.members), -scene.losses(model, candidates.others)


@ATTACKS.register("membership_calibrated")
@dataclass(kw_only=True)
class CalibratedLoss(MembershipInference):
    """The loss of a reference model minus that of the victim's (Watson et al., ICLR 2022, equation 2).

    The party trains the references on halves of its own samples, as long as the victim has trained.
    """

    knowledge = "the same, and samples of its own"
    needs_samples = True

    references: Positive = 4
    _trained: dict[tuple[int, int], Tensor] = field(default_factory=dict, init=False, repr=False)

    def scores(
        self, scene: Scene, victim: int, sight: Sight, candidates: Candidates
    ) -> tuple[Tensor, Tensor]:
        model, pool = sight.models[victim], joined(scene.own(self.ranks, self.public, self.seed))
        steps = scene.steps_until(victim, sight.round)
        models = [self._reference(scene, pool, steps, index=index) for index in range(self.references)]

        def score(samples: Samples) -> Tensor:
            usual = torch.stack([scene.losses(model, samples) for model in models]).mean(0)
            return usual - scene.losses(model, samples)

        return score(candidates.members), score(candidates.others)

    def _reference(self, scene: Scene, pool: Samples, steps: int, index: int) -> Tensor:
        if (steps, index) not in self._trained:
            half = halves(len(pool), self.seed, index)
            seed = key(self.seed, "reference", index)
            self._trained[steps, index] = scene.trained(pool.subset(half.nonzero().flatten()), steps, seed)
        return self._trained[steps, index]


@ATTACKS.register("lira")
@dataclass(kw_only=True)
class Lira(MembershipInference):
    """The likelihood ratio of a sample's confidence (Carlini et al., IEEE S&P 2022, Alg. 1).

    phi = log(p / (1 - p)), p the confidence in the label. Shadow models train on halves of the party's
    samples and, with `variant: online`, of the candidates. A Gaussian is fitted to each candidate's phi in
    the shadows that had it, and another to phi in the others; `offline` has the latter alone.
    """

    knowledge = "the same, and samples of its own; online also trains on candidates"
    needs_samples = True

    variant: Literal["online", "offline"] = "online"
    shadows: Positive = 16
    _known: dict[tuple[int, int], tuple[Tensor, Tensor]] = field(default_factory=dict, init=False, repr=False)
    FEWEST: ClassVar[int] = 2

    def scores(
        self, scene: Scene, victim: int, sight: Sight, candidates: Candidates
    ) -> tuple[Tensor, Tensor]:
        judged = joined([candidates.members, candidates.others])
        steps = scene.steps_until(victim, sight.round)
        if (victim, steps) not in self._known:
            self._known[victim, steps] = self._shadowed(scene, judged, steps)
        phi, had = self._known[victim, steps]
        observed = logit(scene.losses(sight.models[victim], judged))
        mean, deviation = fitted(phi, ~had)
        # One-sided: a member's confidence is higher than that of samples that were not trained on.
        score = (observed - mean) / deviation
        if self.variant == "online":
            mean_in, deviation_in = fitted(phi, had)
            score = (score**2 - ((observed - mean_in) / deviation_in) ** 2) / 2 + (
                deviation / deviation_in
            ).log()
        return score[: len(candidates)], score[len(candidates) :]

    def _shadowed(self, scene: Scene, judged: Samples, steps: int) -> tuple[Tensor, Tensor]:
        """phi of each shadow and candidate, and whether the shadow had it, both shape (shadows, n)."""
        own_samples = scene.own(self.ranks, self.public, self.seed)
        is_online = self.variant == "online"
        pool = joined([judged, *own_samples] if is_online else own_samples)
        phi, had = [], []
        for index in range(max(self.shadows, self.FEWEST)):
            # Pairs of halves, so that each candidate is in as many shadows as it is not.
            half = halves(len(pool), self.seed, index // 2) ^ bool(index % 2)
            model = scene.trained(
                pool.subset(half.nonzero().flatten()), steps, key(self.seed, "shadow", index)
            )
            phi.append(logit(scene.losses(model, judged)))
            had.append(half[: len(judged)] if is_online else torch.zeros(len(judged), dtype=torch.bool))
        return torch.stack(phi), torch.stack(had)


def logit(losses: Tensor) -> Tensor:
    """log(p / (1 - p)) of p = exp(-loss)."""
    losses = losses.clamp(min=LEAST_LOSS)
    return -losses - torch.log(-torch.expm1(-losses))


def fitted(phi: Tensor, chosen: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and deviation of each candidate over the chosen shadows, both shape (n,)."""
    values = phi.masked_fill(~chosen, torch.nan)
    mean = values.nanmean(0)
    variance = (values - mean).square()
    # Of few shadows one deviation for all candidates is more certain.
    spread = variance.nanmean() if len(phi) < FEW_SHADOWS else variance.nanmean(0)
    return mean, spread.sqrt().clamp(min=LEAST_DEVIATION).expand_as(mean)


def halves(count: int, seed: int, index: int) -> Tensor:
    """Whether each of so many samples is in a half, shape (count,)."""
    rng = generator(seed, "halves", index)
    chosen = torch.zeros(count, dtype=torch.bool)
    chosen[torch.from_numpy(rng.permutation(count)[: max(1, count // 2)])] = True
    return chosen


def joined(several: list[Samples]) -> Samples:
    """The samples of several sets of one dataset, in order."""
    first = several[0]
    parts = [(samples.inputs, samples.labels) for samples in several]
    inputs, labels = (
        torch.cat([torch.as_tensor(side) for side in sides]) for sides in zip(*parts, strict=True)
    )
    return Samples(inputs, labels, first.mean, std=first.std, dtype=first.dtype, ignored=first.ignored)
