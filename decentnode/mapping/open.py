"""Machines that are not listed: each takes the next place of the graph when it comes."""

import os
from dataclasses import dataclass, field
from functools import cached_property

from decentnode.core.registry import MAPPINGS
from decentnode.errors import MappingError
from decentnode.mapping.base import Consecutive, Machine, is_loopback, placeholder
from decentnode.mapping.environment import MOST_ON_LOOPBACK
from decentnode.mapping.job import JOB, RENDEZVOUS, SchedulerJob, host_and_port
from decentnode.options import NonNegative, Positive


@MAPPINGS.register("open")
@dataclass(frozen=True)
class Open(Consecutive):
    """Machines that nobody has listed, as in elastic jobs (PyTorch Elastic, 2020).

    The ranks of the graph are in blocks of `nodes_per_machine`, and a machine takes the first block that is
    free when it comes; the last block may be smaller. The first round begins by `failures.start`, and a block
    whose machine is lost is free again. The machine at the `rendezvous` has the first block.
    """

    nodes_per_machine: Positive
    rendezvous: str = ""
    """Host and port of the machine that has the first block; empty: `DECENTNODE_RENDEZVOUS`."""
    nodes: NonNegative = field(default=0)
    """The nodes of the graph, which the configuration fills in."""

    def __post_init__(self) -> None:
        _ = self.place
        blocks = [min(self.nodes_per_machine, self.nodes - first) for first in self._firsts]
        is_one_host = is_loopback(self.place[0]) and len(blocks) <= MOST_ON_LOOPBACK
        machines = (
            Machine(f"127.0.0.{1 + index}" if is_one_host else placeholder(index), count)
            for index, count in enumerate(blocks)
        )
        object.__setattr__(self, "machines", tuple(machines))

    @property
    def _firsts(self) -> range:
        return range(0, self.nodes, self.nodes_per_machine)

    @cached_property
    def place(self) -> tuple[str, int]:
        """The host of the first machine, and the port of the rendezvous there; raises MappingError."""
        text = self.rendezvous or os.environ.get(RENDEZVOUS, "")
        if not text:
            raise MappingError.at("rendezvous", f"is not set, nor {RENDEZVOUS}; give host:port of a machine")
        return host_and_port(text)

    @property
    def rendezvous_port(self) -> int:  # type: ignore[override]
        """The port of the rendezvous on each machine."""
        return self.place[1]

    def job_of(self, machine: int) -> SchedulerJob:
        """Returns the job that its machines are of."""
        host, port = self.place
        name = os.environ.get(JOB) or f"open run of {host}:{port}"
        return SchedulerJob(
            "the rendezvous", name, (1,) * len(self.machines), machine=machine, name=name,
            rendezvous=self.place,
        )  # fmt: skip

    @property
    def origin(self) -> str:
        return f"open, nodes_per_machine: {self.nodes_per_machine}"
