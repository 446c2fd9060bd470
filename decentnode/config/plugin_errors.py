"""Finds the plug-in that raised an unexpected error, and describes error, method and line of code."""

import traceback
from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn
from torch.optim import Optimizer

from decentnode.core.registry import REGISTRIES
from decentnode.errors import BadInput, DecentnodeError, explained, is_foreign, is_out_of_memory
from decentnode.training.objective import Objective

KEYS = {"weights": "sharing.weights", "transform": "sharing.transforms", "partition": "dataset.partition"}
"""The key that names a plug-in, where it is not the name of its kind."""


@contextmanager
def in_words() -> Iterator[None]:
    """Turns an error from the code of a plug-in from outside into BadInput; all others pass."""
    try:
        yield
    except Exception as error:
        if isinstance(error, DecentnodeError) or is_out_of_memory(error):
            raise
        if all(is_foreign(frame) for frame, _ in traceback.walk_tb(error.__traceback__)):
            raise
        raise BadInput(line_of(error)) from error


def line_of(error: BaseException) -> str:
    """`sharing: Mine.mix raises KeyError: 0 (file:line, in ...)`; without a plug-in only the error."""
    seen = [
        (key, f"{type(owner).__name__}.{frame.f_code.co_name}", is_foreign(frame))
        for frame, _ in traceback.walk_tb(error.__traceback__)
        if (key := _key_of(owner := frame.f_locals.get("self"), error))
    ]
    own = [(key, method) for key, method, foreign in seen if not foreign]
    if not seen:
        return explained(error)
    key, method = own[-1] if own else seen[0][:2] if seen[0][0] == "model" else seen[-1][:2]
    return f"{key}: {method} raises {explained(error)}"


def _key_of(owner: object, error: BaseException) -> str:
    """The key in the configuration of the plug-in that an object belongs to; empty for other objects."""
    if isinstance(owner, nn.Module):
        frames = (frame.f_locals.get("self") for frame, _ in traceback.walk_tb(error.__traceback__))
        losses = [objective.loss for objective in frames if isinstance(objective, Objective)]
        return "training.loss" if any(owner is loss for loss in losses) else "model"
    if isinstance(owner, Optimizer):
        return "training.optimizer"
    kind = next((registry.kind for registry in REGISTRIES if isinstance(owner, registry.bases)), "")
    return KEYS.get(kind, kind)
