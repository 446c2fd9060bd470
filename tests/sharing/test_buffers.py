"""Running statistics beside what a scheme shares, and minibatches that batch norm cannot take."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from decentnode.errors import BadInput
from decentnode.graph.families import Ring
from decentnode.graph.mixing import MetropolisHastings, WeightedGraph
from decentnode.models.base import least_batch
from decentnode.node.dry_round import defects
from decentnode.node.experiment import Experiment
from decentnode.sharing import Gossip, NoSharing
from decentnode.sharing.blocks.buffers import AveragedBuffers
from tests.node.test_resume import check_resume
from tests.support.in_process import Nodes

CONFIG = """
seed: 3
rounds: 4
graph: {graph}
dataset: {{name: digits, train_size: 200}}
model: tests.sharing.test_buffers:Normalized
training:
  optimizer: {{name: SGD, lr: 0.1}}
  batch_size: 8
  steps_per_round: {steps}
  mix_buffers: true
sharing: {sharing}
communication: inproc
"""
RING = "{name: ring, nodes: 4}"
TOP_K = "transforms: [{name: top_k, fraction: 0.1}]"


class Normalized(nn.Sequential):
    """Digits have pixels that are 0 in all samples: their running variance goes to 0."""

    def __init__(self):
        super().__init__(nn.Flatten(), nn.BatchNorm1d(64), nn.Linear(64, 10))


def experiment(tmp_path, sharing="gossip", graph=RING, steps=12, *overrides):
    path = tmp_path / "buffers.yaml"
    path.write_text(CONFIG.format(sharing=sharing, graph=graph, steps=steps))
    return Experiment.from_yaml(path, overrides)


SCHEMES = {
    "jwins": "jwins",
    "choco": f"{{name: choco, gamma: 0.6, {TOP_K}}}",
    "choco, overlapped": f"{{name: choco, gamma: 0.6, {TOP_K}}}",
    "wavelet": "{name: gossip, transforms: [wavelet, {name: top_k, fraction: 0.1}]}",
    "outer": "{name: gossip, outer: {name: SGD, lr: 1, momentum: 0.9}}",
    "fragments, overlapped": "{name: gossip, outer: SGD, transforms: [{name: fragments, count: 2}]}",
    "qsgd": "{name: gossip, transforms: [{name: qsgd, levels: 127}]}",
    "beer": f"{{name: beer, gamma: 0.6, {TOP_K}}}",
    "exact_diffusion": "exact_diffusion",
    "gradient_tracking": "gradient_tracking",
    "push_sum": "{name: push_sum, weights: metropolis_hastings}",
    "relay_sum": "relay_sum",
    "moniqua": "{name: moniqua, theta: 8.0}",
    "power_gossip": "power_gossip",
    "stc": "stc",
    "stc server": "{name: stc, server: 0}",
}


@pytest.mark.parametrize("name", SCHEMES)
def test_buffers_are_averaged_in_full_and_variances_stay_positive(tmp_path, name):
    """Of each round: what the local steps have left, times W. Before, these made variances negative."""
    star = name in ("relay_sum", "stc server")
    graph = "{name: star, nodes: 4}" if star else RING
    overlap = ["communication={name: inproc, overlap: true}"] if "overlapped" in name else []
    made = experiment(tmp_path, SCHEMES[name], graph, 12, *overlap)
    nodes = Nodes(made, tmp_path / "nodes").begin()
    assert all(isinstance(node.sharing, AveragedBuffers) for node in nodes.nodes)
    W, p = torch.from_numpy(made.graph.matrix()), made.layout.parameters.numel
    seen = {}
    for node in nodes.nodes:
        node.sharing.accept = lambda vector, view, mixed, accept=node.sharing.accept: (
            seen.update({view.rank: (vector[p:].clone(), mixed[p:].clone())}), accept(vector, view, mixed)
        )  # fmt: skip
    for round in range(made.settings.rounds):
        nodes.run(round, round + 1)
        before, after = (torch.stack([seen[rank][i] for rank in range(4)]) for i in (0, 1))
        assert torch.allclose(after.double(), W @ before.double(), rtol=1e-5, atol=1e-7)
        for node in nodes.nodes:
            assert (node.training.module[1].running_var >= 0).all()


@pytest.mark.parametrize("sharing", ["fed_avg", "{name: scaffold, average: equal}"])
def test_a_server_averages_buffers_by_the_weights_of_its_scheme(tmp_path, sharing):
    graph = "{name: federated, nodes: 4, clients: 2, down: all}"
    partition = "dataset.partition={name: sizes, ranks: [1, 2, 3], sizes: [100, 40, 60]}"
    made = experiment(tmp_path, sharing, graph, 12, partition)
    nodes = Nodes(made, tmp_path / "nodes").begin()
    p, seen = made.layout.parameters.numel, {}
    for node in nodes.nodes:
        node.sharing.accept = lambda vector, view, mixed, accept=node.sharing.accept: (
            seen.update({view.rank: vector[p:].clone()}), accept(vector, view, mixed)
        )  # fmt: skip
    for round in range(4):
        nodes.run(round, round + 1)
        chosen = made.graph.graph.chosen(round)
        q = torch.tensor([[100.0, 40.0, 60.0][i - 1] if sharing == "fed_avg" else 1.0 for i in chosen])
        mean = (q / q.sum()).double() @ torch.stack([seen[i] for i in chosen]).double()
        for node in nodes.nodes:
            assert torch.allclose(node.training.vector.values[p:].double(), mean, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("scheme", ["ubar", "{name: trimmed_mean, faults: 1}", "choco"])
def test_a_scheme_inside_is_given_all_that_a_node_gives_it(tmp_path, scheme):
    """UBAR failed in round 1, without samples to test models on; the weight of the liar was not recorded."""
    lie = "adversaries=[{name: sign_flip, ranks: [3]}]"
    nodes = Nodes(
        experiment(tmp_path, scheme, "{name: fully_connected, nodes: 4}", 2, lie), tmp_path / "nodes"
    )
    nodes.begin().run(0, 2)
    # A robust rule mixes the buffers itself.
    assert all(isinstance(node.sharing, AveragedBuffers) == (scheme == "choco") for node in nodes.nodes[:3])
    weights = [node.sharing.watched_weight for node in nodes.nodes]
    if scheme == "choco":
        assert weights == [None] * 4
    else:
        assert weights[3] is None and all(0 <= weight < 0.7 for weight in weights[:3])
    assert nodes.models.isfinite().all()


@pytest.mark.parametrize("name", ["choco", "gradient_tracking"])
def test_a_run_with_buffers_continues_bit_for_bit(tmp_path, name):
    check_resume(experiment(tmp_path, SCHEMES[name], steps=2), tmp_path)


def test_what_averages_everything_in_full_sends_buffers_in_the_vector(tmp_path):
    made = experiment(tmp_path)
    assert type(made.schemes.plain()) is Gossip
    assert made.schemes.most_payload_bytes == 4 * made.layout.numel
    compressed = experiment(tmp_path, "{name: gossip, transforms: [cast]}")
    parameters = 2 * made.layout.parameters.numel
    assert compressed.schemes.most_payload_bytes == parameters + -parameters % 8 + 4 * 128
    assert type(experiment(tmp_path, "none").schemes.plain()) is NoSharing


class Forgets(Gossip):
    """A scheme of one's own that does not write its mix."""

    def mix(self, vector, incoming, view, out):
        pass


