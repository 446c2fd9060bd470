"""A run in the formats of other tools."""

import csv
import json

import msgspec
import pandas
import pytest

from decentnode.cli import app as cli
from decentnode.results.records import RoundRecord
from tests.results.test_study import make_run


@pytest.fixture
def run(tmp_path):
    path = make_run(tmp_path / "run", [(0.5, 0.75), (0.875, 0.9)])
    (path / "records").mkdir()
    for rank in (0, 1):
        records = [RoundRecord(rank, r, sent_payload=100, sent_index=10, sent_header=1) for r in range(20)]
        lines = b"".join(msgspec.json.encode(record) + b"\n" for record in records)
        (path / "records" / f"{rank:05d}.jsonl").write_bytes(lines)
    return path


def export(*words) -> int:
    with pytest.raises(SystemExit) as ended:
        cli.main(["export", *map(str, words)])
    return ended.value.code or 0


def test_tables_have_a_row_for_each_rank_and_evaluation(run, tmp_path, capsys):
    assert export(run) == 0
    rows = list(csv.DictReader((run / "evaluations.csv").read_text().splitlines()))
    assert [(row["rank"], row["round"], row["accuracy"]) for row in rows] == [
        ("0", "10", "0.5"), ("1", "10", "0.75"), ("0", "20", "0.875"), ("1", "20", "0.9"),
    ]  # fmt: skip
    assert export(run, "--format", "parquet", "--out", tmp_path / "t") == 0
    assert pandas.read_parquet(tmp_path / "t.parquet")["accuracy"].tolist() == [0.5, 0.75, 0.875, 0.9]
    assert capsys.readouterr().out.splitlines() == [str(run / "evaluations.csv"), str(tmp_path / "t.parquet")]


def test_decentralizepys_plot_scripts_find_their_keys(run):
    assert export(run, "--format", "decentralizepy") == 0
    found = json.loads((run / "decentralizepy" / "1_results.json").read_text())
    assert found["test_acc"] == {"10": 75.0, "20": 90.0} and found["test_loss"] == {"10": None, "20": None}
    assert found["total_bytes"] == {"10": 3000, "20": 6000}
    assert found["total_data_per_n"] == {"10": 1000, "20": 2000} and found["total_meta"]["20"] == 220
    assert found["train_loss"].keys() == {"10", "20"} and found["validation_acc"] == {}
    rows = (run / "evaluations.jsonl").read_text().replace('"loss"', '"validation_accuracy"')
    (run / "evaluations.jsonl").write_text(rows)
    assert export(run, "--format", "decentralizepy") == 0
    found = json.loads((run / "decentralizepy" / "0_results.json").read_text())
    assert found["validation_acc"] == {"10": 50.0, "20": 50.0}
    assert found["validation_loss"] == found["test_loss"] == {}


def test_bad_input_is_one_line(run, tmp_path, capsys):
    empty = make_run(tmp_path / "empty", [])
    for words, expected in (
        ((run, "--format", "xls"), "unknown format 'xls' (known: csv, parquet, decentralizepy)"),
        ((empty,), "has no evaluation yet, so there is nothing to export"),
        ((tmp_path / "none",), "not the directory of a run"),
    ):
        assert export(*words) == 2
        told = capsys.readouterr().err.strip()
        assert expected in told and "\n" not in told
