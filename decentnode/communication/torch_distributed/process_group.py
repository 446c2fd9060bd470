"""The process group of torch.distributed among the nodes of a run; never the default group.

The classes behind `init_process_group` are used directly, so a loss ends this group alone, whatever else in
the process uses torch.distributed. Peers have their ranks in the run.

Threads: the node's and the socket thread post, the node's thread waits, and any thread aborts. NCCL is
launched behind a lock.
"""

import contextlib
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import groupby
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import PrefixStore, Store  # type: ignore[attr-defined]

from decentnode.communication.exchange.handle import Key
from decentnode.communication.torch_distributed.backend_choice import BackendChoice, Capabilities, GroupPlan
from decentnode.communication.torch_distributed.torch_groups import (
    NO_DUMPS,
    StoreRendezvous,
    gloo_options,
    keep,
    reason,
    set_unless_given,
)
from decentnode.core.timeouts import Timeouts
from decentnode.errors import StartError

SHIFTS_PER_BATCH = 128
"""More than 256 operations in one NCCL group may hang (pytorch PR 174942)."""
UNUSED_TAG = (1 << 31) - 1
"""A prime, so tags of the same phase and part differ for that many rounds."""
MOST_PHASES, MOST_PARTS = 1 << 8, 1 << 16
"""Phases of a round and parts with different tags in consecutive rounds; a header holds as many parts."""
_SHORTEST_INTERVAL, _LONGEST_INTERVAL = 50e-6, 1e-3
ONE_GPU = {
    "NCCL_NET": "Socket", "NCCL_SOCKET_IFNAME": "lo", "NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "1",
    "NCCL_ALGO": "Ring", "NCCL_PROTO": "Simple", "NCCL_MAX_CTAS": "2", "NCCL_NVLS_ENABLE": "0",
    "NCCL_MNNVL_ENABLE": "0", "NCCL_CUMEM_ENABLE": "0",
}  # fmt: skip
"""Lets several ranks share a GPU, each as if it were a separate host; slow, for tests."""
NCCL_SETTINGS = NO_DUMPS | {
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0", "TORCH_NCCL_USE_COMM_NONBLOCKING": "1",
    "TORCH_NCCL_NONBLOCKING_TIMEOUT": "60", "TORCH_NCCL_ENABLE_MONITORING": "0",
}  # fmt: skip
"""Lost peers are detected and handled here. Torch's watchdog would end the process, and its monitor would do
so when an abort takes long. The nonblocking timeout is in seconds; torch's default is half an hour.
"""


class GroupBroken(Exception):
    """The group failed, or could not be made; the message is one line."""


@dataclass(frozen=True, slots=True)
class Transfer:
    """One payload on its way to or from a peer."""

    peer: int
    buffer: Tensor
    """The bytes, shape (n,), in memory of the backend's device; not changed or freed until it is done."""
    sends: bool


@dataclass(frozen=True, slots=True)
class Pending:
    """Transfers that finish together."""

    transfers: tuple[Transfer, ...]
    work: Any
    """Torch's handle of them."""


class Group(ABC):
    """One communicator among some ranks."""

    device: torch.device
    """The device of its tensors."""
    gathers: bool
    """Whether all transfers of an exchange are posted at once, so every rank's list matches."""
    reduces = False
    """Whether it has `reduce_all`."""

    def __init__(self, plan: GroupPlan, rank: int) -> None:
        self.members = tuple(plan.members)
        self.rank = rank
        self.index = {member: i for i, member in enumerate(self.members)}
        self.is_broken = False

    @abstractmethod
    def post(self, key: Key, transfers: Sequence[Transfer]) -> list[Pending]:
        """Starts transfers of an exchange, peers in ascending order."""

    @abstractmethod
    def wait(self, work: Any, seconds: float) -> None:
        """Blocks until posted `work` is done; raises GroupBroken, also after `seconds`."""

    def reduce_all(self, values: Tensor) -> Any:
        """Starts to sum a vector over all members, in place; returns torch's handle.

        All members call it in the same order. Raises GroupBroken.
        """
        raise NotImplementedError(f"{type(self).__name__} has no all-reduce")

    @abstractmethod
    def abort(self) -> None:
        """Ends all operations in progress; every waiting thread, here or elsewhere, gets GroupBroken."""

    def warm_up(self, peers: Iterable[int] | None, seconds: float) -> None:
        """Runs a barrier and one transfer with each future peer, because connections open at first use.

        `peers`: None for all members.
        """
        token, key = torch.zeros(1, dtype=torch.uint8, device=self.device), (0, 0, 0)
        others = sorted(set(self.members if peers is None else peers) & set(self.members) - {self.rank})
        received = [Transfer(peer, torch.empty_like(token), False) for peer in others]
        # NCCL may hang if its first operation involves only some of the ranks.
        self._wait_for_all(seconds)
        for pending in self.post(key, received + [Transfer(peer, token, True) for peer in others]):
            self.wait(pending.work, seconds)

    @abstractmethod
    def _wait_for_all(self, seconds: float) -> None:
        """A barrier: the first operation of a communicator must involve all ranks."""


