"""Fragments of the model by turns, with an outer optimizer, beside dense recursions in float64."""

import copy
from dataclasses import dataclass
from functools import partial

import pytest
import torch
from torch import nn

from decentnode.core.byte_counters import HEADER_BYTES
from decentnode.core.vector import Entry, ParameterLayout
from decentnode.errors import BadInput
from decentnode.graph.families import FullyConnected, Ring
from decentnode.models.base import Model
from decentnode.models.quadratic import GaussianMean
from decentnode.node.experiment import Experiment
from decentnode.sharing import AllReduce, Gossip
from decentnode.testing import Lockstep, Quadratics, random_models
from decentnode.transforms import Fragments, Qsgd
from tests.node.test_resume import check_resume
from tests.support.in_process import Nodes

N, STEPS, ETA = 4, 3, 0.1
LAYERS = {"embedding": 2, "blocks.0": 3, "blocks.1": 1, "blocks.2": 4}
D = sum(LAYERS.values())
STRIDED = [[*range(2), 5], [*range(2, 5), *range(6, 10)]]
"""The coordinates of two fragments of those layers, which take turns."""
SEQUENTIAL = [range(5), range(5, 10)]
NESTEROV = partial(torch.optim.SGD, lr=0.7, momentum=0.9, nesterov=True)
PROBLEM = Quadratics(torch.linspace(0.5, 2, N, dtype=torch.float64), random_models(N, D, seed=3))
CONFIG = """
name: streaming
rounds: 7
graph: {{name: fully_connected, nodes: 4}}
dataset: {{name: quadratic, nodes: 4, dimension: 10, b: normal, partition: natural}}
model: tests.sharing.test_streaming:Blocks
training:
  optimizer: {{name: SGD, lr: 0.1, momentum: 0.5}}
  loss: NLLLoss
  batch_size: 1
  steps_per_round: 3
  dtype: float64
sharing: {sharing}
communication: {{name: inproc, overlap: {overlap}}}
evaluation: {{every: 0}}
"""


class BlocksMean(GaussianMean):
    """The mean of a Gaussian, in the layers above."""

    def __init__(self):
        nn.Module.__init__(self)
        self.embedding = nn.Linear(1, LAYERS["embedding"], bias=False)
        sizes = [size for name, size in LAYERS.items() if name != "embedding"]
        self.blocks = nn.ModuleList(
            nn.ParameterDict({"a": torch.zeros(1), "b": torch.zeros(size - 1)}) for size in sizes
        )

    @property
    def x(self):
        return torch.cat([p.flatten() for p in self.parameters()])


@dataclass
class Blocks(Model):
    """Builds it."""

    def build(self, shape, num_classes):
        return BlocksMean()


def parameters():
    """The layout of that model."""
    return ParameterLayout.of(BlocksMean().double(), dtype=torch.float64)


def lockstep(scheme, *transforms, graph=None, start=None):
    return Lockstep(
        scheme, graph or FullyConnected(N), random_models(N, D) if start is None else start,
        transforms=lambda: copy.deepcopy(transforms), parameters=parameters(),
    )  # fmt: skip


def rounds_of(network, rounds):
    for _ in range(rounds):
        for _ in range(STEPS):
            network.train(PROBLEM.gradient, ETA)
        network.mix()
    return network.models


def experiment(tmp_path, sharing, overlap=False):
    path = tmp_path / "streaming.yaml"
    path.write_text(CONFIG.format(sharing=sharing, overlap=str(overlap).lower()))
    return Experiment.from_yaml(path)


@pytest.mark.parametrize(
    ("overlap", "blend", "turns"),
    [(False, 0.0, STRIDED), (False, 0.3, SEQUENTIAL), (True, 0.0, SEQUENTIAL), (True, 0.5, STRIDED)],
)
def test_nodes_make_the_published_recursion(tmp_path, overlap, blend, turns):
    """x_p <- alpha x_p + (1 - alpha) OuterOpt(phi_p, phi_p - mean of what was sent of fragment p).

    With overlap, what was sent is one round older than the local model; the result is used one round later.
    """
    order = "strided" if turns is STRIDED else "sequential"
    made = experiment(
        tmp_path,
        "{name: all_reduce, outer: {name: SGD, lr: 0.7, momentum: 0.9, nesterov: true}, "
        f"blend: {blend}, transforms: [{{name: fragments, count: 2, order: {order}}}]}}",
        overlap,
    )
    nodes = Nodes(made, tmp_path / "nodes").begin()
    a, b = made.samples.dataset.train.inputs.double().unbind(1)
    X, momentum = nodes.models, torch.zeros(N, D, dtype=torch.float64)
    assert X.any(), "from zeros a sign could be wrong"
    phis = [nn.Parameter(X[0, list(turn)]) for turn in turns]
    optimizers = [NESTEROV([phi]) for phi in phis]
    for round in range(7):
        trained = X.clone()
        for _ in range(STEPS):
            momentum = 0.5 * momentum + a * (trained - b)
            trained -= 0.1 * momentum
        turn, phi = list(turns[round % 2]), phis[round % 2]
        phi.grad = phi.detach() - (X if overlap else trained)[:, turn].mean(0)
        optimizers[round % 2].step()
        X = trained
        X[:, turn] = blend * X[:, turn] + (1 - blend) * phi.detach()
        sent = nodes.bytes_sent
        torch.testing.assert_close(nodes.run(round, round + 1).models, X, rtol=0, atol=1e-12)
        # The values, and their number where fragments differ in size.
        payload = 8 * len(turn) + 8 * (turns is STRIDED)
        assert nodes.bytes_sent - sent == N * (N - 1) * (payload + HEADER_BYTES)


