"""The job that an engine has started, from the environment of one of its processes.

The neutral variables are `PLACE`; an engine that sets its own, such as torchrun, Slurm, Kubernetes or MPI,
has a translator here of a few lines. `DECENTNODE_JOB` names a job in place of the engine's own name.
"""

import os
import re
import socket
import subprocess
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from math import inf
from pathlib import Path

from decentnode.core.timeouts import Timeouts
from decentnode.errors import MappingError

Environ = Mapping[str, str]
TORCHRUN = (
    "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT",
)  # fmt: skip
SRUN = ("SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_NODEID")
BATCH = ("SLURM_JOB_ID", "SLURM_JOB_NODELIST", "SLURM_TASKS_PER_NODE")
"""The variables in the script of a batch job, which srun has not started."""
JOB, RENDEZVOUS, GRACE = "DECENTNODE_JOB", "DECENTNODE_RENDEZVOUS", "DECENTNODE_GRACE"
PLACE = ("DECENTNODE_MACHINE", "DECENTNODE_MACHINES")
"""The variables of a place: the index of this machine, and the number of machines."""
ENGINES = {
    "Open MPI": ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    "MPICH": ("PMI_RANK", "PMI_SIZE"),
    "Kubernetes": ("JOB_COMPLETION_INDEX", PLACE[1]),
}
"""By engine its variables of the same meaning; an Indexed Job of Kubernetes sets the first one alone."""
STORE_PORT = 29400
"""The port of the store of a rendezvous that names none."""
MOST_HOSTS = 65_536
"""A limit above the size of any cluster; a longer list is a mistake."""
PORT_BLOCKS = 50
PORT_BLOCK = 350
"""The distance of two jobs' ports: no default of one is that of another, up to 30 nodes on a machine."""
FIRST_PORT = 1024
"""The lowest port that a job uses; ports below are for root."""
STEP_STRIDE = 7
"""The distance of the ports of two steps of a Slurm job; the next block belongs to the next job."""
_LABEL = re.compile(r"\w[\w.-]{0,200}", re.ASCII)
_TASKS = re.compile(r"(\d+)(?:\(x(\d+)\))?")


@dataclass(frozen=True)
class SchedulerJob:
    """The processes that were started together, and the index of this one's machine."""

    starter: str
    """The engine, such as `torchrun` or `srun`."""
    identity: str
    """Distinguishes the jobs of a user on one machine."""
    processes: tuple[int, ...]
    """The number of processes of each machine."""
    machine: int
    """The index of this machine."""
    label: str = ""
    """The number of the job, where all machines know it."""
    series: str = ""
    """What the job has in common with its repetitions, and with no other job; empty: nobody says that."""
    name: str = ""
    """A name that all machines of the job have in common, and no others, such as `Slurm job 77.0`."""
    number: int = 0
    """Chooses the ports; consecutive jobs of Slurm have consecutive ones."""
    hosts: tuple[str, ...] = ()
    """The machines' names; empty where they are unknown."""
    rendezvous: tuple[str, int] = ("", 0)
    """The host and port of the store through which the machines find each other; it is on machine 0."""
    hosts_store: bool = False
    """Whether the first process of machine 0 must open that store itself."""
    is_started: bool = True
    """Whether the starter has run; False in the script of a batch job, which may only query the job."""

    @property
    def size(self) -> int:
        """The number of processes."""
        return sum(self.processes)

    def port(self, default: int) -> int:
        """The port that this job uses where the user names none, so that jobs can share a machine."""
        job_port = default - PORT_BLOCK * (self.number % PORT_BLOCKS)
        return job_port if job_port >= FIRST_PORT else default

    def __str__(self) -> str:
        counts = " + ".join(map(str, self.processes))
        count = len(self.processes)
        where = f"{count} machines" if count > 1 else "1 machine"
        return f"{self.starter} has started {counts} processes on {where}"


def find_job(environ: Environ = os.environ) -> SchedulerJob | None:
    """The job of this process; None outside of jobs. Raises MappingError where its numbers contradict."""
    job, name = _find_job(environ), _named(environ)
    if job is None or not name:
        return job
    return replace(
        job, label=name, series=name, name=f"job {name}", number=zlib.crc32(name.encode()),
        identity=f"{name}/{job.identity}",
    )  # fmt: skip


def find_series(environ: Environ = os.environ) -> str:
    """Returns what this start has in common with its repetitions; empty where nobody says that."""
    job = find_job(environ)
    return job.series if job else _named(environ)


def repetition(run_dir: Path, environ: Environ = os.environ) -> str:
    """Returns how a job is repeated whose command continues its run; empty outside of jobs."""
    if not (series := find_series(environ)):
        return ""
    # A job that is submitted once more has another number, which names another folder.
    is_by_number = not environ.get(JOB) and run_dir.match(f"*-{series}") | run_dir.parent.match(f"*-{series}")
    return "submit the same job again" + (f" with {JOB}={series}" if is_by_number else "")


