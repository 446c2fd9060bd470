"""Process groups of torch.distributed among the nodes of a run: their rendezvous, and which ranks are
missing.

They do not use torch's global group, so other users of it in the process do not interfere.
"""

import os
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import torch
import torch.distributed as dist
from torch.distributed import FileStore, PrefixStore, Store  # type: ignore[attr-defined]

from decentnode.communication.base import ProcessDirectory
from decentnode.communication.torch_distributed.messages import Capabilities
from decentnode.core.text import first_line, ranks_in_words
from decentnode.errors import StartError
from decentnode.mapping import stores

POLL_INTERVAL = 0.02
MOST_NAMED = 8
NO_DUMPS = {"TORCH_NCCL_DUMP_ON_TIMEOUT": "0", "TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC": "0"}
"""Otherwise torch's watchdog sleeps a minute per failed operation, so that all processes can write a dump,
and ends the processes that learn of it.
"""
_KEPT: list[Any] = []
# Torch's errors of collectives start with a place in its sources and end with advice.
_SOURCE = re.compile(r"^\[[^\]]*\.(?:cc|cpp|h):\d+\]\s*")
_ADVICE = re.compile(r"\. (?:This is typically|Check the logs|GLHF).*", re.DOTALL)
_COLLECTIVE = re.compile(r"gloo|nccl|connection (?:closed|reset)|timed out waiting", re.IGNORECASE)


@dataclass(frozen=True)
class StoreRendezvous:
    """The rendezvous of a run's processes for one process group; each process has one node."""

    place: ProcessDirectory
    name: str
    """The name of the group within the run."""
    port: int
    """Port of the store in the process of rank 0; on one machine the store is a file and needs none."""
    run_id: int

    @property
    def rank(self) -> int:
        """The node of this process."""
        return self.place.process.ranks[0]

    @property
    def nodes(self) -> int:
        """Number of nodes."""
        return len(self.place.processes)

    def store(self, timeout: float, opens: bool = False) -> Store:
        """A new connection to the store, with `timeout` seconds for each answer; raises StartError.

        `opens`: the process of rank 0 creates the store. It lasts as long as that connection.
        """
        address = self.place.processes[self.place.home[0]].address
        if all(self.place.co_located(position) for position in range(self.nodes)):
            # Minus one: no count of finished processes, since the file vanishes with the directory.
            store: Store = FileStore(str(Path(self.place.directory) / f"{self.name}.store"), -1)
            store.set_timeout(timedelta(seconds=timeout))
        elif opens and self.rank == 0:
            store = stores.serve(address, self.port, timeout, self.nodes)
        else:
            store = stores.join(address, self.port, timeout)
        # The run id keeps keys of an earlier run on the same port apart.
        return PrefixStore(f"{self.run_id:016x}/{self.name}", store)


def facts_of_all(
    store: Store, meeting: StoreRendezvous, own: Capabilities, timeout: float
) -> dict[int, Capabilities]:
    """The capabilities of every rank, the same on all; raises StartError that names ranks that are late."""
    limit = time.monotonic() + timeout
    store.set(f"facts/{meeting.rank}", msgspec.json.encode(own).decode())
    missing = set(range(meeting.nodes)) - {meeting.rank}
    # Polls instead of a blocking get, whose timeout would not name the missing ranks.
    while missing := {rank for rank in missing if not store.check([f"facts/{rank}"])}:
        if time.monotonic() > limit:
            late = ranks_in_words(sorted(missing), MOST_NAMED)
            raise StartError(f"rank {meeting.rank}: {late} did not arrive within {timeout:g} s")
        time.sleep(POLL_INTERVAL)
    return {
        rank: msgspec.json.decode(store.get(f"facts/{rank}"), type=Capabilities)
        for rank in range(meeting.nodes)
    }


def open_group(
    store: Store, meeting: StoreRendezvous, backend: str, device: torch.device, timeout: float
) -> dist.ProcessGroup:
    """A process group of all nodes with a timeout for its operations, in seconds; raises StartError."""
    rank, nodes, limit = meeting.rank, meeting.nodes, timedelta(seconds=timeout)
    group = dist.ProcessGroup(store, rank, nodes)
    try:
        kind, carrier = (_gloo if backend == "gloo" else _nccl)(store, meeting, limit)
    except RuntimeError as error:
        raise StartError(f"rank {rank}: no {backend} group for {meeting.name}: {reason(error)}") from error
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


def _gloo(store: Store, meeting: StoreRendezvous, limit: timedelta) -> tuple[Any, Any]:
    options = gloo_options(meeting.place.process.address, limit)
    carrier = dist.ProcessGroupGloo(store, meeting.rank, meeting.nodes, options)
    return dist.ProcessGroup.BackendType.GLOO, carrier


def _nccl(store: Store, meeting: StoreRendezvous, limit: timedelta) -> tuple[Any, Any]:
    """Not run anywhere yet (docs/gpu.md). Torch's watchdog ends the process when an operation fails.

    Nothing else can: DDP waits for a gradient only on its stream, and later code waits for the stream.
    """
    set_unless_given(NO_DUMPS)
    options = dist.ProcessGroupNCCL.Options()
    options._timeout = limit
    carrier = dist.ProcessGroupNCCL(store, meeting.rank, meeting.nodes, options)
    return dist.ProcessGroup.BackendType.NCCL, carrier


def is_of_collective(error: BaseException) -> bool:
    """Whether torch raised this error because a collective broke or timed out."""
    return isinstance(error, dist.DistError) or bool(_COLLECTIVE.search(str(error)))


def reason(error: BaseException) -> str:
    """Torch's message about a broken collective in one line, without sources and advice."""
    return _ADVICE.sub("", _SOURCE.sub("", first_line(error))).rstrip(".")
