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
    weight_claim,
)
from decentnode.attacks.base import Adversary, Attack
from decentnode.attacks.passive import audit, inversion, labels, linkability, membership, record
from decentnode.attacks.passive.base import PassiveAttack

__all__ = [
    "Adversary", "Attack", "PassiveAttack", "alie", "audit", "dissensus", "echo", "inversion", "ipm",
    "label_flip", "labels", "linkability", "membership", "mimic", "noise", "not_finite", "record", "scaling",
    "sign_flip", "weight_claim",
]  # fmt: skip
