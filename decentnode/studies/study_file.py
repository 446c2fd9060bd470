"""A study's file: a base configuration, and what changes from run to run (docs/studies.md)."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator

from decentnode.config import overrides as command_line
from decentnode.config import yaml_source
from decentnode.config.extends import ConfigSource
from decentnode.config.overrides import Override
from decentnode.config.paths import expanded
from decentnode.config.plugin import Plugin
from decentnode.config.plugin_parser import PluginParser
from decentnode.config.sections import SECTIONS
from decentnode.config.settings import check_name
from decentnode.config.type_check import REQUIRED, parameters_of, show, unknown
from decentnode.config.yaml_source import Document
from decentnode.core.registry import EXECUTORS, nearest
from decentnode.errors import ConfigError, Key
from decentnode.options import NonNegative, Positive
from decentnode.studies.axes import Change, Level, PlannedVariant, StudyAxis, combine, label_of, spread_out

Name = Annotated[str, AfterValidator(check_name)]
_LABEL = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]{0,59}")
_NUMBER = int | float
CONFIGURATION = {"graph", "model", "training"}
"""Keys that every configuration has and no study."""
BELOW_SET = set(SECTIONS) - {"name", "seed", "run_dir", "extends"}
"""Keys of a configuration that stand below `set` in a study."""
RANGE: dict[str, tuple[Any, Any]] = {
    "from": (_NUMBER, REQUIRED), "to": (_NUMBER, REQUIRED), "step": (_NUMBER | None, None),
    "count": (Positive | None, None), "log": (bool, False),
}  # fmt: skip
MOST_RUNS = 100_000
"""Runs of one study, at most; more are a mistake."""
TAKEN = {"study.yaml", "report.html", "lock"}
"""Names in the directory of a study that a variant cannot have."""
KINDS = (
    "must be a list of values, a range {from: 1, to: 9, step: 2}, or named variants "
    "{name: {key: value}}, not {shown}"
)


@dataclass(frozen=True, kw_only=True)
class StudyKeys:
    """The keys of a study's file."""

    base: Path
    """The configuration that all runs start from; relative to the study's file."""
    name: Name | None = None
    """The name of the study; None: that of the file."""
    set: dict[str, Any] = field(default_factory=dict)
    """Values of the configuration that are different in all runs, by dotted key."""
    axes: dict[str, Any] = field(default_factory=dict)
    """The differences of variants: a key with values or a range, or a name with variants."""
    zip: list[list[str]] = field(default_factory=list)
    """Axes that go together; all others are crossed."""
    seeds: Positive | list[NonNegative] = 1
    """A number N (0 to N - 1), or a list."""
    exclude: list[dict[str, Any]] = field(default_factory=list)
    """Combinations that are left out: one value, or several, of each axis named."""
    jobs: Literal["auto"] | Positive = "auto"
    """Runs at a time; auto: as many as processors and memory carry."""
    on: Any = "local"
    """The executor that starts the runs, by its name, or as a mapping with its options."""
    out: str | None = None
    """The directory of all runs; None: runs/NAME."""
    target: float | None = None
    """The value of the headline metric that costs are counted up to, as `decentnode compare --target`."""


@dataclass(frozen=True)
class PlannedStudy:
    """A study, read and checked, but for the settings of its runs."""

    name: str
    base: Path
    changes: tuple[Change, ...]
    """The changes of all runs."""
    axes: tuple[StudyAxis, ...]
    variants: tuple[PlannedVariant, ...]
    """All combinations that are not excluded."""
    seeds: tuple[int, ...]
    jobs: Literal["auto"] | int
    on: Plugin
    """What starts the runs."""
    out: Path
    target: float | None
    document: Document

    @property
    def copy(self) -> str:
        """The file as YAML that means the same wherever it is, and wherever the runs are started."""
        moved = {"name": self.name, "base": str(self.base), "out": str(self.out)}
        kept = {k: v for k, v in self.document.value.items() if k not in (*moved, "on")}
        return yaml_source.dump({**moved, **kept})


def read_study(source: ConfigSource, overrides: Sequence[Override] = ()) -> PlannedStudy:
    """The study in a file; raises one ConfigError with every defect. `overrides`: as `seeds=3`."""
    document = source() if callable(source) else yaml_source.read(source)
    if "base" not in document.value and CONFIGURATION & document.value.keys():
        raise ConfigError(
            f"{document.file}:1: this is a configuration; a study names it (base: {Path(document.file).name})"
        )
    for override in overrides:
        _apply(document, override)
    folder = Path(document.file).resolve().parent
    return _StudyParser(PluginParser(document, folder)).read()


def _apply(document: Document, override: Override) -> None:
    """Applies an override; `set.KEY` is one entry of `set`, whatever dots the key has."""
    if not isinstance(override, str):
        command_line.apply(document, override)
        return
    name, sign, text = override.partition("=")
    section = document.value.setdefault("set", {}) if name.startswith("set.") else None
    if sign and isinstance(section, dict):
        key = name.removeprefix("set.")
        section[key] = yaml_source.read_value(text, document, ("set", key))
    else:
        command_line.apply(document, override)


