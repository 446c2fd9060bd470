"""A node: a participant with samples of its own, and with evaluations of its model."""

from dataclasses import dataclass, field

from decentnode.node.asynchronous.loop import AsyncParticipant
from decentnode.node.evaluation import NodeEvaluation
from decentnode.node.participant import Participant
from decentnode.training.training import Training


@dataclass(kw_only=True, repr=False)
class Node(Participant):
    """One node of a run."""

    training: Training = field(init=False)
    """Its samples, objective and local steps."""
    evaluation: NodeEvaluation = field(init=False)


@dataclass(kw_only=True, repr=False)
class AsyncNode(AsyncParticipant, Node):
    """One node in the asynchronous time model."""
