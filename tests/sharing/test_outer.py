"""Outer optimizers beside torch's own on the averaged pseudo-gradient, and dense recursions, in float64."""

import copy
from dataclasses import dataclass
from functools import partial

import pytest
import torch
import yaml

import decentnode
from decentnode.config import loader
from decentnode.errors import ConfigError
from decentnode.graph.base import Graph, PeriodicGraph
from decentnode.graph.families import FullyConnected, Ring, Star
from decentnode.graph.mixing import Uniform
from decentnode.graph.redrawn import RandomMatching
from decentnode.graph.roles import Federated
from decentnode.sharing import AllReduce, FedAvg, Gasloc, Gossip, SparseLoCo
from decentnode.testing import Lockstep, Quadratics, random_models
from decentnode.transforms import Cast, RandomK
from decentnode.transforms.base import Context
from decentnode.transforms.chain import Chain

N, D, ETA, STEPS = 6, 4, 0.1, 3
PROBLEM = Quadratics(torch.linspace(0.5, 2, N, dtype=torch.float64), random_models(N, D, seed=3))
NESTEROV = partial(torch.optim.SGD, lr=0.7, momentum=0.9, nesterov=True)
DILOCO = {"name": "all_reduce", "outer": {"name": "SGD", "lr": 0.7, "momentum": 0.9, "nesterov": True}}
SMALL = {
    "name": "small",
    "rounds": 4,
    "graph": {"name": "fully_connected", "nodes": 4},
    "dataset": {"name": "synthetic", "nodes": 4, "samples_per_node": 20, "features": 6},
    "model": "logistic_regression",
    "training": {"optimizer": {"name": "SGD", "lr": 0.1}, "batch_size": 4, "steps_per_round": 2},
    "communication": "inproc",
    "evaluation": {"every": 0, "final": False},
}


def trained(phi):
    """The models of all nodes after their local steps from phi, shape (n, d) or (d,)."""
    x = phi.expand(N, D).clone()
    for _ in range(STEPS):
        x -= ETA * torch.stack([PROBLEM.gradient(i, x[i]) for i in range(N)])
    return x


def rounds_of(network, rounds):
    for _ in range(rounds):
        for _ in range(STEPS):
            network.train(PROBLEM.gradient, ETA)
        network.mix()
    return network.models


@pytest.mark.parametrize(
    "make",
    [NESTEROV, partial(torch.optim.SGD, lr=0.5), partial(torch.optim.AdamW, lr=0.1, weight_decay=0.01)],
    ids=["nesterov", "plain", "adamw"],
)
def test_diloco_is_torchs_optimizer_on_the_averaged_pseudo_gradient(make):
    network = Lockstep(
        lambda: AllReduce(outer=make), FullyConnected(N), torch.zeros(N, D, dtype=torch.float64)
    )
    phi = torch.nn.Parameter(torch.zeros(D, dtype=torch.float64))
    optimizer = make([phi])
    for _ in range(8):
        models = rounds_of(network, 1)
        phi.grad = phi.detach() - trained(phi.detach()).mean(0)
        optimizer.step()
        torch.testing.assert_close(models, phi.detach().expand(N, D), rtol=0, atol=1e-12)


def test_without_momentum_and_with_lr_1_it_is_the_scheme_itself():
    plain = partial(torch.optim.SGD, lr=1.0)
    for scheme, graph in ((AllReduce, FullyConnected(N)), (Gossip, Ring(N))):
        start = random_models(N, D, seed=5)
        ours, usual = (
            rounds_of(Lockstep(partial(scheme, outer=outer), graph, start), 6) for outer in (plain, None)
        )
        torch.testing.assert_close(ours, usual, rtol=0, atol=1e-12)


def test_noloco_is_the_published_recursion():
    """m_i <- beta m_i + eta (mean of the pair's models - phi_i), phi_i <- phi_i + m_i."""
    eta, beta, graph = 0.7, 0.5, RandomMatching(N, seed=1)
    network = Lockstep(
        lambda: Gossip(outer=partial(torch.optim.SGD, lr=eta, momentum=beta)), graph, random_models(N, D)
    )
    phi, m = random_models(N, D), torch.zeros(N, D, dtype=torch.float64)
    for round in range(10):
        W = torch.eye(N, dtype=torch.float64)
        for i in range(N):
            for j in graph.targets(i, round):
                W[i, i] = W[i, j] = 0.5
        m = beta * m + eta * (W @ trained(phi) - phi)
        phi = phi + m
        torch.testing.assert_close(rounds_of(network, 1), phi, rtol=0, atol=1e-12)


