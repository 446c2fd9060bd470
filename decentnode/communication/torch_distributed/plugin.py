"""Nodes whose payloads go through torch.distributed: NCCL between GPUs, gloo elsewhere.

Threads: the thread that opens the transport calls everything here; `open` waits there for the group.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from decentnode.communication.base import BufferSpec, ProcessDirectory, Slots, TransportPlan
from decentnode.communication.torch_distributed.backend_choice import (
    Backend,
    BackendChoice,
    Capabilities,
    backend_defect,
    facts_of,
)
from decentnode.communication.torch_distributed.collectives import GroupCollectives
from decentnode.communication.torch_distributed.process_group import GroupFactory, prepare_nccl
from decentnode.communication.torch_distributed.route import GroupRoute
from decentnode.communication.torch_distributed.torch_groups import StoreRendezvous
from decentnode.communication.zeromq.endpoint import ProcessEndpoint
from decentnode.communication.zeromq.plugin import ProcessCommunication
from decentnode.core.registry import COMMUNICATIONS
from decentnode.errors import BadInput, Defect
from decentnode.options import NonNegative, Port, option

ONE_NODE = "a process group has one rank in each process, so this must be 1; leave it out"


@dataclass(frozen=True)
class ProcessGroupPlan(TransportPlan):
    """The plan of a transport with a process group of torch.distributed."""

    backend: Backend = "auto"
    share_gpu: bool = False
    members: frozenset[int] | None = None
    """The nodes that need the backend whatever their device is; None: all."""

    def defects(self, device: str, ranks: Sequence[int]) -> Iterator[Defect]:
        members = [rank for rank in ranks if self.members is None or rank in self.members]
        gpus = 0 if self.share_gpu else len(members)
        if members and (what := backend_defect(self.backend, device, gpus)):
            yield Defect(("backend",), what)


@COMMUNICATIONS.register("torch_distributed", "torch_dist", nccl="backend: nccl", gloo="backend: gloo")
@dataclass
class TorchDistributed(ProcessCommunication):
    """All payloads through one process group, NCCL or gloo (Li et al., PyTorch Distributed, VLDB 2020)."""

    local: Literal["shared_memory", "ipc", "tcp"] = option("ipc", changes="results")
    """How control messages travel on one machine, and payloads after the group has ended."""
    backend: Backend = option("auto", changes="results")
    """auto: NCCL if every node has a GPU of its own, otherwise gloo."""
    group_port: Port = option(29700, changes="nothing")
    """First TCP port of the group's stores; each process of a machine has one, counted from here."""
    share_gpu: bool = option(False, changes="results")
    """Whether several nodes on one GPU may use NCCL; slow, for tests."""
    trusted_network: bool = option(False, changes="nothing")
    """Whether the network between the machines is private; payloads are not encrypted there."""

    _most_bytes: int = field(default=0, init=False, repr=False)
    _buffer_spec: BufferSpec = field(init=False, repr=False, compare=False)
    _capabilities: Capabilities = field(init=False, repr=False, compare=False)
    _route: GroupRoute | None = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        if self.nodes_per_process != 1:
            raise BadInput.at("nodes_per_process", ONE_NODE)

    def prepare(self, directory: ProcessDirectory, most_bytes: int) -> None:
        prepare_nccl(directory.process.ranks[0], self.share_gpu)
        self._most_bytes = most_bytes
        super().prepare(directory, most_bytes)

    @property
    def plan(self) -> ProcessGroupPlan:
        return ProcessGroupPlan(
            nodes_per_process=1,
            has_group=True,
            is_plain=not self.trusted_network,
            first_ports={"base_port": self.base_port, "group_port": self.group_port},
            local_ports={"base_port"} if self.local == "tcp" else (),
            backend=self.backend,
            share_gpu=self.share_gpu,
        )

    def takes_part(self, rank: int, buffer_spec: BufferSpec) -> bool:
        """Whether the edges of a local node may go through the group."""
        return True

    def make_endpoint(
        self, rank: int, buffer_spec: BufferSpec, slots: Slots | None = None
    ) -> ProcessEndpoint:
        device, machine = buffer_spec.device, self.sockets.directory.process.machine
        self._capabilities = facts_of(device, machine, self.takes_part(rank, buffer_spec))
        self._buffer_spec = buffer_spec
        if device.type != "cpu":
            slots = buffer_spec.slots(device)
        endpoint = super().make_endpoint(rank, buffer_spec, slots)
        route = GroupRoute(endpoint.peers, self.io_thread, endpoint.frame_route, self._most_bytes)
        endpoint.routes.insert(0, route)
        endpoint.waiter = route.transfer_queue
        size = len(self.sockets.directory.home)
        endpoint.collectives = GroupCollectives(
            route.group_membership, endpoint.peers, size, counters=endpoint.counters
        )
        # The group ends at the loss of any member, which a link shows.
        endpoint.keeps_links = True
        self.io_thread.listen(route)
        self._route = route
        return endpoint

    def open(self, peers: Sequence[int], run_id: int, timeout: float, absent: Collection[int] = ()) -> None:
        super().open(peers, run_id, timeout, absent)
        assert self._route is not None, "endpoint comes first"
        group_membership, directory = self._route.group_membership, self.sockets.directory
        if directory.incarnation:
            # The group ended with the process before this one: ZeroMQ carries all edges.
            group_membership.leave()
            return
        first = directory.processes[directory.home[min(directory.home.keys() - set(absent))]]
        port, key = self.group_port + first.index, "communication.group_port"
        rendezvous = StoreRendezvous(directory, "communication", port, run_id, absent, key)
        choose = BackendChoice(self.backend, self.share_gpu)
        group_factory = GroupFactory(
            rendezvous, self._capabilities, choose, self._buffer_spec.device, self._buffer_spec.peers
        )
        plan = group_membership.form(group_factory, timeout)
        if group_membership.rank in first.ranks:
            members, nodes = len(plan.members), len(rendezvous.ranks)
            whom = "all nodes" if members == nodes else f"{members} of {nodes} nodes"
            way = f"a {plan.backend} group of {whom}:" if plan.backend else "all edges by ZeroMQ, as"
            self.news = f"communication: {way} {plan.reason}"

    def close(self, timeout: float) -> None:
        super().close(timeout)
        if self._route is not None:
            self._route.group_membership.close(timeout)
            self._route.transfer_queue.clear()


@COMMUNICATIONS.register("hybrid")
@dataclass
class Hybrid(TorchDistributed):
    """A group among the nodes on GPUs, ZeroMQ on other edges (multimethod, Foster et al., 1997)."""

    local: Literal["shared_memory", "ipc", "tcp"] = option("shared_memory", changes="results")
    group_ranks: tuple[NonNegative, ...] | None = option(None, changes="results")
    """The nodes in the group, on any device; null: those on GPUs."""

    @property
    def plan(self) -> ProcessGroupPlan:
        # Without `group_ranks` the nodes of a machine without GPUs are outside the group.
        return replace(super().plan, group_ranks=self.group_ranks, members=frozenset(self.group_ranks or ()))

    def takes_part(self, rank: int, buffer_spec: BufferSpec) -> bool:
        if self.group_ranks is not None:
            return rank in self.group_ranks
        return buffer_spec.device.type != "cpu"
