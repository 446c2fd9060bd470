"""Runs whose nodes exchange their models while they train, over every way that models travel."""

import json
from pathlib import Path

from tests.integration.running import ROOT, run_command

CONFIG = ROOT / "configs" / "quickstart.yaml"
SMALL = [
    "graph={name: ring, nodes: 5}", "rounds=5", "evaluation={every: 0, figures: false}",
    "training.steps_per_round=2",
]  # fmt: skip
TRANSPORTS = [
    "{name: inproc, overlap: true}",
    "{name: zeromq, local: shared_memory, overlap: true}",
    "{name: zeromq, local: tcp, base_port: 31250, overlap: true}",
    "{name: zeromq, local: ipc, nodes_per_process: 2, overlap: true}",
    "{name: torch_distributed, backend: gloo, overlap: true}",
]


def summary_of(run_dir: Path, *overrides: str, expected: int = 0) -> dict:
    output = run_dir.with_suffix(".out")
    code = run_command(output, "run", str(CONFIG), f"run_dir={run_dir}", *SMALL, *overrides)
    assert code == expected, output.read_text()
    return json.loads((run_dir / "summary.json").read_text())


def test_all_transports_give_bit_identical_models(tmp_path):
    overlapped = [
        summary_of(tmp_path / str(i), f"communication={way}")["model_hash"]
        for i, way in enumerate(TRANSPORTS)
    ]
    assert len(set(overlapped)) == 1
    assert summary_of(tmp_path / "by default")["model_hash"] not in overlapped


def test_the_loss_of_a_node_is_survived(tmp_path):
    fault = "faults=[{name: crash, ranks: [1], rounds: [2, 2], activity: train}]"
    summary = summary_of(tmp_path / "run", f"communication={TRANSPORTS[1]}", fault, "rounds=8", expected=3)
    assert summary["finished_nodes"] == 4
