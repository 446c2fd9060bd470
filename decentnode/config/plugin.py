"""A plug-in that YAML names, and how fields of the settings say that they hold one."""

import copy
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Annotated, Any, cast, get_args, get_origin

from decentnode.config.type_check import REQUIRED, Parameters, parameters_of
from decentnode.core.registry import Registry
from decentnode.models.base import model_of
from decentnode.training.settings import Factory

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
    run_seed: int = 0
    """The seed that an option `seed` that is null stands for (`takes_run_seed`)."""

    def seeded(self, run_seed: int) -> "Plugin":
        """Returns this plug-in, and those among its options, with the seed of a run."""
        inner = {k: v.seeded(run_seed) for k, v in self.options.items() if isinstance(v, Plugin)}
        return replace(self, run_seed=run_seed, options={**self.options, **inner})

    @property
    def draws_from_run(self) -> bool:
        """Whether it, or a plug-in among its options, is drawn from the run's seed."""
        inner = (value for value in self.options.values() if isinstance(value, Plugin))
        return self._lacks_seed or any(plugin.draws_from_run for plugin in inner)

    @property
    def _lacks_seed(self) -> bool:
        return self.options.get("seed", 0) is None and takes_run_seed(self.kind, self.cls)

    def make(self, *args: object) -> Any:
        """Makes a new instance that shares nothing; raises BadInput when the class refuses its options."""
        # A model may also be any torch.nn.Module from outside the package, which is wrapped.
        is_model = self.kind == "model"
        maker = (lambda **options: model_of(cast(type, self.cls), options)) if is_model else self.cls
        options = {name: _made(value) for name, value in self.options.items()}
        if self._lacks_seed:
            options["seed"] = self.run_seed
        return Factory(maker, options).make(*args)


def _made(option: Any) -> Any:
    """An option as the class takes it: an instance of a plug-in, but of an optimizer what makes it."""
    if not isinstance(option, Plugin):
        return copy.deepcopy(option)
    return option.make if option.kind == "optimizer" else option.make()


def named_in(hint: Any) -> Named | None:
    """Returns how a field of the settings names plug-ins; None for a field without any."""
    marks = get_args(hint)[1:] if get_origin(hint) is Annotated else ()
    return next((mark for mark in marks if isinstance(mark, Named)), None)


def keys_of_kind(cls: type[Plugin]) -> Parameters:
    """Returns the keys of a section that are valid for every plug-in of its kind, with types and defaults."""
    own = {field.name for field in fields(Plugin)}
    return {name: parameter for name, parameter in parameters_of(cls).items() if name not in own}