class GlooGroup(Group):
    """TCP between any two members, in host memory."""

    device = torch.device("cpu")
    gathers = False
    reduces = True

    def __init__(self, plan: GroupPlan, rank: int, store: Any, address: str, seconds: float) -> None:
        super().__init__(plan, rank)
        options = gloo_options(address, timedelta(seconds=seconds))
        options._threads = 1
        self._backend: Any = dist.ProcessGroupGloo(store, self.index[rank], len(self.members), options)

    def post(self, key: Key, transfers: Sequence[Transfer]) -> list[Pending]:
        tag = tag_of(key)
        pending: list[Pending] = []
        # Receives first, so arriving bytes already have their place.
        for transfer in sorted(transfers, key=lambda transfer: transfer.sends):
            start = self._backend.send if transfer.sends else self._backend.recv
            try:
                work = start([transfer.buffer], self.index[transfer.peer], tag)
            except RuntimeError as error:
                raise GroupBroken(reason(error)) from error
            pending.append(Pending((transfer,), work))
        return pending

    def reduce_all(self, values: Tensor) -> Any:
        options = dist.AllreduceOptions()
        # Gloo counts from the start, while other ranks may still compute; the wait has a limit of its own.
        options.timeout = timedelta(seconds=Timeouts.group_operation)
        try:
            return self._backend.allreduce([values], options)
        except RuntimeError as error:
            raise GroupBroken(reason(error)) from error

    def wait(self, work: Any, seconds: float) -> None:
        try:
            work.wait(timedelta(seconds=max(seconds, 0.001)))
        except RuntimeError as error:
            raise GroupBroken(reason(error)) from error

    def abort(self) -> None:
        # Gloo closes connections only when an operation of the group times out.
        self.is_broken = True
        # Waiting on a closed connection fails at once; after the first open one, all are closed.
        for peer in self.members:
            if peer != self.rank:
                with contextlib.suppress(RuntimeError):
                    nothing = torch.empty(1, dtype=torch.uint8)
                    work = self._backend.recv([nothing], self.index[peer], UNUSED_TAG)
                    work.wait(timedelta(milliseconds=1))

    def _wait_for_all(self, seconds: float) -> None:
        self.wait(self._backend.barrier(), seconds)


