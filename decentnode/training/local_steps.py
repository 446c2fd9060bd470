"""What makes the local steps of a participant in rounds: a node's training, or anybody's loop."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from decentnode.core.vector import Vector


class RoundAbandoned(Exception):
    """Raised in a round that is not finished, and not followed by others: the participant ends."""


@dataclass
class Tally:
    """The local steps of one round so far."""

    round: int
    learning_rate: float
    """The learning rate of the first step."""
    steps: int = 0
    skipped: int = 0
    samples: int = 0
    losses: list[Tensor] = field(default_factory=list)
    sizes: list[float] = field(default_factory=list)


@dataclass(frozen=True)
class TrainReport:
    """The report of one round of local steps."""

    loss: float | None
    """The mean over the samples used, of all nodes that the reducer joins; None when there was no step."""
    steps: int
    """Steps, without those that mixed precision skipped because a gradient was not finite."""
    samples: int
    learning_rate: float
    """The rate of the first step, as in `Training.rate_in`; `Training.learning_rate` is that of the next
    round already.
    """
    epsilon: float | None = None
    """The epsilon that all private steps so far have spent; None where nothing is claimed."""


class LocalSteps(ABC):
    """The local steps of one model, round after round."""

    vector: Vector
    """The model."""
    loss: float | None = None
    """The mean loss of the last round; None: unknown."""

    def handshake(self) -> bytes:
        """What the steps of all nodes need of these before the first, equally long at all; empty: nothing."""
        return b""

    def receive_handshakes(self, handshakes: Mapping[int, bytes]) -> None:  # noqa: B027 - most need none
        """Takes what the steps of all nodes gave, by rank."""

    @property
    def epsilon(self) -> float | None:
        """What all private steps have spent, where that is a claim."""
        return None

    @property
    def doubts(self) -> tuple[str, ...]:
        """Why nothing is claimed although steps are private."""
        return ()

    @property
    def memory_mb(self) -> float:
        """The memory of other processes that compute the steps, in MB."""
        return 0.0

    @abstractmethod
    def rate_in(self, round: int) -> float:
        """The learning rate of a round's steps, before the first; 0 where there are none.

        Schemes make steps of their own at this rate, and must not move a model that rests.
        """

    @abstractmethod
    async def train(self, round: int) -> TrainReport:
        """Makes the steps of a round; raises RunFailed."""

    def attach(self) -> None:
        """Makes the network that of this model as its last step has left it."""
        self.vector.attach()

    async def left(self) -> None:  # noqa: B027 - only a loop has more to do
        """Waits, after the last round, until whoever makes the steps has nothing more to report."""

    def skip(self, rounds: Sequence[int]) -> None:  # noqa: B027 - only schedules count them
        """Takes note of rounds in which the participant did not take part."""

    # Single steps, in the asynchronous time model.

    @abstractmethod
    def begin(self, round: int) -> Tally:
        """Begins the steps of a window."""

    @abstractmethod
    async def step(self, tally: Tally) -> None:
        """Makes one more step of a window."""

    @abstractmethod
    def finish(self, tally: Tally) -> TrainReport:
        """Ends the steps of a window; raises RunFailed when a loss is not finite."""

    @abstractmethod
    def most_steps(self, round: int) -> int | None:
        """The steps of a window, at most; None: as many as fit."""

    # Checkpoints.

    @abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """Returns all that a resumed participant needs except the vector; tensors are references."""

    def local_state(self) -> dict[str, Any]:
        """Returns the state in this process, which other processes may be ahead of."""
        return self.state_dict()

    @abstractmethod
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continues from `state_dict()`, bit for bit once the vector is restored, too."""
