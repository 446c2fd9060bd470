"""Which coordinates a node has sent, and how often: the counts, their files, and a resumed node."""

import copy
from pathlib import Path

import numpy as np
import pytest
import torch

from decentnode.core.rng import Context
from decentnode.errors import BadInput
from decentnode.formats.model_files import COORDINATES, model_rounds, rounds_of
from decentnode.node.experiment import Experiment
from decentnode.node.recording.coordinate_records import CoordinateRecords
from decentnode.results.coordinates import PERCENTS, counts_of, read_shares
from decentnode.transforms import (
    ErrorFeedback,
    Fragments,
    Qsgd,
    RandomK,
    Rice,
    Sign,
    Threshold,
    TopK,
    Wavelet,
)
from decentnode.transforms.chain import Chain
from tests.support.in_process import Nodes

CONFIG = """
name: counted
rounds: 6
graph: {{name: ring, nodes: 4}}
dataset: {{name: digits, train_size: 80, test_size: 40}}
model: {{name: mlp, hidden: [4]}}
training: {{optimizer: {{name: SGD, lr: 0.1}}, batch_size: 8, steps_per_round: 1}}
sharing: {sharing}
communication: inproc
evaluation: {{every: 0, final: false}}
records: {{coordinates: {{every: 2}}}}
"""
GOSSIP = "{name: gossip, transforms: [{name: random_k, fraction: 0.25}]}"


def experiment(folder: Path, sharing: str = GOSSIP) -> Experiment:
    (folder / "counted.yaml").write_text(CONFIG.format(sharing=sharing))
    return Experiment.from_yaml(folder / "counted.yaml")


