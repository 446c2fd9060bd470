"""A run in the formats of other tools."""

import csv
import json
import sys
from functools import partial

import msgspec
import numpy as np
import pandas
import pytest
import yaml
from safetensors.numpy import save_file

from decentnode.core.timeouts import Timeouts
from decentnode.formats.model_files import COORDINATES, path_of
from decentnode.formats.records import RoundRecord
from decentnode.launcher.state.run_directory import RunLock
from decentnode.results.writers import MlflowWriter
from tests.results.test_study import make_run
from tests.results.test_writers import FakeMlflow


@pytest.fixture
def run(tmp_path):
    path = make_run(tmp_path / "run", [(0.5, 0.75), (0.875, 0.9)])
    (path / "records").mkdir()
    for rank in (0, 1):
        records = [RoundRecord(rank, r, sent_payload=100, sent_index=10, sent_header=1) for r in range(20)]
        lines = b"".join(msgspec.json.encode(record) + b"\n" for record in records)
        (path / "records" / f"{rank:05d}.jsonl").write_bytes(lines)
    return path


@pytest.fixture
def export(call):
    """Runs `decentnode export`; returns exit code, standard output and standard error."""
    return partial(call, "export")


def test_tables_have_a_row_for_each_rank_and_evaluation(run, tmp_path, export):
    assert export(run) == (0, f"{run}/evaluations.csv\n", "")
    rows = list(csv.DictReader((run / "evaluations.csv").read_text().splitlines()))
    assert [(row["rank"], row["round"], row["accuracy"]) for row in rows] == [
        ("0", "10", "0.5"), ("1", "10", "0.75"), ("0", "20", "0.875"), ("1", "20", "0.9"),
    ]  # fmt: skip
    words = ("--format", "parquet", "--out", tmp_path / "t")
    assert export(run, *words) == (0, f"{tmp_path}/t.parquet\n", "")
    assert pandas.read_parquet(tmp_path / "t.parquet")["accuracy"].tolist() == [0.5, 0.75, 0.875, 0.9]


def test_decentralizepys_plot_scripts_find_their_keys(run, export):
    assert export(run, "--format", "decentralizepy")[0] == 0
    read = json.loads((run / "decentralizepy" / "1_results.json").read_text())
    assert read["test_acc"] == {"10": 75.0, "20": 90.0} and read["test_loss"] == {"10": None, "20": None}
    assert read["total_bytes"] == {"10": 3000, "20": 6000}
    assert read["total_data_per_n"] == {"10": 1000, "20": 2000} and read["total_meta"]["20"] == 220
    assert read["train_loss"].keys() == {"10", "20"} and read["validation_acc"] == {}
    rows = (run / "evaluations.jsonl").read_text().replace('"loss"', '"validation_accuracy"')
    (run / "evaluations.jsonl").write_text(rows)
    assert export(run, "--format", "decentralizepy")[0] == 0
    read = json.loads((run / "decentralizepy" / "0_results.json").read_text())
    assert read["validation_acc"] == {"10": 50.0, "20": 50.0}
    assert read["validation_loss"] == read["test_loss"] == {}
    path = path_of(run, 1, 19, COORDINATES)
    path.parent.mkdir(parents=True)
    save_file({"rounds": np.array([3, 0, 2], np.int32), "latest": np.array([8, -1, 5], np.int32)}, path)
    assert export(run, "--format", "decentralizepy")[0] == 0
    assert json.loads((run / "decentralizepy" / "1_shared_parameters.json").read_text()) == [3, 0, 2]


def test_a_killed_run_goes_to_a_tool_with_the_options_of_its_writer(run, export, monkeypatch):
    mlflow = FakeMlflow()
    for name, module in mlflow.modules().items():
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr(MlflowWriter, "lack", classmethod(lambda cls: ""))
    (run / "summary.json").unlink()
    # As after a kill -9 in its second evaluation, which the tool has not.
    settings = yaml.safe_load((run / "config.yaml").read_text())
    settings["records"] = {"writers": [{"name": "mlflow", "experiment": "mixing", "per_rank": True}]}
    (run / "config.yaml").write_text(yaml.safe_dump(settings))
    assert export(run, "--format", "mlflow")[:2] == (0, "mlflow has 2 evaluations\n")
    ((exported,), experiments) = mlflow.runs.values(), mlflow.experiments
    assert (exported.status, experiments) == ("KILLED", ["mixing"])
    assert mlflow.curve() == {10: 0.625, 20: 0.8875}
    assert {metric.key for metric in exported.metrics} >= {"accuracy/rank_00001"}
    # Once more, and elsewhere: nothing twice.
    assert export(run, "--format", "mlflow")[0] == 0
    assert export(run, "experiment=other", "per_rank=false", "--format", "mlflow")[0] == 0
    assert mlflow.curve() == {10: 0.625, 20: 0.8875} and mlflow.experiments == ["mixing", "other"]


def test_a_run_in_progress_has_its_own_writers(run, export, monkeypatch):
    monkeypatch.setattr(Timeouts, "run_lock", 0.0)
    lock = RunLock(run)
    code, _, message = export(run, "--format", "tensorboard")
    assert code == 2 and "this run is in progress (process " in message
    lock.release()
    assert export(run, "--format", "tensorboard", "folder=shown")[0] == 0
    assert len([*(run / "shown").iterdir()]) == 1


def test_bad_input_is_one_line(run, tmp_path, export):
    empty = make_run(tmp_path / "empty", [])
    for words, expected in (
        ((run, "--format", "xls"), "unknown format 'xls' (known: csv, "),
        ((run, "--format", "wandb", "--out", "x"), "--out: wandb writes no file elsewhere"),
        ((run, "--format", "decentralizepy", "a=1"), "a=1: decentralizepy has no options"),
        ((run, "colour=red"), "unknown option"),
        ((empty,), "has no evaluation yet, so there is nothing to export"),
        ((tmp_path / "none",), "not the directory of a run"),
    ):
        code, _, message = export(*words)
        assert code == 2 and expected in message and message.count("\n") == 1
