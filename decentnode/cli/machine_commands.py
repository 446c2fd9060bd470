"""`decentnode commands`: the command that starts each machine, printed after its checks."""

import shlex
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from decentnode.cli.words import Starter
from decentnode.communication.security.job_secret import VARIABLE
from decentnode.communication.security.key_files import MANIFEST, load_manifest, secret_file
from decentnode.config.link_security import bind_error, ports_needed
from decentnode.config.settings import KeyFolder, SecretFile, Settings
from decentnode.errors import BadInput, Defect
from decentnode.launcher import preflight
from decentnode.mapping.base import Mapping, is_ip, is_loopback, is_unspecified

FIRST_PORT = 29400
"""Torchrun's own port at machine 0, unless the run needs it there."""


def command_lines(
    settings: Settings, config: Path, overrides: Sequence[str], starter: Starter, port: int | None = None
) -> Iterator[str]:
    """Yields a comment and a command for each machine, or one command for all; raises BadInput before.

    `port`: that of torchrun at machine 0. A machine that is this host is checked as before a start. Of the
    others the keys are checked as far as their list is here, and their ports are named.
    """
    mapping: Mapping = settings.mapping.make()
    if port is not None and starter is not Starter.TORCHRUN:
        raise BadInput("--port is that of torchrun; add --with torchrun, or leave it out")
    alone = len(mapping.machines) == 1
    here = [0] if alone and is_loopback(mapping.address(0)) else mapping.machines_here()
    for machine in here:
        if shortage := preflight.check(settings, machine):
            print(shortage, file=sys.stderr)
    if not here:
        mapping.check_reachable()
        if isinstance(settings.security, KeyFolder):
            load_manifest(settings.security.keys, len(mapping.machines))
        else:
            preflight.credentials(settings, 0)
    words = ["run", str(config), *(word for word in overrides if alone or not word.startswith("machine="))]
    if starter is Starter.SRUN:
        yield from _for_srun(settings, mapping, here, words)
        return
    for machine in range(len(mapping.machines)):
        yield _comment(settings, mapping, machine, is_here=machine in here)
        own_words = words if alone else [*words, f"machine={machine}"]
        launcher = ["decentnode"]
        if starter is Starter.TORCHRUN:
            launcher = [*_torchrun(settings, mapping, machine, here, port), "-m", "decentnode"]
        yield shlex.join([*launcher, *own_words])


def commands_over_ssh(
    settings: Settings, config: Path, overrides: Sequence[str], or_resume: bool
) -> list[tuple[str | None, list[str]]]:
    """Returns the address and the command of each machine; no address: this host. Raises BadInput."""
    mapping: Mapping = settings.mapping.make()
    # Its checks, of this host and of addresses.
    for _ in command_lines(settings, config, overrides, Starter.RUN):
        pass
    here = [0] if len(mapping.machines) == 1 else mapping.machines_here()
    words = [word for word in overrides if not word.startswith("machine=")]
    # Other hosts have the same Python at the same place.
    command = [sys.executable, "-P", "-m", "decentnode", "run", str(config), *words]
    command += ["--continue"] if or_resume else []
    return [
        (None if machine in here else mapping.address(machine), [*command, f"machine={machine}"])
        for machine in range(len(mapping.machines))
    ]


def _torchrun(
    settings: Settings, mapping: Mapping, machine: int, here: Sequence[int], port: int | None
) -> list[str]:
    """Returns the words of torchrun, whose store is at machine 0; raises BadInput for a port in use."""
    count = len(mapping.machines)
    if count == 1:
        return ["torchrun", "--standalone", "--nproc-per-node=1"]
    taken = {p for ports in ports_needed(settings, 0) for p in range(ports.first, ports.first + ports.count)}
    chosen = port or next(p for p in range(FIRST_PORT, FIRST_PORT + len(taken) + 1) if p not in taken)
    if chosen in taken:
        raise BadInput(f"--port: the run itself needs port {chosen} on machine 0; name another one")
    address = mapping.machines[0].bound
    if 0 in here and (error := bind_error(address, chosen)):
        raise BadInput(f"--port: {chosen} at {address} cannot be bound: {error.strerror}; name another one")
    return [
        "torchrun", f"--nnodes={count}", f"--node-rank={machine}", "--nproc-per-node=1",
        f"--master-addr={mapping.address(0)}", f"--master-port={chosen}",
    ]  # fmt: skip


def _for_srun(
    settings: Settings, mapping: Mapping, here: Sequence[int], words: Sequence[str]
) -> Iterator[str]:
    """Yields the one command with which srun starts all machines; raises BadInput where it cannot."""
    count = len(mapping.machines)
    if len(here) > 1:
        names = " and ".join(f"machine {machine} ({mapping.address(machine)})" for machine in here)
        raise BadInput(f"--with srun: {names} are this host, and it starts one task on each; use --with run")
    # All tasks get the same words, so each must find its index by its addresses.
    for machine, listed in enumerate(mapping.machines):
        if count > 1 and is_unspecified(listed.bound):
            what = f"{listed.bound}: no machine finds its index by that, and srun gives all the same words"
            remedy = "write the address of its interface, or use --with run"
            raise BadInput(Defect(("mapping", "machines", machine, "listen"), what, remedy))
    for machine in range(count):
        yield _comment(settings, mapping, machine, is_here=machine in here)
    addresses = [machine.address for machine in mapping.machines]
    # Slurm knows its machines by their names.
    hosts = [] if count == 1 or any(map(is_ip, addresses)) else [f"--nodelist={','.join(addresses)}"]
    tasks = ["--label", f"--nodes={count}", "--ntasks-per-node=1", *hosts]
    yield shlex.join(["srun", *tasks, "decentnode", *words])


def _comment(settings: Settings, mapping: Mapping, machine: int, is_here: bool) -> str:
    """Returns the line above a command: the machine, its ports and its keys."""
    needed = [
        f"{ports.first}" if ports.count == 1 else f"{ports.first}-{ports.first + ports.count - 1}"
        for ports in ports_needed(settings, machine)
    ]
    parts = [f"# {mapping.describe(machine)}" + (", this host" if is_here else "")]
    if needed:
        parts.append(f"ports {', '.join(needed)} {'are' if is_here else 'must be'} free")
    if settings.security == "environment":
        parts.append(f"{VARIABLE} in its environment")
    elif isinstance(settings.security, SecretFile):
        parts.append(f"the secret {settings.security.secret}")
    elif isinstance(settings.security, KeyFolder):
        folder = settings.security.keys
        parts.append(f"keys {secret_file(folder, machine)} and {folder / MANIFEST}")
    return "; ".join(parts)
