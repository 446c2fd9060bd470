"""A plug-in that YAML names, and how fields of the settings say that they hold one."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Annotated, Any, Self, cast, get_args, get_origin

import torch
from torch import Tensor

from decentnode.config.type_check import REQUIRED, Parameters, parameters_of
from decentnode.core.registry import Registry
from decentnode.datasets.from_python import dataset_of
from decentnode.errors import BadInput
from decentnode.models.base import model_of
from decentnode.training.metrics.foreign import metric_of
from decentnode.training.settings import Factory, instance, made

SEEDED_KINDS = ("graph", "attack", "communication")
"""Kinds whose option `seed` is the run's seed where it is null."""


@dataclass(frozen=True)
class Named:
    """Marks a field of the settings as a plug-in of a registry, or as a list of them."""

    registry: Registry
    default: str = ""
    """The name where the file has none; empty: it must have one, or it follows from other sections."""


def takes_run_seed(kind: str, cls: Callable[..., Any]) -> bool:
    """Whether a plug-in draws from the run's seed if it is given none of its own.

    A class for which null is a value of its own keeps that meaning.
    """
    default = parameters_of(cls).get("seed", (Any, REQUIRED))[1] if kind in SEEDED_KINDS else REQUIRED
    return default is not REQUIRED and default is not None


@dataclass(frozen=True, kw_only=True)
class Plugin(Factory):
    """A class that YAML names, with its checked options; `make()` returns a new instance each time.

    The fields of a subclass are the keys of a section that are valid for every plug-in of its kind.
    """

    kind: str
    name: str
    """The name as in YAML: a registered one, or `module:Class`."""
    key: str = "name"
    """The key in YAML that names it (`Registry.key`)."""
    run_seed: int = 0
    """The seed that an option `seed` that is null stands for (`takes_run_seed`)."""

    def seeded(self, run_seed: int) -> "Plugin":
        """Returns this plug-in, and those among its options, with the seed of a run."""
        seeded = self.with_inner(lambda plugin: plugin.seeded(run_seed))
        return replace(seeded, run_seed=run_seed)

    def with_inner(self, change: "Callable[[Plugin], Plugin]") -> Self:
        """Returns this plug-in with others in place of those among its options."""
        options = {name: changed(value, change) for name, value in self.options.items()}
        return replace(self, options=options)

    @property
    def draws_from_run(self) -> bool:
        """Whether it, or a plug-in among its options, is drawn from the run's seed."""
        inner = plugins_in(tuple(self.options.values()))
        return self._lacks_seed or any(plugin.draws_from_run for plugin in inner)

    @property
    def _lacks_seed(self) -> bool:
        return self.options.get("seed", 0) is None and takes_run_seed(self.kind, self.cls)

    @property
    def needs_arguments(self) -> bool:
        return self.kind == "optimizer"

    def make(self, *args: object) -> Any:
        """Makes a new instance that shares nothing; raises BadInput when the class refuses its options."""
        # What comes from outside the package may be wrapped: any torch.nn.Module, a Dataset, a function.
        wrap = {"model": model_of, "dataset": dataset_of, "metric": metric_of}.get(self.kind)
        maker = self.cls if wrap is None else (lambda **options: wrap(cast(type, self.cls), options))
        options = {name: made(value) for name, value in self.options.items()}
        if self.kind == "loss":
            hints = parameters_of(self.cls)
            options |= {
                name: _weights(name, value)
                for name, value in options.items()
                if not isinstance(value, Tensor | None)
                and Tensor in (hints[name][0], *get_args(hints[name][0]))
            }
        if self._lacks_seed:
            options["seed"] = self.run_seed
        return instance(maker, args, options)


def plugins_in(option: Any) -> Iterator[Plugin]:
    """Yields the plug-ins that an option is, or has in tuples and sections."""
    if isinstance(option, Plugin):
        yield option
        return
    parts = option.options.values() if isinstance(option, Factory) else option
    for part in parts if isinstance(option, Factory | tuple) else ():
        yield from plugins_in(part)


def all_plugins(value: Any) -> Iterator[Plugin]:
    """Yields the plug-ins that settings, or a part of them, hold at any depth."""
    if isinstance(value, Plugin):
        yield value
    inner: Iterable[Any] = ()
    if is_dataclass(value) and not isinstance(value, type):
        inner = (getattr(value, field.name) for field in fields(value))
    elif isinstance(value, Mapping):
        inner = value.values()
    elif isinstance(value, list | tuple):
        inner = value
    for part in inner:
        yield from all_plugins(part)


def changed(option: Any, change: Callable[[Plugin], Any]) -> Any:
    """Returns an option with what `change` returns in place of the plug-ins in it."""
    if isinstance(option, Plugin):
        return change(option)
    if isinstance(option, Factory):
        return replace(option, options={name: changed(v, change) for name, v in option.options.items()})
    return tuple(changed(part, change) for part in option) if any(plugins_in(option)) else option


def _weights(option: str, numbers: Any) -> Tensor:
    """The weights that a loss has as a tensor, such as those of classes; raises BadInput."""
    try:
        weights = torch.tensor(numbers, dtype=torch.float32)
    except (TypeError, ValueError, RuntimeError):
        weights = torch.empty(0)
    if not (weights.isfinite() & (weights >= 0)).all() or not weights.any():
        raise BadInput.at(option, "must be finite numbers from 0 on, not all 0")
    return weights


def named_in(hint: Any) -> Named | None:
    """Returns how a field of the settings names plug-ins; None for a field without any."""
    marks = get_args(hint)[1:] if get_origin(hint) is Annotated else ()
    return next((mark for mark in marks if isinstance(mark, Named)), None)


def keys_of_kind(cls: type[Plugin]) -> Parameters:
    """Returns the keys of a section that are valid for every plug-in of its kind, with types and defaults."""
    own = {field.name for field in fields(Plugin)}
    return {name: parameter for name, parameter in parameters_of(cls).items() if name not in own}
