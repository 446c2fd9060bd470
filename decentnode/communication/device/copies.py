"""Copies between host memory and a GPU that nobody waits for before it is necessary."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor

from decentnode.core.payload import as_bytes

PORTABLE, READ_ONLY = 1, 8
"""Flags of cudaHostRegister: for all contexts, and for memory that this process may only read."""


class HostDeviceCopies(ABC):
    """Copies that begin after all that the device was asked for so far, and end some time later."""

    @abstractmethod
    def host_memory(self, size: int) -> Tensor:
        """Bytes of host memory that the device reaches by itself."""

    @abstractmethod
    def lock(self, memory: Tensor, read_only: bool = False) -> None:
        """Lets the device reach existing host memory by itself, if it can; it is kept as long as this is."""

    @abstractmethod
    def unlock(self, memory: Tensor) -> None:
        """Gives such memory back, when no copy reads it any more."""

    @abstractmethod
    def begin(self, target: Tensor, source: Tensor) -> None:
        """Begins to copy bytes; neither side may be written before the copy has ended."""

    @abstractmethod
    def join(self) -> None:
        """Makes what the device is asked for from here on wait for all copies; the caller goes on."""

    @abstractmethod
    def finish(self) -> None:
        """Waits until all copies have ended."""


class HostCopies(HostDeviceCopies):
    """Copies within host memory, which have ended when they have begun."""

    def host_memory(self, size: int) -> Tensor:
        return torch.empty(size, dtype=torch.uint8)

    def lock(self, memory: Tensor, read_only: bool = False) -> None:
        """Host memory needs nothing."""

    def unlock(self, memory: Tensor) -> None:
        """Nothing was locked."""

    def begin(self, target: Tensor, source: Tensor) -> None:
        target.copy_(source)

    def join(self) -> None:
        """Nothing is under way."""

    def finish(self) -> None:
        """Nothing is under way."""


class CudaCopies(HostDeviceCopies):
    """Copies of one GPU, on a stream of their own; waiting is for their event, never for the whole device."""

    def __init__(self, device: torch.device) -> None:
        self._cuda: Any = torch.cuda
        self._device = device
        self._stream = self._cuda.Stream(device)
        # Who waits sleeps: nodes may be more than processors.
        self._ended = self._cuda.Event(blocking=True)
        self._locked: dict[int, Tensor] = {}

    def host_memory(self, size: int) -> Tensor:
        return torch.empty(size, dtype=torch.uint8, pin_memory=True)

    def lock(self, memory: Tensor, read_only: bool = False) -> None:
        storage = memory.untyped_storage()
        if storage.data_ptr() in self._locked:
            return
        # Kept, because memory that came anew at a locked address would not be what the GPU reads.
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
                    self._forget_error()  # it could not be locked either

    def _forget_error(self) -> None:
        """The next operation reports what went wrong before, and then it is forgotten."""
        with suppress(RuntimeError):
            torch.ones(1, device=self._device)

    def begin(self, target: Tensor, source: Tensor) -> None:
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._stream):
            target.copy_(source, non_blocking=True)
        on_device = source if source.is_cuda else target
        on_device.record_stream(self._stream)

    def join(self) -> None:
        torch.cuda.current_stream(self._device).wait_stream(self._stream)

    def finish(self) -> None:
        self._ended.record(self._stream)
        self._ended.synchronize()


def copies_for(device: torch.device) -> HostDeviceCopies:
    """What copies between host memory and that device."""
    return CudaCopies(device) if device.type == "cuda" else HostCopies()


def same_place(buffer: Tensor, slots: Sequence[Tensor], others: Sequence[Tensor]) -> Tensor | None:
    """Where in the other slots that memory of these ones belongs, as bytes; None: it is in none of them."""
    for slot, other in zip(slots, others, strict=True):
        start = buffer.data_ptr() - slot.data_ptr()
        if buffer.numel() and 0 <= start < slot.nbytes:
            return as_bytes(other)[start : start + buffer.numel()]
    return None
