"""The machines that an engine has started, which then need no list in the configuration."""

import os
from dataclasses import dataclass
from functools import cached_property

from decentnode.core.registry import MAPPINGS
from decentnode.errors import MappingError
from decentnode.mapping.base import Consecutive, Machine, is_loopback, placeholder
from decentnode.mapping.job import Environ, SchedulerJob, find_job
from decentnode.options import Port, Positive

LOOPBACK = "127.0.0.1"
MOST_ON_LOOPBACK = 254


@MAPPINGS.register("environment")
@dataclass(frozen=True)
class Environment(Consecutive):
    """The machines of torchrun (PyTorch Elastic, 2020), srun (SLURM: Yoo et al., JSSPP 2003) or others.

    Engines without a translator in `mapping/job.py` set `DECENTNODE_MACHINE`, `DECENTNODE_MACHINES` and
    `DECENTNODE_RENDEZVOUS`. Each machine has `nodes_per_machine` nodes, forked by the one process that was
    started there. This mapping is the default, with equal shares, where there are several machines and the
    configuration lists none.
    """

    nodes_per_machine: Positive = 1
    rendezvous_port: Port = 29550
    """The port of each machine's launcher; the store of torchrun or of the job is at 29500 or 29400."""

    def __post_init__(self) -> None:
        # An address that is not known yet has a placeholder.
        addresses = known_addresses(self.job) or [*map(placeholder, range(len(self.job.processes)))]
        machines = tuple(Machine(address, self.nodes_per_machine) for address in addresses)
        object.__setattr__(self, "machines", machines)

    @cached_property
    def job(self) -> SchedulerJob:
        """The job of this process; raises MappingError outside of jobs."""
        scheduler_job = find_job()
        if scheduler_job is None:
            raise MappingError(
                "environment: no engine has started this (torchrun, srun, or one that sets "
                "DECENTNODE_MACHINE); do that, or list mapping.machines"
            )
        return scheduler_job

    @property
    def origin(self) -> str:
        return f"{self.job}, nodes_per_machine: {self.nodes_per_machine}"


def known_addresses(job: SchedulerJob) -> list[str]:
    """The machines' addresses where they are known without communication; otherwise empty.

    Where the job's store has a loopback address all machines are this host, and each gets another one.
    """
    count = len(job.processes)
    if count == 1:
        return [LOOPBACK]
    if job.hosts:
        return list(job.hosts)
    if is_loopback(job.rendezvous[0]) and count <= MOST_ON_LOOPBACK:
        return [f"127.0.0.{1 + machine}" for machine in range(count)]
    return []


def started_machines(environ: Environ = os.environ) -> int:
    """The number of machines on which an engine has started this; used where none are listed."""
    job = find_job(environ)
    return len(job.processes) if job is not None and job.is_started else 1
