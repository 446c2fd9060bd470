"""Where an error belongs: plug-in, method and line of code, and the file, line and key of a configuration.

Samples, addresses, ports and the model are checked later than the file, by code that knows keys but no lines.
The file is read again only when there is an error.
"""

import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from torch import nn
from torch.optim import Optimizer

from decentnode.config import extends
from decentnode.config import overrides as command_line
from decentnode.config.extends import ConfigSource
from decentnode.config.overrides import Override
from decentnode.core.registry import REGISTRIES
from decentnode.errors import (
    BadInput,
    ConfigError,
    DatasetError,
    DecentnodeError,
    Defect,
    GraphError,
    Key,
    MappingError,
    explained,
    is_foreign,
    is_out_of_memory,
)
from decentnode.training.objective import Objective

SECTION_OF: dict[type[BadInput], Key] = {
    DatasetError: ("dataset",),
    GraphError: ("graph",),
    MappingError: ("mapping",),
}
"""The key of an error that names a file instead of a key."""
KEYS = {
    "weights": "sharing.weights", "transform": "sharing.transforms", "partition": "dataset.partition",
    "skew": "dataset.skew", "augmentation": "training.augmentation",
    "privacy": "training.privacy", "correlation": "training.privacy.correlation",
    "distribution": "communication", "slowdown": "training.pace.slowdown",
}  # fmt: skip
"""The key that names a plug-in, where it is not the name of its kind."""


@contextmanager
def with_locations(source: ConfigSource, overrides: Sequence[Override]) -> Iterator[None]:
    """Turns every BadInput into a ConfigError with the file and line, or the override, of its key.

    Errors from the code of plug-ins from outside the package count as BadInput.
    """
    try:
        with plugin_errors_as_bad_input():
            yield
    except ConfigError:
        raise
    except BadInput as error:
        raise located(error, source, overrides) from error


def located(error: BadInput, source: ConfigSource, overrides: Sequence[Override]) -> BadInput:
    """Returns the defects of `error`, with places where they have a key and the file can still be read."""
    try:
        document = extends.read(source)
        for override in overrides:
            command_line.apply(document, override)
    except ConfigError:
        return error
    document.defects.clear()
    section = SECTION_OF.get(type(error), ())
    whole = [defect if defect.key else defect.below(section) for defect in error.defects]
    document.report(*(defect for defect in whole if defect.key))
    return ConfigError(*document.lines(), *(defect for defect in whole if not defect.key))


@contextmanager
def plugin_errors_as_bad_input() -> Iterator[None]:
    """Turns an error from the code of a plug-in from outside into BadInput; all others pass."""
    try:
        yield
    except Exception as error:
        if isinstance(error, DecentnodeError) or is_out_of_memory(error):
            raise
        if all(is_foreign(frame) for frame, _ in traceback.walk_tb(error.__traceback__)):
            raise
        raise BadInput(defect_of(error)) from error


def defect_of(error: BaseException) -> Defect:
    """Returns `sharing: Mine.mix raises KeyError: 0 (file:line, in ...)`, or only the error."""
    seen = [
        (key, f"{type(owner).__name__}.{frame.f_code.co_name}", is_foreign(frame))
        for frame, _ in traceback.walk_tb(error.__traceback__)
        if (key := _key_of(owner := frame.f_locals.get("self"), error))
    ]
    own = [(key, method) for key, method, foreign in seen if not foreign]
    if not seen:
        return Defect((), explained(error))
    key, method = own[-1] if own else seen[0][:2] if seen[0][0] == "model" else seen[-1][:2]
    return Defect.at(key, f"{method} raises {explained(error)}")


def _key_of(owner: object, error: BaseException) -> str:
    """Returns the key in the configuration of the plug-in that an object belongs to; empty for others."""
    if isinstance(owner, nn.Module):
        frames = (frame.f_locals.get("self") for frame, _ in traceback.walk_tb(error.__traceback__))
        losses = [objective.loss for objective in frames if isinstance(objective, Objective)]
        return "training.loss" if any(owner is loss for loss in losses) else "model"
    if isinstance(owner, Optimizer):
        return "training.optimizer"
    kind = next((registry.kind for registry in REGISTRIES if isinstance(owner, registry.bases)), "")
    return KEYS.get(kind, kind)
