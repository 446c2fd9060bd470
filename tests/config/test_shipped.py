"""Configurations and graphs that are shipped, by their names, in a folder that has none of them."""

import re
from pathlib import Path

import pytest

from decentnode.config import extends, loader, shipped, yaml_source
from decentnode.errors import ConfigError
from decentnode.studies.study_file import read_study

ROOT = Path(__file__).resolve().parents[2]
NAMES = shipped.config_names()


@pytest.fixture(autouse=True)
def empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def test_a_checkout_has_its_files_at_the_top():
    assert shipped.FOLDER == ROOT
    assert {"quickstart", "studies/quick", "experiments/decentralizepy/celeba"} <= {*NAMES}
    assert len(NAMES) == len([*ROOT.glob("configs/**/*.yaml")])
    assert NAMES[0] == "adapters", "those of the top folder first"


def test_a_name_works_anywhere_and_means_the_shipped_file():
    by_path = loader.load(ROOT / "configs" / "quickstart.yaml")
    assert loader.load("quickstart") == loader.load(Path("quickstart.yaml")) == by_path
    assert by_path.name == "quickstart"
    assert extends.read("experiments/decentralizepy/celeba_choco").bases == [
        str(ROOT / "configs" / "experiments" / "decentralizepy" / "celeba.yaml")
    ]
    assert read_study("studies/quick").base == ROOT / "configs" / "quickstart.yaml"


def test_files_of_the_user_go_first(tmp_path):
    (tmp_path / "choco").mkdir()
    assert shipped.config_path("choco") == ROOT / "configs" / "choco.yaml", "a folder is no configuration"
    (tmp_path / "choco.yaml").write_text("seed: 7\n")
    assert yaml_source.read("choco").value == {"seed": 7}
    (tmp_path / "ring_16.edges").write_text("3\n0 1\n1 2\n")
    graph = loader.load("quickstart", ["graph=ring_16.edges"]).graph
    assert graph.options["path"] == str(tmp_path / "ring_16.edges")


def test_a_configuration_extends_a_shipped_one_and_names_a_shipped_graph(tmp_path):
    """Also where it has the same file name."""
    (tmp_path / "quickstart.yaml").write_text("extends: quickstart\ngraph: ring_16.edges\nrounds: 2\n")
    settings = loader.load("quickstart.yaml")
    assert (settings.rounds, settings.graph.make().num_nodes) == (2, 16)
    assert settings.graph.options["path"] == str(ROOT / "graphs" / "ring_16.edges")
    (tmp_path / "study.yaml").write_text("base: quickstart\nseeds: 2\n")
    assert read_study("study.yaml").base == ROOT / "configs" / "quickstart.yaml"


def test_configurations_say_whether_a_resumed_run_has_the_models_of_a_whole_one():
    """Those that do not are in docs/reliability.md, too."""
    reasons = {name: loader.load(name).why_resume_differs for name in NAMES if "/" not in name}
    by_reason: dict[str | None, set[str]] = {}
    for name, reason in reasons.items():
        by_reason.setdefault(reason, set()).add(name)
    assert by_reason.pop("steps and messages in progress are not saved") == {"asynchronous", "async_diloco"}
    secret = by_reason.pop("generator: secure draws other numbers")
    assert secret == {"dp_sgd", "mafalda_sgd", "decor", "muffliato", "zip_dl", "shatter", "reference"}
    page = (ROOT / "docs" / "reliability.md").read_text("utf-8")
    assert all(f"`{name}`" in page for name in secret) and set(by_reason) == {None}
    for words, reason in {
        ("zip_dl", "sharing.generator=seeded"): None,
        ("simulated", "faults=[{name: crash, ranks: 1, at: 1}]"): "nodes that faults put at different times",
        ("quickstart", "training.seconds_per_round=1"): "the steps of a round depend on the speed",
    }.items():
        found = loader.load(words[0], list(words[1:])).why_resume_differs
        assert found is reason is None or found.startswith(reason), words


ALL = "decentnode list configs shows those that ship"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("quikstart", f"; did you mean 'quickstart'? {ALL}"),
        ("celeba_choco", f"; did you mean 'experiments/decentralizepy/celeba_choco'? {ALL}"),
        ("studies/quik", f"; did you mean 'studies/quick'? {ALL}"),
        ("zzz", f"; {ALL}"),
        ("quikstart.yaml", ""),
        ("elsewhere/quickstart", ""),
    ],
)
def test_a_wrong_name_gets_the_nearest_and_a_missing_path_does_not(name, message):
    with pytest.raises(ConfigError) as error:
        loader.load(name)
    assert str(error.value) == f"{name}: cannot be read: No such file or directory{message}"


def test_a_wrong_name_in_a_file(tmp_path):
    (tmp_path / "mine.yaml").write_text("extends: quikstart\n")
    wrong = f"no such file: {tmp_path / 'quikstart'}; did you mean 'quickstart'? {ALL}"
    with pytest.raises(ConfigError, match=re.escape(f"mine.yaml:1 extends: {wrong}")):
        loader.load("mine.yaml")
    (tmp_path / "study.yaml").write_text("base: quikstart\n")
    with pytest.raises(ConfigError, match=re.escape(f"study.yaml:1 base: {wrong}")):
        read_study("study.yaml")


def named(value: dict) -> dict:
    """The values with names in the place of paths to shipped files."""
    graph = value.get("graph")
    if isinstance(graph, dict) and "path" in graph:
        graph["path"] = Path(graph["path"]).name
    elif isinstance(graph, str) and graph.endswith(".edges"):
        value["graph"] = Path(graph).name
    return value | ({"base": Path(value["base"]).stem} if "base" in value else {})


def test_a_copy_for_another_folder_has_the_same_values_with_names_for_paths(tmp_path):
    for name in NAMES:
        path, copy = shipped.find_config(name), tmp_path / "copy.yaml"
        copy.write_text(shipped.portable_text(path))
        assert "../graphs" not in copy.read_text()
        assert named(extends.read(copy).value) == named(extends.read(path).value), name
        assert yaml_source.read(copy).value == named(yaml_source.read(path).value) | {
            key: shipped_name
            for key, shipped_name in yaml_source.read(copy).value.items()
            if key in ("extends", "base") and shipped.find_config(shipped_name)
        }
    copied = shipped.portable_text(ROOT / "configs" / "quickstart.yaml").splitlines()
    assert (copied[0][:20], copied[4]) == ("# 16 nodes on this m", "graph: regular_16_4.edges")
