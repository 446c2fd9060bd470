"""Power gossip against linear algebra: what a low-rank difference becomes, and what both ends know."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from decentnode.core.payload import Payload
from decentnode.core.vector import Entry, ParameterLayout
from decentnode.errors import BadInput
from decentnode.graph.families import Chain, FullyConnected, Ring
from decentnode.graph.mixing import MetropolisHastings, WeightedGraph
from decentnode.sharing import Gossip, PowerGossip
from decentnode.sharing.power_gossip import blocks
from decentnode.testing import Lockstep, bound
from decentnode.transforms import Cast
from tests.support.scheme_cases import MATRICES, random_models

MATRIX = ParameterLayout((Entry("weight", torch.Size((6, 5)), 0),))


def network(graph, models, rank=1, parameters=MATRIX, **options):
    return Lockstep(lambda: PowerGossip(rank=rank), graph, models, parameters=parameters, **options)


def low_rank_pair(rank, rows=6, columns=5):
    """Two models whose difference has this rank, shape (2, rows * columns)."""
    left, right = random_models(rows, rank, seed=1), random_models(columns, rank, seed=2)
    model = random_models(1, rows * columns)[0]
    return torch.stack([model, model + (left @ right.T).reshape(-1)])


@pytest.mark.parametrize("rank", [1, 2, 3])
def test_a_difference_of_its_rank_is_gone_after_two_rounds(rank):
    models = low_rank_pair(rank)
    mixed = network(FullyConnected(2), models, rank).run(2)
    assert torch.allclose(mixed, models.mean(0).expand(2, -1), rtol=0, atol=1e-13)


def test_a_difference_of_higher_rank_is_not():
    models = low_rank_pair(2)
    assert network(FullyConnected(2), models, 1).run(2).var(0).sum() > 1e-3


def test_one_round_is_the_projection_of_the_difference():
    models = low_rank_pair(3)
    pair = network(FullyConnected(2), models)
    mixed = pair.mix()
    D = (models[0] - models[1]).view(6, 5)
    after = (mixed[0] - mixed[1]).view(6, 5)
    taken = D - after
    assert np.linalg.matrix_rank(taken.numpy(), tol=1e-10) == 1
    assert torch.allclose((taken * after).sum(), torch.zeros(()).double(), rtol=0, atol=1e-12), "orthogonal"


def test_warm_starts_turn_to_the_largest_part():
    """Alternate sides with p from the round before are a power iteration on a difference that stays."""
    U, _, V = torch.linalg.svd(random_models(6, 5, seed=4), full_matrices=False)
    D = U @ torch.diag(torch.tensor([8.0, 1.0, 0.5, 0.2, 0.1], dtype=torch.float64)) @ V
    models = torch.stack([torch.zeros(30, dtype=torch.float64), D.reshape(-1)])
    pair = network(FullyConnected(2), models)
    for _ in range(12):
        pair.mix()
        pair.models = models.clone()
    assert pair.round % 2 == 0, "the next round is from the right"
    (p,) = pair.state("_p")[0][1]
    assert abs(p[:, 0] @ V[0]) == pytest.approx(1, abs=1e-9)


def test_both_ends_hold_the_same_p():
    ring = network(Ring(8), random_models(8, 28), parameters=MATRICES)
    for _ in range(5):
        ring.mix()
        known = ring.state("_p")
        for i, of_neighbors in enumerate(known):
            for j, ps in of_neighbors.items():
                assert all(map(torch.equal, ps, known[j][i]))


def test_vectors_and_small_matrices_are_mixed_as_in_gossip():
    models = random_models(8, 28)
    mixed = network(Ring(8), models, parameters=MATRICES).mix()
    gossip = Lockstep(Gossip, Ring(8), models).mix()
    assert torch.allclose(mixed[:, 12:16], gossip[:, 12:16], rtol=0, atol=1e-15)
    assert not torch.allclose(mixed[:, :12], gossip[:, :12], rtol=0, atol=1e-3)
    small = network(Ring(8), models, rank=4, parameters=MATRICES).mix()
    assert torch.allclose(small, gossip, rtol=0, atol=1e-15)


@pytest.mark.parametrize(("rank", "rounds"), [(1, 230), (2, 120)])
def test_all_agree_on_the_exact_mean(rank, rounds):
    models = random_models(8, 28)
    mixed = network(Ring(8), models, rank, MATRICES).run(rounds)
    assert torch.allclose(mixed, models.mean(0).expand(8, -1), rtol=0, atol=1e-6)


@settings(max_examples=15, deadline=None)
@given(
    seed=st.integers(0, 10**6), drops=st.lists(st.tuples(st.integers(0, 7), st.integers(0, 8)), max_size=4)
)
def test_one_sided_losses_move_the_mean_by_one_exchange_and_heal(seed, drops):
    """Message j -> j+1 of some rounds is lost: those ends skip an exchange; all still agree in the end."""
    models = random_models(8, 30, seed)
    ring = network(Ring(8), models)
    ring.is_live = lambda i, j: (j, ring.round) not in drops or i != (j + 1) % 8
    for _ in range(14):
        before = ring.models.mean(0)
        spread = (ring.models.max() - ring.models.min()).item()
        ring.mix()
        if ring.round - 1 not in {round for _, round in drops}:
            assert torch.allclose(ring.models.mean(0), before, rtol=0, atol=1e-13)
        assert (ring.models.max() - ring.models.min()).item() <= 10 * spread
        p, last = ring.state("_p"), ring.state("_last")
        for i in range(8):
            for j in set(p[i]) & {k for k in range(8) if i in p[k]}:
                if last[i].get(j, -1) == last[j].get(i, -1) == ring.round - 1:
                    assert all(map(torch.equal, p[i][j], p[j][i]))
    assert all(rounds.get((i + 1) % 8) == ring.round - 1 for i, rounds in enumerate(ring.state("_last")))


def test_equal_models_stay_and_p_stays_finite():
    models = random_models(1, 30).expand(8, -1).clone()
    ring = network(Ring(8), models)
    assert torch.allclose(ring.run(4), models, rtol=0, atol=1e-14)
    assert all(p.isfinite().all() for known in ring.state("_p") for ps in known.values() for p in ps)


def test_the_bytes_are_those_of_a_product_from_the_right_then_from_the_left():
    pair = network(FullyConnected(2), random_models(2, 30), rank=2)
    pair.mix()
    right = pair.sent
    pair.mix()
    assert (right, pair.sent - right) == (2 * (2 * 6 * 8 + 16), 2 * (2 * 5 * 8 + 16))


def test_blocks_cover_a_network_as_it_lies_in_memory():
    module = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(16, 5))
    layout = ParameterLayout.of(module, mix_buffers=True, channels_last=True)
    all_blocks = list(blocks(layout, 2))
    assert sum(block.rows * block.columns for block in all_blocks) == layout.numel
    flat = torch.arange(layout.numel, dtype=torch.float32)
    convolution = layout.entries[0].view(flat)
    assert torch.equal(all_blocks[0].matrix(flat), convolution.permute(0, 2, 3, 1).reshape(4, 27))
    assert [block.rank for block in all_blocks] == [2, 0, 0, 0, 2, 0, 0, 0]


@pytest.mark.parametrize("wrong", ["short", "nan"])
def test_a_product_that_makes_no_sense_is_left_out(wrong, capsys):
    scheme, vector = bound(PowerGossip(), 8, 30, parameters=MATRIX), random_models(1, 30)[0]
    scheme.begin(vector)
    view = WeightedGraph(Chain(8), MetropolisHastings()).view(0, 0)
    (sent,) = scheme.outgoing(vector, view).values()
    values = torch.full((5 if wrong == "short" else 6,), float("nan"), dtype=torch.float64)
    payload = Payload.of(sent.layout, {"vector": values, "last": torch.tensor([-1])})
    out = torch.empty_like(vector)
    scheme.mix(vector, {1: payload}, view, out)
    assert torch.equal(out, vector)
    assert "discarded the payload of rank 1" in capsys.readouterr().out


def test_transforms_are_refused():
    with pytest.raises(BadInput, match="power_gossip is a compressor itself; leave the transforms out"):
        bound(PowerGossip(), 8, 30, (Cast(),), parameters=MATRIX)
