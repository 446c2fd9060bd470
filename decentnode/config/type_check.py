"""Checks a value from YAML against a type, and describes what the type allows.

Types are as strict as JSON. "16" and true are no numbers, and 1.0 is no whole number. A whole number is valid
where a number is expected, and a list where a tuple is.
"""

import json
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from enum import Enum
from functools import cache, partial
from inspect import Parameter, signature
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, Literal, Protocol, Union, cast, get_args, get_origin, get_type_hints

from annotated_types import Ge, Gt, Le, Lt
from pydantic import ConfigDict, TypeAdapter, ValidationError
from pydantic.errors import PydanticInvalidForJsonSchema

from decentnode.core.registry import guess, is_misspelt, letters, nearest, registry_of
from decentnode.core.text import quoted
from decentnode.errors import MISSING_KEY, Defect, Key
from decentnode.options import INLINED, NAMES_FILE

REQUIRED = Parameter.empty
Parameters = Mapping[str, tuple[Any, Any]]
"""The type and default (or REQUIRED) of each parameter, by name."""
UNIONS = (Union, types.UnionType)
OWN_ERRORS = ("value_error", "assertion_error")
"""Errors that a class raises itself, as pydantic calls them."""
MOST_LETTERS = 300
"""Letters of the known names that a message lists, at most."""

_RULES = ConfigDict(strict=True, extra="forbid", arbitrary_types_allowed=True)
_NOUNS: dict[Any, tuple[str, str]] = {
    int: ("a whole number", "whole numbers"),
    float: ("a number", "numbers"),
    bool: ("true or false", "true or false"),
    str: ("text", "texts"),
    Path: ("a path", "paths"),
    types.NoneType: ("null", "null"),
    Any: ("a value", "values"),
}
_SIGNS: dict[type, tuple[str, str]] = {Gt: (">", "gt"), Ge: (">=", "ge"), Lt: ("<", "lt"), Le: ("<=", "le")}


class ShortForm(str):
    """A text below which an override is: it is the entry `name` of the mapping in its place.

    `typed_parts` finds out what it is there: the name of a plug-in, or a value that the mapping replaces.
    """

    __slots__ = ()


def as_mapping(value: Any) -> dict[str, Any]:
    """Returns the mapping that an override below a value without keys changes."""
    return {"name": ShortForm(value)} if isinstance(value, str) else {}


class TypeMismatch(Exception):
    """A value that its type does not allow; the keys of the defects are those within the value."""

    def __init__(self, defects: Sequence[Defect]) -> None:
        super().__init__("; ".join(map(str, defects)))
        self.defects = defects


def parameters_of(cls: Callable[..., Any], skip: int = 0) -> dict[str, tuple[Any, Any]]:
    """Returns type and default (or REQUIRED) of constructor arguments by name, without the first `skip`."""
    given = fields(cls) if is_dataclass(cls) else ()
    made = {f.name: f.default_factory() for f in given if f.default_factory is not MISSING}
    return {name: (hint, made.get(name, default)) for name, hint, default in _arguments(cls)[skip:]}


@cache
def _arguments(cls: Callable[..., Any]) -> list[tuple[str, Any, Any]]:
    """Returns name, type and default of constructor arguments; defaults of factories are placeholders."""
    hints = _hints(cls if is_dataclass(cls) else cls.__init__)
    return [
        (p.name, hints.get(p.name, Any), p.default)
        for p in signature(cls).parameters.values()
        if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)
    ]


def _hints(source: Callable[..., Any]) -> dict[str, Any]:
    try:
        return get_type_hints(source, include_extras=True)
    except Exception:  # a hint of a user's class may use names that are only imported for type checkers
        return {}


def typed(hint: Any, value: Any, whole: Any = None) -> Any:
    """Returns the value converted to its type; raises TypeMismatch.

    An object from Python that no YAML can have fits where it has the class that is wanted. `whole`: the type
    that messages name in place of `hint`.
    """
    adapter = _adapter(hint)
    try:
        content = json.dumps([value])
    except TypeError:
        content = None
    try:
        return (adapter.validate_python((value,)) if content is None else adapter.validate_json(content))[0]
    except ValidationError as error:
        _refuse_parts(bare(hint), value)
        own = [str(e["ctx"]["error"]) for e in error.errors(include_url=False) if e["type"] in OWN_ERRORS]
        # What a class says itself is more precise than that no other choice of a union fits.
        raise TypeMismatch([Defect((), own[0]) if own else _unfit(whole or hint, value)]) from error


