"""One node's memory that its peers on the same machine read in place.

The memory is a memfd: it has no name in any file system, peers open it through /proc, and it is gone
with the last process that maps it, however that process ends.
"""

import mmap
import os
import warnings

import torch
from torch import Tensor

from decentnode.communication.base import Memory
from decentnode.communication.wire import SharedSegment

PAGE = mmap.PAGESIZE
STAGING_SLOTS = 2


def _pages(size: int) -> int:
    return -(-size // PAGE) * PAGE


class Segment:
    """Two vector slots, and two staging slots for payloads that are made outside them."""

    def __init__(self, rank: int, memory: Memory) -> None:
        vector_bytes = _pages(memory.vector_elements * memory.vector_dtype.itemsize)
        self._staging_bytes = _pages(memory.payload_bytes)
        self._staging_start = 2 * vector_bytes
        size = max(PAGE, self._staging_start + STAGING_SLOTS * self._staging_bytes)
        self._fd = os.memfd_create(f"decentnode-{rank}", os.MFD_CLOEXEC)
        os.ftruncate(self._fd, size)
        self.public = SharedSegment(rank, os.getpid(), self._fd, size)
        self._bytes = torch.frombuffer(mmap.mmap(self._fd, size), dtype=torch.uint8)
        used = memory.vector_elements * memory.vector_dtype.itemsize
        first, second = (self._bytes[i * vector_bytes :][:used].view(memory.vector_dtype) for i in range(2))
        self.slots = (first, second)
        self._base = self._bytes.data_ptr()
        self._size = size

    def offset(self, buffer: Tensor) -> int | None:
        """Where a tensor's memory starts in this segment, or None when it lies elsewhere."""
        offset = buffer.data_ptr() - self._base
        return offset if 0 <= offset < self._size else None

    def stage(self, seq: int, at: int, buffer: Tensor) -> int:
        """Copies a payload of exchange number `seq` to byte `at` of its staging slot; returns the offset."""
        end = at + buffer.numel()
        if end > self._staging_bytes:
            raise ValueError(f"an exchange sends {end} bytes but declared {self._staging_bytes} at most")
        offset = self._staging_start + (seq % STAGING_SLOTS) * self._staging_bytes + at
        self._bytes[offset : offset + buffer.numel()] = buffer
        return offset

    def close(self) -> None:
        """Drops this process's descriptor; the mapping lives as long as tensors point into it."""
        os.close(self._fd)


def attach(segment: SharedSegment) -> Tensor:
    """A peer's segment, read-only, as bytes; raises OSError when it cannot be opened or is too small."""
    fd = os.open(f"/proc/{segment.pid}/fd/{segment.fd}", os.O_RDONLY | os.O_CLOEXEC)
    try:
        if not 0 < segment.size <= os.fstat(fd).st_size:
            raise OSError(f"the shared memory of rank {segment.rank} is smaller than announced")
        mapping = mmap.mmap(fd, segment.size, prot=mmap.PROT_READ)
    finally:
        os.close(fd)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*not writable.*")
        return torch.frombuffer(mapping, dtype=torch.uint8)
