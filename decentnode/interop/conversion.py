"""A configuration of ours that is made from an INI file, entry by entry.

Every value has the line of its entry, so that the errors of our loader name the INI file and that line.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from textwrap import shorten
from typing import Any

from decentnode.config.yaml_source import Document, LocatedDefect, SourceLocation
from decentnode.core.registry import guess
from decentnode.core.text import quoted
from decentnode.errors import Defect, Key
from decentnode.interop.decentralizepy_keys import KEYS
from decentnode.interop.ini_file import IniEntry, IniFile

OWN = "decentralizepy"
PAGE = f"docs/from_{OWN}.md"
MOST_NAMES = 160
"""Letters of a list of names in a line."""
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_.-]+")


@dataclass
class Conversion:
    """The document made so far, and what has no counterpart or another meaning in it."""

    ini: IniFile
    replaced: Sequence[str] = ()
    """Keys of ours that overrides set: no defect if nothing fits them."""
    document: Document = field(init=False)
    missing: list[str] = field(default_factory=list)
    """One line for each key without a counterpart."""
    missing_keys: list[str] = field(default_factory=list)
    """The names of these keys with their lines, for a summary."""
    notes: list[str] = field(default_factory=list)
    """One line for each key whose counterpart is not quite the same."""
    paths: dict[Key, Path] = field(default_factory=dict)
    """Relative paths that exist, resolved, by the keys that name them."""

    def __post_init__(self) -> None:
        name = _NOT_IN_NAMES.sub("_", self.ini.path.stem)[:100] or "imported"
        self.document = Document(str(self.ini.path), {"name": name})

    def section(self, name: str) -> dict[str, IniEntry]:
        """Returns the entries of a section by key."""
        return self.ini.sections.get(name, {})

    def replaces(self, key: str) -> bool:
        """Whether an override sets this section or its name."""
        return key in self.replaced or f"{key}.name" in self.replaced

    def put(self, key: Key, value: Any, location: SourceLocation) -> None:
        """Sets a value; creates the containers around it. A list grows by its next entry alone."""
        container: Any = self.document.value
        for index, part in enumerate(key[:-1]):
            empty: Any = [] if isinstance(key[index + 1], int) else {}
            if isinstance(container, dict):
                container.setdefault(part, empty)
            elif part == len(container):
                container.append(empty)
            container = container[part]
        container[key[-1]] = value
        self.document.locations[key] = location

    def set(self, entry: IniEntry, *key: str | int, value: Any = None) -> None:
        """Sets a value because of an entry; default: the entry's own value."""
        self.put(key, entry.value if value is None else value, SourceLocation(entry.line))

    def is_true(self, section: Mapping[str, IniEntry], key: str) -> bool:
        """Whether a section has this key with a true value; another text than of a boolean is a defect."""
        if key not in section:
            return False
        entry = section[key]
        if entry.truth is None:
            self.report(
                entry.line, Defect((entry.section, key), f"must be True or False, not {quoted(entry.text)}")
            )
        return bool(entry.truth)

    def set_argument(self, value: Any, *key: str | int) -> None:
        """Sets a value of the command line, if it was given."""
        if value is not None:
            self.put(key, value, SourceLocation(0, key))

    def report(self, line: int, defect: Defect) -> None:
        """Adds a defect of the INI file."""
        self.document.defects.append(LocatedDefect(SourceLocation(line), defect))

    def miss(self, entry: IniEntry, reason: str = "") -> None:
        """Records a key without a counterpart; default: the reason of the table."""
        reason = reason or f"no equivalent, because {KEYS[entry.section][entry.key].reason}"
        self.missing.append(f"{self._quoted(entry)}: {reason}")
        self.missing_keys.append(f"{entry.section}.{entry.key} (line {entry.line})")

    def miss_those_of_the_table(self, section: str) -> None:
        """Records all keys of a section that never have a counterpart."""
        for entry in self.section(section).values():
            if entry.key in KEYS[section] and not KEYS[section][entry.key].yaml:
                self.miss(entry)

    def note(self, entry: IniEntry, what: str) -> None:
        """Records that the counterpart of a key is not quite the same."""
        self.notes.append(f"{self._quoted(entry)}: {what}")

    def _quoted(self, entry: IniEntry) -> str:
        return f"{self.ini.path.name}:{entry.line} {entry}"

    def class_of(self, entries: Mapping[str, IniEntry], kind: str, known: Sequence[str], key: str) -> str:
        """Returns the class of decentralizepy that an entry names, or `module:Class` of another package.

        Empty if it has no counterpart among `known`, which is a defect unless an override replaces our `key`.
        """
        named = entries.get(f"{kind}_class")
        package = entries.get("dataset_package" if kind == "model" else f"{kind}_package")
        if named is None or self.replaces(key):
            return ""
        if package is not None and not is_decentralizepy(package):
            self.note(named, f"a class of your own, whose interface differs here ({PAGE})")
            return f"{package.text}:{named.text}"
        if named.text in known:
            return named.text
        names = shorten(", ".join(known), MOST_NAMES, placeholder=" ...")
        hint = guess(named.text, list(known)) or f" (those with one: {names})"
        remedy = f"name another plug-in, such as {key}=NAME or {key}=module:Class"
        what = f"no counterpart of {quoted(named.text)}{hint}"
        self.report(named.line, Defect((named.section, named.key), what, remedy))
        return ""

    def resolve(self, key: Key) -> None:
        """Makes a relative path absolute if it exists, beside the file or in the current folder.

        A path of the command line starts at the current folder.
        """
        container: Any = self.document.value
        for part in key[:-1]:
            container = container[part]
        path, folders = Path(str(container[key[-1]])), [Path.cwd()]
        if self.document.location(key).override is None:
            folders.insert(0, self.ini.path.parent)
        found = next((folder / path for folder in folders if (folder / path).exists()), None)
        if found is not None and not path.is_absolute():
            self.paths[key] = found.resolve()
            container[key[-1]] = str(found.resolve())


def is_decentralizepy(package_entries: IniEntry) -> bool:
    """Whether a package is part of decentralizepy."""
    return package_entries.text.partition(".")[0] == OWN
