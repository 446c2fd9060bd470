"""The meetings of the processes of a simulation."""

import threading
import time
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from decentnode.communication.base import BufferSpec, HostProcess, ProcessDirectory
from decentnode.communication.launcher_link.heartbeats import HeartbeatBoard
from decentnode.communication.peers.peers import PeersByRank
from decentnode.communication.simulated_processes import OtherProcesses
from decentnode.core.payload import Field, Layout, Payload
from decentnode.core.timeouts import Timeouts
from decentnode.errors import StartError
from decentnode.simulation.clock import SECOND, VirtualClock
from decentnode.simulation.network import Network

LATENCY = 0.25


def processes(tmp_path, **options):
    """Two processes of a node each, which have not met."""
    hosts = tuple(HostProcess(0, rank, (rank,), "127.0.0.1") for rank in range(2))
    unlimited = np.full(2, np.inf)
    network = Network("fair", np.full((2, 2), LATENCY), unlimited, unlimited)
    made = [
        OtherProcesses(
            ProcessDirectory(hosts, own, str(tmp_path), **options), PeersByRank(), network, VirtualClock()
        )
        for own in range(2)
    ]
    for own, others in enumerate(made):
        others.slots(own, BufferSpec(4))
        others.endpoint = SimpleNamespace(heartbeat=HeartbeatBoard([own]).of(own))
    return made


def in_thread(call, *args):
    thread = threading.Thread(target=call, args=args, daemon=True)
    thread.start()
    return thread


@pytest.mark.parametrize("waiting", [0, 1])
def test_a_process_that_waits_for_another_one_shows_that_it_lives(tmp_path, monkeypatch, waiting):
    """The other one may compute for minutes: the launcher would end the one that waits.

    The first of two waits in sending what no socket has room for, the second in receiving.
    """
    monkeypatch.setattr(Timeouts, "busy_beat", 0.005)
    made = processes(tmp_path)
    opening = in_thread(made[0].open, 5.0)
    made[1].open(5.0)
    opening.join(5.0)
    layout = Layout((Field("large", torch.uint8, 4 << 20),))
    made[0].send(0, Payload(layout, torch.zeros(4 << 20, dtype=torch.uint8)), [1], (0, 0, 0), 1)
    meeting = in_thread(made[waiting].meet, 7)
    heartbeat, limit = made[waiting].endpoint.heartbeat, time.monotonic() + 5.0
    before = heartbeat.marks
    while heartbeat.marks < before + 2:
        assert meeting.is_alive() and time.monotonic() < limit
    assert made[1 - waiting].meet(9) == 7 + LATENCY * SECOND
    meeting.join(5.0)
    assert not meeting.is_alive()


def test_a_process_that_is_started_again_is_refused(tmp_path):
    with pytest.raises(StartError, match="cannot go on with a process started again"):
        processes(tmp_path, incarnation=1)
