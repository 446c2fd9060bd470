"""The sections of a configuration, read into the arguments of Settings."""

from dataclasses import dataclass, field, fields, is_dataclass, replace
from pathlib import Path
from typing import Any, get_args, get_origin

from torch import nn

from decentnode.config.extends import EXTENDS
from decentnode.config.paths import expanded
from decentnode.config.plugin import Plugin, keys_of_kind, named_in
from decentnode.config.plugin_parser import PluginParser
from decentnode.config.python_source import ARGUMENTS, NAME_OF_RUN
from decentnode.config.settings import Settings, TrainingSection
from decentnode.config.torch_classes import (
    MOST_TRIAL_STEPS,
    TorchClasses,
    try_loss,
    try_optimizer,
    try_scheduler,
)
from decentnode.config.type_check import Parameters, bare, describe, parameters_of, show, unknown_key
from decentnode.config.yaml_source import Document
from decentnode.core.registry import TRAININGS, Registry
from decentnode.errors import MISSING_KEY, Key
from decentnode.graph.base import Graph
from decentnode.graph.declared import check_declared
from decentnode.graph.mixing import default_weights
from decentnode.mapping.environment import started_machines
from decentnode.sharing.base import SharingBase
from decentnode.training.settings import Factory
from decentnode.training.tasks.base import Task

SECTIONS = (EXTENDS, *(field.name for field in fields(Settings)))
"""All keys of the top."""


def is_value(hint: Any) -> bool:
    """Whether a field of the settings is one value, neither a plug-in nor a section."""
    return named_in(hint) is None and not is_dataclass(bare(hint))


def scalar_parameters(name: str) -> Parameters:
    """Returns types and defaults of the keys that are no sections; `name` is the run's default name."""
    found = {key: given for key, given in parameters_of(Settings).items() if is_value(given[0])}
    return found | {"name": (found["name"][0], name)}