class NcclGroup(Group):
    """NCCL between GPUs: one communicator, one launch for all transfers of an exchange."""

    gathers = True

    def __init__(self, plan: GroupPlan, rank: int, store: Any, device: torch.device, seconds: float) -> None:
        super().__init__(plan, rank)
        self.device = device
        self._launching = threading.Lock()
        distributed: Any = dist
        options = distributed.ProcessGroupNCCL.Options()
        options.config.blocking = 0
        options._timeout = timedelta(seconds=Timeouts.group_operation)
        torch.cuda.set_device(device)
        backend = distributed.ProcessGroupNCCL(store, self.index[rank], len(self.members), options)
        backend.eager_connect_single_device(device)
        group: Any = dist.ProcessGroup
        self._group = group(store, self.index[rank], len(self.members))
        self._group._set_default_backend(group.BackendType.NCCL)
        self._group._register_backend(device, group.BackendType.NCCL, backend)
        self._backend = backend

    def post(self, key: Key, transfers: Sequence[Transfer]) -> list[Pending]:
        batches = groupby(sorted(transfers, key=self._batch), self._batch)
        return [self._launch(list(batch)) for _, batch in batches]

    def _batch(self, transfer: Transfer) -> int:
        """A batch number that both ends compute: their distance, counted from the sender."""
        ends = self.index[self.rank], self.index[transfer.peer]
        start, end = ends if transfer.sends else ends[::-1]
        return int((end - start) % len(self.members) // SHIFTS_PER_BATCH)

    def _launch(self, transfers: list[Transfer]) -> Pending:
        try:
            with self._launching, torch.cuda.device(self.device):
                if self.is_broken:
                    raise GroupBroken("NCCL failed")
                work = self._in_one_launch(transfers)
        except RuntimeError as error:
            raise GroupBroken(reason(error)) from error
        return Pending(tuple(transfers), work)

    def _in_one_launch(self, transfers: list[Transfer]) -> Any:
        self._group._start_coalescing(self.device)
        try:
            for transfer in transfers:
                start = self._group.send if transfer.sends else self._group.recv
                start([transfer.buffer], self.index[transfer.peer], 0)
            return self._group._end_coalescing(self.device)
        except BaseException:
            # NCCL counts open groups per thread, over all communicators: it would launch nothing any more,
            # and an operation that was never launched counts as done. This end waits for nothing.
            self.is_broken = True
            with contextlib.suppress(RuntimeError):
                self._backend._group_end()
            raise

    def wait(self, work: Any, seconds: float) -> None:
        # Polls, because `work.wait` only makes the stream wait.
        limit, pause = time.monotonic() + seconds, _SHORTEST_INTERVAL
        while not self.completes(work):
            if self.is_broken:
                raise GroupBroken("NCCL failed")
            if time.monotonic() > limit:
                raise GroupBroken(f"NCCL was not done after {seconds:.0f} s")
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_INTERVAL)

    def completes(self, work: Any) -> bool:
        """Makes the stream wait for a finished launch; returns False if it is not finished. Raises
        GroupBroken.

        While another thread aborts NCCL, torch would block here with the interpreter's lock. After a failure
        torch aborts by itself, while other threads may be queueing operations.
        """
        if self.is_broken or not self._launching.acquire(timeout=_LONGEST_INTERVAL):
            return False
        try:
            if self.is_broken or not work.is_completed():
                return False
            with torch.cuda.device(self.device):
                work.wait()
        except RuntimeError as error:
            self.is_broken = True
            raise GroupBroken(reason(error)) from error
        finally:
            self._launching.release()
        return True

    def abort(self) -> None:
        """Aborts; returns after a few seconds even if NCCL hangs, because nothing uses the group any more."""
        self.is_broken = True
        keep(self)
        thread = threading.Thread(target=self._abort, name="decentnode-aborting", daemon=True)
        thread.start()
        thread.join(Timeouts.nccl_abort)

    def _abort(self) -> None:
        # A launch in another thread may be queueing operations, and this abort frees their memory.
        is_free = self._launching.acquire(timeout=Timeouts.nccl_launch)
        try:
            with contextlib.suppress(RuntimeError):
                self._backend.abort()
        finally:
            if is_free:
                self._launching.release()

    def _wait_for_all(self, seconds: float) -> None:
        # Not `barrier`, which guesses a device from the rank.
        self.wait(self._group.allreduce([torch.zeros(1, device=self.device)]), seconds)


def tag_of(key: Key) -> int:
    """The tag of an exchange: a transfer that is never received does not match a later one."""
    round, phase, part = key
    return ((round * MOST_PHASES + phase) * MOST_PARTS + part) % UNUSED_TAG


@dataclass
class GroupFactory:
    """Plans and makes the group of one rank."""

    rendezvous: StoreRendezvous
    capabilities: Capabilities
    backend_choice: BackendChoice
    device: torch.device
    """The device of the node."""
    peers: frozenset[int] | None = None
    """Ranks with which this one may exchange; None: all."""
    _store: Store = field(init=False, repr=False)
    """Kept, because it closes when nothing refers to it."""

    def plan(self, seconds: float) -> GroupPlan:
        """The plan that all ranks agree on; raises StartError."""
        limit = time.monotonic() + seconds
        self._store = self.rendezvous.store(seconds, opens=True)
        left = max(0.1, limit - time.monotonic())
        return self.rendezvous.plan(self._store, self.capabilities, self.backend_choice, left)

    def make(self, plan: GroupPlan, seconds: float) -> Group:
        """Connects to the other members; raises StartError, also if one of them is late."""
        limit = time.monotonic() + seconds
        group: Group | None = None
        rank, store = self.rendezvous.rank, PrefixStore("group", self._store)
        try:
            if plan.backend == "nccl":
                group = NcclGroup(plan, rank, store, self.device, seconds)
            else:
                group = GlooGroup(plan, rank, store, self.rendezvous.address, seconds)
            group.warm_up(self.peers, max(0.1, limit - time.monotonic()))
        except (GroupBroken, RuntimeError) as error:
            if group is not None:
                group.abort()
            problem = f"the process group ({plan.backend}) of ranks {plan.members} could not be made"
            raise StartError(f"rank {rank}: {problem} within {seconds:.0f} s: {reason(error)}") from error
        return group


def prepare_nccl(rank: int, shares_gpu: bool, settings: Mapping[str, str] = NCCL_SETTINGS) -> None:
    """Sets the environment of NCCL and torch before the first group; a user's own values stay.

    `shares_gpu`: whether this process's NCCL shares its GPU with others.
    """
    shared = ONE_GPU | {"NCCL_HOSTID": f"node{rank}"} if shares_gpu else {}
    set_unless_given({**shared, **settings})
