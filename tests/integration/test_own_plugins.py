"""The files of the pages about plug-ins of one's own, as a person copies them."""

import configparser
import importlib
import re
import shutil
import sys

import numpy as np
import pytest
import torch

from decentnode.config import loader
from decentnode.config.json_schema import json_schema
from decentnode.sharing import Gossip
from decentnode.testing import Lockstep, random_models
from decentnode.transforms.chain import trial_layout
from tests.integration.running import Run, run_command
from tests.support.pages import ROOT, blocks, write_files

PAGES = ("docs/your_dataset.md", "docs/your_model.md", "docs/your_graph.md", "docs/from_decentralizepy.md")
COMING = "docs/from_decentralizepy.md"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """All files of the pages, importable."""
    write_files(tmp_path, *PAGES)
    shutil.copy(ROOT / "README.md", tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        if (tmp_path / f"{name}.py").exists():
            del sys.modules[name]


def test_own_text_own_lstm_and_own_graph_train_together(folder, monkeypatch, capsys):
    """Then the example of the reference reads what the run left behind."""
    grid = "graph={name: 'grid:RowsAndColumns', rows: 2, columns: 2}"
    run = Run(folder / "run", [grid, "evaluation.every=2"], config=folder / "text.yaml")
    assert run.wait() == 0, run.text
    characters = len(set((folder / "README.md").read_text()))
    assert run.summary["test"]["loss"]["max"] < np.log(characters) - 0.5, run.text
    monkeypatch.setattr(sys, "argv", ["show_run.py", str(run.run_dir)])
    exec(compile(blocks("docs/reference/results.md", "python")[0], "show_run.py", "exec"), {})
    shown = capsys.readouterr().out
    assert re.search(r"^round 4: \d+\.\d % after", shown, re.MULTILINE), shown
    assert shown.count("bytes") == 4


@pytest.mark.parametrize("config", ["table", "normed"])
def test_own_table_and_own_batch_norm_make_a_dry_round(folder, config):
    output = folder / "output.txt"
    assert run_command(output, "validate", str(folder / f"{config}.yaml")) == 0, output.read_text()
    assert f"{config}.yaml: ok, 4 nodes" in output.read_text()


def test_the_label_of_each_character_is_the_next_one(folder):
    (folder / "short.txt").write_text("abcabcabcabcabcabc")
    dataset = importlib.import_module("characters").Characters(path=str(folder / "short.txt"), length=3)
    train = dataset.load(seed=1).train
    assert torch.equal(train.inputs[:, 1:], train.labels[:, :-1])
    assert torch.equal(train.labels, (train.inputs + 1) % 3)


def test_two_rounds_over_rows_and_columns_average_exactly(folder):
    network = Lockstep(Gossip, importlib.import_module("grid").RowsAndColumns(3, 4), random_models(12))
    assert network.run(rounds=1).std(0).max() > 0.1
    assert network.run(rounds=1).std(0).max() < 1e-12


def test_a_graph_of_random_targets_is_another_one_in_each_round(folder):
    local = importlib.import_module("random_targets").RandomTargets(nodes=8, degree=3)
    drawn = [[local.targets(rank, round) for rank in range(8)] for round in range(3)]
    assert all(len(set(t)) == 3 and rank not in t for targets in drawn for rank, t in enumerate(targets))
    assert drawn[0] != drawn[1]


# Coming from decentralizepy.


def rows(columns: int) -> list[list[str]]:
    """The rows of the page's tables that have so many columns, without their heads."""
    lines = [line for line in (ROOT / COMING).read_text().splitlines() if line.startswith("| `")]
    cells = [[cell.strip() for cell in line.strip("|").split(" |")] for line in lines]
    return [row for row in cells if len(row) == columns]


def quoted(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def has(schema: dict, whole: dict, key: list[str]) -> bool:
    """Whether the key exists somewhere below this place of the JSON schema."""
    if not key:
        return True
    if "$ref" in schema:
        return has(whole["$defs"][schema["$ref"].rpartition("/")[2]], whole, key)
    inner = [*schema.get("anyOf", []), *schema.get("oneOf", []), *schema.get("allOf", [])]
    inner += [schema[name] for name in ("then", "items") if isinstance(schema.get(name), dict)]
    below = schema.get("properties", {}).get(key[0])
    return any(has(part, whole, key) for part in inner) or (below is not None and has(below, whole, key[1:]))


def test_every_yaml_key_of_the_tables_exists():
    schema = json_schema()
    named = [key for row in rows(3) for key in quoted(row[1]) if ":" not in key]
    missing = [key for key in named if not has(schema, schema, re.sub(r"\[0\]", "", key).split("."))]
    assert missing == []
    assert len(named) > 40
    assert [row for row in rows(3) if not row[1] and "no equivalent, because" not in row[2]] == [
        ["`-cf`", "", "`decentnode run FILE`"]
    ]


def test_every_ini_key_of_the_example_is_in_a_table():
    parser = configparser.ConfigParser()
    parser.read_string(blocks(COMING, "ini")[0])
    known = {key for row in rows(3) for key in quoted(row[0])}
    assert [key for section in parser for key in parser[section] if key not in known] == []


@pytest.mark.parametrize(
    "row", [row for row in rows(2) if row[1].startswith("`sharing:")], ids=lambda row: row[0]
)
def test_every_sharing_class_has_a_scheme_and_a_chain(row, folder):
    (folder / "regular_16.txt").write_text((ROOT / "graphs" / "regular_16_4.edges").read_text())
    assert loader.load(folder / "epidemic.yaml").graph.make().period is None
    settings = loader.load(folder / "tutorial.yaml", [quoted(row[1])[0].replace("sharing: ", "sharing=", 1)])
    transforms = [transform.make() for transform in settings.sharing.transforms]
    trial = trial_layout(transforms)
    chain = settings.sharing.make().make_chain(transforms, trial.numel, torch.float32, trial)
    assert chain.layout.max_bytes > 0
