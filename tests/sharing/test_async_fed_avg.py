"""Asynchronous DiLoCo beside torch's own optimizer, DiLoCo in rounds, and the published recursion."""

from functools import partial

import numpy as np
import pytest
import torch

import decentnode
from decentnode.core.payload import Payload
from decentnode.errors import BadInput
from decentnode.formats.records import read_records
from decentnode.graph.mixing import Uniform, WeightedGraph
from decentnode.graph.roles import Federated
from decentnode.node.asynchronous.schedule import read_schedule
from decentnode.sharing import FedAvg
from decentnode.sharing.asynchronous import AsyncFedAvg
from decentnode.sharing.asynchronous.async_fed_avg import UPDATE
from decentnode.testing import Lockstep, Quadratics, random_models
from decentnode.transforms import Cast
from decentnode.transforms.error_feedback import ErrorFeedback
from decentnode.transforms.sparsify.top_k import TopK
from tests.support.messages import Messages

N, D, ETA, H = 5, 4, 0.1, 3
"""A server, rank 0, and four clients."""
PROBLEM = Quadratics(torch.linspace(0.5, 2, N, dtype=torch.float64), random_models(N, D, seed=3))
LR, BETA = 0.7, 0.9
NESTEROV = partial(torch.optim.SGD, lr=LR, momentum=BETA, nesterov=True)


def network(nodes=N, chain=tuple, outer=NESTEROV, **options):
    start = torch.zeros(nodes, D, dtype=torch.float64)
    make = lambda: AsyncFedAvg(every=H, outer=outer, **options)
    return Messages(make, Federated(nodes, down="all"), start, chain)


def local_step(i, x):
    return -ETA * PROBLEM.gradient(i, x)


def trained(i, x):
    x = x.clone()
    for _ in range(H):
        x += local_step(i, x)
    return x


def leg(net, i):
    """All local steps of client i up to its update."""
    assert [net.step(i, local_step) for _ in range(H + 1)] == [True] * H + [False], "it waits for the answer"


@pytest.mark.parametrize("delay", [None, 1])
def test_one_client_is_sequential_local_sgd_with_torchs_nesterov(delay):
    net = network(2, delay=delay)
    phi = torch.nn.Parameter(torch.zeros(D, dtype=torch.float64))
    optimizer = NESTEROV([phi])
    for _ in range(10):
        leg(net, 1)
        net.flush()
        phi.grad = phi.detach() - trained(1, phi.detach())
        optimizer.step()
        torch.testing.assert_close(net.models, phi.detach().expand(2, D), rtol=0, atol=1e-12)


@pytest.mark.parametrize("delay", [None, N - 1])
def test_a_quorum_of_all_is_diloco_in_rounds(delay):
    """In any order of arrival, also where the gradient part of each update acts at once."""
    net, draw = network(quorum=N - 1, delay=delay), np.random.default_rng(2)
    rounds = Lockstep(
        lambda: FedAvg(outer=NESTEROV, average="equal"),
        Federated(N, down="all"),
        torch.zeros(N, D, dtype=torch.float64),
        weights=Uniform(),
        setup_of=lambda rank: {"samples": int(rank > 0)},
    )
    for _ in range(6):
        for i in 1 + draw.permutation(N - 1):
            leg(net, i)
        while net.flying:
            net.arrive(draw.integers(len(net.flying)))
        for _ in range(H):
            rounds.train(lambda i, x: PROBLEM.gradient(i, x) if i else None, ETA)
        torch.testing.assert_close(net.models, rounds.mix(), rtol=0, atol=1e-12)