def test_a_server_makes_the_outer_step_for_all():
    network = Lockstep(
        lambda: FedAvg(outer=NESTEROV, average="equal"),
        Federated(N, clients=N - 1, down="all"),
        torch.zeros(N, D, dtype=torch.float64),
        weights=Uniform(),
        setup_of=lambda rank: {"samples": int(rank > 0)},
    )
    phi = torch.nn.Parameter(torch.zeros(D, dtype=torch.float64))
    optimizer = NESTEROV([phi])
    for _ in range(6):
        for _ in range(STEPS):
            network.train(lambda i, x: PROBLEM.gradient(i, x) if i else None, ETA)
        models = network.mix()
        phi.grad = phi.detach() - trained(phi.detach())[1:].mean(0)
        optimizer.step()
        torch.testing.assert_close(models, phi.detach().expand(N, D), rtol=0, atol=1e-12)


def test_a_saved_outer_optimizer_continues_bit_for_bit():
    network = Lockstep(lambda: AllReduce(outer=NESTEROV), FullyConnected(N), random_models(N, D))
    rounds_of(network, 3)
    saved = [copy.deepcopy(scheme.state_dict()) for scheme in network.schemes]
    again = Lockstep(lambda: AllReduce(outer=NESTEROV), FullyConnected(N), network.models)
    for scheme, state in zip(again.schemes, saved, strict=True):
        scheme.load_state_dict(state)
    again.round = network.round
    assert torch.equal(rounds_of(network, 3), rounds_of(again, 3))


