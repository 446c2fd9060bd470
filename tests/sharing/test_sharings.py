"""What every sharing scheme owes, and the closed forms of those that are linear."""

import asyncio
import copy
import importlib
import inspect
import math
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import MagicMock

import numpy as np
import pytest
import torch

from decentnode.communication.base import BufferSpec, Inbox
from decentnode.communication.inproc import InProcess
from decentnode.config.consistency import defects
from decentnode.config.type_check import parameters_of
from decentnode.core.payload import Payload
from decentnode.core.registry import SHARINGS, name_of
from decentnode.errors import BadInput
from decentnode.graph.base import Graph
from decentnode.graph.families import FullyConnected, Ring
from decentnode.graph.mixing import MetropolisHastings, WeightedGraph
from decentnode.sharing import AllReduce, Choco, Gossip, Sharing, aliases
from decentnode.sharing.base import Promises, Requirements, Setup, SharingBase
from decentnode.sharing.wrapper import SchemeWrapper
from decentnode.testing import Lockstep, bound
from decentnode.transforms import Cast
from decentnode.transforms.base import Context
from decentnode.transforms.chain import Chain
from tests.support.scheme_cases import (
    CASES,
    CHANGING_GRAPHS,
    OPTIMUM8,
    RING,
    Case,
    q8_gradient,
    random_models,
)

USED_BY_PLUGINS = {
    "chain", "decode", "decode_each", "encode", "flaw_of", "own_error", "refuse_not_finite", "weighted_mix"
}  # fmt: skip
"""What a scheme uses of its base, and nobody else."""


def hooks() -> list[str]:
    names = {*vars(SharingBase), *vars(Sharing)} - USED_BY_PLUGINS
    members = {name: inspect.getattr_static(Sharing, name) for name in names if name[0] != "_"}
    return sorted(
        name for name, member in members.items() if callable(member) or isinstance(member, property)
    )


@pytest.mark.parametrize("hook", hooks())
def test_a_wrapper_forwards_every_hook(hook):
    scheme = MagicMock(spec=Sharing, promises=Promises(), requirements=Requirements(), refusals=[])
    wrapper = SchemeWrapper(scheme)
    wrapper.setup = Setup(None, SimpleNamespace(protects=False), None)
    if isinstance(inspect.getattr_static(Sharing, hook), property):
        setattr(scheme, hook, sentinel := object())
        assert getattr(wrapper, hook) is sentinel
        return
    method = getattr(wrapper, hook)
    given = [p for p in inspect.signature(method).parameters.values() if p.default is p.empty]
    result = method(*(MagicMock() for _ in given))
    if inspect.iscoroutine(result):
        asyncio.run(result)
    getattr(scheme, hook).assert_called_once()


class Changing(Graph):
    """A ring in even rounds; in odd ones everybody talks to who is two away."""

    period = None

    def __init__(self, nodes):
        self.nodes = nodes

    @property
    def num_nodes(self):
        return self.nodes

    def targets(self, rank, round):
        step = 1 + round % 2
        return tuple(sorted({(rank - step) % self.nodes, (rank + step) % self.nodes}))


class DirectedRing(Changing):
    """Everybody talks to the next."""

    static, directed = True, True

    def targets(self, rank, round):
        return ((rank + 1) % self.nodes,)


def each_at_least_once(graphs, chains, shift):
    """Pairs of all graphs and all chains: no code is for one graph with one chain."""
    for i in range(max(len(graphs), len(chains))):
        yield graphs[i % len(graphs)], chains[(i + shift) % len(chains)]


ON_GRAPHS = [
    pytest.param(case, graph, id=f"{name}-{type(graph).__name__}")
    for name, case in CASES.items()
    for graph in case.graphs
]
LINEAR = [case for case in ON_GRAPHS if case.values[0].matrix is not None]
CHAINED = [
    pytest.param((case, graph, chain), id=f"{name}-{type(graph).__name__}-{chain.__name__}")
    for shift, (name, case) in enumerate(CASES.items())
    for graph, chain in each_at_least_once(case.graphs, case.chains, shift)
]


def weighted(graph):
    return WeightedGraph(graph, MetropolisHastings())


def network(make, graph, models, chain=tuple, **options):
    return Lockstep(make, graph, models, chain, **options)


def lockstep(case, graph, models=None, chain=None, **options):
    """All nodes of a case, from the same model unless said otherwise."""
    models = case.start(graph.num_nodes) if models is None else models
    chain = chain or case.chains[0]
    return Lockstep(
        case.make, graph, models, chain, weights=case.weights, parameters=case.parameters, **options
    )


