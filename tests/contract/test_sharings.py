"""What every sharing scheme owes, and the closed forms of those that are linear."""

import asyncio
import importlib
import math
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from decentnode.communication.base import Inbox, Memory
from decentnode.communication.inproc import InProcess
from decentnode.graph.families import FullyConnected, Ring, Star
from decentnode.graph.random_graphs import Regular
from decentnode.mixing import MetropolisHastings, WeightedGraph
from decentnode.payload import Payload
from decentnode.registry import SHARINGS
from decentnode.sharing import AllReduce, Gossip
from decentnode.transforms import Cast
from decentnode.transforms.base import Context
from decentnode.transforms.chain import Chain
from decentnode.vector import ParameterLayout

MATRICES = {
    "gossip": lambda weighted: weighted.matrix(),
    "none": lambda weighted: np.eye(weighted.num_nodes),
    "all_reduce": lambda weighted: np.full((weighted.num_nodes,) * 2, 1 / weighted.num_nodes),
}
"""The matrix that one round of each linear scheme applies to the models."""
GRAPHS = [Ring(8), Star(5), Regular(12, 4, seed=3), FullyConnected(6)]
CASES = [
    (name, graph)
    for name, cls in SHARINGS.classes().items()
    for graph in GRAPHS
    if isinstance(graph, FullyConnected) or not cls.needs_complete_graph
]
IDS = [f"{name}-{type(graph).__name__}" for name, graph in CASES]


def weighted(graph):
    return WeightedGraph(graph, MetropolisHastings())


def bind(cls, num_nodes, elements, transforms=(), dtype=torch.float64, seed=0):
    scheme = cls()
    scheme.bind(ParameterLayout(()), num_nodes, Chain(transforms, elements, dtype), seed)
    return scheme


class Network:
    """All nodes of a graph, mixed in lockstep; `is_live(i, j)` says whether j's payload reaches i."""

    def __init__(self, cls, graph, models, transforms=(), is_live=lambda i, j: True):
        self.models = models
        self.graph = weighted(graph)
        self.is_live = is_live
        n, d = models.shape
        self.schemes = [bind(cls, n, d, transforms, models.dtype) for _ in range(n)]
        self.round = 0

    def mix(self):
        """One round of communication by the two verbs that every simple scheme has."""
        views = [asyncio.run(self.graph.view(i, self.round)) for i in range(len(self.models))]
        sent = [s.outgoing(x, view) for s, x, view in zip(self.schemes, self.models, views, strict=True)]
        mixed = torch.full_like(self.models, float("nan"))
        for i, view in enumerate(views):
            heard = {j: sent[j][i] for j in view.sources if i in sent[j] and self.is_live(i, j)}
            incoming = {j: Payload.parse(p.layout, p.buffer.clone()) for j, p in heard.items()}
            self.schemes[i].mix(self.models[i], incoming, view, mixed[i])
        self.models, self.round = mixed, self.round + 1
        return mixed


