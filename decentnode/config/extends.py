"""`extends: base.yaml`: a configuration that says only what differs from another one, or from a shipped one.

Mappings merge key by key; a list, a text or a number replaces. A plug-in under another name replaces the
whole section, because the options of the other plug-in are not its own. Every value keeps the place where it
stands, so that errors name that file and relative paths start at that file's folder.
"""

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from decentnode.config import yaml_source
from decentnode.config.paths import expanded
from decentnode.config.shipped import find_config, near_config
from decentnode.config.type_check import ShortForm, as_mapping, show
from decentnode.config.yaml_source import Document, is_object
from decentnode.core.registry import near_file
from decentnode.core.text import quoted
from decentnode.errors import Key

EXTENDS = "extends"
NAMING = {"name", "distribution", "kind"}
"""The keys that name a plug-in, or a kind, in its section: another one has other options."""
DEFAULT_NAMES: dict[Key, str] = {
    ("graph",): "",
    ("mapping",): "linear",
    ("dataset",): "",
    ("dataset", "partition"): "iid",
    ("model",): "",
    ("training", "optimizer"): "",
    ("training", "scheduler"): "",
    ("training", "loss"): "CrossEntropyLoss",
    ("sharing",): "gossip",
    ("sharing", "weights"): "",
    ("communication",): "zeromq",
}
"""The sections of one plug-in, and the plug-in of a section without a name."""


ConfigSource = str | Path | Callable[[], Document]
"""A configuration: its file, or a function that makes its document, for values from Python."""


def read(source: ConfigSource) -> Document:
    """Returns the values of a configuration and of all that it extends; raises ConfigError."""
    chain = [source() if callable(source) else yaml_source.read(source)]
    while base := _base_of(chain[-1]):
        _check_circle(chain, base)
        chain.append(yaml_source.read(base))
    merged = chain.pop()
    while chain:
        merged = merge(chain.pop(), merged)
    return merged


def _base_of(document: Document) -> Path | None:
    """Returns the file that a document extends, as a path like its own; takes the key out of the values."""
    key, given = (EXTENDS,), document.value.pop(EXTENDS, None)
    if given is None:
        return None
    if not isinstance(given, str) or not given:
        document.add(key, f"must be the path or the name of one configuration, not {show(given)}")
        document.raise_any()
    try:
        found = (Path(document.file).resolve().parent / expanded(given)).resolve()
        if not found.exists():
            if shipped := find_config(given):
                return shipped
            near = near_config(given, Path(document.file).resolve().parent) or near_file(str(found))
            if find_config(Path(given).stem):
                near = f"; a configuration of this name is shipped: extends: {Path(given).stem}"
            document.add(key, f"no such file: {found}{near}")
    except (OSError, RuntimeError, ValueError) as error:  # too long, a loop of links, or not expanded
        document.add(key, f"no usable path: {quoted(given)}: {error}")
    document.raise_any()
    return found if Path(document.file).is_absolute() else Path(os.path.relpath(found))


def _check_circle(documents: Sequence[Document], base: Path) -> None:
    if base.resolve() in [Path(document.file).resolve() for document in documents]:
        files = " extends ".join([*(document.file for document in documents), str(base)])
        documents[-1].add((EXTENDS,), f"a circle: {files}; one of them must not extend another")
        documents[-1].raise_any()


def merge(document: Document, base_document: Document) -> Document:
    """Returns the document with all that it leaves out from its base."""
    places = {
        key: replace(place, file=place.file or base_document.file)
        for key, place in base_document.locations.items()
    }
    defects = [
        replace(defect, location=replace(defect.location, file=defect.location.file or base_document.file))
        for defect in base_document.defects
    ]
    merged = replace(
        base_document,
        file=document.file,
        locations=places | {(): document.location(())},
        defects=[*document.defects, *defects],
        bases=[base_document.file, *base_document.bases],
    )
    _change(merged, document, (), below=merged.value, values=document.value)
    return merged


def _change(
    merged_document: Document, document: Document, key: Key, below: dict[str, Any], values: dict[str, Any]
) -> None:
    """Writes the document's `values` at `key` over those of the base `below`, with their places."""
    for name, value in values.items():
        place = (*key, name)
        section = _continued(place, below.get(name), value)
        if section is None:
            _replace(merged_document, document, place)
            below[name] = value
            continue
        is_short = not isinstance(below[name], dict)
        if is_short:  # its place is that of the name
            merged_document.locations[(*place, "name")] = merged_document.locations[place]
        if is_short or "name" in value or "name" not in section:
            merged_document.locations[place] = document.locations[place]
        below[name] = section
        _change(merged_document, document, place, below=section, values=value)


def _continued(key: Key, below: Any, value: Any) -> dict[str, Any] | None:
    """Returns the base's section, if `value` changes some of its keys; None if it replaces the whole."""
    # A word replaces, also where there is more below it.
    if not isinstance(value, dict) or isinstance(value.get("name"), ShortForm):
        return None
    if isinstance(below, str):
        below = as_mapping(below)
    default = DEFAULT_NAMES.get(key)
    if default is not None and is_object(below):
        below = {"name": below}
    if not isinstance(below, dict):
        return None
    # All keys of `training` are valid for every name.
    for word in value.keys() & NAMING if key != ("training",) else ():
        named, before = (default if part.get(word) is None else part[word] for part in (value, below))
        # An object from Python is the same as nothing but itself.
        is_same = named is before if is_object(named) else named == before
        if not is_same and named is not None and before is not None:
            return None
    return below


def _replace(merged_document: Document, document: Document, key: Key) -> None:
    """Takes the places of a value and of all in it from the document, and forgets those of the base."""
    for old in [place for place in merged_document.locations if place[: len(key)] == key]:
        del merged_document.locations[old]
    merged_document.locations |= {
        place: at for place, at in document.locations.items() if place[: len(key)] == key
    }
    merged_document.unreadable = {place for place in merged_document.unreadable if place[: len(key)] != key}
    merged_document.unreadable |= {place for place in document.unreadable if place[: len(key)] == key}
