"""One node's memory that peers on the same machine read in place.

The memory is a memfd. It has no name in any file system, and peers open it through /proc. It vanishes with
the last process that maps it, however that process ends.

Threads: the node's thread writes; the thread that notices a loss invalidates.
"""

import mmap
import os
import warnings
from functools import cache

import torch
from torch import Tensor

from decentnode.communication.base import STAGING_ALIGNMENT, BufferSpec
from decentnode.communication.wire import SharedSegment

PAGE = mmap.PAGESIZE
STAGING_SLOTS = 2
SEALS = 1 | 2 | 4
"""F_SEAL_SEAL, F_SEAL_SHRINK and F_SEAL_GROW of Linux: memory that shrinks would kill all who read it."""


def _pages(size: int) -> int:
    return -(-size // PAGE) * PAGE


WORD = 8


class Segment:
    """Two vector slots, two staging slots per part for payloads made outside them, and a word for each
    reader.

    A reader that timed out while it was suspended may still read memory that is written again. Its word holds
    the highest number that is invalidated for it. Words are counted from the end.
    """

    def __init__(self, rank: int, buffer_spec: BufferSpec, readers: int) -> None:
        """`readers`: number of ranks."""
        import fcntl  # which systems without nodes may lack

        vector_bytes = _pages(buffer_spec.vector_elements * buffer_spec.vector_dtype.itemsize)
        self._staging_bytes = _pages(buffer_spec.payload_bytes)
        self._staging_start = 2 * vector_bytes
        words = _pages(WORD * readers)
        size = self._staging_start + STAGING_SLOTS * buffer_spec.parts * self._staging_bytes + words
        self._fd = os.memfd_create(f"decentnode-{rank}", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(self._fd, size)
        # Sealed before any peer learns of it: peers refuse memory without seals.
        fcntl.fcntl(self._fd, fcntl.F_ADD_SEALS, SEALS)
        self.shared = SharedSegment(rank, os.getpid(), self._fd, size)
        self._bytes = torch.frombuffer(mmap.mmap(self._fd, size), dtype=torch.uint8)
        used = buffer_spec.vector_elements * buffer_spec.vector_dtype.itemsize
        first, second = (
            self._bytes[i * vector_bytes :][:used].view(buffer_spec.vector_dtype) for i in range(2)
        )
        self.slots = (first, second)
        self._words = self._bytes[-words:].numpy().view("int64")
        self._base = self._bytes.data_ptr()
        self._size = size
        self._staged: dict[int, tuple[int, int, int]] = {}
        """By part the last exchange with staged payloads, its slot, and how many bytes of that are in use."""

    def place(self, buffer: Tensor) -> int | None:
        """The offset of memory that lies here; None: it lies elsewhere."""
        offset = buffer.data_ptr() - self._base
        return offset if 0 <= offset < self._size else None

    def offset(self, buffer: Tensor, seq: int, part: int) -> int:
        """The offset of a payload of exchange number `seq`; one that lies elsewhere is copied here.

        Two staging slots per part suffice: the exchange before the last is released by all readers.
        """
        if (offset := self.place(buffer)) is not None:
            return offset
        last, slot, used = self._staged.get(part, (seq, 0, 0))
        if seq != last:
            slot, used = (slot + 1) % STAGING_SLOTS, 0
        end = used + buffer.numel()
        if end > self._staging_bytes:
            raise ValueError(f"an exchange sends {end} bytes but declared {self._staging_bytes} at most")
        offset = self._staging_start + (STAGING_SLOTS * part + slot) * self._staging_bytes + used
        self._bytes[offset : offset + buffer.numel()] = buffer
        self._staged[part] = seq, slot, -(-end // STAGING_ALIGNMENT) * STAGING_ALIGNMENT
        return offset

    def invalidate(self, reader: int, seq: int) -> None:
        """Invalidates for a reader everything sent up to number `seq`."""
        self._words[-1 - reader] = seq

    def close(self) -> None:
        """Drops this process's descriptor; the mapping lives as long as tensors point into it."""
        os.close(self._fd)


def attach(segment: SharedSegment) -> Tensor:
    """A peer's segment as bytes, read-only; raises OSError if it is another file, or too small."""
    path, name = f"/proc/{segment.pid}/fd/{segment.fd}", f"/memfd:decentnode-{segment.rank} (deleted)"
    # Checked before it is opened: opening a pipe, terminal or device has effects, and may block.
    if os.readlink(path) != name:  # noqa: PTH115 - a Path takes ten times as long
        raise OSError(f"what was announced as the shared memory of rank {segment.rank} is something else")
    import fcntl

    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        # The announcement comes from another process: a false one must not crash this process.
        if fcntl.fcntl(fd, fcntl.F_GET_SEALS) & SEALS != SEALS:
            raise OSError(f"the shared memory of rank {segment.rank} can change its size")
        if not 0 < segment.size <= os.fstat(fd).st_size:
            raise OSError(f"the shared memory of rank {segment.rank} is smaller than announced")
        mapping = mmap.mmap(fd, segment.size, prot=mmap.PROT_READ)
    finally:
        os.close(fd)
    _do_not_warn()
    return torch.frombuffer(mapping, dtype=torch.uint8)


@cache
def _do_not_warn() -> None:
    """Makes torch warn of memory that cannot be written, which it does once."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*not writable.*")
        torch.frombuffer(b"0", dtype=torch.uint8)
