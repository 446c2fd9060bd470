"""YAML -> typed, validated settings, and back; every error names file, line and key."""

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from enum import Enum
from pathlib import Path
from typing import Any, TypeVar

from decentnode.communication.security.job_secret import derived
from decentnode.communication.security.key_files import load_manifest
from decentnode.config import extends, yaml_source
from decentnode.config import overrides as command_line
from decentnode.config.consistency import defects
from decentnode.config.link_security import keys_in_folders, secret_of
from decentnode.config.overrides import Override
from decentnode.config.plugin import Plugin, all_plugins, keys_of_kind
from decentnode.config.plugin_parser import PluginParser
from decentnode.config.sections import SectionParser
from decentnode.config.settings import KeyFolder, Settings, TrainingSection
from decentnode.config.shipped import CONFIGS
from decentnode.config.type_check import inlined_in, is_path, parameters_of
from decentnode.core.packages import package_of
from decentnode.core.registry import PASSED, Registry
from decentnode.core.version import __version__
from decentnode.datasets.locate import path_in_folder
from decentnode.errors import Key, key_text
from decentnode.graph.base import Graph, StaticGraph
from decentnode.mapping.base import Mapping as RankMapping
from decentnode.options import MODELS, Effect, effect_of
from decentnode.training.settings import Factory

P = TypeVar("P", bound=Plugin)

Keep = Callable[[Effect], bool]
"""Whether an option is wanted, by what a change of it changes."""
MOST_SHOWN = 100
"""Letters of a value in a message about machines that differ."""


def load(source: extends.ConfigSource, overrides: Sequence[Override] = ()) -> Settings:
    """Returns the settings in a configuration and its bases; one ConfigError has all defects."""
    return understand(extends.read(source), overrides)


def load_plugin(path: str | Path, key: str, registry: Registry, default: str = "") -> Plugin:
    """Returns a plug-in in a configuration, whatever the other sections name; raises ConfigError."""
    document = extends.read(path)
    plugin = PluginParser(document, Path(document.file).resolve().parent).plugin((key,), registry, default)
    document.raise_any()
    assert plugin is not None, "otherwise there is a defect"
    return plugin


def understand(document: yaml_source.Document, overrides: Sequence[Override] = ()) -> Settings:
    """Returns the settings in a file that was read; raises the same errors as `load`."""
    folder, *others = [Path(file).resolve().parent for file in (document.file, *document.bases)]
    for override in overrides:
        command_line.apply(document, override)
    parser = PluginParser(document, folder)
    sections = SectionParser(parser)
    arguments = sections.read()
    document.report(*defects(sections.made))
    document.raise_any()
    mapping = sections.made["mapping"]
    settings = Settings(**arguments)
    settings = replace(settings, training=per_rank(settings.training, mapping))
    # `decentnode keys quickstart` writes here: a shipped configuration may be where nobody can write.
    here = [Path.cwd()] if folder.is_relative_to(CONFIGS) else []
    settings = replace(settings, security=keys_in_folders(settings, [folder, *others, *here]))
    if found := path_in_folder(sections.made["dataset"], parser.folder_of(("dataset", "name"))):
        # The resolved configuration names the place, so that a resume from another directory finds it.
        options = {**settings.dataset.options, "path": found}
        settings = replace(settings, dataset=replace(settings.dataset, options=options))
    return settings


def per_rank(training: TrainingSection, mapping: RankMapping) -> TrainingSection:
    """Returns the settings with a list of one number per machine expanded to one per rank."""

    def spelled_out(value: Any) -> Any:
        if not isinstance(value, tuple) or len(value) == mapping.num_nodes:
            return value
        return tuple(value[mapping.machine_of(rank)] for rank in range(mapping.num_nodes))

    steps, epochs = spelled_out(training.steps_per_round), spelled_out(training.epochs_per_round)
    pace: Any = training.pace
    if isinstance(pace, Factory):
        by_rank = {name: spelled_out(pace.options[name]) for name in ("slowdown", "device")}
        pace = replace(pace, options={**pace.options, **by_rank})
    return replace(training, steps_per_round=steps, epochs_per_round=epochs, pace=pace)


def dump(settings: Settings) -> str:
    """Returns the resolved configuration as YAML, defaults filled in; loading it gives equal settings.

    What no YAML can have is named in a comment: objects that Python has passed.
    """
    values = resolved(settings)
    objects = [f"{key} ({name.partition(':')[2]})" for key, name in _passed(values)]
    comment = (
        f"# Passed as objects from Python, so this file lacks them: {', '.join(objects)}\n" if objects else ""
    )
    return comment + yaml_source.dump(values)


def _passed(value: Any, key: Key = ()) -> Iterator[tuple[str, str]]:
    """Yields key and name of each object that Python has passed."""
    if isinstance(value, str) and value.startswith(f"{PASSED}:"):
        yield key_text(key[:-1] if key[-1] == "name" else key), value
    parts = (
        value.items() if isinstance(value, Mapping) else enumerate(value) if isinstance(value, list) else ()
    )
    for name, inner in parts:
        yield from _passed(inner, (*key, name))


def resolved(settings: Settings, with_objects: bool = False, keep: Keep | None = None) -> dict[str, Any]:
    """Returns the settings as plain values, in the shape of the YAML file.

    `with_objects`: what Python has passed is there itself, and not only its name; `keep`: the options that
    are wanted; None: all.
    """
    found: dict[str, Any] = plain(settings, with_objects, keep)
    del found["training"]["task"]
    found["training"] = found["training"].pop("gradient_sync") | found["training"]
    return found


