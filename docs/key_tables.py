"""Writes the tables of keys in docs/configuration.md, from the fields of the settings.

    python docs/key_tables.py

A table follows the line `<!-- keys: CLASS -->`, with the name of a class of decentnode.config.settings.
"""

import ast
import inspect
import json
import re
import textwrap
from collections.abc import Iterator
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any

from decentnode.config import settings
from decentnode.config.extends import EXTENDS
from decentnode.config.plugin import named_in
from decentnode.config.type_check import REQUIRED, bare, parameters_of
from decentnode.options import Effect, effect_of

PAGE = Path(__file__).parent / "configuration.md"
TABLE = re.compile(r"(?<=<!-- keys: )(\w+)( -->\n\n)(?:\|.*\n)*")
BY_OTHERS = {"name": "that of the file", "task": "that of the dataset"}
"""Defaults that follow from something else."""
ROW_OF_EXTENDS = f"| `{EXTENDS}` | Another file, which has what this one leaves out | none | |\n"


def with_tables(page: str) -> str:
    """Returns the page with its tables made anew."""
    return TABLE.sub(lambda found: found[1] + found[2] + "".join(rows(getattr(settings, found[1]))), page)


def rows(cls: type) -> Iterator[str]:
    """Yields the lines of the table of a class of settings."""
    yield "| key | meaning | default | another value changes |\n|---|---|---|---|\n"
    if cls is settings.Settings:
        yield ROW_OF_EXTENDS
    meanings = docstrings(cls)
    for name, (hint, default) in parameters_of(cls).items():
        cells = f"`{name}`", meanings[name], default_of(name, hint, default), changes(cls, name, hint)
        yield f"| {' | '.join(cells)} |\n"


def docstrings(cls: type) -> dict[str, str]:
    """Returns the first paragraph below each field of a class and its bases, in one line."""
    found = {}
    for base in reversed(cls.__mro__[:-1]):
        (body,) = ast.parse(textwrap.dedent(inspect.getsource(base))).body
        assert isinstance(body, ast.ClassDef)
        for field, below in zip(body.body, body.body[1:], strict=False):
            if isinstance(field, ast.AnnAssign) and isinstance(below, ast.Expr):
                text = ast.literal_eval(below.value).split("\n\n")[0]
                found[ast.unparse(field.target)] = " ".join(text.split()).removesuffix(".")
    return found


def default_of(name: str, hint: Any, default: Any) -> str:
    """Returns the default of a field as the file has it; empty for a section, whose keys have their own."""
    if name in BY_OTHERS:
        return BY_OTHERS[name]
    named = named_in(hint)
    if named is not None and named.default:
        return f"`{named.default}`"
    if named is None and is_dataclass(bare(hint)):
        return ""
    return "required" if default is REQUIRED else f"`{json.dumps(default)}`".replace('"', "")


def changes(cls: type, name: str, hint: Any) -> str:
    """Returns what another value of a field changes; for a section, that its keys say so."""
    if is_dataclass(bare(hint)) and named_in(hint) is None and effect_of(cls, name) == Effect():
        return "as its keys"
    effect = effect_of(cls, name)
    return effect.changes + ("; models in virtual time" if effect.timing else "")


if __name__ == "__main__":
    PAGE.write_text(with_tables(PAGE.read_text()))