def random_models(n, d=7, seed=0, dtype=torch.float64):
    return torch.randn(n, d, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def test_every_linear_scheme_is_here():
    assert set(MATRICES) == set(SHARINGS.classes())


@pytest.mark.parametrize(("name", "graph"), CASES, ids=IDS)
def test_one_round_is_one_product_with_the_matrix(name, graph):
    models = random_models(graph.num_nodes)
    expected = MATRICES[name](weighted(graph)) @ models.numpy()
    mixed = Network(SHARINGS.find(name), graph, models).mix()
    assert np.allclose(mixed.numpy(), expected, rtol=0, atol=1e-14)


@pytest.mark.parametrize(("name", "graph"), CASES, ids=IDS)
def test_float32_models_are_mixed_to_float32_precision(name, graph):
    models = random_models(graph.num_nodes, dtype=torch.float32)
    expected = MATRICES[name](weighted(graph)) @ models.double().numpy()
    assert np.allclose(Network(SHARINGS.find(name), graph, models).mix().numpy(), expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize(("name", "graph"), CASES, ids=IDS)
def test_equal_models_stay_equal(name, graph):
    models = torch.full((graph.num_nodes, 5), 3.25, dtype=torch.float64)
    assert torch.allclose(Network(SHARINGS.find(name), graph, models).mix(), models, rtol=1e-15, atol=0)


@pytest.mark.parametrize(("name", "graph"), CASES, ids=IDS)
def test_the_mean_of_all_models_is_kept(name, graph):
    models = random_models(graph.num_nodes)
    network = Network(SHARINGS.find(name), graph, models)
    for _ in range(5):
        network.mix()
    assert torch.allclose(network.models.mean(0), models.mean(0), rtol=0, atol=1e-14)


@pytest.mark.parametrize(("name", "graph"), CASES, ids=IDS)
def test_mixing_neither_changes_the_vector_nor_hands_it_out(name, graph):
    view = asyncio.run(weighted(graph).view(1, 0))
    vector, out = random_models(1)[0], torch.full((7,), float("nan"), dtype=torch.float64)
    before = vector.clone()
    scheme = bind(SHARINGS.find(name), graph.num_nodes, 7)
    scheme.outgoing(vector, view)
    incoming = {j: Payload.dense(random_models(1, seed=j)[0]) for j in view.sources}
    copies = {j: payload.buffer.clone() for j, payload in incoming.items()}
    scheme.mix(vector, incoming, view, out)
    result = out.clone()
    assert torch.equal(vector, before)
    assert all(torch.equal(incoming[j].buffer, copies[j]) for j in incoming)
    assert not out.isnan().any()
    vector.fill_(9.0)
    for payload in incoming.values():
        payload["vector"].fill_(9.0)
    assert torch.equal(out, result)


@pytest.mark.parametrize("transforms", [(), (Cast("fp16"),)], ids=["plain", "cast"])
@pytest.mark.parametrize(("name", "graph"), CASES, ids=IDS)
def test_what_is_sent_has_the_layout_that_was_declared(name, graph, transforms):
    scheme = bind(SHARINGS.find(name), graph.num_nodes, 7, transforms)
    view = asyncio.run(weighted(graph).view(0, 3))
    sent = scheme.outgoing(random_models(1)[0], view)
    declared = scheme.payload_layout()
    assert set(sent) <= set(view.targets)
    assert (declared is None) == (not sent)
    for payload in sent.values():
        assert payload.layout.hash == declared.hash
        assert Payload.parse(declared, payload.buffer).nbytes <= declared.max_bytes
    if type(scheme).sends_one_payload:
        assert len({id(payload) for payload in sent.values()}) <= 1


@pytest.mark.parametrize(("name", "graph"), CASES, ids=IDS)
def test_the_same_seed_gives_the_same_bytes(name, graph):
    view = asyncio.run(weighted(graph).view(0, 3))
    first, second = (
        bind(SHARINGS.find(name), graph.num_nodes, 7, (Cast(),), seed=5).outgoing(random_models(1)[0], view)
        for _ in range(2)
    )
    assert [(j, p.buffer.tolist()) for j, p in first.items()] == [
        (j, p.buffer.tolist()) for j, p in second.items()
    ]


@pytest.mark.parametrize(("name", "graph"), CASES, ids=IDS)
def test_a_scheme_stopped_and_resumed_continues_the_same(name, graph):
    cls, models = SHARINGS.find(name), random_models(graph.num_nodes)
    straight, resumed = Network(cls, graph, models), Network(cls, graph, models)
    straight.mix()
    resumed.mix()
    states = [scheme.state_dict() for scheme in resumed.schemes]
    again = Network(cls, graph, resumed.models)
    again.round = 1
    for scheme, state in zip(again.schemes, states, strict=True):
        scheme.load_state_dict(state)
    assert torch.equal(again.mix(), straight.mix())


@pytest.mark.parametrize(
    "name", [name for name, cls in SHARINGS.classes().items() if not cls.needs_complete_graph]
)
@settings(max_examples=25)
@given(seed=st.integers(0, 10**6), keep=st.floats(0, 1))
def test_when_both_ends_lose_an_edge_the_mean_is_kept(name, seed, keep):
    live = np.random.default_rng(seed).random((12, 12)) < keep
    models = random_models(12, seed=seed)
    mixed = Network(
        SHARINGS.find(name), Regular(12, 4, seed=3), models, is_live=lambda i, j: live[min(i, j), max(i, j)]
    ).mix()
    assert torch.allclose(mixed.mean(0), models.mean(0), rtol=0, atol=1e-14)
    assert (mixed.min(0).values >= models.min(0).values - 1e-14).all()
    assert (mixed.max(0).values <= models.max(0).values + 1e-14).all()


def test_a_node_that_hears_nobody_keeps_its_model():
    models = random_models(8)
    mixed = Network(Gossip, Ring(8), models, is_live=lambda i, j: False).mix()
    assert torch.allclose(mixed, models, rtol=0, atol=1e-15)


def test_the_weight_of_the_lost_goes_to_the_node_itself():
    models = torch.eye(8, dtype=torch.float64)
    mixed = Network(Gossip, Ring(8), models, is_live=lambda i, j: 3 not in (i, j)).mix()
    third = 1 / 3
    assert torch.allclose(mixed[3], models[3])
    assert mixed[2].tolist() == pytest.approx([0, third, 2 * third, 0, 0, 0, 0, 0])
    assert mixed[5].tolist() == pytest.approx([0, 0, 0, 0, third, third, third, 0])


def test_pure_gossip_on_a_ring_shrinks_a_cosine_by_the_second_eigenvalue():
    n, rounds = 8, 40
    wave = torch.tensor([[math.cos(2 * math.pi * i / n)] for i in range(n)], dtype=torch.float64)
    network = Network(Gossip, Ring(n), wave)
    for _ in range(rounds):
        network.mix()
    second = (1 + 2 * math.cos(2 * math.pi / n)) / 3
    assert second == pytest.approx(0.804738, abs=1e-6)
    assert torch.allclose(network.models, second**rounds * wave, rtol=0, atol=1e-12)


@pytest.mark.parametrize(("eta", "error", "rounds"), [(0.1, 0.717794, 150), (0.01, 0.108933, 1200)])
def test_d_psgd_stalls_at_the_known_error_on_eight_quadratics(eta, error, rounds):
    """f_i(x) = a_i (x - b_i)^2 / 2 on a ring, adapt then combine; the optimum is 11/3."""
    a = torch.tensor([1, 2] * 4, dtype=torch.float64)[:, None]
    b = torch.arange(8, dtype=torch.float64)[:, None]
    network = Network(Gossip, Ring(8), torch.zeros(8, 1, dtype=torch.float64))
    for _ in range(rounds):
        network.models = network.models - eta * a * (network.models - b)
        network.mix()
    assert (network.models - 11 / 3).square().mean().sqrt().item() == pytest.approx(error, abs=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_all_reduce_gives_every_node_the_mean_bit_for_bit_alike(dtype):
    models = random_models(6, 1000, dtype=dtype)
    mixed = Network(AllReduce, FullyConnected(6), models).mix()
    assert all(torch.equal(mixed[0], row) for row in mixed)
    assert torch.allclose(mixed[0].double(), models.double().mean(0), rtol=0, atol=1e-6)


def test_all_reduce_is_the_mean_of_those_who_were_heard():
    models = random_models(6)
    mixed = Network(AllReduce, FullyConnected(6), models, is_live=lambda i, j: 5 not in (i, j)).mix()
    assert torch.allclose(mixed[:5], models[:5].mean(0), rtol=0, atol=1e-15)
    assert torch.allclose(mixed[5], models[5], rtol=0, atol=1e-15)


@pytest.mark.parametrize(("dtype", "bound"), [("fp16", 2**-11), ("bf16", 2**-8)])
def test_gossip_of_cast_models_errs_by_rounding_alone(dtype, bound):
    """What is heard errs by its rounding; the own model and the sums do not, whatever its rank."""
    models = random_models(8, 100, dtype=torch.float32)
    exact = weighted(Ring(8)).matrix() @ models.double().numpy()
    heard = weighted(Ring(8)).matrix() - np.eye(8) / 3
    mixed = Network(Gossip, Ring(8), models, (Cast(dtype),)).mix()
    allowed = bound * (heard @ models.double().abs().numpy()) + 1e-6
    assert (np.abs(mixed.double().numpy() - exact) <= allowed).all()


def test_the_default_round_sends_hears_and_mixes():
    async def run():
        scheme, view = bind(Gossip, 8, 7), await weighted(Ring(8)).view(0, 0)
        asked, out = [], torch.empty(7, dtype=torch.float64)

        async def exchange(outgoing, sources):
            asked.append((sorted(outgoing), list(sources)))
            return {j: Payload.dense(torch.full((7,), 3.0, dtype=torch.float64)) for j in sources}

        await scheme.share(torch.zeros(7, dtype=torch.float64), view, exchange, out)
        return asked, out

    asked, out = asyncio.run(run())
    assert asked == [([1, 7], [1, 7])]
    assert out.tolist() == pytest.approx([2.0] * 7)


def test_the_baseline_asks_nobody():
    async def run():
        async def exchange(outgoing, sources):
            raise AssertionError("the baseline communicates")

        out = torch.empty(7, dtype=torch.float64)
        scheme = bind(SHARINGS.find("none"), 8, 7)
        await scheme.share(
            torch.ones(7, dtype=torch.float64), await weighted(Ring(8)).view(0, 0), exchange, out
        )
        return out

    assert asyncio.run(run()).tolist() == [1.0] * 7


def documented(number, tmp_path, monkeypatch):
    """The module that the given block of code of docs/adding_a_scheme.md makes."""
    document = Path(__file__).parents[2] / "docs" / "adding_a_scheme.md"
    code = re.findall(r"^```python\n(.*?)^```", document.read_text(), re.MULTILINE | re.DOTALL)[number]
    (tmp_path / f"documented_{number}.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    return importlib.import_module(f"documented_{number}")


def test_the_documented_scheme_mixes_twice(tmp_path, monkeypatch):
    scheme_class = documented(0, tmp_path, monkeypatch).TwiceGossip
    models = random_models(8)
    communication, results = InProcess(), torch.empty_like(models)

    async def node(endpoint):
        rank, phases, scheme = endpoint.rank, iter(range(2)), bind(scheme_class, 8, 7)

        async def exchange(outgoing, sources):
            handle = await endpoint.exchange(outgoing, sources, (0, next(phases), 0), 5.0)
            inbox = Inbox(handle, scheme.payload_layout(), endpoint)
            copies = {j: Payload.parse(p.layout, p.buffer.clone()) for j, p in inbox.items()}
            inbox.release()
            return copies

        view = await weighted(Ring(8)).view(rank, 0)
        await scheme.share(models[rank], view, exchange, results[rank])

    async def all_nodes():
        await asyncio.gather(*(node(communication.endpoint(rank, Memory(7))) for rank in range(8)))

    asyncio.run(all_nodes())
    matrix = weighted(Ring(8)).matrix()
    assert np.allclose(results.numpy(), matrix @ matrix @ models.numpy(), rtol=0, atol=1e-14)


def test_the_documented_transform_keeps_signs_and_the_mean_magnitude(tmp_path, monkeypatch):
    chain = Chain([documented(1, tmp_path, monkeypatch).Sign()], 21)
    values, context = random_models(1, 21, dtype=torch.float32)[0], Context(0, 0, 0)
    payload = chain.encode(values, context)
    assert payload.nbytes == 8 + 3
    decoded = chain.decode(Payload.parse(chain.layout, payload.buffer.clone()), context)
    assert torch.equal(decoded.sign(), values.sign())
    assert torch.allclose(decoded.abs(), values.abs().mean().expand(21))
