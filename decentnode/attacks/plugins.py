"""All attacks; importing this registers them."""

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
from decentnode.attacks.passive import (
    audit,
    inversion,
    labels,
    linkability,
    membership,
    reconstruction,
    record,
    topology_inference,
)

__all__ = [
    "alie", "audit", "dissensus", "echo", "inversion", "ipm",
    "label_flip", "labels", "linkability", "membership", "mimic", "noise", "not_finite",
    "reconstruction", "record", "scaling", "sign_flip", "topology_inference", "weight_claim",
]  # fmt: skip