def _refuse_parts(hint: Any, value: Any) -> None:
    """Raises TypeMismatch with the defects of the parts of a value that a type does not allow, if any."""
    meant = _meant(hint, value)
    if meant is not None and get_origin(hint) in UNIONS:
        typed(meant, value)
    elif is_dataclass(meant):
        _fields(meant, value, lambda hint, part, name: name in value and typed(hint, part))  # type: ignore[arg-type]
    elif meant is not None:
        _items(meant, value, lambda hint, part, _: typed(hint, part))


def _unfit(hint: Any, value: Any) -> Defect:
    words = [word for choice in choices_of(hint) for word in _words(choice)] if isinstance(value, str) else []
    near = next((f"; did you mean '{w}'?" for w in words if is_misspelt(letters(value), letters(w))), "")
    return Defect((), f"must be {describe(hint)}, not {show(value)}{near}")


def _words(hint: Any) -> list[str]:
    """Returns the texts that a type of choices allows."""
    if isinstance(hint, type) and issubclass(hint, Enum):
        return [str(member.value) for member in hint]
    return [word for word in get_args(hint) if isinstance(word, str)] if get_origin(hint) is Literal else []


class Builder(Protocol):
    """Makes what `typed_parts` finds; raises an empty TypeMismatch where it has reported the defects."""

    def plugin(self, key: Key, base: Any, value: Any, generic: Sequence[str]) -> Any:
        """Returns the plug-in at `key`, of a class below `base`; the keys `generic` are no options of it."""

    def section(self, key: Key, cls: Callable[..., Any], options: Mapping[str, Any]) -> Any:
        """Returns the section at `key`, an instance of a dataclass, or what makes one."""


def is_plugin(hint: Any) -> bool:
    """Whether a type is that of a plug-in of some kind; a callable is what makes an optimizer."""
    return registry_of(hint) is not None or get_origin(hint) is Callable


def holds_plugins(hint: Any, *around: Any) -> bool:
    """Whether a type is that of a plug-in, or has one in its lists, unions and sections."""
    try:
        return _holds_plugins(hint, *around)
    except TypeError:  # an unhashable annotation
        return _holds_plugins.__wrapped__(hint, *around)


@cache
def _holds_plugins(hint: Any, *around: Any) -> bool:
    if is_plugin(hint) or hint in around:
        return is_plugin(hint)
    inner = _hints(hint).values() if is_dataclass(hint) else get_args(hint)  # type: ignore[arg-type]
    return any(holds_plugins(part, hint, *around) for part in inner)


def inlined_in(section: Any) -> str:
    """Returns the field of a section that is marked with `options.INLINED`, or an empty string."""
    hints = _hints(section) if is_dataclass(section) else {}  # type: ignore[arg-type]
    return next((name for name, hint in hints.items() if INLINED in getattr(hint, "__metadata__", ())), "")


class _Parts:
    """Collects the parts of a value, and the defects of all of them."""

    def __init__(self) -> None:
        self.found: dict[Any, Any] = {}
        self._defects: list[Sequence[Defect]] = []

    def add(self, name: str | int, make: Callable[[], Any], key: Key) -> None:
        """Adds what `make` returns; `key`: where it is in the value."""
        try:
            self.found[name] = make()
        except TypeMismatch as unfit:
            self._defects.append([defect.below(key) for defect in unfit.defects])

    def refuse(self, *defects: Defect) -> None:
        """Raises TypeMismatch if there are defects."""
        if defects or self._defects:
            raise TypeMismatch([*defects, *chain.from_iterable(self._defects)])


def typed_parts(hint: Any, value: Any, builder: Builder, key: Key = ()) -> Any:
    """Returns the value as `typed` does, but with what the builder makes for plug-ins and their sections.

    Keys that the builder gets begin with `key`, those of the defects of TypeMismatch after it.
    """
    value = _without_short_forms(hint, value)
    if not holds_plugins(hint):
        return typed(hint, value)
    meant = _meant_part(hint, value)
    if meant is None:
        others = tuple(choice for choice in choices_of(hint) if not holds_plugins(choice))
        if not others or isinstance(value, Mapping | list | tuple):
            raise TypeMismatch([_unfit(hint, value)])
        return typed(Union[others], value, hint)  # noqa: UP007
    if not holds_plugins(meant):
        return typed(meant, value)
    if is_plugin(meant):
        return builder.plugin(key, meant, value, ())
    if is_dataclass(meant):
        return _section(meant, value, builder, key)  # type: ignore[arg-type]
    found = _items(meant, value, lambda hint, part, name: typed_parts(hint, part, builder, (*key, name)))
    return tuple(found.values())


