"""A node whose vector lives on an accelerator, behind any transport that carries host memory."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from decentnode.communication.base import Endpoint, Memory
from decentnode.communication.handles import Handle, Key
from decentnode.errors import BadInput
from decentnode.payload import Payload


class OnDevice(Endpoint):
    """Wraps an endpoint: payloads are copied to host memory going out, to the device coming in."""

    def __init__(self, inner: Endpoint, memory: Memory, device: torch.device) -> None:
        self.rank = inner.rank
        self.counters = inner.counters
        self.refused = inner.refused
        self.device = device
        self._inner = inner
        shape = (2, memory.vector_elements)
        first, second = torch.zeros(shape, dtype=memory.vector_dtype, device=device)
        self.slots = (first, second)

    def exchange(
        self, outgoing: Mapping[int, Payload], sources: Sequence[int], key: Key, timeout: float
    ) -> Handle:
        on_host = {id(payload): payload.to(torch.device("cpu")) for payload in outgoing.values()}
        moved = {target: on_host[id(payload)] for target, payload in outgoing.items()}
        return self._inner.exchange(moved, sources, key, timeout)

    def leave(self) -> None:
        self._inner.leave()

    def admit(self, round: int) -> list[int]:
        return self._inner.admit(round)

    @property
    def ahead(self) -> int:
        return self._inner.ahead

    def skip_to(self, round: int) -> None:
        self._inner.skip_to(round)

    def offer(self, vector: Tensor) -> None:
        self._inner.offer(vector)


def device_for(name: str, local_rank: int) -> torch.device:
    """The device of a node: `cpu`, or one GPU of this machine after the other; to be asked after the fork.

    `auto` takes GPUs where there are any; `cuda` was checked before the fork.
    """
    if name == "cpu" or (name == "auto" and not torch.cuda.is_available()):
        return torch.device("cpu")
    return torch.device("cuda", local_rank % torch.cuda.device_count())


def check_device(name: str) -> None:
    """Raises BadInput when GPUs are asked for and there are none; counting them makes no CUDA context."""
    if name == "cuda" and not torch.cuda.device_count():
        raise BadInput("device: cuda is asked for, but torch finds no GPU here; use cpu or auto")
