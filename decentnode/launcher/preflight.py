"""What a machine needs before a run starts: free ports, enough open files, keys for its links."""

import resource
from collections.abc import Sequence

import zmq

from decentnode.communication.base import LINK_MULTIPLE, TransportPlan, kept_links
from decentnode.communication.security import key_files as keys
from decentnode.communication.security.curve import OLDEST_LIBZMQ, Credentials
from decentnode.communication.security.job_secret import VARIABLE, derived_credentials
from decentnode.config.link_security import KEY_FOLDER, needs_keys, ports_needed, secret_of
from decentnode.config.settings import KeyFolder, Settings
from decentnode.core.control_groups import room_for_processes
from decentnode.core.text import counted
from decentnode.errors import BadInput, Defect, refuse
from decentnode.graph.base import FORESEEN_ROUNDS, Graph

FILES_PER_PROCESS = 64
THREADS_PER_PROCESS, OTHER_THREADS = 4, 6
"""Threads of a host process (the loop, the socket thread and two of ZeroMQ), and of all else on a machine."""


def check(settings: Settings, machine: int) -> str:
    """Raises BadInput if this machine cannot run its part; returns the line of `file_shortage`."""
    settings.mapping.make().check_reachable()
    credentials(settings, machine)
    check_group(settings, machine)
    check_ports(settings, machine)
    check_writers(settings, machine)
    check_processes(settings, machine)
    return file_shortage(settings, machine)


def check_group(settings: Settings, machine: int) -> None:
    """Raises BadInput, in one line, if this machine cannot take part in the process group."""
    plan, ranks = settings.communication.make().plan, settings.mapping.make().ranks_of(machine)
    refuse(one.below(("communication",)) for one in plan.defects(settings.device, ranks))
    gradient_sync = settings.training.gradient_sync.make()
    refuse(one.below(("training",)) for one in gradient_sync.defects(settings.device, len(ranks)))


def check_ports(settings: Settings, machine: int) -> None:
    """Raises BadInput with one line for each key whose ports are not free."""
    refuse(defect for ports in ports_needed(settings, machine) for defect in ports.defects())


def check_writers(settings: Settings, machine: int) -> None:
    """Raises BadInput with one line for each writer whose package is not installed here."""
    writers = settings.records.writers if machine == 0 else ()
    lacks = [writer.make().lack() for writer in writers]
    refuse(Defect(("records", "writers", i), lack) for i, lack in enumerate(lacks) if lack)


def files_needed(graph: Graph, ranks: Sequence[int], plan: TransportPlan) -> int:
    """Estimates how many files the largest host process of a machine with these ranks opens."""
    here, size, most = {*ranks}, plan.nodes_in_one_process(len(ranks)), graph.num_nodes**2
    if not graph.static:
        # Links to peers that no coming round needs are closed.
        foreseen = max(len(graph.peers_in(rank, range(1 + FORESEEN_ROUNDS))) for rank in ranks)
        most = max(kept_links(), LINK_MULTIPLE * size * foreseen)

    def files(group: Sequence[int]) -> int:
        costs = [
            plan.local_files if peer in here else plan.remote_files
            for rank in group
            for peer in graph.partners(rank)
        ]
        return sum(sorted(costs, reverse=True)[:most])

    return FILES_PER_PROCESS + max(files(ranks[at : at + size]) for at in range(0, len(ranks), size))


def raise_file_limit() -> int:
    """Raises the limit of open files to the maximum for this user, and returns it."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard


def file_shortage(settings: Settings, machine: int) -> str:
    """Returns a line if this machine's limit of open files is too low for its nodes; otherwise empty."""
    plan: TransportPlan = settings.communication.make().plan
    if plan.one_machine:
        return ""
    ranks = settings.mapping.make().ranks_of(machine)
    needed, limit = files_needed(settings.graph.make(), ranks, plan), raise_file_limit()
    if limit >= needed:
        return ""
    return (
        f"open files: a process here needs about {needed}, the limit is {limit}; "
        f"raise it as root (ulimit -n {needed}), or take a sparser graph"
    )


def check_processes(settings: Settings, machine: int) -> None:
    """Raises BadInput, in one line, if this user or container may not have as many processes and threads."""
    plan, ranks = settings.communication.make().plan, settings.mapping.make().ranks_of(machine)
    hosts = plan.processes(len(ranks))
    needed, left = OTHER_THREADS + hosts * THREADS_PER_PROCESS, room_for_processes()
    if needed > left:
        raise BadInput(
            f"processes: {counted(hosts, 'process', 'processes')} of nodes need about {needed} processes and "
            f"threads, and the limit here leaves {left:.0f}; raise it (ulimit -u, or pids.max of the "
            f"container), or let nodes share processes (communication.nodes_per_process)"
        )


def credentials(settings: Settings, machine: int) -> Credentials | None:
    """Returns credentials for the links of `machine`, None if they are plain; raises BadInput in one line."""
    count = len(settings.mapping.make().machines)
    if not isinstance(settings.security, str) or settings.security == "environment":
        # Refused instead of a plain link: the user asked for authentication.
        if zmq.zmq_version_info() < OLDEST_LIBZMQ or not zmq.has("curve"):
            raise BadInput.at("security", f"libzmq {zmq.zmq_version()} cannot guard links; install pyzmq 26")
        if isinstance(settings.security, KeyFolder):
            return keys.load_credentials(settings.security.keys, machine, count)
        return derived_credentials(secret_of(settings) or b"", machine, count)
    if settings.security == "auto" and needs_keys(settings):
        raise BadInput.at(
            "security",
            f"others on the network could reach this run, and there is no folder '{KEY_FOLDER}' "
            f"beside the configuration; run: {keys.MAKE}, set {VARIABLE}, or write security: none",
        )
    return None