def test_one_fragment_is_diloco_bit_for_bit():
    for order in ("strided", "sequential"):
        ours = lockstep(lambda: AllReduce(outer=NESTEROV, blend=0.0), Fragments(1, order))
        usual = lockstep(lambda: AllReduce(outer=NESTEROV))
        assert torch.equal(rounds_of(ours, 5), rounds_of(usual, 5))
        assert ours.sent == usual.sent


def test_a_blend_of_1_is_no_communication_and_without_outer_only_one_fragment_is_averaged():
    alone = lockstep(lambda: AllReduce(outer=NESTEROV, blend=1.0), start=random_models(N, D, seed=8))
    local = alone.models
    for _ in range(2 * STEPS):
        local = local - ETA * torch.stack([PROBLEM.gradient(i, local[i]) for i in range(N)])
    torch.testing.assert_close(rounds_of(alone, 2), local, rtol=0, atol=1e-12)
    network = lockstep(Gossip, Fragments(2), graph=Ring(N))
    W = torch.from_numpy(network.weighted.matrix())
    for round in range(4):
        expected = network.models.clone()
        expected[:, STRIDED[round % 2]] = W @ expected[:, STRIDED[round % 2]]
        torch.testing.assert_close(network.mix(), expected, rtol=0, atol=1e-14)


@pytest.mark.parametrize("rounds", [2, 3])
def test_it_continues_bit_for_bit_in_the_middle_of_a_cycle(tmp_path, rounds):
    def make():
        return lockstep(lambda: Gossip(outer=NESTEROV, blend=0.2), Fragments(3), Qsgd(), graph=Ring(N))

    network, again = make(), make()
    rounds_of(network, rounds)
    again.models, again.round = network.models, network.round
    for scheme, other in zip(again.schemes, network.schemes, strict=True):
        scheme.load_state_dict(copy.deepcopy(other.state_dict()))
    assert torch.equal(rounds_of(network, 4), rounds_of(again, 4))


def test_a_run_continues_bit_for_bit_where_fragments_overlap(tmp_path):
    sharing = "{name: all_reduce, outer: SGD, transforms: [{name: fragments, count: 3}, qsgd]}"
    check_resume(experiment(tmp_path, sharing, overlap=True), tmp_path)


def test_layers_are_named_up_to_their_first_number():
    layers = {name: sum(e.shape.numel() for e in entries) for name, entries in parameters().layers.items()}
    assert layers == LAYERS
    names = ["weight", "0.weight", "0.bias", "head.weight", "head.bias", "encoder.layers.1.attn.0.weight"]
    entries = tuple(Entry(name, torch.Size([1]), i) for i, name in enumerate(names))
    assert [*ParameterLayout(entries).layers] == ["weight", "0", "head", "encoder.layers.1"]


@pytest.mark.parametrize(
    ("sharing", "overlap", "message"),
    [
        (
            "{name: gossip, transforms: [{name: fragments, count: 5}]}",
            False,
            "sharing.transforms[0]: fragments divides a model of 4 layers into 5 fragments; use count: 4 at "
            "most",
        ),
        (
            "{name: gossip, outer: SGD}",
            True,
            "communication.overlap: would lose all local steps beside an outer step, which replaces the whole "
            "model; give sharing.blend, fragments in the chain, or training.train_every: 2",
        ),
        (
            "{name: gossip, blend: 0.5}",
            False,
            "sharing.blend: is for the step of `outer`, and there is none; use mixing_strength",
        ),
        (
            "{name: gossip, transforms: [wavelet, {name: fragments, count: 2}]}",
            False,
            "sharing.transforms[1]: fragments needs the layers of the model, which a transform before it "
            "mixes; put it first",
        ),
    ],
)
def test_what_cannot_be_streamed_is_refused_in_one_line(tmp_path, sharing, overlap, message):
    with pytest.raises(BadInput) as error:
        experiment(tmp_path, sharing, overlap)
    assert message in str(error.value)
