"""All-reduce runs as a person starts them: over machines, stopped and gone on with, with a node killed."""

import hashlib
import os
import signal

from decentnode.formats.model_files import model_hash
from decentnode.formats.reader import read_evaluations
from tests.integration.running import Run
from tests.support.in_threads import Ranks

ROUNDS = 60
CONFIG = f"""
name: baseline
rounds: {ROUNDS}
graph: {{name: ring, nodes: 3}}
dataset: {{name: synthetic, nodes: 3, samples_per_node: 40, features: 8, classes: 3}}
model: {{name: mlp, hidden: [8]}}
training:
  name: ddp
  samples: reshuffled
  optimizer: {{name: Adam, lr: 0.01}}
  batch_size: 8
  epochs_per_round: 0.7
sharing: none
evaluation: {{every: 20}}
failures: {{deadline: 20.0}}
"""
PACED = "faults=[{name: 'eval.reliability.more_faults:Hang', seconds: 0.02, activity: begin}]"
TIMEOUT = 100
MACHINES = [
    "mapping={machines: [{address: 127.0.0.1, nodes: 2}, {address: 127.0.0.2, nodes: 1}], "
    "rendezvous_port: 31300}",
    "communication={name: zeromq, base_port: 31301}",
    "training.port=31305",
]


def configured(tmp_path):
    path = tmp_path / "baseline.yaml"
    path.write_text(CONFIG)
    return path


def test_a_run_over_two_machines_continues_and_ends_as_one_on_one_machine(tmp_path):
    config = configured(tmp_path)
    runs = [Run(tmp_path / f"run{m}", [*MACHINES, PACED, f"machine={m}"], config=config) for m in (0, 1)]
    runs[0].wait_for_round(10, TIMEOUT)
    os.kill(runs[1].process.pid, signal.SIGTERM)
    assert [run.wait(TIMEOUT) for run in runs] == [143, 143], runs[0].text + runs[1].text
    assert runs[0].summary["resumable_round"] >= 10
    resumed = [Run(run.run_dir, verb="resume") for run in runs]
    assert [run.wait(TIMEOUT) for run in resumed] == [0, 0], resumed[0].text + resumed[1].text
    straight = Ranks(config, tmp_path / "straight", "evaluation.every=0").meet().run(0, ROUNDS)
    straight.close()
    models = {
        rank: hashlib.sha256(model.numpy().data).hexdigest() for rank, model in enumerate(straight.models)
    }
    summary = runs[0].summary
    assert summary["model_hash"] == model_hash(models)
    assert summary["bytes_sent"] == sum(node.exchange.endpoint.counters.sent for node in straight.nodes) > 0
    accuracy = summary["test"]["accuracy"]
    assert accuracy["std"] == 0 and accuracy["mean"] == summary["average_model"]["accuracy"] > 0.5
    rows = read_evaluations(runs[0].run_dir / "evaluations.jsonl")
    assert rows and all(len(set(row.train_loss.values())) == 1 for row in rows)


def test_a_killed_node_ends_all_and_is_named(tmp_path):
    run = Run(tmp_path / "run", ["rounds=100000"], configured(tmp_path), limits={"baseline_answer": 1.0})
    run.wait_for_round(5, TIMEOUT)
    os.kill(run.pid_of(1), signal.SIGKILL)
    assert run.wait(TIMEOUT) == 4, run.text
    lost = run.summary["lost_nodes"]
    assert lost["1"] == "killed by signal 9"
    for rank in ("0", "2"):
        assert "all-reduce failed: rank 1 is lost or does not answer" in lost[rank]
    assert run.leftovers() == []
