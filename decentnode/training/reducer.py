"""What ties a node's local steps to those of other nodes; by default nothing."""

from contextlib import AbstractContextManager, nullcontext
from typing import ClassVar

from torch import Tensor, nn


class Reducer:
    """No tie: every node steps alone. Others do more at the same places of a step."""

    rehearses: ClassVar[bool] = False
    """Whether steps are tried before the first round, which must change nothing."""

    def wrap(self, module: nn.Module) -> nn.Module:
        """The network as the local steps call it."""
        return module

    def step(self, round: int, step: int) -> AbstractContextManager[object]:
        """Is around what a step computes of its gradient; both count from 0."""
        return nullcontext()

    def backward(self, loss: Tensor) -> None:
        """Adds the gradient of this loss to that of the parameters."""
        loss.backward()  # type: ignore[no-untyped-call]

    def mean(self, round: int, step: int, total: float, samples: int) -> float:
        """The mean loss over the samples of a round, after its last step; `total` is the sum over the own."""
        return total / samples

    def close(self) -> None:
        """Lets go of the other nodes; safe to call twice."""
