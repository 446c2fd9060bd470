"""Runs with batches of nodes against the same runs without: schemes, time models, resume, refusals."""

import pytest
import torch

import decentnode
from decentnode.config import loader
from decentnode.errors import BadInput
from decentnode.node import dry_round
from decentnode.node.checkpoint import store as checkpoint
from decentnode.node.execution.batched_steps import BatchedSteps
from decentnode.node.experiment import Experiment
from tests.support.in_process import Nodes

CONFIG = """
graph: {name: regular, nodes: 6, degree: 2}
dataset: {name: synthetic, nodes: 6, samples_per_node: 12, features: 10, partition: natural}
model: {name: mlp, hidden: [8]}
training: {optimizer: {name: SGD, lr: 0.1, momentum: 0.9}, batch_size: 4, steps_per_round: 2, dtype: float64}
sharing: gossip
communication: inproc
evaluation: {every: 0, figures: false}
rounds: 4
"""


@pytest.fixture
def path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "small.yaml"
    file.write_text(CONFIG)
    return file


@pytest.fixture
def sizes(monkeypatch):
    """The number of nodes of each batch."""
    noted, compute = [], BatchedSteps.compute

    def note(self, steps):
        noted.append(len(steps))
        compute(self, steps)

    monkeypatch.setattr(BatchedSteps, "compute", note)
    return noted


@pytest.mark.parametrize(
    "changes",
    [
        [],
        ["communication.overlap=true"],
        ["sharing=gradient_tracking", "training.optimizer={name: SGD, lr: 0.1}"],
        ["sharing={name: quasi_global, beta: 0.5}", "training.optimizer={name: SGD, lr: 0.1}"],
        ["sharing={name: choco, gamma: 0.5}", "sharing.transforms=[{name: top_k, fraction: 0.3}]"],
        ["sharing=fed_prox", "graph={name: federated, nodes: 6}"],
    ],
    ids=["gossip", "overlap", "tracking", "momentum", "choco", "fed_prox"],
)
def test_schemes_mix_the_models_of_the_loop_and_each_way_continues_the_other(changes, path, tmp_path, sizes):
    loop, batched = (
        Experiment.from_yaml(path, [*changes, f"training.execution={execution}"])
        for execution in ("alone", "{batches: 4}")
    )
    expected = Nodes(loop, tmp_path / "loop").begin().run(0, 2)
    nodes = Nodes(batched, tmp_path / "batched").begin().run(0, 2)
    # Four nodes and the other two, or the one that a server leaves.
    assert {4} < set(sizes) <= {4, 2, 1}
    torch.testing.assert_close(nodes.models, expected.models, rtol=1e-9, atol=1e-11)
    saved = [expected.saved(), nodes.saved()]
    crossed = [
        Nodes(experiment, tmp_path / f"{index}").load(folder).run(2, 4).models
        for index, (experiment, folder) in enumerate(zip((batched, loop), saved, strict=True))
    ]
    wanted = expected.run(2, 4).models
    for models in crossed:
        torch.testing.assert_close(models, wanted, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("optimizer", ["{name: SGD, lr: 0.1, momentum: 0.9}", "{name: Adam, lr: 0.01}"])
def test_a_model_does_not_depend_on_its_place_in_a_batch(optimizer, path, tmp_path):
    """Bit for bit, whatever is computed together, also minibatches of one sample and batches of one node."""
    changes = [f"training.optimizer={optimizer}", "training.dtype=float32", "training.batch_size=3"]
    changes += ["dataset.features=30", "model.hidden=[40]"]
    models = []
    for most in (6, 5, 3, 1):
        experiment = Experiment.from_yaml(path, [*changes, f"training.execution={{batches: {most}}}"])
        models.append(Nodes(experiment, tmp_path / str(most)).begin().run(0, 3).models)
    assert all(torch.equal(model, models[0]) for model in models)


@pytest.mark.parametrize(
    "changes",
    [
        {"training.pace": {"step_seconds": 0.1, "slowdown": {"distribution": "exponential"}}},
        {"training.pace": "instant"},
        {"training.pace": {"step_seconds": 0.1}, "sharing": "ad_psgd",
         "time_model": {"name": "asynchronous", "seconds_per_round": 0.5}},
    ],
    ids=["speeds", "instant", "asynchronous"],
)  # fmt: skip
def test_virtual_time_and_its_models_stay(changes, path):
    network = {"name": "simulated", "latency": 0.01, "uplink": "1 Mbit/s"}
    runs = [
        decentnode.run(
            path, progress=False, communication=network, **changes, **{"training.execution": execution}
        )
        for execution in ("auto", {"batches": 6})
    ]
    models = [
        torch.stack(
            [
                checkpoint.newest(run.directory / "checkpoints", rank).state["node"]["vector"]
                for rank in range(6)
            ]
        )
        for run in runs
    ]
    torch.testing.assert_close(models[1], models[0], rtol=1e-9, atol=1e-11)
    assert (runs[0].records["seconds"] == runs[1].records["seconds"]).all()


IMAGES = [
    "dataset={name: cifar10, sample: true, test_size: 20}",
    "training.execution={batches: 3}",
    "training.dtype=float32",
]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        (
            ["model=resnet8"],
            "training changes more of the network than its parameters, such as running values",
        ),
        (
            ["model={name: vit, width: 16, heads: 2, layers: 1, dropout: 0.1}"],
            "the network draws random numbers",
        ),
    ],
    ids=["batch norm", "dropout"],
)
def test_a_network_that_batches_of_nodes_cannot_train_is_refused_before_the_start(changes, reason, path):
    experiment = Experiment.from_settings(loader.load(path, [*IMAGES, *changes]))
    with pytest.raises(BadInput, match=f"training.execution.batches: .*{reason}"):
        dry_round.check(experiment)