def test_delayed_nesterov_is_the_published_recursion_on_any_order_of_arrival():
    """D <- D + g; N-th: m <- beta m + D / N, x <- x - lr (beta m + g / N), D <- 0; else x <- x - lr g / N.

    g is the pseudo-gradient of a client, which began where the server was when it sent last.
    """
    buffer, draw = 3, np.random.default_rng(4)
    net = network(delay=buffer)
    x = torch.zeros(D, dtype=torch.float64)
    m, total, began = torch.zeros_like(x), torch.zeros_like(x), {i: x for i in range(1, N)}
    for t in range(40):
        i = int(draw.choice([1, 2, 3, 4], p=[0.5, 0.3, 0.15, 0.05]))
        leg(net, i)
        net.flush()
        g = began[i] - trained(i, began[i])
        total = total + g
        if (t + 1) % buffer == 0:
            m, total = BETA * m + total / buffer, torch.zeros_like(x)
            x = x - LR * (BETA * m + g / buffer)
        else:
            x = x - LR * g / buffer
        began[i] = x
        torch.testing.assert_close(net.models[0], x, rtol=0, atol=1e-12)
        torch.testing.assert_close(net.models[i], x, rtol=0, atol=1e-12)


def test_the_server_waits_for_a_quorum_and_then_for_a_grace_and_forgets_the_lost():
    net = network(quorum=2, grace=1.0)
    mean = lambda ranks: torch.stack([trained(i, torch.zeros(D, dtype=torch.float64)) for i in ranks]).mean(0)
    leg(net, 1)
    net.flush()
    net.wait(100.0)
    assert not net.flying and not net.models[0].any(), "one is no quorum"
    leg(net, 3)
    net.flush()
    net.wait(0.9)
    leg(net, 2)
    net.flush()
    assert not net.flying
    net.wait(0.1)
    assert sorted(post.target for _, post in net.flying) == [1, 2, 3]
    net.flush()
    torch.testing.assert_close(net.models[0], LR * (1 + BETA) * mean([1, 2, 3]), rtol=0, atol=1e-12)
    assert torch.equal(net.models[[1, 2, 3]], net.models[0].expand(3, D))
    # All that are left have sent: neither quorum nor grace may stop the server.
    before = net.models[0].clone()
    for lost in (1, 2, 3):
        net.schemes[0].on_peer_lost(lost)
    leg(net, 4)
    net.flush()
    assert not torch.equal(net.models[0], before) and torch.equal(net.models[4], net.models[0])


def test_slow_clients_make_fewer_steps_by_the_speed_that_is_measured():
    seconds = {1: 1.0, 2: 4.0, 3: 1.6, 4: 100.0}
    start = torch.zeros(N, D, dtype=torch.float64)
    net = Messages(lambda: AsyncFedAvg(every=8, follow_speed=True), Federated(N), start)

    def steps():
        made = dict.fromkeys(seconds, 0)
        for i in seconds:
            while net.step(i, seconds=seconds[i]):
                made[i] += 1
            net.flush()
        return made

    # floor(8 / 4), floor(8 / 1.6), and at least one; client 1 tells the others before they are ready.
    assert steps() == steps() == {1: 8, 2: 2, 3: 5, 4: 1}
    # Without the fastest one, 3 is; a lost one has no answer.
    net.schemes[0].on_peer_lost(1)
    steps()
    assert steps() == {1: 0, 2: 3, 3: 8, 4: 1}
    # A speed as small as a number can be, of the first to report: all make `every` steps.
    net.schemes[2]._speeds = {0: 5e-324}
    assert steps()[2] == 8


def test_an_update_or_an_answer_that_was_lost_is_sent_again_and_counts_once():
    straight, lossy = network(quorum=2, delay=3), network(quorum=2, delay=3)
    for net in (straight, lossy):
        for k in range(6):
            for i in (1, 2):
                leg(net, i)
                if net is lossy and k % 3 == 0:
                    net.flying.clear()
            net.flush() if net is straight or k % 3 != 1 else [net.arrive(0), net.arrive(0)]
            if net is lossy and k % 3 != 2:
                # Updates were lost, or the answers; all start again from what they have saved.
                net.flying.clear()
                for i, scheme in enumerate(net.schemes):
                    net.schemes[i] = net.fresh(i, WeightedGraph(net.graph, Uniform()))
                    net.schemes[i].receive_handshakes({j: bytes([j > 0]) for j in range(N)})
                    net.schemes[i].load_state_dict(scheme.state_dict())
                for _ in range(2):
                    for i in (1, 2):
                        net.post(i, net.schemes[i].resend(0.0))
                    net.flush()
    assert torch.equal(straight.models, lossy.models) and straight.models.any()