def seconds_to_stop(environ: Environ = os.environ) -> float:
    """Returns how long an end may take after the first SIGTERM, by the engine's grace; inf: nobody says.

    A part of it is left for what follows the nodes' end. Raises MappingError.
    """
    text = environ.get(GRACE, "")
    if not text:
        return inf
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < inf:
        raise MappingError(f"{GRACE}={text[:40]}: must be seconds from SIGTERM to SIGKILL, such as 30")
    return Timeouts.stop_share * seconds


def _named(environ: Environ) -> str:
    """Returns the job's name in `DECENTNODE_JOB`; raises MappingError for one that is no name of a folder."""
    name = environ.get(JOB, "")
    if name and not _LABEL.fullmatch(name):
        raise MappingError(f"{JOB}={name[:80]}: must be letters, digits, '-', '_' and '.'")
    return name


def _find_job(environ: Environ) -> SchedulerJob | None:
    if any(environ.get(name) for name in PLACE):
        return _of_place(environ)
    if all(name in environ for name in TORCHRUN):
        return _of_torchrun(environ)
    if all(environ.get(name) for name in SRUN):
        return _of_srun(environ)
    if all(environ.get(name) for name in BATCH) and not environ.get("SLURM_STEP_ID"):
        return _of_srun({name: environ[name] for name in BATCH} | {"SLURM_NODEID": "0"})
    # An engine that does not say where machine 0 is.
    return _of_place(environ) if environ.get(RENDEZVOUS) else None


def _of_place(environ: Environ) -> SchedulerJob:
    """The place that the neutral variables tell; an engine's own stand for those that are missing."""
    said = {name: environ[name] for name in PLACE if environ.get(name)}
    starter = "the environment"
    for engine, names in ENGINES.items():
        if len(said) < 2 and all(environ.get(name) for name in names):
            starter, own = engine, dict(zip(PLACE, map(environ.__getitem__, names), strict=True))
            differing = [name for name in said if said[name] != own[name]]
            if differing:
                other = names[PLACE.index(differing[0])]
                raise MappingError(
                    f"{differing[0]}={said[differing[0]]}, but {engine} sets {other}={environ[other]}; "
                    "leave the first out"
                )
            said |= own
    if missing := [name for name in PLACE if name not in said]:
        given = ", ".join(f"{name}={value}" for name, value in said.items()) or f"{RENDEZVOUS} is set"
        raise MappingError(f"{given}, but {' and '.join(missing)} not; set all of a machine's place")
    machine, machines = (_number(said, name) for name in PLACE)
    if not machine < machines <= MOST_HOSTS:
        raise MappingError(
            f"{PLACE[0]}={machine} of {PLACE[1]}={machines}: indices are from 0 to {PLACE[1]} - 1"
        )
    where = environ.get(RENDEZVOUS, "")
    if machines > 1 and not where:
        raise MappingError(
            f"{PLACE[1]}={machines}, but {RENDEZVOUS} is not set; set it to host:port of machine 0"
        )
    rendezvous = host_and_port(where) if where else ("", 0)
    return SchedulerJob(
        starter, where, (1,) * machines, machine=machine, name=f"job of {where}" if where else "",
        number=0, rendezvous=rendezvous, hosts_store=True,
    )  # fmt: skip


def host_and_port(text: str) -> tuple[str, int]:
    """Returns both; an IPv6 address with a port has brackets, as in URLs."""
    match = re.fullmatch(r"(?:\[(.+)\]|([^:]+)|([^\[\]]*:[^\[\]]*:[^\[\]]*))(?::(\d{1,5}))?", text)
    port = int(match[4] or STORE_PORT) if match else 0
    if match is None or not 0 < port < 1 << 16:
        raise MappingError(
            f"{RENDEZVOUS}={text[:80]}: must be host:port of machine 0, such as node0:{STORE_PORT}"
        )
    return match[1] or match[2] or match[3], port


def job_of_one_task() -> SchedulerJob | None:
    """The job of this process, whose one task on a machine forks all nodes; None outside of jobs.

    Raises MappingError where a machine has several processes.
    """
    job = find_job()
    if job is not None and job.is_started and max(job.processes) > 1:
        raise MappingError(
            f"{job}; start one task per machine, with mapping: {{name: environment, nodes_per_machine: N}}"
        )
    return job


def job_port(default: int) -> int:
    """The port of this process's job in place of a default; the default itself outside of jobs."""
    try:
        job = find_job()
    except MappingError:  # reported where the machines are asked for
        return default
    return job.port(default) if job else default


