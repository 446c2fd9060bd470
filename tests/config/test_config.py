"""Configurations that are right: what they mean, how overrides change them, how they are written back."""

import json
import re
import time
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from decentnode.config import loader as config
from decentnode.config import yaml_source
from decentnode.config.json_schema import json_schema
from decentnode.config.settings import Settings
from decentnode.config.yaml_source import Dumper
from decentnode.core.registry import REGISTRIES
from decentnode.models.base import Model

CONFIGS = Path(__file__).parents[2] / "configs"
SHIPPED = sorted(path for path in CONFIGS.rglob("*.yaml") if path.parent.name != "studies")
RING = "4\n0 1\n1 2\n2 3\n3 0\n"
SMALL = """\
rounds: 3
graph: ring.edges
dataset: digits
model: mlp
training: {optimizer: SGD, steps_per_round: 5}
"""
TWO_MACHINES = "mapping.machines=[{address: 10.0.0.1, nodes: 3}, {address: 10.0.0.2, nodes: 1}]"
NETWORK = """\
from torch import nn

class Net(nn.Sequential):
    def __init__(self, width: int = 3, bias: bool = True):
        super().__init__(nn.Flatten(), nn.Linear(64, width, bias=bias), nn.Linear(width, 10))
"""


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("ring.edges").write_text(RING)
    return tmp_path


def load(text: str, *overrides: str) -> Settings:
    Path("x.yaml").write_text(text)
    return config.load("x.yaml", overrides)


# What is filled in -------------------------------------------------------------------------------------


def test_defaults() -> None:
    settings = load(SMALL)
    assert (settings.name, settings.seed, settings.device, settings.machine) == ("x", 1, "cpu", None)
    plugins = (
        settings.graph,
        settings.mapping,
        settings.dataset.partition,
        settings.sharing,
        settings.sharing.weights,
    )
    names = [plugin.name for plugin in plugins]
    assert names == ["file", "linear", "iid", "gossip", "metropolis_hastings"]
    assert (settings.communication.name, settings.sharing.transforms) == ("zeromq", ())
    assert settings.training.loss.cls.__name__ == "CrossEntropyLoss"
    assert settings.training.optimizer.options["lr"] == 0.001


def test_default_mapping_is_this_machine_with_all_nodes() -> None:
    mapping = load(SMALL).mapping.make()
    assert [(machine.address, machine.nodes) for machine in mapping.machines] == [("127.0.0.1", 4)]


def test_default_weights_of_a_directed_graph() -> None:
    settings = load(SMALL, "graph.directed=true", "graph.allow_disconnected=true")
    assert settings.sharing.weights.name == "uniform"


def test_null_is_no_entry() -> None:
    text = SMALL + "seed: null\nmapping: null\nsharing: {weights: null, transforms: null}\nevaluation: null\n"
    assert load(text) == load(SMALL)


def test_plugin_makes_a_fresh_instance_each_time() -> None:
    sharing = load(SMALL).sharing
    assert sharing.make() is not sharing.make()


@pytest.mark.parametrize(
    ("text", "value"),
    [("1e-3", 0.001), ("1.", 1.0), (".5", 0.5), ("0x10", 16), ("0o17", 15), ("017", 17), ("1:30", "1:30"),
     ("on", "on"), ("no", "no"), ("y", "y"), ("2001-01-01", "2001-01-01"), ("~", None), ("", None),
     ("TRUE", True), ("1_000", "1_000"), ("=", "="), ("'1'", "1"), ("!!str 1", "1"), ("-0x1", "-0x1")],
)  # fmt: skip
def test_scalars_follow_yaml_1_2(text, value) -> None:
    Path("v.yaml").write_text(f"a: {text}\n")
    scalar = yaml_source.read("v.yaml").value["a"]
    assert (scalar, type(scalar)) == (value, type(value))


