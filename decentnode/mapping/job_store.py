"""The store of a job at its rendezvous: through it machines learn each other's addresses, and a name."""

import ipaddress
import json
import re
from collections.abc import Sequence

from torch.distributed import PrefixStore  # type: ignore[attr-defined]

from decentnode.core.text import first_line, printable
from decentnode.core.timeouts import Timeouts
from decentnode.errors import BadInput, MappingError, StartError
from decentnode.mapping import stores
from decentnode.mapping.job import SchedulerJob, both_ends


def agree(job: SchedulerJob, known: Sequence[str], name: str, seconds: float) -> tuple[list[str], str]:
    """Returns the machines' addresses, and machine 0's name of the run's directory, from the job's store.

    Each publishes its address on the way to machine 0, unless they are `known`. Raises StartError when
    something is missing after `seconds`, MappingError when two addresses are the same.
    """
    host, port = job.rendezvous
    serves = job.hosts_store and job.machine == 0
    try:
        store = _store(job, seconds)
        # Machine 0 says the name, and machine 1 the address of machine 0 beside its own.
        said = [name] if job.machine == 0 else [] if known else _own_addresses(job)
        count = len(job.processes)
        whole, call = stores.gathered(store, job.machine, count, json.dumps(said), seconds)
        (agreed,), *others = (json.loads(text) for text in whole)
        learned = [*known] or [others[0][1], *(addresses[0] for addresses in others)]
        stores.part(PrefixStore(call, store), count, serves, seconds=seconds)
    except stores.PeerEnded as ended:
        if serves:
            stores.await_end(store, Timeouts.early_end)
        kind = BadInput if ended.is_bad_input else StartError
        reason = printable(ended.reason[:500])
        raise kind(
            f"{job.starter}: machine {ended.index} has ended before the run began: {reason}"
        ) from ended
    except (RuntimeError, OSError, StartError, ValueError, LookupError, TypeError) as error:
        reason = first_line(error)[:200]
        where = f"at {host}:{port} within {seconds:.0f} s"
        raise StartError(
            f"{job.starter}: not all machines published their addresses {where}: {reason}"
        ) from error
    # The store authenticates nobody, so what it says must not lead to another folder.
    if not re.fullmatch(r"\w[\w.-]{0,200}", str(agreed), re.ASCII):
        raise StartError(f"{job.starter}: machine 0 published no name of a directory but '{agreed[:40]}'")
    return [*known] or _checked(job, learned), agreed


def end_all(job: SchedulerJob, reason: str, is_bad_input: bool, seconds: float) -> None:
    """Tells the machines that wait in `agree` that this one ends, those to come for so many seconds."""
    said = job.machine, reason, is_bad_input
    stores.end_all(_store(job, seconds), len(job.processes), said, seconds)


def _store(job: SchedulerJob, seconds: float) -> PrefixStore:
    serves = job.hosts_store and job.machine == 0
    return PrefixStore(f"decentnode/{job.identity}", stores.join(*job.rendezvous, seconds, serves))


def _own_addresses(job: SchedulerJob) -> list[str]:
    """Returns this machine's address for the others, and machine 0's, which does not know which they use."""
    return [*both_ends(*job.rendezvous)]


def _checked(job: SchedulerJob, addresses: Sequence[str]) -> list[str]:
    for machine, address in enumerate(addresses):
        try:
            ipaddress.ip_address(address)
        except ValueError as error:
            raise StartError(
                f"{job.starter}: machine {machine} published no address but '{address[:40]}'"
            ) from error
        first = addresses.index(address)
        if first != machine:
            raise MappingError.at(
                "mapping",
                f"{job.starter}: machines {first} and {machine} have the same address {address}; start one "
                "on each, or with a rendezvous at 127.0.0.1 (torchrun: --master-addr) where all are one host",
            )
    return list(addresses)
