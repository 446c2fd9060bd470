"""The sections of a configuration, read into the arguments of Settings."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_type_hints

from torch import nn

from decentnode.config.extends import EXTENDS
from decentnode.config.paths import expanded
from decentnode.config.plugin_parser import Parameters, PluginParser
from decentnode.config.settings import (
    CheckpointSettings,
    EvaluationSettings,
    FailureSettings,
    KeyFolder,
    Plugin,
    RecordSettings,
    Settings,
    TimeModelSettings,
)
from decentnode.config.torch_classes import (
    LOSSES,
    MOST_TRIAL_STEPS,
    OPTIMIZERS,
    SCHEDULERS,
    try_loss,
    try_optimizer,
    try_scheduler,
)
from decentnode.config.type_check import REQUIRED, parameters_of, show, unknown_key
from decentnode.config.yaml_source import Document
from decentnode.core import registry
from decentnode.core.registry import Registry
from decentnode.datasets.validation import ValidationSettings
from decentnode.errors import MISSING_KEY, Key
from decentnode.graph.base import Graph, StaticGraph
from decentnode.graph.declared import check_declared
from decentnode.graph.mixing import default_weights
from decentnode.mapping.environment import started_machines
from decentnode.training.pace import PaceSettings
from decentnode.training.settings import Factory, TrainingSettings
from decentnode.training.tasks.base import Task

SCALARS = ("name", "seed", "rounds", "security", "device", "run_dir", "machine")
SECTIONS = (
    "extends", "name", "seed", "rounds", "graph", "mapping", "dataset", "task", "model", "training",
    "sharing", "communication", "time_model", "evaluation", "failures", "checkpoint", "records", "faults",
    "adversaries",
    "security", "device", "run_dir", "machine",
)  # fmt: skip
SHARING_KEYS = ("weights", "transforms")
DATASET_KEYS = ("partition", "skew", "validation")
COMMUNICATION_KEYS = ("overlap",)
CLASS_KEYS = ("optimizer", "scheduler", "loss", "augmentation", "privacy")
"""Keys of `training` whose values are classes with options."""


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
        """The arguments of Settings by name; those with a defect are None or missing."""
        for name in [name for name in self.document.value if name not in SECTIONS]:
            self.document.report(unknown_key((name,), "key", SECTIONS))
        if EXTENDS in self.document.value:  # what a file extends has been merged into it
            what = "is read from a file alone; write it there, or name that file instead of this one"
            self.document.add((EXTENDS,), what)
        return {
            **self._scalars(),
            "graph": self._plugin(("graph",), registry.GRAPHS),
            "mapping": self._mapping(),
            "dataset": self._plugin(("dataset",), registry.DATASETS, generic=DATASET_KEYS),
            "partition": self._plugin(("dataset", "partition"), registry.PARTITIONS, "iid"),
            "skew": self._plugins(("dataset", "skew"), registry.SKEWS),
            "validation": self._validation(),
            "model": self._plugin(("model",), registry.MODELS),
            # After the dataset, which has a task of its own.
            **self._training(self._plugin(("task",), registry.TASKS, self._default_task)),
            **self._sharing(),
            **self._communication(),
            "time_model": self._time_model(),
            "evaluation": self._settings(("evaluation",), EvaluationSettings),
            "failures": self._settings(("failures",), FailureSettings),
            "checkpoint": self._settings(("checkpoint",), CheckpointSettings),
            "records": self._settings(
                ("records",), RecordSettings, writers=self._plugins(("records", "writers"), registry.WRITERS)
            ),
            "faults": self._plugins(("faults",), registry.FAULTS),
            "adversaries": self._plugins(("adversaries",), registry.ATTACKS),
        }

    def _scalars(self) -> dict[str, Any]:
        parameters = scalar_parameters(Path(self.document.file).stem)
        # A null is the same as no entry, so that an override can remove an entry.
        given = {name: value for name in SCALARS if (value := self.parser.get((name,))) is not None}
        if isinstance(given.get("security"), dict):
            del given["security"]
        found = self.parser.options((), given, parameters, "key", SECTIONS) or {}
        self.made |= {name: found.get(name) for name in ("machine", "rounds")}
        if isinstance(run_dir := found.get("run_dir"), str):
            try:
                found["run_dir"] = str(expanded(run_dir))
            except ValueError as error:
                self.document.add(("run_dir",), f"no usable path: {show(run_dir)}: {error}")
        if isinstance(self.parser.get(("security",)), dict):
            found["security"] = self._settings(("security",), KeyFolder)
        return found

    def _settings(self, key: Key, cls: type, **plugins: tuple[Plugin | None, ...]) -> Any:
        """The settings of a section; `plugins`: the values of its keys that were read already."""
        section, known = self.parser.get(key), list(parameters_of(cls))
        if not isinstance(section, dict | None):
            self.document.add(key, f"must be a mapping with {', '.join(known)}, not {show(section)}")
            return None
        own = {name: value for name, value in (section or {}).items() if name not in plugins}
        parameters = {name: given for name, given in parameters_of(cls).items() if name not in plugins}
        options = self.parser.options(key, own, parameters, "key", known)
        made = None if options is None else self.parser.attempt(key, lambda: cls(**options, **plugins))
        self.made[str(key[-1])] = made
        return made

    def _plugin(
        self, key: Key, registry: Registry, default: str = "", generic: tuple[str, ...] = ()
    ) -> Plugin | None:
        """A plug-in that was also instantiated: an error of its constructor is a defect of its section."""
        plugin = self.parser.plugin(key, registry, default, generic)
        if plugin:
            self.made[registry.kind] = self.parser.attempt(key, lambda: _tried(plugin))
        return plugin

    def _validation(self) -> ValidationSettings | None:
        key = ("dataset", "validation")
        found: ValidationSettings | None = None
        if self.parser.get(key) is not None:
            found = self._settings(key, ValidationSettings)
        return found

    def _time_model(self) -> TimeModelSettings | None:
        key = ("time_model",)
        if isinstance(name := self.parser.get(key), str):
            self.document.value["time_model"] = {"name": name}
        found: TimeModelSettings | None = self._settings(key, TimeModelSettings)
        return found

    def _pace(self) -> PaceSettings | None:
        key = ("training", "pace")
        found: PaceSettings | None = None
        if self.parser.get(key) is not None:
            found = self._settings(key, PaceSettings)
        return found

    def _mapping(self) -> Plugin | None:
        graph: Graph | None = self.made.get("graph")
        if self.parser.get(("mapping",)) is None and graph is not None:
            self.document.value["mapping"] = default_mapping(graph)
        elif self.parser.get(("mapping",)) is None:
            return None
        return self._plugin(("mapping",), registry.MAPPINGS, "linear")

    def _sharing(self) -> dict[str, Any]:
        graph: Graph | None = self.made.get("graph")
        weights = "metropolis_hastings" if graph is None else default_weights(graph)
        return {
            "sharing": self._plugin(("sharing",), registry.SHARINGS, "gossip", SHARING_KEYS),
            "weights": self._plugin(("sharing", "weights"), registry.MIXINGS, weights),
            "transforms": self._plugins(("sharing", "transforms"), registry.TRANSFORMS),
        }

    def _communication(self) -> dict[str, Any]:
        key = ("communication",)
        section = self.parser.get(key)
        given = section if isinstance(section, dict) else {}
        own = {name: value for name, value in given.items() if name in COMMUNICATION_KEYS}
        options = self.parser.options(key, own, communication_parameters(), "key", COMMUNICATION_KEYS) or {}
        self.made |= options
        plugin = self._plugin(key, registry.COMMUNICATIONS, "zeromq", COMMUNICATION_KEYS)
        return {"communication": plugin, **options}

    def _plugins(self, key: Key, registry: Registry) -> tuple[Plugin | None, ...]:
        """A list of plug-ins, by default empty; `made` gets all or none, under the key's last word."""
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

    @property
    def _default_task(self) -> str:
        return str(getattr(self.made.get("dataset"), "task", "classification"))

    def _training(self, task: Plugin | None) -> dict[str, Any]:
        key = ("training",)
        section = self.parser.get(key)
        if not isinstance(section, dict):
            wanted = "a mapping with optimizer and steps_per_round or epochs_per_round"
            if section is None:
                self.document.add(key, MISSING_KEY, f"it must be {wanted}")
            else:
                self.document.add(key, f"must be {wanted}, not {show(section)}")
            return {}
        classes = self._classes(key)
        parameters = training_parameters()
        shared = (*parameters, *CLASS_KEYS, "pace")
        gradient_sync = self._plugin(key, registry.TRAININGS, "local", shared)
        self.made["gradient_sync"] = self.made.pop("training", None)
        own = {name: value for name, value in section.items() if name in parameters}
        options = self.parser.options(key, own, parameters, "key", list(parameters))
        # Without a key that is misspelt, what the others say together may be wrong for that reason alone.
        pace = self._pace()
        if options is None or gradient_sync is None:
            return {}
        mix_buffers = self.made["mix_buffers"] = options.pop("mix_buffers")
        if task:
            options["task"] = task
        training = self.parser.attempt(key, lambda: TrainingSettings(**classes, **options, pace=pace))
        self.made["training"] = training
        return {"gradient_sync": gradient_sync, "training": training, "mix_buffers": mix_buffers}

    def _classes(self, key: Key) -> dict[str, Any]:
        optimizer = self.parser.plugin((*key, "optimizer"), OPTIMIZERS)
        task: Task | None = self.made.get("task")
        loss = self.parser.plugin((*key, "loss"), LOSSES, task.default_loss if task else "CrossEntropyLoss")
        scheduler = None
        if self.parser.get((*key, "scheduler")) is not None:
            scheduler = self.parser.plugin((*key, "scheduler"), SCHEDULERS)
        # One with a defect is left out, so that the rest can be checked.
        augmentation = tuple(filter(None, self._plugins((*key, "augmentation"), registry.AUGMENTATIONS)))
        privacy = None
        if self.parser.get((*key, "privacy")) is not None:
            privacy = self._plugin((*key, "privacy"), registry.PRIVACIES)
            privacy = privacy if self.made.get("privacy") else None
        attempt, made = self.parser.attempt, None
        if optimizer:
            made = attempt((*key, "optimizer"), lambda: try_optimizer(optimizer))
        if scheduler and made:
            attempt((*key, "scheduler"), lambda: try_scheduler(scheduler, made, *self._schedule))
        if loss and task:
            attempt((*key, "loss"), lambda: try_loss(loss, task))
        # The stand-in permits a check of the numbers although the optimizer has a defect.
        return {
            "optimizer": optimizer or Factory(nn.Identity), "scheduler": scheduler, "loss": loss,
            "augmentation": augmentation, "privacy": privacy,
        }  # fmt: skip

    @property
    def _schedule(self) -> tuple[int, str]:
        """The steps of the schedule that can be tried, and what one of them is."""
        if self.parser.get(("training", "schedule_step")) == "step":
            return MOST_TRIAL_STEPS, "step"
        return min(self.made.get("rounds") or 1, MOST_TRIAL_STEPS), "round"


