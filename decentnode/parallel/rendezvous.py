"""Connects all ranks, and checks that they agree on module, options and versions."""

import contextlib
import fcntl
import json
import os
import secrets
import shutil
import socket
import sys
import tempfile
import threading
import warnings
from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from datetime import timedelta
from itertools import count
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]

from decentnode.communication.base import (
    BufferSpec,
    Communication,
    Endpoint,
    HostProcess,
    ProcessDirectory,
    folder_for_sockets,
)
from decentnode.communication.inproc import InProcess
from decentnode.core.process_setup import close_here, close_in_children
from decentnode.core.registry import name_of
from decentnode.core.timeouts import Timeouts
from decentnode.errors import BadInput, StartError
from decentnode.mapping import stores
from decentnode.mapping.base import is_loopback
from decentnode.mapping.job import both_ends, find_job

_made = count()
_stores: dict[tuple[str, int], TCPStore] = {}
Terms = Mapping[str, str]
"""The terms that all ranks must agree on: hashes and versions by name."""


@dataclass
class Link:
    """One rank's end of the transport, until it is closed."""

    endpoint: Endpoint
    communication: Communication | None = None
    """The transport, which is closed at the end."""
    farewell_timeout: float = 0.0
    """Seconds that slower ranks have, after this one is closed, to read its payloads."""
    left: ExitStack = field(default_factory=ExitStack)
    """Removes what this rank made on its machine."""

    def close(self) -> None:
        """Reports to the others that this rank sends nothing more."""
        self.endpoint.leave()
        if self.communication is not None:
            self.communication.close(self.farewell_timeout)
        self.left.close()


class RankRendezvous(ABC):
    """The rendezvous of one rank with all others."""

    rank: int
    size: int

    @abstractmethod
    def join(
        self, communication: Communication, terms: Terms, buffer_spec: BufferSpec, timeout: float
    ) -> Link:
        """Connects to all ranks; raises StartError with the ranks that do not join or differ.

        Raises BadInput where the transport does not support this kind of rendezvous.
        """


