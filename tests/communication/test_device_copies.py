"""Nodes on a GPU keep every promise of the transports; without one, copies here end as late as they may."""

from dataclasses import replace

import pytest
import torch

from decentnode.communication.device.copies import HostCopies
from decentnode.communication.device.staging import DeviceStaging
from tests.communication.test_communications import (  # noqa: F401
    MEMORY,
    NODES,
    everything,
    test_a_payload_of_no_bytes_arrives,
    test_bytes_are_counted_by_the_formula_on_every_transport,
    test_closing_is_quick_and_leaves_nothing_behind,
    test_every_exchange_brings_the_vectors_of_its_sources_unchanged,
    test_every_neighbor_can_get_its_own_payload,
    test_payloads_of_any_length_arrive,
)
from tests.support.processes import INPROC, MACHINES, TransportCase, run_nodes


class LateCopies(HostCopies):
    """Copies nothing before somebody waits, and reads again what was copied when its memory is given back."""

    def __init__(self):
        self._waiting, self._reading = [], []

    def begin(self, target, source):
        self._waiting.append((target, source))

    def join(self):
        for target, source in self._waiting:
            target.copy_(source)
            self._reading.append((target.clone(), source))
        self._waiting.clear()

    def finish(self):
        self.join()
        for copy, source in self._reading:
            assert torch.equal(copy, source), "written while it was copied"
        self._reading.clear()


class Wrapped(TransportCase):
    """A case whose nodes have their vectors behind copies."""

    def communication(self, base_port=29600):
        made = super().communication(base_port)
        plain = made.endpoint
        made.endpoint = lambda rank, memory: DeviceStaging(plain(rank, memory), memory, LateCopies())
        return made


class OnGpu(TransportCase):
    """A case whose nodes share a real GPU."""

    def communication(self, base_port=29600):
        made = super().communication(base_port)
        plain, on_gpu = made.endpoint, replace(MEMORY, device=torch.device("cuda", 0))
        made.endpoint = lambda rank, memory: DeviceStaging(plain(rank, memory), on_gpu)
        torch.ones(1, device=on_gpu.device)  # The driver opens its files before they are counted.
        return made


# Forked nodes first: a process that has used CUDA cannot fork nodes that use it.
TRANSPORT_CASES = [
    pytest.param((OnGpu, MACHINES), marks=pytest.mark.gpu, id="two machines, on a GPU"),
    pytest.param((OnGpu, INPROC), marks=pytest.mark.gpu, id="inproc, on a GPU"),
    pytest.param((Wrapped, INPROC), id="inproc"),
    pytest.param((Wrapped, MACHINES), id="two machines"),
]


@pytest.fixture(scope="module", params=TRANSPORT_CASES)
def outcomes(request):
    kind, case = request.param
    return run_nodes(
        kind(case.name, case.local, case.nodes_per_process, case.machines), NODES, everything, MEMORY
    )