def scalar_parameters(name: str) -> Parameters:
    """Types and defaults of the keys that are no sections; `name` is the run's default name."""
    hints = get_type_hints(Settings, include_extras=True)
    defaults = {key: getattr(Settings, key, REQUIRED) for key in SCALARS} | {"name": name}
    return {key: (hints[key], defaults[key]) for key in SCALARS}


def training_parameters() -> dict[str, tuple[Any, Any]]:
    """Types and defaults of the keys of `training` that are not classes."""
    own = parameters_of(TrainingSettings) | {"mix_buffers": (bool, Settings.mix_buffers)}
    return {name: parameter for name, parameter in own.items() if name not in (*CLASS_KEYS, "task", "pace")}


def communication_parameters() -> dict[str, tuple[Any, Any]]:
    """Types and defaults of the keys of every transport."""
    hints = get_type_hints(Settings, include_extras=True)
    return {name: (hints[name], getattr(Settings, name)) for name in COMMUNICATION_KEYS}


def default_mapping(graph: Graph) -> dict[str, Any]:
    """Equal shares of the machines that torchrun or srun has started; otherwise all nodes on this one."""
    if (machines := started_machines()) > 1:
        return {"name": "environment", "nodes_per_machine": max(1, graph.num_nodes // machines)}
    return {"name": "linear", "machines": [{"address": "127.0.0.1", "nodes": graph.num_nodes}]}


def _tried(plugin: Plugin) -> Any:
    """An instance; for a graph also its neighbors, because they are what reads a file.

    A graph from outside the package is compared with its declaration.
    """
    instance = plugin.make()
    if isinstance(instance, StaticGraph):
        _ = instance.adjacency
    if isinstance(instance, Graph):
        check_declared(instance)
    return instance
