"""Decent-DP's functions that make optimizers and schedules, and its two optimizers.

Weights decay; biases and the parameters of norms do not, as its documentation says.
"""

import warnings

import torch
from torch.nn import Parameter
from torch.optim import Optimizer
from torch.optim.lr_scheduler import CosineAnnealingLR, LinearLR, LRScheduler, SequentialLR

from decentnode.training.optim import AccumAdam, AccumAdamW, decay_groups

NamedParams = list[tuple[str, Parameter]]


def optim_fn_adam(
    params: NamedParams, lr: float = 1e-3, beta1: float = 0.9, beta2: float = 0.999,
    weight_decay: float = 1.0 / 32768, eps: float = 1e-8,
) -> Optimizer:  # fmt: skip
    """Makes Adam for some parameters; `functools.partial` sets other values."""
    return torch.optim.Adam(decay_groups(params, weight_decay), lr=lr, betas=(beta1, beta2), eps=eps)


def optim_fn_adamw(
    params: NamedParams, lr: float = 1e-3, beta1: float = 0.9, beta2: float = 0.999,
    weight_decay: float = 0.1, eps: float = 1e-8,
) -> Optimizer:  # fmt: skip
    """Makes AdamW for some parameters."""
    return torch.optim.AdamW(decay_groups(params, weight_decay), lr=lr, betas=(beta1, beta2), eps=eps)


def optim_fn_accum_adam(
    params: NamedParams, lr: float = 1e-3, beta1: float = 0.9, beta2: float = 0.999, eps: float = 1e-8,
    weight_decay: float = 1.0 / 32768, accum_iter: int = 4,
) -> Optimizer:  # fmt: skip
    """Makes AccumAdam for some parameters; `accum_iter` should be about the number of ranks."""
    groups = decay_groups(params, weight_decay)
    return AccumAdam(groups, lr=lr, betas=(beta1, beta2), eps=eps, accum_iter=accum_iter)


def optim_fn_accum_adamw(
    params: NamedParams, lr: float = 1e-3, beta1: float = 0.9, beta2: float = 0.999, eps: float = 1e-8,
    weight_decay: float = 0.1, accum_iter: int = 4,
) -> Optimizer:  # fmt: skip
    """Makes AccumAdamW for some parameters; `accum_iter` should be about the number of ranks."""
    groups = decay_groups(params, weight_decay)
    return AccumAdamW(groups, lr=lr, betas=(beta1, beta2), eps=eps, accum_iter=accum_iter)


def lr_scheduler_fn_cosine_with_warmup(
    optimizer: Optimizer, t_max: int | None = None, t_warmup: int | None = None,
    cosine_eta_min: float = 1e-6, warmup_decay: float = 0.01,
) -> LRScheduler:  # fmt: skip
    """Makes a linear warm-up over `t_warmup` steps, and then a cosine that falls for `t_max` steps.

    Without the two lengths, as its documentation calls it, they are 10,000 and 500 steps, with a warning.
    """
    if t_max is None or t_warmup is None:
        t_max, t_warmup = t_max or 10_000, t_warmup or 500
        what = f"t_max={t_max} and t_warmup={t_warmup} steps were not both given"
        warnings.warn(
            f"lr_scheduler_fn_cosine_with_warmup: {what}; functools.partial sets them", stacklevel=2
        )
    warmup = LinearLR(optimizer, start_factor=warmup_decay, total_iters=t_warmup)
    cosine = CosineAnnealingLR(optimizer, T_max=t_max, eta_min=cosine_eta_min)
    return SequentialLR(optimizer, schedulers=[warmup, cosine], milestones=[t_warmup])


__all__ = [
    "AccumAdam", "AccumAdamW", "lr_scheduler_fn_cosine_with_warmup", "optim_fn_accum_adam",
    "optim_fn_accum_adamw", "optim_fn_adam", "optim_fn_adamw",
]  # fmt: skip
