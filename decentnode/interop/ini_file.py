"""INI files as decentralizepy reads them, with the line of every entry."""

import ast
import configparser
import math
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from decentnode.config.yaml_source import MOST_BITS, MOST_BYTES
from decentnode.core.registry import near_file
from decentnode.core.text import printable, quoted
from decentnode.errors import ConfigError

_SECTION = re.compile(r"\[(?P<name>.+)\]")
_ENTRY = re.compile(r"(?P<key>[^\s=:#;\[][^=:]*?)\s*[=:]")
_INDENTED = re.compile(r"^[ \t]+(?=[A-Za-z_]\w*[ \t]*[=:])", re.MULTILINE)
"""Blanks before a key, as an editor or a template indents a section."""
_WORDS = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False, "none": None}


@dataclass(frozen=True)
class IniEntry:
    """One line `key = text` of a section."""

    section: str
    key: str
    text: str
    line: int

    @property
    def value(self) -> Any:
        """The text as the Python value that it is written as; plain text where it is none."""
        if self.text.lower() in _WORDS:
            return _WORDS[self.text.lower()]
        try:
            found = ast.literal_eval(self.text)
        except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
            return self.text
        return _plain(found) if _is_plain(found) else self.text

    @property
    def truth(self) -> bool | None:
        """Whether decentralizepy takes the value as true, a number as Python does; None: it is no boolean."""
        value = self.value
        return bool(value) if value is None or isinstance(value, int | float) else None

    def __str__(self) -> str:
        return printable(f"{self.section}.{self.key} = {self.text}")


@dataclass
class IniFile:
    """The entries of a file that are not empty, by section and key."""

    path: Path
    sections: dict[str, dict[str, IniEntry]] = field(default_factory=dict)
    lines: dict[str, int] = field(default_factory=dict)
    """The line of each section's head."""


def read(path: Path) -> IniFile:
    """Returns the entries of an INI file; raises ConfigError with the line of what is none.

    Unlike in decentralizepy, a comment may stand behind a value, and a key may be indented: there the one
    would be part of the value, and the other part of the value before.
    """
    text = _INDENTED.sub("", _text(path))
    parser = configparser.RawConfigParser(interpolation=None, inline_comment_prefixes=("#", ";"))
    try:
        parser.read_string(text)
    except configparser.MissingSectionHeaderError as error:
        what = "no INI file: the first line is a section, such as [DATASET]"
        raise ConfigError(f"{path}:{error.lineno}: {what}, not {quoted(error.line.strip())}") from error
    except configparser.ParsingError as error:
        line = error.errors[0][0]
        given = quoted(text.split("\n")[line - 1].strip())
        raise ConfigError(f"{path}:{line}: an entry is 'key = value', not {given}") from error
    except (configparser.DuplicateSectionError, configparser.DuplicateOptionError) as error:
        twice = getattr(error, "option", "") or f"[{error.section}]"
        raise ConfigError(f"{path}:{error.lineno}: {quoted(twice)} appears twice; remove one") from error
    return _with_lines(path, text, parser)


def _with_lines(path: Path, text: str, parser: configparser.RawConfigParser) -> IniFile:
    found, section = IniFile(path), ""
    for number, line in enumerate(text.split("\n"), 1):
        head, entry = _SECTION.match(line), _ENTRY.match(line)
        if head:
            section = head["name"]
            found.lines[section] = number
            found.sections[section] = {}
        elif entry and section and (key := entry["key"].lower()) in parser[section]:
            # A value may continue in indented lines.
            value = " ".join(part.strip() for part in parser[section][key].split("\n")).strip()
            if value:
                found.sections[section][key] = IniEntry(section, key, value, line=number)
    return found


def _text(path: Path) -> str:
    try:
        with path.open("rb") as file:
            content = file.read(MOST_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}{near_file(str(path))}") from error
    if len(content) > MOST_BYTES:
        raise ConfigError(f"{path}: too large for a configuration; at most {MOST_BYTES} bytes are read")
    if b"\0" in content:
        line = 1 + content.count(b"\n", 0, content.index(b"\0"))
        raise ConfigError(f"{path}:{line}: no text (a null byte); name the INI file")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = 1 + content.count(b"\n", 0, error.start)
        raise ConfigError(f"{path}:{line}: not UTF-8 text; save it as UTF-8") from error


def _is_plain(value: object) -> bool:
    """Whether YAML can express the value."""
    if isinstance(value, list | tuple):
        return all(map(_is_plain, value))
    if isinstance(value, float):
        return math.isfinite(value)
    return isinstance(value, bool | str) or (isinstance(value, int) and value.bit_length() <= MOST_BITS)


def _plain(value: Any) -> Any:
    return list(map(_plain, value)) if isinstance(value, list | tuple) else value
