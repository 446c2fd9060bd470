"""Models as results: `models/RANK/ROUND.safetensors`, written while the node trains."""

import os
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
from torch import Tensor, nn

from decentnode.core.atomic_files import make_folder, remove_temporaries, sync_folder, write_durably
from decentnode.core.line_file import Warn
from decentnode.core.text import counted
from decentnode.formats.model_files import path_of, rounds_of
from decentnode.formats.records import AuxiliaryRecords
from decentnode.models.pretrained import METADATA, OTHERS, SCHEMA
from decentnode.models.state_encoding import UnknownKind, encoded
from decentnode.node.checkpoint.safetensors_io import BadTensors, holds, pieces

Content = tuple[dict[str, Tensor], dict[str, str]]
"""The tensors and the metadata of a file."""


@cache
def _writer(process: int) -> ThreadPoolExecutor:
    """Returns the writing thread of all nodes of a process; a fork of it has another one."""
    return ThreadPoolExecutor(1, f"decentnode-models-{process}")


@dataclass(eq=False)
class ModelRecords(AuxiliaryRecords):
    """The models of one node: a round waits for a copy in memory, never for the disk.

    At most one model waits. A model that the disk refuses is written again in `sync`.
    """

    run: Path
    rank: int
    module: nn.Module
    is_due: Callable[[int], bool]
    """Whether the model after a round is kept."""
    warn: Warn = lambda _: None
    """Receives errors, one line each."""
    attach: Callable[[], None] = lambda: None
    """Makes the tensors of the module those of this node."""
    _waiting: tuple[int, Content] | None = field(default=None, init=False)
    _writing: Future[None] | None = field(default=None, init=False)
    _lost: int = field(default=0, init=False)
    _problem: str = field(default="", init=False)

    def after(self, round: int) -> None:
        """Copies the model after the round, if that is due, and starts to write it."""
        if self.is_due(round):
            self._keep(round)

    def at_the_end(self, round: int) -> None:
        # A model that waits for the disk has no file yet, and is of the last round that was kept.
        is_waiting = self._waiting is not None and self._waiting[0] == round
        if not is_waiting and round not in rounds_of(self.run, self.rank):
            self._keep(round)

    def _keep(self, round: int) -> None:
        self._finish()
        # The disk has refused the model before; only one is kept in memory.
        self._lost += self._waiting is not None
        self.attach()
        try:
            content = content_of_model(self.module)
        except UnknownKind as error:
            self._lost += 1
            self._problem = str(error)
            self.warn(f"{path_of(self.run, self.rank, round)} cannot be written: {error}")
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
        folder = path_of(self.run, self.rank, 0).parent
        return f"{folder}: {counted(missing, 'model')} could not be written: {self._problem}"

    def cut_back(self, round: int) -> None:
        cut_back(self.run, self.rank, round)

    def _finish(self) -> None:
        """Waits for the writer, which usually has finished long before."""
        if self._writing is not None:
            self._writing.result()
            self._writing = None

    def _write(self, round: int, content: Content) -> None:
        path = path_of(self.run, self.rank, round)
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


def content_of_model(module: nn.Module) -> Content:
    """A copy of what `state_dict` gives, as the tensors and the metadata of a file; raises UnknownKind.

    What the format lacks, as extra state and sparse tensors, is in the metadata, with tensors of their own.
    """
    tensors, others = dict[str, Tensor](), dict[str, Any]()
    for name, value in module.state_dict().items():
        if holds(value):
            tensors[name] = value.detach().to("cpu", copy=True)
        else:
            others[name] = value
    if not others:
        return tensors, {}
    inner: dict[str, Tensor] = {}
    tree = encoded(others, inner, "state_dict()")
    tensors |= {OTHERS + name: tensor.to("cpu", copy=True) for name, tensor in inner.items()}
    return tensors, {METADATA: msgspec.json.encode({"schema": SCHEMA, "state": tree}).decode()}


def cut_back(run: Path, rank: int, round: int) -> None:
    """Removes a rank's models of rounds after `round`; raises OSError."""
    for later in rounds_of(run, rank):
        if later > round:
            path_of(run, rank, later).unlink(missing_ok=True)
    remove_temporaries(path_of(run, rank, 0).parent)
