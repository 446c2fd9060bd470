"""A run started by an engine: its machines, and where each of them writes."""

import os
import socket
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from decentnode.communication.security.job_secret import derived_credentials
from decentnode.config import loader as config
from decentnode.config.consistency import why_not_taken_back
from decentnode.config.link_security import secret_of
from decentnode.config.overrides import Override
from decentnode.config.plugin import Plugin
from decentnode.config.settings import KeyFolder, Settings
from decentnode.core.streams import print_line
from decentnode.core.text import printable
from decentnode.core.timeouts import Timeouts
from decentnode.errors import BadInput, StartError
from decentnode.formats.reader import machine_parts
from decentnode.launcher.cluster.place import find_place, is_first_here, saved_addresses
from decentnode.launcher.preflight import credentials
from decentnode.launcher.state.messages import PlaceRequest
from decentnode.launcher.state.run_directory import machine_directory, unused_directory
from decentnode.mapping.base import Linear, Mapping, is_loopback
from decentnode.mapping.environment import known_addresses
from decentnode.mapping.job import SchedulerJob, both_ends, find_job, find_series
from decentnode.mapping.open import Open
from decentnode.mapping.reachability import RETRY_INTERVAL, why_unreachable


def settle(settings: Settings, or_resume: bool = False) -> tuple[Settings, str]:
    """Returns the settings with the addresses of all machines and the index of this one, and the job's name.

    Where the settings list machines, the name is empty and only the directory changes: machines may share a
    file system, so each has its own. `or_resume`: the directory is that of an earlier start, if there was
    one, so its name must not depend on the time. Raises BadInput, and StartError if the others do not
    publish their addresses.
    """
    mapping: Mapping = settings.mapping.make()
    run_dir, job, several = settings.run_dir, mapping.job, len(mapping.machines) > 1
    label = find_series() if or_resume else job.label if job and several else ""
    if run_dir is None and label:
        run_dir = str(Path("runs") / f"{settings.name}-{label}")
    if or_resume and run_dir is None:
        raise BadInput(
            "--continue: nothing names the run; add run_dir=runs/NAME, or set DECENTNODE_JOB=NAME in the "
            "environment of all its machines"
        )
    settings = replace(settings, run_dir=run_dir)
    if isinstance(mapping, Open):
        job, addresses = _join_open_run(settings, mapping)
    elif job is None:
        if or_resume and several:
            run_dir = str(machine_directory(Path(str(run_dir)), this_machine(settings)))
        return replace(settings, run_dir=run_dir), ""
    else:
        addresses = known_addresses(job) or (_addresses_of_run(settings, mapping, job) if or_resume else [])
    if not addresses or (several and run_dir is None):
        # Imported here, because it loads torch's network code.
        from decentnode.mapping.job_store import agree

        # The clocks of machines differ, and a run is resumed by one directory.
        proposed = Path(run_dir or unused_directory(settings.name)).name
        addresses, name = agree(job, addresses, proposed, settings.failures.start_deadline)
        run_dir = run_dir or str(Path("runs") / name)
    if several and run_dir is not None:
        run_dir = str(machine_directory(Path(run_dir), job.machine))
    machines = tuple(replace(m, address=a) for m, a in zip(mapping.machines, addresses, strict=True))
    options = {"machines": machines, "rendezvous_port": mapping.rendezvous_port}
    place = f", the rendezvous is at port {mapping.rendezvous_port}" if several else ""
    label = f"{job.name}, at most {len(machines)} machines" if isinstance(mapping, Open) else str(job)
    print_line(f"{label}: this is machine {job.machine}{place}")
    is_given = settings.machine is not None and not isinstance(mapping, Open)
    machine = settings.machine if is_given else job.machine
    linear = Plugin(cls=Linear, options=options, kind="mapping", name="linear")
    return replace(settings, mapping=linear, machine=machine, run_dir=run_dir), job.name


def is_open(settings: Settings) -> bool:
    """Whether machines take places that are free, and nobody lists them."""
    return isinstance(settings.mapping.make(), Open)


def _addresses_of_run(settings: Settings, mapping: Mapping, job: SchedulerJob) -> list[str]:
    """Returns the addresses of all machines of a run that is in progress without this one; or nothing.

    Its machines have left the job's store long ago, so this one asks those that it knew, and machine 0.
    """
    # Where a lost machine ends the run, all meet in the store again.
    ends = settings.failures.on_loss == "stop" or why_not_taken_back(settings.sharing.make())
    if ends or len(mapping.machines) == 1:
        return []
    host, port = job.rendezvous[0], mapping.rendezvous_port
    known = {0: host} | saved_addresses(machine_directory(Path(str(settings.run_dir)), job.machine))
    others = {machine: address for machine, address in known.items() if machine != job.machine}
    request, guard = PlaceRequest(job.machine, job.name), credentials(settings, job.machine)
    offer = find_place(others, port, request, guard, Timeouts.rejoin_answer)
    if offer is None:
        return []
    own, _ = _ends(next(iter(offer.addresses.values())), port, time.monotonic())
    return _filled(mapping, offer.addresses | {job.machine: own})


