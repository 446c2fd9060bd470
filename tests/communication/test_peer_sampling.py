"""The peer-sampling service: all processes get a block at the same time, and lose the service alike."""

import asyncio
import contextlib
import socket
import threading
import time

import numpy as np
import pytest
import zmq

from decentnode.communication.peer_sampling.client import SamplingClient
from decentnode.communication.peer_sampling.service import NUMBER, QUESTION, SamplingService
from decentnode.communication.security.curve import Credentials, KeyPair
from decentnode.config.loader import load
from decentnode.core.timeouts import Timeouts
from decentnode.errors import BadInput, GraphError, StartError
from decentnode.graph.overlays.peer_sampler import PeerSampler
from decentnode.launcher.peer_service import by_hand
from decentnode.parallel.topology import weighted_graph
from tests.integration.running import ROOT

LIMITS = Timeouts(deadline=20.0, grace=0.3, start_deadline=20.0, stop_deadline=5.0)


@pytest.fixture
def serving(tmp_path):
    """Starts services in threads; returns their endpoints."""

    def start(processes, timeout=20.0, credentials=None, where=f"ipc://{tmp_path}/peers"):
        def answer(number):
            if number == 9:
                raise SystemExit  # the end of the service
            return b"block %d" % number

        service = SamplingService(answer, where, processes, timeout, credentials)

        def serve():
            with contextlib.suppress(SystemExit):
                service.serve()

        threading.Thread(target=serve, daemon=True).start()
        return where

    return start


@pytest.fixture
def asking():
    """Makes sockets that speak to a service."""
    context = zmq.Context()

    def connect(endpoint):
        dealer = context.socket(zmq.DEALER)
        dealer.connect(endpoint)
        return dealer

    yield connect
    context.destroy(linger=0)


def received(dealer, seconds):
    return dealer.recv_multipart() if dealer.poll(1000 * seconds) else None


def blocks(dealer, seconds=10.0):
    """The next answer that has a block."""
    limit = time.monotonic() + seconds
    while (answer := received(dealer, limit - time.monotonic())) is not None:
        if len(answer) == 2:
            return NUMBER.unpack(answer[0])[0], answer[1]
    return None


def test_a_block_goes_to_all_when_the_last_has_asked(serving, asking):
    endpoint = serving(processes=2)
    first, other = asking(endpoint), asking(endpoint)
    first.send(QUESTION.pack(0, 0))
    assert received(first, 10) == [NUMBER.pack(0)]  # a sign of life
    assert received(first, 0.2) is None
    other.send(QUESTION.pack(1, 0))
    assert blocks(first) == blocks(other) == (0, b"block 0")


def test_a_process_that_does_not_ask_is_not_expected_again(serving, asking):
    endpoint = serving(processes=2, timeout=0.2)
    early, late = asking(endpoint), asking(endpoint)
    for number in range(3):
        early.send(QUESTION.pack(0, number))
        assert blocks(early) == (number, b"block %d" % number)
    late.send(QUESTION.pack(1, 2))
    assert blocks(late) == (2, b"block 2")
    early.send(QUESTION.pack(0, 3))
    late.send(QUESTION.pack(1, 3))
    assert blocks(early) == blocks(late) == (3, b"block 3")


@pytest.mark.parametrize(
    "noise", [[b"x"], [b""], [QUESTION.pack(0, -1)], [b"a", b"b"], [QUESTION.pack(0, 7)] * 2]
)
def test_other_messages_change_nothing(serving, asking, noise):
    endpoint = serving(processes=1)
    client, stranger = asking(endpoint), asking(endpoint)
    stranger.send_multipart(noise)
    client.send(QUESTION.pack(0, 0))
    assert blocks(client) == (0, b"block 0")


def test_a_client_fetches_ahead_and_notices_the_end(serving):
    told = []
    client = SamplingClient(serving(processes=1), 0, LIMITS, told.append).start()
    try:
        assert client.block(0) == b"block 0"
        client.request(1)
        asyncio.run(client.wait(1))
        assert client.block(1) == b"block 1"
        client.request(9)
        asyncio.run(client.wait(9))
        assert client.is_lost
        client.repeats(27, range(3, 6))
        client.repeats(30, range(3, 6))
        repeats = "from round 28 on nodes repeat the views of rounds 4 to 6"
        assert told == [f"no answer of the peer-sampling service: {repeats}"]
        # From now on nobody waits.
        client.request(10)
        assert client.is_lost
    finally:
        client.close()


def test_an_address_of_another_machine_is_refused_in_a_line():
    service = SamplingService(lambda number: b"", "tcp://192.0.2.1:30900", 1, 1.0)
    with pytest.raises(
        StartError, match=r"^tcp://192.0.2.1:30900 cannot be bound: Cannot assign [a-z ]+; graph"
    ):
        service.serve()


def test_without_a_service_a_process_does_not_start(tmp_path):
    limits = Timeouts(1.0, 0.1, 0.3, 1.0)
    client = SamplingClient(f"ipc://{tmp_path}/nobody", 0, limits, print)
    with pytest.raises(StartError, match="no peer-sampling service answers at ipc://"):
        client.start()
    client.close()


