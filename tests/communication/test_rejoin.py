"""Dropped edges are restored: after a restart, after a stop, after a partition."""

import asyncio
import os
import signal
import tempfile
import time
from pathlib import Path

import pytest
import torch

from decentnode.communication.base import BufferSpec, Inbox, ProcessDirectory
from decentnode.communication.zeromq import dealers
from decentnode.communication.zeromq import io_thread as sockets
from decentnode.core.payload import Payload, dense_layout
from decentnode.core.timeouts import Timeouts
from decentnode.graph.families import FullyConnected
from tests.support.processes import FORK, IPC, MACHINES, RUN_ID, SHARED, SHARED_SIBLINGS, TCP, free_ports

NODES, ELEMENTS = 4, 1000
LAYOUT = dense_layout(ELEMENTS, torch.float64)
MEMORY = BufferSpec(ELEMENTS, torch.float64, payload_bytes=8 * ELEMENTS + 64)
PACE = 0.02
"""Seconds that a round takes."""
TOGETHER = 15
"""Rounds that all make in the end."""
LIMIT = 30.0


class HostProcesses:
    """Host processes of which single ones can be ended and started again."""

    nodes = NODES

    def __init__(self, case, directory):
        self.case = case
        self.processes = case.processes(self.nodes)
        self.base_port = free_ports(len(self.processes))
        for machine in {process.machine for process in self.processes}:
            (directory / str(machine)).mkdir()
        self.directory = directory
        self.bound = FORK.Barrier(len(self.processes))
        # Without locks, which a process that is killed would keep.
        self.progress, self.whole = FORK.RawArray("q", self.nodes), FORK.RawArray("q", self.nodes)
        """By rank the last round, and the last one in which it heard everyone."""
        self.rounds = FORK.RawValue("q", 1 << 30)
        self.running = {}
        self.timeout, self.gives, self.answer = LIMIT, True, Timeouts.rejoin_answer
        self.graph = FullyConnected(self.nodes)
        self.refused, self.links = FORK.RawArray("q", self.nodes), FORK.RawArray("q", self.nodes)
        """By rank the messages that it has refused, and what subclasses count of its links."""
        self.held = FORK.RawValue("q", self.nodes)
        """Who begins no round."""

    def start(self, number, incarnation=0):
        receiving, sending = FORK.Pipe(duplex=False)
        process = FORK.Process(target=self._host, args=(number, incarnation, sending))
        process.start()
        sending.close()
        self.running[number] = process, receiving

    def _host(self, number, incarnation, pipe):
        torch.set_num_threads(1)
        sockets.PROPOSAL_INTERVAL = 0.05
        dealers.HEARTBEAT_INTERVAL, Timeouts.link_heartbeat = 0.1, 0.3
        Timeouts.rejoin_answer = self.answer
        machine = self.processes[number].machine
        place = ProcessDirectory(
            self.processes,
            number,
            str(self.directory / str(machine)),
            0.3,
            incarnation=incarnation,
        )
        communication = self.case.communication(self.base_port)
        communication.prepare(place, 1 << 20)
        endpoints = [communication.endpoint(rank, MEMORY) for rank in place.process.ranks]
        partners = {rank: self.partners(rank) - {*place.process.ranks} for rank in place.process.ranks}
        others = sorted(set.union(*partners.values()))
        if not incarnation:
            self.bound.wait(10.0)
        communication.open(others, RUN_ID, 10.0)
        first = 0
        if incarnation:
            first = communication.rejoin(partners, 10.0)
        pipe.send(first)
        by_rank = asyncio.run(self._all(endpoints, first))
        communication.close(2.0)
        pipe.send(by_rank)

    def partners(self, rank):
        """Whom a node meets first, and asks when it comes back."""
        return self.graph.partners(rank)

    def foresee(self, endpoint, round):
        """Called before each round."""

    async def _all(self, endpoints, first):
        received = await asyncio.gather(*(self._rounds(endpoint, first) for endpoint in endpoints))
        return {endpoint.rank: rounds for endpoint, rounds in zip(endpoints, received, strict=True)}

    async def _rounds(self, endpoint, first):
        """Whom it heard in which round; every payload is (rank, round), so nothing else may arrive."""
        received, graph, round, turn = {}, self.graph, first, 0
        while round < self.rounds.value:
            await asyncio.sleep(PACE)
            while self.held.value == endpoint.rank:
                await asyncio.sleep(PACE)
            endpoint.admit(round)
            self.foresee(endpoint, round)
            turn = 1 - turn
            slot = endpoint.slots[turn].fill_(1000 * endpoint.rank + round)
            endpoint.offer(slot, lambda peer: self.gives)
            self.refused[endpoint.rank] = endpoint.refused["fetch"]
            outgoing = dict.fromkeys(graph.targets(endpoint.rank, round), Payload.dense(slot))
            sources = graph.sources(endpoint.rank, round)
            handle = await endpoint.exchange(outgoing, sources, (round, 0, 0), self.timeout, LAYOUT)
            inbox = Inbox(handle, LAYOUT, endpoint)
            read = {peer: payload["vector"].unique().tolist() for peer, payload in inbox.items()}
            received[round] = sorted(inbox)
            if len(inbox) == self.nodes - 1:
                self.whole[endpoint.rank] = round
            if inbox.release():
                assert read == {peer: [1000 * peer + round] for peer in read}
            self.progress[endpoint.rank] = round
            following = max(round + 1, endpoint.ahead)
            if following > round + 1:
                endpoint.skip_to(following)
            round = following
        endpoint.leave()
        return received

    def receive(self, number):
        """What a process says next, after at most `LIMIT` seconds."""
        assert self.running[number][1].poll(LIMIT), f"process {number} says nothing"
        return self.running[number][1].recv()

    def wait_for(self, rank, round):
        self.wait_until(lambda: self.progress[rank] >= round)

    def wait_until_whole_after(self, round):
        self.wait_until(lambda: min(self.whole) > round)

    def wait_until(self, condition):
        limit = time.monotonic() + LIMIT
        while not condition():
            assert time.monotonic() < limit, (list(self.progress), list(self.whole))
            time.sleep(0.005)

    def finish(self):
        """Lets all go on together for a while, and gathers whom they heard."""
        self.rounds.value = max(self.progress) + TOGETHER
        received = {}
        for number in self.running:
            while isinstance(by_rank := self.receive(number), int):
                pass
            received |= by_rank
        return received

    def signal(self, number, signum):
        os.kill(self.running[number][0].pid, signum)

    def end(self):
        for process, _ in self.running.values():
            process.kill()
            process.join()