@dataclass
class SectionParser:
    """Reads all sections; `made` has an instance of every section without a defect."""

    parser: PluginParser
    made: dict[str, Any] = field(default_factory=dict)

    @property
    def document(self) -> Document:
        """The document that is read, with the defects found so far."""
        return self.parser.document

    def read(self) -> dict[str, Any]:
        """Returns the arguments of Settings by name; those with a defect are None or missing."""
        for name in [name for name in self.document.value if name not in SECTIONS]:
            self.document.report(unknown_key((name,), "key", SECTIONS))
        if EXTENDS in self.document.value:  # what a file extends has been merged into it
            what = "is read from a file alone; write it there, or name that file instead of this one"
            self.document.add((EXTENDS,), what)
        found = self._scalars()
        # In the order of the fields: a default may follow from sections before it.
        for name, (hint, _) in parameters_of(Settings).items():
            if not is_value(hint):
                found[name] = self._field((name,), hint)
        return found

    def _scalars(self) -> dict[str, Any]:
        file = self.document.file
        parameters = scalar_parameters(NAME_OF_RUN if file == ARGUMENTS else Path(file).stem)
        # A null is the same as no entry, so that an override can remove an entry.
        given = {name: value for name in parameters if (value := self.parser.get((name,))) is not None}
        found = self.parser.options((), given, parameters, what="key", known=SECTIONS) or {}
        self.made |= {name: found.get(name) for name in ("machine", "rounds", "device", "security")}
        if isinstance(run_dir := found.get("run_dir"), str):
            try:
                found["run_dir"] = str(expanded(run_dir))
            except ValueError as error:
                self.document.add(("run_dir",), f"no usable path: {show(run_dir)}: {error}")
        return found

    def _field(self, key: Key, hint: Any) -> Any:
        """Returns the value of a field that is a plug-in, a list of them, or a section of its own."""
        named, section = named_in(hint), bare(hint)
        is_optional = type(None) in get_args(get_args(hint)[0] if named else hint)
        if get_origin(section) is tuple and named:
            return self._plugins(key, named.registry)
        if section is TrainingSection:
            return self._training()
        if key == ("mapping",) and self.parser.get(key) is None:
            if "graph" not in self.made or self.made["graph"] is None:
                return None
            self.document.value["mapping"] = default_mapping(self.made["graph"])
        if key == ("mapping",) and self.parser.get((*key, "name")) == "open" and self.made.get("graph"):
            self.document.value["mapping"].setdefault("nodes", self.made["graph"].num_nodes)
        if is_optional and self.parser.get(key) is None:
            return None
        if named is None:
            return self._settings(key, section)
        return self._plugin(key, named.registry, self._default_name(key) or named.default, cls=section)

    def _default_name(self, key: Key) -> str:
        """Returns the plug-in's name where the file has none and another section decides."""
        graph: Graph | None = self.made.get("graph")
        task: Task | None = self.made.get("task")
        if key == ("sharing", "weights"):
            return "metropolis_hastings" if graph is None else default_weights(graph)
        if key == ("task",):
            return str(getattr(self.made.get("dataset"), "task", "classification"))
        if key == ("training", "optimizer") and self.parser.get(("training", "loop")) is not None:
            return "SGD"
        if key == ("training", "loss"):
            return task.default_loss if task else "CrossEntropyLoss"
        return ""

    def _settings(self, key: Key, cls: type) -> Any:
        """Returns the settings of a section; `time_model` may be its name alone."""
        section, parameters = self.parser.get(key), parameters_of(cls)
        if key == ("time_model",) and isinstance(section, str):
            section = self.document.value["time_model"] = {"name": section}
        if not isinstance(section, dict | None):
            self.document.add(key, f"must be {describe(cls)}, not {show(section)}")
            return None
        plugins = {n: self._field((*key, n), hint) for n, (hint, _) in parameters.items() if named_in(hint)}
        own = {name: value for name, value in (section or {}).items() if name not in plugins}
        values = {name: given for name, given in parameters.items() if name not in plugins}
        options = self.parser.options(key, own, values, what="key", known=list(parameters))
        made = None if options is None else self.parser.attempt(key, lambda: cls(**options, **plugins))
        self.made[str(key[-1])] = made
        return made

    def _plugin(
        self, key: Key, registry: Registry, default: str = "", cls: type[Plugin] = Plugin
    ) -> Plugin | None:
        """Returns a plug-in after a trial instance: an error of its constructor is a defect of its section.

        `cls` may have more keys, for every plug-in of the kind.
        """
        generic_keys = keys_of_kind(cls)
        plugin = self.parser.plugin(key, registry, default, generic=generic_keys)
        graph, scheme = self.made.get("graph"), plugin and plugin.cls
        if plugin and graph and isinstance(scheme, type) and issubclass(scheme, SharingBase):
            plugin = replace(plugin, options={**plugin.options, **scheme.on_graph(plugin.options, graph)})
        if plugin and not isinstance(registry, TorchClasses) and registry.bases:
            self.made[registry.kind] = self.parser.attempt(key, lambda: _tried(plugin))
        section = self.parser.get(key)
        values = {name: given for name, given in generic_keys.items() if is_value(given[0])}
        own = {n: value for n, value in section.items() if n in values} if isinstance(section, dict) else {}
        found = self.parser.options(key, own, values, what="key", known=list(values)) or {}
        self.made |= found
        found |= {n: self._field((*key, n), hint) for n, (hint, _) in generic_keys.items() if n not in values}
        return plugin and cls(**vars(plugin), **found)

    def _plugins(self, key: Key, registry: Registry) -> tuple[Plugin | None, ...]:
        """Returns a list of plug-ins, by default empty; `made` gets all or none, by the key's last word."""
        given = self.parser.get(key) or []
        if not isinstance(given, list):
            self.document.add(key, f"must be a list of {key[-1]}, not {show(given)}")
            return ()
        found, made = [], []
        for index in range(len(given)):
            self.made[registry.kind] = None
            found.append(self._plugin((*key, index), registry))
            made.append(self.made.pop(registry.kind))
        self.made[str(key[-1])] = made if None not in made else None
        return tuple(found)

    def _training(self) -> TrainingSection | None:
        key = ("training",)
        section = self.parser.get(key)
        if not isinstance(section, dict):
            wanted = "a mapping with optimizer and steps_per_round or epochs_per_round"
            if section is None:
                self.document.add(key, MISSING_KEY, f"it must be {wanted}")
            else:
                self.document.add(key, f"must be {wanted}, not {show(section)}")
            return None
        # The section `task` is read by now, and `gradient_sync` is the rest of this section.
        parameters = parameters_of(TrainingSection)
        del parameters["task"], parameters["gradient_sync"]
        classes = self._classes({name: given for name, given in parameters.items() if not is_value(given[0])})
        values = {name: given for name, given in parameters.items() if is_value(given[0])}
        gradient_sync = None
        if plugin := self.parser.plugin(key, TRAININGS, "local", generic=parameters):
            gradient_sync = self.parser.attempt(key, lambda: _tried(plugin))
        self.made["gradient_sync"] = gradient_sync
        own = {name: value for name, value in section.items() if name in values}
        options = self.parser.options(key, own, values, what="key", known=list(values))
        # Without a key that is misspelt, what the others say together may be wrong for that reason alone.
        if options is None or plugin is None:
            return None
        self.made["mix_buffers"] = options["mix_buffers"]
        made = self.made["training"] = self.parser.attempt(
            key, lambda: TrainingSection(**classes, **options, gradient_sync=plugin)
        )
        return made

    def _classes(self, parameters: Parameters) -> dict[str, Any]:
        """Returns the plug-ins of `training` and its section `pace`; tries torch's own to get its errors."""
        key = ("training",)
        found = {name: self._field((*key, name), hint) for name, (hint, _) in parameters.items()}
        optimizer, loss, scheduler = found["optimizer"], found["loss"], found["scheduler"]
        task: Task | None = self.made.get("task")
        attempt, made = self.parser.attempt, None
        if optimizer:
            made = attempt((*key, "optimizer"), lambda: try_optimizer(optimizer))
        if scheduler and made:
            attempt((*key, "scheduler"), lambda: try_scheduler(scheduler, made, *self._schedule))
        if loss and task:
            attempt((*key, "loss"), lambda: try_loss(loss, task))
        # What has a defect is left out or replaced, so that the rest can be checked.
        return found | {
            "optimizer": optimizer or Factory(nn.Identity),
            "augmentation": tuple(filter(None, found["augmentation"])),
            "privacy": found["privacy"] if self.made.get("privacy") else None,
        }

    @property
    def _schedule(self) -> tuple[int, str]:
        """The steps of the schedule that can be tried, and what one of them is."""
        if self.parser.get(("training", "schedule_step")) == "step":
            return MOST_TRIAL_STEPS, "step"
        return min(self.made.get("rounds") or 1, MOST_TRIAL_STEPS), "round"


def default_mapping(graph: Graph) -> dict[str, Any]:
    """Returns equal shares of the machines of torchrun or srun; otherwise all nodes on this one."""
    if (machines := started_machines()) > 1:
        return {"name": "environment", "nodes_per_machine": max(1, graph.num_nodes // machines)}
    return {"name": "linear", "machines": [{"address": "127.0.0.1", "nodes": graph.num_nodes}]}


def _tried(plugin: Plugin) -> Any:
    """Makes an instance; for a graph also its neighbors, because they are what reads a file.

    A graph from outside the package is compared with its declaration.
    """
    instance = plugin.make()
    for _, graph in instance.changes.spans if isinstance(instance, Graph) else ():
        check_declared(graph)
    return instance
