"""Reads plug-ins and their options from a document, and adds their defects to it."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, is_dataclass, replace
from inspect import isfunction, signature
from pathlib import Path
from typing import Any, TypeVar

from decentnode.config.paths import expanded
from decentnode.config.plugin import Plugin, takes_run_seed
from decentnode.config.python_source import is_object_class, passed_plugin
from decentnode.config.settings import Settings
from decentnode.config.shipped import find_config, find_graph, near_config
from decentnode.config.torch_classes import OPTIMIZERS, TorchClasses, check_sizes, plain_defaults
from decentnode.config.type_check import (
    REQUIRED,
    Parameters,
    ShortForm,
    TypeMismatch,
    describe,
    holds_plugins,
    is_path,
    may_be_path,
    parameters_of,
    show,
    typed_parts,
    unknown_key,
)
from decentnode.config.yaml_source import Document, is_object
from decentnode.core.registry import Registry, import_class, near_file, nearest, registry_of
from decentnode.core.text import quoted
from decentnode.errors import MISSING_KEY, BadInput, Defect, Key
from decentnode.graph.base import GRAPH_FILE
from decentnode.mapping.job import job_port
from decentnode.options import Port
from decentnode.sharing.blocks.outer import check_outer
from decentnode.training.optim.uncompiled import uncompiled
from decentnode.training.settings import Factory, made

T = TypeVar("T")
OF_RUN = ("task", "num_classes", "num_labels")
"""Options of metrics that are what the run has, unless they are given."""
_SHIPPED: Mapping[str | int, Callable[[str | Path], Path | None]] = {"graph": find_graph, "base": find_config}
"""What finds a shipped file by its name, for the keys whose files are shipped; `base` is a study's."""


