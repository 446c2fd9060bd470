"""What a machine must offer before a run starts there: free ports, enough open files, keys for its links."""

import errno
import resource
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import zmq

from decentnode import keys
from decentnode.communication.security import OLDEST_LIBZMQ, Credentials
from decentnode.communication.torch_distributed import TorchDistributed
from decentnode.communication.zeromq import ZeroMQ
from decentnode.coupling import Coupling
from decentnode.errors import BadInput
from decentnode.graph.base import Graph
from decentnode.mapping import Mapping, is_loopback
from decentnode.settings import KeyFolder, Settings

FILES_PER_PROCESS = 64
FILES_PER_NEIGHBOR = 7
"""What a host process opens for each: two connections, three for link and monitor, a segment, a pipe."""
FIRST_FREE_FOR_ALL = 1024
"""Lower ports belong to root."""
KEY_FOLDER = "keys"
_REASONS = {errno.EADDRINUSE: "is in use", errno.EACCES: "may be bound by root only"}


@dataclass(frozen=True)
class Ports:
    """TCP ports that one machine binds before the start, one after the other, and the key they come from."""

    address: str
    first: int
    count: int
    key: str

    def defect(self) -> str:
        """What is wrong with the first port that cannot be bound; empty when all can."""
        for port in range(self.first, self.first + self.count):
            error = bind_error(self.address, port)
            if error is not None:
                return self._explain(port, error)
        return ""

    def _explain(self, port: int, error: OSError) -> str:
        reason = _REASONS.get(error.errno or 0, f"cannot be bound: {error.strerror}")
        if error.errno == errno.EADDRNOTAVAIL or isinstance(error, socket.gaierror):
            return f"mapping: {self.address} is no address of this host; correct it, or say machine=K"
        last = self.first + self.count - 1
        needed = f"the ports {self.first}..{last} are" if self.count > 1 else "it is"
        remedy = f"{needed} needed, so name others: {self.key}={max(port + self.count, FIRST_FREE_FOR_ALL)}"
        return f"{self.key}: port {port} at {self.address} {reason}; {remedy}"


def ports_needed(settings: Settings, machine: int) -> list[Ports]:
    """The TCP ports that `machine` will bind; none for a run on one machine over shared memory or ipc."""
    mapping: Mapping = settings.mapping.make()
    address, several = mapping.address(machine), len(mapping.machines) > 1
    coupling: Coupling = settings.coupling.make()
    needed = []
    if several and machine == 0:
        needed.append(Ports(address, mapping.rendezvous_port, 1, "mapping.rendezvous_port"))
    if several and coupling.port is not None and machine == mapping.machine_of(0):
        needed.append(Ports(address, coupling.port, 1, "training.port"))
    communication = settings.communication.make()
    if isinstance(communication, ZeroMQ) and (several or communication.local == "tcp"):
        nodes = len(mapping.ranks_of(machine))
        processes = -(-nodes // communication.nodes_in_one_process(nodes))
        needed.append(Ports(address, communication.base_port, processes, "communication.base_port"))
        if isinstance(communication, TorchDistributed) and several:
            needed.append(Ports(address, communication.group_port, nodes, "communication.group_port"))
    return needed


def check_group(settings: Settings, machine: int) -> None:
    """Raises BadInput, in one line, when this machine cannot take part in the process group."""
    communication, ranks = settings.communication.make(), settings.mapping.make().ranks_of(machine)
    group = communication if isinstance(communication, TorchDistributed) else None
    if group is not None and (defect := group.defect(settings.device, ranks)):
        raise BadInput(f"communication.backend: {defect}")
    coupling: Coupling = settings.coupling.make()
    if defect := coupling.defect(settings.device, len(ranks)):
        raise BadInput(f"training.backend: {defect}")


def check_ports(settings: Settings, machine: int) -> None:
    """Raises BadInput with one line for each key whose ports are not free."""
    defects = [defect for ports in ports_needed(settings, machine) if (defect := ports.defect())]
    if defects:
        raise BadInput(*defects)


def bind_error(address: str, port: int) -> OSError | None:
    """Why a TCP port cannot be bound; None when it can."""
    try:
        family, kind, protocol, _, target = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            # As ZeroMQ binds: a port that is only waiting for old connections to die out is free.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(target)
    except OSError as error:
        return error
    return None


def files_needed(graph: Graph, ranks: Sequence[int], nodes_per_process: int) -> int:
    """About how many files the fullest host process of these ranks opens."""
    groups = [ranks[i : i + nodes_per_process] for i in range(0, len(ranks), nodes_per_process)]
    links = max(sum(len(graph.partners(rank)) for rank in group) for group in groups)
    return FILES_PER_PROCESS + FILES_PER_NEIGHBOR * links


def raise_file_limit() -> int:
    """Lifts the limit of open files to what the system allows this user, and returns it."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard


def file_shortage(settings: Settings, machine: int) -> str:
    """One line where this machine's limit of open files is too low for its nodes; else empty."""
    communication = settings.communication.make()
    if communication.one_process:
        return ""
    ranks = settings.mapping.make().ranks_of(machine)
    size = communication.nodes_in_one_process(len(ranks))
    needed, limit = files_needed(settings.graph.make(), ranks, size), raise_file_limit()
    if limit >= needed:
        return ""
    return (
        f"open files: a process here needs about {needed}, the limit is {limit}; "
        f"raise it as root (ulimit -n {needed}), or take a sparser graph"
    )


def needs_keys(settings: Settings) -> bool:
    """Whether others on the network could reach this run's ports."""
    mapping: Mapping = settings.mapping.make()
    used = any(ports_needed(settings, machine) for machine in range(len(mapping.machines)))
    return used and not all(is_loopback(machine.address) for machine in mapping.machines)


def keys_beside(settings: Settings, folder: Path) -> Literal["auto", "none"] | KeyFolder:
    """`settings.security`, where `auto` has found the keys that it needs beside the configuration."""
    found = folder / KEY_FOLDER
    wanted = settings.security == "auto" and found.exists() and needs_keys(settings)
    return KeyFolder(found) if wanted else settings.security


def credentials(settings: Settings, machine: int) -> Credentials | None:
    """What guards the links of `machine`; None where they are plain. Raises BadInput, in one line."""
    if isinstance(settings.security, KeyFolder):
        if zmq.zmq_version_info() < OLDEST_LIBZMQ or not zmq.has("curve"):
            raise BadInput(f"security: libzmq {zmq.zmq_version()} cannot guard links; install pyzmq 26")
        return keys.load_credentials(settings.security.keys, machine, len(settings.mapping.make().machines))
    if settings.security == "auto" and needs_keys(settings):
        raise BadInput(
            f"security: others on the network could reach this run, and there is no folder '{KEY_FOLDER}' "
            f"beside the configuration; run: {keys.MAKE}, or write security: none"
        )
    return None