def test_an_update_that_is_not_finite_is_refused_and_its_client_continues():
    net = network()
    net.models[1] = float("nan")
    leg(net, 1)
    net.flush()
    assert [rank for rank, _ in net.schemes[0].refusals] == [1]
    assert not net.models[0].any() and not net.models[1].any()
    leg(net, 1)
    net.flush()
    assert net.models[0].any()


@pytest.mark.parametrize("chain", [lambda: (Cast(),), lambda: (ErrorFeedback(), TopK(0.5))])
def test_transforms_lose_little(chain):
    plain = partial(torch.optim.SGD, lr=0.3)
    net, exact = (network(quorum=N - 1, outer=plain, chain=c) for c in (chain, tuple))
    for each in (net, exact):
        for _ in range(60):
            for i in range(1, N):
                leg(each, i)
            each.flush()
    torch.testing.assert_close(net.models[0], exact.models[0], rtol=0, atol=0.05)
    assert exact.models[0].abs().max() > 0.3


def test_numbers_that_nobody_expects_change_nothing():
    net = network()
    leg(net, 1)
    ((_, update),) = net.flying
    net.flush()
    before = net.models.clone()
    net.deliver(
        0, update._replace(target=1, tag=1, payload=Payload.dense(torch.ones(D, dtype=torch.float64)))
    )
    net.deliver(1, update)
    net.flush()
    assert torch.equal(net.models, before)
    assert update.tag == UPDATE


def test_what_does_not_fit_is_refused():
    with pytest.raises(
        BadInput, match="delay: lets gradients act before their momentum, which is right for SGD, not Adam"
    ):
        AsyncFedAvg(delay=4, outer=partial(torch.optim.Adam, lr=0.1))
    with pytest.raises(BadInput, match="quorum: must be at most the 4 clients, not 5"):
        AsyncFedAvg(quorum=5).check(WeightedGraph(Federated(N), Uniform()))
    with pytest.raises(BadInput, match=r"has one server; leave graph\.standby out"):
        AsyncFedAvg().check(WeightedGraph(Federated(N, standby=1), Uniform()))


# Whole runs in virtual time.

CLIENTS = [1, 2, 3, 4]
SMALL = {
    "name": "small",
    "graph": {"name": "federated", "nodes": 5, "down": "all"},
    "dataset": {"name": "digits", "partition": {"name": "iid", "ranks": CLIENTS}},
    "model": "logistic_regression",
    "training": {
        "optimizer": {"name": "SGD", "lr": 0.1}, "batch_size": 1500, "dtype": "float64",
        "pace": {"step_seconds": 0.1},
    },
    "communication": "simulated",
    "records": {"models": {"every": 1}},
    "evaluation": {"every": 0, "figures": False},
}  # fmt: skip
OUTER = {"name": "SGD", "lr": LR, "momentum": BETA, "nesterov": True}


@pytest.fixture
def _in_an_empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def run(sharing, **overrides):
    """A run of six windows of two seconds, with a record of the order of events."""
    time_model = {"name": "asynchronous", "seconds_per_round": 2, "schedule": "record"}
    sharing = {"name": "async_fed_avg", "outer": OUTER, **sharing}
    overrides = {"rounds": 6, "time_model": time_model, **overrides}
    return decentnode.run(SMALL, progress=False, sharing=sharing, **overrides)


