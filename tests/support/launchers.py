"""The rendezvous of the launchers of several machines, each in a thread of the test."""

import time
from concurrent.futures import Future, ThreadPoolExecutor

from msgspec.structs import replace

from decentnode.config.settings import FailureSettings
from decentnode.launcher.cluster.channel import LauncherChannel
from decentnode.launcher.cluster.place import is_listening
from decentnode.launcher.cluster.rendezvous import Rendezvous
from decentnode.launcher.state.messages import Join, RelayedReports
from decentnode.mapping.base import Linear, Machine, tcp_endpoint
from tests.support.processes import free_ports


def mapping_of(count, nodes=2):
    """Returns a mapping of as many machines, each with an address of the loopback."""
    machines = tuple(Machine(f"127.0.0.{i + 1}", nodes) for i in range(count))
    return Linear(machines, free_ports(1))


def join_of(machine, **changes):
    """Returns the message with which a machine comes to the rendezvous."""
    return replace(Join(machine, "0.2.0", "d" * 64, "e" * 64), **changes)


class LauncherThreads:
    """Launchers of the machines of a mapping, each in a thread, until one context ends.

    `keys`: the credentials of the machines, where links are guarded.
    """

    def __init__(self, count, start="all", grace=0.0, allow_different_code=False, nodes=2, keys=()):
        self.mapping, self.keys = mapping_of(count, nodes), keys
        self.failures = FailureSettings(start=start, grace=grace, allow_different_code=allow_different_code)
        self.endpoint = tcp_endpoint("127.0.0.1", self.mapping.rendezvous_port)
        """Where machine 0 receives."""
        self.rendezvous_of: dict[int, Rendezvous] = {}
        self._pool = ThreadPoolExecutor(count)

    def start(
        self, machine, deadline=10.0, is_stopped=lambda: False, handshakes=None, keys=None, endpoint=None,
        **changes,
    ) -> Future:  # fmt: skip
        """Starts the rendezvous of a machine; the future gives what was agreed on.

        `endpoint`: where it looks for machine 0; `changes`: of the message with which it comes.
        """
        guard = keys or (self.keys[machine] if self.keys else None)
        rendezvous = Rendezvous(self.mapping, machine, join_of(machine, **changes), guard, self.failures)
        if endpoint is not None:
            rendezvous.endpoint = lambda other: endpoint
        self.rendezvous_of[machine] = rendezvous
        return self._pool.submit(rendezvous.meet, handshakes or {}, deadline, is_stopped)

    def meet(self):
        """Starts all machines and waits until they have met; returns the rendezvous of each."""
        for future in [self.start(machine) for machine in range(len(self.mapping.machines))]:
            future.result(10.0)
        return self.hear_all()

    def hear_all(self):
        """Waits until each has heard each, so what they asked before the start is read; returns all."""
        launchers = [self.rendezvous_of[machine] for machine in range(len(self.mapping.machines))]
        for launcher in launchers:
            for other in launchers:
                if other is not launcher:
                    launcher.send(RelayedReports(launcher.machine, []), other.machine)
        for launcher in launchers:
            heard, limit = {launcher.machine}, time.monotonic() + 10.0
            while len(heard) < len(launchers) and time.monotonic() < limit:
                messages = launcher.receive(timeout=0.1)
                heard |= {message.machine for message in messages if isinstance(message, RelayedReports)}
            assert len(heard) == len(launchers), f"machine {launcher.machine} has heard {heard} alone"
        return launchers

    def channel(self, machine, keys=None, bound=""):
        """Returns the sockets of another launcher of a machine, or of whoever says that it is one."""
        bound = bound or f"tcp://{self.mapping.address(machine)}:*"
        endpoint = Rendezvous(self.mapping, machine, join_of(machine)).endpoint
        return LauncherChannel(endpoint, bound, machine, keys or (self.keys[machine] if self.keys else None))

    def kill(self, machine, gone):
        """Ends a machine, which `gone` stops, without a word to the others."""
        rendezvous = self.rendezvous_of[machine]
        rendezvous._send_end = lambda *_: rendezvous.close()
        gone.set()

    def wait_for(self, machine):
        """Waits until machine 0 knows that this one has come."""
        host, limit = self.rendezvous_of[0], time.monotonic() + 10.0
        while machine not in host._joins and time.monotonic() < limit:
            time.sleep(0.01)

    def wait_until_listening(self):
        """Waits until machine 0 can be asked: its thread binds the port."""
        address, limit = self.mapping.address(0), time.monotonic() + 10.0
        while not is_listening(address, self.mapping.rendezvous_port) and time.monotonic() < limit:
            time.sleep(0.01)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._pool.shutdown()
        for rendezvous in self.rendezvous_of.values():
            rendezvous.close()