def _without_short_forms(hint: Any, value: Any) -> Any:
    """Returns a value with each `ShortForm` in it, down to the next plug-ins, under the key that means it.

    It is left out where no key of the mapping says what the text says alone.
    """
    if isinstance(value, dict) and isinstance(word := value.get("name"), ShortForm) and hint is not Any:
        key = _key_of_text(hint, word)
        rest = {name: part for name, part in value.items() if name != "name"}
        value = {key: str(word), **rest} if key else rest
    try:
        meant = _meant(hint, value)
    except TypeMismatch:  # which is raised again with the key of the value
        return value
    if is_plugin(meant) or not isinstance(value, dict):
        return value
    hints = _hints(meant) if is_dataclass(meant) else {}  # type: ignore[arg-type]
    other = get_args(meant)[1] if get_origin(meant) in (dict, Mapping) else Any
    return {name: _without_short_forms(hints.get(name, other), part) for name, part in value.items()}


def _key_of_text(hint: Any, text: str) -> str:
    """Returns the key of a mapping that says what a text says alone; empty: there is none.

    It is that of a plug-in's name, or a field of a section with the same choices as the text.
    """
    meant = _meant_part(hint, text) if holds_plugins(hint) else None
    if meant is not None:
        inlined = inlined_in(meant)
        return _keys(get_args(_hints(meant)[inlined])[0] if inlined else meant)[0]
    words = [choice for choice in choices_of(hint) if get_origin(choice) is Literal]
    sections = [_hints(choice) for choice in choices_of(hint) if is_dataclass(choice)]  # type: ignore[arg-type]
    keys = (key for hints in sections for key in hints if any(c in words for c in choices_of(hints[key])))
    return next(keys, "")


def _section(cls: Callable[..., Any], value: Any, builder: Builder, key: Key) -> Any:
    inlined, given = inlined_in(cls), value
    others = [name for name in parameters_of(cls) if name != inlined]
    if isinstance(value, cls):  # type: ignore[arg-type]
        given = {name: getattr(value, name) for name in parameters_of(cls)}
    elif inlined:
        given = {inlined: value}
        if isinstance(value, Mapping):
            given = {name: value[name] for name in others if name in value}
            given[inlined] = {name: part for name, part in value.items() if name not in others}

    def convert(hint: Any, part: Any, name: str | int) -> Any:
        if name == inlined:
            return builder.plugin(key, get_args(hint)[0], part, others)
        return typed_parts(hint, part, builder, (*key, name))

    return builder.section(key, cls, _fields(cls, given, convert))


Convert = Callable[[Any, Any, str | int], Any]
"""Returns a part of a value, from its type, what is given for it, and its name or index."""


def _fields(cls: Callable[..., Any], value: Mapping[str, Any], convert: Convert) -> dict[Any, Any]:
    """Returns the fields of a dataclass by name, also those that are not given; raises TypeMismatch."""
    parameters, inlined, parts = parameters_of(cls), inlined_in(cls), _Parts()
    defects = [unknown_key((name,), "key", list(parameters)) for name in value if name not in parameters]
    for name, (hint, default) in parameters.items():
        if name not in value and default is REQUIRED:
            defects.append(Defect((name,), MISSING_KEY, f"it must be {describe(hint)}"))
        else:
            part = partial(convert, hint, value.get(name, default), name)
            parts.add(name, part, () if name == inlined else (name,))
    parts.refuse(*defects)
    return parts.found


def _items(hint: Any, value: Any, convert: Convert) -> dict[Any, Any]:
    """Returns the items of a list or mapping by index or key; raises TypeMismatch."""
    arguments, parts = get_args(hint), _Parts()
    if isinstance(value, Mapping):
        for name, part in value.items():
            parts.add(name, partial(convert, arguments[1], part, name), (name,))
    else:
        if get_origin(hint) is not tuple or arguments[-1:] == (Ellipsis,):
            arguments = arguments[:1] * len(value)
        if len(value) != len(arguments):
            raise TypeMismatch([_unfit(hint, value)])
        for index, (inner, part) in enumerate(zip(arguments, value, strict=True)):
            parts.add(index, partial(convert, inner, part, index), (index,))
    parts.refuse()
    return parts.found


