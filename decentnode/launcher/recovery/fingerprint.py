"""What two runs must have in common for one to stand for the other: their settings, and their code."""

from functools import partial
from typing import Any

from decentnode.config import loader as config
from decentnode.config.settings import Settings
from decentnode.config.type_check import show
from decentnode.graph.base import Graph
from decentnode.launcher.recovery.resume import differences, nodes_of_machines
from decentnode.options import Effect


def fingerprint(settings: Settings, graph: Graph) -> str:
    """Returns a hash of all settings that change results, and of the graph and the files that they name."""
    content = config.with_contents(settings, graph, partial(_changes_results, settings))
    return config.hash_of(content | {"mapping": nodes_of_machines(settings)})


def difference(old_settings: Settings, new_settings: Settings) -> str:
    """Returns the first key whose value differs, with both values, as text; empty where none does."""
    old, new = (
        config.resolved(settings, keep=partial(_changes_results, settings))
        | {"mapping": nodes_of_machines(settings)}
        for settings in (old_settings, new_settings)
    )
    for key, (was, now) in differences(old, new):
        return f"{key} was {_shown(was)}, not {_shown(now)}"
    return ""


def _changes_results(settings: Settings, effect: Effect) -> bool:
    # Limits of time change nothing, except where virtual time decides by them who is lost.
    return effect.changes != "nothing" or settings.decides_models(effect)


def _shown(value: Any) -> str:
    return "unset" if value is None else show(value)
