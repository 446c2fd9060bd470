"""Writes the checkpoints of one node, or of all nodes of a process with many, in one file for each round."""

import contextlib
import errno
import hashlib
import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from decentnode.core.atomic_files import make_folder, sync_folder, write_durably, write_whole
from decentnode.core.version import __version__
from decentnode.formats.records import RecordFile, name_of
from decentnode.models.state_encoding import encoded
from decentnode.node.checkpoint import store
from decentnode.node.checkpoint.safetensors_io import PIECE, pieces
from decentnode.node.checkpoint.store import SCHEMA, NodeManifest, RunStamp

COMMIT_INTERVAL = 10.0
"""Seconds that a node of many waits for the others of its process, until it is saved without them."""
Done = Callable[[str], object]
"""Is told that a node is saved, or in one line why not."""


@dataclass(eq=False)
class _RoundFile:
    """The files of a round that are being written."""

    manifest: Path
    fd: int
    """Of the tensors, which are only appended: the manifest refers to what was there before."""
    end: int
    lines: dict[int, bytes]
    """By rank what the manifest has."""
    added: dict[int, bytes] = field(default_factory=dict)
    """By rank what it gets."""
    done: list[Done] = field(default_factory=list)
    syncs: bool = False
    since: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        self._began_at = self.end

    def append(self, tensors: dict[str, Tensor]) -> tuple[int, int, str]:
        """Returns where the tensors begin, their bytes and their SHA-256; raises OSError or BadTensors."""
        start, digest = self.end, hashlib.sha256()
        try:
            for block in _blocks(pieces(tensors)):
                # Hashed while written: each piece is read from memory once.
                digest.update(block)
                write_whole(self.fd, memoryview(block))
                self.end += len(block)
        except Exception:
            self.end = start
            os.ftruncate(self.fd, start)
            raise
        return start, self.end - start, digest.hexdigest()

    def commit(self) -> None:
        """Writes the manifest, so that all that was added counts; raises OSError, and then nothing does."""
        if not os.fstat(self.fd).st_nlink:
            raise FileNotFoundError(errno.ENOENT, "its tensors were deleted meanwhile")
        if self.syncs:
            os.fsync(self.fd)
        try:
            self._write(self.lines | self.added)
            # A rename survives a loss of power only after its folder is synced.
            if self.syncs:
                sync_folder(self.manifest.parent)
        except OSError:
            with contextlib.suppress(OSError):
                self._write(self.lines)
            raise

    def _write(self, lines: dict[int, bytes]) -> None:
        if lines:
            write_durably(self.manifest, [b"".join(lines.values())], syncs=self.syncs)
        else:
            self.manifest.unlink(missing_ok=True)

    def close(self, is_saved: bool) -> None:
        """Closes the file; what is not saved leaves nothing. Never raises OSError."""
        with contextlib.suppress(OSError):
            if not is_saved:
                os.ftruncate(self.fd, self._began_at)
        with contextlib.suppress(OSError):
            os.close(self.fd)
        if not is_saved and not self.lines:
            with contextlib.suppress(OSError):
                store.remove(self.manifest)


class CheckpointFile:
    """Collects what the nodes of a process are after a round; it counts when all of them are there.

    Before that the disk has no checkpoint of any of them: a process waits for it once, not for each node.
    """

    def __init__(self, ranks: Sequence[int], record_file: RecordFile | None = None) -> None:
        """`record_file`: that the nodes share, which is brought to the disk before they count as saved."""
        self.name = name_of(ranks)
        """Of its folder."""
        self._ranks = frozenset(ranks)
        self._record_file = record_file
        self._round_files: dict[int, _RoundFile] = {}
        self._saved = Counter[int]()
        """By round the nodes that are saved although others are not."""
        self._undone: int | None = None

    def add(
        self, directory: Path, rank: int, round: int, state: Any, stamp: RunStamp, done: Done,
        syncs: bool = True,
    ) -> None:  # fmt: skip
        """Adds a node below `directory`; `done` is called once it counts, which may be before the return.

        Raises OSError, UnknownKind or BadTensors, and then leaves no part of it. `syncs`: whether it survives
        a loss of power as soon as it counts; otherwise its hashes show what did not.
        """
        tensors: dict[str, Tensor] = {}
        tree = encoded(state, tensors)
        if (file := self._round_files.get(round)) is None:
            file = self._round_files[round] = self._opened(directory, round, syncs)
        try:
            offset, size, sha256 = file.append(tensors)
        except Exception:
            if not file.added:
                self._round_files.pop(round).close(is_saved=False)
            raise
        manifest = NodeManifest(
            schema=SCHEMA, version=__version__, run_id=stamp.run_id, rank=rank, round=round,
            incarnation=stamp.incarnation, settings=stamp.settings, offset=offset, bytes=size, sha256=sha256,
            state=tree,
        )  # fmt: skip
        file.added[rank] = store.line_of(manifest)
        file.done.append(done)
        file.syncs |= syncs
        self.tend()

    def tend(self) -> None:
        """Makes checkpoints of a round that all nodes have reached, or the first too long ago."""
        for round, file in [*self._round_files.items()]:
            is_late = time.monotonic() - file.since >= COMMIT_INTERVAL
            if is_late or self._saved[round] + len(file.added) == len(self._ranks):
                self._commit(round)

    def commit(self) -> None:
        """Makes checkpoints of all that was added; never raises OSError."""
        for round in [*self._round_files]:
            self._commit(round)

    def undo(self, directory: Path, round: int) -> None:
        """Deletes checkpoints of `round` and later ones; raises OSError.

        Once, because all nodes of a process go back to the same round.
        """
        if self._undone == round:
            return
        failed = None
        for later in sorted(set[int]().union(*store.rounds_of(directory, self._ranks).values())):
            try:
                if later >= round:
                    store.delete(directory, self._ranks, later)
            except OSError as error:
                # Continues, so that one refused file leaves as few stale checkpoints as possible.
                failed = error
        store.clean_up(directory / self.name)
        if failed is not None:
            raise failed
        self._undone = round if len(self._ranks) > 1 else None

    def _commit(self, round: int) -> None:
        file, problem = self._round_files.pop(round), ""
        # A resume does not repeat these records, so they come first.
        if self._record_file is not None:
            problem = self._record_file.sync() if file.syncs else self._record_file.flush()
        try:
            if not problem:
                file.commit()
        except OSError as error:
            problem = error.strerror or str(error)
        file.close(is_saved=not problem)
        self._saved[round] += len(file.added) * (not problem)
        if self._saved[round] in (0, len(self._ranks)):
            del self._saved[round]
        for done in file.done:
            done(problem)

    def _opened(self, directory: Path, round: int, syncs: bool) -> _RoundFile:
        folder = directory / self.name
        make_folder(directory, syncs)
        make_folder(folder, syncs)
        manifest = store.manifest_path(folder, round)
        lines = {rank: line for rank, line in store.lines_in(manifest).items() if rank in self._ranks}
        if not lines:
            # What a crash left.
            store.remove(manifest)
        path = manifest.with_suffix(store.TENSORS)
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
        return _RoundFile(manifest, fd, end=os.fstat(fd).st_size, lines=lines)


def _blocks(contents: Iterable[memoryview]) -> Iterator[bytes | bytearray | memoryview]:
    """Yields the contents with small pieces joined: a write of each would take longer than its bytes."""
    joined = bytearray()
    for content in contents:
        if len(content) < PIECE:
            joined += content
        if joined and (len(joined) >= PIECE or len(content) >= PIECE):
            yield joined
            joined = bytearray()
        if len(content) >= PIECE:
            yield content
    if joined:
        yield joined
