"""The main job as a user starts it."""

import json

import pytest

from decentnode.formats.records import read_records
from tests.integration.running import Run


@pytest.fixture(scope="module")
def quickstart(tmp_path_factory):
    run = Run(tmp_path_factory.mktemp("quickstart") / "run", figures=True)
    assert run.wait() == 0, run.text
    return run


def test_quickstart_reaches_its_accuracy_and_cleans_up(quickstart):
    assert (quickstart.run_dir / "overview.png").stat().st_size > 10_000
    summary = quickstart.summary
    assert summary["finished_nodes"] == summary["nodes"] == 16
    assert summary["lost_nodes"] == {}
    assert summary["test"]["accuracy"]["mean"] >= 0.95
    assert summary["test"]["accuracy"]["min"] > 0.90
    assert summary["startup_seconds"] + summary["wall_seconds"] < 60
    # 16 nodes, 4 neighbors, 40 rounds, one fp32 vector and one header each.
    assert (
        summary["bytes_sent"] == summary["bytes_received"] == 16 * 4 * 40 * (4 * summary["parameters"] + 64)
    )
    assert not quickstart.leftovers()


def test_every_node_leaves_one_record_per_round(quickstart):
    parameters = quickstart.summary["parameters"]
    for rank in range(16):
        records = read_records(quickstart.run_dir / "records" / f"{rank:05d}.jsonl")
        assert [r.round for r in records] == list(range(40))
        assert all(r.rank == rank and r.heard == 4 and not r.lost and not r.late for r in records)
        assert all(r.sent_payload == 4 * 4 * parameters and r.sent_header == 4 * 64 for r in records)
        assert [r.round for r in records if r.metrics] == [9, 19, 29, 39]
    lines = (quickstart.run_dir / "evaluations.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    assert [row["round"] for row in rows] == [9, 19, 29, 39]
    assert all(len(row["metrics"]["accuracy"]) == 16 and row["consensus_distance"] > 0 for row in rows)


SEVEN = ["graph={name: ring, nodes: 7}"]
TRANSPORTS = [
    "communication.name=inproc",
    "communication.local=shared_memory",
    "communication.local=ipc",
    "communication={name: zeromq, local: tcp, base_port: 29800}",
    "communication.nodes_per_process=3",
]


def test_all_transports_give_bit_identical_models(tmp_path):
    """The same YAML and seed: the same hash over every transport, and twice in a row."""
    hashes = {}
    for i, transport in enumerate([*TRANSPORTS, TRANSPORTS[1]]):
        run = Run(tmp_path / f"run{i}", [*SEVEN, transport, "rounds=4", "evaluation.every=0"])
        assert run.wait() == 0, run.text
        hashes[f"{i} {transport}"] = run.summary["model_hash"]
    assert len(set(hashes.values())) == 1, hashes


def test_two_experiments_at_once_do_not_meet(tmp_path):
    runs = [Run(tmp_path / f"run{i}", [*SEVEN, "rounds=20", f"seed={i}"]) for i in range(2)]
    assert [run.wait() for run in runs] == [0, 0]
    assert len({run.summary["run_id"] for run in runs}) == 2
    assert all(run.summary["finished_nodes"] == 7 for run in runs)