def _of_torchrun(environ: Environ) -> SchedulerJob:
    size, local_size, machine, machines = (_number(environ, name) for name in TORCHRUN[:4])
    if size != machines * local_size or machine >= machines:
        raise MappingError(
            f"torchrun sets WORLD_SIZE={size}, GROUP_WORLD_SIZE={machines}, LOCAL_WORLD_SIZE={local_size}, "
            "which do not fit; start every machine with the same --nproc-per-node"
        )
    host, port = environ["MASTER_ADDR"], _number(environ, "MASTER_PORT")
    run = environ.get("TORCHELASTIC_RUN_ID", "")
    # Without the restarts: each agent of torchrun counts its own.
    name = f"torchrun job {run} of {host}:{port}"
    return SchedulerJob(
        "torchrun", f"{run}/{host}/{port}", (local_size,) * machines, machine=machine,
        # Torchrun's own word where nobody has named the run.
        series=run if run != "none" and _LABEL.fullmatch(run) else "",
        name=name, number=zlib.crc32(name.encode()), rendezvous=(host, port),
        hosts_store=environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True",
    )  # fmt: skip


def _of_srun(environ: Environ) -> SchedulerJob:
    """The step's own machines where srun names them, else those of the whole job."""
    hosts = expand_hosts(_first(environ, "SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST"))
    counts = expand_counts(_first(environ, "SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE"))
    machine = _number(environ, "SLURM_NODEID")
    if len(hosts) != len(counts) or machine >= len(hosts):
        raise MappingError(
            f"SLURM names {len(hosts)} hosts, tasks for {len(counts)}, and names this machine "
            f"{machine}, which does not fit; start with srun in one allocation"
        )
    step = environ.get("SLURM_STEP_ID", "")
    words = [word for word in (environ["SLURM_JOB_ID"], step) if word]
    # A job that is requeued keeps its id, and its steps are counted from 0 again.
    series, restart = ".".join(words), environ.get("SLURM_RESTART_COUNT", "")
    label = f"{series}.{restart}" if restart else series
    return SchedulerJob(
        starter="srun",
        identity=label,
        processes=tuple(counts),
        machine=machine,
        label=label,
        series=series,
        name=f"Slurm job {label}",
        number=_job_number(environ["SLURM_JOB_ID"], step),
        hosts=tuple(hosts),
        is_started=bool(step),
    )


def _job_number(job: str, step: str) -> int:
    """A number that a job keeps when it is requeued."""
    if job.isdecimal() and (step or "0").isdecimal():
        return int(job) + STEP_STRIDE * int(step or "0")
    return zlib.crc32(f"{job}.{step}".encode())


def _first(environ: Environ, *names: str) -> str:
    value = next((environ[name] for name in names if environ.get(name)), None)
    if value is None:
        raise MappingError(f"SLURM sets none of {' or '.join(names)}; start with srun in an allocation")
    return value


def _number(environ: Environ, name: str) -> int:
    text = environ[name].strip()
    if not (text.isascii() and text.isdigit()) or len(text) > 9:
        raise MappingError(
            f"the environment has {name}={text[:40]}, no whole number; start with torchrun or srun"
        )
    return int(text)


def expand_hosts(text: str) -> list[str]:
    """Expands `a[1-3],b` to a1, a2, a3, b, by `scontrol`; raises MappingError."""
    hosts = list(_shown_by_scontrol(text)) if "[" in text or "]" in text else text.split(",")
    if not all(hosts):
        raise MappingError(f"'{text[:80]}' is no list of hosts, such as a[1-3,07-09],b")
    return hosts


@cache
def _shown_by_scontrol(text: str) -> tuple[str, ...]:
    """Every host of a list with ranges, expanded by scontrol; raises MappingError."""
    command, nothing = ["scontrol", "show", "hostnames", text], subprocess.DEVNULL
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=Timeouts.scontrol, stdin=nothing, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise _failed(text, str(error)) from error
    if done.returncode:
        raise _failed(text, " ".join(done.stderr.split()))
    return tuple(done.stdout.split())


def _failed(text: str, why: str) -> MappingError:
    return MappingError(f"`scontrol show hostnames '{text[:80]}'` failed: {why[:200]}; list mapping.machines")


def expand_counts(text: str) -> list[int]:
    """Expands `2(x3),1` to 2, 2, 2, 1; raises MappingError."""
    counts: list[int] = []
    for word in text.split(","):
        match = _TASKS.fullmatch(word.strip())
        times = int(match[2] or 1) if match else 0
        if not match or len(counts) + times > MOST_HOSTS:
            raise MappingError(f"'{text[:80]}' is no list of tasks per machine, such as 2(x3),1")
        counts += [int(match[1])] * times
    return counts


def both_ends(host: str, port: int) -> tuple[str, str]:
    """Returns this machine's address on the way to a host, and the host's; raises OSError. Sends nothing."""
    family, _, _, _, target = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect(target)
        return probe.getsockname()[0], probe.getpeername()[0]
