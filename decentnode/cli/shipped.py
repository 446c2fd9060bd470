"""The output of `decentnode list configs` and `decentnode show`: what is shipped. Needs no torch."""

from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

from decentnode.config.shipped import (
    CONFIGS,
    GRAPHS,
    config_names,
    description,
    find_config,
    find_graph,
    portable_text,
)
from decentnode.core.registry import guess
from decentnode.errors import BadInput


def list_configs() -> Iterator[str]:
    """Yields a line for each shipped configuration: its name and what it is."""
    for _, group in groupby(config_names(), key=lambda name: Path(name).parent):
        names = [*group]
        width = max(map(len, names))
        for name in names:
            yield f"{name:<{width}}  {description(CONFIGS / f'{name}.yaml')}"


def text_of(name: str) -> str:
    """Returns the text of a shipped configuration or graph, for a copy anywhere; raises BadInput."""
    if config := find_config(name):
        return portable_text(config)
    if graph := find_graph(name):
        return graph.read_text()
    near = guess(name.removesuffix(".yaml"), [*config_names(), *(path.name for path in GRAPHS.iterdir())])
    raise BadInput(f"{name}: no such configuration or graph is shipped{near} (decentnode list configs)")