def some_gradient(round):
    """Gradients that differ between nodes and rounds, and pull towards 0."""

    def gradient(i, x):
        return x + random_models(1, len(x), seed=1000 * round + i, dtype=x.dtype)[0]

    return gradient


def run(network, rounds, eta=0.05):
    for _ in range(rounds):
        network.run(1, some_gradient(network.round), eta)
    return network


def bytes_of(network):
    return [payload.buffer.tolist() for payload in network.payloads]


def test_every_registered_scheme_has_a_case():
    assert {case.scheme for case in CASES.values()} == {
        cls for cls in SHARINGS.classes().values() if issubclass(cls, Sharing)
    }
    names = [case.scheme.registered_name for case in CASES.values()]
    assert [key.split()[0] for key in CASES] == names, "an id begins with the name of the scheme"


@pytest.mark.parametrize(("case", "graph"), LINEAR)
@pytest.mark.parametrize(("dtype", "error"), [(torch.float64, 1e-14), (torch.float32, 1e-6)])
def test_one_round_is_one_product_with_the_matrix(case, graph, dtype, error):
    models = random_models(graph.num_nodes, case.length, dtype=dtype)
    expected = case.matrix(WeightedGraph(graph, case.weights)) @ models.double().numpy()
    assert np.allclose(lockstep(case, graph, models).mix().numpy(), expected, rtol=0, atol=error)


@dataclass
class Straight:
    """Four rounds of a case, as they are without a stop."""

    case: Case
    graph: Graph
    chain: Callable
    network: Lockstep = field(init=False)
    means: list = field(init=False, default_factory=list)
    """Of all models before and after each round's mixing."""

    def __post_init__(self):
        self.network = self.again()
        for round in range(4):
            self.network.train(some_gradient(round), 0.05)
            before = self.network.models.mean(0)
            self.means.append((before, self.network.mix().mean(0)))
            if round == 1:
                self.models = self.network.models.clone()
                self.states = copy.deepcopy([scheme.state_dict() for scheme in self.network.schemes])

    def again(self, models=None, **options):
        return lockstep(self.case, self.graph, models, self.chain, **options)


@pytest.fixture(scope="module", params=CHAINED)
def straight(request):
    return Straight(*request.param)


def test_payloads_fit_their_layout_states_are_plain_and_the_mean_is_kept(straight):
    """Lockstep compares each payload with the layout, its size, and the targets; this says it happened."""
    network = straight.network
    scheme = network.schemes[0]
    layouts = [scheme.payload_layout(phase) for phase in range(scheme.promises.phases)]
    if scheme.promises.sends == "nothing":
        assert layouts == [None] and not network.payloads
    else:
        assert {p.layout.hash for p in network.payloads} == {layout.hash for layout in layouts}
    assert network.models.isfinite().all()
    assert all(map(is_plain, straight.states))
    for before, after in straight.means if scheme.preserves_mean(scheme.chain) else ():
        assert torch.allclose(after, before, rtol=0, atol=straight.case.tolerance)


def is_plain(value):
    """Whether a file can hold it without code: numbers, texts, tensors, and dicts and lists of these."""
    if isinstance(value, dict):
        return all(isinstance(key, str | int) and is_plain(inner) for key, inner in value.items())
    if isinstance(value, list | tuple):
        return all(map(is_plain, value))
    return value is None or isinstance(value, bool | int | float | str | torch.Tensor)


def test_a_round_works_in_float32(straight):
    models = straight.case.start(straight.graph.num_nodes).float()
    mixed = run(straight.again(models), 2).models
    assert mixed.dtype == torch.float32 and mixed.isfinite().all()


def test_the_same_seed_gives_the_same_bytes_and_no_memory_is_kept_that_belongs_to_others(straight):
    """The same run once more, with all memory overwritten that a scheme may not keep."""
    scribbled = run(straight.again(scribbles=True), 4)
    assert torch.equal(straight.network.models, scribbled.models)
    assert bytes_of(straight.network) == bytes_of(scribbled)


def test_a_scheme_stopped_and_resumed_continues_bit_for_bit(straight):
    again = straight.again(straight.models.clone())
    again.round = 2
    for scheme, state in zip(again.schemes, straight.states, strict=True):
        scheme.load_state_dict(copy.deepcopy(state))
    run(again, 2)
    assert torch.equal(again.models, straight.network.models)
    assert bytes_of(again) == bytes_of(straight.network)


@pytest.mark.parametrize(("case", "graph"), [case for case in ON_GRAPHS if case.values[0].keeps_equal])
def test_equal_models_stay_equal(case, graph):
    network = lockstep(case, graph)
    start = network.models.clone()
    assert torch.allclose(network.run(2), start, rtol=0, atol=case.tolerance)


