"""Processes that read rows for a process that trains, each its part of a batch, and the next batch ahead.

What a row draws is seeded by its index and the reading, so it is the same whoever reads it. The processes are
forked when a process reads its first batch, and end with it.
"""

import os
import struct
from collections import deque
from collections.abc import Sequence
from functools import partial

import numpy as np
import torch
from torch import Tensor

from decentnode.core.polling import ready
from decentnode.core.process_setup import ForkedProcess, die_with, end_thread_pools
from decentnode.datasets.base import Reading
from decentnode.datasets.per_step import DatasetRows, RowReader
from decentnode.errors import DatasetError, DecentnodeError, RunFailed, explained

_NUMBER = struct.Struct("<q")
FEWEST_ROWS = 3
"""Fewer rows are read where they are wanted: the trials of a start take one or two."""
MOST_ROWS = 4096
"""More rows for a process would not fit into the pipe of its orders."""
MOST_AHEAD = 8
"""Batches that are read ahead at a time."""
Wanted = tuple[Reading, tuple[int, ...]]


class RowWorkers(RowReader):
    """Rows that so many processes read."""

    def __init__(self, rows: DatasetRows, count: int) -> None:
        self.dataset_rows = rows
        self._count = count
        self._host = 0
        """The process that has the workers; a fork of it has none of them."""
        self._processes: list[ForkedProcess] = []
        self._sent: deque[Wanted] = deque()
        """Requests without a reply, in their order."""
        self._found: dict[Wanted, list[bytes]] = {}
        """Replies that nobody has taken yet."""

    def read(self, places: Tensor, reading: Reading) -> tuple[Tensor, ...]:
        if not FEWEST_ROWS <= len(places) <= MOST_ROWS * self._count:
            return self.dataset_rows.read(places, reading)
        wanted: Wanted = (reading, tuple(places.tolist()))
        self._start()
        if wanted not in self._found and wanted not in self._sent:
            self._send(wanted)
        while wanted not in self._found:
            request = self._sent.popleft()
            self._found[request] = [self._reply(process) for process in self._processes]
        parts = [self._tensors(content) for content in self._found.pop(wanted)]
        return tuple(map(torch.cat, zip(*parts, strict=True)))

    def expect(self, places: Tensor, reading: Reading) -> None:
        self._start()
        # What was read ahead for a rank that then began another epoch.
        for stale in [request for request in self._found if request[0][:2] == reading[:2]]:
            del self._found[stale]
        if FEWEST_ROWS <= len(places) <= MOST_ROWS * self._count and len(self._sent) < MOST_AHEAD:
            self._send((reading, tuple(places.tolist())))

    def _start(self) -> None:
        if self._host == os.getpid():
            return
        self._host, self._sent, self._found = os.getpid(), deque(), {}
        end_thread_pools()
        try:
            self._processes = [
                ForkedProcess(partial(_work, self.dataset_rows, self._host), down=1, up=1)
                for _ in range(self._count)
            ]
        except OSError as error:
            raise RunFailed(f"dataset.workers: no process can be started: {error.strerror}") from error

    def _send(self, request: Wanted) -> None:
        reading, places = request
        for process, part in zip(self._processes, np.array_split(np.array(places), self._count), strict=True):
            numbers = np.array([len(reading), len(part), *reading, *part], np.int64)
            try:
                os.write(process.ends[0], numbers.tobytes())
            except BrokenPipeError as error:
                raise RunFailed("dataset.workers: a process that reads rows has ended") from error
        self._sent.append(request)

    def _reply(self, process: ForkedProcess) -> bytes:
        """What a worker answers, after its end at the latest; raises the error that it tells."""
        size, failed = (_NUMBER.unpack(_exactly(process.ends[1], _NUMBER.size))[0] for _ in range(2))
        content = _exactly(process.ends[1], size)
        if failed:
            raise DatasetError.at("dataset", content.decode().removeprefix("dataset: "))
        return content

    def _tensors(self, content: bytes) -> list[Tensor]:
        """The columns of a reply, which has their rows one after another."""
        kinds = [*self.dataset_rows.kinds, self.dataset_rows.label_kind]
        sizes = [int(np.prod(shape)) * dtype.itemsize for shape, dtype in kinds]
        count, start, columns = len(content) // sum(sizes), 0, []
        for (shape, dtype), size in zip(kinds, sizes, strict=True):
            part = bytearray(content[start : start + count * size])
            empty = torch.empty(0, dtype=dtype)
            columns.append((torch.frombuffer(part, dtype=dtype) if part else empty).reshape(count, *shape))
            start += count * size
        return columns


def _work(rows: DatasetRows, host: int, orders: int, replies: int) -> int:
    """Reads what is ordered until the orders end."""
    die_with(host)
    torch.set_num_threads(1)
    while head := os.read(orders, 2 * _NUMBER.size):
        counters, count = np.frombuffer(head, np.int64).tolist()
        numbers = np.frombuffer(_exactly(orders, (counters + count) * _NUMBER.size), np.int64)
        failed = False
        try:
            tensors = rows.read(torch.tensor(numbers[counters:]), tuple(numbers[:counters].tolist()))
            content = b"".join(tensor.contiguous().numpy().tobytes() for tensor in tensors)
        except Exception as error:  # the user's own class may raise anything
            failed = True
            content = (str(error) if isinstance(error, DecentnodeError) else explained(error)).encode()
        _write([_NUMBER.pack(len(content)), _NUMBER.pack(failed), content], replies)
    return 0


def _write(parts: Sequence[bytes], fd: int) -> None:
    content = memoryview(b"".join(parts))
    while content:
        content = content[os.write(fd, content) :]


def _exactly(fd: int, size: int) -> bytes:
    """So many bytes; raises RunFailed when the other end has closed before."""
    received = bytearray()
    while len(received) < size:
        ready([fd])
        content = os.read(fd, size - len(received))
        if not content:
            raise RunFailed(
                "dataset.workers: a process that reads rows has ended, perhaps for lack of memory"
            )
        received += content
    return bytes(received)
