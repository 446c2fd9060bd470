"""Values from Python instead of YAML: nested mappings, with plug-ins as classes, functions and instances."""

from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from functools import partial
from inspect import isfunction
from pathlib import Path
from types import MappingProxyType, ModuleType, new_class
from typing import Any, cast

import numpy as np
from torch import Tensor

from decentnode.config.extends import merge
from decentnode.config.type_check import as_mapping
from decentnode.config.yaml_source import Document, SourceLocation, is_object
from decentnode.core.registry import PASSED, Registry, class_named
from decentnode.core.text import first_line
from decentnode.datasets.base import Dataset
from decentnode.datasets.from_python import PARTS, returning
from decentnode.datasets.table import class_of_tables, tables_in
from decentnode.errors import BadInput, Key
from decentnode.graph.networkx_graph import from_networkx
from decentnode.models.module_copies import deep_copy

ARGUMENTS = "arguments"
"""What messages call the place of values from Python."""
COLUMNS = (Tensor, np.ndarray, list)
"""The types of a column, which tell a mapping of columns from one of options."""
NAME_OF_RUN = "run"
"""The name of a run whose values have none."""


def document_of(values: Mapping[str, Any]) -> Document:
    """Returns a document with these values; keys may be dotted: `{"training.optimizer.lr": 0.1}`."""
    document = Document(ARGUMENTS, {})
    _place(document, (), {})
    # What is said below a word comes after it, in whatever order they are given.
    for name, value in sorted(values.items(), key=lambda item: str(item[0]).count(".")):
        *sections, last = str(name).split(".")
        container, key = document.value, cast(Key, ())
        for section in sections:
            key = (*key, section)
            if isinstance(below := container.setdefault(section, {}), str):
                below = container[section] = as_mapping(below)
            container = below
            _place(document, key, container)
            if not isinstance(container, dict):
                raise BadInput(f"{ARGUMENTS}: {name}: {'.'.join(map(str, key))} has another value, too")
        container[last] = _read(document, (*key, last), value)
    return document


def apply_arguments(document: Document, values: Mapping[str, Any]) -> None:
    """Changes the document as a file that extends it would."""
    merged = merge(document_of(values), document)
    document.value, document.locations = merged.value, merged.locations
    document.defects, document.unreadable = merged.defects, merged.unreadable


