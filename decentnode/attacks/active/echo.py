"""Echo."""

from dataclasses import dataclass

from torch import Tensor

from decentnode.attacks.base import Attack, Seen
from decentnode.core.registry import ATTACKS
from decentnode.graph.base import View


@ATTACKS.register("echo")
@dataclass(kw_only=True)
class Echo(Attack):
    """Sends each neighbor its own model of the round before back (He et al., 2022, ClippedGossip).

    The neighbor learns nothing from it, and its mix looks as if all agreed.
    """

    knowledge = "the models of its neighbors in the round before"
    needs_models = True
    per_target = True

    def lie(self, model: Tensor, view: View, seen: Seen, target: int | None) -> Tensor:
        return seen.get(target, model) if target is not None else model
