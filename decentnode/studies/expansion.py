"""A study as a list of runs, each with its settings; nothing has started yet."""

import copy
import json
from collections.abc import Container, Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from decentnode.config import extends
from decentnode.config import loader as config
from decentnode.config import overrides as command_line
from decentnode.config.error_locations import plugin_errors_as_bad_input
from decentnode.config.settings import Settings
from decentnode.config.yaml_source import Document, LocatedDefect, SourceLocation
from decentnode.errors import BadInput, ConfigError, Defect
from decentnode.mapping.job import find_job
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
        return run_name(self.variant, self.seed)

    @property
    def machines(self) -> int:
        """The number of machines that it needs."""
        return len(self.settings.mapping.make().machines)

    @property
    def hosts(self) -> list[str]:
        """The addresses of these machines where the configuration lists several; otherwise empty."""
        addresses = [machine.address for machine in self.settings.mapping.make().machines]
        is_known = len(addresses) > 1 and addresses != _placeholders(len(addresses))
        return addresses if is_known else []

    @property
    def directory(self) -> Path:
        """The run directory."""
        assert self.settings.run_dir is not None, "every planned run has one"
        return Path(self.settings.run_dir)


def run_name(variant: PlannedVariant, seed: int) -> str:
    """The name of a run of a variant, and of its directory in that of the study."""
    return f"{variant.name}/seed-{seed}"


def planned_runs(study: PlannedStudy, only: Container[str] = ()) -> list[PlannedRun]:
    """All runs, seed by seed, so that early results compare all variants; raises BadInput.

    `only`: the names of variants whose runs are wanted; empty: all.
    """
    base = extends.read(study.base)
    if "base" in base.value:
        raise _wrong(study, "base", f"{study.base} is a study, too; name a configuration")
    settings_of: dict[str, Settings] = {}
    defects: dict[str, list[str]] = {}
    variants = [variant for variant in study.variants if not only or variant.name in only]
    for variant in variants:
        document = _document(base, (*study.changes, *variant.changes))
        try:
            with plugin_errors_as_bad_input():
                settings_of[variant.name] = _understood(document)
        except BadInput as error:
            for line in error.lines:
                defects.setdefault(line, []).append(variant.name)
    if defects:
        raise ConfigError(*_with_variants(defects, len(variants)))
    _check_different(study, settings_of)
    return [
        _planned(study, variant, seed, settings=settings_of[variant.name])
        for seed in study.seeds
        for variant in variants
    ]


def _planned(study: PlannedStudy, variant: PlannedVariant, seed: int, settings: Settings) -> PlannedRun:
    directory = study.out / run_name(variant, seed)
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


def _understood(document: Document) -> Settings:
    """Returns the settings in a document.

    Machines that only the job of the run will know (`mapping: environment`) have placeholders as addresses.
    """
    mapping = document.value.get("mapping")
    section = mapping if isinstance(mapping, dict) else {"name": mapping}
    if section.get("name") != "environment":
        return config.understand(document)
    alone = copy.deepcopy(document)
    del alone.value["mapping"]
    nodes, share = config.understand(alone).graph.make().num_nodes, section.get("nodes_per_machine", 1)
    if not isinstance(share, int) or share < 1 or nodes % share:
        raise BadInput.at("mapping.nodes_per_machine", f"{share}: the {nodes} nodes of the graph do not fit")
    job, machines = find_job(), nodes // share
    if job is None or len(job.processes) != machines:
        listed = [{"address": address, "nodes": share} for address in _placeholders(machines)]
        command_line.put(document, "mapping", {"machines": listed}, source=SourceLocation(1))
    return config.understand(document)


def _placeholders(machines: int) -> list[str]:
    return [f"machine-{machine}" for machine in range(machines)]


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


def _wrong(study: PlannedStudy, key: str, defect: str) -> ConfigError:
    place = study.document.location((key,))
    return ConfigError(LocatedDefect(place, Defect((key,), defect)).render(study.document.file))