def test_with_keys_the_service_answers_machines_of_the_run_alone(serving):
    keys = [KeyPair.make() for _ in range(2)]
    public = tuple(pair.public for pair in keys)
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    endpoint = serving(1, 20.0, Credentials(0, keys[0], public), f"tcp://127.0.0.1:{port}")
    client = SamplingClient(endpoint, 0, LIMITS, print, Credentials(1, keys[1], public)).start()
    assert client.block(0) == b"block 0"
    client.close()
    stranger = SamplingClient(
        endpoint, 0, Timeouts(1.0, 0.1, 0.5, 1.0), print, Credentials(1, KeyPair.make(), public)
    )
    with pytest.raises(StartError):
        stranger.start()
    stranger.close()


class Blocks:
    """A service whose answers arrive when a test says so."""

    def __init__(self, graph, *numbers):
        self.answers = {number: graph.answer(number) for number in numbers}
        self.asked, self.waited, self.told = [], [], []

    def request(self, number):
        self.asked.append(number)

    def block(self, number):
        return self.answers.get(number)

    async def wait(self, number):
        self.waited.append(number)

    def repeats(self, first, instead):
        self.told.append((first, instead))


@pytest.mark.parametrize("policy", ["epidemic_oracle", "epidemic_local"])
def test_views_are_those_that_the_policy_draws(policy):
    graph = PeerSampler(9, 4, policy, block=3, seed=5)
    asked = PeerSampler(9, 4, policy, block=3, seed=5)
    asked.connect(Blocks(graph, 0, 1))
    for round in range(6):
        for rank in range(9):
            drawn = graph.drawn_graph.targets(rank, round), graph.drawn_graph.sources(rank, round)
            assert drawn == (graph.targets(rank, round), graph.sources(rank, round))
            assert drawn == (asked.targets(rank, round), asked.sources(rank, round))


def test_blocks_are_fetched_ahead_and_the_last_one_is_repeated():
    graph = PeerSampler(8, 3, block=4)
    source = Blocks(graph, 0, 1)
    graph.connect(source)
    rounds = []
    for round in range(20):
        asyncio.run(graph.prepare(2, round))
        rounds.append(graph.targets(2, round))
    drawn = [graph.drawn_graph.targets(2, round) for round in range(8)]
    assert rounds == drawn + drawn[4:] * 3
    assert source.told == [(8, range(4, 8)), (12, range(4, 8)), (16, range(4, 8))]
    # Also for blocks that are here, so that simulated nodes continue in one order.
    assert source.waited == [0, 1, 2, 3, 4]
    assert [*dict.fromkeys(source.asked)] == [0, 1, 2, 3, 4, 5]
    # Decided once for all nodes of a process, also if the block comes late.
    source.answers[4] = PeerSampler(8, 3, block=4).answer(4)
    assert graph.targets(5, 17) == graph.drawn_graph.targets(5, 5)


def test_links_are_opened_for_the_views_that_are_here():
    graph = PeerSampler(30, 3, block=2)
    source = Blocks(graph, 0)
    graph.connect(source)
    here = {*graph.drawn_graph.targets(1, 0), *graph.drawn_graph.targets(1, 1)}
    assert graph.peers_in(1, range(4)) == here
    source.answers[1] = PeerSampler(30, 3, block=2).answer(1)
    assert graph.peers_in(1, range(4)) > here
    assert source.told == []


def test_there_must_be_a_first_view():
    graph = PeerSampler(8, 3)
    graph.connect(Blocks(graph))
    with pytest.raises(GraphError, match="the service has not answered, and there is no earlier view"):
        graph.targets(0, 0)


@pytest.mark.parametrize("answer", [[], [1], [1, -1, 0, 0], [1, 0, 0, 9], [1, 0, 0, 1, 2, 3]])
def test_an_answer_that_is_no_block_is_refused(answer):
    graph = PeerSampler(8, 3, block=2)
    source = Blocks(graph)
    source.answers[0] = np.array(answer, "<i4").tobytes()
    graph.connect(source)
    with pytest.raises(GraphError, match="peer_sampler: the service's answer"):
        graph.targets(0, 0)


def test_a_service_by_hand_needs_its_address():
    path = ROOT / "configs" / "peer_sampler.yaml"
    with pytest.raises(BadInput, match="graph: must be peer_sampler with the address of this service"):
        by_hand(load(path))
    service = by_hand(
        load(path, ["graph.address=127.0.0.1", "communication={name: zeromq, nodes_per_process: 3}"])
    )
    assert (service.endpoint, service.processes) == ("tcp://127.0.0.1:30900", 6)
    assert service.answer(1) == load(path).graph.make().answer(1)


def test_a_training_loop_of_ones_own_has_no_service():
    with pytest.raises(BadInput, match="topology: peer_sampler asks a service, and here is none"):
        weighted_graph({"name": "peer_sampler", "degree": 2}, None, 4)
