"""Overrides by dotted keys: `training.optimizer.lr=0.05` on the command line, or in another file."""

import copy
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

from decentnode.config.type_check import as_mapping
from decentnode.config.yaml_source import Document, LocatedDefect, SourceLocation, read_value, shown_key
from decentnode.core.text import shortened
from decentnode.errors import Defect, Key

_KEY = re.compile(r"\w+(\.\w+|\[\d+\])*")
_PART = re.compile(r"\w+")
MOST_DIGITS = 9
"""Most digits of an entry's number: no list has more entries."""


class _Misfit(Exception):
    """An override that does not fit the file."""


Override = str | Mapping[str, Any]
"""`key=value` from the command line, or nested values from Python."""


def apply(document: Document, override: Override) -> None:
    """Writes the value of `key=value` into the document, or nested values; a wrong key becomes a defect."""
    if isinstance(override, Mapping):
        # Loads torch, which `decentnode graph` does without.
        from decentnode.config.python_source import apply_arguments

        apply_arguments(document, override)
        return
    name, sign, text = override.partition("=")
    typed: tuple[str, ...] = (override,)
    try:
        if not sign or not _KEY.fullmatch(name):
            raise _Misfit("an override is key=value, such as training.optimizer.lr=0.05")
        typed = tuple(_PART.findall(name))
        container, key = _reach(document, typed, SourceLocation(0, typed))
    except _Misfit as misfit:
        document.defects.append(LocatedDefect(SourceLocation(0, typed), Defect(typed, str(misfit))))
        return
    _forget(document, key)
    container[key[-1]] = read_value(text, document, key)


def put(document: Document, name: str, value: Any, source: SourceLocation) -> None:
    """Writes a value that another file has for a dotted key; a wrong key becomes a defect of that file."""
    words: tuple[str, ...] = (name,)
    try:
        if not _KEY.fullmatch(name):
            raise _Misfit("this is no key; a key is a word, or words with dots: training.optimizer.lr")
        words = tuple(_PART.findall(name))
        container, key = _reach(document, words, source)
    except _Misfit as misfit:
        document.defects.append(LocatedDefect(source, Defect(words, str(misfit))))
        return
    _forget(document, key)
    document.locations[key] = source
    # Reading a document may complete its values, and several documents may have this one.
    container[key[-1]] = copy.deepcopy(value)


def _forget(document: Document, key: Key) -> None:
    """Removes the places of a value that is replaced."""
    for old in [place for place in document.locations if place[: len(key)] == key]:
        del document.locations[old]


def _reach(document: Document, words: Sequence[str], source: SourceLocation) -> tuple[Any, Key]:
    """Returns the container of the last word's entry, and that entry's key; creates missing containers."""
    container, key = document.value, cast(Key, ())
    for word in words[:-1]:
        part = _part(container, word, key)
        inner = container[part] if isinstance(part, int) else container.get(part)
        key = (*key, part)
        if not isinstance(inner, dict | list):
            if isinstance(inner, str):
                document.locations[(*key, "name")] = document.location(key)
            # A message about the mapping that replaces a value shows the key of that.
            here = source if inner is None else replace(source, override=source.override and key)
            document.locations[key] = here
            inner = container[part] = as_mapping(inner)
        container = inner
    return container, (*key, _part(container, words[-1], key))


def _part(container: Any, word: str, key: Key) -> str | int:
    if isinstance(container, dict):
        return word
    if not word.isdecimal() or len(word) > MOST_DIGITS or int(word) >= len(container):
        raise _Misfit(f"{shown_key(key)} has the entries 0..{len(container) - 1}, not {shortened(word)}")
    return int(word)