def _join_open_run(settings: Settings, mapping: Open) -> tuple[SchedulerJob, list[str]]:
    """Returns the job with this machine's place, and the addresses that are known by now.

    The first machine is the one at the rendezvous; it hosts a new run, unless one is in progress without it.
    Raises BadInput where all places are taken, and StartError if no run is found.
    """
    if isinstance(settings.security, KeyFolder):
        raise BadInput.at("security", "keys are for listed machines; use one secret with mapping: open")
    (host, port), count = mapping.place, len(mapping.machines)
    own, first = _ends(host, port, time.monotonic() + settings.failures.start_deadline)
    wanted, known = _place_before(settings)
    wanted = wanted if settings.machine is None else settings.machine
    # On one host the first machine is the one that comes first.
    is_first = wanted == 0 or (wanted < 0 and own == first and is_first_here(port))
    secret = secret_of(settings)
    guest = derived_credentials(secret, count, count) if secret else None
    asker = f"{socket.gethostname()}:{os.path.abspath(str(settings.run_dir))}"  # noqa: PTH100
    if is_loopback(first):
        # Several machines of one host may have one directory.
        asker += f":{os.getpid()}"
    request = PlaceRequest(count, mapping.job_of(0).name, asker, wanted)
    others = {machine: address for machine, address in known.items() if machine != wanted}
    if not is_first:
        others[0] = first
    began = time.monotonic()
    while (offer := find_place(others, port, request, guest, Timeouts.rejoin_answer)) is None or offer.reason:
        waited = time.monotonic() - began
        # A machine that has ended keeps its place for a while.
        if offer is not None and waited > Timeouts.place:
            raise BadInput(f"mapping: {printable(offer.reason[:500])}")
        if offer is None and is_first:
            break
        # The run may begin meanwhile.
        if offer is None and waited > settings.failures.start_deadline:
            why = why_unreachable(first, port, Timeouts.launcher_probe) or "what answers is of another job"
            raise StartError(f"no run was found at {first}, port {port}, within {waited:.0f} s: {why}")
        time.sleep(RETRY_INTERVAL)
    index = offer.index if offer is not None else 0
    address = f"127.0.0.{1 + index}" if is_loopback(first) else own
    addresses = offer.addresses if offer is not None else {}
    return mapping.job_of(index), _filled(mapping, addresses | {index: address})


def _ends(host: str, port: int, limit: float) -> tuple[str, str]:
    """Returns this machine's address on the way to a host, and the host's; its name may not be known yet."""
    while True:
        try:
            return both_ends(host, port)
        except OSError as error:
            if time.monotonic() > limit:
                raise StartError(f"{host}: {error.strerror or error} (key mapping.rendezvous)") from error
        time.sleep(RETRY_INTERVAL)


def _place_before(settings: Settings) -> tuple[int, dict[int, str]]:
    """Returns the index that this machine had, or -1, and the addresses of all; by its directory."""
    folders = sorted(Path(settings.run_dir).glob("machine-*")) if settings.run_dir else []
    known = dict[int, str]()
    for folder in folders:
        known |= saved_addresses(folder)
    # Machines that share a file system have them all there.
    index = folders[0].name.removeprefix("machine-") if len(folders) == 1 else ""
    return int(index) if index.isdecimal() else -1, known


def _filled(mapping: Mapping, addresses: dict[int, str]) -> list[str]:
    """Returns the address of each machine, or what stands for it until the machine has come."""
    return [addresses.get(index) or machine.address for index, machine in enumerate(mapping.machines)]


def idle_notice(settings: Settings) -> str:
    """Returns the line that says that machines of a batch job have nothing to do; empty where they have."""
    job = find_job()
    if job is None or job.is_started or len(job.hosts) == 1 or len(settings.mapping.make().machines) > 1:
        return ""
    return (
        f"{job.name} has {len(job.hosts)} machines, and this run uses one; start one task on each (srun "
        "--ntasks-per-node=1), or the others are idle"
    )


def this_machine(settings: Settings) -> int:
    """Returns the index from the settings, or from this host's addresses."""
    if settings.machine is not None:
        return settings.machine
    return int(settings.mapping.make().find_machine())


def part_of(run_dir: Path, job: SchedulerJob | None, overrides: Sequence[Override] = ()) -> Path:
    """Returns this machine's part of a run's directory, if machines share it; otherwise all of it.

    Raises BadInput where this machine is not found among several that share it.
    """
    directory = run_dir
    if job:
        directory = machine_directory(run_dir, job.machine)
    elif len(parts := machine_parts(run_dir)) == 1:
        return parts[0]
    elif parts or (os.path.isfile(run_dir / "config.yaml") and any(run_dir.glob("machine-*/config.yaml"))):  # noqa: PTH113
        # Or the directory itself is that of the machine which came first.
        settings = config.load((parts or [run_dir])[0] / "config.yaml", overrides)
        is_given = any(isinstance(o, str) and o.startswith("machine=") for o in overrides)
        directory = machine_directory(
            run_dir, this_machine(settings if is_given else replace(settings, machine=None))
        )
    return directory if os.path.isdir(directory) else run_dir  # noqa: PTH112 - it may be too long, or not ours