class ThreadRendezvous:
    """A rendezvous of ranks that are threads of one process, for tests and simulations."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.communication = InProcess()
        self.terms: dict[int, Terms] = {}
        self.barrier = threading.Barrier(size)

    def join(self, rank: int) -> "ThreadRank":
        """The rendezvous of one of the threads."""
        return ThreadRank(rank, self.size, self)


@dataclass
class ThreadRank(RankRendezvous):
    """A rank that is a thread."""

    rank: int
    size: int
    rendezvous: ThreadRendezvous

    def join(
        self, communication: Communication, terms: Terms, buffer_spec: BufferSpec, timeout: float
    ) -> Link:
        endpoint = self.rendezvous.communication.endpoint(self.rank, buffer_spec)
        self.rendezvous.terms[self.rank] = terms
        try:
            self.rendezvous.barrier.wait(timeout)
        except threading.BrokenBarrierError:
            missing = sorted(set(range(self.size)) - self.rendezvous.terms.keys())
            raise StartError(
                f"rank {self.rank}: ranks {missing} did not arrive within {timeout:.0f} s"
            ) from None
        compare(self.rendezvous.terms, self.rank)
        return Link(endpoint)


@dataclass
class RankRecord:
    """The record of a rank in the store, for all others."""

    terms: dict[str, str]
    machine: str
    """An identifier that is equal where memory can be shared."""
    address: str
    """The address of the machine, as far as the rank knows it."""
    master: str
    """The address at which the rank reaches the store."""
    run_id: int


@dataclass
class RankStoreRendezvous(RankRendezvous):
    """Ranks that are processes and share a torch.distributed store, as torchrun provides it."""

    rank: int
    size: int
    store: Any
    master: tuple[str, int] = ("127.0.0.1", 0)
    """Address and port of the store; the route to it shows which address of this machine others can reach."""
    prefix: str = field(default_factory=lambda: f"decentnode/{next(_made)}")

    @classmethod
    def from_environment(cls, timeout: float) -> "RankStoreRendezvous":
        """Made from torchrun or an initialized torch.distributed; a single rank where there is neither."""
        if dist.is_available() and dist.is_initialized():
            rank, size = dist.get_rank(), dist.get_world_size()
            if size > 1 and "MASTER_ADDR" not in os.environ:
                return cls(rank, size, *_store_of_default_group())
        elif "RANK" not in os.environ and "WORLD_SIZE" not in os.environ:
            job = find_job()
            if job is not None and job.is_started and job.size > 1:
                # One of several processes of srun, which would all train alone.
                raise BadInput(f"{job}, but set no RANK; have srun start torchrun, once on each machine")
            warnings.warn("no RANK in the environment: a single process, without torchrun", stacklevel=3)
            return cls(0, 1, None)
        else:
            rank, size = _number("RANK"), _number("WORLD_SIZE")
        if size == 1:
            return cls(rank, size, None)
        address, port = os.environ.get("MASTER_ADDR", ""), _number("MASTER_PORT")
        if not 0 <= rank < size or not address:
            raise BadInput(
                f"RANK {rank}, WORLD_SIZE {size}, MASTER_ADDR '{address}': not as torchrun sets them"
            )
        store = _store_at(address, port, rank, timeout=timeout)
        return cls(rank, size, store, (address, port))

    def join(
        self, communication: Communication, terms: Terms, buffer_spec: BufferSpec, timeout: float
    ) -> Link:
        means = {**terms, "communication": name_of(communication)}
        record = RankRecord(means, machine_id(), *self._addresses(), secrets.randbits(63))
        if self.size == 1:
            communication = InProcess()
        records, store = [record], None
        if self.store is not None:
            records, store = self._exchange_notes(
                PrefixStore(self.prefix, self.store), record, communication, timeout=timeout
            )
        with ExitStack() as left:
            directory = self._directory(store, records, timeout, left=left)
            most = buffer_spec.vector_elements * buffer_spec.vector_dtype.itemsize + buffer_spec.payload_bytes
            try:
                communication.prepare(self.place(_processes(records), directory), most)
                endpoint = communication.endpoint(self.rank, buffer_spec)
                others = [rank for rank in range(self.size) if rank != self.rank]
                communication.open(others, records[0].run_id, timeout)
            except BaseException:
                # The garbage collector would wait for ever for sockets that are still open.
                communication.close(0.0)
                raise
            if communication.news:
                print(communication.news, flush=True)
            return Link(endpoint, communication, timeout, left=left.pop_all())

    def place(self, processes: tuple[HostProcess, ...], directory: Path) -> ProcessDirectory:
        """The position of this rank among all."""
        return ProcessDirectory(processes, self.rank, str(directory))

    def _exchange_notes(
        self, store: Any, own_record: RankRecord, communication: Communication, timeout: float
    ) -> tuple[list[RankRecord], Any]:
        """The records of all ranks, which agree, and the part of the store that belongs to this start alone.

        Raises StartError, and BadInput on all ranks.
        """
        store.set_timeout(timedelta(seconds=timeout))
        missing: list[int] = []
        try:
            own = json.dumps(asdict(own_record))
            whole, call = stores.gathered(store, self.rank, self.size, own, timeout)
            store = PrefixStore(call, store)
            records = [RankRecord(**json.loads(text)) for text in whole]
            compare({rank: record.terms for rank, record in enumerate(records)}, self.rank)
            if communication.plan.one_machine:  # raised here: the store stays until all ranks can raise it
                defect = f"carries all ranks in one process, but there are {self.size}; use 'auto'"
                raise BadInput(f"communication: {own_record.terms['communication']} {defect}")
            return records, store
        except RuntimeError as error:
            missing = stores.absent(store, self.size)
            raise StartError(
                f"rank {self.rank}: ranks {missing} of {self.size} did not arrive within {timeout:.0f} s"
            ) from error
        finally:
            # A process that keeps the store and is about to exit waits a moment for the other ranks.
            waits = sys.exception() is not None and self.rank == 0
            with contextlib.suppress(RuntimeError):
                stores.part(store, self.size - len(missing), waits, seconds=Timeouts.store_farewell)

    def _directory(self, store: Any, records: list[RankRecord], timeout: float, left: ExitStack) -> Path:
        """Returns this machine's folder for sockets.

        `left` removes it if this rank made it, or its maker died.
        """
        first = min(
            rank for rank, record in enumerate(records) if record.machine == records[self.rank].machine
        )
        if first != self.rank:
            try:
                directory = Path(store.get(f"directory/{first}").decode())
            except RuntimeError as error:
                why = f"rank {first}, the first on this machine, made no folder within {timeout:.0f} s"
                raise StartError(f"rank {self.rank}: {why}") from error
            left.callback(_remove_orphan, directory)
            return directory
        directory = Path(tempfile.mkdtemp(prefix="decentnode-", dir=folder_for_sockets()))
        keeper = os.open(directory, os.O_RDONLY | os.O_CLOEXEC)
        left.callback(close_here, keeper)
        close_in_children(keeper)
        left.callback(shutil.rmtree, directory, ignore_errors=True)
        fcntl.flock(keeper, fcntl.LOCK_EX)  # freed by the kernel if this process dies: see `_remove_orphan`
        if store is not None:
            store.set(f"directory/{first}", str(directory))
        return directory

    def _addresses(self) -> tuple[str, str]:
        """The address from which this machine reaches the store, and that of the store."""
        try:
            return both_ends(*self.master)
        except OSError:
            return self.master[0], self.master[0]


def _remove_orphan(directory: Path) -> None:
    """Removes the folder of a process that has died, whose lock ended with it."""
    with contextlib.suppress(OSError):
        handle = os.open(directory, os.O_RDONLY | os.O_CLOEXEC)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(directory, ignore_errors=True)
        finally:
            os.close(handle)


def _store_at(address: str, port: int, rank: int, timeout: float) -> TCPStore:
    """The store that the ranks share, the same one at every call; raises StartError."""
    # The agents of torchrun keep a store. Elsewhere rank 0 does, also for the loop's own process group, so it
    # stays until the process ends.
    if (address, port) not in _stores:
        serves = rank == 0 and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
        _stores[address, port] = stores.join(address, port, timeout, serves)
    return _stores[address, port]


def compare(terms: Mapping[int, Terms], rank: int) -> None:
    """Raises StartError with the ranks whose terms differ from those of rank 0."""
    for name, expected in terms[0].items():
        others = [j for j in sorted(terms) if terms[j].get(name) != expected]
        if others:
            value = terms[others[0]].get(name)
            raise StartError(
                f"rank {rank}: {name} differs: {expected} on rank 0, {value} on rank {others[0]}"
                + (f" (so do ranks {others[1:]})" if others[1:] else "")
            )


def machine_id() -> str:
    """A text that is equal for two processes that share /proc and files."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    spaces = [str(Path(f"/proc/self/ns/{space}").readlink()) for space in ("pid", "mnt")]
    return " ".join((boot, socket.gethostname(), *spaces))


def _processes(records: list[RankRecord]) -> tuple[HostProcess, ...]:
    """The places of all ranks. The store's machine may know itself only by a loopback address."""
    seen = next((record.master for record in records if not is_loopback(record.master)), "")
    machines: dict[str, list[int]] = {}
    for rank, record in enumerate(records):
        machines.setdefault(record.machine, []).append(rank)
    numbers = {machine: number for number, machine in enumerate(machines)}
    return tuple(
        HostProcess(
            numbers[record.machine],
            machines[record.machine].index(rank),
            (rank,),
            address=seen if seen and is_loopback(record.address) else record.address,
        )
        for rank, record in enumerate(records)
    )


def _store_of_default_group() -> tuple[Any, tuple[str, int]]:
    """The store of an initialized torch.distributed, and its address."""
    default_store = store = dist.distributed_c10d._get_default_store()
    while isinstance(store, PrefixStore):
        store = store.underlying_store
    return default_store, (store.host, store.port) if isinstance(store, TCPStore) else ("127.0.0.1", 0)


def _number(name: str) -> int:
    text = os.environ.get(name, "")
    if not text.isdecimal():
        raise BadInput(f"{name}: '{text}' is no number; start with torchrun, which sets it")
    return int(text)