def test_alias_stands_for_what_it_names() -> None:
    settings = load(SMALL + "evaluation: &rarely {every: 40}\ncheckpoint: *rarely\n")
    assert settings.checkpoint.every == settings.evaluation.every == 40


def test_one_number_per_machine_becomes_one_per_rank() -> None:
    training = load(SMALL, TWO_MACHINES, "training.steps_per_round=[7, 2]").training
    assert training.steps_per_round == (7, 7, 7, 2)


def test_class_from_the_current_folder() -> None:
    Path("mynet.py").write_text(NETWORK)
    plugin = load(SMALL, "model={name: 'mynet:Net', width: 5}").model
    model = plugin.make()
    assert isinstance(model, Model)
    assert model.build((1, 8, 8), 10)[1].out_features == 5


def test_paths_start_at_the_file_then_at_the_current_folder(here) -> None:
    (here / "deep").mkdir()
    (here / "deep" / "x.yaml").write_text(SMALL)
    from_current = config.load("deep/x.yaml").graph.options["path"]
    (here / "deep" / "ring.edges").write_text(RING)
    from_file = config.load("deep/x.yaml").graph.options["path"]
    override = config.load("deep/x.yaml", ["graph=ring.edges"]).graph.options["path"]
    assert [from_current, from_file, override] == [
        str(here / "ring.edges"), str(here / "deep" / "ring.edges"), str(here / "ring.edges"),
    ]  # fmt: skip


# Overrides ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("override", "holds"),
    [
        ("seed=7", lambda s: s.seed == 7),
        ("run_dir=runs/a", lambda s: s.run_dir == "runs/a"),
        ("training.optimizer.lr=0.05", lambda s: s.training.optimizer.options["lr"] == 0.05),
        ("training.optimizer=Adam", lambda s: s.training.optimizer.name == "Adam"),
        ("failures.deadline=5", lambda s: s.failures.deadline == 5.0),
        ("dataset.partition={name: shards}", lambda s: s.dataset.partition.name == "shards"),
        ("graph.type=edges", lambda s: s.graph.options["type"] == "edges"),
        ("mapping.machines=[{address: '::1', nodes: 4}]", lambda s: s.mapping.make().address(0) == "::1"),
        ("sharing=none", lambda s: s.sharing.name == "none"),
        ("sharing.transforms=[cast]", lambda s: [t.name for t in s.sharing.transforms] == ["cast"]),
        ("evaluation=null", lambda s: s.evaluation.every == 10),
    ],
)
def test_override(override, holds) -> None:
    assert holds(load(SMALL, override))


@pytest.mark.parametrize("key", ["mapping.machines[1].nodes", "mapping.machines.1.nodes"])
def test_override_of_a_list_entry(key) -> None:
    settings = load(SMALL, TWO_MACHINES.replace("nodes: 1", "nodes: 9"), f"{key}=1")
    assert settings.mapping.make().num_nodes == 4


# Writing back ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_shipped_configuration_is_right_and_survives_a_dump(path) -> None:
    settings = config.load(path)
    Path("again.yaml").write_text(config.dump(settings))
    again = config.load("again.yaml")
    assert again == settings
    graph = settings.graph.make()
    assert config.digest(again, again.graph.make()) == config.digest(settings, graph)


@pytest.mark.parametrize(
    "overrides",
    [
        [],
        ["training.scheduler={name: MultiStepLR, milestones: [1, 2]}", "training.optimizer=Adam"],
        ["training.loss={name: MSELoss, reduction: sum}", "training.mix_buffers=true"],
        [TWO_MACHINES, "training.steps_per_round=[1, 2]", "machine=1", "run_dir=here"],
        ["training.steps_per_round=null", "training.epochs_per_round=0.5", "training.clip_norm=1"],
        ["sharing.transforms=[{name: cast, dtype: fp16}]", "sharing.weights=uniform", "name=on"],
        ["graph={name: ring, nodes: 5}", "communication=inproc"],
        ["dataset.partition={name: dirichlet, alpha: 1e-3}", "name='1e-3'"],
    ],
)
def test_dump_gives_equal_settings(overrides) -> None:
    settings = load(SMALL, *overrides)
    assert load(config.dump(settings)) == settings


