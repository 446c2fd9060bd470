"""What two runs must have in common for one to stand for the other: their settings, and their code."""

from typing import Any

from decentnode.config import loader as config
from decentnode.config.settings import Settings
from decentnode.config.type_check import show
from decentnode.graph.base import Graph
from decentnode.launcher.recovery.resume import differences, nodes_of_machines
from decentnode.options import Effect


def fingerprint(settings: Settings, graph: Graph) -> str:
    """Returns a hash of all settings that change results, and of the graph and the files that they name."""
    content = config.with_contents(settings, graph, _changes_results)
    return config.hash_of(content | {"mapping": nodes_of_machines(settings)})


def difference(old_settings: Settings, new_settings: Settings) -> str:
    """Returns the first key whose value differs, with both values, as text; empty where none does."""
    old, new = (
        config.resolved(settings, keep=_changes_results) | {"mapping": nodes_of_machines(settings)}
        for settings in (old_settings, new_settings)
    )
    for key, (was, now) in differences(old, new):
        return f"{key} was {_shown(was)}, not {_shown(now)}"
    return ""


def _changes_results(effect: Effect) -> bool:
    return effect.changes != "nothing"


def _shown(value: Any) -> str:
    return "unset" if value is None else show(value)
