"""The main job as a user starts it."""

import json

import pytest

from decentnode.records import read_records
from tests.integration.running import Run


def test_quickstart_reaches_its_accuracy_and_cleans_up(tmp_path):
    run = Run(tmp_path / "run", figures=True)
    assert run.wait() == 0, run.text
    assert (run.run_dir / "overview.png").stat().st_size > 10_000
    summary = run.summary
    assert summary["finished_nodes"] == summary["nodes"] == 16
    assert summary["lost_nodes"] == {}
    assert summary["test_accuracy"]["mean"] >= 0.95
    assert summary["test_accuracy"]["min"] > 0.90
    assert summary["startup_seconds"] + summary["wall_seconds"] < 20
    # 16 nodes, 4 neighbors, 40 rounds, one fp32 vector and one header each.
    assert (
        summary["bytes_sent"] == summary["bytes_received"] == 16 * 4 * 40 * (4 * summary["parameters"] + 64)
    )
    assert not run.leftovers()


def test_every_node_leaves_one_record_per_round(tmp_path):
    run = Run(tmp_path / "run", ["rounds=6", "evaluation.every=3"])
    assert run.wait() == 0, run.text
    parameters = run.summary["parameters"]
    for rank in range(16):
        records = read_records(run.run_dir / "records" / f"{rank:05d}.jsonl")
        assert [r.round for r in records] == list(range(6))
        assert all(r.rank == rank and r.heard == 4 and not r.lost and not r.late for r in records)
        assert all(r.sent_payload == 4 * 4 * parameters and r.sent_header == 4 * 64 for r in records)
        assert [r.test_accuracy is not None for r in records] == [False, False, True] * 2
    rows = [json.loads(line) for line in (run.run_dir / "evaluations.jsonl").read_text().splitlines()]
    assert [row["round"] for row in rows] == [2, 5]
    assert all(len(row["accuracy"]) == 16 and row["consensus_distance"] > 0 for row in rows)


TRANSPORTS = [
    "communication.name=inproc",
    "communication.local=shared_memory",
    "communication.local=ipc",
    "communication={name: zeromq, local: tcp, base_port: 29800}",
    "communication.nodes_per_process=5",
]


def test_all_transports_give_bit_identical_models(tmp_path):
    """The same YAML and seed: the same hash over every transport, and twice in a row."""
    hashes = {}
    for i, transport in enumerate([*TRANSPORTS, TRANSPORTS[1]]):
        run = Run(tmp_path / f"run{i}", [transport, "rounds=4", "evaluation.every=0"])
        assert run.wait() == 0, run.text
        hashes[f"{i} {transport}"] = run.summary["model_hash"]
    assert len(set(hashes.values())) == 1, hashes


def test_another_seed_gives_other_models(tmp_path):
    hashes = set()
    for seed in (1, 2):
        run = Run(tmp_path / f"run{seed}", ["rounds=2", f"seed={seed}", "communication=inproc"])
        assert run.wait() == 0, run.text
        hashes.add(run.summary["model_hash"])
    assert len(hashes) == 2


@pytest.mark.parametrize("sharing", ["none", "all_reduce"])
def test_baselines(tmp_path, sharing):
    overrides = ["rounds=5", f"sharing.name={sharing}", "graph=fully_connected", "graph.nodes=6"]
    run = Run(tmp_path / "run", overrides)
    assert run.wait() == 0, run.text
    distance = run.summary["consensus_distance"]
    assert distance == pytest.approx(0, abs=1e-6) if sharing == "all_reduce" else distance > 0.05
    assert (run.summary["bytes_sent"] == 0) == (sharing == "none")


def test_half_precision_halves_the_bytes(tmp_path):
    run = Run(tmp_path / "run", ["rounds=10", "sharing.transforms=[{name: cast, dtype: fp16}]"])
    assert run.wait() == 0, run.text
    assert run.summary["bytes_sent"] == 16 * 4 * 10 * (2 * run.summary["parameters"] + 64)
    assert run.summary["test_accuracy"]["mean"] > 0.9


def test_two_experiments_at_once_do_not_meet(tmp_path):
    runs = [Run(tmp_path / f"run{i}", ["rounds=20", f"seed={i}"]) for i in range(2)]
    assert [run.wait() for run in runs] == [0, 0]
    assert len({run.summary["run_id"] for run in runs}) == 2
    assert all(run.summary["finished_nodes"] == 16 for run in runs)
