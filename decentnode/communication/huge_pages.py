"""Memory for vectors and for received payloads.

Threads: any; nothing here is shared.
"""

import contextlib
import mmap

import torch
from torch import Tensor

LARGE = 1 << 21
"""Bytes of a large page on x86-64, and on ARM with pages of 4 KiB; harmless elsewhere."""


def new_bytes(length: int, device: torch.device) -> Tensor:
    """Zeros, shape (length,) and uint8; raises MemoryError or, on a device, torch's error.

    On the host they lie on large pages (transparent huge pages, madvise(2)), except for an end that would
    leave more than a tenth of a page empty. The kernel copies large pages to and from sockets faster: a round
    over gloo takes a tenth less.
    """
    if device.type != "cpu" or length < LARGE:
        return torch.zeros(length, dtype=torch.uint8, device=device)
    on_large = (length + LARGE // 10) // LARGE * LARGE
    try:
        mapping = mmap.mmap(-1, LARGE + max(length, on_large), mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OSError as error:
        raise MemoryError(f"no room for {length} bytes") from error
    start = -torch.frombuffer(mapping, dtype=torch.uint8).data_ptr() % LARGE
    with contextlib.suppress(OSError):  # a kernel without huge pages
        mapping.madvise(mmap.MADV_HUGEPAGE, start, on_large)
    return torch.frombuffer(mapping, dtype=torch.uint8, count=length, offset=start)
