"""Further names of schemes: each is a scheme with some of its options set."""

import inspect
from collections.abc import Mapping
from dataclasses import field, make_dataclass
from typing import Any

from decentnode.core.registry import SHARINGS, name_of
from decentnode.sharing.base import Sharing
from decentnode.sharing.beer import Beer
from decentnode.sharing.choco import Choco
from decentnode.sharing.fed_opt import FedAdam

ALIASES: Mapping[str, tuple[type[Sharing], Mapping[str, Any]]] = {
    "beer_per_edge": (Beer, {"copies": "edge"}),
    "choco_per_edge": (Choco, {"copies": "edge"}),
    "fed_yogi": (FedAdam, {"rule": "yogi"}),
}
"""The name, the scheme, and the options that are set."""


def with_options(scheme: type[Sharing], options: Mapping[str, Any]) -> type[Sharing]:
    """Returns a scheme with these options set, which it then has no more."""
    made = scheme(**options)
    text = ", ".join(f"{name}: {value}" for name, value in options.items())
    namespace = {
        "__doc__": f"Is {name_of(made)} with {text}.\n\n{inspect.getdoc(scheme)}",
        "__module__": scheme.__module__,
        "requirements": made.requirements,
        "promises": made.promises,
    }
    set_fields = [(name, Any, field(default=value, init=False)) for name, value in options.items()]
    return make_dataclass(scheme.__name__, set_fields, bases=(scheme,), namespace=namespace)


for _name, (_scheme, _options) in ALIASES.items():
    SHARINGS.register(_name)(with_options(_scheme, _options))
