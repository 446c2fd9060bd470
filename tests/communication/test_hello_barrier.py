"""How a process that was started again meets the others when a greeting is lost or a machine is silent."""

import contextlib
import math
import socket
import tempfile
import threading
import time

import pytest

from decentnode.communication.base import BufferSpec, HostProcess, ProcessDirectory
from decentnode.communication.interceptor import MessageInterceptor
from decentnode.communication.wire import Kind
from decentnode.communication.zeromq import hello_barrier
from decentnode.communication.zeromq.plugin import ZeroMQ
from decentnode.core.timeouts import Timeouts
from decentnode.errors import StartError
from tests.support.processes import RUN_ID, free_ports

MEMORY = BufferSpec(10, payload_bytes=128)


class FirstHelloLost(MessageInterceptor):
    next_release = math.inf

    def __init__(self):
        self.lost = 0

    def filter_messages(self, message, now):
        if message[0][0].bytes[6] == Kind.HELLO and not self.lost:
            self.lost += 1
            return []
        return [message]

    def released(self, now):
        return []


@pytest.fixture
def host():
    """Makes the transport of a process; all are closed in the end."""
    with contextlib.ExitStack() as stack:

        def make(processes, own, incarnation=0, interceptor=None, base_port=29600):
            directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="dn-"))
            if processes[0].machine == processes[-1].machine:
                directory = shared
            transport = ZeroMQ("ipc", base_port)
            transport.prepare(
                ProcessDirectory(processes, own, directory, 0.3, incarnation, interceptor=interceptor),
                1 << 16,
            )
            transport.endpoint(own, MEMORY)
            stack.callback(transport.close, 0.0)
            return transport

        shared = stack.enter_context(tempfile.TemporaryDirectory(prefix="dn-"))
        yield make


@pytest.mark.parametrize("incarnation", [0, 1])
@pytest.mark.parametrize("loses", [0, 1])
def test_a_hello_that_was_lost_is_resent(host, loses, incarnation, monkeypatch):
    """Of the one that comes later, or of the one that is there already and hears it."""
    monkeypatch.setattr(hello_barrier, "HELLO_INTERVAL", 0.1)
    pair = tuple(HostProcess(0, i, (i,), "127.0.0.1") for i in range(2))
    sieves = [FirstHelloLost() if rank == loses else None for rank in range(2)]
    there = host(pair, 1, interceptor=sieves[1])
    there.open([], RUN_ID, 5.0)
    host(pair, 0, incarnation, sieves[0]).open([1], RUN_ID, 5.0)
    assert sieves[loses].lost == 1


def test_a_loss_ends_the_wait_at_the_barrier_at_once(host, monkeypatch):
    """Not only when a silent process is greeted again."""
    monkeypatch.setattr(hello_barrier, "HELLO_INTERVAL", 60.0)
    pair = tuple(HostProcess(0, i, (i,), "127.0.0.1") for i in range(2))
    thread = host(pair, 0).io_thread
    thread.start()
    waiter = threading.Thread(target=thread.hello_barrier.wait, args=({1}, 60.0, lambda process: None))
    waiter.start()
    limit = time.monotonic() + 5.0
    while not thread.hello_barrier._changed._waiters and time.monotonic() < limit:
        time.sleep(0.001)
    thread.sockets.links.lost.add(1)
    thread.sockets.post(lambda: thread._lose_process(1))
    waiter.join(20.0)
    assert not waiter.is_alive()


@pytest.fixture
def machines():
    """Three machines, of which the last one drops all packets, and their base port."""
    base_port = free_ports(1)
    with contextlib.ExitStack() as stack:
        full = stack.enter_context(socket.socket())
        full.bind(("127.0.0.3", base_port))
        full.listen(0)
        for _ in range(4):
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                waiting.connect(("127.0.0.3", base_port))
        time.sleep(0.2)
        yield tuple(HostProcess(m, 0, (m,), f"127.0.0.{m + 1}") for m in range(3)), base_port


def test_who_rejoins_continues_without_a_machine_that_is_silent(host, machines, monkeypatch):
    monkeypatch.setattr(Timeouts, "rejoin_answer", 0.5)
    processes, base_port = machines
    host(processes, 1, base_port=base_port).open([], RUN_ID, 5.0)
    back = host(processes, 0, incarnation=1, base_port=base_port)
    back.open([1, 2], RUN_ID, 5.0)
    assert back.rejoin({0: [1, 2]}, 10.0) == 0


def test_who_rejoins_continues_only_when_somebody_answers(host, machines):
    processes, base_port = machines
    back = host(processes, 0, incarnation=1, base_port=base_port)
    with pytest.raises(StartError, match=r"^rank 0: no hello from ranks \[2\] within 1 s$"):
        back.open([2], RUN_ID, 0.6)


def test_a_machine_that_drops_packets_is_found_out_like_one_that_refuses(host, machines, monkeypatch):
    monkeypatch.setattr(Timeouts, "connect", 0.5)
    processes, base_port = machines
    own_transport = host(processes, 0, base_port=base_port)
    own_transport.open([2], RUN_ID, 8.0)
    # One event: no record is made of a rank before somebody asks for it.
    assert not own_transport.sockets.peers_by_rank[0]
    where = f"127.0.0.3:{base_port}"
    assert str(own_transport.sockets.peers_by_rank[0][2].error) == f"rank 2: never connected to {where}"
