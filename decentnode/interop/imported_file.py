"""The file that an imported configuration becomes: checked, with relative paths and notes."""

import copy
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from decentnode.config import overrides as command_line
from decentnode.config import yaml_source
from decentnode.config.error_locations import plugin_errors_as_bad_input
from decentnode.config.loader import understand
from decentnode.config.sections import SECTIONS
from decentnode.core.text import printable
from decentnode.graph.base import GRAPH_FILE
from decentnode.interop.conversion import Conversion
from decentnode.interop.decentralizepy import convert
from decentnode.interop.driver_arguments import Arguments


def converted(
    config: Path, arguments: Arguments, overrides: Sequence[str], out: Path | None
) -> tuple[Conversion, str]:
    """Returns a conversion and its text, which our loader accepts; errors have the lines of the INI file."""
    made = convert(config, arguments, [override.partition("=")[0] for override in overrides])
    for override in overrides:
        command_line.apply(made.document, override)
    values = copy.deepcopy(made.document.value)
    with plugin_errors_as_bad_input():
        understand(made.document)
    folder = (out.parent if out is not None else Path()).resolve()
    for key, path in made.paths.items():
        write_relative(values, key, path, folder=folder)
    ordered = {name: values[name] for name in SECTIONS if name in values}
    return made, "\n".join([*comments(made, config), yaml_source.dump(ordered)])


def write_relative(values: dict[str, Any], key: Sequence[str | int], path: Path, folder: Path) -> None:
    """Writes a path that was relative as one that starts at `folder`, unless an override changed it."""
    container: Any = values
    for part in key[:-1]:
        container = container.get(part) if isinstance(container, dict) else None
    if isinstance(container, dict) and container.get(key[-1]) == str(path):
        text = os.path.relpath(path, folder)
        is_named = list(key) != ["graph"] or re.fullmatch(GRAPH_FILE, text)
        container[key[-1]] = text if is_named else f"./{text}"


def comments(conversion: Conversion, config: Path) -> list[str]:
    """Returns the comment lines of the result: its source, and what is missing or different in it."""
    lines = [f"From {config.name} of decentralizepy, by decentnode import."]
    for head, texts in (
        ("Without a counterpart:", conversion.missing),
        ("Not quite the same:", conversion.notes),
    ):
        lines += [head, *(f"  {line}" for line in texts)] if texts else []
    return [f"# {printable(line)}" for line in lines]
