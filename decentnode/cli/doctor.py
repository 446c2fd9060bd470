"""The checks of `decentnode doctor`: whether this machine can run nodes, with a remedy for each problem."""

import ast
import inspect
import ipaddress
import json
import os
import platform
import re
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import metadata
from itertools import pairwise
from math import inf
from pathlib import Path
from typing import Literal, NamedTuple

import zmq

from decentnode.communication.security.curve import OLDEST_LIBZMQ
from decentnode.config.link_security import ports_needed
from decentnode.config.settings import Settings
from decentnode.core.control_groups import processors, room_for_processes
from decentnode.core.process_setup import check_kernel
from decentnode.core.text import readable_bytes
from decentnode.core.timeouts import Timeouts
from decentnode.errors import BadInput
from decentnode.launcher.preflight import credentials, file_shortage
from decentnode.mapping.base import is_own_address

OLDEST_TORCH = (2, 6)
FEW_FILES = 256
FEW_PROCESSES = 128
LITTLE_MEMORY = 1 << 30
FORMULA_WIDTH = 40
LIMITS_HEADING = "limit, seconds, formula, and what it bounds:"
# A child process asks, because a process that has used CUDA cannot fork nodes that use it.
_TORCH_FACTS = (
    "import json, torch; gpus = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]; "
    "print(json.dumps([torch.__version__, torch.version.cuda, gpus]))"
)


@dataclass(frozen=True)
class Finding:
    """One line of the doctor's report."""

    level: Literal["ok", "warn", "fail"]
    subject: str
    value: str
    advice: str = ""

    def __str__(self) -> str:
        advice = f"; {self.advice}" if self.advice else ""
        return f"{self.level:<5} {self.subject:<14} {self.value}{advice}"


def graded(
    subject: str, value: str, good: bool, advice: str, level: Literal["warn", "fail"] = "fail"
) -> Finding:
    """`ok` when good; otherwise `level` with the remedy."""
    return Finding("ok", subject, value) if good else Finding(level, subject, value, advice=advice)


def examine(settings: Settings | None = None, machine: int = 0) -> Iterator[Finding]:
    """All findings about this machine, and whether it can run its part of these settings."""
    for check in CHECKS:
        yield from check()
    if settings is not None:
        yield from experiment_ports(settings, machine)
        yield experiment_keys(settings, machine)
        shortage = file_shortage(settings, machine)
        yield graded("limits", "enough for this experiment", not shortage, advice=shortage)


def python() -> Iterator[Finding]:
    """The interpreter."""
    yield Finding("ok", "Python", f"{platform.python_version()} ({sys.executable})")


def torch() -> Iterator[Finding]:
    """Checks PyTorch and the GPUs that it finds, in a child process."""
    command = [sys.executable, "-P", "-c", _TORCH_FACTS]
    try:
        answer = subprocess.run(
            command, capture_output=True, text=True, timeout=Timeouts.torch_import, check=False
        )
    except subprocess.TimeoutExpired:
        yield Finding(
            "fail",
            "torch",
            f"does not load within {Timeouts.torch_import:.0f} s",
            advice="is the disk that slow?",
        )
        return
    if answer.returncode:
        reason = (answer.stderr.strip().splitlines() or ["it crashed"])[-1]
        yield Finding("fail", "torch", reason, advice="pip install -c constraints.txt torch")
        return
    version, cuda, gpus = json.loads(answer.stdout.splitlines()[-1])
    yield graded("torch", version, numbers(version) >= OLDEST_TORCH, advice="install 2.6 or newer")
    yield _gpu(cuda, gpus)


def _gpu(cuda: str | None, gpus: list[str]) -> Finding:
    if gpus:
        return Finding("ok", "GPU", f"{len(gpus)}: {', '.join(sorted(set(gpus)))} (CUDA {cuda})")
    if shutil.which("nvidia-smi") is None:
        return Finding("ok", "GPU", "none; nodes compute on the CPU")
    why = "this torch is built without CUDA" if cuda is None else f"torch with CUDA {cuda} does not see it"
    return Finding("warn", "GPU", why, advice="see nvidia-smi, and install a torch that fits the driver")


def libzmq() -> Iterator[Finding]:
    """The library that carries messages."""
    version = f"{zmq.zmq_version()} (pyzmq {metadata.version('pyzmq')})"
    yield graded("libzmq", version, zmq.zmq_version_info() >= OLDEST_LIBZMQ, advice="pip install 'pyzmq>=26'")


def kernel() -> Iterator[Finding]:
    """Calls without which nodes cannot run, and how many processes may start."""
    try:
        check_kernel()
    except BadInput as error:
        yield Finding("fail", "kernel", str(error))
    else:
        yield Finding("ok", "kernel", platform.release())
    left = room_for_processes()
    room = "no limit" if left == inf else f"{left:.0f} more may start"
    advice = "raise it (ulimit -u, or pids.max of the container)"
    yield graded("processes", room, left >= FEW_PROCESSES, advice=advice, level="warn")