def batches(finished):
    """The clients whose updates made each step of the server."""
    events = [e for window in read_schedule(finished.directory, 0, 6) for e in window.events]
    made = [[]]
    for event in events:
        if event == "timer":
            made.append([])
        elif str(event).split(":")[1:2] == [str(UPDATE)]:
            made[-1].append(int(event.split(":")[0]))
    return made[:-1]


def steps(finished):
    return {
        rank: sum(
            record.steps for record in read_records(finished.directory / "records" / f"{rank:05d}.jsonl")
        )
        for rank in CLIENTS
    }


@pytest.mark.usefixtures("_in_an_empty_folder")
def test_a_run_with_equal_paces_and_a_quorum_of_all_has_the_models_of_diloco():
    rounds = decentnode.run(
        SMALL, progress=False, rounds=6, training={"steps_per_round": 5},
        sharing={"name": "fed_avg", "outer": OUTER, "average": "equal"},
    )  # fmt: skip
    ours = run({"every": 5, "quorum": 4}, **{"time_model.seconds_per_round": 0.55})
    for name, value in rounds.model(0).items():
        torch.testing.assert_close(ours.model(0)[name], value, rtol=0, atol=1e-12)
    assert [sorted(batch) for batch in batches(ours)] == [CLIENTS] * 6


@pytest.mark.usefixtures("_in_an_empty_folder")
def test_slow_clients_follow_the_speed_of_the_fastest_so_that_updates_come_together():
    """Paces 1, 1, 2 and 4 and H = 8: a quorum of all waits for nobody. A replay has the same models."""
    slow = {"training": {"pace": {"step_seconds": 0.1, "slowdown": [1, 1, 1, 2, 4]}}}
    options = {"every": 8, "quorum": 4, "delay": 4}
    apart, together = (run({**options, "follow_speed": follows}, **slow) for follows in (False, True))
    # 12 seconds of 3.2 seconds each; those that have sent at the end wait no more for one that has left.
    assert [sorted(batch) for batch in batches(apart)] == [CLIENTS, CLIENTS, CLIENTS, [1, 2, 3]]
    assert steps(apart) == {1: 32, 2: 32, 3: 32, 4: 29}
    # After 0.8 seconds all know the greatest speed; 1.2 seconds, then 13 times 8, 8, 4 and 2 steps in 0.8.
    assert [sorted(batch) for batch in batches(together)] == [CLIENTS] * 14
    assert steps(together) == {1: 8 + 13 * 8 + 3, 2: 8 + 13 * 8 + 3, 3: 5 + 13 * 4 + 1, 4: 3 + 13 * 2}
    again = {"name": "asynchronous", "seconds_per_round": 2, "schedule": "replay",
             "schedule_path": str(together.directory)}  # fmt: skip
    replay = run({**options, "follow_speed": True}, time_model=again, communication="inproc", **slow)
    assert replay.model_hash == together.model_hash != apart.model_hash


@pytest.mark.usefixtures("_in_an_empty_folder")
def test_a_server_with_samples_is_refused_before_the_start():
    with pytest.raises(
        BadInput, match=r"dataset\.partition: rank 0 has samples, but a server of async_fed_avg"
    ):
        run({}, **{"dataset.partition": "iid"})


@pytest.mark.usefixtures("_in_an_empty_folder")
def test_a_client_that_crashes_stops_no_quorum_of_all():
    crash = {"faults": [{"name": "crash", "ranks": 3, "at": "3 s"}], "failures.grace": 1}
    with pytest.warns(UserWarning, match="1 node lost: rank 3"):
        crashed = run({"every": 8, "quorum": 4}, **crash)
    made = [sorted(batch) for batch in batches(crashed)]
    assert made[:3] == [CLIENTS] * 3
    # One leg and the grace of its link pass until it counts no more.
    assert made[3:] == [[1, 2, 4]] * len(made[3:]) and len(made) >= 10
    assert list(crashed.summary["lost_nodes"]) == ["3"]
