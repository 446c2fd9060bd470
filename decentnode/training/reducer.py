"""How the local steps of a node use those of other nodes; by default not at all."""

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor, nn


@dataclass(frozen=True)
class Rehearsed:
    """The results of trial steps of a network."""

    varying: frozenset[str] = frozenset()
    """Buffers that appeared, or got another shape, type or layout."""
    unused: frozenset[str] = frozenset()
    """Parameters without a gradient."""


class Reducer:
    """Every node steps alone. Subclasses synchronize nodes in the methods below."""

    rehearses: ClassVar[bool] = False
    """Whether steps are tried before the first round; they must not change the model."""

    def wrap(self, module: nn.Module, rehearsed: Rehearsed) -> nn.Module:
        """The network as the local steps call it; `rehearsed`: where the steps are tried."""
        return module

    def step(self, round: int, step: int) -> AbstractContextManager[object]:
        """A context around the forward and backward pass of a step; both numbers count from 0."""
        return nullcontext()

    def partial(self) -> AbstractContextManager[object]:
        """A context around forward and backward pass of a minibatch that is not the last of its step.

        Its gradient stays with the node, and is synchronized with that of the last one.
        """
        return nullcontext()

    def backward(self, loss: Tensor) -> None:
        """Adds the gradient of this loss to that of the parameters."""
        loss.backward()  # type: ignore[no-untyped-call]

    def mean(self, round: int, step: int, total: float, samples: float) -> float:
        """The mean loss over the samples, or terms, of a round; `total` is the sum over the node's."""
        return total / samples

    def close(self) -> None:
        """Disconnects from the other nodes; safe to call twice."""
