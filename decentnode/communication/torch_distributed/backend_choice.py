"""The backend of the process group: chosen once for all ranks, from the capabilities of each.

Threads: any; nothing here is shared.
"""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import msgspec
import torch
import torch.distributed as dist

Backend = Literal["auto", "gloo", "nccl"]
UNFIT_NCCL = {
    "2.25": "giving it up may hang (pytorch issue 149153)",
    "2.26": "it may hang at any time (pytorch issue 153960)",
}
RECIPE = "share_gpu: true lets them share one, slowly, for tests"


class Capabilities(msgspec.Struct, frozen=True):
    """What a process offers for a group."""

    takes_part: bool
    """Whether its edges may go through the group."""
    gpu: str
    """The GPU of its node, the same text for the same GPU; empty: none."""
    nccl: str
    """NCCL version of torch; empty: none."""
    gloo: bool
    """Whether torch has gloo."""


@dataclass(frozen=True)
class GroupPlan:
    """The group, as all ranks plan it."""

    members: list[int]
    backend: str
    reason: str
    """Why this backend."""
    error: str = ""
    """Why the group cannot be made, which ends the run; empty: it can."""


@dataclass(frozen=True)
class BackendChoice:
    """Returns the plan: members, backend and reason, or an error in one line."""

    wanted: Backend
    shares_gpu: bool
    key: str = "communication.backend"
    """The key of the backend in a configuration, for errors."""

    def __call__(self, capabilities: dict[int, Capabilities]) -> GroupPlan:
        members = {rank: fact for rank, fact in capabilities.items() if fact.takes_part}
        if len(members) < 2:
            return GroupPlan([], "", f"fewer than two of the {len(capabilities)} nodes take part in a group")
        backend, why = self._backend(members)
        error = "" if backend else why
        return GroupPlan(sorted(members), backend, why, error=error)

    def _backend(self, capabilities: Mapping[int, Capabilities]) -> tuple[str, str]:
        """(backend, reason); the backend is empty if there is none."""
        against_nccl = why_not_nccl(capabilities, self.shares_gpu)
        against_gloo = next(
            (f"torch of rank {r} has no gloo" for r, f in capabilities.items() if not f.gloo), ""
        )
        if self.wanted != "auto":
            against = against_nccl if self.wanted == "nccl" else against_gloo
            return ("", f"{self.key}: {self.wanted}: {against}") if against else (self.wanted, "as asked")
        if not against_nccl:
            return "nccl", "every node has a GPU" + ("" if self.shares_gpu else " of its own")
        if not against_gloo:
            return "gloo", against_nccl
        return "", f"{self.key}: auto: neither works: {against_nccl}; {against_gloo}"


def why_not_nccl(capabilities: Mapping[int, Capabilities], shares_gpu: bool) -> str:
    """Why these ranks cannot use NCCL together; empty if they can."""
    without = [rank for rank, fact in capabilities.items() if not fact.gpu]
    if len(without) == len(capabilities):
        return "no node is on a GPU"
    if len(without) == 1:
        return f"rank {without[0]} is on no GPU"
    if without:
        return f"{len(without)} nodes are on no GPU"
    lacking = [rank for rank, fact in capabilities.items() if not fact.nccl]
    if lacking:
        return f"torch of rank {lacking[0]} has no NCCL"
    versions = {capabilities[rank].nccl: rank for rank in sorted(capabilities, reverse=True)}
    if len(versions) > 1:
        each = ", ".join(f"{version} (rank {rank})" for version, rank in versions.items())
        return f"the versions of NCCL differ: {each}; install the same torch everywhere"
    for version, why in UNFIT_NCCL.items():
        if any(installed.startswith(f"{version}.") for installed in versions):
            return f"NCCL {version}: {why}; install a torch with another"
    by_gpu: defaultdict[str, list[int]] = defaultdict(list)
    for rank, fact in capabilities.items():
        by_gpu[fact.gpu].append(rank)
    shared = next((ranks for ranks in by_gpu.values() if len(ranks) > 1), None)
    if shared and not shares_gpu:
        return f"ranks {', '.join(map(str, shared))} share one GPU ({RECIPE})"
    return ""


def backend_defect(wanted: Backend, device: str, nodes: int) -> str:
    """Why a machine whose nodes need that many GPUs cannot use a backend, in one line; empty if it can.

    `device` is the configured one: cpu, cuda or auto.
    """
    gpus = torch.cuda.device_count()
    if wanted == "gloo" and not dist.is_gloo_available():
        return "gloo: this torch has no gloo; use another backend, or zeromq"
    if wanted != "nccl":
        return ""
    if not dist.is_nccl_available():
        return "nccl: this torch has no NCCL; install torch for CUDA, or use gloo"
    if device == "cpu":
        return "nccl: it carries what lies on GPUs; write device: cuda, or use gloo"
    if not gpus:
        return "nccl: torch finds no GPU here; use gloo"
    if gpus < nodes:
        return f"nccl: {nodes} nodes here, but {gpus} of the GPUs they need; use gloo, or zeromq ({RECIPE})"
    return ""


def facts_of(device: torch.device, machine: int, takes_part: bool) -> Capabilities:
    """The capabilities of this process, whose node is on that device."""
    gpu, nccl = "", ""
    if device.type == "cuda":
        # The same text for the same GPU, however processes number it.
        uuid = getattr(torch.cuda.get_device_properties(device), "uuid", device.index)
        gpu = f"machine {machine}: {uuid}"
    if dist.is_nccl_available():
        nccl = ".".join(map(str, torch.cuda.nccl.version()))  # type: ignore[no-untyped-call]
    return Capabilities(takes_part, gpu, nccl, dist.is_gloo_available())