def open_files() -> Iterator[Finding]:
    """The limit of open files of a node process, which raises the soft limit itself."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    advice = "raise the hard limit (ulimit -Hn) as root"
    yield graded("open files", f"{hard} (soft limit {soft})", hard >= FEW_FILES, advice=advice, level="warn")


def shared_memory() -> Iterator[Finding]:
    """Checks memory without a name, which neighbors open through /proc."""
    try:
        fd = os.memfd_create("decentnode-doctor")
        os.close(os.open(f"/proc/{os.getpid()}/fd/{fd}", os.O_RDONLY))
        os.close(fd)
    except OSError as error:
        advice = "use communication.local=ipc, or give this container /proc"
        yield Finding("fail", "shared memory", f"memfd cannot be used: {error.strerror}", advice=advice)
    else:
        yield Finding("ok", "shared memory", "memfd, opened through /proc")
    if Path("/dev/shm").is_dir():
        yield Finding("ok", "/dev/shm", f"{readable_bytes(shutil.disk_usage('/dev/shm').free)} free")
    else:
        yield Finding(
            "warn", "/dev/shm", "missing", advice="nodes do not need it, NCCL between GPUs does; mount it"
        )


def addresses() -> Iterator[Finding]:
    """Addresses for this machine in `mapping.machines`."""
    addresses = [ip for ip in own_addresses() if not ipaddress.ip_address(ip).is_loopback]
    advice = "runs over several machines need a network"
    yield graded(
        "addresses", ", ".join(addresses) or "only loopback", bool(addresses), advice=advice, level="warn"
    )


def processor() -> Iterator[Finding]:
    """The cores that this process may use."""
    yield Finding("ok", "CPU cores", f"{processors()} of {os.cpu_count()}")


def memory() -> Iterator[Finding]:
    """Checks the free memory."""
    lines = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    total, free = (1024 * int(lines[name].split()[0]) for name in ("MemTotal", "MemAvailable"))
    available = f"{readable_bytes(free)} of {readable_bytes(total)} available"
    yield graded("memory", available, free >= LITTLE_MEMORY, advice="end other programs", level="warn")


CHECKS: tuple[Callable[[], Iterator[Finding]], ...] = (
    python, torch, libzmq, open_files, kernel, shared_memory, addresses, processor, memory,
)  # fmt: skip


def experiment_ports(settings: Settings, machine: int) -> Iterator[Finding]:
    """The TCP ports that this machine would bind."""
    needed = ports_needed(settings, machine)
    if not needed:
        yield Finding("ok", "ports", "this experiment needs none")
    for ports in needed:
        last = ports.first + ports.count - 1
        free = f"{ports.first}..{last} free at {ports.address} ({ports.key})"
        failures = [Finding("fail", "ports", str(defect)) for defect in ports.defects()]
        yield from failures or [Finding("ok", "ports", free)]


def experiment_keys(settings: Settings, machine: int) -> Finding:
    """The protection of this machine's links."""
    try:
        keys = credentials(settings, machine)
    except BadInput as error:
        return Finding("fail", "keys", error.lines[0])
    if keys is None:
        why = "security: none" if settings.security == "none" else "only this machine can reach them"
        return Finding("ok", "keys", f"links over TCP are plain ({why})")
    return Finding("ok", "keys", f"those of machine {machine}, one of {len(keys.public)} that are let in")


class Limit(NamedTuple):
    """One line of the table of time limits."""

    name: str
    seconds: float
    formula: str
    bounds: str

    def __str__(self) -> str:
        return f"{self.name:<20} {self.seconds:>6g}  {self.formula:<{FORMULA_WIDTH}}  {self.bounds}"


def limits(timeouts: Timeouts) -> Iterator[Limit]:
    """All time limits, with formula and description from their source; what only a run knows is a default."""
    (definition,) = ast.parse(inspect.getsource(Timeouts)).body
    assert isinstance(definition, ast.ClassDef)
    for node, following in pairwise([*definition.body, ast.Pass()]):
        if isinstance(node, ast.FunctionDef) and isinstance(node.body[-1], ast.Return):
            name, value, bounds = node.name, node.body[-1].value, ast.get_docstring(node) or ""
        elif isinstance(node, ast.AnnAssign) and isinstance(following, ast.Expr):
            name, value, bounds = ast.unparse(node.target), node.value, ast.literal_eval(following.value)
        else:
            continue
        yield Limit(name, _seconds(timeouts, name), _formula(name, value), bounds=" ".join(bounds.split()))


def _formula(name: str, value: ast.expr | None) -> str:
    if value is None:
        return f"failures.{name}"
    return (
        "fixed" if isinstance(value, ast.Constant) else re.sub(r"\b(self|Timeouts)\.", "", ast.unparse(value))
    )


def _seconds(timeouts: Timeouts, name: str) -> float:
    """A limit; the parameters of a method are other limits, or have defaults."""
    limit = getattr(timeouts, name)
    if not callable(limit):
        return float(limit)
    needed = [p.name for p in inspect.signature(limit).parameters.values() if p.default is p.empty]
    return float(limit(*(_seconds(timeouts, other) for other in needed)))


def own_addresses() -> list[str]:
    """The IPv4 and global IPv6 addresses of this host, as the kernel lists them."""
    tables = [path for name in ("fib_trie", "if_inet6") if (path := Path("/proc/net") / name).exists()]
    words = [line.split() for path in tables for line in path.read_text().splitlines()]
    v4 = [line[1] for line in words if len(line) == 2 and line[0] == "|--"]
    v6 = [str(ipaddress.IPv6Address(int(line[0], 16))) for line in words if len(line) == 6]
    usable = [ip for ip in dict.fromkeys(v4 + v6) if not ipaddress.ip_address(ip).is_link_local]
    return [ip for ip in usable if not ip.endswith((".0", ".255")) and is_own_address(ip)]


def numbers(version: str) -> tuple[int, ...]:
    """The first two numbers of a version, for comparisons."""
    return tuple(int("".join(filter(str.isdigit, part)) or 0) for part in version.split(".")[:2])
