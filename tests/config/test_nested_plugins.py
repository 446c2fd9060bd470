"""Plug-ins among the options of others: read by their types, written, passed from Python, agreed on."""

from dataclasses import replace

import yaml

from decentnode.config import loader
from decentnode.config.python_source import document_of
from decentnode.config.settings import Settings
from decentnode.sharing import Choco, Gossip, Levels
from decentnode.simulation.quantities import Lognormal
from decentnode.training.pace import PaceSettings, Stragglers
from decentnode.transforms import Cast

STRAGGLERS = {"distribution": "stragglers", "factor": 3}
NESTED = {
    "rounds": 2,
    "graph": {"name": "hierarchical", "nodes": 4, "nodes_per_cluster": 2},
    "dataset": "digits",
    "model": "logistic_regression",
    "training.optimizer": {"name": "SGD", "lr": 0.1},
    "training.steps_per_round": 1,
    "training.pace": {"step_seconds": 0.1, "slowdown": STRAGGLERS},
    "sharing": {"name": "levels", "outer": {"name": "gossip", "transforms": ["cast"]}},
    "communication": {"name": "simulated", "latency": {"distribution": "exponential", "mean": "5 ms"}},
}


def nested(**changes) -> Settings:
    values = {**NESTED, **{name.replace("__", "."): value for name, value in changes.items()}}
    return loader.load(lambda: document_of(values))


def test_nested_plugins_are_written_as_they_are_read(tmp_path):
    settings = nested()
    values = yaml.safe_load(loader.dump(settings))
    assert values["sharing"]["inner"]["name"] == "gossip" and values["sharing"]["inner"]["transforms"] == []
    assert values["sharing"]["outer"]["transforms"] == [{"name": "cast", "dtype": "bf16"}]
    assert values["training"]["pace"]["slowdown"] == {
        "distribution": "stragglers",
        "share": 0.25,
        "factor": 3.0,
    }
    assert values["communication"]["latency"] == {"distribution": "exponential", "mean": "5 ms"}
    (tmp_path / "written.yaml").write_text(loader.dump(settings))
    assert loader.load(tmp_path / "written.yaml") == replace(settings, name="run")
    changed = loader.load(
        tmp_path / "written.yaml", ["sharing.inner.fill=zero", "training.pace.slowdown.share=1"]
    )
    assert changed.sharing.make().inner.scheme.fill == "zero"
    assert changed.training.slowed.slowdown == Stragglers(share=1.0, factor=3.0)


def test_each_instance_has_nested_ones_of_its_own():
    plugin = nested().sharing
    first, second = plugin.make(), plugin.make()
    assert first.inner.scheme is not second.inner.scheme
    assert first.outer.transforms[0] is not second.outer.transforms[0]


def test_python_passes_nested_plugins_as_objects_and_classes():
    outer = {"name": Choco, "transforms": [Cast("fp16")]}
    settings = nested(
        sharing={"name": Levels, "inner": Gossip(fill="zero"), "outer": outer},
        training__pace=PaceSettings(0.5, Stragglers(0.5)),
        communication={"name": "simulated", "latency": Lognormal(0.1)},
    )
    levels = settings.sharing.make()
    assert levels.inner.scheme.fill == "zero" and isinstance(levels.outer.scheme, Choco)
    assert levels.outer.transforms == (Cast("fp16"),)
    assert settings.training.slowed == PaceSettings(0.5, Stragglers(0.5))
    assert settings.communication.make().latency == Lognormal(0.1)
    assert "object" not in loader.dump(settings)


def test_options_of_a_nested_plugin_change_what_the_option_changes_that_holds_it():
    here = nested()
    graph = here.graph.make()
    slower = nested(
        communication={"name": "simulated", "latency": {"distribution": "exponential", "mean": 1}}
    )
    other = nested(sharing={**NESTED["sharing"], "inner": {"name": "gossip", "fill": "zero"}})
    paced = nested(training__pace={"step_seconds": 0.1, "slowdown": {**STRAGGLERS, "factor": 5}})
    kept = [loader.with_contents(s, graph, here.decides_models) for s in (here, slower, other, paced)]
    assert kept[0] == kept[1], "a latency decides no model where nodes wait for each other"
    assert kept[0] != kept[2] and kept[0] != kept[3]
    assert len({loader.digest(s, graph) for s in (here, slower, other, paced)}) == 4
