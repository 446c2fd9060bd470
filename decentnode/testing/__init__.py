"""For authors of schemes: all nodes in lockstep on a problem with a known answer, without a transport.

Nothing in the package imports this, and no node process does.
"""

from decentnode.testing.invariants import push_weights, residuals, tracker_gap
from decentnode.testing.lockstep import Lockstep, bound
from decentnode.testing.problems import Q8, Quadratics, random_models

__all__ = [
    "Q8",
    "Lockstep",
    "Quadratics",
    "bound",
    "push_weights",
    "random_models",
    "residuals",
    "tracker_gap",
]