UNFIT = {
    "static_graph": (Changing(8), "that is the same in every round"),
    "undirected_graph": (DirectedRing(8), "that is undirected"),
    "complete_graph": (Ring(8), "where every node receives from every other"),
    "tree": (Ring(8), "that is a tree"),
    "server": (Ring(8), "needs a graph with a server, such as federated; ring has none"),
    "levels": (Ring(8), "needs a graph of two levels, such as hierarchical; ring has one"),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_a_graph_that_a_scheme_cannot_use_is_refused_before_the_start(case):
    for need, (graph, words) in UNFIT.items():
        refused = any(words in defect.what for defect in defects({"graph": graph, "sharing": case.make()}))
        assert refused == getattr(case.scheme.requirements, need), need


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_the_graphs_of_a_case_are_not_refused(case):
    for graph in case.graphs:
        case.make().check(WeightedGraph(graph, case.weights))
        assert [*defects({"graph": graph, "sharing": case.make()})] == []


def survives_losses(case):
    """Whether the mean of the models stays where a node hears some of its neighbors."""
    scheme = case.scheme
    if not (scheme.promises.tolerates_loss and case.mean_survives_loss) or scheme.requirements.complete_graph:
        return False
    scheme = lockstep(case, case.graphs[-1]).schemes[0]
    return scheme.preserves_mean(scheme.chain)


@pytest.mark.parametrize("case", [pytest.param(c, id=k) for k, c in CASES.items() if survives_losses(c)])
def test_when_both_ends_lose_an_edge_the_mean_is_kept(case):
    graph = case.graphs[-1]
    for seed, keep in enumerate((0.0, 0.3, 0.6, 0.9)):
        live = np.random.default_rng(seed).random((graph.num_nodes,) * 2) < keep
        network = lockstep(case, graph, is_live=lambda i, j, live=live: live[min(i, j), max(i, j)])
        network.train(some_gradient(seed), 0.05)
        before = network.models
        mixed = network.mix()
        assert torch.allclose(mixed.mean(0), before.mean(0), rtol=0, atol=case.tolerance)
        if case.matrix is not None:
            assert (mixed.min(0).values >= before.min(0).values - 1e-14).all()
            assert (mixed.max(0).values <= before.max(0).values + 1e-14).all()


def test_a_node_without_payloads_keeps_its_model():
    models = random_models(8)
    mixed = network(Gossip, Ring(8), models, is_live=lambda i, j: False).mix()
    assert torch.allclose(mixed, models, rtol=0, atol=1e-15)


def test_the_weight_of_the_lost_goes_to_the_node_itself():
    models = torch.eye(8, dtype=torch.float64)
    mixed = network(Gossip, Ring(8), models, is_live=lambda i, j: 3 not in (i, j)).mix()
    third = 1 / 3
    assert torch.allclose(mixed[3], models[3])
    assert mixed[2].tolist() == pytest.approx([0, third, 2 * third, 0, 0, 0, 0, 0])
    assert mixed[5].tolist() == pytest.approx([0, 0, 0, 0, third, third, third, 0])


def test_pure_gossip_on_a_ring_shrinks_a_cosine_by_the_second_eigenvalue():
    n, rounds = 8, 40
    wave = torch.tensor([[math.cos(2 * math.pi * i / n)] for i in range(n)], dtype=torch.float64)
    models = network(Gossip, Ring(n), wave).run(rounds)
    second = (1 + 2 * math.cos(2 * math.pi / n)) / 3
    assert second == pytest.approx(0.804738, abs=1e-6)
    assert torch.allclose(models, second**rounds * wave, rtol=0, atol=1e-12)


@pytest.mark.parametrize(("eta", "error", "rounds"), [(0.1, 0.717794, 150), (0.05, 0.442619, 300)])
def test_d_psgd_stalls_at_the_known_error_on_eight_quadratics(eta, error, rounds):
    """f_i(x) = a_i (x - b_i)^2 / 2 on a ring, adapt then combine; the optimum is 11/3."""
    models = network(Gossip, Ring(8), torch.zeros(8, 1, dtype=torch.float64)).run(rounds, q8_gradient, eta)
    assert (models - OPTIMUM8).square().mean().sqrt().item() == pytest.approx(error, abs=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_all_reduce_gives_every_node_the_mean_bit_for_bit_alike(dtype):
    models = random_models(6, 1000, dtype=dtype)
    mixed = network(AllReduce, FullyConnected(6), models).mix()
    assert all(torch.equal(mixed[0], row) for row in mixed)
    assert torch.allclose(mixed[0].double(), models.double().mean(0), rtol=0, atol=1e-6)


def test_all_reduce_is_the_mean_of_the_received_models():
    models = random_models(6)
    mixed = network(AllReduce, FullyConnected(6), models, is_live=lambda i, j: 5 not in (i, j)).mix()
    assert torch.allclose(mixed[:5], models[:5].mean(0), rtol=0, atol=1e-15)
    assert torch.allclose(mixed[5], models[5], rtol=0, atol=1e-15)


@pytest.mark.parametrize(("dtype", "bound"), [("fp16", 2**-11), ("bf16", 2**-8)])
def test_gossip_of_cast_models_errs_by_rounding_alone(dtype, bound):
    """What is heard errs by its rounding, and what it is mixed against; the sums do not."""
    models = random_models(8, 100, dtype=torch.float32)
    exact = weighted(Ring(8)).matrix() @ models.double().numpy()
    rounded = weighted(Ring(8)).matrix() + np.eye(8) / 3
    mixed = network(Gossip, Ring(8), models, lambda: (Cast(dtype),)).mix()
    allowed = bound * (rounded @ models.double().abs().numpy()) + 1e-6
    assert (np.abs(mixed.double().numpy() - exact) <= allowed).all()


def test_the_default_round_sends_receives_and_mixes():
    async def run():
        scheme, view = bound(Gossip(), 8, 7), weighted(Ring(8)).view(0, 0)
        asked, out = [], torch.empty(7, dtype=torch.float64)

        async def exchange(outgoing, sources):
            asked.append((sorted(outgoing), list(sources)))
            return {j: Payload.dense(torch.full((7,), 3.0, dtype=torch.float64)) for j in sources}

        await scheme.share(torch.zeros(7, dtype=torch.float64), view, exchange, out)
        return asked, out

    asked, out = asyncio.run(run())
    assert asked == [([1, 7], [1, 7])]
    assert out.tolist() == pytest.approx([2.0] * 7)


def test_the_baseline_exchanges_nothing():
    async def run():
        async def exchange(outgoing, sources):
            raise AssertionError("the baseline communicates")

        out = torch.empty(7, dtype=torch.float64)
        scheme = bound(SHARINGS.find("none")(), 8, 7)
        await scheme.share(torch.ones(7, dtype=torch.float64), weighted(Ring(8)).view(0, 0), exchange, out)
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
        rank, phases, scheme = endpoint.rank, iter(range(2)), bound(scheme_class(), 8, 7)

        async def exchange(outgoing, sources):
            layout = scheme.payload_layout()
            handle = await endpoint.exchange(outgoing, sources, (0, next(phases), 0), 5.0, layout)
            inbox = Inbox(handle, layout, endpoint)
            copies = {j: Payload.parse(p.layout, p.buffer.clone()) for j, p in inbox.items()}
            inbox.release()
            return copies

        view = weighted(Ring(8)).view(rank, 0)
        await scheme.share(models[rank], view, exchange, results[rank])

    async def all_nodes():
        await asyncio.gather(*(node(communication.endpoint(rank, BufferSpec(7))) for rank in range(8)))

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


@pytest.mark.parametrize("name", aliases.ALIASES)
def test_an_alias_is_the_scheme_with_its_options(name):
    scheme, options = aliases.ALIASES[name]
    known = parameters_of(SHARINGS.find(name))
    assert known == {key: value for key, value in parameters_of(scheme).items() if key not in options}
    made, expected = SHARINGS.find(name)(), scheme(**options)
    assert isinstance(made, scheme) and name_of(made) == name
    assert all(getattr(made, key) == value for key, value in options.items())
    assert type(made).requirements == made.requirements == expected.requirements
    assert type(made).promises == made.promises == expected.promises


@pytest.mark.parametrize(
    ("graph", "options", "copies"),
    [
        (RING, {}, "node"),
        (RING, {"memory": 2}, "edge"),
        (CHANGING_GRAPHS[0], {}, "edge"),
        (CHANGING_GRAPHS[0], {"copies": "node"}, "node"),
    ],
)
def test_copies_follow_the_graph_of_the_configuration(graph, options, copies):
    options = {"copies": "auto", "memory": None} | options
    assert (options | Choco.on_graph(options, graph))["copies"] == copies


def test_a_memory_of_copies_by_node_is_refused():
    with pytest.raises(BadInput, match=r"^memory: is for copies of edges; leave it out"):
        Choco(copies="node", memory=3)
