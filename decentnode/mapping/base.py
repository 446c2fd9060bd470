"""Which machine runs which rank, and how a machine finds itself in the list.

rank <-> (machine, local_rank) is a bijection that every process computes by itself from the settings.
"""

import ipaddress
import re
import socket
import threading
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import Annotated

from pydantic import AfterValidator

from decentnode.core.clock import Clock
from decentnode.core.registry import MAPPINGS
from decentnode.core.timeouts import Timeouts
from decentnode.errors import Defect, MappingError, refuse
from decentnode.mapping.job import SchedulerJob
from decentnode.options import Port, Positive

_LABEL = re.compile(r"(?!-)[A-Za-z0-9_-]{1,63}(?<!-)")
_NOWHERE = ".invalid"
_IP = ipaddress.IPv4Address | ipaddress.IPv6Address

Resolve = Callable[[Sequence[str]], dict[str, list[str]]]
"""IP addresses by name; an empty list for an unknown name."""


def check_address(address: str) -> str:
    """The address itself when it is an IPv4 or IPv6 address or a host name; otherwise raises ValueError."""
    ip = _ip(address)
    if ip is None:
        _check_name(address)
    elif ip.is_unspecified or ip.is_multicast:
        raise ValueError(f"'{address}' is not the address of one machine; give the one that the others reach")
    return address


def check_listen(address: str) -> str:
    """Checks an address that this machine binds; 0.0.0.0 and :: stand for all its addresses."""
    return address if is_unspecified(address) else check_address(address)


def _check_name(name: str) -> None:
    wanted = "give an IPv4 or IPv6 address or a host name"
    if name.startswith("[") or name.count(":") > 1:
        raise ValueError(f"'{name}' is not an IPv6 address; write it bare, such as fd00::1")
    if ":" in name:
        raise ValueError(f"'{name}' is more than an address; {wanted} without protocol and port")
    labels = name.removesuffix(".").split(".")
    valid = len(name) <= 253 and all(map(_LABEL.fullmatch, labels))
    if not valid or labels[-1].isdigit():
        raise ValueError(f"'{name}' is not an address; {wanted}")


def _ip(address: str) -> _IP | None:
    try:
        return ipaddress.ip_address(address)
    except ValueError:
        return None


def normal(address: str) -> str:
    """Returns one spelling for addresses that mean the same."""
    ip = _ip(address)
    return str(ip) if ip else address.lower().removesuffix(".")


def is_ip(address: str) -> bool:
    """Whether the address is no host name."""
    return _ip(address) is not None


def is_loopback(address: str) -> bool:
    """Whether the address means this host on every host."""
    ip = _ip(address)
    return ip.is_loopback if ip else normal(address) == "localhost"


def placeholder(machine: int) -> str:
    """What stands for the address of a machine until it is known: a name that nobody can have (RFC 2606)."""
    return f"machine-{machine}{_NOWHERE}"


def is_placeholder(address: str) -> bool:
    """Whether nobody knows the address yet."""
    return address.endswith(_NOWHERE)


def is_unspecified(address: str) -> bool:
    """Whether the address stands for all of a host."""
    ip = _ip(address)
    return ip is not None and ip.is_unspecified


Address = Annotated[str, AfterValidator(check_address)]
ListenAddress = Annotated[str, AfterValidator(check_listen)]


@dataclass(frozen=True)
class Machine:
    """One host: its address for other machines, and its number of nodes."""

    address: Address
    nodes: Positive
    listen: ListenAddress | None = None
    """The address that its ports are bound to, if no interface has `address` (NAT); 0.0.0.0: all."""

    @property
    def bound(self) -> str:
        """The address that its ports are bound to."""
        return self.listen or self.address

    @property
    def own(self) -> str:
        """The address at which the machine reaches itself, which NAT may not do at `address`."""
        everywhere = {"0.0.0.0": "127.0.0.1", "::": "::1"}
        return everywhere.get(normal(self.bound), self.bound)


