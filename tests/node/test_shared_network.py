"""Nodes of one process that take turns with one network: the models of nodes with a network each."""

import pytest
import torch
from torch import nn

import decentnode
from decentnode.formats.records import RecordFile, cut_back, record_files, records_by_rank
from decentnode.models.mlp import Mlp
from decentnode.models.module_state import copied_state, equal, keeps_only_tensors
from decentnode.node import factory as assembly
from decentnode.node.experiment import Experiment
from decentnode.results import Run
from decentnode.training.evaluation import evaluate
from tests.support.in_process import Nodes

CONFIG = """
rounds: 100
graph: {name: ring, nodes: 5}
dataset: {name: digits, partition: iid}
model: mlp
training:
  optimizer: {name: Adam, lr: 0.01}
  scheduler: {name: StepLR, step_size: 2, gamma: 0.5}
  batch_size: 8
  steps_per_round: 2
  mix_buffers: MIXED
sharing: gossip
communication: {name: inproc, overlap: OVERLAP}
evaluation: {every: 0}
"""


def built(self, shape, classes):
    """A network with all that a node may have beside its vector, and that draws random numbers."""
    parts = nn.Flatten(), nn.Linear(64, 12), nn.BatchNorm1d(12), nn.ReLU(), nn.Dropout(0.2), nn.Linear(12, 10)
    return nn.Sequential(*parts)


def finished(tmp_path, name, text):
    (tmp_path / f"{name}.yaml").write_text(text)
    nodes = Nodes(Experiment.from_yaml(tmp_path / f"{name}.yaml"), tmp_path / name).begin()
    return nodes.run(0, 2)


def everything(nodes):
    """What each node has, with the scores of its model."""
    found = []
    for node in nodes.nodes:
        training = node.training
        training.prepare_evaluation(3)
        scores = evaluate(training.objective, node.evaluation.plan.samples, 64)
        found.append((copied_state(training), training.vector.values.clone(), scores))
    return found


@pytest.mark.parametrize(("mixed", "overlap"), [(False, False), (True, True), (False, True)])
def test_one_network_serves_all_nodes_bit_for_bit(tmp_path, monkeypatch, mixed, overlap):
    monkeypatch.setattr(Mlp, "build", built)
    text = CONFIG.replace("MIXED", str(mixed)).replace("OVERLAP", str(overlap))
    together = finished(tmp_path, "together", text)
    assert len({id(node.training.module) for node in together.nodes}) == 1
    monkeypatch.setattr(assembly, "keeps_only_tensors", lambda network: False)
    apart = finished(tmp_path, "apart", text)
    assert len({id(node.training.module) for node in apart.nodes}) == 5
    assert not torch.equal(together.models[0], together.models[1])
    for ours, theirs in zip(everything(together), everything(apart), strict=True):
        assert equal(ours, theirs)
    # From a checkpoint of the one kind to the other kind.
    monkeypatch.undo()
    monkeypatch.setattr(Mlp, "build", built)
    again = Nodes(Experiment.from_yaml(tmp_path / "together.yaml"), tmp_path / "again")
    again.load(apart.saved()).run(2, 4)
    assert torch.equal(again.models, apart.run(2, 4).models)


def test_a_network_with_something_beside_its_tensors_serves_one_node():
    plain = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
    assert keeps_only_tensors(plain)
    with_hook = nn.Linear(3, 2)
    with_hook.register_forward_hook(lambda *_: None)
    normed = nn.utils.weight_norm(nn.Linear(3, 2))

    class Own(nn.Linear):
        pass

    assert not any(map(keeps_only_tensors, (with_hook, normed, Own(3, 2))))


def test_a_process_with_many_nodes_writes_one_file_of_records_and_one_of_checkpoints(tmp_path, monkeypatch):
    """And a run of it resumes, and has the models of one with fewer nodes for each file."""
    monkeypatch.chdir(tmp_path)
    many = {
        "name": "many",
        "graph": {"name": "ring", "nodes": 300},
        "dataset": {"name": "synthetic", "nodes": 300, "samples_per_node": 5, "features": 4},
        "model": "logistic_regression",
        "training": {"optimizer": {"name": "SGD", "lr": 0.1}, "batch_size": 4, "steps_per_round": 1},
        "communication": "inproc",
        "evaluation": {"every": 0, "final": False},
    }
    run = decentnode.run(many, progress=False, rounds=2)
    (file,) = record_files(run.directory)
    assert file.name == "00000-00299.jsonl"
    resumed = decentnode.resume(run.directory, rounds=3, progress=False)
    records = records_by_rank(resumed.directory)
    assert [*records] == [*range(300)]
    assert all([record.round for record in of_rank] == [0, 1, 2] for of_rank in records.values())
    frame = Run(resumed.directory).records
    assert len(frame) == 900
    assert frame["rank"].is_monotonic_increasing
    straight = decentnode.run(many, progress=False, rounds=3)
    assert straight.summary["model_hash"] == resumed.summary["model_hash"]
    saved = run.directory / "checkpoints" / "00000-00299"
    assert sorted(path.name for path in saved.iterdir()) == [
        f"0000000{round}.{ending}" for round in (1, 2) for ending in ("json", "safetensors")
    ]  # fmt: skip
    assert decentnode.verify(run.directory) == []
    (saved / "00000001.safetensors").write_bytes(b"")
    assert len(decentnode.verify(run.directory)) == 300
    cut_back(file, 0)
    assert {len(of_rank) for of_rank in records_by_rank(run.directory).values()} == {1}


def test_a_shared_file_of_records_collects_lines_and_is_cut_back_once(tmp_path):
    shared = RecordFile(tmp_path, range(3))
    for round in range(2):
        for rank in range(3):
            shared.append(b'{"rank":%d,"round":%d}' % (rank, round))
    # The first write is at once, the others wait until a node is saved or ends.
    assert len(shared.path.read_bytes().splitlines()) == 1
    assert shared.sync() == ""
    assert len(shared.path.read_bytes().splitlines()) == 6
    for _ in range(3):
        shared.cut_back(0)
    assert len(shared.path.read_bytes().splitlines()) == 3
