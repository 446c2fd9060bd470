"""Checkpoints of whole nodes: `checkpoints/RANK/ROUND.safetensors` with the manifest `ROUND.json`.

The manifest is written last. So a checkpoint without a manifest does not exist, and one with it was complete
when it was written. Its hashes show whether it still is. No file refers to another by name: its path
identifies it.
"""

import contextlib
import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch import Tensor

from decentnode.core.atomic_files import make_folder, remove_temporaries, sync_folder, write_durably
from decentnode.core.version import __version__
from decentnode.errors import UNDECODABLE, BadInput
from decentnode.models.state_encoding import InvalidState, decoded, encoded
from decentnode.node.checkpoint.safetensors_io import BadTensors, pieces, tensors_in

SCHEMA = 2
"""The version of the format; a change of meaning increments it."""
FOLDER = "checkpoints"
MOST_MANIFEST_BYTES = 1 << 28
_TENSORS, _MANIFEST = ".safetensors", ".json"
CPU = torch.device("cpu")


@dataclass(frozen=True)
class RunStamp:
    """The run that a checkpoint belongs to."""

    run_id: int
    incarnation: int
    """Restarts of the run, or of this node alone."""
    settings: str
    """A hash of all settings that affect the models."""


@dataclass(frozen=True)
class Checkpoint:
    """A node's state after `round`."""

    rank: int
    round: int
    stamp: RunStamp
    state: Any


class BadCheckpoint(ValueError):
    """A checkpoint that cannot be used; the message names the file and the defect."""


class _Manifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    schema: int
    version: str
    run_id: int
    rank: int
    round: int
    incarnation: int
    settings: str
    bytes: int
    """The size of the tensor file."""
    sha256: str
    """The hash of the tensor file."""
    state: Any
    """The state with references to tensors (state_encoding.py)."""


