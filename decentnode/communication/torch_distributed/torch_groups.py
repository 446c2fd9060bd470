"""Process groups of torch.distributed among the nodes of a run: the store in which they meet, and the plan.

They do not use torch's global group, so other users of it in the process do not interfere.

Threads: the thread that opens a group waits here for the other ranks.
"""

import contextlib
import os
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import timedelta
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec
import torch
import torch.distributed as dist
from torch.distributed import FileStore, PrefixStore, Store  # type: ignore[attr-defined]

from decentnode.communication.base import ProcessDirectory
from decentnode.communication.torch_distributed.backend_choice import BackendChoice, Capabilities, GroupPlan
from decentnode.core.text import first_line, ranks_in_words
from decentnode.errors import StartError
from decentnode.mapping import stores

MOST_NAMED = 8
LARGEST_BACKLOG = 1024
NO_DUMPS = {"TORCH_NCCL_DUMP_ON_TIMEOUT": "0", "TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC": "0"}
"""Otherwise torch's watchdog sleeps a minute per failed operation, for dumps, and then ends processes."""
_KEPT: list[Any] = []
# Torch's errors of collectives start with a place in its sources and end with advice.
_SOURCE = re.compile(r"^\[[^\]]*\.(?:cc|cpp|h):\d+\]\s*")
_ADVICE = re.compile(r"\. (?:This is typically|Check the logs|GLHF).*", re.DOTALL)
_COLLECTIVE = re.compile(r"gloo|nccl|connection (?:closed|reset)|timed out waiting", re.IGNORECASE)


@dataclass(frozen=True)
class StoreRendezvous:
    """The rendezvous of a run's processes for one process group; each process has one node."""

    directory: ProcessDirectory
    name: str
    """The name of the group within the run."""
    port: int
    """Port of the store in the process of the first rank; on one machine a file needs none."""
    run_id: int
    absent: Collection[int] = ()
    """Ranks that do not take part."""
    key: str = "training.port"
    """The key of the port in a configuration, for errors."""

    @property
    def rank(self) -> int:
        """The node of this process."""
        return self.directory.process.ranks[0]

    @cached_property
    def ranks(self) -> list[int]:
        """The nodes that take part, ascending."""
        return sorted(self.directory.home.keys() - set(self.absent))

    @cached_property
    def is_local(self) -> bool:
        """Whether all of them are on this machine."""
        return all(self.directory.co_located(self.directory.home[rank]) for rank in self.ranks)

    @property
    def address(self) -> str:
        """Where the others reach this process."""
        return "127.0.0.1" if self.is_local else self.directory.process.address

    def store(self, timeout: float, opens: bool = False) -> Store:
        """A new connection to the store, with `timeout` seconds for each answer; raises StartError.

        `opens`: the process of the first rank creates the store. It lasts as long as that connection.
        """
        address = self.directory.processes[self.directory.home[self.ranks[0]]].address
        if self.is_local:
            # Minus one: no count of finished processes, since the file vanishes with the directory.
            store: Store = FileStore(str(Path(self.directory.directory) / f"{self.name}.store"), -1)
            store.set_timeout(timedelta(seconds=timeout))
        elif opens and self.rank == self.ranks[0]:
            try:
                store = stores.serve(address, self.port, timeout, LARGEST_BACKLOG)
            except StartError as error:
                raise StartError(f"{error} (key {self.key})") from error
        else:
            store = stores.join(address, self.port, timeout)
        # The run id keeps keys of an earlier run on the same port apart.
        return PrefixStore(f"{self.run_id:016x}/{self.name}", store)

    def plan(
        self, store: Store, capabilities: Capabilities, backend_choice: BackendChoice, timeout: float
    ) -> GroupPlan:
        """The plan that all ranks compute from the same facts, so none has to be the leader.

        Raises StartError, also where there can be no such group.
        """
        plan = backend_choice(self.facts(store, capabilities, timeout))
        if plan.error:
            raise StartError(plan.error)
        return plan

    def facts(self, store: Store, capabilities: Capabilities, timeout: float) -> dict[int, Capabilities]:
        """The capabilities of every rank, the same on all; raises StartError that names late ranks."""
        keys = {rank: f"facts/{rank}" for rank in self.ranks}
        try:
            store.set(keys[self.rank], msgspec.json.encode(capabilities).decode())
            store.wait(list(keys.values()), timedelta(seconds=timeout))
            return {
                rank: msgspec.json.decode(store.get(key), type=Capabilities) for rank, key in keys.items()
            }
        except RuntimeError as error:
            why = reason(error)
            # A store whose process has ended answers this neither.
            with contextlib.suppress(RuntimeError):
                if late := [rank for rank, key in keys.items() if not store.check([key])]:
                    why = f"{ranks_in_words(late, MOST_NAMED)} did not arrive within {timeout:g} s"
            raise StartError(f"rank {self.rank}: {why}") from error

    def open(self, store: Store, backend: str, device: torch.device, timeout: float) -> dist.ProcessGroup:
        """A process group of all nodes with a timeout for its operations, in seconds; raises StartError."""
        rank, nodes, limit = self.rank, len(self.ranks), timedelta(seconds=timeout)
        group = dist.ProcessGroup(store, rank, nodes)
        try:
            if backend == "gloo":
                kind = dist.ProcessGroup.BackendType.GLOO
                carrier = dist.ProcessGroupGloo(store, rank, nodes, gloo_options(self.address, limit))
            else:
                kind, carrier = _nccl(store, self, limit)
        except RuntimeError as error:
            raise StartError(f"rank {rank}: no {backend} group for {self.name}: {reason(error)}") from error
        for place in {"cpu", device.type} if backend == "gloo" else {device.type}:
            group._register_backend(torch.device(place), kind, carrier)
        group._set_default_backend(kind)
        keep(group)
        return group


def keep(group: Any) -> None:
    """Keeps a group of torch, or its owner, until the process ends.

    Torch joins a group's threads when it is destroyed. They may sleep, or wait for the interpreter's lock,
    which the joining thread holds: a deadlock.
    """
    _KEPT.append(group)


def set_unless_given(variables: Mapping[str, str]) -> None:
    """Sets environment variables for torch and NCCL before the first group; a user's own values stay."""
    for name, value in variables.items():
        os.environ.setdefault(name, value)


def gloo_options(address: str, limit: timedelta) -> Any:
    """Options of a group bound to that address, instead of the address of this machine's host name."""
    options: Any = dist.ProcessGroupGloo._Options()  # type: ignore[attr-defined]
    options._timeout = limit
    options._devices = [dist.ProcessGroupGloo.create_device(hostname=address)]
    return options


def _nccl(store: Store, rendezvous: StoreRendezvous, limit: timedelta) -> tuple[Any, Any]:
    """Not run anywhere yet (docs/gpu.md). Torch's watchdog ends the process when an operation fails.

    Nothing else can: DDP waits for a gradient only on its stream, and later code waits for the stream.
    """
    set_unless_given(NO_DUMPS)
    options = dist.ProcessGroupNCCL.Options()
    options._timeout = limit
    carrier = dist.ProcessGroupNCCL(store, rendezvous.rank, len(rendezvous.ranks), options)
    return dist.ProcessGroup.BackendType.NCCL, carrier


def is_of_collective(error: BaseException) -> bool:
    """Whether torch raised this error because a collective broke or timed out."""
    return isinstance(error, dist.DistError) or bool(_COLLECTIVE.search(str(error)))


def reason(error: BaseException) -> str:
    """Torch's message about a broken collective in one line, without sources and advice."""
    return _ADVICE.sub("", _SOURCE.sub("", first_line(error))).rstrip(".")