@pytest.fixture
def hosts(request):
    with tempfile.TemporaryDirectory(prefix="dn-") as directory:
        processes = HostProcesses(request.param, Path(directory))
        processes.gives = "given_away" not in request.function.__name__
        processes.timeout = 0.5 if "stood_still" in request.function.__name__ else LIMIT
        if "neighbors_that_died" in request.function.__name__:
            processes.answer = 1.0
        for number in range(len(processes.processes)):
            processes.start(number)
        yield processes
        processes.end()


def on(*stages):
    return pytest.mark.parametrize("hosts", stages, indirect=True, ids=[s.name for s in stages])


def everybody_else(rank):
    return [other for other in range(NODES) if other != rank]


def check_together(received, since):
    """From round `since` on everyone hears everyone."""
    for rank, rounds in received.items():
        for round, peers in rounds.items():
            assert round < since or peers == everybody_else(rank), (rank, round, peers)


def check_symmetric(received, rounds):
    """Whom I hear in a round hears me, where both were there."""
    for round in range(rounds):
        there = {rank: by_round[round] for rank, by_round in received.items() if round in by_round}
        uneven = [(i, j) for i in there for j in there[i] if j in there and i not in there[j]]
        assert not uneven, (round, uneven)


@on(SHARED, TCP, SHARED_SIBLINGS, MACHINES)
def test_a_process_that_is_restarted_takes_part_within_two_rounds(hosts):
    last = len(hosts.processes) - 1
    ranks = hosts.processes[last].ranks
    hosts.wait_for(0, 10)
    hosts.receive(last)
    hosts.signal(last, signal.SIGKILL)
    hosts.running[last][0].join()
    hosts.wait_for(0, 20)
    hosts.start(last, incarnation=1)
    first = hosts.receive(last)
    assert 20 < first <= hosts.progress[0] + 3
    hosts.wait_for(0, first + 5)
    received = hosts.finish()
    check_together(received, since=first)
    check_symmetric(
        {rank: all_of for rank, all_of in received.items() if rank not in ranks}, first + TOGETHER
    )
    lost = [round for round, peers in received[0].items() if ranks[0] not in peers]
    assert lost == list(range(lost[0], first))


