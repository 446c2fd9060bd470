"""Linkability: which node does a message come from, if its address does not tell?"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from decentnode.attacks.passive.base import PassiveAttack
from decentnode.attacks.passive.measures import auc
from decentnode.attacks.passive.scene import Scene
from decentnode.attacks.passive.sight import Sight
from decentnode.core.registry import ATTACKS, name_of
from decentnode.core.rng import generator
from decentnode.errors import BadInput
from decentnode.options import Positive
from decentnode.results.attack_results import AttackResult


@ATTACKS.register("linkability")
@dataclass(kw_only=True)
class Linkability(PassiveAttack):
    """Guesses the origin of each message as if its source were hidden (Biswas et al., PoPETs 2025, Shatter).

    `loss`: the candidate on whose samples the model is best, compared with the other models of the round.
    `distance`: the candidate whose earlier message is nearest. `timing`: the candidate whose messages used to
    arrive at that place of the order. Chance is 1 / candidates.
    """

    knowledge = "loss: samples of all candidates; distance, timing: where earlier messages came from"
    needs_bytes = False

    method: Literal["loss", "distance", "timing"] = "distance"
    knows_samples: bool = False
    """Whether the party has the samples of the candidates, which `loss` needs: the paper's assumption."""
    samples: Positive = 200
    """Samples of each candidate."""
    _places: dict[int, list[float]] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        if self.method == "loss" and not self.knows_samples:
            raise BadInput.at(
                "method",
                "loss needs the samples of the candidates, which no party has; knows_samples: true "
                "grants them, and distance and timing need none",
            )

    def attack(self, scene: Scene, sight: Sight) -> Iterator[AttackResult]:
        guesses = {"loss": self._by_loss, "distance": self._by_distance, "timing": self._by_timing}[
            self.method
        ](scene, sight)
        if len(guesses) < 2:
            return
        right = sum(origin == guess for origin, guess in guesses)
        candidates = len({origin for origin, _ in guesses})
        yield AttackResult(
            attack=f"{name_of(self)}_{self.method}", adversary=self.adversary, victim=None, round=sight.round,
            accuracy=right / len(guesses), chance=1 / candidates,
        )  # fmt: skip

    def _by_loss(self, scene: Scene, sight: Sight) -> list[tuple[int, int]]:
        victims = list(sight.models)
        losses = torch.stack([self._losses(scene, sight, victim) for victim in victims], 1)
        # Some samples are harder for all models.
        return _matched(victims, losses - losses.mean(0))

    def _losses(self, scene: Scene, sight: Sight, candidate: int) -> Tensor:
        """The mean loss of all models on the samples of a candidate, shape (models,)."""
        part = scene.parts[candidate]
        rows = generator(self.seed, "linkability", candidate).permutation(len(part))[: self.samples]
        samples = scene.dataset.train.subset(part[torch.from_numpy(rows)])
        return torch.stack([scene.losses(model, samples).mean() for model in sight.models.values()])

    def _by_distance(self, scene: Scene, sight: Sight) -> list[tuple[int, int]]:
        victims = [victim for victim in sight.models if victim in sight.earlier]
        if not victims:
            return []
        now, before = (
            torch.stack([models[v] for v in victims]).double() for models in (sight.models, sight.earlier)
        )
        # All models move together, and what they have in common tells nothing.
        return _matched(victims, torch.cdist(now - now.mean(0), before - before.mean(0)))

    def _by_timing(self, scene: Scene, sight: Sight) -> list[tuple[int, int]]:
        arrived = [line for line in sight.lines if line.phase == 0]
        first = min((line.seconds for line in arrived), default=0.0)
        known = {v: float(np.mean(places)) for v, places in self._places.items()}
        guesses = [
            (line.source, min(known, key=lambda v: abs(known[v] - (line.seconds - first))))
            for line in arrived
            if known
        ]
        for line in arrived:
            self._places.setdefault(line.source, []).append(line.seconds - first)
        return guesses


def _matched(victims: Sequence[int], costs: Tensor) -> list[tuple[int, int]]:
    """The origin of each message, and the candidate with the least cost.

    `costs`: shape (messages, candidates).
    """
    return [(victims[row], victims[int(column)]) for row, column in enumerate(costs.argmin(1))]


@dataclass(frozen=True)
class ChunkArrival:
    """A chunk of a model as its receiver sees it; `origin` is the truth that no receiver knows."""

    round: int
    seconds: float
    order: int
    size: int
    address: str
    """The identifier of the sender or of its connection."""
    content: Tensor | None
    """Values, float, shape (elements,)."""
    first: int
    """The place of its first element in the model."""
    origin: int


def chunk_linkability(chunks: Sequence[ChunkArrival]) -> dict[str, float]:
    """How well each trait tells whether two chunks of a round have one origin: AUC by trait, 0.5 is chance.

    Traits of a pair: the gap in time, the gap in order, equal sizes, equal addresses, a similar scale of
    contents, and how often both addresses have been neighbors in the order of other rounds.
    """
    pairs = [(a, b) for a, b in combinations(chunks, 2) if a.round == b.round]
    together = np.array([a.origin == b.origin for a, b in pairs])
    if not together.any() or together.all():
        return {}
    near = _neighbors(chunks)
    traits = {
        "time": [-abs(a.seconds - b.seconds) for a, b in pairs],
        "order": [-abs(a.order - b.order) for a, b in pairs],
        "size": [float(a.size == b.size) for a, b in pairs],
        "address": [float(a.address == b.address) for a, b in pairs],
        "content": [-abs(_scale(a) - _scale(b)) for a, b in pairs],
        "history": [_seen_together(near, a, b) for a, b in pairs],
    }
    scores = {name: np.array(values, dtype=np.float64) for name, values in traits.items()}
    return {name: auc(values[together], values[~together]) for name, values in scores.items()}


def _scale(chunk: ChunkArrival) -> float:
    """The logarithm of the root mean square of the values; 0 where they are not known."""
    if chunk.content is None or not chunk.content.numel():
        return 0.0
    return float(chunk.content.double().square().mean().sqrt().clamp(min=1e-12).log())


def _neighbors(chunks: Sequence[ChunkArrival]) -> dict[tuple[str, str], dict[int, float]]:
    """Returns how near both arrived, by pair of addresses and round."""
    scores: dict[tuple[str, str], dict[int, float]] = {}
    for a, b in combinations(chunks, 2):
        if a.round == b.round:
            pair = (min(a.address, b.address), max(a.address, b.address))
            scores.setdefault(pair, {})[a.round] = 1.0 / (1 + abs(a.order - b.order))
    return scores


def _seen_together(
    near: dict[tuple[str, str], dict[int, float]], first_arrival: ChunkArrival, second_arrival: ChunkArrival
) -> float:
    pair = (
        min(first_arrival.address, second_arrival.address),
        max(first_arrival.address, second_arrival.address),
    )
    others = [value for round, value in near[pair].items() if round != first_arrival.round]
    return float(np.mean(others)) if others else 0.0
