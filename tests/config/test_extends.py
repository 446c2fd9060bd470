"""Configurations that extend others: what they inherit, and what their paths mean.

The messages about those that are wrong are in `tests/corpus`.
"""

import json
from pathlib import Path

import pytest

from decentnode.config import extends, loader
from decentnode.config.json_schema import json_schema
from decentnode.config.settings import KeyFolder, Settings

RING = "4\n0 1\n1 2\n2 3\n3 0\n"
BASE = """\
name: base
rounds: 3
graph: ring.edges
dataset: {name: digits, train_size: 100, partition: {name: dirichlet, alpha: 0.5}}
model: {name: mlp, hidden: [64, 32]}
training:
  optimizer: {name: SGD, lr: 0.1, momentum: 0.9}
  steps_per_round: 5
  pace: {step_seconds: 1, slowdown: {distribution: lognormal, sigma: 2}}
sharing:
  name: choco
  gamma: 0.2
  transforms: [top_k]
evaluation: {every: 2}
"""


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    """Makes a folder `base`, which has a graph file, beside the folder of the configurations."""
    for folder in ("base", "mine"):
        (tmp_path / folder).mkdir()
    (tmp_path / "base" / "ring.edges").write_text(RING)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def load(text: str, *overrides: str, base: str = BASE) -> Settings:
    Path("base/base.yaml").write_text(base)
    Path("mine/x.yaml").write_text("extends: ../base/base.yaml\n" + text)
    return loader.load("mine/x.yaml", overrides)


# What is inherited -------------------------------------------------------------------------------------


def test_what_a_configuration_leaves_out_is_that_of_its_base() -> None:
    settings = load("")
    assert settings == loader.load("base/base.yaml")
    assert settings.name == "base"
    assert load("", base=BASE.replace("name: base\n", "")).name == "x"


@pytest.mark.parametrize(
    ("text", "holds"),
    [
        ("seed: 7", lambda s: (s.seed, s.rounds) == (7, 3)),
        ("training: {optimizer: {lr: 0.5}}", lambda s: s.training.optimizer.options["momentum"] == 0.9),
        (
            "training: {batch_size: 9}",
            lambda s: (s.training.batch_size, s.training.steps_per_round) == (9, 5),
        ),
        ("training: {optimizer: {name: Adam}}", lambda s: "momentum" not in s.training.optimizer.options),
        ("training: {optimizer: Adam}", lambda s: s.training.optimizer.options["lr"] == 0.001),
        ("model: {hidden: [8]}", lambda s: s.model.options["hidden"] == (8,)),
        (
            "sharing: {gamma: 0.3}",
            lambda s: (s.sharing.options["gamma"], len(s.sharing.transforms)) == (0.3, 1),
        ),
        ("sharing: {name: choco, gamma: 0.3}", lambda s: len(s.sharing.transforms) == 1),
        ("sharing: {name: gossip}", lambda s: (s.sharing.name, s.sharing.transforms) == ("gossip", ())),
        ("sharing: choco", lambda s: s.sharing.options["gamma"] == 0.1 and s.sharing.transforms == ()),
        ("sharing: {transforms: []}", lambda s: (s.sharing.name, s.sharing.transforms) == ("choco", ())),
        ("sharing: {}", lambda s: s.sharing.options["gamma"] == 0.2),
        ("sharing: null", lambda s: s.sharing.name == "gossip"),
        ("graph: {type: edges}", lambda s: s.graph.options["type"] == "edges"),
        ("graph: {name: ring, nodes: 5}", lambda s: s.graph.name == "ring"),
        ("dataset: {partition: {alpha: 2}}", lambda s: s.dataset.partition.options["alpha"] == 2.0),
        ("dataset: {partition: iid}", lambda s: s.dataset.options["train_size"] == 100),
        ("dataset: {name: digits, test_size: 50}", lambda s: s.dataset.partition.name == "dirichlet"),
        ("dataset: {name: quadratic, nodes: 4}", lambda s: s.dataset.partition.name == "iid"),
        (
            "training: {pace: {slowdown: {distribution: exponential}}}",
            lambda s: s.training.pace.options["slowdown"].name == "exponential",
        ),
        ("training: {name: local, batch_size: 9}", lambda s: s.training.steps_per_round == 5),
        ("evaluation: null", lambda s: s.evaluation.every == 10),
        ("failures: {grace: 1}", lambda s: s.failures.grace == 1.0),
    ],
)
def test_what_it_says_changes_the_base(text, holds) -> None:
    assert holds(load(text + "\n"))