plain_text = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]))
scalars = st.none() | st.booleans() | st.integers(1 - 2**63, 2**63 - 1) | plain_text
scalars |= st.floats(allow_nan=False, allow_infinity=False)
plain_keys = plain_text.filter(lambda key: key != "<<")
"""`<<` merges another mapping into one."""
trees = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(plain_keys, inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(plain_keys, trees, min_size=1, max_size=3))
def test_what_is_written_is_read_back(values) -> None:
    Path("v.yaml").write_text(yaml_source.dump(values), encoding="utf-8", newline="")
    document = yaml_source.read("v.yaml")
    assert (document.value, document.defects) == (values, [])


def test_texts_that_look_like_numbers_are_quoted() -> None:
    assert yaml.dump(["1e-3", "on", "0o7"], Dumper=Dumper) == "- '1e-3'\n- on\n- '0o7'\n"


# The digest --------------------------------------------------------------------------------------------


def digest(*overrides: str) -> str:
    settings = load(SMALL, *overrides)
    return config.digest(settings, settings.graph.make())


@pytest.mark.parametrize("override", ["machine=0", "run_dir=elsewhere", "device=auto", "seed=1"])
def test_machines_may_differ_in(override) -> None:
    assert digest(override) == digest()


@pytest.mark.parametrize(
    "override",
    ["seed=2", "rounds=4", "sharing=none", "training.optimizer.lr=1", "sharing.transforms=[cast]",
     "failures.deadline=1", "mapping.machines=[{address: 10.0.0.1, nodes: 4}]", "sharing.weights=uniform"],
)  # fmt: skip
def test_machines_must_agree_on(override) -> None:
    assert digest(override) != digest()


def test_digest_knows_the_edges_not_the_place_of_a_graph_file() -> None:
    before = digest()
    Path("same.edges").write_text("# the same edges\n4\n3 0\n2 3\n1 2\n0 1\n")
    Path("other.edges").write_text("4\n0 1\n1 2\n2 3\n")
    assert digest("graph=same.edges") == before
    assert digest("graph=other.edges") != before


def test_digest_knows_the_content_not_the_place_of_a_weights_file() -> None:
    rows = [[0.5 if i == j else 0.25 if (i - j) % 2 else 0 for j in range(4)] for i in range(4)]
    text = "\n".join(" ".join(map(str, row)) for row in rows)
    Path("a.txt").write_text(text)
    Path("b.txt").write_text(text)
    before = digest("sharing.weights={name: file, path: a.txt}")
    assert digest("sharing.weights={name: file, path: b.txt}") == before
    Path("b.txt").write_text("# another\n" + text)
    assert digest("sharing.weights={name: file, path: b.txt}") != before


# For editors -------------------------------------------------------------------------------------------


def test_paths_are_what_a_shell_makes_of_them(here, monkeypatch) -> None:
    monkeypatch.setenv("HOME", str(here / "home"))
    monkeypatch.setenv("PLACE", str(here / "place"))
    (here / "place").mkdir()
    (here / "place" / "ring.edges").write_text("3\n0 1\n1 0\n1 2\n2 1\n2 0\n0 2\n")
    text = "dataset={name: text, path: $PLACE/x}"
    settings = load(SMALL, "run_dir=~/a", "graph=${PLACE}/ring.edges", text)
    assert settings.run_dir == str(here / "home" / "a")
    assert settings.graph.options["path"] == str(here / "place" / "ring.edges")
    assert str(settings.dataset.options["path"]) == str(here / "place" / "x")


def section_names(schema: dict) -> set[str]:
    """The names that the schema of a plug-in section offers."""
    named = next(iter(schema["anyOf"][1]["properties"].values()))
    return set(named["anyOf"][0]["enum"])