@dataclass
class PluginParser:
    """Reads from one document; relative paths start at `folder`, the document's folder.

    Those that stand in a file that the document extends start at that file's folder.
    """

    document: Document
    folder: Path

    def __post_init__(self) -> None:
        mapping = self.get(("mapping",))
        name = mapping.get("name", "linear") if isinstance(mapping, dict) else mapping
        self._starts_by_scheduler = name in (None, "environment")
        """Whether torchrun or srun, if there is one, says which machines take part."""

    def get(self, key: Key) -> Any:
        """Returns the value at `key`; None when it is null or missing."""
        value = self.document.value
        for part in key:
            if isinstance(value, list) and isinstance(part, int):
                value = value[part]
            else:
                value = value.get(part) if isinstance(value, dict) else None
        return value

    @property
    def _run_seed(self) -> int:
        """The seed of the run; its default where what the document says is none."""
        seed = self.get(("seed",))
        return seed if isinstance(seed, int) and not isinstance(seed, bool) else Settings.seed

    def folder_of(self, key: Key) -> Path:
        """Returns the folder of the file that has the value: the document's, or that of one of its bases."""
        base = self.document.location(key).file
        return Path(base).resolve().parent if base else self.folder

    def plugin(
        self, key: Key, registry: Registry, default: str = "", generic: Iterable[str] = ()
    ) -> Plugin | None:
        """Returns the plug-in at `key`, with checked options; `generic` keys are valid for its whole kind."""
        return self.plugin_of(key, registry, self.get(key), default, generic)

    def plugin_of(
        self, key: Key, registry: Registry, value: Any, default: str = "", generic: Iterable[str] = (),
        base: type | None = None,
    ) -> Plugin | None:  # fmt: skip
        """Returns the plug-in that a value at `key` names, or is; `base`: the class that it must have."""
        name, section = self._named(key, registry, value, default)
        where = (*key, registry.key) if isinstance(value, dict) else key
        cls: type | None = None
        if is_object(name):
            if passed := self.attempt(key, lambda: passed_plugin(registry, name)):
                name, passed_class, given = passed
                section = {**given, **section}
                cls = passed_class if self._is_one(key, registry, name, passed_class, base) else None
        elif name:
            cls = self._find(where, registry, name, base)
        if cls is None:
            return None
        parameters = parameters_for(registry, cls)
        own = {option: value for option, value in section.items() if option not in generic}
        if takes_any(cls):
            parameters = {option: (Any, None) for option in own} | dict(parameters)
        # Most keys of `training` are valid for every name.
        what = "key" if registry.kind == "training" else f"option of {name}"
        is_named = not isinstance(value, dict) or value.get(registry.key) is not None
        known = [*parameters, *generic, *([] if is_named else [registry.key])]
        options = self.options(key, own, parameters, what=what, known=known)
        if options is None:
            return None
        if not is_dataclass(cls):
            options = plain_defaults(parameters) | {option: _tupled(options[option]) for option in own}
        return Plugin(
            cls=cls, options=options, kind=registry.kind, key=registry.key, name=name, run_seed=self._run_seed
        )

    def attempt(self, key: Key, make: Callable[[], T]) -> T | None:
        """Returns the result of `make`; None when it raises BadInput: its lines become defects at `key`."""
        try:
            return make()
        except BadInput as error:
            self.document.report(*(self._whole(key, defect) for defect in error.defects))
        return None

    def options(
        self, key: Key, section: Mapping[str, Any], parameters: Parameters, what: str, known: Sequence[str]
    ) -> dict[str, Any] | None:
        """Parses all parameters; None when there were defects. `what` describes an unknown one."""
        before = len(self.document.defects)
        # A text in whose place there is a section now names nothing.
        for name in [n for n, v in section.items() if n not in parameters and not isinstance(v, ShortForm)]:
            self.document.report(unknown_key((*key, name), what, known))
        found = {name: self._option(key, name, section, *rest) for name, rest in parameters.items()}
        is_unreadable = any(place[: len(key)] == key for place in self.document.unreadable)
        return found if len(self.document.defects) == before and not is_unreadable else None

    def _option(self, key: Key, name: str, section: Mapping[str, Any], hint: Any, default: Any) -> Any:
        place = (*key, name)
        if name not in section:
            if default is REQUIRED:
                wanted = "it has no default" if hint is Any else f"it must be {describe(hint)}"
                self.document.add(place, MISSING_KEY, wanted)
            # Machines that the user lists may be in several jobs, and a service may be in none.
            follows_job = hint == Port and self._starts_by_scheduler and not section.get("address")
            if follows_job and default is not REQUIRED:
                return job_port(default)
            if default is REQUIRED or not holds_plugins(hint):
                return default
        given = section.get(name, default)
        try:
            value = typed_parts(hint, given, _ParsedParts(self), place)
        except TypeMismatch as unfit:
            self.document.report(*(defect.below(place) for defect in unfit.defects))
            return default
        if isinstance(given, dict) and not isinstance(value, Plugin):
            # Settings of several keys, such as those of `pace`, which may name files, too.
            if isinstance(value, Factory):
                return replace(value, options=self._all_located(place, value.cls, value.options))
            if is_dataclass(value):
                return replace(value, **self._all_located(place, type(value), vars(value)))  # type: ignore[type-var]
        return self._located(key, name, hint, value)

    def _all_located(self, key: Key, cls: Callable[..., Any], values: Mapping[str, Any]) -> dict[str, Any]:
        parameters = parameters_of(cls)
        return {name: self._located(key, name, parameters[name][0], values[name]) for name in parameters}

    def optimizer(self, key: Key, value: Any) -> Plugin | None:
        """Returns the optimizer at `key` among the options of a plug-in, tried on a flat vector."""
        plugin = self.plugin_of(key, OPTIMIZERS, value)
        if plugin is not None:
            plugin = replace(plugin, cls=uncompiled(plugin.cls))
            self.attempt(key, lambda: check_outer(plugin.make, plugin.name))
            self.attempt(key, lambda: check_sizes(plugin))
        return plugin

    def _located(self, key: Key, name: str, hint: Any, value: Any) -> Any:
        """Returns an option, as an absolute path if it names a file."""
        if value is not None and is_path(name, hint):
            return self._path((*key, name), hint, value)
        if isinstance(value, str) and may_be_path(hint):
            with suppress(OSError, RuntimeError, ValueError):
                paths = [folder / expanded(value) for folder in self._folders((*key, name))]
                return next((str(path.resolve()) for path in paths if path.is_file()), value)
        return value

    def _path(self, key: Key, hint: Any, value: Any) -> Any:
        """Makes a path absolute, from the file's folder or else the current one (overrides: vice versa)."""
        try:
            candidates = [(folder / expanded(value)).resolve() for folder in self._folders(key)]
            found = next((path for path in candidates if path.exists()), None)
            if found is None and key[0] in _SHIPPED:
                found = _SHIPPED[key[0]](value)
        except (OSError, RuntimeError, ValueError) as error:  # too long, a loop of links, or not expanded
            reason = error.strerror if isinstance(error, OSError) else str(error).rstrip(".")
            self.document.add(key, f"no usable path: {quoted(str(value))}: {reason}")
            return value
        # Datasets and keys name the command that makes missing files in errors of their own.
        if found is None and key[0] not in ("dataset", "security"):
            places = list(dict.fromkeys(map(str, candidates)))
            meant = next(filter(None, map(near_file, places)), "")
            if key == ("base",):
                meant = near_config(str(value), self.folder) or meant
            self.document.add(key, f"no such file: {' or '.join(places)}{meant}")
        return type(value)(found or candidates[0])

    def _folders(self, key: Key) -> list[Path]:
        """Returns the folders from which a path at `key` may start, the first one first."""
        folders, place = [self.folder, Path.cwd()], self.document.location(key)
        if place.override:
            folders.reverse()
        if place.file:
            folders.insert(0, Path(place.file).resolve().parent)
        return folders

    def _named(
        self, key: Key, registry: Registry, section: Any, default: str
    ) -> tuple[Any, Mapping[str, Any]]:
        """Returns name and options of the plug-in at `key`; an empty name when there is none.

        Instead of its name, the plug-in itself where Python passes it.
        """
        if isinstance(section, str) or is_object(section):
            section = {registry.key: section}
        if section is None and not default:
            self.document.add(key, MISSING_KEY, f"name one of: {registry.names}")
            return "", {}
        if not isinstance(section, dict | None):
            self.document.add(key, f"must be a name, or a mapping with its options, not {show(section)}")
            return "", {}
        options = dict(section or {})
        given = options.pop(registry.key, None)
        if is_object(given):
            return given, options
        name = default if given is None else given
        if not isinstance(name, str) or not name:
            if given is None and (misspelt := nearest(registry.key, options)):
                self.document.report(unknown_key((*key, misspelt), "key", [registry.key]))
            wrong = MISSING_KEY if given is None else f"must be a name, not {show(given)}"
            self.document.add((*key, registry.key), wrong, f"name one of: {registry.names}")
            return "", {}
        if registry.kind == "graph" and re.fullmatch(GRAPH_FILE, name):
            self.document.locations[(*key, "path")] = self.document.location((*key, "name"))
            return "file", {"path": name, **options}
        return str(name), options

    def _find(self, key: Key, registry: Registry, name: str, base: type | None) -> type | None:
        try:
            cls = registry.find(name, Path.cwd(), self.folder_of(key))
        except BadInput as error:
            self.document.add(key, str(error))
            return None
        return cls if self._is_one(key, registry, name, cls, base) else None

    def _is_one(
        self, key: Key, registry: Registry, name: str, cls: Callable[..., Any], base: type | None
    ) -> bool:
        """Whether a class is of that kind, and of the class `base`; otherwise that is a defect."""
        # A model may be any module: what is no Model is wrapped.
        bases = registry.bases if base is None or registry.functions else (base,)
        if not isinstance(cls, type) or issubclass(cls, bases) or isinstance(registry, TorchClasses):
            return True
        wanted = " or ".join(f"{one.__module__}.{one.__qualname__}" for one in bases)
        self.document.add(key, f"'{name}' is no {registry.kind}; it must be a subclass of {wanted}")
        return False

    def _whole(self, section: Key, defect: Defect) -> Defect:
        """Returns a section's defect with its key from the top, also if a class gave it from the section."""
        own = (*section, *defect.key)
        is_whole = defect.key[:1] == section[:1] and own not in self.document.locations
        return defect if is_whole else replace(defect, key=own)


