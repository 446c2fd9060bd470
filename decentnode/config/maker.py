"""A plug-in from its name and options where there is no file: on the command line, and in a training loop."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from decentnode.config.type_check import (
    REQUIRED,
    TypeMismatch,
    describe,
    parameters_of,
    show,
    typed_parts,
    unknown_key,
)
from decentnode.core.registry import GRAPHS, Registry, registry_of
from decentnode.errors import MISSING_KEY, BadInput, Defect, Key, refuse
from decentnode.graph.base import GRAPH_FILE
from decentnode.mapping.job import job_port
from decentnode.options import Port


def made(
    registry: Registry, named: str | Mapping[str, Any], usual: Mapping[str, Any] | None = None,
    folders: Sequence[Path] = (),
) -> Any:  # fmt: skip
    """Makes the plug-in of that name; `usual` are options for plug-ins that have them.

    `folders`: where the module of one from outside may be, if it is not installed.

    Raises BadInput with a defect for each wrong option, whose key it is.
    """
    options = {registry.key: named} if isinstance(named, str) else dict(named)
    name = options.pop(registry.key, None)
    if not isinstance(name, str):
        raise BadInput(f"{registry.kind}: a mapping names its plug-in under '{registry.key}'")
    cls = registry.find(name, *folders)
    if not issubclass(cls, registry.bases):
        wanted = f"{registry.bases[0].__module__}.{registry.bases[0].__qualname__}"
        raise BadInput(f"'{name}' is no {registry.kind}; it must be a subclass of {wanted}")
    parameters, defects = parameters_of(cls), list[Defect]()
    values = {option: value for option, value in (usual or {}).items() if option in parameters}
    for option, value in options.items():
        if option not in parameters:
            defects.append(unknown_key((option,), "option", list(parameters)))
            continue
        hint = parameters[option][0]
        try:
            values[option] = typed_parts(hint, value, _MadeParts(usual))
        except (TypeMismatch, BadInput) as error:
            defects += [defect.below((option,)) for defect in error.defects]
    for option, (hint, default) in parameters.items():
        if default is REQUIRED and option not in {**values, **options}:
            defects.append(Defect((option,), MISSING_KEY, f"it must be {describe(hint)}"))
        elif hint == Port and default is not REQUIRED:
            values.setdefault(option, job_port(default))
    refuse(defects)
    try:
        return cls(**values)
    except TypeError as error:
        raise BadInput(f"{registry.kind} {name}: {error}") from error


@dataclass(frozen=True)
class _MadeParts:
    """Makes plug-ins and sections among the options of a plug-in."""

    usual: Mapping[str, Any] | None

    def plugin(self, key: Key, base: Any, value: Any, generic: Sequence[str]) -> Any:
        if isinstance(base, type) and isinstance(value, base):
            return value
        registry = registry_of(base)
        if registry is GRAPHS and isinstance(value, str) and re.fullmatch(GRAPH_FILE, value):
            value = {"name": "file", "path": value}
        if registry is None or not isinstance(value, str | Mapping):
            what = f"must be a name, or a mapping with its options, not {show(value)}"
            raise TypeMismatch([Defect((), what)])
        try:
            return made(registry, value, self.usual)
        except BadInput as error:
            raise TypeMismatch(error.defects) from error

    def section(self, key: Key, cls: Callable[..., Any], options: Mapping[str, Any]) -> Any:
        return cls(**options)
