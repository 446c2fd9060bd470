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

from decentnode.core.registry import guess, nearest, registry_of
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
    whole = whole or hint
    try:
        content = json.dumps([value])
    except TypeError:
        return _typed_object(hint, value, whole)
    try:
        return _adapter(hint).validate_json(content)[0]
    except ValidationError as error:
        meant = _meant(bare(hint), value) if get_origin(bare(hint)) in UNIONS else None
        if is_dataclass(bare(meant)):
            return typed(meant, value)
        defects: dict[Key, Defect] = {}
        # What a class says itself is more precise than that no other choice of a union fits.
        for details in sorted(error.errors(include_url=False), key=lambda e: e["type"] not in OWN_ERRORS):
            if (defect := _defect(hint, value, details, whole)) is not None:
                defects.setdefault(defect.key, defect)
        # A whole with a defect in one of its parts has another one only as a choice of a union.
        wholes = {key[:length] for key in defects for length in range(len(key))}
        raise TypeMismatch([defect for key, defect in defects.items() if key not in wholes]) from error


def _typed_object(hint: Any, value: Any, whole: Any) -> Any:
    try:
        return _adapter(hint).validate_python((value,))[0]
    except ValidationError as error:
        raise TypeMismatch([Defect((), f"must be {describe(whole)}, not {show(value)}")]) from error


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

    def add(self, name: str | int, make: Callable[[], Any], key: Key | None = None) -> None:
        """Adds what `make` returns; `key`: where it is in the value, by default at its name."""
        try:
            self.found[name] = make()
        except TypeMismatch as unfit:
            self._defects.append([defect.below((name,) if key is None else key) for defect in unfit.defects])

    def refuse(self, *defects: Defect) -> None:
        """Raises TypeMismatch if there are defects."""
        if defects or self._defects:
            raise TypeMismatch([*defects, *chain.from_iterable(self._defects)])


def typed_parts(hint: Any, value: Any, builder: Builder, key: Key = ()) -> Any:
    """Returns the value as `typed` does, but with what the builder makes for plug-ins and their sections.

    Keys that the builder gets begin with `key`, those of the defects of TypeMismatch after it.
    """
    if not holds_plugins(hint):
        return typed(hint, value)
    meant = _meant_part(hint, value)
    if meant is None:
        others = tuple(choice for choice in choices_of(hint) if not holds_plugins(choice))
        if not others:
            raise TypeMismatch([Defect((), f"must be {describe(hint)}, not {show(value)}")])
        return typed(Union[others], value, hint)  # noqa: UP007
    if is_plugin(meant):
        return builder.plugin(key, meant, value, ())
    if is_dataclass(meant):
        return _section(meant, value, builder, key)  # type: ignore[arg-type]
    hints, parts = get_args(meant), _Parts()
    if hints[-1] is Ellipsis:
        hints = hints[:1] * len(value)
    if len(value) != len(hints):
        raise TypeMismatch([Defect((), f"must be {describe(hint)}, not {show(value)}")])
    for index, (inner, part) in enumerate(zip(hints, value, strict=True)):
        parts.add(index, partial(typed_parts, inner, part, builder, (*key, index)))
    parts.refuse()
    return tuple(parts.found.values())


def _section(cls: Callable[..., Any], value: Any, builder: Builder, key: Key) -> Any:
    parameters, inlined, parts = parameters_of(cls), inlined_in(cls), _Parts()
    others = [name for name in parameters if name != inlined]
    given, rest = {}, value
    if isinstance(value, Mapping):
        given = {name: inner for name, inner in value.items() if name in others}
        rest = {name: inner for name, inner in value.items() if name not in others}
    elif isinstance(value, cls):  # type: ignore[arg-type]
        given = {name: getattr(value, name) for name in others}
        rest = getattr(value, inlined) if inlined else {}
    if inlined:
        (base, *_), key_of_section = get_args(parameters[inlined][0]), cast(Key, ())
        parts.add(inlined, lambda: builder.plugin(key, base, rest, others), key_of_section)
    defects = [] if inlined else [unknown_key((name,), "key", others) for name in rest]
    for name in others:
        hint, default = parameters[name]
        if name not in given and default is REQUIRED:
            defects.append(Defect((name,), MISSING_KEY, f"it must be {describe(hint)}"))
        else:
            part = given.get(name, default)
            parts.add(name, partial(typed_parts, hint, part, builder, (*key, name)))
    parts.refuse(*defects)
    return builder.section(key, cls, parts.found)


def choices_of(hint: Any) -> tuple[Any, ...]:
    """Returns the types of a union; of any other type itself."""
    while get_origin(hint) is Annotated:
        hint = get_args(hint)[0]
    return get_args(hint) if get_origin(hint) in UNIONS else (hint,)


def _meant_part(hint: Any, value: Any) -> Any:
    """Returns the choice of a type that holds plug-ins and that a value means; None: it means another one."""
    choices = choices_of(hint)
    holding = [choice for choice in choices if holds_plugins(choice)]
    others = [choice for choice in choices if choice not in holding]
    if not others and len(holding) == 1 and is_plugin(holding[0]):
        return holding[0]
    if isinstance(value, list | tuple):
        return next((choice for choice in holding if get_origin(choice) in (tuple, list, Sequence)), None)
    # What a text names, or an object is.
    named = [choice for choice in holding if is_plugin(choice) or inlined_in(choice)]
    if isinstance(value, Mapping):
        counts = {choice: _known_keys(choice, value) for choice in choices if _takes_keys(choice)}
        if len(counts) > 1 and not any(counts.values()):
            raise TypeMismatch([Defect((), f"must be {describe(hint)}, not {show(value)}")])
        likely = [choice for choice, count in counts.items() if count == max(counts.values())]
        return likely[0] if len(likely) == 1 and likely[0] in holding else None
    if value is None or isinstance(value, bool | int | float) or any(_fits(c, value) for c in others):
        return None
    sections = [
        choice for choice in holding if is_dataclass(choice) and isinstance(value, cast(type, choice))
    ]
    return next(iter(sections + named), None)