@dataclass
class _StudyParser:
    parser: PluginParser

    @property
    def document(self) -> Document:
        return self.parser.document

    def read(self) -> PlannedStudy:
        parameters = parameters_of(StudyKeys)
        content = {name: value for name, value in self.document.value.items() if value is not None}
        for name in content.keys() & BELOW_SET:
            why = f"a key of the configuration; a study changes it below set (command line: set.{name}=...)"
            self.document.add((name,), why)
            del content[name]
        parsed = self.parser.options((), content, parameters, what="key", known=list(parameters))
        self.document.raise_any()
        assert parsed is not None, "otherwise there was a defect"
        executor = self.parser.plugin(("on",), EXECUTORS, "local")
        keys = StudyKeys(**parsed)
        name = keys.name or Path(self.document.file).stem
        if not keys.name:
            try:
                check_name(name)
            except ValueError as error:
                what = f"the name of the file is that of the study, and {error}; add name: ..."
                self.document.add((), what)
        axes = tuple(axis for name in keys.axes if (axis := self._axis(name, keys.axes[name])))
        self._check_changes(keys, axes)
        self._check_zip(keys, axes)
        self._check_size(keys, axes)
        self.document.raise_any()
        variants = combine(axes, keys.zip)
        variants = self._without(variants, {axis.name: axis for axis in axes}, keys.exclude)
        seeds = tuple(range(keys.seeds)) if isinstance(keys.seeds, int) else tuple(keys.seeds)
        if not seeds or len(set(seeds)) < len(seeds):
            self.document.add(("seeds",), "must be different whole numbers, one or more")
        self._check_names(variants)
        self.document.raise_any()
        changes = tuple(self._change(("set", key), key, value) for key, value in keys.set.items())
        out = self._out(keys.out or f"runs/{name}")
        self.document.raise_any()
        assert executor is not None, "otherwise there was a defect"
        return PlannedStudy(
            name=name,
            base=keys.base,
            changes=changes,
            axes=axes,
            variants=tuple(variants),
            seeds=seeds,
            jobs=keys.jobs,
            on=executor,
            out=out,
            target=keys.target,
            document=self.document,
        )

    def _out(self, text: str) -> Path:
        """The directory of all runs; it need not exist, but nothing else may be in its place."""
        try:
            out = expanded(text).absolute()
        except ValueError as error:
            self.document.add(("out",), f"no usable path: {show(text)}: {error}")
            return Path(text)
        taken = next((path for path in (out, *out.parents) if path.is_file()), None)
        if taken:
            self.document.add(("out",), f"{taken} is a file; name a directory (out=...)")
        return out

    # Axes.

    def _axis(self, name: str, value: Any) -> StudyAxis | None:
        key: Key = ("axes", name)
        if isinstance(value, dict) and _is_range(value):
            values = self._range(key, value)
            levels = [self._level(label_of(name, level), {name: level}, key) for level in values]
        elif isinstance(value, dict) and value and all(isinstance(level, dict) for level in value.values()):
            levels = [self._level(label, changes, (*key, label)) for label, changes in value.items()]
        elif isinstance(value, list) and value:
            levels = [
                self._level(label_of(name, item), {name: item}, (*key, i)) for i, item in enumerate(value)
            ]
        elif isinstance(value, dict) and any(isinstance(level, dict) for level in value.values()):
            for label, changes in value.items():
                if not isinstance(changes, dict):
                    shown = show(changes)
                    why = f"a named variant is a mapping from keys to values, {{}} for none, not {shown}"
                    self.document.add((*key, label), why)
            return None
        else:
            self.document.add(key, KINDS.replace("{shown}", "an empty one" if value == [] else show(value)))
            return None
        labels = [level.label for level in levels]
        for label in dict.fromkeys(label for label in labels if labels.count(label) > 1):
            self.document.add(key, f"two values have the label '{label}'; make them named variants")
        return StudyAxis(name, tuple(levels)) if levels else None

    def _range(self, key: Key, section: dict[str, Any]) -> list[float]:
        parsed = self.parser.options(key, section, RANGE, what="key", known=list(RANGE))
        if parsed is None:
            return []
        try:
            return spread_out(
                parsed["from"], parsed["to"], parsed["step"], count=parsed["count"], log=parsed["log"]
            )
        except ValueError as error:
            self.document.add(key, str(error))
            return []

    def _level(self, label: str, changes: dict[str, Any], place: Key) -> Level:
        if not _LABEL.fullmatch(label):
            defect = "a label is made of letters, digits, '_', '-', '+' and '.', at most 60"
            self.document.add(place, defect)
        is_named = len(place) > 2 and isinstance(place[2], str)
        place_of = {key: (*place, key) if is_named else place for key in changes}
        return Level(label, tuple(self._change(place_of[key], key, value) for key, value in changes.items()))

    def _change(self, place: Key, key: str, value: Any) -> Change:
        return Change(key, value, replace(self.document.location(place), file=self.document.file))

    def _check_changes(self, keys: StudyKeys, axes: Sequence[StudyAxis]) -> None:
        """Refuses keys that are changed twice in a run, or that the sweep itself sets."""
        users: dict[str, str] = {}
        for axis in axes:
            changed = {change.key for level in axis.levels for change in level.changes}
            for key in sorted(changed & users.keys()):
                self.document.add(("axes", axis.name), f"{key} is changed by the axis '{users[key]}', too")
            for key, lost in sorted(
                (key, user) for key in changed for user in users if user.startswith(f"{key}.")
            ):
                defect = f"{key} replaces {lost} of the axis '{users[lost]}'; put this axis before that one"
                self.document.add(("axes", axis.name), defect)
            users |= dict.fromkeys(changed, axis.name)
        places = {**{key: ("set", key) for key in keys.set}, **{key: ("axes", users[key]) for key in users}}
        for key, instead in (("seed", "seeds: [...]"), ("run_dir", "out: ..."), ("name", "name: ...")):
            if key in places:
                self.document.add(places[key], f"the sweep sets {key}; use {instead} of the study")

    def _check_zip(self, keys: StudyKeys, axes: Sequence[StudyAxis]) -> None:
        by_name, seen = {axis.name: axis for axis in axes}, set[str]()
        for index, group in enumerate(keys.zip):
            place: Key = ("zip", index)
            for name in group:
                if name not in keys.axes:
                    self.document.add(place, unknown(f"axis '{name}'", name, list(keys.axes)))
                elif name in seen:
                    self.document.add(place, f"the axis '{name}' is zipped twice")
                seen.add(name)
            sizes = {name: len(by_name[name].levels) for name in group if name in by_name}
            if len(set(sizes.values())) > 1:
                counts = ", ".join(f"{name} has {size}" for name, size in sizes.items())
                self.document.add(place, f"axes that go together have equally many values; {counts}")

    def _check_size(self, keys: StudyKeys, axes: Sequence[StudyAxis]) -> None:
        """Refuses studies so large that even listing their runs takes long."""
        together = {name for group in keys.zip for name in group[1:]}
        runs = keys.seeds if isinstance(keys.seeds, int) else len(keys.seeds)
        for axis in axes:
            runs *= 1 if axis.name in together else len(axis.levels)
        if runs > MOST_RUNS:
            place = ("seeds",) if isinstance(keys.seeds, int) and keys.seeds > MOST_RUNS else ("axes",)
            self.document.add(place, f"{runs:,} runs before exclude; a study has at most {MOST_RUNS:,}")

    # Variants.

    def _without(
        self, variants: list[PlannedVariant], axes: dict[str, StudyAxis], conditions: Sequence[dict[str, Any]]
    ) -> list[PlannedVariant]:
        """The variants without those that a condition leaves out."""
        for index, condition in enumerate(conditions):
            chosen = dict(self._chosen(("exclude", index), axes, condition))
            variants = [
                variant
                for variant in variants
                if not chosen or not all(variant.levels[name].label in chosen[name] for name in chosen)
            ]
        if not variants and not self.document.defects:
            self.document.add(("exclude",), "leaves no combination")
        return variants

    def _chosen(
        self, key: Key, axes: dict[str, StudyAxis], condition: dict[str, Any]
    ) -> Iterator[tuple[str, set[str]]]:
        """The labels that a condition means, by axis."""
        if not condition:
            self.document.add(key, "names no axis; write a condition such as {rounds: 5}, or leave it out")
        for name, wanted in condition.items():
            if name not in axes:
                defect = unknown("axis", name, list(axes)) if axes else "the study has no axes"
                self.document.add((*key, name), defect)
                continue
            if wanted == []:
                self.document.add((*key, name), "an empty list; name a value of the axis, or several")
            axis, labels = axes[name], set()
            # A list may be one value of the axis, or several.
            whole = axis.find(wanted)
            for value in [wanted] if whole or not isinstance(wanted, list) else wanted:
                if level := axis.find(value):
                    labels.add(level.label)
                    continue
                known = [level.label for level in axis.levels]
                self.document.add((*key, name), unknown(f"value {show(value)}", str(value), known))
            yield name, labels

    def _check_names(self, variants: Sequence[PlannedVariant]) -> None:
        names = [variant.name for variant in variants]
        for name in dict.fromkeys(name for name in names if names.count(name) > 1):
            self.document.add(("axes",), f"two variants are named '{name}'; make named variants of an axis")
        by_case: dict[str, str] = {}
        for name in dict.fromkeys(names):
            if name in TAKEN:
                self.document.add(
                    ("axes",), f"a variant cannot be named '{name}'; the sweep writes that file"
                )
            if (other := by_case.setdefault(name.lower(), name)) != name:
                defect = f"the variants '{other}' and '{name}' differ in case alone, which some disks ignore"
                self.document.add(("axes",), defect)
        if names and len(max(names, key=len)) > 200:
            self.document.add(("axes",), "names of variants are too long for a directory; use named variants")


def _is_range(section: dict[str, Any]) -> bool:
    """Whether a mapping is meant as a range: it has keys of one, or misspelt ones, and no named variants."""
    is_named = any(isinstance(value, dict) for value in section.values())
    return any(nearest(key, RANGE) for key in section) and not is_named
