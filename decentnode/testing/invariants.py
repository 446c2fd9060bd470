"""Invariants of every round, by name, for the schemes that have them; own state: `Lockstep.state`."""

from collections.abc import Mapping

import torch
from torch import Tensor

from decentnode.core.registry import name_of
from decentnode.sharing.base import Sharing
from decentnode.sharing.beer import Beer
from decentnode.sharing.choco import Choco
from decentnode.sharing.deep_squeeze import DeepSqueeze
from decentnode.sharing.gradient_tracking import GradientTracking
from decentnode.sharing.push_sum import PushSum
from decentnode.testing.lockstep import Lockstep
from decentnode.transforms.error_feedback import ErrorFeedback

TRACKERS: Mapping[type[Sharing], tuple[str, str]] = {GradientTracking: ("_y", "_g"), Beer: ("_v", "_g")}
"""The attributes of a scheme's tracker and of its last gradient."""


def tracker_gap(lockstep: Lockstep) -> Tensor:
    """Returns sum_i y_i - sum_i g_i, shape (d,): zero after every step and round of gradient tracking."""
    scheme = lockstep.schemes[0]
    names = next((names for cls, names in TRACKERS.items() if isinstance(scheme, cls)), None)
    if names is None:
        raise ValueError(f"{name_of(scheme)} tracks no gradients; gradient_tracking and beer do")
    trackers, gradients = (torch.stack(lockstep.state(name)).sum(0) for name in names)
    return trackers - gradients


def push_weights(lockstep: Lockstep) -> Tensor:
    """The weights w_i of push-sum, shape (n,), float64: positive, and their sum stays n."""
    if not isinstance(lockstep.schemes[0], PushSum):
        raise ValueError(f"{name_of(lockstep.schemes[0])} has no push-sum weights; push_sum has")
    return torch.tensor(lockstep.state("_w"), dtype=torch.float64)


def residuals(lockstep: Lockstep) -> Tensor:
    """The part of each node's signal that compression has not sent, shape (n, d); it must stay bounded.

    x_i - h_i for choco, the error e_i of deep_squeeze, else that of `error_feedback` in the chain.
    """
    pairs = zip(lockstep.schemes, lockstep.models, strict=True)
    return torch.stack([_residual(scheme, model) for scheme, model in pairs])


def _residual(scheme: Sharing, model: Tensor) -> Tensor:
    state = scheme.state_dict()
    if isinstance(scheme, Choco) and scheme.by_edge:
        raise ValueError(
            f"{name_of(scheme)} with copies by edge has a residual for each; residuals is for one by node"
        )
    if isinstance(scheme, Choco):
        return model - torch.as_tensor(state["_models"]["h"])
    if isinstance(scheme, DeepSqueeze):
        return torch.as_tensor(state["_e"])
    for index, stage in enumerate(scheme.chain.stages):
        if isinstance(stage, ErrorFeedback):
            return torch.as_tensor(state["chain"][str(index)]["_residual"])
    raise ValueError(f"{name_of(scheme)} keeps nothing back without error_feedback in its chain")
