"""What adversaries do; importing this registers all attacks."""

from decentnode.attacks.active import (
    alie,
    dissensus,
    echo,
    ipm,
    label_flip,
    mimic,
    noise,
    not_finite,
    scaling,
    sign_flip,
)
from decentnode.attacks.base import Attack

__all__ = [
    "Attack", "alie", "dissensus", "echo", "ipm", "label_flip", "mimic", "noise", "not_finite", "scaling",
    "sign_flip",
]  # fmt: skip
