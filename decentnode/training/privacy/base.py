"""The plug-in of `training.privacy`: how local steps are made private, and what they spend."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from torch import Tensor, nn

from decentnode.core.state import Stateful
from decentnode.core.vector import Vector
from decentnode.datasets.base import Batch, Samples
from decentnode.training.minibatches import Minibatches, Shard
from decentnode.training.objective import Objective
from decentnode.training.privacy.correlation import Matrix, Strategy, Workload
from decentnode.training.privacy.edges import Decor, EdgeShare
from decentnode.training.privacy.pipeline import Release

History = list[tuple[float, float, int]]
"""The rate, noise and number of equal steps in a row, in their order."""


@dataclass(frozen=True)
class PrivacyPlan:
    """The private steps of one node, known before the first round."""

    rate: float
    """The probability with which a step uses a sample."""
    noise: float
    """The standard deviation of the noise, in units of the clipping norm."""
    steps: int
    """Steps in all rounds."""
    epsilon: float
    """The epsilon spent after all rounds; infinite where nothing bounds it."""
    rounds: int
    """The first rounds whose steps the budget allows."""
    before: Sequence[tuple[float, float, int]] = ()
    """What the node has spent before its first step, as in a history."""
    strategy: Strategy | None = None
    """How their noise hangs together, and which samples they may use; None: nothing does, and all."""
    edges: EdgeShare | None = None
    """Their noise, where part of it cancels, and `noise` is what protects as much alone; None: none does."""

    @property
    def for_trial(self) -> "PrivacyPlan":
        """The plan of steps without neighbors and without a number of steps, to try a network with."""
        return replace(self, strategy=None, edges=None)

    @property
    def period(self) -> int:
        """The number of groups of samples, which the steps use by turns."""
        return 1 if self.strategy is None else self.strategy.participation.period


class PrivateSteps(Stateful, ABC):
    """The private steps of one node."""

    state: ClassVar[tuple[str, ...]] = ("history",)
    minibatches: Minibatches
    """The samples of its steps."""

    def __init__(self) -> None:
        self.history: History = []
        """All steps so far."""
        self._recovered: History | None = None
        self.reasons: list[str] = []
        """The reasons why `epsilon` is no claim that were found outside of the steps."""

    @abstractmethod
    def begin(self, steps: int) -> int:
        """Returns how many of the next steps, those of a round, the budget allows."""

    @abstractmethod
    def gradient(self, batches: Sequence[Batch]) -> Tensor:
        """Writes the private gradient of one step into the vector's; returns the loss, detached.

        The loss is that of the samples, and not private. `batches` may be empty.
        """

    @abstractmethod
    def after(self, steps: int) -> History:
        """The history after so many further steps."""

    def handshake(self) -> bytes:
        """What all nodes need of this one before its first step, equally long at all; empty: nothing."""
        return b""

    def receive_handshakes(self, handshakes: Mapping[int, bytes]) -> None:
        """Takes what the nodes gave, by rank."""

    def recover(self, history: History) -> None:
        """Continues after what earlier processes of this node have spent, also where no checkpoint has it."""
        self._recovered, self.history = history, [*history]

    def doubt(self, reason: str) -> None:
        """Records that from now on `epsilon` is no claim, for this reason."""
        if reason not in self.reasons:
            self.reasons.append(reason)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continues from `state_dict()`, or from what was recovered, which must have the same steps."""
        super().load_state_dict(state)
        saved, recovered = self.history, self._recovered
        if recovered is None:
            return
        if total(recovered) < total(saved):
            self.doubt("its journal lacks steps that its checkpoint has")
        else:
            self.history = [*recovered]

    @property
    @abstractmethod
    def epsilon(self) -> float:
        """The epsilon that all steps have spent together at delta."""

    @property
    def claimed(self) -> float | None:
        """Returns epsilon where it is a claim."""
        return None if self.doubts else self.epsilon

    @property
    def doubts(self) -> tuple[str, ...]:
        """Returns the reasons why `epsilon` is not a claim about this node; empty where it is."""
        return tuple(self.reasons)


def total(history: History) -> int:
    """The number of steps of a history."""
    return sum(steps for _, _, steps in history)


class Privacy(ABC):
    """How local steps are made private; the fields of a subclass are its YAML options."""

    @abstractmethod
    def described(self) -> dict[str, Any]:
        """Returns the subject of `epsilon`, for the summary of a run."""

    @property
    def release(self) -> Release | None:
        """How mean and deviation of inputs are released before the steps; None: they have no noise."""
        return None

    @abstractmethod
    def check(self, network: nn.Module, samples: Samples) -> None:
        """Raises BadInput unless the steps of this network on these samples can be made private."""

    @property
    def needs_all_rounds(self) -> bool:
        """Whether the steps depend on how many rounds the run has, so that it cannot get more later."""
        return False

    @abstractmethod
    def plan(self, size: int, expected: int, steps: Sequence[int], workload: Workload) -> PrivacyPlan:
        """The steps of a node with `size` samples; `expected`: of each step; `steps`: of each round.

        `workload`: how their noise moves models. Raises BadInput where the options ask for what cannot be.
        """

    @property
    def edges(self) -> Decor | None:
        """How noise cancels over edges; None: it does not."""
        return None

    def over_edges(
        self, plans: Sequence[PrivacyPlan], steps: Sequence[Sequence[int]], adjacency: Matrix, gram: Matrix
    ) -> tuple[PrivacyPlan, ...]:
        """The plans of all nodes with noise that cancels over edges; `steps`: of each node in each round.

        `adjacency`: of the graph, 0 and 1, shape (n, n); `gram`: how noise moves models, shape (n, n).
        """
        raise NotImplementedError

    @abstractmethod
    def spent(self, plan: PrivacyPlan, steps: int, delta: float) -> float:
        """The epsilon that the first steps of a plan spend together at delta."""

    @abstractmethod
    def private_steps(
        self, plan: PrivacyPlan, objective: Objective, vector: Vector, shard: Shard, batch_size: int
    ) -> PrivateSteps:
        """The steps of a node with that plan."""