def signal(n: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(n, generator=torch.Generator().manual_seed(seed))


def counted(*transforms, n: int, rounds: int, of_models: bool = False) -> Chain:
    chain = Chain(transforms, n, of_models=of_models)
    assert chain.count_sent() is chain.sent
    chain.begin(torch.zeros(n))
    for round in range(rounds):
        chain.encode(signal(n, round), Context(1, round, 2))
    return chain


@pytest.mark.parametrize(
    ("transforms", "sent"),
    [
        (lambda: [TopK(0.2), Rice()], lambda x: np.argsort(-np.abs(x))[:4]),
        (lambda: [TopK(0.2), Qsgd(3)], lambda x: np.argsort(-np.abs(x))[:4]),
        (lambda: [Threshold(1.0)], lambda x: np.flatnonzero(np.abs(x) >= 1.0)),
        (lambda: [TopK([1.0])], lambda x: np.arange(len(x))),
    ],
    ids=["top_k", "rounded", "threshold", "whole"],
)
def test_each_coordinate_counts_once_for_each_round_that_sends_it(transforms, sent) -> None:
    n = 20
    chain = counted(*transforms(), n=n, rounds=7)
    rounds, latest = np.zeros(n, int), np.full(n, -1)
    for round in range(7):
        indices = sent(signal(n, round).numpy())
        rounds[indices] += 1
        latest[indices] = round
    assert chain.sent.rounds.tolist() == rounds.tolist() and chain.sent.latest.tolist() == latest.tolist()
    # To a second neighbor, or in a second payload of the chain's copies, it is the same round.
    chain.copy().encode(signal(n, 6), Context(1, 6, 2))
    assert chain.sent.rounds.tolist() == rounds.tolist()


def test_other_bases_random_coordinates_fragments_and_corrected_ones_count() -> None:
    assert len(counted(Wavelet("sym2"), TopK(0.1), n=50, rounds=2).sent.rounds) >= 50
    random_k = RandomK(0.3)
    chain = counted(random_k, n=50, rounds=1)
    assert chain.sent.rounds.nonzero().flatten().tolist() == random_k.coordinates(Context(1, 0, 2)).tolist()
    assert counted(Fragments(fraction=0.25), n=8, rounds=6).sent.rounds.tolist() == [2] * 4 + [1] * 4
    corrected = counted(ErrorFeedback(), TopK(0.2), Sign(), n=20, rounds=3)
    assert corrected.sent.rounds.sum() == 3 * 4
    for without in (Chain([], 4), Chain([Qsgd()], 4)):
        assert without.count_sent() is None


def test_a_chain_that_is_not_asked_counts_nothing_and_saves_nothing() -> None:
    chain = Chain([TopK(0.2)], 10)
    chain.encode(signal(10), Context(1, 0, 2))
    assert chain.sent is None and "sent" not in chain.state_dict()


def test_counts_are_written_when_due_and_at_the_end(tmp_path) -> None:
    chain = counted(TopK(0.2), n=10, rounds=0)
    records = CoordinateRecords(tmp_path, 3, chain.sent, is_due=lambda round: round == 1)
    for round in range(3):
        chain.encode(signal(10, round), Context(1, round, 3))
        records.after(round)
    records.at_the_end(2)
    assert records.sync() == "" and rounds_of(tmp_path, 3, COORDINATES) == [1, 2]
    assert counts_of(tmp_path, 3, 1)["rounds"].sum() == 4 and counts_of(tmp_path, 3)["rounds"].sum() == 6
    assert counts_of(tmp_path, 3)["latest"].max() == 2
    records.cut_back(1)
    assert rounds_of(tmp_path, 3, COORDINATES) == [1]
    with pytest.raises(BadInput, match=r": has no counts of rank 1; it has those of 3$"):
        counts_of(tmp_path, 1)
    with pytest.raises(BadInput, match=r"counts no coordinates; run it with records\.coordinates: \{\}"):
        counts_of(tmp_path / "none", 1)


def test_nodes_write_what_they_sent_and_a_resumed_one_goes_on(tmp_path) -> None:
    made = experiment(tmp_path)
    nodes = Nodes(made, tmp_path / "nodes").begin().run(0, 4)
    state = [copy.deepcopy(node.sharing.state_dict()) for node in nodes.nodes]
    nodes.run(4, 6)
    for node in nodes.nodes:
        assert node.records.close() == ""
    assert model_rounds(tmp_path, COORDINATES) == {rank: [1, 3, 5] for rank in range(4)}
    counts = counts_of(tmp_path, 2)
    transform = RandomK(0.25)
    transform.dimension = len(counts["rounds"])
    transform._spans = ((0, transform.dimension),)
    expected = np.zeros(transform.dimension, int)
    for round in range(6):
        expected[transform.coordinates(Context(made.graph.seed, round, 2)).numpy()] += 1
    assert counts["rounds"].tolist() == expected.tolist()
    shares = read_shares(tmp_path)
    assert shares.percentiles.shape == (4, len(PERCENTS)) and shares.dimension == transform.dimension
    of_all = [100 * counts_of(tmp_path, rank)["rounds"] / 6 for rank in range(4)]
    assert np.allclose(shares.places, np.mean(of_all, axis=0))
    assert np.allclose(shares.percentiles[2, [0, -1]], [of_all[2].min(), of_all[2].max()])
    again = Nodes(made, tmp_path / "again")
    for node, saved in zip(again.nodes, state, strict=True):
        node.sharing.load_state_dict(saved)
    again.run(4, 6)
    assert again.nodes[2].sharing.chain.sent.rounds.tolist() == expected.tolist()


@pytest.mark.parametrize(
    ("sharing", "message"),
    [
        ("gossip", "no transform of gossip selects coordinates, so there is nothing to count; add one"),
        ("{name: cesar, transforms: [random_k]}", "cannot be counted with cesar; leave it out"),
    ],
)
def test_what_cannot_be_counted_is_refused(sharing, message, tmp_path) -> None:
    with pytest.raises(BadInput, match=f"records.coordinates: {message}"):
        experiment(tmp_path, sharing)
