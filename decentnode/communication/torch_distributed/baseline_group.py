"""Process groups of torch.distributed among the nodes of a run: where they meet, and who is missing there.

They are made without torch's global group, so that nothing else in the process gets in their way.
"""

import os
import re
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import torch
import torch.distributed as dist
from torch.distributed import FileStore, PrefixStore, Store, TCPStore  # type: ignore[attr-defined]

from decentnode.communication.base import ProcessDirectory
from decentnode.communication.torch_distributed.messages import Capabilities
from decentnode.core.text import ranks_in_words
from decentnode.errors import StartError

LOOK_AGAIN = 0.02
MOST_NAMED = 8
NO_DUMPS = {"TORCH_NCCL_DUMP_ON_TIMEOUT": "0", "TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC": "0"}
"""To have all processes write down what was under way, torch's watchdog would sleep a minute for each
operation that failed, and end the processes that hear of it."""
_KEPT: list[Any] = []
# What torch says of a broken collective begins with a place in its own sources and ends in advice.
_SOURCE = re.compile(r"^\[[^\]]*\.(?:cc|cpp|h):\d+\]\s*")
_ADVICE = re.compile(r"\. (?:This is typically|Check the logs|GLHF).*", re.DOTALL)
_COLLECTIVE = re.compile(r"gloo|nccl|connection (?:closed|reset)|timed out waiting", re.IGNORECASE)


@dataclass(frozen=True)
class StoreRendezvous:
    """Where the processes of a run meet for one process group; each carries one node."""

    place: ProcessDirectory
    name: str
    """Which group of the run it is."""
    port: int
    """Where the process of rank 0 keeps the store; a run on one machine has it in a file and no port."""
    run_id: int

    @property
    def rank(self) -> int:
        """The node of this process."""
        return self.place.process.ranks[0]

    @property
    def nodes(self) -> int:
        """How many nodes meet."""
        return len(self.place.processes)

    def store(self, timeout: float, opens: bool = False) -> Store:
        """A new connection to the store, which waits so long for any answer; raises StartError.

        `opens`: the process of rank 0 opens it first. It lasts as long as that connection.
        """
        limit = timedelta(seconds=timeout)
        if all(self.place.co_located(position) for position in range(self.nodes)):
            # Minus one: nobody counts who is done, and the file goes with the directory.
            store: Store = FileStore(str(Path(self.place.directory) / f"{self.name}.store"), -1)
            store.set_timeout(limit)
        else:
            store = self._tcp_store(limit, opens and self.rank == 0)
        return PrefixStore(f"{self.run_id:016x}/{self.name}", store)

    def _tcp_store(self, limit: timedelta, opens: bool) -> Store:
        address = self.place.processes[self.place.home[0]].address
        try:
            if not opens:
                return TCPStore(address, self.port, None, False, limit, wait_for_workers=False)
            return store_at(address, self.port, limit, self.nodes)
        except (OSError, RuntimeError) as error:
            verb = "open" if opens else "reach"
            where = f"its store at {address}, port {self.port}"
            raise StartError(
                f"rank {self.rank}: {self.name} cannot {verb} {where}: {reason(error)}"
            ) from error


def store_at(address: str, port: int, limit: timedelta, backlog: int) -> TCPStore:
    """A store that others reach at this address alone; port 0: the system chooses. Raises OSError."""
    # Bound here, because a store of torch would listen at all addresses of the machine.
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    listening = socket.create_server((address, port), family=family, backlog=backlog)
    return TCPStore(
        address, listening.getsockname()[1], None, True, limit, wait_for_workers=False, use_libuv=False,
        master_listen_fd=listening.detach(),
    )  # fmt: skip


def gather(store: Store, rank: int, nodes: int, timeout: float) -> None:
    """Waits until all nodes are here; raises StartError naming those that have not come in time."""
    limit = time.monotonic() + timeout
    store.set(f"here/{rank}", "y")
    missing = set(range(nodes)) - {rank}
    while missing := {other for other in missing if not store.check([f"here/{other}"])}:
        if time.monotonic() > limit:
            late = ranks_in_words(sorted(missing), MOST_NAMED)
            raise StartError(f"rank {rank}: {late} did not arrive within {timeout:g} s")
        time.sleep(LOOK_AGAIN)


def open_group(
    store: Store, meeting: StoreRendezvous, backend: str, device: torch.device, timeout: float
) -> dist.ProcessGroup:
    """A process group of all nodes, whose operations last at most `timeout` seconds; raises StartError."""
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
    """Lets a group of torch, or what has one, last as long as the process.

    Torch joins a group's threads when it ends. They may be asleep, or wait for the interpreter's lock, which
    whoever joins them holds: then both would wait for ever.
    """
    _KEPT.append(group)


def set_unless_given(variables: Mapping[str, str]) -> None:
    """Sets in the environment what torch and NCCL read before the first group is made; a user's own stays."""
    for name, value in variables.items():
        os.environ.setdefault(name, value)


def gloo_options(address: str, limit: timedelta) -> Any:
    """For a group bound to that address, not to whatever this machine's host name means."""
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

    Nothing else could: DDP waits for a gradient by its stream alone, and then something waits for the stream.
    """
    set_unless_given(NO_DUMPS)
    options = dist.ProcessGroupNCCL.Options()
    options._timeout = limit
    carrier = dist.ProcessGroupNCCL(store, meeting.rank, meeting.nodes, options)
    return dist.ProcessGroup.BackendType.NCCL, carrier


def facts_of_all(store: Store, meeting: StoreRendezvous, own: Capabilities) -> dict[int, Capabilities]:
    """What every rank has that a group could use; all have to ask, and get the same answer."""
    store.set(f"facts/{meeting.rank}", msgspec.json.encode(own).decode())
    return {
        rank: msgspec.json.decode(store.get(f"facts/{rank}"), type=Capabilities)
        for rank in range(meeting.nodes)
    }


def is_of_collective(error: BaseException) -> bool:
    """Whether torch raised it because a collective broke or took too long."""
    return isinstance(error, dist.DistError) or bool(_COLLECTIVE.search(str(error)))


def reason(error: BaseException) -> str:
    """What torch says of a broken collective, without its sources and its advice, in one line."""
    first = (str(error) or type(error).__name__).splitlines()[0]
    return _ADVICE.sub("", _SOURCE.sub("", first)).rstrip(".")
