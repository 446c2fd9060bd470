"""`training.dtype`: runs in another precision, over every transport, through a stop, and to the end."""

import hashlib
import json

import pytest
import torch

from decentnode.core.payload import Payload
from decentnode.core.vector import DTYPES
from decentnode.errors import BadInput
from decentnode.formats.model_files import model_hash
from decentnode.graph.families import Ring
from decentnode.launcher.monitoring.memory_estimate import bytes_needed
from decentnode.node.experiment import Experiment
from decentnode.sharing.choco import Choco
from decentnode.testing import Lockstep
from decentnode.transforms.base import Context
from decentnode.transforms.chain import Chain
from decentnode.transforms.sparsify.top_k import TopK
from tests.integration.running import ROOT, run_command
from tests.node.test_resume import check_resume, experiment_of
from tests.support.in_process import Nodes
from tests.support.transform_cases import CASES

ROUNDS = 3
RUN = """
name: dtypes
rounds: 3
graph: {{name: ring, nodes: 4}}
dataset: {{name: digits, train_size: 200, test_size: 40}}
model: {{name: mlp, hidden: [8]}}
training: {{optimizer: {{name: SGD, lr: 0.1}}, batch_size: 8, steps_per_round: 2, dtype: {dtype}}}
sharing: gossip
communication: {communication}
evaluation: {{every: 1, figures: false}}
"""
WAYS = {
    "float64": ("zeromq", "torch_distributed"),
    "bfloat16": ("zeromq", "{name: zeromq, local: tcp, base_port: 29840}", "torch_distributed"),
}


@pytest.mark.parametrize("dtype", WAYS)
def test_every_transport_gives_the_same_models_at_the_bytes_of_the_dtype(dtype, tmp_path):
    path = tmp_path / "run.yaml"
    path.write_text(RUN.format(dtype=dtype, communication="inproc"))
    experiment = Experiment.from_yaml(path)
    nodes = Nodes(experiment, tmp_path / "nodes").begin().run(0, ROUNDS)
    models, size = nodes.models, DTYPES[dtype].itemsize
    assert models.dtype == DTYPES[dtype] and experiment.layout.nbytes == size * models.shape[1]
    assert nodes.bytes_sent == ROUNDS * 4 * 2 * (size * models.shape[1] + 64)
    digests = {i: hashlib.sha256(x.view(torch.uint8).numpy().data).hexdigest() for i, x in enumerate(models)}
    wide = models.double()
    distance = float((wide - wide.mean(0)).norm(dim=1).mean() / wide.mean(0).norm())
    for number, communication in enumerate(WAYS[dtype]):
        path.write_text(RUN.format(dtype=dtype, communication=communication))
        run_dir = tmp_path / str(number)
        assert run_command(tmp_path / "out", "run", str(path), f"run_dir={run_dir}") == 0
        summary = json.loads((run_dir / "summary.json").read_text())
        assert summary["model_hash"] == model_hash(digests), communication
        assert summary["bytes_sent"] == summary["bytes_received"] == nodes.bytes_sent
        assert summary["consensus_distance"] == pytest.approx(distance, rel=1e-9)
        assert summary["average_model"]["loss"] < 2.3


@pytest.mark.parametrize(("dtype", "sharing"), [("float64", "gossip"), ("bfloat16", "choco")])
def test_a_run_that_stops_and_continues_is_the_same(dtype, sharing, tmp_path):
    experiment = experiment_of(sharing, tmp_path, overrides=[f"training.dtype={dtype}"])
    straight = check_resume(experiment, tmp_path)
    assert straight.models.dtype == DTYPES[dtype] and straight.models.isfinite().all()
    estimates = [
        bytes_needed(experiment_of("gossip", tmp_path, "", [f"training.dtype={name}"]), 0) for name in DTYPES
    ]
    assert estimates == sorted(estimates, reverse=True) and len(set(estimates)) == 3


def test_in_float64_a_whole_run_ends_at_the_optimum_to_the_last_digits(tmp_path):
    """Three nodes that hear each other: the error shrinks to .6 in each round, to 2e-14 in 60."""
    errors = {}
    for dtype in ("float32", "float64"):
        options = [
            "graph.nodes=3",
            "dataset.nodes=3",
            "dataset.b=normal",
            "training.optimizer.lr=0.3",
            "rounds=99",
        ]
        experiment = Experiment.from_yaml(
            ROOT / "configs" / "quadratic.yaml", [*options, f"training.dtype={dtype}"]
        )
        models = Nodes(experiment, tmp_path / dtype).begin().run(0, 60).models
        a, b = experiment.samples.dataset.train.inputs.unbind(1)
        errors[dtype] = float((models.double() - (a * b).sum(0) / a.sum(0)).abs().max())
    assert errors["float64"] < 1e-13 < 1e-9 < errors["float32"] < 1e-6


def test_public_copies_of_a_bfloat16_model_are_not_rounded_again():
    """choco: p_i stays the sum of w_ij (h_j - h_i), as of copies that were only rounded on the wire."""
    models = torch.randn(4, 50, generator=torch.Generator().manual_seed(1)).to(torch.bfloat16)
    network = Lockstep(lambda: Choco(0.5), Ring(4), models, lambda: (TopK(0.2),))
    network.run(100, lambda i, x: x - i, 0.05)
    public = network.state("_models")
    h = torch.stack([copies["h"] for copies in public]).double()
    p = torch.stack([copies["p"] for copies in public]).double()
    # All copies begin at the own model here, which the neighbors' sums do not know.
    start = models.double()
    W = torch.from_numpy(network.weighted.matrix())
    assert torch.allclose(p, W @ (h - start) - (h - start), rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", CASES)
def test_transforms_make_of_bfloat16_what_they_make_of_the_same_numbers_in_float32(name):
    case, context = CASES[name], Context(seed=5, round=2, sender=1, receiver=2)
    signal = torch.randn(301, generator=torch.Generator().manual_seed(3)).to(torch.bfloat16)
    if any(transform.needs_float32 for transform in case.chain()):
        with pytest.raises(BadInput, match="float32, not bfloat16"):
            Chain(case.chain(), 301, torch.bfloat16, case.parameters(301))
        return
    decoded = []
    for dtype in (torch.bfloat16, torch.float32):
        chain = Chain(case.chain(), 301, dtype, case.parameters(301))
        payload = chain.encode(signal.to(dtype), context)
        payload = Payload.parse(chain.layout, payload.buffer.clone())
        decoded.append(chain.decode(payload, context).float())
    assert torch.allclose(*decoded, rtol=2**-8, atol=0)
