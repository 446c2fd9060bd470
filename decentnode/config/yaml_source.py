"""YAML text -> plain values, with the place of every value.

The scalars follow YAML 1.2 (core schema), not 1.1: `1e-3` is a number; `on`, `off`, `yes`, `no` and
dates are text. Only plain values are read: no tag can name a type. Size, nesting and the expansion of
aliases are bounded, so that no file can fill the memory.
"""

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import yaml

from decentnode.config.shipped import config_path, near_config
from decentnode.config.type_check import ShortForm
from decentnode.core.registry import near_file
from decentnode.core.text import printable, shortened
from decentnode.errors import MISSING_KEY, ConfigError, Defect, Key, key_text

MOST_BYTES = 1 << 18
MOST_VALUES = 100_000
MOST_DEPTH = 32
MOST_BITS = 63

_INVISIBLE = re.compile("[\u00a0\u2000-\u200b\u202f\u205f\u2060\u3000]")
"""Blanks that are none in YAML, which word processors and web pages put where one sees a blank or nothing."""
_TAG = "tag:yaml.org,2002:"
_SCALARS: list[tuple[str, str, Iterable[str]]] = [
    ("null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    ("bool", r"true|True|TRUE|false|False|FALSE", "tTfF"),
    ("int", r"[-+]?[0-9]+|0x[0-9a-fA-F]+|0o[0-7]+", "-+0123456789"),
    ("float", r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?", "-+.0123456789"),
    ("float", r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)", "-+."),
]
_BASES = {"0x": 16, "0o": 8}


def _resolvers() -> dict[str, list[tuple[str, re.Pattern[str]]]]:
    rules: dict[str, list[tuple[str, re.Pattern[str]]]] = {}
    for kind, pattern, first_letters in _SCALARS:
        for letter in first_letters:
            rules.setdefault(letter, []).append((_TAG + kind, re.compile(f"^(?:{pattern})$")))
    return rules


class ScalarRules:
    """How plain scalars are read, and which texts are quoted in output."""

    yaml_implicit_resolvers: ClassVar = _resolvers()


class _Loader(ScalarRules, yaml.SafeLoader):
    """Yields nodes with positions, and stops at too deep nesting."""

    depth = 0

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        if self.depth == MOST_DEPTH:
            mark = self.get_mark()
            raise yaml.MarkedYAMLError(problem=f"nested deeper than {MOST_DEPTH} levels", problem_mark=mark)
        self.depth += 1
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node


class Dumper(ScalarRules, yaml.SafeDumper):
    """Writes text that this module reads as the same values."""


Dumper.add_representer(ShortForm, Dumper.represent_str)


@dataclass(frozen=True)
class SourceLocation:
    """The place of a value in the input: a line of a file, or an override of the command line or Python."""

    line: int
    override: Key | None = None
    file: str = ""
    """The file that changes the value; empty: the one that is read."""
    typed_in: str = "command line"
    """Where an override is from."""


@dataclass(frozen=True)
class LocatedDefect:
    """A defect with the place of the value; the one place where it becomes the user's message."""

    location: SourceLocation
    defect: Defect

    def render(self, file: str) -> str:
        """Returns `file:line key: what`, or `command line: key: what` with the key as it was typed."""
        key = self.defect.key
        if self.location.override is None:
            where = f"{self.location.file or file}:{self.location.line}"
            where += f" {shown_key(key)}" if key else ""
        else:
            shown = shown_key(max(key, self.location.override, key=len))
            where = f"{self.location.typed_in}: {shown}" if shown else self.location.typed_in
        return printable(f"{where}: {self.defect.what}")


@dataclass
class Document:
    """A file's values, their places, and the defects found so far."""

    file: str
    value: Any = None
    locations: dict[Key, SourceLocation] = field(default_factory=dict)
    defects: list[LocatedDefect] = field(default_factory=list)
    unreadable: set[Key] = field(default_factory=set)
    bases: list[str] = field(default_factory=list)
    """The files that it extends, the nearest first."""

    def location(self, key: Key) -> SourceLocation:
        """Returns the place of the value; for a missing one, the start of the section around it."""
        while key and key not in self.locations:
            key = key[:-1]
        return self.locations.get(key, SourceLocation(1))

    def add(self, key: Key, problem: str, suggestion: str = "") -> None:
        """Adds a defect of the value at `key`."""
        self.report(Defect(key, problem, suggestion))

    def report(self, *defects: Defect) -> None:
        """Adds defects with whole keys; an unreadable value has its defect already."""
        self.defects += [
            LocatedDefect(self.location(defect.key), defect)
            for defect in defects
            if defect.key not in self.unreadable
        ]

    def lines(self) -> list[str]:
        """Returns all defects in the file's order, then those of its bases, those of the command line last.

        What is missing because its name is misspelt is told once, where that is.
        """
        order = {file: number for number, file in enumerate(["", *self.bases])}
        misspelt = {(*found.defect.key[:-1], found.defect.meant) for found in self.defects}
        ordered = sorted(
            (
                found
                for found in self.defects
                if found.defect.problem != MISSING_KEY or found.defect.key not in misspelt
            ),
            key=lambda found: (
                found.location.override is not None,
                order.get(found.location.file, len(order)),
                found.location.line,
            ),
        )
        return list(dict.fromkeys(found.render(self.file) for found in ordered))

    def raise_any(self) -> None:
        """Raises one ConfigError with all defects, if there are any."""
        if self.defects:
            raise ConfigError(*self.lines())


def is_object(value: object) -> bool:
    """Whether it is none of the values that YAML has, but an object that Python passes, such as a plug-in."""
    return not isinstance(value, str | int | float | None | dict | list)


def shown_key(key: Key) -> str:
    """Returns a key that a user has typed in dotted form, with its words shortened."""
    return key_text(tuple(part if isinstance(part, int) else shortened(part) for part in key))


def read(path: str | Path) -> Document:
    """Returns the values of a YAML file; raises ConfigError when it cannot be read at all.

    `path` may also be the name of a configuration that is shipped, such as `quickstart`.
    """
    path = config_path(path)
    document = Document(str(path))
    try:
        node = _compose(_text(path))
        if not isinstance(node, yaml.MappingNode):
            given = "the file is empty" if node.tag == _TAG + "null" else "this is not a mapping"
            raise _Unreadable(_line(node), f"{given}; a configuration has lines such as 'seed: 1'")
        document.value = _Builder(document).value(node, ())
    except _Unreadable as error:
        raise ConfigError(f"{path}:{error.line}: {error.what}") from error
    return document


def read_value(text: str, document: Document, key: Key) -> Any:
    """Returns the value of an override `key=text`; its defects and places go to `document`."""
    try:
        node = _compose(text)
        return _Builder(document, override=key).value(node, key)
    except _Unreadable as error:
        document.locations[key] = SourceLocation(0, key)
        document.add(key, error.what)
        document.unreadable.add(key)
        return None


def dump(values: dict[str, Any]) -> str:
    """Returns YAML text from which `read` returns the same values."""
    return yaml.dump(values, Dumper=Dumper, sort_keys=False, width=110)


class _Unreadable(Exception):
    """The text has no values at all."""

    def __init__(self, line: int, what: str) -> None:
        super().__init__(what)
        self.line = line
        self.what = what


def _instead(path: str, error: OSError) -> str:
    """Returns the remedy for a path that cannot be opened."""
    if "=" in path and not Path(path).exists():
        return "; the configuration comes first, then what it changes"
    return (near_config(path) if isinstance(error, FileNotFoundError) else "") or near_file(path)


def _text(path: str | Path) -> str:
    try:
        with Path(path).open("rb") as file:
            content = file.read(MOST_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}{_instead(str(path), error)}") from error
    if len(content) > MOST_BYTES:
        raise ConfigError(f"{path}: too large for a configuration; at most {MOST_BYTES} bytes are read")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = 1 + content.count(b"\n", 0, error.start)
        raise _Unreadable(
            line, f"not UTF-8 text (byte 0x{content[error.start]:02x}); save it as UTF-8"
        ) from error


def _compose(text: str) -> yaml.Node:
    loader = None
    try:
        loader = _Loader(text)
        node: yaml.Node | None = loader.get_single_node()
    except yaml.reader.ReaderError as error:
        line = 1 + text.count("\n", 0, error.position)
        raise _Unreadable(
            line, f"character {int(error.character):#06x} is not allowed in YAML; remove it"
        ) from error
    except yaml.MarkedYAMLError as error:
        what, mark = _syntax(error)
        line = mark.line + 1 if mark else 1
        # The parser notices only later that a colon has no blank after it.
        for number in (line, line - 1):
            _check_blanks(text.splitlines()[number - 1 : number], number)
        raise _Unreadable(line, what) from error
    except (ValueError, OverflowError) as error:  # the number of a character that does not exist
        what = "not valid YAML: \\U is followed by a character's number, at most 0010FFFF"
        raise _Unreadable(loader.line + 1 if loader else 1, what) from error
    return node or yaml.ScalarNode(_TAG + "null", "", _START, _START)


def _check_blanks(texts: Iterable[str], line: int) -> None:
    """Raises _Unreadable where texts that have no quotes have an invisible character."""
    for text in texts:
        if found := _INVISIBLE.search(text):
            what = f"an invisible character, U+{ord(found[0]):04X}, instead of a blank"
            raise _Unreadable(line, f"{what}; type a blank, or put text that needs it in quotes")


_REMEDIES = (
    ("end of stream", "a quote that begins here has no end", True),
    ("could not find expected ':'", "write 'key: value', with a blank after the colon", True),
    ("mapping values are not allowed", "one 'key: value' per line; put text with a colon in quotes", False),
    ("<block end>", "the entries of one section begin in the same column", False),
    ("expected ',' or", "close what is open with } or ], and put commas between its entries", False),
    ("cannot start any token", "put text that begins with it in quotes", False),
    ("undefined alias", "put text that begins with * in quotes", False),
    ("found unknown escape", "write \\\\ for a backslash, or use single quotes", False),
    ("alphabetic or numeric character", "put text that begins with &, * or % in quotes", False),
    ("document start", "a configuration has lines such as 'seed: 1'", False),
    ("node content", "write a value, or null", False),
)
"""The text of a parser's error, the remedy, and whether the defect is where the parser was before."""
_START = yaml.Mark("", 0, 0, 0, "", 0)


def _syntax(error: yaml.MarkedYAMLError) -> tuple[str, yaml.Mark | None]:
    """Returns the defect with its remedy, and its place."""
    problem, mark = error.problem or "incomplete", error.problem_mark or error.context_mark
    if "'\\t'" in problem:
        return "a tab; YAML is indented with spaces", mark
    if "expected a single document" in (error.context or ""):
        return "a second document begins; a configuration is one document", mark
    if problem.startswith("nested"):
        return problem, mark
    for words, remedy, from_context in _REMEDIES:
        if words in problem:
            # The parser notices an open bracket or quote, or a missing colon, only lines after it.
            return f"not valid YAML: {problem}; {remedy}", (from_context and error.context_mark) or mark
    return f"not valid YAML: {problem}", mark


def _line(node: yaml.Node) -> int:
    return int(node.start_mark.line) + 1


@dataclass
class _Builder:
    """Turns nodes into plain values; adds places and defects to the document."""

    document: Document
    override: Key | None = None
    values: int = 0

    def value(self, node: yaml.Node, key: Key, line: int = 0) -> Any:
        """Returns the plain value of a node that was written at `line` (default: the start of the node)."""
        self.values += 1
        if self.values > MOST_VALUES:
            raise _Unreadable(_line(node), f"aliases make this too large; at most {MOST_VALUES} values")
        if len(key) > MOST_DEPTH:
            raise _Unreadable(_line(node), f"nested deeper than {MOST_DEPTH} levels")
        self.document.locations[key] = SourceLocation(line or _line(node), self.override)
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, key)
        if isinstance(node, yaml.SequenceNode):
            return [self.value(item, (*key, index)) for index, item in enumerate(node.value)]
        return self._scalar(node, key)

    def _mapping(self, node: yaml.MappingNode, key: Key) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for name_node, node_of_value in node.value:
            name = self._name(name_node, key)
            if name is None:
                continue
            place = SourceLocation(_line(name_node), self.override)
            if name in found:
                first = self.document.locations[(*key, name)].line
                what = "this key appears twice" + ("" if self.override else f"; the first is in line {first}")
                self.document.defects.append(LocatedDefect(place, Defect((*key, name), what)))
            else:
                found[name] = self.value(node_of_value, (*key, name), place.line)
        return found

    def _name(self, node: yaml.Node, key: Key) -> str | None:
        if isinstance(node, yaml.ScalarNode) and node.style is None:
            _check_blanks([node.value], _line(node))
        what = f"the key {str(node.value)[:40]} is not text; put it in quotes"
        if not isinstance(node, yaml.ScalarNode):
            what = "a key is a string, not a list or a mapping"
        elif node.tag == _TAG + "str" and node.value != "<<" and _is_text(node.value):
            return str(node.value)
        elif node.value == "<<":
            what = "merge keys (<<) are not read; write the keys out, or use an alias for a whole section"
        place = SourceLocation(_line(node), self.override)
        self.document.defects.append(LocatedDefect(place, Defect(key, what)))
        return None

    def _scalar(self, node: yaml.Node, key: Key) -> Any:
        if isinstance(node, yaml.ScalarNode) and node.style is None:
            _check_blanks([node.value], _line(node))
        try:
            return _convert(node.tag.removeprefix(_TAG), node.value)
        except ValueError as error:
            self.document.add(key, str(error))
            self.document.unreadable.add(key)
            return None


def _convert(kind: str, text: str) -> Any:
    if kind == "str":
        if not _is_text(text):
            raise ValueError(
                "this text has a character that is not allowed (null, or half of a surrogate pair)"
            )
        return text
    if kind == "null":
        return None
    if kind == "bool":
        return text.lower() == "true"
    if kind in ("int", "float"):
        return _number(kind, text)
    raise ValueError(f"the tag '{kind}' is not read; write a plain value")


def _number(kind: str, text: str) -> int | float:
    short = shortened(text)
    if text.lstrip("+-").lower() in (".inf", ".nan"):
        raise ValueError(f"{text} is not a finite number")
    try:
        # Numbers with more digits are out of range, and the time to convert them is quadratic.
        number = int(text[:100], _BASES.get(text[:2], 10)) if kind == "int" else float(text)
    except ValueError:
        raise ValueError(f"'{short}' is not a number") from None
    if isinstance(number, float) and not math.isfinite(number):
        raise ValueError(f"{short} is not a finite number")
    if isinstance(number, int) and number.bit_length() > MOST_BITS:
        raise ValueError(f"{short} is too large; whole numbers have at most {MOST_BITS} bits")
    return number


def _is_text(text: str) -> bool:
    return "\0" not in text and not any("\ud800" <= letter <= "\udfff" for letter in text)
