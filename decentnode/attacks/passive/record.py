"""A passive adversary that only records."""

from collections.abc import Iterator
from dataclasses import dataclass

from decentnode.attacks.passive.base import PassiveAttack
from decentnode.attacks.passive.scene import Scene
from decentnode.attacks.passive.sight import Sight
from decentnode.core.registry import ATTACKS
from decentnode.results.attack_results import AttackResult


@ATTACKS.register("record")
@dataclass(kw_only=True)
class Record(PassiveAttack):
    """Records what the party receives, for later attacks (the listener of Dolev and Yao, 1983).

    With `every: 1` all rounds are kept. `own: true` also keeps the models of its ranks themselves: what they
    know, and the truth for attacks that reconstruct them.
    """

    knowledge = "what arrives"
    needs_bytes = False

    own: bool = False
    """Whether its ranks record their own models."""

    @property
    def keeps_own_models(self) -> bool:
        return self.own

    def attack(self, scene: Scene, sight: Sight) -> Iterator[AttackResult]:
        yield from ()
