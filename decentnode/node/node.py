"""A node: a participant that trains on samples of its own, and evaluates its model."""

from dataclasses import dataclass

from decentnode.node.evaluation import NodeEvaluation
from decentnode.node.participant import Participant
from decentnode.training.training import Training


@dataclass
class Node:
    """One node of a run."""

    participant: Participant
    training: Training
    """The local steps of the participant."""
    evaluation: NodeEvaluation

    @property
    def rank(self) -> int:
        """Its number among all nodes."""
        return self.participant.rank