class _Sealed(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A manifest with the hash of its own bytes."""

    sha256: str
    manifest: msgspec.Raw


def save(
    directory: Path, rank: int, round: int, state: Any, stamp: RunStamp, overwrite: bool = False,
    syncs: bool = True,
) -> None:  # fmt: skip
    """Writes a checkpoint below `directory`; raises OSError, UnknownKind or BadTensors, and leaves no part.

    A valid one of that round of the run is kept: it has the same content, and a rewrite could lose it.
    `overwrite` replaces it, because the round was discarded. `syncs`: whether it survives a loss of power
    right after the return; otherwise its hashes show what did not.
    """
    if not overwrite:
        with contextlib.suppress(BadCheckpoint):
            saved = read(directory, rank, round).stamp
            # The incarnation may differ: a resumed run keeps the checkpoints it starts from.
            if (saved.run_id, saved.settings) == (stamp.run_id, stamp.settings):
                return
    tensors: dict[str, Tensor] = {}
    tree = encoded(state, tensors)
    folder = directory / f"{rank:05d}"
    make_folder(directory, syncs)
    make_folder(folder, syncs)
    # The old manifest goes first; otherwise it would stand for new tensors.
    delete(directory, rank, round)
    # Hashed while written: each piece is read from memory once.
    digest, path = hashlib.sha256(), _path(directory, rank, round, ending=_TENSORS)

    def hashed_pieces() -> Iterator[memoryview]:
        for piece in pieces(tensors):
            digest.update(piece)
            yield piece

    try:
        write_durably(path, hashed_pieces(), syncs=syncs)
        manifest = _Manifest(
            schema=SCHEMA,
            version=__version__,
            run_id=stamp.run_id,
            rank=rank,
            round=round,
            incarnation=stamp.incarnation,
            settings=stamp.settings,
            bytes=path.stat().st_size,
            sha256=digest.hexdigest(),
            state=tree,
        )
        path = _path(directory, rank, round, ending=_MANIFEST)
        write_durably(path, [_sealed(msgspec.json.encode(manifest))], syncs=syncs)
        # A rename survives a loss of power only after its folder is synced.
        if syncs:
            sync_folder(folder)
    except Exception:
        with contextlib.suppress(OSError):
            delete(directory, rank, round)
        raise


def read(directory: Path, rank: int, round: int, device: torch.device = CPU) -> Checkpoint:
    """Reads and checks one checkpoint; raises BadCheckpoint. `device`: for tensors that were on a GPU."""
    path = _path(directory, rank, round, ending=_MANIFEST)
    manifest = _read_manifest(path)
    if (manifest.rank, manifest.round) != (rank, round):
        raise BadCheckpoint(f"{path}: is of rank {manifest.rank}, round {manifest.round}")
    path = _path(directory, rank, round, ending=_TENSORS)
    # The size before the content: a damaged manifest must not fill the memory.
    content = _content(path, manifest.bytes, exactly=True)
    if hashlib.sha256(content).hexdigest() != manifest.sha256:
        raise BadCheckpoint(f"{path}: was changed since it was written (its SHA-256 is another one)")
    try:
        state = decoded(manifest.state, tensors_in(content), device)
    except (BadTensors, InvalidState) as error:
        raise BadCheckpoint(f"{path}: {error}") from error
    stamp = RunStamp(manifest.run_id, manifest.incarnation, manifest.settings)
    return Checkpoint(rank, round, stamp, state=state)


def rounds(directory: Path, rank: int) -> list[int]:
    """The rounds of a rank's checkpoints, valid or not, ascending."""
    stems = [path.stem for path in (directory / f"{rank:05d}").glob(f"*{_MANIFEST}")]
    return sorted(int(stem) for stem in stems if stem.isdecimal() and stem == f"{int(stem):08d}")


def newest(
    directory: Path, rank: int, device: torch.device = CPU, report_damage: Callable[[str], object] = print,
    before: int | None = None,
) -> Checkpoint | None:  # fmt: skip
    """The newest valid checkpoint of a rank; None if there is none at all; raises BadInput if all are
    damaged.

    `report_damage` receives a line for each damaged one; only rounds before `before` count.
    """
    defects = []
    for round in reversed(rounds(directory, rank)):
        if before is not None and round >= before:
            continue
        try:
            return read(directory, rank, round, device=device)
        except BadCheckpoint as error:
            report_damage(f"{error}; the checkpoint before it is tried")
            defects.append(str(error))
    if defects:
        raise BadInput(f"no checkpoint of rank {rank} can be used: {defects[0]}")
    return None


def delete(directory: Path, rank: int, round: int) -> None:
    """Removes a checkpoint, its manifest first."""
    # A kill in between leaves tensors without a manifest, which is no checkpoint.
    for ending in (_MANIFEST, _TENSORS):
        _path(directory, rank, round, ending=ending).unlink(missing_ok=True)


def clean_up(directory: Path, rank: int) -> None:
    """Removes what a crash left: partial files, and tensors without a manifest."""
    folder = directory / f"{rank:05d}"
    remove_temporaries(folder)
    kept = {f"{round:08d}" for round in rounds(directory, rank)}
    for path in folder.glob(f"*{_TENSORS}"):
        # Tensors that cannot be deleted cost only space.
        if path.stem not in kept:
            with contextlib.suppress(OSError):
                path.unlink()


def _path(directory: Path, rank: int, round: int, ending: str) -> Path:
    return directory / f"{rank:05d}" / f"{round:08d}{ending}"


def _sealed(text: bytes) -> bytes:
    return msgspec.json.encode(_Sealed(hashlib.sha256(text).hexdigest(), msgspec.Raw(text))) + b"\n"


def _read_manifest(path: Path) -> _Manifest:
    content = _content(path, MOST_MANIFEST_BYTES)
    try:
        text = bytes(msgspec.json.decode(content, type=_Sealed).manifest)
        # Compared as bytes, so a change outside the manifest itself is found, too.
        unchanged = content == _sealed(text)
        manifest = msgspec.json.decode(text, type=_Manifest)
    except UNDECODABLE as error:
        raise BadCheckpoint(f"{path}: is no manifest of a checkpoint: {error}"[:500]) from error
    if manifest.schema != SCHEMA:
        raise BadCheckpoint(f"{path}: has schema {manifest.schema}; this version reads schema {SCHEMA}")
    if not unchanged:
        raise BadCheckpoint(f"{path}: was changed since it was written (its SHA-256 is another one)")
    return manifest


def _content(path: Path, most: int, exactly: bool = False) -> bytes:
    """The bytes of a file; raises BadCheckpoint if the size is not as expected."""
    try:
        size = path.stat().st_size
        if size > most or (exactly and size != most):
            raise BadCheckpoint(f"{path}: has {size} bytes; {most} {'were written' if exactly else 'may be'}")
        return path.read_bytes()
    except OSError as error:
        raise BadCheckpoint(f"{path}: cannot be read: {error.strerror}") from error