@dataclass(frozen=True)
class _ParsedParts:
    """Makes plug-ins and sections among the options of a plug-in or a section, and tries them."""

    parser: PluginParser

    def plugin(self, key: Key, base: Any, value: Any, generic: Sequence[str]) -> Any:
        registry = registry_of(base)
        if registry is None:
            return self._unless_defect(lambda: self.parser.optimizer(key, value))
        return self._tried(
            key, lambda: self.parser.plugin_of(key, registry, value, generic=generic, base=base)
        )

    def section(self, key: Key, cls: Callable[..., Any], options: Mapping[str, Any]) -> Any:
        return self._tried(key, lambda: Factory(cls, options))

    def _tried(self, key: Key, make: Callable[[], Any]) -> Any:
        found = self._unless_defect(make)
        self._unless_defect(lambda: self.parser.attempt(key, lambda: made(found)))
        return found

    def _unless_defect(self, make: Callable[[], T]) -> T:
        """Returns the result of `make`; raises TypeMismatch without defects where it has reported some."""
        before = len(self.parser.document.defects)
        result = make()
        if len(self.parser.document.defects) > before:
            raise TypeMismatch([])
        return result


def _tupled(value: Any) -> Any:
    """Returns lists as tuples, like the defaults of such options."""
    return tuple(map(_tupled, value)) if isinstance(value, list) else value


def parameters_for(registry: Registry, cls: type) -> Parameters:
    """Returns the options of a class of that kind.

    What is wrapped, because it does not derive from the kind's own base, has the options of that base, too.
    """
    if is_object_class(cls):
        # A network or metric from Python has the options of all from outside.
        is_wrapped = registry.kind in ("model", "metric") and not issubclass(cls, registry.bases[0])
        return parameters_of(registry.bases[0]) if is_wrapped else {}
    if isinstance(registry, TorchClasses):
        return registry.parameters(cls)
    own = parameters_of(cls, skip=registry.given if isfunction(cls) else 0)
    if not registry.bases:
        return own
    base = registry.bases[0]
    if registry.kind == "metric":
        own |= {name: (own[name][0] | None, None) for name in OF_RUN if name in own}
    if takes_run_seed(registry.kind, cls):
        own["seed"] = (own["seed"][0] | None, None)
    if isinstance(cls, type) and issubclass(cls, base):
        return own
    return parameters_of(import_class(registry.options)) | own


def takes_any(cls: Callable[..., Any]) -> bool:
    """Whether it is a function with `**options`, which alone knows the names of its options."""
    return isfunction(cls) and any(p.kind is p.VAR_KEYWORD for p in signature(cls).parameters.values())
