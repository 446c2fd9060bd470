"""The JSON schema of configurations, with which editors complete and check them."""

from collections.abc import Callable
from dataclasses import is_dataclass
from typing import Any, get_args, get_origin

from decentnode.config.extends import EXTENDS
from decentnode.config.plugin import keys_of_kind, named_in
from decentnode.config.plugin_parser import parameters_for
from decentnode.config.sections import is_value, scalar_parameters
from decentnode.config.settings import Settings, TimeModelSettings, TrainingSection
from decentnode.config.torch_classes import OPTIMIZERS
from decentnode.config.type_check import (
    REQUIRED,
    Parameters,
    bare,
    choices_of,
    holds_plugins,
    inlined_in,
    is_plugin,
    parameters_of,
    schema_of,
)
from decentnode.core.registry import TRAININGS, Registry, registry_of
from decentnode.graph.base import GRAPH_FILE

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

    def plugin(
        self, registry: Registry, default: str = "", generic: Schema | None = None, base: Any = object
    ) -> Schema:
        """Returns the schema of a plug-in: its name, or a mapping whose `name` selects the other keys."""
        classes = {
            name: cls
            for name, cls in registry.classes().items()
            if registry_of(base) is None or issubclass(cls, base)
        }
        named = {"anyOf": [{"enum": list(classes)}, {"pattern": ":"}]}
        if registry.kind == "graph":
            named["anyOf"].append({"pattern": f"^{GRAPH_FILE}$"})
        choices = []
        for name, cls in classes.items():
            options = self.object(
                parameters_for(registry, cls), {registry.key: {"const": name}} | (generic or {})
            )
            # Without `required` the condition also holds without a name, which means the default.
            asked = [] if name == default else [registry.key]
            choices.append(
                {"if": {"properties": {registry.key: {"const": name}}, "required": asked}, "then": options}
            )
        section = {"type": "object", "properties": {registry.key: named}, "allOf": choices}
        return {"anyOf": [{"type": "string"} | named, section]}

    def nested(self, hint: Any) -> Schema:
        """Returns the schema of one choice of a type that holds plug-ins."""
        if not holds_plugins(hint):
            return self.value(hint, REQUIRED)
        if is_plugin(hint):
            registry = registry_of(hint) or OPTIMIZERS
            return self._defined(registry.kind, lambda: self.plugin(registry, base=hint))
        if is_dataclass(hint):
            return self._defined(hint.__name__, lambda: self._nested_section(hint))  # type: ignore[union-attr]
        first, *others = get_args(hint)
        if others == [Ellipsis]:
            return {"type": "array", "items": self.value(first, REQUIRED)}
        parts = [self.value(part, REQUIRED) for part in (first, *others)]
        return {"type": "array", "prefixItems": parts, "minItems": len(parts), "maxItems": len(parts)}

    def _nested_section(self, cls: Any) -> Schema:
        parameters, inlined = parameters_of(cls), inlined_in(cls)
        if not inlined:
            return self.object(parameters)
        (base, *_) = get_args(parameters.pop(inlined)[0])
        registry = registry_of(base)
        assert registry is not None, "what is inlined is a plug-in"
        generic = {name: self.value(*parameter) for name, parameter in parameters.items()}
        return self.plugin(registry, generic=generic, base=base)

    def _defined(self, name: str, make: Callable[[], Schema]) -> Schema:
        """Returns a reference to a definition, which may refer to itself."""
        if name not in self.definitions:
            self.definitions[name] = {}
            self.definitions[name] = make()
        return {"$ref": f"#/$defs/{name}"}

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
        if holds_plugins(hint):
            choices = [self.nested(choice) for choice in choices_of(hint)]
            found: Schema = choices[0] if len(choices) == 1 else {"anyOf": choices}
        else:
            found = schema_of(hint, "#/$defs/{model}")
            self.definitions |= found.pop("$defs")
        return found | {"default": default} if _is_plain(default) else found


def _is_plain(default: Any) -> bool:
    return default is None or isinstance(default, bool | int | float | str)