@pytest.mark.parametrize("name", ["jwins", "choco", "power_gossip"])
def test_a_dry_round_takes_buffers_along(tmp_path, name):
    assert list(defects(experiment(tmp_path, SCHEMES[name]))) == []


def test_a_dry_round_names_the_scheme_and_not_what_is_around_it(tmp_path):
    (line,) = defects(experiment(tmp_path, "tests.sharing.test_buffers:Forgets"))
    assert line.startswith("sharing: Forgets.mix leaves 778 of 906 elements of out unwritten")


def test_a_neighbor_whose_buffers_are_not_finite_is_left_out_of_their_average(tmp_path):
    scheme = experiment(tmp_path, "{name: gossip, transforms: [cast]}").schemes.plain()
    view = WeightedGraph(Ring(4), MetropolisHastings()).view(0, 0)
    vectors = torch.ones(4, scheme.setup.layout.numel) * torch.arange(1.0, 5.0)[:, None]
    vectors[1, -1] = torch.nan
    sent = {j: scheme.outgoing(vectors[j], replace(view, rank=j))[1] for j in (1, 3)}
    scheme.outgoing(vectors[0], view)
    out = torch.empty_like(vectors[0])
    scheme.mix(vectors[0], sent, view, out)
    assert [refusal.rank for refusal in scheme.refusals] == [1]
    assert torch.allclose(out[:-128], torch.tensor((1.0 + 2.0 + 4.0) / 3))
    assert torch.allclose(out[-128:], torch.tensor((2 * 1.0 + 4.0) / 3))


@pytest.mark.parametrize(
    ("sharing", "hiding"),
    [
        ("{name: gossip, transforms: [{name: clip, norm: 1.0}]}", "clip"),
        ("{name: secure_aggregation, transforms: [wavelet]}", "secure_aggregation"),
    ],
)
def test_buffers_do_not_travel_beside_what_hides_a_model(tmp_path, sharing, hiding):
    with pytest.raises(BadInput) as caught:
        experiment(tmp_path, sharing)
    assert str(caught.value) == (
        "training.mix_buffers: running statistics would travel beside the transforms, where "
        f"{hiding} does not hide them; leave it out, and every node keeps its own"
    )


def test_no_minibatch_has_fewer_samples_than_batch_norm_takes(tmp_path):
    """Of 49 samples one is left over in the last of four batches, which the third one takes."""
    sizes = "dataset.partition={name: sizes, sizes: [49, 51, 50, 50]}"
    made = experiment(tmp_path, "gossip", RING, 12, sizes, "training.batch_size=16")
    nodes = Nodes(made, tmp_path / "nodes").begin().run(0, 2)
    assert [node.training.minibatches.per_epoch for node in nodes.nodes] == [3, 4, 4, 4]


@pytest.mark.parametrize(
    ("override", "line"),
    [
        (
            "dataset.partition={name: sizes, sizes: [100, 1, 99, 0]}",
            "dataset.partition: rank 1 has a single sample, but batch norm needs 2 at once; give each rank 2 "
            "or none",
        ),
        (
            "training.batch_size=1",
            "training.batch_size: batch norm needs 2 samples or more at once, not 1",
        ),
    ],
)
def test_what_batch_norm_can_never_take_is_refused(tmp_path, override, line):
    with pytest.raises(BadInput) as caught:
        experiment(tmp_path, "gossip", RING, 12, override)
    assert str(caught.value) == line


def test_only_what_cannot_take_one_sample_needs_two():
    sample = torch.rand(1, 3, 4, 4)
    flat, spatial = nn.Sequential(nn.Flatten(), nn.BatchNorm1d(48)), nn.BatchNorm2d(3)
    assert [least_batch(network, (sample,)) for network in (flat, spatial, nn.Flatten())] == [2, 1, 1]
    assert flat.training and flat[1].num_batches_tracked == 0
