"""Plug-ins of other installed packages, and rarely used ones of this one, loaded when they are asked for.

An entry point of the group `decentnode.plugins` names a module that registers plug-ins when it is imported.
"""

import importlib
from contextvars import ContextVar
from functools import cache
from importlib.metadata import entry_points
from itertools import takewhile
from typing import NamedTuple

from decentnode.core.text import first_line
from decentnode.core.version import __version__

GROUP = "decentnode.plugins"
"""The group of entry points."""
CONTRIB = ("decentnode.contrib.vgg11", "decentnode.contrib.vit")
"""Modules of this package that are loaded as those of others are, so that no installation must know them."""
OWN = "decentnode"
_is_loading = ContextVar("is_loading", default=False)


class PluginModule(NamedTuple):
    """A module with plug-ins, and the distribution that has it."""

    module: str
    package: str
    version: str

    def __str__(self) -> str:
        return f"{self.package} {self.version}"


@cache
def plugin_modules() -> tuple[PluginModule, ...]:
    """Returns the modules with plug-ins, in the order of their packages."""
    found = {PluginModule(module, OWN, __version__) for module in CONTRIB}
    for point in entry_points(group=GROUP):
        package, version = (point.dist.name, point.dist.version) if point.dist else (point.name, "unknown")
        found.add(PluginModule(point.module, package, version))
    return tuple(sorted(found, key=lambda one: (one.package.lower(), one.module)))


def load_plugins(only_own: bool = False) -> tuple[str, ...]:
    """Imports all modules with plug-ins; returns a line for each that cannot be imported.

    `only_own`: those of this package, which are no code of others.
    """
    problems = (_load(one) for one in plugin_modules() if one.package == OWN or not only_own)
    return tuple(filter(None, problems))


@cache
def _load(plugin_module: PluginModule) -> str:
    """Imports a module, once also where that fails; returns a line about the error, or an empty string."""
    token = _is_loading.set(True)
    try:
        importlib.import_module(plugin_module.module)
    except (Exception, SystemExit) as error:  # any error of the module itself
        what = f"{type(error).__name__}: {first_line(error)}"
        return (
            f"the plug-in package {plugin_module} cannot be loaded: import of {plugin_module.module}: {what}"
        )
    finally:
        _is_loading.reset(token)
    return ""


def is_loading() -> bool:
    """Whether modules with plug-ins are being imported, and not by their users."""
    return _is_loading.get()


def package_of(cls: object) -> PluginModule | None:
    """Returns the module with plug-ins of the package that has a class; None where there is none."""
    module = str(getattr(cls, "__module__", "")).split(".")
    if module[0] in (OWN, "torch"):
        return None

    def shared(plugin_module: PluginModule) -> int:
        pairs = zip(module, plugin_module.module.split("."), strict=False)
        return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))

    return max(filter(shared, plugin_modules()), key=shared, default=None)