@pytest.mark.parametrize(
    ("key", "name"), [(key, name) for key, name in extends.DEFAULT_NAMES.items() if name]
)
def test_a_section_without_a_name_has_the_default_plugin(key, name) -> None:
    """Naming the default changes nothing, and naming another plug-in replaces the section."""
    section = f"{{name: {name}}}"
    for word in reversed(key):
        section = f"{{{word}: {section}}}"
    base = BASE.partition("sharing:")[0].replace("{name: dirichlet, alpha: 0.5}", "{ranks: null}")
    inner = "machines: [{address: 127.0.0.1, nodes: 4}]"
    base += f"mapping: {{{inner}}}\nsharing: {{fill: zero}}\ncommunication: {{base_port: 2000}}\n"
    base += "  # end\n"
    base = base.replace("  steps_per_round: 5", "  steps_per_round: 5\n  loss: {label_smoothing: 0.1}")
    assert load(section[1:-1] + "\n", base=base) == loader.load("base/base.yaml")


def test_overrides_come_last() -> None:
    settings = load("seed: 7\nsharing: {gamma: 0.3}\n", "sharing.gamma=0.4", "training.optimizer.lr=1")
    assert (settings.sharing.options["gamma"], settings.training.optimizer.options["lr"]) == (0.4, 1.0)
    assert settings.training.optimizer.options["momentum"] == 0.9


def test_bases_have_bases() -> None:
    load("seed: 7\nsharing: {gamma: 0.3}\n")
    Path("y.yaml").write_text("extends: mine/x.yaml\nrounds: 9\n")
    Path("z.yaml").write_text("extends: y.yaml\nsharing: {gamma: 0.5}\n")
    settings = loader.load("z.yaml")
    assert (settings.seed, settings.rounds, settings.sharing.options["gamma"]) == (7, 9, 0.5)
    assert settings.evaluation.every == 2
    assert extends.read("z.yaml").bases == ["y.yaml", "mine/x.yaml", "base/base.yaml"]


def test_a_value_that_was_replaced_has_no_error() -> None:
    assert load("sharing: gossip\n", base=BASE.replace("gamma", "gama")).sharing.name == "gossip"


# What paths mean ---------------------------------------------------------------------------------------


def test_paths_of_a_base_start_at_its_folder(here) -> None:
    """The paths of a configuration start at its own folder, whatever lies in the folder of its base."""
    (here / "mine" / "ring.edges").write_text(RING)
    assert load("").graph.options["path"] == str(here / "base" / "ring.edges")
    assert load("graph: ring.edges\n").graph.options["path"] == str(here / "mine" / "ring.edges")
    assert load("graph: {type: edges}\n").graph.options["path"] == str(here / "base" / "ring.edges")


def test_the_data_beside_a_base_are_found(here) -> None:
    from tests.corpus.formats import cifar_files

    (here / "base" / "data").mkdir()
    for name, content in cifar_files().items():
        (here / "base" / "data" / name).write_bytes(content)
    base = BASE.replace("{name: digits,", "{name: cifar10,")
    assert load("", base=base).dataset.options["path"] == str(here / "base" / "data")
    named = base.replace("cifar10,", "cifar10, path: data,")
    assert load("seed: 2\n", base=named).dataset.options["path"] == str(here / "base" / "data")


def test_a_module_beside_a_base_is_found(here) -> None:
    (here / "base" / "net_of_base.py").write_text("import torch\n\nclass Net(torch.nn.Linear):\n    pass\n")
    model = "{name: 'net_of_base:Net', in_features: 64, out_features: 10}"
    base = BASE.replace("{name: mlp, hidden: [64, 32]}", model)
    assert load("model: {bias: false}\n", base=base).model.options["bias"] is False


def test_the_keys_of_a_base_are_found_and_the_own_ones_come_first(here) -> None:
    base = BASE + "mapping: {machines: [{address: 10.0.0.1, nodes: 2}, {address: 10.0.0.2, nodes: 2}]}\n"
    (here / "base" / "keys").mkdir()
    assert load("", base=base).security == KeyFolder(here / "base" / "keys")
    assert load("security: none\n", base=base).security == "none"
    (here / "mine" / "keys").mkdir()
    assert load("", base=base).security == KeyFolder(here / "mine" / "keys")
    named = base + "security: {keys: keys}\n"
    assert load("", base=named).security == KeyFolder(here / "base" / "keys")


# What is shown -----------------------------------------------------------------------------------------


def test_the_resolved_configuration_stands_alone(here, call) -> None:
    settings = load("seed: 7\nsharing: {gamma: 0.3}\n")
    code, shown, _ = call("validate", "--resolved", "mine/x.yaml", "rounds=4")
    assert code == 0 and "extends" not in shown
    (here / "elsewhere").mkdir()
    Path("elsewhere/full.yaml").write_text(shown)
    again = loader.load("elsewhere/full.yaml", ["rounds=3"])
    graph = settings.graph.make()
    assert again == settings
    assert loader.digest(again, again.graph.make()) == loader.digest(settings, graph)


def test_the_schema_knows_the_key_and_misses_nothing_that_a_base_may_have() -> None:
    schema = json_schema()
    assert schema["properties"]["extends"] == {"type": ["string", "null"]}
    assert schema["if"] == {"required": ["extends"]}
    assert set(schema["else"]["required"]) == {"rounds", "graph", "dataset", "model", "training"}
    assert "required" not in schema
    assert json.dumps(schema)