class Mapping(ABC):
    """The bijection rank <-> (machine, local_rank)."""

    machines: tuple[Machine, ...]
    rendezvous_port: int
    """The port of each machine's launcher; the rendezvous is at that of machine 0."""

    @abstractmethod
    def ranks_of(self, machine: int) -> Sequence[int]:
        """The ranks of a machine, by local_rank."""

    @abstractmethod
    def machine_of(self, rank: int) -> int:
        """The index of the machine that runs `rank`."""

    @property
    def job(self) -> SchedulerJob | None:
        """The job of torchrun or Slurm whose machines take part; None: the configuration lists them."""
        return None

    @property
    def origin(self) -> str:
        """The origin of the list of machines, such as torchrun; empty: the configuration."""
        return ""

    @property
    def num_nodes(self) -> int:
        """The number of nodes of all machines."""
        return sum(machine.nodes for machine in self.machines)

    def local_rank(self, rank: int) -> int:
        """The index of `rank` on its machine."""
        return self.ranks_of(self.machine_of(rank)).index(rank)

    def rank(self, machine: int, local_rank: int) -> int:
        """The inverse of `machine_of` and `local_rank`."""
        return self.ranks_of(machine)[local_rank]

    def address(self, machine: int) -> str:
        """The address at which other machines reach this one."""
        return self.machines[machine].address

    def describe(self, machine: int) -> str:
        """Returns `machine 2 (10.0.0.3, ranks 6-7)`."""
        ranks = self.ranks_of(machine)
        span = f"{ranks[0]}-{ranks[-1]}" if len(ranks) > 1 else f"{ranks[0]}"
        return f"machine {machine} ({self.address(machine)}, ranks {span})"

    def find_machine(
        self, is_own: Callable[[str], bool] | None = None, resolve: Resolve | None = None
    ) -> int:
        """The index of this host, found by its own addresses; raises MappingError unless exactly one fits."""
        if len(self.machines) == 1 and is_loopback(self.address(0)):
            return 0
        fitting, resolved = self._fitting(is_own, resolve)
        if len(fitting) == 1:
            return fitting[0]
        raise MappingError(self._not_one(fitting, resolved))

    def machines_here(
        self, is_own: Callable[[str], bool] | None = None, resolve: Resolve | None = None
    ) -> list[int]:
        """The indices of all machines with an address of this host; raises MappingError for unknown names."""
        return self._fitting(is_own, resolve)[0]

    def _fitting(
        self, is_own: Callable[[str], bool] | None, resolve: Resolve | None
    ) -> tuple[list[int], dict[str, list[str]]]:
        # A machine behind NAT has the address that it listens at; one that does not say which is not found.
        names = [machine.bound for machine in self.machines]
        is_local, resolved = is_own or is_own_address, (resolve or resolve_names)(names)
        self._refuse_unresolved(resolved)
        fitting = [
            i
            for i, machine in enumerate(self.machines)
            if any(is_local(ip) for ip in resolved[machine.bound] if not is_unspecified(ip))
        ]
        return fitting, resolved

    def check_reachable(self, resolve: Resolve | None = None) -> None:
        """Raises MappingError for a loopback address among those of other hosts."""
        if len(self.machines) == 1:
            return
        resolved = (resolve or resolve_names)([machine.address for machine in self.machines])
        known = [resolved[machine.address] for machine in self.machines]
        remote = next((i for i, ips in enumerate(known) if ips and not all(map(is_loopback, ips))), None)
        if remote is None:
            return
        unreachable = (
            Defect.at(
                "mapping",
                f"machine {i} has a loopback address, {_with_ip(self.address(i), ips)}, which machine "
                f"{remote} ({self.address(remote)}) cannot reach",
                "give one that it can (`hostname -I` shows them)",
            )
            for i, ips in enumerate(known)
            if ips and all(map(is_loopback, ips))
        )
        refuse(unreachable, MappingError)

    def _refuse_unresolved(self, resolved: dict[str, list[str]]) -> None:
        unknown = (
            Defect(
                ("mapping", "machines", i, "listen" if machine.listen else "address"),
                f"no address is known for the name '{machine.bound}'",
                "correct it, or give an IP address",
            )
            for i, machine in enumerate(self.machines)
            if not resolved[machine.bound]
        )
        refuse(unknown, MappingError)

    def _not_one(self, fitting: list[int], resolved: dict[str, list[str]]) -> Defect:
        shown = fitting or range(len(self.machines))
        bound = {i: self.machines[i].bound for i in shown}
        listed = ", ".join(f"{i}: {_with_ip(address, resolved[address])}" for i, address in bound.items())
        if fitting:
            problem, remedy = "several machines have", "name one: machine=K"
        else:
            problem, remedy = "no machine has", "correct it, or add machine=K"
        return Defect.at("mapping", f"{problem} an address of this host ({listed})", remedy)


