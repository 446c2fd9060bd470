"""An optimizer between rounds: what the local steps of a round have changed together is its gradient."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from decentnode.core.state import Stateful
from decentnode.errors import BadInput

OptimizerMaker = Callable[[list[nn.Parameter]], Optimizer]
"""A class of optimizers with its options, which needs the parameters."""


class OuterOptimizer:
    """The outer optimizer of one node (DiLoCo: Douillard et al., 2023, arXiv 2311.08105, Alg. 1).

    Let phi be the model before the local steps of a round, and x what the round would make of it. The
    pseudo-gradient phi - x is the gradient of one step at phi. SGD with lr 1 and without momentum gives x.
    """

    def __init__(self, make: OptimizerMaker) -> None:
        self._make = make
        self._parameter: nn.Parameter | None = None

    def begin(self, phi: Tensor) -> None:
        """Starts from this model, shape (d,), with empty moments."""
        self._parameter = nn.Parameter(phi.clone())
        self._optimizer = self._make([self._parameter])

    @property
    def phi(self) -> Tensor:
        """The model after the last step, shape (d,)."""
        assert self._parameter is not None, "it begins first"
        return self._parameter.data

    @property
    def lr(self) -> float:
        """The learning rate of the next step."""
        return float(self._optimizer.param_groups[0]["lr"])

    def step(self, x: Tensor) -> None:
        """Makes the step of a round that would lead to the model x, shape (d,)."""
        assert self._parameter is not None, "it begins first"
        self._parameter.grad = torch.sub(self.phi, x)
        self._optimizer.step()
        self._parameter.grad = None

    def state_dict(self) -> dict[str, Any]:
        """Returns phi, and the moments of the optimizer; tensors are references."""
        return {"phi": self.phi, "optimizer": self._optimizer.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continues from `state_dict()`, with memory of its own."""
        self.begin(state["phi"])
        self._optimizer.load_state_dict(state["optimizer"])


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