def plain(
    value: Any, with_objects: bool = False, keep: Keep | None = None, effect: Effect = MODELS,
    inner_effect: Effect = MODELS,
) -> Any:  # fmt: skip
    """Returns `value` as dicts, lists, texts and numbers; objects from Python only if they are wanted.

    `keep` selects the options of sections and plug-ins, and with `effect` the name of a plug-in.
    `inner_effect`: that of options whose class says nothing; it is that of the option that holds them.
    """

    def part(inner: Any, effect: Effect = effect, inner_effect: Effect = inner_effect) -> Any:
        return plain(inner, with_objects, keep, effect, inner_effect)

    def options(cls: Callable[..., Any], values: Mapping[str, Any], of_plugin: bool) -> dict[str, Any]:
        effects = {name: effect_of(cls, name, inner_effect) for name in values}
        # The plug-in of a section may have an option that is wanted where its name is not.
        return {
            name: part(inner, effects[name], effects[name] if of_plugin else inner_effect)
            for name, inner in values.items()
            if keep is None or keep(effects[name]) or (isinstance(inner, Plugin) and not of_plugin)
        }

    if isinstance(value, Plugin):
        is_passed = with_objects and value.name.startswith(f"{PASSED}:")
        name = {value.key: value.cls if is_passed else value.name} if keep is None or keep(effect) else {}
        more = {name: getattr(value, name) for name in keys_of_kind(type(value))}
        return name | options(value.cls, value.options, True) | options(type(value), more, False)
    if isinstance(value, Factory):
        found, inlined = options(value.cls, value.options, True), inlined_in(value.cls)
        return found.pop(inlined, {}) | found
    if isinstance(value, Mapping):
        return {str(key): part(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [part(inner) for inner in value]
    if is_dataclass(value):
        return options(type(value), {f.name: getattr(value, f.name) for f in fields(value)}, False)
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, str | int | float | None):
        return value
    if isinstance(value, Path):
        return str(value)
    return value if with_objects else f"{PASSED}:{type(value).__name__}"


def agreed(settings: Settings, graph: Graph) -> dict[str, Any]:
    """Returns what all machines of a run must agree on: settings, keys, the graph's edges, and this version.

    It does not cover the samples that a machine has read.
    """
    content = with_contents(settings, graph, lambda effect: not effect.per_host)
    packages = {} if settings.failures.allow_different_code else packages_of(settings)
    return content | {"security": agreed_keys(settings), "packages": packages}


def packages_of(settings: Settings) -> dict[str, str]:
    """Returns name and version of the installed packages whose plug-ins compute in a run."""
    # Writers change no number of a run.
    computing = replace(settings, records=replace(settings.records, writers=()))
    found = filter(None, (package_of(plugin.cls) for plugin in all_plugins(computing)))
    return dict(sorted({one.package: one.version for one in found}.items()))


def with_contents(settings: Settings, graph: Graph, keep: Keep) -> dict[str, Any]:
    """Returns the options that are wanted, with this version and with content instead of paths of files."""
    found = resolved(
        replace(settings, graph=without_paths(settings.graph), dataset=without_paths(settings.dataset)),
        keep=keep,
    )
    found["sharing"]["weights"] |= file_hashes(settings.sharing.weights)
    if graph.has_weights:
        found["graph"] |= file_hashes(settings.graph)
    # A graph of labels is the same wherever the samples are.
    adjacency = [
        part.adjacency if isinstance(part, StaticGraph) and not part.needs_labels else None
        for _, part in graph.changes.spans
    ]
    found["adjacency"] = adjacency[0] if len(adjacency) == 1 else adjacency
    return found | {"version": __version__}


def digest(settings: Settings, graph: Graph) -> str:
    """Returns a hash of what all machines of a run must agree on."""
    return hash_of(agreed(settings, graph))


def hash_of(content: Mapping[str, Any]) -> str:
    """Returns a hash of plain values."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def flattened(content: Mapping[str, Any], section: str = "") -> dict[str, str]:
    """Returns the values of all keys as short text, by dotted key; long ones end with a hash of the whole."""
    found: dict[str, str] = {}
    for name, value in content.items():
        if isinstance(value, Mapping) and value:
            found |= flattened(value, f"{section}{name}.")
            continue
        text = json.dumps(value, sort_keys=True)
        if len(text) > MOST_SHOWN:
            text = f"{text[: MOST_SHOWN // 2]}... ({hashlib.sha256(text.encode()).hexdigest()[:12]})"
        found[f"{section}{name}"] = text
    return found


def agreed_keys(settings: Settings) -> str:
    """Returns a hash of all machines' public keys, or `none`."""
    if (secret := secret_of(settings)) is not None:
        return derived(secret, "digest").hex()
    if not isinstance(settings.security, KeyFolder):
        return "none"
    return load_manifest(settings.security.keys, len(settings.mapping.make().machines)).digest


def without_paths(plugin: P) -> P:
    """Returns the plug-in without the options that name files, nor those of plug-ins in them."""
    paths = path_options(plugin)
    kept = {name: value for name, value in plugin.options.items() if name not in paths}
    return replace(plugin, options=kept).with_inner(without_paths)


def file_hashes(plugin: Plugin) -> dict[str, str]:
    """Returns a hash of the content of every file that an option names."""
    return {
        name: hashlib.sha256(Path(plugin.options[name]).read_bytes()).hexdigest()
        for name in path_options(plugin)
    }


def path_options(plugin: Plugin) -> list[str]:
    """Returns the names of the options that name a file or directory."""
    parameters = parameters_of(plugin.cls)
    return [
        name
        for name, (hint, _) in parameters.items()
        if is_path(name, hint) and plugin.options.get(name) is not None
    ]
