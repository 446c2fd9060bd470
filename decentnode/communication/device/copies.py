"""Asynchronous copies between host memory and a GPU.

Threads: the node's thread begins and awaits copies; the GPU runs them on a stream of their own.
"""

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor

from decentnode.core.payload import as_bytes

PORTABLE, READ_ONLY = 1, 8
"""Flags of cudaHostRegister: for all contexts, and for memory that this process may only read."""


class HostCopies:
    """Copies within host memory; they end before `begin` returns.

    Those of a subclass for a device start after all earlier work of the device, and end some time later.
    """

    def host_memory(self, size: int) -> Tensor:
        """Bytes of host memory that the device can access directly."""
        return torch.empty(size, dtype=torch.uint8)

    def lock(self, memory: Tensor, read_only: bool = False) -> None:
        """Lets the device access existing host memory directly, if possible; keeps that memory alive."""

    def unlock(self, memory: Tensor) -> None:
        """Unlocks such memory, when no copy reads it any more."""

    def begin(self, target: Tensor, source: Tensor) -> None:
        """Starts to copy bytes; neither side may be written before the copy has ended."""
        target.copy_(source)

    def join(self) -> None:
        """Makes later work of the device wait for all copies; the caller does not wait."""

    def finish(self) -> None:
        """Waits until all copies have ended."""


class CudaCopies(HostCopies):
    """Copies of one GPU on a stream of their own; waits are for their event, never for the whole device."""

    def __init__(self, device: torch.device) -> None:
        self._cuda: Any = torch.cuda
        self._device = device
        self._stream = self._cuda.Stream(device)
        # A waiting thread sleeps instead of spinning: there may be more nodes than cores.
        self._ended = self._cuda.Event(blocking=True)
        self._locked: dict[int, Tensor] = {}

    def host_memory(self, size: int) -> Tensor:
        return torch.empty(size, dtype=torch.uint8, pin_memory=True)

    def lock(self, memory: Tensor, read_only: bool = False) -> None:
        storage = memory.untyped_storage()
        if storage.data_ptr() in self._locked:
            return
        # Kept alive: other memory at a locked address would not be what the GPU reads.
        self._locked[storage.data_ptr()] = memory
        flags = PORTABLE | READ_ONLY if read_only else PORTABLE
        with torch.cuda.device(self._device):
            if int(self._cuda.cudart().cudaHostRegister(storage.data_ptr(), storage.nbytes(), flags)):
                size = storage.nbytes()
                print(f"{size} bytes cannot be locked for {self._device}: copies take longer", flush=True)
                self._forget_error()

    def unlock(self, memory: Tensor) -> None:
        address = memory.untyped_storage().data_ptr()
        if self._locked.pop(address, None) is not None:
            self.finish()
            with torch.cuda.device(self._device):
                if int(self._cuda.cudart().cudaHostUnregister(address)):
                    self._forget_error()  # locking it had failed, too

    def _forget_error(self) -> None:
        """Clears a CUDA error, which the next operation reports."""
        with suppress(RuntimeError):
            torch.ones(1, device=self._device)

    def begin(self, target: Tensor, source: Tensor) -> None:
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._stream):
            target.copy_(source, non_blocking=True)
        on_device = source if source.is_cuda else target
        # Otherwise torch's allocator could reuse this memory while the copy runs.
        on_device.record_stream(self._stream)

    def join(self) -> None:
        torch.cuda.current_stream(self._device).wait_stream(self._stream)

    def finish(self) -> None:
        self._ended.record(self._stream)
        self._ended.synchronize()


def same_place(buffer: Tensor, slots: Sequence[Tensor], others: Sequence[Tensor]) -> Tensor | None:
    """The bytes of `others` at the place that `buffer` has in `slots`; None: it is in none of them."""
    for slot, other in zip(slots, others, strict=True):
        start = buffer.data_ptr() - slot.data_ptr()
        if buffer.numel() and 0 <= start < slot.nbytes:
            return as_bytes(other)[start : start + buffer.numel()]
    return None
