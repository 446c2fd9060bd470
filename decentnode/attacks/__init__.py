"""What adversaries do. The names below are imported on first use, because torch takes two seconds."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from decentnode.attacks.base import Adversary, Attack
    from decentnode.attacks.passive.base import PassiveAttack

__all__ = ["Adversary", "Attack", "PassiveAttack"]
_HOMES = {
    "Adversary": "decentnode.attacks.base",
    "Attack": "decentnode.attacks.base",
    "PassiveAttack": "decentnode.attacks.passive.base",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'decentnode.attacks' has no attribute '{name}'")
    return getattr(importlib.import_module(_HOMES[name]), name)
