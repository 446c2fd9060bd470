"""The JSON schema of configurations, with which editors complete and check them."""

from typing import Any

from decentnode.config.extends import EXTENDS
from decentnode.config.plugin_parser import GRAPH_FILE, Parameters, parameters_for
from decentnode.config.sections import communication_parameters, scalar_parameters, training_parameters
from decentnode.config.settings import (
    CheckpointSettings,
    EvaluationSettings,
    FailureSettings,
    RecordSettings,
    TimeModelSettings,
)
from decentnode.config.torch_classes import LOSSES, OPTIMIZERS, SCHEDULERS
from decentnode.config.type_check import REQUIRED, parameters_of, schema_of
from decentnode.core import registry
from decentnode.core.registry import Registry
from decentnode.datasets.validation import ValidationSettings
from decentnode.graph.base import Graph
from decentnode.training.pace import PaceSettings

Schema = dict[str, Any]
DIALECT = "https://json-schema.org/draft/2020-12/schema"
REQUIRED_KEYS = ["rounds", "graph", "dataset", "model", "training"]


def json_schema() -> Schema:
    """The JSON schema of configurations, for editors, with the options of every registered plug-in."""
    builder = SchemaBuilder()
    top = builder.object(scalar_parameters(""), builder.sections())
    # By default a run has the name of its file.
    del top["properties"]["name"]["default"]
    top["properties"] |= {EXTENDS: {"type": ["string", "null"]}}
    # What a configuration leaves out may stand in the one that it extends.
    del top["required"]
    whole = {"required": REQUIRED_KEYS, "properties": {"training": {"required": ["optimizer"]}}}
    alone = {"if": {"required": [EXTENDS]}, "else": whole}
    return {
        "$schema": DIALECT,
        "title": "decentnode configuration",
        **top,
        **alone,
        "$defs": builder.definitions,
    }


class SchemaBuilder:
    """Builds schemas of sections; collects the definitions that they refer to."""

    def __init__(self) -> None:
        self.definitions: Schema = {}

    def sections(self) -> Schema:
        """The schemas of all keys other than plain values."""
        weights, partition = self.plugin(registry.MIXINGS), self.plugin(registry.PARTITIONS, "iid")
        held_out = self.object(parameters_of(ValidationSettings))
        of_dataset = {
            "partition": partition,
            "skew": {"type": ["array", "null"], "items": self.plugin(registry.SKEWS)},
            "validation": {"anyOf": [held_out, {"type": "null"}]},
        }
        transforms = {"type": ["array", "null"], "items": self.plugin(registry.TRANSFORMS)}
        mixed = {"weights": weights, "transforms": transforms}
        every = {name: self.value(*given) for name, given in communication_parameters().items()}
        training_classes = {
            "optimizer": self.plugin(OPTIMIZERS),
            "scheduler": {"anyOf": [self.plugin(SCHEDULERS), {"type": "null"}]},
            "loss": self.plugin(LOSSES, "CrossEntropyLoss"),
            "augmentation": {"type": ["array", "null"], "items": self.plugin(registry.AUGMENTATIONS)},
            "privacy": {"anyOf": [self.plugin(registry.PRIVACIES), {"type": "null"}]},
            "pace": {"anyOf": [self.object(parameters_of(PaceSettings)), {"type": "null"}]},
        }
        records = parameters_of(RecordSettings)
        del records["writers"]
        writers = {"type": ["array", "null"], "items": self.plugin(registry.WRITERS)}
        return {
            "graph": self.plugin(registry.GRAPHS),
            "mapping": self.plugin(registry.MAPPINGS, "linear"),
            "dataset": self.plugin(registry.DATASETS, "", of_dataset),
            "task": self.plugin(registry.TASKS, "classification"),
            "model": self.plugin(registry.MODELS),
            "training": self.training(training_classes),
            "sharing": self.plugin(registry.SHARINGS, "gossip", mixed),
            "communication": self.plugin(registry.COMMUNICATIONS, "zeromq", every),
            "time_model": {"anyOf": [{"type": "string"}, self.object(parameters_of(TimeModelSettings))]},
            "evaluation": self.object(parameters_of(EvaluationSettings)),
            "failures": self.object(parameters_of(FailureSettings)),
            "checkpoint": self.object(parameters_of(CheckpointSettings)),
            "records": self.object(records, {"writers": writers}),
            "faults": {"type": ["array", "null"], "items": self.plugin(registry.FAULTS)},
            "adversaries": {"type": ["array", "null"], "items": self.plugin(registry.ATTACKS)},
        }

    def training(self, classes: Schema) -> Schema:
        """A mapping whose `name` selects some of its keys; the others are valid for every name."""
        shared = {key: self.value(*given) for key, given in training_parameters().items()} | classes
        section: Schema = self.plugin(registry.TRAININGS, "local", shared)["anyOf"][1]
        section["properties"] |= shared
        return section

    def plugin(self, registry: Registry, default: str = "", generic: Schema | None = None) -> Schema:
        """A plug-in by its name alone, or a mapping whose `name` selects the other keys."""
        classes = registry.classes()
        named = {"anyOf": [{"enum": list(classes)}, {"pattern": ":"}]}
        if registry.kind == "graph":
            named["anyOf"].append({"pattern": f"^{GRAPH_FILE}$"})
        choices = []
        for name, cls in classes.items():
            options = self.object(parameters_for(registry, cls), {"name": {"const": name}} | (generic or {}))
            # Without `required` the condition also holds without a name, which means the default.
            asked = [] if name == default else ["name"]
            choices.append(
                {"if": {"properties": {"name": {"const": name}}, "required": asked}, "then": options}
            )
        section = {"type": "object", "properties": {"name": named}, "allOf": choices}
        return {"anyOf": [{"type": "string"} | named, section]}

    def object(self, parameters: Parameters, more: Schema | None = None) -> Schema:
        """A mapping with these parameters and no other keys than those in `more`."""
        properties = {name: self.value(*parameter) for name, parameter in parameters.items()} | (more or {})
        needed = [name for name, (_, default) in parameters.items() if default is REQUIRED]
        return {
            "type": "object",
            "properties": properties,
            "required": needed,
            "additionalProperties": False,
        }

    def value(self, hint: Any, default: Any) -> Schema:
        """One value of a type, with its default where YAML can express it."""
        if hint is Graph:
            return {"$ref": "#/properties/graph"}
        found = schema_of(hint, "#/$defs/{model}")
        self.definitions |= found.pop("$defs")
        plain = default is None or isinstance(default, bool | int | float | str)
        return found | {"default": default} if plain else found
