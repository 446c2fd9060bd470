"""What two runs must have in common for one to stand for the other: their settings, and their code."""

import hashlib
from dataclasses import replace
from typing import Any, TypeVar

from decentnode.config import loader as config
from decentnode.config.plugin import Plugin
from decentnode.config.settings import CheckpointSettings, FailureSettings, Settings
from decentnode.config.type_check import show
from decentnode.graph.base import Graph
from decentnode.launcher.recovery.resume import differences

P = TypeVar("P", bound=Plugin)


def fingerprint(settings: Settings, graph: Graph) -> str:
    """Returns a hash of all settings that change results, and of the graph and the files that they name."""
    agreed = f"{settings.device} {config.digest(neutral(settings), graph)}"
    return hashlib.sha256(agreed.encode()).hexdigest()


def neutral(settings: Settings) -> Settings:
    """Returns the settings without what changes no result: names, places, ports, limits of time, writers."""
    ports = settings.communication.make().plan.ports(1, True)
    return replace(
        settings, name="run", run_dir=None, machine=None, security="none",
        # The deadline is what runs before `auto` have recorded.
        failures=replace(FailureSettings(), on_loss=settings.failures.on_loss, stop_deadline=60.0),
        checkpoint=CheckpointSettings(), records=replace(settings.records, writers=()),
        dataset=config.without_paths(settings.dataset),
        communication=_without(settings.communication, *ports),
        mapping=_without(settings.mapping, "rendezvous_port"),
        training=replace(
            settings.training,
            gradient_sync=_without(settings.training.gradient_sync, "port", "trusted_network"),
        ),
    )  # fmt: skip


def _without(plugin: P, *options: str) -> P:
    """Returns the plug-in, with these options unset if it has them."""
    return replace(plugin, options={k: None if k in options else v for k, v in plugin.options.items()})


def difference(old_settings: Settings, new_settings: Settings) -> str:
    """Returns the first key whose value differs, with both values, as text; empty where none does."""
    old, new = (config.resolved(neutral(settings)) for settings in (old_settings, new_settings))
    for key, (was, now) in differences(old, new):
        return f"{key} was {_shown(was)}, not {_shown(now)}"
    return ""


def _shown(value: Any) -> str:
    return "unset" if value is None else show(value)
