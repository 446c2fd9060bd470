"""A study as a list of runs, each with its settings; nothing has started yet."""

import copy
import json
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from decentnode.config import extends
from decentnode.config import loader as config
from decentnode.config import overrides as command_line
from decentnode.config.error_locations import plugin_errors_as_bad_input
from decentnode.config.settings import Settings
from decentnode.config.yaml_source import Document, LocatedDefect, SourceLocation
from decentnode.errors import BadInput, ConfigError, Defect
from decentnode.studies.axes import Change, PlannedVariant
from decentnode.studies.study_file import PlannedStudy

MOST_SHOWN = 20
"""Defects that an error lists."""
MOST_NAMED = 2
LONGEST_NAME = 100


@dataclass(frozen=True)
class PlannedRun:
    """One variant with one seed."""

    variant: PlannedVariant
    seed: int
    settings: Settings
    base: Path
    """The configuration that its settings are from."""

    @property
    def name(self) -> str:
        """The name of the run: its directory in that of the study."""
        return f"{self.variant.name}/seed-{self.seed}"

    @property
    def directory(self) -> Path:
        """The run directory."""
        assert self.settings.run_dir is not None, "every planned run has one"
        return Path(self.settings.run_dir)


def planned_runs(study: PlannedStudy) -> list[PlannedRun]:
    """All runs, seed by seed, so that early results compare all variants; raises BadInput."""
    base = extends.read(study.base)
    if "base" in base.value:
        raise _wrong(study, "base", f"{study.base} is a study, too; name a configuration")
    settings_of: dict[str, Settings] = {}
    defects: dict[str, list[str]] = {}
    for variant in study.variants:
        document = _document(base, (*study.changes, *variant.changes))
        try:
            with plugin_errors_as_bad_input():
                settings_of[variant.name] = config.understand(document)
        except BadInput as error:
            for line in error.lines:
                defects.setdefault(line, []).append(variant.name)
    if defects:
        raise ConfigError(*_with_variants(defects, len(study.variants)))
    _check_different(study, settings_of)
    _check_one_machine(study, settings_of)
    return [
        _planned(study, variant, seed, settings=settings_of[variant.name])
        for seed in study.seeds
        for variant in study.variants
    ]


def _planned(study: PlannedStudy, variant: PlannedVariant, seed: int, settings: Settings) -> PlannedRun:
    directory = study.out / variant.name / f"seed-{seed}"
    name = f"{study.name}-{variant.name}"[: LONGEST_NAME - 20] + f"-{seed}"
    own_settings = replace(settings, seed=seed, run_dir=str(directory), name=name)
    return PlannedRun(variant, seed, own_settings, base=study.base)


def _document(base_document: Document, changes: Iterable[Change]) -> Document:
    """The base with these changes; each run draws figures of its own only where one of them says so."""
    document = copy.deepcopy(base_document)
    for change in changes:
        command_line.put(document, change.key, change.value, source=change.source)
    section = document.value.get("evaluation", {})
    if isinstance(section, dict | None) and "figures" not in (section or {}):
        command_line.put(document, "evaluation.figures", False, source=SourceLocation(1))
    return document


def _with_variants(defects: dict[str, list[str]], variants: int) -> list[str]:
    """The lines, each with the variants that have the defect, unless all have it."""
    lines = []
    for line, names in defects.items():
        if len(names) < variants:
            more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
            plural = "s" if len(names) > 1 else ""
            line += f" (variant{plural} {', '.join(names[:MOST_NAMED])}{more})"
        lines.append(line)
    return lines[:MOST_SHOWN]


def _check_different(study: PlannedStudy, all_settings: dict[str, Settings]) -> None:
    """Raises BadInput if two variants would be the same run."""
    seen: dict[str, str] = {}
    for name, settings in all_settings.items():
        key = json.dumps(config.resolved(replace(settings, name="run")), sort_keys=True)
        if key in seen:
            defect = f"the variants '{seen[key]}' and '{name}' have the same settings; leave one out"
            raise _wrong(study, "axes", defect)
        seen[key] = name


def _check_one_machine(study: PlannedStudy, all_settings: dict[str, Settings]) -> None:
    for name, settings in all_settings.items():
        if (machines := len(settings.mapping.make().machines)) > 1:
            why = f"a sweep runs on one machine, and {name} is for {machines}; list one in mapping.machines"
            raise _wrong(study, "base", why)


def _wrong(study: PlannedStudy, key: str, defect: str) -> ConfigError:
    place = study.document.location((key,))
    return ConfigError(LocatedDefect(place, Defect((key,), defect)).render(study.document.file))