def test_schema_offers_every_plugin_and_its_options() -> None:
    schema = json_schema()
    sections = schema["properties"]
    assert "default" not in sections["name"], "by default it is that of the file"
    dataset, sharing = (
        sections[name]["anyOf"][1]["allOf"][0]["then"]["properties"] for name in ("dataset", "sharing")
    )
    training, records = (sections[name]["properties"] for name in ("training", "records"))
    in_order_of_registries = [
        sections["graph"],
        sections["mapping"],
        sharing["weights"],
        sections["sharing"],
        sharing["transforms"]["items"],
        sections["communication"],
        sections["model"],
        sections["dataset"],
        dataset["partition"],
        dataset["skew"]["items"],
        sections["task"],
        schema["properties"]["evaluation"]["properties"]["metrics"]["items"],
        training["augmentation"]["items"],
        training["privacy"]["anyOf"][0],
        schema["$defs"]["correlation"],
        {"anyOf": [None, sections["training"]]},
        sections["faults"]["items"],
        sections["adversaries"]["items"],
        records["writers"]["items"],
        schema["$defs"]["distribution"],
        schema["$defs"]["slowdown"],
    ]
    offered = [section_names(section) for section in in_order_of_registries]
    # Executors are named in the file of a study.
    of_runs = [registry for registry in REGISTRIES if registry.kind != "executor"]
    assert offered == [set(registry.classes()) for registry in of_runs]


def test_schema_knows_types_ranges_and_defaults() -> None:
    schema = json_schema()
    assert schema["properties"]["rounds"] == {"exclusiveMinimum": 0, "type": "integer"}
    optimizer = schema["properties"]["training"]["properties"]["optimizer"]["anyOf"][1]["allOf"]
    (sgd,) = (case["then"] for case in optimizer if case["if"]["properties"]["name"] == {"const": "SGD"})
    assert sgd["properties"]["lr"] == {"type": "number", "default": 0.001}
    assert sgd["additionalProperties"] is False


def test_schema_refers_only_to_what_it_defines() -> None:
    schema = json_schema()
    referred = set(re.findall(r'"\$ref": "([^"]+)"', json.dumps(schema)))
    elsewhere = {"#/properties/graph", "#/properties/training/properties/optimizer"}
    assert referred - elsewhere == {f"#/$defs/{name}" for name in schema["$defs"]} != set()


# The rest ----------------------------------------------------------------------------------------------


def test_loading_takes_less_than_a_tenth_of_a_second() -> None:
    load(SMALL)
    # Of this process: other programs may have the processor meanwhile.
    start = time.process_time()
    load(SMALL)
    assert time.process_time() - start < 0.1


def test_reference_shows_every_key() -> None:
    path = next(path for path in SHIPPED if path.name == "reference.yaml")
    shown = yaml_source.read(path).value
    resolved = config.resolved(config.load(path))
    # The options of torch's classes are torch's to document.
    for section in (shown, resolved):
        section["training"] |= {"optimizer": "", "scheduler": "", "loss": ""}
        section["sharing"]["weights"] = ""
    assert keys(shown) == keys(resolved)


def keys(value: object) -> object:
    """Returns the same tree with the values left out."""
    if isinstance(value, dict):
        return {key: keys(inner) for key, inner in value.items()}
    if isinstance(value, list) and value and isinstance(value[0], dict):
        return [keys(inner) for inner in value]
    return ""


def test_a_module_beside_the_configuration_is_found(tmp_path, monkeypatch) -> None:
    (tmp_path / "apart").mkdir()
    (tmp_path / "net_beside.py").write_text("import torch\n\nclass Net(torch.nn.Linear):\n    pass\n")
    (tmp_path / "x.yaml").write_text(SMALL)
    monkeypatch.chdir(tmp_path / "apart")
    options = "model={name: 'net_beside:Net', in_features: 64, out_features: 10}"
    assert config.load(tmp_path / "x.yaml", [options]).model.cls.__name__ == "Net"
