"""Personal parameters: in every node's vector, in no payload and no mix."""

import pytest
import torch

from decentnode.errors import BadInput
from decentnode.node.dry_round import defects
from decentnode.node.experiment import Experiment, average_model_test
from decentnode.training.evaluation import LocalLoss
from tests.node.test_resume import check_resume
from tests.support.in_process import Nodes

CONFIG = """
seed: 3
rounds: 4
graph: {graph}
dataset: {{name: digits, train_size: 200, partition: {{name: shards, labels_per_node: 3}}}}
model: {{name: mlp, hidden: [5]}}
training:
  optimizer: {{name: SGD, lr: 0.1}}
  batch_size: 8
  steps_per_round: {steps}
  dtype: float64
sharing: {sharing}
communication: inproc
"""
RING = "{name: ring, nodes: 4}"
SHARED = 64 * 5 + 5
"""Parameters of the first layer; those of the second, 5 * 10 + 10, are personal."""


def experiment(tmp_path, sharing="name: gossip", graph=RING, steps=1, *overrides, personal="['3.*']"):
    path = tmp_path / "personal.yaml"
    sharing = f"{{{sharing}, personal: {personal}}}"
    path.write_text(CONFIG.format(sharing=sharing, graph=graph, steps=steps))
    return Experiment.from_yaml(path, overrides)


OVERLAP = "communication={name: inproc, overlap: true}"
TOP_K = "transforms: [{name: top_k, fraction: 0.1}, zstd]"
STAR, FULL = "{name: star, nodes: 4}", "{name: fully_connected, nodes: 4}"
SERVER = "{name: federated, nodes: 4, clients: 3, down: all}"
CLIENTS = "dataset.partition={name: sizes, ranks: [1, 2, 3], sizes: [70, 70, 60]}"
SCHEMES = {
    "gossip": ("name: gossip", RING),
    "gossip, overlapped": ("name: gossip", RING, OVERLAP),
    "gossip, outer": ("name: gossip, outer: {name: SGD, lr: 0.7, momentum: 0.9, nesterov: true}", RING),
    "gossip, top_k": (f"name: gossip, {TOP_K}", RING),
    "choco": (f"name: choco, gamma: 0.4, {TOP_K}", RING),
    "gradient_tracking": ("name: gradient_tracking", RING),
    "power_gossip": ("name: power_gossip", RING),
    "relay_sum": ("name: relay_sum", STAR),
    "ubar": ("name: ubar", FULL),
    "fed_prox": ("name: fed_prox, mu: 0.1", SERVER, CLIENTS),
    "scaffold": ("name: scaffold", SERVER, CLIENTS),
    "secure_aggregation": ("name: secure_aggregation", FULL),
}


@pytest.mark.parametrize("name", SCHEMES)
def test_the_personal_part_is_trained_and_never_sent_nor_mixed(tmp_path, name):
    """Each round is one step of `none` from the same models; a scheme changes the other part alone."""
    sharing, graph, *overrides = SCHEMES[name]
    made = experiment(tmp_path, sharing, graph, 1, *overrides)
    alone = experiment(tmp_path, "name: none", RING, 1, *(o for o in overrides if o == CLIENTS))
    assert (made.layout.numel, made.layout.shared.numel) == (SHARED + 60, SHARED)
    nodes, local = (Nodes(e, tmp_path / n).begin() for e, n in ((made, "nodes"), (alone, "local")))
    W, sent = torch.from_numpy(made.graph.matrix()), []
    for node in nodes.nodes:
        node.exchange.tap = lambda round, phase, inbox, messages: sent.extend(inbox.values())
        assert node.sharing.setup.layout.numel == SHARED
    for round in range(3):
        before = nodes.models
        for node, model in zip(local.nodes, before, strict=True):
            node.training.vector.values.copy_(model)
        local.run(round, round + 1)
        nodes.run(round, round + 1)
        trained, after = local.models, nodes.models
        if OVERLAP in overrides:  # x + (trained - x), which rounds
            assert torch.allclose(after[:, SHARED:], trained[:, SHARED:], rtol=1e-14, atol=1e-16)
        else:
            assert torch.equal(after[:, SHARED:], trained[:, SHARED:])
        if name == "gossip":
            assert torch.allclose(after[:, :SHARED], W @ trained[:, :SHARED], rtol=1e-12, atol=1e-14)
        if name == "gossip, overlapped":
            change = (trained - before)[:, :SHARED]
            assert torch.allclose(after[:, :SHARED], W @ before[:, :SHARED] + change, rtol=1e-12, atol=1e-14)
    assert not torch.equal(nodes.models[0, SHARED:], nodes.models[1, SHARED:])
    assert sent
    if name in ("gossip", "gossip, overlapped"):
        # Payloads of the last exchange are still in memory.
        assert {payload.nbytes for payload in sent} == {8 * SHARED}
    assert average_model_test(made) is None, "a mean of models with parts that nobody mixes is no model"