@on(SHARED, SHARED_SIBLINGS, MACHINES)
def test_a_process_that_stood_still_continues_where_the_others_are(hosts):
    """The others give it up after half a second, and are far ahead when it goes on.

    It answers no heartbeat meanwhile, so links to other machines break; those on one machine hold.
    """
    last = len(hosts.processes) - 1
    ranks = hosts.processes[last].ranks
    hosts.wait_for(0, 5)
    hosts.signal(last, signal.SIGSTOP)
    # On a busy machine they are far beyond round 5 by now.
    hosts.wait_for(0, hosts.progress[ranks[0]] + 35)
    hosts.signal(last, signal.SIGCONT)
    behind = hosts.progress[0]
    hosts.wait_until_whole_after(behind)
    together = max(hosts.whole)
    received = hosts.finish()
    check_together(received, since=together)
    skipped = [round for round in range(behind) if round not in received[ranks[0]]]
    assert len(skipped) > 10


@on(SHARED, TCP)
def test_a_node_that_stood_still_while_its_sockets_answer_is_waited_for_once(hosts):
    hosts.wait_for(0, 10)
    hosts.held.value = 3
    hosts.wait_until(lambda: hosts.progress[0] > hosts.progress[3] + 40)
    hosts.held.value = NODES
    behind = hosts.progress[0]
    hosts.wait_until_whole_after(behind)
    received = hosts.finish()
    missed = [round for round, peers in received[0].items() if 3 not in peers]
    assert len(missed) > 30


@pytest.mark.parametrize(
    ("hosts", "apart"), [(SHARED, 0.0), (TCP, 0.5)], indirect=["hosts"], ids=["at once", "one by one"]
)
def test_two_neighbors_that_died_at_once_take_part_again_and_receive_from_each_other(hosts, apart):
    """Each of them asks the other where it is, and neither knows."""
    hosts.wait_for(0, 10)
    for number in (2, 3):
        hosts.receive(number)
        hosts.signal(number, signal.SIGKILL)
        hosts.running[number][0].join()
    for number in (2, 3):
        hosts.start(number, incarnation=1)
        time.sleep(apart)
    first = [hosts.receive(number) for number in (2, 3)]
    hosts.wait_until_whole_after(max(first))
    together = max(hosts.whole)
    check_together(hosts.finish(), since=together)


@on(IPC)
def test_a_model_can_be_fetched_from_a_neighbor(hosts):
    assert fetched(hosts) - 1000 in range(hosts.progress[1] + 2)
    assert not any(hosts.refused)


@on(IPC)
def test_a_model_that_is_not_given_away_is_not_sent_and_the_request_is_counted(hosts):
    assert fetched(hosts) is None
    assert list(hosts.refused) == [0, 1, 0, 0]


def fetched(hosts):
    """What rank 3 gets of rank 1 when it is started again."""
    hosts.wait_for(0, 5)
    hosts.signal(3, signal.SIGKILL)
    hosts.running.pop(3)[0].join()
    receiving, sending = FORK.Pipe(duplex=False)
    asker = FORK.Process(target=request_a_model, args=(hosts, sending))
    asker.start()
    try:
        assert receiving.poll(LIMIT)
        return receiving.recv()
    finally:
        asker.kill()
        asker.join()


def request_a_model(hosts, pipe):
    sockets.PROPOSAL_INTERVAL = 0.05
    place = ProcessDirectory(hosts.processes, 3, str(hosts.directory / "0"), 0.3, incarnation=1)
    communication = hosts.case.communication(hosts.base_port)
    communication.prepare(place, 1 << 20)
    communication.endpoint(3, MEMORY)
    communication.open([0, 1, 2], RUN_ID, 10.0)
    model = communication.fetch(3, 1, 10.0 if hosts.gives else 1.0)
    assert model is None or model.dtype == MEMORY.vector_dtype
    pipe.send(None if model is None else int(model.unique().item()))
    communication.close(0.5)
