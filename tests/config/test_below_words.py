"""Overrides below an option that is a word or a number: the word stays a name, or a mapping replaces it."""

import json
from pathlib import Path
from typing import Any

import pytest

from decentnode.config import extends, loader, overrides, yaml_source
from decentnode.config.python_source import document_of
from decentnode.config.settings import Settings
from decentnode.config.yaml_source import SourceLocation
from decentnode.studies.expansion import planned_runs
from decentnode.studies.study_file import read_study

BASE = {
    "name": "below",
    "rounds": 2,
    "graph": {"name": "hierarchical", "nodes": 4, "nodes_per_cluster": 2},
    "dataset": "digits",
    "model": "logistic_regression",
    "training.optimizer": "SGD",
    "training.steps_per_round": 1,
    "training.pace": "instant",
    "sharing": "gossip",
    "communication": "simulated",
}
ON_SOCKETS = {"communication": "zeromq", "training.pace": None}
ROWS: list[tuple[dict[str, Any], str, Any, dict[str, Any]]] = [
    ({"training.execution": "alone"}, "training.execution.workers", 2, {"workers": 2}),
    ({"training.execution": "auto"}, "training.execution.batches", 3, {"batches": 3}),
    ({}, "training.pace.step_seconds", 0.05, {"step_seconds": 0.05, "slowdown": 1}),
    (
        {"training.pace": {"step_seconds": 1, "slowdown": "stragglers"}},
        "training.pace.slowdown.share",
        0.5,
        {"distribution": "stragglers", "share": 0.5, "factor": 4},
    ),
    (
        {"training.pace": {"step_seconds": 1, "slowdown": "stragglers"}},
        "training.pace.slowdown.distribution",
        "exponential",
        {"distribution": "exponential", "drawn": "step"},
    ),
    (
        {"training.pace": {"step_seconds": 1, "slowdown": 2.0}},
        "training.pace.slowdown.distribution",
        "stragglers",
        {"distribution": "stragglers", "share": 0.25},
    ),
    (
        {"training.pace": {"step_seconds": 1, "device_classes": "d.csv", "device": "a"}},
        "training.pace.device.b",
        1,
        {"b": 1},
    ),
    ({"communication.latency": "20 ms"}, "communication.latency.table", "azure", {"table": "azure"}),
    ({"communication.latency": 0.02}, "communication.latency.table", "azure", {"table": "azure"}),
    ({"communication.uplink": "1 Mbps"}, "communication.uplink.table", "mlab", {"table": "mlab"}),
    ({"communication.downlink": "1 Mbps"}, "communication.downlink.table", "mlab", {"table": "mlab"}),
    (
        {"communication.bandwidth": "1 Mbps"},
        "communication.bandwidth.edges",
        [[0, 1, "2 Mbps"]],
        {"edges": [[0, 1, "2 Mbps"]], "others": None},
    ),
    (
        {"communication.latency": {"edges": [[0, 1, 0.5]], "others": "20 ms"}},
        "communication.latency.others.table",
        "azure",
        {"table": "azure"},
    ),
    ({**ON_SOCKETS, "security": "none"}, "security.secret", "s.txt", {}),
    ({**ON_SOCKETS, "security": "auto"}, "security.keys", "keys", {}),
    ({}, "training.optimizer.lr", 0.5, {"name": "SGD", "lr": 0.5}),
    ({}, "sharing.fill", "zero", {"name": "gossip", "fill": "zero"}),
    ({"sharing.outer": "SGD"}, "sharing.outer.lr", 0.5, {"name": "SGD", "lr": 0.5}),
    ({"sharing.outer": "SGD"}, "sharing.outer.name", "Adam", {"name": "Adam"}),
    (
        {"sharing": {"name": "levels", "outer": "gossip"}},
        "sharing.outer.fill",
        "zero",
        {"name": "gossip", "fill": "zero", "transforms": []},
    ),
    (
        {
            "training.privacy": {"name": "dp_sgd", "clip": 1, "noise": 1, "delta": 1e-5},
            "training.privacy.correlation": "factorized",
        },
        "training.privacy.correlation.workload",
        "alone",
        {"name": "factorized", "workload": "alone"},
    ),
    (
        {"dataset": {"name": "table", "path": "t.csv", "columns": {"a": "category"}}},
        "dataset.columns.a.max_categories",
        3,
        {"kind": "category", "max_categories": 3},
    ),
    (
        {**ON_SOCKETS, "sharing": "ad_psgd", "time_model": "asynchronous"},
        "time_model.seconds_per_round",
        0.1,
        {"name": "asynchronous", "seconds_per_round": 0.1},
    ),
]
"""What the file has, an override, and what the settings have in the section of the override."""


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("d.csv").write_text("class,factor\na,3\nb,1\n")
    Path("t.csv").write_text("a,label\n" + "".join(f"{n % 3},{n % 2}\n" for n in range(60)))
    Path("s.txt").write_text("x" * 64)


