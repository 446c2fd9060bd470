"""Tensors of a node as results: `FOLDER/RANK/ROUND.safetensors`, written while the node trains."""

import os
from abc import abstractmethod
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import ClassVar, Generic, TypeVar

from torch import Tensor

from decentnode.core.atomic_files import make_folder, remove_temporaries, sync_folder, write_durably
from decentnode.core.line_file import Warn
from decentnode.core.text import counted
from decentnode.formats.model_files import FOLDER, path_of, rounds_of
from decentnode.formats.records import AuxiliaryRecords
from decentnode.models.state_encoding import UnknownKind
from decentnode.node.checkpoint.safetensors_io import BadTensors, pieces

Source = TypeVar("Source")
Content = tuple[dict[str, Tensor], dict[str, str]]
"""The tensors and the metadata of a file."""


@cache
def _writer(process: int) -> ThreadPoolExecutor:
    """Returns the writing thread of all nodes of a process; a fork of it has another one."""
    return ThreadPoolExecutor(1, f"decentnode-tensors-{process}")


@dataclass(eq=False)
class TensorRecords(AuxiliaryRecords, Generic[Source]):
    """Tensors of one node: a round waits for a copy in memory, never for the disk.

    At most one copy waits. One that the disk refuses is written again in `sync`.
    """

    folder: ClassVar[str]
    """The folder of the run where the files are."""
    noun: ClassVar[str]
    """What a file holds, in messages."""

    run: Path
    rank: int
    source: Source
    """What the tensors are taken from."""
    is_due: Callable[[int], bool]
    """Whether those after a round are kept."""
    warn: Warn = lambda _: None
    """Receives errors, one line each."""
    _waiting: tuple[int, Content] | None = field(default=None, init=False)
    _writing: Future[None] | None = field(default=None, init=False)
    _lost: int = field(default=0, init=False)
    _problem: str = field(default="", init=False)

    @abstractmethod
    def content(self) -> Content:
        """Returns a copy of the tensors, and the metadata of their file; raises UnknownKind."""

    def after(self, round: int) -> None:
        """Copies the tensors after the round, if that is due, and starts to write it."""
        if self.is_due(round):
            self._keep(round)

    def at_the_end(self, round: int) -> None:
        # What waits for the disk has no file yet, and is of the last round that was kept.
        is_waiting = self._waiting is not None and self._waiting[0] == round
        if not is_waiting and round not in rounds_of(self.run, self.rank, self.folder):
            self._keep(round)

    def _keep(self, round: int) -> None:
        self._finish()
        # The disk has refused the last one; only one is kept in memory.
        self._lost += self._waiting is not None
        try:
            content = self.content()
        except UnknownKind as error:
            self._lost += 1
            self._problem = str(error)
            self.warn(f"{path_of(self.run, self.rank, round, self.folder)} cannot be written: {error}")
            return
        self._waiting = round, content
        self._writing = _writer(os.getpid()).submit(self._write, round, content)

    def sync(self) -> str:
        self._finish()
        if self._waiting is not None:
            self._write(*self._waiting)
        missing = self._lost + (self._waiting is not None)
        if not missing:
            return ""
        folder = path_of(self.run, self.rank, 0, self.folder).parent
        return f"{folder}: {counted(missing, self.noun)} could not be written: {self._problem}"

    def cut_back(self, round: int) -> None:
        cut_back(self.run, self.rank, round, self.folder)

    def _finish(self) -> None:
        """Waits for the writer, which usually has finished long before."""
        if self._writing is not None:
            self._writing.result()
            self._writing = None

    def _write(self, round: int, content: Content) -> None:
        path = path_of(self.run, self.rank, round, self.folder)
        try:
            make_folder(path.parent.parent)
            make_folder(path.parent)
            write_durably(path, pieces(*content))
            sync_folder(path.parent)
        except (OSError, BadTensors) as error:
            self._problem = (error.strerror if isinstance(error, OSError) else None) or str(error)
            self.warn(f"{path} cannot be written: {self._problem}")
            return
        # No lock is needed: the node waits for the writer before it reads this.
        self._waiting = None


def cut_back(run: Path, rank: int, round: int, folder: str = FOLDER) -> None:
    """Removes a rank's files of rounds after `round`; raises OSError."""
    for later in rounds_of(run, rank, folder):
        if later > round:
            path_of(run, rank, later, folder).unlink(missing_ok=True)
    remove_temporaries(path_of(run, rank, 0, folder).parent)
