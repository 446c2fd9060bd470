"""Optimizers and schedules that torch does not have, for experiments and for your own training loop."""

from decentnode.training.optim.accum_adam import AccumAdam, AccumAdamW
from decentnode.training.optim.parameter_groups import decay_groups
from decentnode.training.optim.schedules import InverseSquareRoot, WarmupCosine

__all__ = ["AccumAdam", "AccumAdamW", "InverseSquareRoot", "WarmupCosine", "decay_groups"]