def choices_of(hint: Any) -> tuple[Any, ...]:
    """Returns the types of a union; of any other type itself."""
    while get_origin(hint) is Annotated:
        hint = get_args(hint)[0]
    return get_args(hint) if get_origin(hint) in UNIONS else (hint,)


def _meant_part(hint: Any, value: Any) -> Any:
    """Returns the choice of a type that holds plug-ins and that a value means; None: it means another one."""
    choices = choices_of(hint)
    if len(choices) == 1 and is_plugin(choices[0]):
        return choices[0]
    if isinstance(value, Mapping | list | tuple):
        return _meant(hint, value)
    holding = [choice for choice in choices if holds_plugins(choice)]
    # What a text names, or an object is.
    named = [choice for choice in holding if is_plugin(choice) or inlined_in(choice)]
    if value is None or isinstance(value, bool | int | float):
        return None
    if any(_fits(choice, value) for choice in choices if choice not in holding):
        return None
    sections = [
        choice for choice in holding if is_dataclass(choice) and isinstance(value, cast(type, choice))
    ]
    return next(iter(sections + named), None)


def _meant(hint: Any, value: Any) -> Any:
    """Returns the choice of a type that a list or mapping means; None where it is none, or may be several."""
    choices = choices_of(hint)
    if isinstance(value, Mapping):
        return _meant_by_keys([(choice, _keys(choice)) for choice in choices if _takes_keys(choice)], value)
    lists = [choice for choice in choices if get_origin(bare(choice)) in (list, tuple, Sequence)]
    return lists[0] if isinstance(value, list | tuple) and len(lists) == 1 else None


def _meant_by_keys(choices: Sequence[tuple[Any, Sequence[str]]], section: Mapping[str, Any]) -> Any:
    """Returns the choice that has most of the keys of a section; None: it is empty, or there is no choice.

    Raises TypeMismatch with the keys that no choice has, or that are those of another one.
    """
    if len(choices) < 2 or not section:
        return choices[0][0] if len(choices) == 1 else None
    meant, own = max(choices, key=lambda choice: len(section.keys() & choice[1]))
    known = list(chain.from_iterable(keys for _, keys in choices))
    if section.keys().isdisjoint(own):
        if (free := next((choice for choice, keys in choices if not keys), None)) is not None:
            return free
        # Beside a key that is misspelt, others may be right: options of the plug-in that it names.
        misspelt = [name for name in section if nearest(name, known)]
        raise TypeMismatch([unknown_key((name,), "key", known) for name in misspelt or section])
    if is_dataclass(meant) and (strange := [name for name in section if name in known and name not in own]):
        first = next(name for name in section if name in own)
        problem = f"does not go with {first}; leave one of them out"
        raise TypeMismatch([Defect((name,), problem) for name in strange])
    return meant


def _takes_keys(hint: Any) -> bool:
    return is_plugin(hint) or is_dataclass(hint) or get_origin(hint) in (dict, Mapping)


def _keys(hint: Any) -> Sequence[str]:
    """Returns the keys of a section, of a plug-in the one that names it; none of a mapping with any keys."""
    if is_dataclass(hint):
        return list(parameters_of(hint))  # type: ignore[arg-type]
    registry = registry_of(hint)
    return [registry.key if registry else "name"] if is_plugin(hint) else []


def _fits(hint: Any, value: Any) -> bool:
    try:
        typed(hint, value)
    except TypeMismatch:
        return False
    return True


def schema_of(hint: Any, ref_template: str) -> dict[str, Any]:
    """Returns the JSON schema of one value of that type, its definitions under `$defs`."""
    try:
        schema = _adapter(hint).json_schema(ref_template=ref_template)
    except PydanticInvalidForJsonSchema:  # a class without a JSON schema
        return {"$defs": {}}
    return {**schema["prefixItems"][0], "$defs": schema.get("$defs", {})}


def _adapter(hint: Any) -> TypeAdapter[tuple[Any]]:
    # The tuple around it applies the rules to a dataclass, too, which refuses them by itself.
    try:
        return _cached_adapter(hint)
    except TypeError:  # an unhashable annotation
        return TypeAdapter(tuple[hint], config=_RULES)


@cache
def _cached_adapter(hint: Any) -> TypeAdapter[tuple[Any]]:
    return TypeAdapter(tuple[hint], config=_RULES)


