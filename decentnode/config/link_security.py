"""What other hosts on the network can reach: the ports that a run binds, and whether its links need keys."""

import errno
import os
import socket
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from decentnode.communication.base import Communication
from decentnode.communication.security.job_secret import VARIABLE, read_secret
from decentnode.config.settings import KeyFolder, SecretFile, Settings
from decentnode.errors import Defect
from decentnode.graph.base import Graph
from decentnode.mapping.base import Mapping, is_loopback
from decentnode.training.gradient_sync import GradientSync

FIRST_FREE_FOR_ALL = 1024
"""The first port that any user may bind; lower ones are for root."""


KEY_FOLDER = "keys"


_REASONS = {errno.EADDRINUSE: "is in use", errno.EACCES: "may be bound by root only"}


@dataclass(frozen=True)
class Ports:
    """Consecutive TCP ports that one machine binds before the start, and the key that sets them."""

    address: str
    first: int
    count: int
    key: str
    machine: int = field(default=0, compare=False)

    def defects(self) -> Iterator[Defect]:
        """Yields the defect of the first port that cannot be bound."""
        for port in range(self.first, self.first + self.count):
            error = bind_error(self.address, port)
            if error is not None:
                yield self._explain(port, error)
                return

    def _explain(self, port: int, error: OSError) -> Defect:
        reason = _REASONS.get(error.errno or 0, f"cannot be bound: {error.strerror}")
        if error.errno == errno.EADDRNOTAVAIL or isinstance(error, socket.gaierror):
            return Defect.at(
                "mapping",
                f"{self.address} is no address of this host, which is machine {self.machine}",
                "correct either, or add where it listens behind NAT, as listen: 0.0.0.0",
            )
        last = self.first + self.count - 1
        needed = f"the ports {self.first}..{last} are" if self.count > 1 else "it is"
        remedy = f"{needed} needed, so name others: {self.key}={max(port + self.count, FIRST_FREE_FOR_ALL)}"
        return Defect.at(self.key, f"port {port} at {self.address} {reason}", remedy)


def ports_needed(settings: Settings, machine: int) -> list[Ports]:
    """Returns the TCP ports that `machine` will bind; none on one machine over shared memory or ipc."""
    mapping: Mapping = settings.mapping.make()
    address, several = mapping.machines[machine].bound, len(mapping.machines) > 1
    gradient_sync: GradientSync = settings.training.gradient_sync.make()
    needed = []
    if several:
        needed.append(
            Ports(address, mapping.rendezvous_port, 1, key="mapping.rendezvous_port", machine=machine)
        )
    if several and gradient_sync.port is not None and machine == mapping.machine_of(0):
        needed.append(Ports(address, gradient_sync.port, 1, key="training.port", machine=machine))
    graph: Graph = settings.graph.make()
    if machine == 0 and (port := graph.service_port(len(mapping.machines))) is not None:
        needed.append(Ports(address, port, 1, key="graph.port", machine=machine))
    communication: Communication = settings.communication.make()
    return needed + [
        Ports(address, ports.start, len(ports), key=f"communication.{option}", machine=machine)
        for option, ports in communication.plan.ports(len(mapping.ranks_of(machine)), several).items()
    ]


def bind_error(address: str, port: int) -> OSError | None:
    """Returns why a TCP port cannot be bound; None when it can."""
    try:
        family, kind, protocol, _, target = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            # As ZeroMQ binds: a port on which only old connections time out is free.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(target)
    except OSError as error:
        return error
    return None


def needs_keys(settings: Settings) -> bool:
    """Whether other hosts on the network could reach this run's ports."""
    mapping: Mapping = settings.mapping.make()
    used = any(ports_needed(settings, machine) for machine in range(len(mapping.machines)))
    addresses = {address for machine in mapping.machines for address in (machine.address, machine.bound)}
    return used and not all(map(is_loopback, addresses))


def secret_of(settings: Settings) -> bytes | None:
    """Returns the secret that all machines of the job have; None: there is none. Raises BadInput."""
    if settings.security == "environment":
        return read_secret(None)
    return read_secret(settings.security.secret) if isinstance(settings.security, SecretFile) else None


def keys_in_folders(
    settings: Settings, folders: Sequence[Path]
) -> Literal["auto", "none", "environment"] | KeyFolder | SecretFile:
    """Returns `settings.security`, with `auto` replaced by what is there if links need it.

    That is a secret in the environment, or else the keys beside the configuration. `folders`: those of the
    configuration and of the files that it extends; the first with keys counts.
    """
    if settings.security == "auto" and os.environ.get(VARIABLE) and needs_keys(settings):
        return "environment"
    found = next((folder / KEY_FOLDER for folder in folders if (folder / KEY_FOLDER).exists()), None)
    wanted = settings.security == "auto" and found is not None and needs_keys(settings)
    return KeyFolder(found) if found is not None and wanted else settings.security