def objects_in(values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the entries whose values YAML cannot have: objects, or mappings and lists with objects."""

    def has_object(value: Any) -> bool:
        if isinstance(value, Mapping):
            return any(map(has_object, value.values()))
        if isinstance(value, list):
            return any(map(has_object, value))
        return is_object(value)

    document = document_of(values)
    return {name: value for name, value in document.value.items() if has_object(value)}


def _read(document: Document, key: Key, value: Any) -> Any:
    """Returns a value as a YAML file would have it, or the object itself."""
    _place(document, key, value)
    is_dataset = key in (("dataset",), ("dataset", "name"))
    if isinstance(value, Mapping):
        if key == ("dataset", "name"):
            # Parts, or columns by name: no mapping that is read as YAML's.
            return MappingProxyType(value)
        are_columns = bool(value) and all(isinstance(column, COLUMNS) for column in value.values())
        if key == ("dataset",) and are_columns and "train" not in value:
            # Columns by name: {"image": ..., "meta": ..., "label": ...}.
            value = {"name": value}
        if is_dataset and "train" in value and "name" not in value:
            # Parts beside options: {"train": ..., "test": ..., "classes": [...]}.
            parts = {name: part for name, part in value.items() if name in PARTS}
            value = {"name": parts, **{name: rest for name, rest in value.items() if name not in parts}}
        return {str(name): _read(document, (*key, str(name)), inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        if is_dataset:
            return tuple(value)
        return [_read(document, (*key, index), inner) for index, inner in enumerate(value)]
    if isinstance(value, np.generic):
        return value.item()
    return str(value) if isinstance(value, Path) else value


def _place(document: Document, key: Key, value: object) -> None:
    document.locations[key] = SourceLocation(0, key, typed_in=ARGUMENTS)


def passed_plugin(registry: Registry, value: Any) -> tuple[str, type, dict[str, Any]]:
    """Returns name, class and options of a plug-in that Python passes; raises BadInput.

    A class or function that can be imported is named `module:Class`, so that a saved configuration works. An
    instance of a dataclass that has nothing but its fields becomes the class and its options. Any other
    object becomes a class without options, whose instances are copies of the object: `object:Class`.
    """
    if isinstance(value, partial) and not value.args:
        name, cls, options = passed_plugin(registry, value.func)
        return name, cls, {**options, **value.keywords}
    if registry.kind == "dataset" and (tables := tables_in(value)):
        value = class_of_tables(tables)
    if isinstance(value, type):
        return class_name(registry, value), value, {}
    if isfunction(value) and registry.functions:
        return class_name(registry, value), cast(type, value), {}
    if isinstance(value, ModuleType):
        raise BadInput(f"the module {value.__name__} is no {registry.kind}; pass a class or an object of it")
    if registry.kind in ("optimizer", "scheduler"):
        text = f"an object of {type(value).__name__} cannot be shared by nodes; pass its class and options"
        raise BadInput(f"{text}: {{'name': {type(value).__name__}, ...}}")
    if registry.kind == "dataset" and not isinstance(value, Dataset):
        return f"{PASSED}:samples", cast(type, returning(value)), {}
    if registry.kind == "graph" and type(value).__module__.startswith("networkx."):
        value = from_networkx(value)
    cls = type(value)
    if (
        is_dataclass(cls)
        and not is_object_class(cls)
        and class_name(registry, cls) != f"{PASSED}:{cls.__name__}"
    ):
        options = {field.name: getattr(value, field.name) for field in fields(cls) if field.init}
        if vars(value).keys() <= {field.name for field in fields(cls)} and all(
            map(_is_plain, options.values())
        ):
            return class_name(registry, cls), cls, options
    return f"{PASSED}:{cls.__name__}", class_of_copies(registry, value), {}


def class_name(registry: Registry, plugin: Callable[..., Any]) -> str:
    """Returns the name of a class or function in YAML; `object:Class` where no file can name it."""
    name = getattr(plugin, "registered_name", plugin.__name__)
    if registry.classes().get(name) is plugin:
        return str(name)
    if plugin.__module__ != "__main__" and class_named(plugin.__module__, plugin.__qualname__) is plugin:
        return f"{plugin.__module__}:{plugin.__qualname__}"
    return f"{PASSED}:{plugin.__name__}"


def class_of_copies(registry: Registry, value: object) -> type:
    """Returns a class without options whose instances are copies of an object; raises BadInput.

    It derives from the class of the object, and so has its declarations.
    """
    make = cast(Callable[[], object], value) if isfunction(value) else lambda: deep_copy(value)
    try:
        original = make()
    except Exception as error:  # the user's own class may raise anything
        why = f"{type(error).__name__}: {first_line(error)}"
        if isfunction(value):
            raise BadInput(
                f"the function {value.__name__} makes no {registry.kind}: {why}; it gets no arguments"
            ) from error
        raise BadInput(
            f"{type(value).__name__} cannot be copied, and each node needs a copy: {why}; "
            "pass its class, or a function that makes it"
        ) from error
    cls = type(original)
    content = {
        "__new__": lambda cls, *_: make(),
        "__init__": lambda self: None,
        "__module__": cls.__module__,
        "__qualname__": cls.__qualname__,
        "__doc__": cls.__doc__,
        "is_made_of_copies": True,
    }
    return new_class(cls.__name__, (cls,), exec_body=lambda body: body.update(content))


def is_object_class(cls: object) -> bool:
    """Whether it is a class that `class_of_copies` has made, and so has no options."""
    return "is_made_of_copies" in getattr(cls, "__dict__", {})


def _is_plain(value: object) -> bool:
    if isinstance(value, list | tuple):
        return all(map(_is_plain, value))
    if isinstance(value, Mapping):
        return all(map(_is_plain, value.values()))
    return not is_object(value)