def _takes_keys(hint: Any) -> bool:
    return is_plugin(hint) or is_dataclass(hint) or get_origin(hint) in (dict, Mapping)


def _known_keys(hint: Any, section: Mapping[str, Any]) -> int:
    """Returns how many of a section's keys are known; of a plug-in the one that names it."""
    if is_dataclass(hint):
        return len(section.keys() & _hints(hint).keys())  # type: ignore[arg-type]
    registry = registry_of(hint)
    return int((registry.key if registry else "name") in section)


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


def _defect(hint: Any, value: Any, error: Mapping[str, Any], whole: Any) -> Defect | None:
    """Returns what pydantic found; None where that is a choice of a union that was not meant."""
    path = error["loc"][1:]
    place = _locate(hint, path, value)
    if place is None:
        return None
    key, inner, unknown_parts = place
    if error["type"] in ("unexpected_keyword_argument", "extra_forbidden") and is_dataclass(bare(inner)):
        return unknown_key((*key, *unknown_parts), "key", list(_hints(bare(inner))))
    if error["type"] == "missing" and path and isinstance(path[-1], str) and not unknown_parts:
        return Defect(key, MISSING_KEY, f"it must be {describe(inner)}")
    if error["type"] in OWN_ERRORS:
        return Defect(key, str(error["ctx"]["error"]))
    if error["type"] == "missing":
        key, inner, _ = _locate(hint, path[:-1], value) or place
    return Defect(key, f"must be {describe(whole if inner is hint else inner)}, not {show(_dig(value, key))}")


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


def _locate(hint: Any, path: Sequence[str | int], value: Any) -> tuple[Key, Any, Key] | None:
    """Follows a path while the types are unambiguous: the key so far, the type there, the unknown rest.

    None where the path leads into a class of a union that the value does not mean.
    """
    key: Key = ()
    for number, part in enumerate(path):
        if get_origin(bare(hint)) in UNIONS:
            # Here the path only names one of the choices; the value decides which one was meant.
            inner = _meant(bare(hint), _dig(value, key))
            if is_dataclass(bare(inner)) and part != bare(inner).__name__:
                return None
        else:
            inner = _inside(hint, part)
            key = (*key, part) if inner is not None else key
        if inner is None:
            return key, hint, tuple(path[number:])
        hint = inner
    return key, hint, ()


def _meant(union: Any, value: Any) -> Any:
    """Returns the choice of a union that a list or mapping means; None where several may be."""
    wanted: tuple[Any, ...] = (dict, Mapping) if isinstance(value, dict) else (list, tuple, Sequence)
    if not isinstance(value, list | dict):
        return None
    choices = get_args(union)
    fitting = [choice for choice in choices if get_origin(bare(choice)) in wanted]
    if isinstance(value, dict):
        classes = [choice for choice in choices if is_dataclass(bare(choice))]
        known = [len(value.keys() & _hints(bare(cls)).keys()) for cls in classes]
        fitting += [cls for cls, count in zip(classes, known, strict=True) if count == max(known)]
    return fitting[0] if len(fitting) == 1 else None


def _inside(hint: Any, part: str | int) -> Any:
    inner = bare(hint)
    arguments = get_args(inner)
    if is_dataclass(inner):
        return _hints(inner).get(str(part))  # type: ignore[arg-type]
    if get_origin(inner) in (list, tuple, Sequence) and isinstance(part, int):
        fixed = get_origin(inner) is tuple and Ellipsis not in arguments
        return arguments[part if fixed and part < len(arguments) else 0]
    if get_origin(inner) in (dict, Mapping):
        return arguments[1]
    return None


def bare(hint: Any) -> Any:
    """Returns the type without its ranges, and without null where there is one other choice."""
    while get_origin(hint) is Annotated:
        hint = get_args(hint)[0]
    if get_origin(hint) in UNIONS:
        choices = [choice for choice in get_args(hint) if choice is not types.NoneType]
        return bare(choices[0]) if len(choices) == 1 else hint
    return hint


def _dig(value: Any, key: Key) -> Any:
    for part in key:
        value = value[part]
    return value


def is_path(name: str, hint: Any) -> bool:
    """Whether an option names a file or directory: by its type, or by its name."""
    return bare(hint) is Path or ((name == "path" or name.endswith("_path")) and bare(hint) is str)


def may_be_path(hint: Any) -> bool:
    """Returns whether a text for an option names a file if there is one (`options.TextOrFile`)."""
    return any(NAMES_FILE in getattr(choice, "__metadata__", ()) for choice in (hint, *get_args(hint)))


def show(value: Any) -> str:
    """Returns a value as messages show it."""
    if isinstance(value, list | tuple | dict):
        return "a mapping" if isinstance(value, dict) else f"a list of {len(value)}"
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
        # What must be there, where that is not all.
        named = [name for name in hints if name not in defaults] or hints
        return f"{'mappings' if many else 'a mapping'} with {' and '.join(named)}"
    if isinstance(cls, type) and issubclass(cls, Enum):
        return _choices([member.value for member in cls])
    return f"a {getattr(cls, '__name__', cls)}"