def test_it_is_reachable_from_yaml_and_resumes(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    straight = decentnode.run(SMALL, progress=False, sharing=DILOCO)
    first = decentnode.run(SMALL, progress=False, sharing=DILOCO, rounds=2)
    resumed = decentnode.resume(first.directory, progress=False, rounds=4)
    plain = decentnode.run(SMALL, progress=False, sharing="all_reduce")
    hashes = [run.summary["model_hash"] for run in (straight, resumed, plain)]
    assert hashes[0] == hashes[1] != hashes[2]


@pytest.mark.parametrize(
    ("sharing", "message"),
    [
        (
            {"name": "quasi_global", "outer": "SGD"},
            "sharing.outer: quasi_global has equations of its own, which it would break; use gossip",
        ),
        (
            {"name": "fed_adam", "outer": "SGD"},
            "sharing.outer: fed_adam has a step of its own; use fed_avg",
        ),
        (
            {"name": "gossip", "outer": "LBFGS"},
            "sharing.outer: LBFGS needs a loss in its step, and between rounds there is none; use SGD",
        ),
        (
            {"name": "gossip", "outer": {"name": "SGD", "lr": -1}},
            "sharing.outer: SGD: Invalid learning rate: -1",
        ),
        (
            {"name": "gossip", "outer": {"name": "SGD", "momentun": 0.9}},
            "sharing.outer.momentun: unknown option of SGD; did you mean 'momentum'?",
        ),
        (
            {"name": "gossip", "outer": 3},
            "sharing.outer: must be an optimizer or null, not 3",
        ),
        (
            {"name": "gossip", "outer_every": 2},
            "sharing.outer_every: there is no outer optimizer; name one in outer, or leave it out",
        ),
    ],
)
def test_what_cannot_be_an_outer_optimizer_is_refused_in_one_line(tmp_path, sharing, message):
    with pytest.raises(ConfigError) as error:
        path = tmp_path / "outer.yaml"
        path.write_text(yaml.safe_dump(SMALL | {"sharing": sharing}))
        loader.load(path)
    assert message in str(error.value)


def test_gasloc_is_its_recursion_and_its_mean_is_sgd_with_nesterov_momentum():
    eta, gamma, graph = 0.7, 0.6, Ring(N)
    network = Lockstep(lambda: Gasloc(eta=eta, momentum=gamma), graph, random_models(1, D).expand(N, D))
    W = torch.eye(N, dtype=torch.float64) / 3
    for i in range(N):
        W[i, (i + 1) % N] = W[i, (i - 1) % N] = 1 / 3
    phi = network.models.clone()
    before = phi.clone()
    mean = torch.nn.Parameter(phi.mean(0))
    optimizer = torch.optim.SGD([mean], lr=eta, momentum=gamma, nesterov=True)
    for _ in range(8):
        x = trained(phi)
        mean.grad = (phi - x).mean(0)
        optimizer.step()
        y = phi + eta * (x - phi)
        phi, before = W @ y + gamma * (y - before), y
        models = rounds_of(network, 1)
        torch.testing.assert_close(models, phi, rtol=0, atol=1e-12)
        torch.testing.assert_close(models.mean(0), mean.detach(), rtol=0, atol=1e-12)


def test_gasloc_without_momentum_is_gossip_bit_for_bit_and_decays_as_its_roots():
    start = random_models(N, D, seed=9)
    ours, usual = (
        rounds_of(Lockstep(make, Ring(N), start), 5)
        for make in (lambda: Gasloc(eta=1.0, momentum=0.0), Gossip)
    )
    assert torch.equal(ours, usual)
    # Without steps an eigenvector of I - W decays by the roots of r^2 - (1 - eigenvalue + gamma) r + gamma.
    gamma, eigenvalue = 0.5, 4 / 3
    alternating = torch.tensor([1.0, -1.0] * (N // 2), dtype=torch.float64)[:, None].repeat(1, D)
    network = Lockstep(lambda: Gasloc(eta=1.0, momentum=gamma), Ring(N), alternating)
    expected = [1.0, 1 - eigenvalue]
    for _ in range(8):
        expected.append((1 - eigenvalue + gamma) * expected[-1] - gamma * expected[-2])
    for value in expected[1:]:
        torch.testing.assert_close(network.mix(), value * alternating, rtol=0, atol=1e-12)


@dataclass(frozen=True)
class Alternating(PeriodicGraph):
    """`first` in even rounds and `second` in odd ones; None: no edges."""

    first: Graph | None
    second: Graph | None
    num_nodes = N
    period = 2

    def targets(self, rank, round):
        graph = (self.first, self.second)[round % 2]
        return () if graph is None else graph.targets(rank, round)


ALL, ONCE = FullyConnected(N), Ring(N)


@pytest.mark.parametrize(
    ("first", "second", "same"),
    [(ONCE, Star(N), None), (None, ONCE, ONCE), (ALL, ALL, ALL), (ONCE, ALL, ALL), (ONCE, None, None)],
    ids=["two factors", "no first: gossip", "both exact: DiLoCo", "second exact: DiLoCo", "no second"],
)
def test_factored_gossip_mixes_beside_the_steps_and_after_them(first, second, same):
    """x = W2 (W1 phi + trained(phi) - phi), and the outer gradient is phi - x, as torch makes its step."""
    graph, start = Alternating(first, second), random_models(1, D).expand(N, D)
    network = Lockstep(lambda: Gossip(outer=NESTEROV, outer_every=2), graph, start)
    W1, W2 = (torch.from_numpy(network.weighted.matrix(round)) for round in (0, 1))
    phi = torch.nn.Parameter(start.clone())
    optimizer = NESTEROV([phi])
    plain = Lockstep(lambda: Gossip(outer=NESTEROV), same, start) if same else None
    for _ in range(6):
        change = trained(phi.detach()) - phi.detach()
        phi.grad = phi.detach() - W2 @ (W1 @ phi.detach() + change)
        optimizer.step()
        # As with overlap: the steps start from the models before the first mix, and are added to it.
        before = network.models
        network.models = network.mix() + trained(before) - before
        torch.testing.assert_close(network.mix(), phi.detach(), rtol=0, atol=1e-12)
        if plain is not None:
            torch.testing.assert_close(network.models, rounds_of(plain, 1), rtol=0, atol=1e-12)


def test_factored_gossip_of_exact_means_is_diloco_in_a_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    kept = {"models": {}}
    diloco = decentnode.run(SMALL, progress=False, sharing=DILOCO, records=kept)
    run = partial(
        decentnode.run, SMALL, progress=False, records=kept, sharing=DILOCO | {"outer_every": 2},
        communication={"name": "inproc", "overlap": True},
        training=SMALL["training"] | {"train_every": 2},
    )  # fmt: skip
    factored, first = run(rounds=8), run(rounds=5)
    resumed = decentnode.resume(first.directory, progress=False, rounds=8)
    assert resumed.summary["model_hash"] == factored.summary["model_hash"]
    one, other = ({k: v.double() for k, v in r.model(0).items()} for r in (diloco, factored))
    for name, expected in one.items():
        torch.testing.assert_close(other[name], expected, rtol=0, atol=1e-6)


def test_a_node_that_rests_in_its_outer_round_makes_the_step_all_the_same():
    """Alone in a round that only mixes: what it has learned before would else never reach its optimizer."""
    make = partial(torch.optim.SGD, lr=0.5)
    network = Lockstep(
        lambda: Gossip(outer=make, outer_every=2), Alternating(ONCE, None), random_models(N, D)
    )
    phi = network.models
    network.eta = 0.1
    x = network.mix()
    network.eta = 0.0
    torch.testing.assert_close(network.mix(), phi + 0.5 * (x - phi), rtol=0, atol=1e-13)
    still = network.models
    assert torch.equal(Lockstep(lambda: Gossip(outer=make), Alternating(None, None), still).run(4), still)


def test_sparta_averages_a_few_values_until_the_outer_step_of_all():
    """One value of four in each round, the same on all nodes; in each third all, and a step of DiLoCo."""

    def drawn():
        return RandomK(0.25, shared_mask=True, whole_every=3)

    start = random_models(1, D).expand(N, D)
    network = Lockstep(
        lambda: AllReduce(outer=NESTEROV, outer_every=3), ALL, start, transforms=lambda: (drawn(),)
    )
    mask = RandomK(0.25, shared_mask=True)
    Chain([mask], D, torch.float64)
    phi = torch.nn.Parameter(start[0].clone())
    optimizer = NESTEROV([phi])
    x = start.clone()
    for round in range(9):
        x, sent = trained(x), network.sent
        if round % 3 < 2:
            (index,) = mask.coordinates(Context(0, round, 0)).tolist()
            x[:, index] = x[:, index].mean()
        else:
            phi.grad = phi.detach() - x.mean(0)
            optimizer.step()
            x = phi.detach().expand(N, D).clone()
        torch.testing.assert_close(rounds_of(network, 1), x, rtol=0, atol=1e-12)
        values = 1 if round % 3 < 2 else D
        assert network.sent - sent == N * (N - 1) * 8 * (1 + values), "8 bytes tell the number"
    every = Lockstep(
        lambda: AllReduce(outer=NESTEROV),
        ALL,
        start,
        transforms=lambda: (RandomK(0.25, shared_mask=True, whole_every=1),),
    )
    diloco = Lockstep(lambda: AllReduce(outer=NESTEROV), ALL, start)
    torch.testing.assert_close(rounds_of(every, 4), rounds_of(diloco, 4), rtol=0, atol=1e-13)


def test_sparse_loco_with_all_values_is_an_outer_step_of_sgd():
    start = torch.zeros(N, D, dtype=torch.float64)
    plain = partial(torch.optim.SGD, lr=0.6)
    ours = Lockstep(lambda: SparseLoCo(fraction=1.0, eta=0.6), FullyConnected(N), start)
    outer = Lockstep(lambda: AllReduce(outer=plain), FullyConnected(N), start)
    torch.testing.assert_close(rounds_of(ours, 8), rounds_of(outer, 8), rtol=0, atol=1e-13)


@pytest.mark.parametrize("rounds_values", [False, True])
def test_sparse_loco_is_the_published_recursion(rounds_values):
    """v = x - theta + beta e, q = C(v), e <- v - q, theta <- theta + eta mean of q: one of two values."""
    eta, beta = 0.7, 0.9
    network = Lockstep(
        lambda: SparseLoCo(fraction=0.5, decay=beta, eta=eta, chunk=2),
        FullyConnected(N),
        torch.zeros(N, D, dtype=torch.float64),
        transforms=lambda: (Cast("bf16"),) if rounds_values else (),
    )
    theta, e = torch.zeros(D, dtype=torch.float64), torch.zeros(N, D, dtype=torch.float64)
    for _ in range(8):
        v = trained(theta) - theta + beta * e
        pairs = v.view(N, D // 2, 2)
        larger = pairs.abs() == pairs.abs().amax(-1, keepdim=True)
        q = torch.where(larger, pairs, 0.0).view(N, D)
        q = q.bfloat16().double() if rounds_values else q
        e, theta = v - q, theta + eta * q.mean(0)
        models = rounds_of(network, 1)
        torch.testing.assert_close(models, theta.expand(N, D), rtol=0, atol=1e-12)
        assert torch.equal(models, models[:1].expand(N, D)), "nodes have different models"
    residuals = torch.stack([s["chain"]["0"]["_residual"] for s in (x.state_dict() for x in network.schemes)])
    torch.testing.assert_close(residuals, e, rtol=0, atol=1e-12)
