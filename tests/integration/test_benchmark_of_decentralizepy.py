"""The benchmark beside decentralizepy, with a stand-in for its source: what it has to find and to ask for."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.spawner import ROOT

STAND_IN = {
    "datasets/Dataset.py": """
        class Dataset:
            def __init__(self, rank, machine_id, mapping):
                self.uid, self.num_partitions = mapping.get_uid(rank, machine_id), mapping.n_procs
    """,
    "models/Model.py": """
        from torch import nn
        class Model(nn.Module):
            pass
    """,
    "graphs/Graph.py": """
        class Graph:
            def read_graph_from_file(self, file, type):
                lines = open(file).read().splitlines()
                self.n_procs, self.edges = int(lines[0]), lines[1:]
    """,
    "mappings/Linear.py": """
        class Linear:
            def __init__(self, n_machines, procs_per_machine):
                self.n_procs = n_machines * procs_per_machine
            def get_uid(self, rank, machine_id):
                return rank
    """,
    "node/DPSGDNode.py": """
        import time
        from importlib import import_module
        import torch
        class DPSGDNode:
            def __init__(self, rank, machine_id, mapping, graph, config, rounds, *more):
                assert len(graph.edges) == 6 and config["COMMUNICATION"]["comm_class"] == "TCP"
                data, training = dict(config["DATASET"]), config["TRAIN_PARAMS"]
                plugins = import_module(data.pop("dataset_package"))
                make_model = getattr(plugins, data.pop("model_class"))
                dataset = getattr(plugins, data.pop("dataset_class"))(rank, machine_id, mapping, **data)
                model = make_model()
                for _ in range(rounds):
                    inputs, labels = next(iter(dataset.get_trainset(training["batch_size"], True)))
                    assert model(inputs).shape == inputs.shape == (8, 100) and labels.shape == (8,)
                    time.sleep(0.01)
    """,
}


def benchmark(*words: str, **environment: str) -> subprocess.CompletedProcess:
    command = [sys.executable, "eval/benchmarks/decentralizepy.py", "--small", *words]
    variables = os.environ | {"PYTHONPATH": str(ROOT)} | environment
    return subprocess.run(
        command, cwd=ROOT, env=variables, capture_output=True, text=True, check=False, timeout=120
    )


@pytest.fixture
def source(tmp_path: Path) -> Path:
    for name, text in STAND_IN.items():
        path = tmp_path / "src" / "decentralizepy" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n".join(line[8:] for line in text.splitlines()))
    return tmp_path


def test_whole_rounds_of_both(source: Path) -> None:
    ended = benchmark("--source", str(source), "--local", "shared_memory")
    assert ended.returncode == 0, ended.stderr
    result = json.loads(ended.stdout.splitlines()[-1])
    [figures] = result["figures"]
    assert result["ratio"] == {"shared_memory d=10000": figures["shared_memory_times"]}
    # The rounds of the stand-in take 10 ms each.
    assert figures["decentralizepy_us"] > 10_000
    assert figures["shared_memory_us"] > 0 and figures["shared_memory_cpu_us"] > 0


def test_a_folder_without_the_source(tmp_path: Path) -> None:
    ended = benchmark("--source", str(tmp_path))
    assert (ended.returncode, ended.stdout) == (1, "")
    assert ended.stderr == f"--source {tmp_path}: no src/decentralizepy there\n"


def test_without_a_source_and_without_a_network(tmp_path: Path) -> None:
    git = tmp_path / "git"
    git.write_text(
        '#!/bin/sh\nif [ "$3" = fetch ]; then echo "fatal: Could not resolve host" >&2; exit 128; fi\n'
    )
    git.chmod(0o755)
    ended = benchmark(PATH=f"{tmp_path}:{os.environ['PATH']}")
    assert (ended.returncode, ended.stdout) == (1, "")
    assert "failed: fatal: Could not resolve host\ngive a checkout with --source FOLDER" in ended.stderr
