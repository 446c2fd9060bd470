"""Adds file and line to errors that are found after a configuration was read.

Samples, addresses, ports and the model are checked later than the file, by code that knows keys but no lines.
The file is read again only when there is an error.
"""

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from decentnode.config import overrides as command_line
from decentnode.config import yaml_source
from decentnode.config.plugin_errors import in_words
from decentnode.config.sections import SECTIONS
from decentnode.config.yaml_source import Key
from decentnode.errors import BadInput, ConfigError, DatasetError, GraphError, MappingError

_KEY = re.compile(r"([a-z]\w*)((?:\.\w+|\[\d+\])*):? (.*)", re.DOTALL)
_WORD = re.compile(r"\w+")
SECTION_OF: dict[type[BadInput], str] = {
    DatasetError: "dataset",
    GraphError: "graph",
    MappingError: "mapping",
}
"""The key of an error that names a file instead of a key."""


@contextmanager
def anchored(path: Path, overrides: Sequence[str]) -> Iterator[None]:
    """Turns every BadInput into a ConfigError with the file and line, or the override, of its key.

    Errors from the code of plug-ins from outside the package count as BadInput.
    """
    try:
        with in_words():
            yield
    except ConfigError:
        raise
    except BadInput as error:
        raise located(error, path, overrides) from error


def located(error: BadInput, path: Path, overrides: Sequence[str]) -> BadInput:
    """The same defects, with places if they name a key; unchanged if the file cannot be read any more."""
    try:
        document = yaml_source.read(path)
        for override in overrides:
            command_line.apply(document, override)
    except ConfigError:
        return error
    document.defects.clear()
    elsewhere = []
    for line in error.defects:
        key, what = _key_and_rest(error, line)
        if key:
            document.add(key, what)
        else:
            elsewhere.append(line)
    return ConfigError(*document.lines(), *elsewhere)


def _key_and_rest(error: BadInput, line: str) -> tuple[Key, str]:
    match = _KEY.fullmatch(line)
    if match and match[1] in SECTIONS:
        parts = (int(word) if word.isdigit() else word for word in _WORD.findall(match[2]))
        return (match[1], *parts), match[3]
    section = SECTION_OF.get(type(error))
    return ((section,) if section else ()), line
