"""Optimizers and schedules that torch does not have, for experiments and for your own training loop."""

import torch

from decentnode.training.optim.accum_adam import AccumAdam, AccumAdamW
from decentnode.training.optim.muon import Muon, muon_groups
from decentnode.training.optim.parameter_groups import decay_groups
from decentnode.training.optim.schedules import InverseSquareRoot, WarmupCosine

ELEMENTWISE = (
    torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW, torch.optim.Adamax, torch.optim.NAdam,
    torch.optim.RAdam, torch.optim.RMSprop, torch.optim.Adagrad, torch.optim.Adadelta, torch.optim.Rprop,
    torch.optim.ASGD, AccumAdam, AccumAdamW,
)  # fmt: skip
"""Optimizers that change each number by its own gradient and state alone."""

__all__ = [
    "ELEMENTWISE", "AccumAdam", "AccumAdamW", "InverseSquareRoot", "Muon", "WarmupCosine", "decay_groups",
    "muon_groups",
]  # fmt: skip
