"""The JSON schema of configurations, with which editors complete and check them."""

from typing import Any, get_args, get_origin

from decentnode.config.extends import EXTENDS
from decentnode.config.plugin import keys_of_kind, named_in
from decentnode.config.plugin_parser import parameters_for
from decentnode.config.sections import is_value, scalar_parameters
from decentnode.config.settings import Settings, TimeModelSettings, TrainingSection
from decentnode.config.type_check import REQUIRED, Parameters, bare, holds, parameters_of, schema_of
from decentnode.core.registry import TRAININGS, Registry
from decentnode.graph.base import GRAPH_FILE, Graph
from decentnode.sharing.blocks.outer import OptimizerMaker

Schema = dict[str, Any]
DIALECT = "https://json-schema.org/draft/2020-12/schema"
USUAL = {"task": "classification", "loss": "CrossEntropyLoss"}
"""Names of plug-ins that follow from other sections, where nothing else is said."""
REQUIRED_KEYS = ["rounds", "graph", "dataset", "model", "training"]


def json_schema() -> Schema:
    """Returns the JSON schema of configurations, for editors, with the options of registered plug-ins."""
    builder = SchemaBuilder()
    sections = {name: given for name, given in parameters_of(Settings).items() if not is_value(given[0])}
    top = builder.object(scalar_parameters(""), builder.fields(sections))
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

    def fields(self, parameters: Parameters) -> Schema:
        """Returns the schemas of fields of the settings by their types."""
        return {name: self.field(*parameter) for name, parameter in parameters.items()}

    def field(self, hint: Any, default: Any) -> Schema:
        """Returns the schema of one field: a plug-in, a list of them, a section or a value."""
        named, section = named_in(hint), bare(hint)
        if is_value(hint):
            return self.value(hint, default)
        is_optional = type(None) in get_args(get_args(hint)[0] if named else hint)
        if named is None:
            found = self.training() if section is TrainingSection else self.section(section)
        elif get_origin(section) is tuple:
            return {"type": ["array", "null"], "items": self.plugin(named.registry)}
        else:
            name = named.default or USUAL.get(named.registry.kind, "")
            found = self.plugin(named.registry, name, self.fields(keys_of_kind(section)))
        return {"anyOf": [found, {"type": "null"}]} if is_optional else found

    def section(self, cls: type) -> Schema:
        """Returns the schema of a section; that of the time model may be its name alone."""
        parameters = parameters_of(cls)
        plugins = self.fields({name: given for name, given in parameters.items() if named_in(given[0])})
        values = {name: given for name, given in parameters.items() if name not in plugins}
        found = self.object(values, plugins)
        return {"anyOf": [{"type": "string"}, found]} if cls is TimeModelSettings else found

    def training(self) -> Schema:
        """Returns the schema of `training`: its `name` selects some of its keys; others are always valid."""
        parameters = parameters_of(TrainingSection)
        del parameters["task"], parameters["gradient_sync"]
        shared = self.fields(parameters)
        section: Schema = self.plugin(TRAININGS, "local", shared)["anyOf"][1]
        section["properties"] |= shared
        return section

    def plugin(self, registry: Registry, default: str = "", generic: Schema | None = None) -> Schema:
        """Returns the schema of a plug-in: its name, or a mapping whose `name` selects the other keys."""
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
        """Returns the schema of a mapping with these parameters, and no other keys than those in `more`."""
        properties = {name: self.value(*parameter) for name, parameter in parameters.items()} | (more or {})
        needed = [name for name, (_, default) in parameters.items() if default is REQUIRED]
        return {
            "type": "object",
            "properties": properties,
            "required": needed,
            "additionalProperties": False,
        }

    def value(self, hint: Any, default: Any) -> Schema:
        """Returns the schema of one value of a type, with its default where YAML can express it."""
        if hint is Graph:
            return {"$ref": "#/properties/graph"}
        if holds(hint, Graph):
            first, *others = get_args(hint)
            if others == [Ellipsis]:
                return {"type": "array", "items": self.value(first, REQUIRED)}
            parts = [self.value(part, REQUIRED) for part in (first, *others)]
            return {"type": "array", "prefixItems": parts, "minItems": len(parts), "maxItems": len(parts)}
        if hint == OptimizerMaker | None:
            optimizer = {"$ref": "#/properties/training/properties/optimizer"}
            return {"anyOf": [optimizer, {"type": "null"}], "default": None}
        found = schema_of(hint, "#/$defs/{model}")
        self.definitions |= found.pop("$defs")
        plain = default is None or isinstance(default, bool | int | float | str)
        return found | {"default": default} if plain else found
