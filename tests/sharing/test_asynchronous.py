"""Asynchronous schemes against dense oracles, and under messages that are lost, repeated or out of order."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from decentnode.core.payload import Payload
from decentnode.core.registry import SHARINGS
from decentnode.errors import BadInput
from decentnode.graph.families import FullyConnected, Ring, Star
from decentnode.sharing.asynchronous import (
    AdPsgd,
    AsyncSharing,
    DivShare,
    EpidemicPush,
    PushGossip,
    Swift,
)
from decentnode.sharing.asynchronous.ad_psgd import ANSWER, DECLINE, NOTHING, REQUEST
from decentnode.sharing.asynchronous.base import PeerMessage
from decentnode.testing.lockstep import bound
from decentnode.transforms import Cast, Qsgd
from decentnode.transforms.sparsify.top_k import TopK
from tests.support.messages import Messages, standard_normal

SCHEMES = {
    name: cls
    for name, cls in SHARINGS.classes().items()
    if issubclass(cls, AsyncSharing) and not cls.requirements.server  # test_async_fed_avg.py
}
GRAPHS = (Ring(6), Star(5), FullyConnected(4))
CHAINS = {
    "plain": tuple,
    "cast": lambda: (Cast(),),
    "top_k": lambda: (TopK(0.4, by="magnitude"),),
    "qsgd": lambda: (Qsgd(),),
}


def test_all_of_them_are_tested_here():
    assert set(SCHEMES.values()) == {AdPsgd, DivShare, EpidemicPush, PushGossip, Swift}


# AD-PSGD.

EVENTS = st.lists(
    st.tuples(
        st.sampled_from(["step", "arrive", "lose", "twice", "repeat"]),
        st.integers(0, 10**6),
    ),
    max_size=60,
)


@given(
    events=EVENTS,
    graph=st.sampled_from(GRAPHS),
    staleness=st.integers(0, 2),
    chain=st.sampled_from(sorted(CHAINS)),
)
@settings(max_examples=60, deadline=None)
def test_the_sum_survives_lost_repeated_and_reordered_messages(events, graph, staleness, chain):
    n = graph.num_nodes
    net = Messages(lambda: AdPsgd(staleness), graph, standard_normal(n, 5), CHAINS[chain])
    expected, changes = net.models.sum(0), standard_normal(len(events), 5, seed=1)
    for (event, number), change in zip(events, changes, strict=True):
        if event == "step":
            expected = expected + change * net.step(number % n, change)
        elif event == "repeat":
            net.time += 1e6
            net.post(number % n, net.schemes[number % n].resend(net.time))
        elif net.flying:
            index = number % len(net.flying)
            if event == "twice":
                net.flying.append(net.flying[index])
            net.flying.pop(index) if event == "lose" else net.arrive(index)
    net.settle()
    assert torch.allclose(net.models.sum(0), expected, rtol=0, atol=1e-12)


def test_pairs_that_are_not_disturbed_average_as_the_matrix_of_the_pair_does():
    net = Messages(AdPsgd, Ring(6), standard_normal(6, 3))
    oracle = net.models.clone()
    for i in np.random.default_rng(3).integers(0, 6, size=40):
        net.step(i)
        (j,) = {post.target for _, post in net.flying}
        pair = torch.eye(6, dtype=torch.float64)
        pair[[i, i, j, j], [i, j, i, j]] = 0.5
        oracle = pair @ oracle
        net.flush()
        assert torch.allclose(net.models, oracle, rtol=0, atol=1e-13)
    assert (net.models - net.models.mean(0)).norm() < 0.1 * (oracle[0] - standard_normal(6, 3)).norm()


def test_a_stale_request_moves_both_ends_by_half_of_the_difference_at_that_time():
    """x_i has moved since its request: delta is that of the models that met."""
    net = Messages(lambda: AdPsgd(staleness=3), Ring(2), torch.tensor([[0.0], [8.0]], dtype=torch.float64))
    net.step(0)
    net.step(0, 100.0)
    net.flush()
    assert net.models.tolist() == [[104.0], [4.0]]


def test_two_nodes_with_mutual_requests_average_and_do_not_swap():
    net = Messages(AdPsgd, Ring(2), torch.tensor([[0.0], [8.0]], dtype=torch.float64))
    net.step(0), net.step(1)
    net.flush()
    assert net.models.tolist() == [[4.0], [4.0]]
    assert not any(list(scheme.awaited) for scheme in net.schemes)


@pytest.mark.parametrize("staleness", [0, 1])
@pytest.mark.parametrize("graph", GRAPHS, ids=lambda graph: type(graph).__name__)
def test_no_graph_leads_to_a_deadlock(graph, staleness):
    """All step as often as they may while messages arrive in any order; nobody stops for ever."""
    n, draw = graph.num_nodes, np.random.default_rng(staleness)
    net = Messages(lambda: AdPsgd(staleness), graph, standard_normal(n, 2))
    for _ in range(400):
        for i in draw.permutation(n):
            net.step(i)
        if net.flying:
            net.arrive(draw.integers(len(net.flying)))
    assert min(net.steps) > 20


def test_staleness_is_the_number_of_steps_without_an_answer():
    for staleness in (0, 1, 3):
        net = Messages(lambda s=staleness: AdPsgd(s), Ring(3), standard_normal(3, 2))
        assert [net.step(0) for _ in range(6)] == [True] * (1 + staleness) + [False] * (5 - staleness)


def test_a_node_continues_without_a_lost_peer_and_still_uses_its_late_answer():
    net = Messages(lambda: AdPsgd(0), Ring(2), torch.tensor([[0.0], [8.0]], dtype=torch.float64))
    net.step(0)
    net.arrive(0)
    late = net.flying.pop()
    net.schemes[0].on_peer_lost(1)
    assert net.step(0) and not net.flying
    net.deliver(*late)
    assert net.models.tolist() == [[4.0], [4.0]]
    net.schemes[0].on_peer_back(1)
    assert net.step(0) and net.flying


def test_an_old_request_is_repeated_with_its_number_and_its_content():
    net = Messages(lambda: AdPsgd(1), Ring(2), torch.tensor([[0.0], [8.0]], dtype=torch.float64))
    net.step(0)
    first = net.flying.pop()[1]
    net.step(0, 5.0)
    assert net.schemes[0].resend(0.0) == ()
    (again,) = net.schemes[0].resend(10.0)
    assert again[:3] == first[:3] == (1, REQUEST, 1)
    assert torch.equal(again.payload.buffer, first.payload.buffer)
    assert net.schemes[0].resend(10.1) == ()


def test_a_node_that_stops_during_an_exchange_resumes_it():
    net = Messages(AdPsgd, Ring(4), standard_normal(4, 3))
    expected = net.models.sum(0)
    for i in range(4):
        net.step(i)
    net.arrive(0)
    net.flying.clear()
    for i, scheme in enumerate(net.schemes):
        fresh = bound(AdPsgd(), 4, 3)
        fresh.load_state_dict(scheme.state_dict())
        net.schemes[i] = fresh
    for scheme in net.schemes:
        scheme.resend(0.0)
    net.settle()
    assert torch.allclose(net.models.sum(0), expected, rtol=0, atol=1e-12)


def test_a_declined_request_has_no_model_in_its_answer():
    net = Messages(AdPsgd, Ring(2), standard_normal(2, 1000))
    net.step(0), net.step(1)
    net.arrive(1)
    (declined,) = [post for _, post in net.flying if post.tag == DECLINE]
    assert declined.payload.nbytes == 0


# SWIFT.


@pytest.mark.parametrize("every", [1, 3])
def test_swift_follows_its_equation_on_any_order_of_events(every):
    """Bornstein et al., 2023, Algorithm 1, in one dense state: x_i <- sum_j w_ij m_ij - eta g(x_i), m_ij the
    newest model of j that i has, in steps of the communication set; x_i <- x_i - eta g(x_i) in the others.
    """
    graph, eta, draw = Ring(5), 0.1, np.random.default_rng(1)
    start = standard_normal(1, 3).expand(5, -1)
    net = Messages(lambda: Swift(every=every), graph, start)
    weights = np.array([[view.weights.get(j, 0.0) for j in range(5)] for view in net.views])
    x = start.numpy().copy()
    known = np.tile(x[:1], (5, 5, 1))  # known[i, j]: what i has of j
    centers = draw.standard_normal((5, 3))
    newest = np.full((5, 5), -1)

    for _ in range(300):
        if net.flying and draw.random() < 0.7:
            sender, post = net.flying[index := draw.integers(len(net.flying))]
            if post.number > newest[post.target, sender]:  # an older model does not replace a newer one
                newest[post.target, sender] = post.number
                known[post.target, sender] = post.payload["vector"].numpy()
            net.arrive(index)
            continue
        i = draw.integers(5)
        net.step(i, lambda i, model: -eta * (model - torch.from_numpy(centers[i])))
        known[i, i] = x[i]
        mixed = x[i] if net.steps[i] % every else weights[i] @ known[i]
        x[i] = mixed - eta * (x[i] - centers[i])
        assert np.allclose(net.models.numpy(), x, rtol=0, atol=1e-12)


def test_swift_averages_in_each_k_th_step_alone():
    net = Messages(lambda: Swift(every=3), Ring(4), standard_normal(4, 2))
    sent = []
    for _ in range(6):
        net.step(0)
        sent.append(len(net.flying))
    assert sent == [0, 0, 2, 2, 2, 4]


def test_swift_gives_the_weight_of_a_lost_neighbor_to_the_node_itself():
    net = Messages(Swift, Ring(4), standard_normal(4, 2))
    before = net.models[0].clone()
    for peer in (1, 3):
        net.schemes[0].on_peer_lost(peer)
    net.step(0)
    assert torch.equal(net.models[0], before) and not net.flying


# The others.


def test_push_gossip_weighs_by_age():
    net = Messages(PushGossip, Ring(2), torch.tensor([[0.0], [8.0]], dtype=torch.float64))
    for _ in range(3):
        net.step(0)
    net.step(1)
    sent = [post for sender, post in net.flying if sender == 1]
    net.deliver(1, sent[0])
    assert net.models[0].item() == pytest.approx(8.0 / 4, abs=1e-15)
    # An older push than one that was used is nothing new.
    net.deliver(1, sent[0])
    assert net.models[0].item() == pytest.approx(2.0, abs=1e-15)
    net.step(0)
    assert net.flying[-1][1].number == 4


def test_divshare_averages_each_fragment_with_those_that_came():
    d, make = 7, lambda: DivShare(fragments=3, degree=2)
    net = Messages(make, FullyConnected(4), standard_normal(4, d))
    before = net.models.clone()
    for i in (1, 2, 3):
        net.step(i)
    heard = {fragment: [] for fragment in range(3)}
    for sender, post in net.flying:
        if post.target == 0:
            heard[post.tag].append(sender)
    assert sum(map(len, heard.values())) < 9
    net.flush()
    net.step(0)
    for fragment, senders in heard.items():
        part = slice(3 * fragment, min(3 * fragment + 3, d))
        assert torch.allclose(net.models[0, part], before[[0, *senders], part].mean(0), rtol=0, atol=1e-14)


def test_epidemic_push_mixes_what_has_come_when_its_time_is_over():
    net = Messages(lambda: EpidemicPush(degree=3, timeout=2.0), FullyConnected(4), standard_normal(4, 3))
    before = net.models.clone()
    for i in range(4):
        net.step(i)
    assert len(net.flying) == 12
    for index in reversed(range(12)):
        if net.flying[index][1].target == 0 and net.flying[index][0] != 3:
            net.arrive(index)
    assert not net.step(0)
    net.time = 1.9
    assert not net.step(0)
    net.time = 2.0
    assert net.step(0)
    assert torch.allclose(net.models[0], before[:3].mean(0), rtol=0, atol=1e-15)


@pytest.mark.parametrize("chain", CHAINS)
@pytest.mark.parametrize("name", SCHEMES)
def test_equal_models_stay_as_they_are(name, chain):
    """Whatever the transforms lose: what was not sent is filled from the own model, and is equal."""
    start = torch.ones(5, 8, dtype=torch.float64)
    net = Messages(SCHEMES[name], FullyConnected(5), start, CHAINS[chain])
    draw = np.random.default_rng(5)
    for _ in range(60):
        net.step(draw.integers(5))
        net.time += 1
        if net.flying:
            net.arrive(draw.integers(len(net.flying)))
    # 8-bit rounding moves equal models too; the others do not.
    assert torch.allclose(net.models, start, atol=0.05 if chain == "qsgd" else 1e-12)


@pytest.mark.parametrize("name", SCHEMES)
def test_all_come_to_one_model(name):
    net = Messages(SCHEMES[name], FullyConnected(4), standard_normal(4, 12))
    apart = (net.models - net.models.mean(0)).norm()
    for _ in range(60):
        for i in range(4):
            net.step(i)
        net.flush()
        net.time += 1
    # SWIFT counts the common start as the first model of every neighbor, and here there was none.
    assert (net.models - net.models.mean(0)).norm() < 1e-3 * apart


@pytest.mark.parametrize("name", SCHEMES)
def test_a_model_that_is_not_finite_is_refused(name):
    net = Messages(SCHEMES[name], FullyConnected(4), standard_normal(4, 12))
    net.models[1] = float("nan")
    net.step(1)
    (_, post), *_ = net.flying
    net.flying.clear()
    before = net.models[post.target].clone()
    net.deliver(1, post)
    net.time += 10
    net.step(post.target)
    assert torch.equal(net.models[post.target], before)
    assert [rank for rank, _ in net.schemes[post.target].refusals] == [1]


@pytest.mark.parametrize("name", SCHEMES)
def test_the_state_is_all_that_a_node_resumes_with(name):
    # The time from which epidemic_push waits is that of a process.
    make = SCHEMES[name] if name != "epidemic_push" else lambda: EpidemicPush(timeout=0.0)
    straight, resumed = (Messages(make, FullyConnected(4), standard_normal(4, 12)) for _ in range(2))
    for net, resumes in ((straight, False), (resumed, True)):
        draw = np.random.default_rng(7)
        for k in range(60):
            net.step(draw.integers(4), 0.1)
            net.time += 1
            if net.flying:
                net.arrive(draw.integers(len(net.flying)))
            if resumes and k == 30:
                for i, scheme in enumerate(net.schemes):
                    net.schemes[i] = bound(make(), 4, 12)
                    net.schemes[i].load_state_dict(scheme.state_dict())
    assert torch.equal(straight.models, resumed.models)


@pytest.mark.parametrize("name", SCHEMES)
def test_schemes_with_one_state_for_all_need_one_payload_for_all(name):
    if SCHEMES[name].promises.sends_one_payload:
        bound(SCHEMES[name](), 4, 20, (TopK(0.5, by="change"),))
    else:
        with pytest.raises(BadInput, match=f"remembers what it has sent to all, but {name} sends each"):
            bound(SCHEMES[name](), 4, 20, (TopK(0.5, by="change"),))


def test_unknown_numbers_change_nothing():
    """An answer that nobody asked for, and a request older than the last one."""
    net = Messages(AdPsgd, Ring(3), standard_normal(3, 2))
    net.step(0)
    request = net.flying[0][1]
    net.flush()
    before = net.models.clone()
    scheme = net.schemes[request.target]
    assert scheme.answer_repeated(PeerMessage(0, 1, 9, request.payload)) == ()
    assert scheme.answer_repeated(PeerMessage(0, REQUEST, 0, request.payload)) == ()
    # Nor does number 0 to a peer that was never asked, or an age that a message cannot have.
    stranger, nothing = PeerMessage(2, ANSWER, 0, request.payload), Payload.empty(NOTHING)
    assert (
        scheme.answer_repeated(stranger) == scheme.answer_repeated(PeerMessage(2, DECLINE, 0, nothing)) == ()
    )
    assert torch.equal(net.models, before)
    net = Messages(PushGossip, Ring(3), standard_normal(3, 2))
    for number in (0, 2**32 - 1):
        assert (
            net.schemes[1].receive(net.models[1], PeerMessage(0, 0, number, request.payload), net.views[1])
            == ()
        )
    assert [refusal.rank for refusal in net.schemes[1].refusals] == [0, 0] and net.schemes[1]._age == 0