def write(**changes: Any) -> None:
    values = document_of({**BASE, **changes}).value
    Path("base.yaml").write_text(yaml_source.dump(values))


def in_a_file_that_extends(key: str, value: Any) -> Settings:
    nested = document_of({key: value}).value
    Path("x.yaml").write_text(yaml_source.dump({"extends": "base.yaml", **nested}))
    return loader.load("x.yaml")


def in_a_study(key: str, value: Any) -> Settings:
    document = extends.read("base.yaml")
    overrides.put(document, key, value, source=SourceLocation(1))
    return loader.understand(document)


@pytest.mark.parametrize(
    ("given", "key", "value", "wanted"), ROWS, ids=[f"{row[1]}, {n}" for n, row in enumerate(ROWS)]
)
def test_an_override_below_a_word_is_the_same_wherever_it_is_from(given, key, value, wanted) -> None:
    write(**given)
    settings = loader.load("base.yaml", [f"{key}={json.dumps(value)}"])
    section: Any = loader.resolved(settings)
    for word in key.split(".")[:-1]:
        section = section[word]
    assert section.items() >= wanted.items()
    assert list(section).count("name") == ("name" in wanted)
    assert loader.load("base.yaml", [{key: value}]) == settings
    assert in_a_file_that_extends(key, value) == settings
    assert in_a_study(key, value) == settings
    Path("again.yaml").write_text(loader.dump(settings))
    assert loader.load("again.yaml") == settings


def test_a_word_and_what_is_below_it_come_in_any_order() -> None:
    changes = {"sharing.outer.lr": 0.5, "sharing.outer": "Adam", "sharing": "gossip"}
    write(sharing={"name": "gossip", "fill": "zero"})
    settings = loader.load("base.yaml", [changes])
    in_turn = ["sharing=gossip", "sharing.outer=Adam", "sharing.outer.lr=0.5"]
    assert settings == loader.load("base.yaml", in_turn)
    assert settings == loader.load("base.yaml", [dict(reversed(changes.items()))])
    outer = settings.sharing.options["outer"]
    assert (outer.name, outer.options["lr"]) == ("Adam", 0.5)


def test_below_the_name_of_a_plugin_in_a_list() -> None:
    write(**{"sharing.transforms": ["top_k"]})
    settings = loader.load("base.yaml", ["sharing.transforms[0].fraction=0.5"])
    assert settings.sharing.transforms[0].options["fraction"] == 0.5


def test_an_axis_below_a_word() -> None:
    write(**{"training.execution": "alone"})
    Path("study.yaml").write_text(
        "base: base.yaml\n"
        "axes: {training.execution.workers: [1, 2], training.pace.step_seconds: [0.1, 0.2]}\n"
    )
    found = [run.settings.training for run in planned_runs(read_study("study.yaml"))]
    assert [one.execution.workers for one in found] == [1, 1, 2, 2]
    assert [one.slowed.step_seconds for one in found] == [0.1, 0.2, 0.1, 0.2]
