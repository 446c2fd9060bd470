"""Local steps in worker processes: the models, evaluations and deliveries of a run without them."""

import re
import signal
import time
from pathlib import Path

import pytest
import yaml

import decentnode
from decentnode.errors import ConfigError, RunFailed
from tests.integration import running
from tests.integration.running import start_command, wait_until

NODES = 6
NETWORK = {
    "name": "simulated", "latency": "20 ms", "jitter": "5 ms", "uplink": "1 Mbit/s", "delivery_log": True,
}  # fmt: skip
PACE = {"step_seconds": 0.02, "slowdown": {"distribution": "exponential"}}
SMALL = {
    "name": "small",
    "graph": {"name": "ring", "nodes": NODES},
    "dataset": {"name": "synthetic", "nodes": NODES, "samples_per_node": 20, "features": 10},
    "model": {"name": "mlp", "hidden": [8]},
    "training": {
        "optimizer": {"name": "SGD", "lr": 0.1, "momentum": 0.9},
        "batch_size": 4,
        "steps_per_round": 2,
        "pace": "instant",
    },
    "rounds": 4,
    "evaluation": {"every": 2, "figures": False},
}
NETWORKS = '''
import os, signal
import torch
from torch import nn

class Norm(nn.Sequential):
    """Has state beside its vector, and draws random numbers."""
    def __init__(self):
        super().__init__(nn.Linear(10, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 10))

class Fails(nn.Linear):
    """Fails in its third step of a run; trials make fewer."""
    def __init__(self):
        super().__init__(10, 10)
        self.register_buffer("steps", torch.tensor(0))
    def forward(self, x):
        if self.training:
            self.steps += 1
        if self.steps == 5 and self.training:
            raise ValueError("no more")
        return super().forward(x)

class Dies(Fails):
    """Its process is killed then."""
    signal = signal.SIGKILL
    def forward(self, x):
        try:
            return super().forward(x)
        except ValueError:
            os.kill(os.getpid(), self.signal)

class Hangs(Dies):
    signal = signal.SIGSTOP
'''


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    Path("networks_of_workers.py").write_text(NETWORKS)


def of_workers(workers):
    """Returns the value of `training.execution` for so many workers."""
    return {"workers": workers} if workers else "alone"


def run(workers, training=None, network=None, **overrides):
    """Runs SMALL with so many workers."""
    training = SMALL["training"] | {"execution": of_workers(workers)} | (training or {})
    config = SMALL | {"training": training} | overrides
    return decentnode.run(config, progress=False, communication=NETWORK | (network or {}))


def traces(finished):
    """Everything that workers must not change."""
    evaluations = finished.evaluations.drop(columns=["wall_seconds"])
    losses = finished.records[["rank", "round", "loss", "steps", "seconds"]]
    deliveries = (finished.directory / "network.csv").read_bytes()
    return finished.model_hash, deliveries, evaluations.to_csv(), losses.to_csv()


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"training": {"pace": PACE}}, id="pace"),
        pytest.param(
            {
                "training": {
                    "optimizer": {"name": "Adam", "lr": 0.01},
                    "scheduler": {"name": "ReduceLROnPlateau", "patience": 0},
                    "amp": "float16",
                    "accumulate": 2,
                    "minibatches": "reshuffle",
                }
            },
            id="instant",
        ),
        pytest.param(
            {
                "training": {"pace": PACE, "steps_per_round": None},
                "sharing": "ad_psgd",
                "time_model": {"name": "asynchronous", "seconds_per_round": 0.1},
            },
            id="asynchronous",
        ),
        pytest.param(
            {
                "model": "networks_of_workers:Norm",
                "training": {"mix_buffers": True, "pace": PACE},
                "network": {"overlap": True},
                "records": {"models": {"every": 2}},
                "workers": (1, 2),
            },
            id="overlap",
        ),
    ],
)
def test_workers_change_nothing(changes):
    """With two workers, once with one, too; runs that continue have buffers that are not mixed."""
    counts = changes.pop("workers", (2,))
    alone, *others = (run(workers, **changes) for workers in (0, *counts))
    for workers, other in zip(counts, others, strict=True):
        assert traces(other) == traces(alone)
        assert other.summary["workers"] == workers


def test_inproc_has_them_too():
    first, second = (
        decentnode.run(
            SMALL | {"training": SMALL["training"] | {"pace": None, "execution": of_workers(workers)}},
            progress=False,
            communication="inproc",
        )
        for workers in (0, 2)
    )
    assert first.model_hash == second.model_hash


