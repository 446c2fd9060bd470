"""Attributes of a victim's samples: how many of each label it has, and the label of a single sample."""

from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor

from decentnode.attacks.passive.base import PassiveAttack
from decentnode.attacks.passive.membership import Candidates, LossThreshold
from decentnode.attacks.passive.scene import Scene
from decentnode.attacks.passive.sight import Sight
from decentnode.core.registry import ATTACKS, name_of
from decentnode.core.vector import Entry, ParameterLayout
from decentnode.options import Positive
from decentnode.results.attack_results import AttackResult


@ATTACKS.register("label_distribution")
@dataclass(kw_only=True)
class LabelDistribution(PassiveAttack):
    """The shares of the labels in a shard, from the update of the last bias (Wainakh et al., PoPETs 2022).

    The gradient of the mean cross-entropy by the bias of class c is mean p_c - share_c. So a local update of
    size lr * steps gives share_c, with p from the models before and after, on the party's own samples;
    without samples p is 1 / classes. Estimates of all its rounds are averaged.
    """

    knowledge = "models of the victim before and after local steps, and the learning rate"

    _sums: dict[int, Tensor] = field(default_factory=dict, init=False, repr=False)
    _counts: dict[int, int] = field(default_factory=dict, init=False, repr=False)

    def attack(self, scene: Scene, sight: Sight) -> Iterator[AttackResult]:
        for victim, start in sight.starts.items():
            shares = self.estimate(scene, victim, sight.round, start=start, model=sight.models[victim])
            if shares is None or not len(scene.parts[victim]):
                continue
            self._sums[victim] = self._sums.get(victim, torch.zeros_like(shares)) + shares
            self._counts[victim] = self._counts.get(victim, 0) + 1
            mean = (self._sums[victim] / self._counts[victim]).clamp(min=0)
            mean = mean / mean.sum().clamp(min=1e-12)
            truth = histogram(scene, victim)
            yield AttackResult(
                attack=name_of(self), adversary=self.adversary, victim=victim, round=sight.round,
                accuracy=float(truth[mean.argmax()] == truth.max()), chance=1 / len(truth),
                l1_error=float((mean - truth).abs().sum()),
            )  # fmt: skip

    def estimate(self, scene: Scene, victim: int, round: int, start: Tensor, model: Tensor) -> Tensor | None:
        """The shares as estimated from this round, shape (classes,), float64; not yet positive."""
        classes, entry = scene.dataset.num_classes, last_bias(scene.layout, scene.dataset.num_classes)
        steps = scene.steps_until(victim, round) - (scene.steps_until(victim, round - 1) if round else 0)
        rate = float(scene.training.optimizer.options.get("lr", 0.001))
        if entry is None or not steps:
            return None
        gradient = (entry.view(start) - entry.view(model)).double() / (rate * steps)
        parts = scene.own(self.ranks, self.public, self.seed)
        if not parts:
            return 1 / classes - gradient
        predicted = [
            scene.outputs(model, samples).double().softmax(-1)
            for model in (start, model)
            for samples in parts
        ]
        return torch.cat(predicted).mean(0) - gradient


@ATTACKS.register("attribute")
@dataclass(kw_only=True)
class AttributeInference(LossThreshold):
    """Guesses the label of a sample whose inputs are known (Yeom et al., IEEE CSF 2018, adversary 3).

    The guess is the value with the least loss. What a victim's membership adds is the difference between
    `accuracy`, of members, and `chance`, of samples that it did not train on.
    """

    knowledge = "a model of the victim, and the inputs of the candidates"

    samples: Positive = 500

    def attack(self, scene: Scene, sight: Sight) -> Iterator[AttackResult]:
        for victim, model in sight.models.items():
            candidates = Candidates.of(scene, victim, self)
            if not len(candidates):
                continue
            right = [
                float((scene.outputs(model, side).argmax(-1) == torch.as_tensor(side.labels)).double().mean())
                for side in (candidates.members, candidates.others)
            ]
            yield AttackResult(
                attack=name_of(self), adversary=self.adversary, victim=victim, round=sight.round,
                accuracy=right[0], chance=right[1],
            )  # fmt: skip


def histogram(scene: Scene, rank: int) -> Tensor:
    """The shares of the labels of a rank's training samples, shape (classes,), float64."""
    labels = torch.as_tensor(scene.shard_of(rank).labels)
    counts = torch.bincount(labels, minlength=scene.dataset.num_classes).double()
    return counts / counts.sum()


def last_bias(layout: ParameterLayout, classes: int) -> Entry | None:
    """The last parameter with one element for each class."""
    fitting = [entry for entry in layout.entries if entry.shape == (classes,) and not entry.is_buffer]
    return fitting[-1] if fitting else None