def unknown_key(key: Key, what: str, known: Sequence[str]) -> Defect:
    """Returns the defect of a key whose last word is none of the known ones; `what` it is."""
    name = str(key[-1])
    return Defect(key, unknown(what, name, known), meant=nearest(name, known))


def unknown(what: str, name: str, known: Sequence[str]) -> str:
    """Returns `unknown key; did you mean 'x'?`, or all known names when none is similar."""
    return f"unknown {what}{known_names(name, known)}"


def known_names(name: str, known: Sequence[str]) -> str:
    """Returns `; did you mean 'x'?`, or the known names when none is similar."""
    text = ", ".join(known)
    if len(text) > MOST_LETTERS:
        text = f"{text[:MOST_LETTERS].rpartition(',')[0]}, ..."
    return guess(name, known) or (f" (known: {text})" if known else "")


def bare(hint: Any) -> Any:
    """Returns the type without its ranges, and without null where there is one other choice."""
    while get_origin(hint) is Annotated:
        hint = get_args(hint)[0]
    if get_origin(hint) in UNIONS:
        choices = [choice for choice in get_args(hint) if choice is not types.NoneType]
        return bare(choices[0]) if len(choices) == 1 else hint
    return hint


def is_path(name: str, hint: Any) -> bool:
    """Whether an option names a file or directory: by its type, or by its name."""
    return bare(hint) is Path or ((name == "path" or name.endswith("_path")) and bare(hint) is str)


def may_be_path(hint: Any) -> bool:
    """Returns whether a text for an option names a file if there is one (`options.TextOrFile`)."""
    return any(NAMES_FILE in getattr(choice, "__metadata__", ()) for choice in (hint, *get_args(hint)))


def show(value: Any) -> str:
    """Returns a value as messages show it."""
    if isinstance(value, list | tuple | dict):
        if not isinstance(value, dict):
            return f"a list of {len(value)}"
        return "a mapping" if value else "an empty mapping"
    if isinstance(value, str):
        return quoted(value)
    if isinstance(value, bool | int | float | None):
        return json.dumps(value)
    return f"an object of {type(value).__name__}"


def describe(hint: Any, many: bool = False) -> str:
    """Returns the values that a type allows, as text: `a whole number > 0`, `a list of numbers or null`."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return " ".join([describe(arguments[0], many), *_bounds(arguments[1:])]).rstrip()
    if origin in UNIONS:
        choices = [choice for choice in arguments if choice is not int or float not in arguments]
        return " or ".join(describe(choice, many) for choice in choices)
    if origin is Literal:
        return _choices(arguments)
    if origin is Callable:
        return "an optimizer"
    if origin is not None:
        return _describe_container(origin, arguments, many)
    if hint in _NOUNS:
        return _NOUNS[hint][many]
    return _describe_class(hint, many)


def _bounds(marks: Sequence[Any]) -> list[str]:
    found = [(_SIGNS[type(mark)], mark) for mark in marks if type(mark) in _SIGNS]
    texts = [f"{sign} {getattr(mark, attribute)}" for (sign, attribute), mark in found]
    return [" and ".join(texts)] if texts else []


def _choices(values: Sequence[Any]) -> str:
    return " or ".join(show(value) for value in values)


def _describe_container(origin: Any, arguments: Sequence[Any], many: bool) -> str:
    if origin in (dict, Mapping):
        return f"{'mappings' if many else 'a mapping'} to {describe(arguments[1], many=True)}"
    lists = "lists" if many else "a list"
    if origin is tuple and Ellipsis not in arguments:
        return f"{lists} of exactly {len(arguments)} ({', '.join(map(describe, arguments))})"
    return f"{lists} of {describe(arguments[0], many=True)}" if arguments else lists


def _describe_class(cls: Any, many: bool) -> str:
    if (registry := registry_of(cls)) is not None:
        return f"{registry.kind}s" if many else f"a {registry.kind}"
    if inlined := inlined_in(cls):
        return describe(_hints(cls)[inlined], many)
    if is_dataclass(cls):
        hints, defaults = _hints(cls), {f.name for f in fields(cls) if f.default is not MISSING}  # type: ignore[arg-type]
        # What must be there, if anything must.
        needed = " and ".join(name for name in hints if name not in defaults)
        return f"{'mappings' if many else 'a mapping'} with {needed or ', '.join(hints)}"
    if isinstance(cls, type) and issubclass(cls, Enum):
        return _choices([member.value for member in cls])
    return f"a {getattr(cls, '__name__', cls)}"
