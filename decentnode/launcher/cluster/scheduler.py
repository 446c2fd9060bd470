"""A run started by an engine: its machines, and where each of them writes."""

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from decentnode.config import loader as config
from decentnode.config.overrides import Override
from decentnode.config.plugin import Plugin
from decentnode.config.settings import Settings
from decentnode.core.streams import print_line
from decentnode.errors import BadInput
from decentnode.formats.reader import machine_parts
from decentnode.launcher.state.run_directory import machine_directory, unused_directory
from decentnode.mapping.base import Linear, Mapping
from decentnode.mapping.environment import known_addresses
from decentnode.mapping.job import SchedulerJob, find_job, find_series


def job_of(settings: Settings) -> SchedulerJob | None:
    """Returns the job whose machines take part; None if the settings list them. Raises MappingError."""
    mapping: Mapping = settings.mapping.make()
    return mapping.job


def settle(settings: Settings, or_resume: bool = False) -> Settings:
    """Returns the settings with the job's machines and the index of this one, unless they list machines.

    Machines may share a file system, so each has its own directory. `or_resume`: the directory is that of an
    earlier start, if there was one, so its name must not depend on the time. Raises BadInput, and StartError
    if the others do not publish their addresses.
    """
    job, mapping, run_dir = job_of(settings), settings.mapping.make(), settings.run_dir
    several = len(mapping.machines) > 1
    label = find_series() if or_resume else job.label if job and several else ""
    if run_dir is None and label:
        run_dir = str(Path("runs") / f"{settings.name}-{label}")
    if or_resume and run_dir is None:
        raise BadInput(
            "--continue: nothing names the run; add run_dir=runs/NAME, or set DECENTNODE_JOB=NAME in the "
            "environment of all its machines"
        )
    # A configuration that lists its machines overrides the job.
    if job is None:
        if or_resume and several:
            run_dir = str(machine_directory(Path(str(run_dir)), this_machine(settings)))
        return replace(settings, run_dir=run_dir)
    addresses = known_addresses(job)
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
    print_line(f"{job}: this is machine {job.machine}{place}")
    return replace(
        settings,
        mapping=Plugin(cls=Linear, options=options, kind="mapping", name="linear"),
        machine=job.machine if settings.machine is None else settings.machine,
        run_dir=run_dir,
    )


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