class Consecutive(Mapping):
    """Ranks in the order of the machines."""

    @cached_property
    def _starts(self) -> list[int]:
        return [0, *accumulate(machine.nodes for machine in self.machines)]

    def ranks_of(self, machine: int) -> range:
        return range(self._starts[machine], self._starts[machine + 1])

    def machine_of(self, rank: int) -> int:
        if not 0 <= rank < self.num_nodes:
            raise IndexError(f"rank {rank} is outside 0..{self.num_nodes - 1}")
        return bisect_right(self._starts, rank) - 1


@MAPPINGS.register("linear")
@dataclass(frozen=True)
class Linear(Consecutive):
    """Ranks in the order of the machines and their numbers of nodes (Dhasade et al., 2023, Section 3)."""

    machines: tuple[Machine, ...]
    rendezvous_port: Port = 29500
    """The port of each machine's launcher; a run on one machine does not open it."""

    def __post_init__(self) -> None:
        if not self.machines:
            raise MappingError.at(
                "machines", "the list is empty; give at least one {address: ..., nodes: ...}"
            )
        first: dict[str, int] = {}
        twice = (
            Defect(
                ("machines", i),
                f"{machine.address} is the address of machines[{first[name]}] too",
                "give each machine its own, or one entry with all its nodes",
            )
            for i, machine in enumerate(self.machines)
            if first.setdefault(name := normal(machine.address), i) != i
        )
        refuse(twice, MappingError)


def is_own_address(ip: str) -> bool:
    """Whether an interface of this host has that address: only then a socket can be bound to it."""
    family = socket.AF_INET6 if ":" in ip else socket.AF_INET
    try:
        target = socket.getaddrinfo(ip, 0, family, socket.SOCK_DGRAM, 0, socket.AI_NUMERICHOST)[0][4]
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.bind(target)
    except OSError:
        return False
    return True


def resolve_names(names: Sequence[str], seconds: float | None = None) -> dict[str, list[str]]:
    """The IP addresses of all names, looked up in parallel; empty for names not resolved in time.

    `seconds`: the limit; None: `Timeouts.name_lookup`.
    """
    resolved: dict[str, list[str]] = {name: [name] if _ip(name) else [] for name in names}
    arrived: dict[str, list[str]] = {}

    def look_up(name: str) -> None:
        try:
            answers = socket.getaddrinfo(name, None, type=socket.SOCK_DGRAM)
        except (OSError, UnicodeError):
            answers = []
        arrived[name] = list(dict.fromkeys(str(answer[4][0]) for answer in answers))

    # Daemon threads, because a resolver that hangs cannot be interrupted and must not delay the exit.
    unknown = [name for name in resolved if not _ip(name)]
    threads = [threading.Thread(target=look_up, args=(name,), daemon=True) for name in unknown]
    for thread in threads:
        thread.start()
    clock = Clock()
    deadline = clock.now() + (Timeouts.name_lookup if seconds is None else seconds)
    for thread in threads:
        thread.join(max(0.0, deadline - clock.now()))
    return resolved | arrived.copy()


def _with_ip(name: str, addresses: list[str]) -> str:
    return name if addresses == [name] else f"{name} ({', '.join(addresses)})"


def tcp_endpoint(address: str, port: int) -> str:
    """The ZeroMQ endpoint of an address, with brackets around IPv6."""
    return f"tcp://[{address}]:{port}" if ":" in address else f"tcp://{address}:{port}"
