"""An optimizer between rounds: what the local steps of a round have changed together is its gradient."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from decentnode.core.state import Stateful
from decentnode.errors import BadInput
from decentnode.transforms.base import Turn

OptimizerMaker = Callable[[list[nn.Parameter]], Optimizer]
"""A class of optimizers with its options, which needs the parameters."""


class OuterOptimizer:
    """The outer optimizer of one node (DiLoCo: Douillard et al., 2023, arXiv 2311.08105, Alg. 1).

    Let phi be the model after the last step, and x what the rounds since then have made of it. The
    pseudo-gradient phi - x is the gradient of one step at phi. SGD with lr 1 and without momentum gives x.

    Where parts of the model are sent by turns, each has a phi and moments of its own: those of its last step
    (Streaming DiLoCo: Douillard et al., 2025, arXiv 2501.18512, Alg. 2).
    """

    turns: tuple[Turn, ...] = ((slice(None),),)
    """The parts of the model whose step is due in rounds 0, 1, ..., again and again; set it first."""

    def __init__(self, make: OptimizerMaker) -> None:
        self._make = make
        self._phi: Tensor | None = None
        self.rests = True
        """Whether the node has rested in all rounds since the last step."""

    def begin(self, phi: Tensor) -> None:
        """Starts from this model, shape (d,), with empty moments."""
        self._phi = phi.clone()
        # Views of phi; an optimizer passes over those without a gradient.
        self._parameters = [[nn.Parameter(self._phi[part]) for part in turn] for turn in self.turns]
        self._optimizer = self._make([p for turn in self._parameters for p in turn])

    @property
    def phi(self) -> Tensor:
        """The model after the last step, shape (d,)."""
        assert self._phi is not None, "it begins first"
        return self._phi

    @property
    def lr(self) -> float:
        """The learning rate of the next step."""
        return float(self._optimizer.param_groups[0]["lr"])

    def due(self, round: int) -> Turn:
        """Returns the parts of the model whose step is due in a round."""
        return self.turns[round % len(self.turns)]

    def step(self, x: Tensor, round: int = 0) -> None:
        """Makes the step of a round that would lead to the model x, shape (d,)."""
        parameters = self._parameters[round % len(self.turns)]
        for part, parameter in zip(self.due(round), parameters, strict=True):
            parameter.grad = torch.sub(parameter.data, x[part])
        self._optimizer.step()
        self.rests = True
        for parameter in parameters:
            parameter.grad = None

    def state_dict(self) -> dict[str, Any]:
        """Returns phi, the moments of the optimizer and `rests`; tensors are references."""
        return {"phi": self.phi, "optimizer": self._optimizer.state_dict(), "rests": self.rests}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continues from `state_dict()`, with memory of its own."""
        self.begin(state["phi"])
        self._optimizer.load_state_dict(state["optimizer"])
        self.rests = state["rests"]


class SavesOuter(Stateful):
    """The state of a scheme with that of its outer optimizer, if it has one."""

    _outer: OuterOptimizer | None = None

    def state_dict(self) -> dict[str, Any]:
        outer = {} if self._outer is None else {"outer": self._outer.state_dict()}
        return super().state_dict() | outer

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        if self._outer is not None:
            self._outer.load_state_dict(state["outer"])


def check_outer(make: OptimizerMaker, name: str) -> None:
    """Tries a step on four numbers, because a vector is flat; raises BadInput where it cannot be made."""
    trial = OuterOptimizer(make)
    try:
        trial.begin(torch.zeros(4))
        trial.step(torch.zeros(4))
    except TypeError as error:
        raise BadInput(
            f"{name} needs a loss in its step, and between rounds there is none; use SGD"
        ) from error
    except (ValueError, RuntimeError) as error:
        raise BadInput(f"{name} cannot make a step of a flat vector: {str(error).splitlines()[0]}") from error