def test_a_run_continues_with_another_number_of_workers():
    """A checkpoint has what the workers have: moments, minibatches, schedule, running statistics."""
    changes = {
        "model": "networks_of_workers:Norm",
        "training": {
            "optimizer": {"name": "Adam", "lr": 0.01},
            "scheduler": {"name": "StepLR", "step_size": 3},
            "schedule_step": "step",
        },
    }
    straight = run(0, rounds=6, **changes)
    for before, after in ((2, 0), (0, 2)):
        begun, execution = run(before, rounds=3, **changes), {"training.execution": of_workers(after)}
        resumed = decentnode.resume(begun, progress=False, rounds=6, **execution)
        assert resumed.model_hash == straight.model_hash
        last = [
            r.evaluations.iloc[-1].drop(["seconds", "wall_seconds"]).to_dict() for r in (resumed, straight)
        ]
        assert last[0] == last[1]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"model": "networks_of_workers:Fails"}, "round 3: ValueError: no more ("),
        ({"training": {"optimizer": {"name": "SGD", "lr": 1e6}}}, "the loss is"),
    ],
)
def test_an_error_in_a_worker_is_that_of_the_node(changes, reason):
    alone, in_workers = (lost(workers, **changes) for workers in (0, 2))
    assert alone == in_workers and all(reason in text for text in alone.values())


def lost(workers, **changes):
    """Why the nodes of a run are lost, by rank."""
    with pytest.raises(RunFailed):
        run(workers, run_dir=f"lost-{workers}", **changes)
    return decentnode.Run(f"lost-{workers}").summary["lost_nodes"]


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        ("Dies", r"training.execution: the process .* was killed by signal 9"),
        ("Hangs", r"hung|training.execution: .* has shown no sign of life for 1 s"),
    ],
)
def test_a_worker_that_dies_or_hangs_ends_the_run(model, reason):
    began = time.monotonic()
    reasons = lost(2, model=f"networks_of_workers:{model}", failures={"deadline": 0.5})
    assert time.monotonic() - began < 30
    assert len(reasons) == NODES and all(re.match(reason, text) for text in reasons.values())


def test_a_stopped_run_resumes_and_no_worker_outlives_its_host(tmp_path):
    config = SMALL | {
        "rounds": 300, "communication": NETWORK, "evaluation": {"every": 0, "final": False},
        "training": SMALL["training"] | {"execution": of_workers(2)},
    }  # fmt: skip
    Path("long.yaml").write_text(yaml.safe_dump(config))
    process = start_command(tmp_path / "said.txt", "run", "long.yaml", "run_dir=run", cwd=tmp_path)
    begun = "6 nodes in 1 process with 2 workers"
    wait_until(lambda: begun in (tmp_path / "said.txt").read_text(), 30)
    (server,) = children(process.pid)
    (host,) = children(server)
    workers = children(host)
    assert len(workers) == 2
    process.send_signal(signal.SIGINT)
    assert process.wait(30) == 130
    stopped = decentnode.Run("run").summary["resumable_round"]
    assert not any(is_running(pid) for pid in workers)
    resumed = decentnode.resume("run", progress=False, rounds=300, **{"training.execution": "alone"})
    assert resumed.summary["finished_nodes"] == NODES and stopped < 299


def children(pid):
    """The processes that a process has forked, as soon as there are any."""
    wait_until(lambda: running.children(pid), 10)
    time.sleep(0.2)
    return running.children(pid)


def is_running(pid):
    try:
        return "State:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        (
            {"sharing": "gradient_tracking", "training": {"optimizer": {"name": "SGD", "lr": 0.1}}},
            "gradient_tracking changes each gradient by what it has in the process of the nodes; use",
        ),
        ({"training": {"compile": True}}, "networks are compiled in the process of the nodes"),
        ({"graph": {"name": "peer_sampler", "nodes": NODES, "degree": 2}}, "the client of peer_sampler is"),
        ({"device": "cuda"}, "workers compute on the CPU (device); use alone or auto"),
    ],
)
def test_what_workers_cannot_do_is_refused(changes, line):
    training = SMALL["training"] | changes.get("training", {}) | {"execution": of_workers(2)}
    with pytest.raises(ConfigError) as error:
        decentnode.validate(SMALL | changes | {"training": training}, load=False, communication=NETWORK)
    assert f"training.execution.workers: {line}" in str(error.value)