def test_what_is_on_the_wire_has_no_personal_value(tmp_path):
    nodes = Nodes(experiment(tmp_path, steps=3), tmp_path / "nodes").begin()
    payloads, offered = [], []
    for node in nodes.nodes:
        node.exchange.tap = lambda round, phase, inbox, messages: payloads.extend(
            payload["vector"].clone() for payload in inbox.values()
        )
        # What a neighbor gets that comes back without a checkpoint.
        node.exchange.endpoint.offer = lambda model, may_fetch: offered.append(model.clone())
    personal = [nodes.models[:, SHARED:]]
    for round in range(3):
        nodes.run(round, round + 1)
        personal.append(nodes.models[:, SHARED:])
    values = torch.cat(personal).flatten()
    assert len(payloads) == 3 * 4 * 2 and len(offered) == 3 * 4
    assert all(len(sent) == SHARED and not torch.isin(sent, values).any() for sent in payloads + offered)


@pytest.mark.parametrize("sharing", ["name: gossip", f"name: choco, gamma: 0.4, {TOP_K}"])
def test_a_run_that_stops_and_continues_is_the_same(tmp_path, sharing):
    check_resume(experiment(tmp_path, sharing, RING, 2), tmp_path)


def test_models_of_others_are_tested_with_the_personal_part_of_the_node(tmp_path):
    made = experiment(tmp_path, "name: ubar", FULL, 2)
    nodes = Nodes(made, tmp_path / "nodes").begin().run(0, 2)
    whole = experiment(tmp_path, "name: ubar", FULL, 2, personal="[]")
    assert whole.layout.entries[0] == made.layout.entries[0]
    for node in nodes.nodes:
        vector, shard = node.training.vector, whole.samples.shard(node.rank)
        objective = made.settings.training.objective(whole.network.train(), channels_last=False)
        expected = LocalLoss(objective, whole.layout, shard, batch_size=8)(vector.values, 2)
        assert node.sharing.setup.local_loss(vector.shared, 2) == expected


@pytest.mark.parametrize(
    ("sharing", "options"),
    [
        ("name: ad_psgd", ("time_model={name: asynchronous, seconds_per_round: 0.1}",)),
        ("name: gossip", ("adversaries=[{name: sign_flip, ranks: [3]}]",)),
    ],
)
def test_the_dry_round_is_about_the_shared_part(tmp_path, sharing, options):
    made = experiment(tmp_path, sharing, RING, 1, *options)
    assert [str(defect) for defect in defects(made)] == []
    assert made.schemes.most_payload_bytes <= 8 * SHARED + 64


def test_one_model_on_all_nodes_has_no_personal_part(tmp_path):
    with pytest.raises(BadInput, match=r"sharing.personal: ddp averages the gradients of all parameters"):
        experiment(tmp_path, "name: none", RING, 1, "training.name=ddp", "communication=zeromq")
