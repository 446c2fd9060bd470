"""Checkpoints of whole nodes: `checkpoints/RANK/ROUND.safetensors` with the manifest `ROUND.json`.

Many nodes of a process share one pair of files in `checkpoints/FIRST-LAST`: the tensor file has theirs one
after the other, and the manifest a line for each.

The manifest is written last. So a checkpoint without a manifest does not exist, and one with it was complete
when it was written. Its hashes show whether it still is. No file refers to another by name: its path
identifies it.
"""

import contextlib
import hashlib
import os
import re
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import msgspec
import torch

from decentnode.core.atomic_files import remove_temporaries, write_durably
from decentnode.errors import UNDECODABLE, BadInput
from decentnode.models.state_encoding import InvalidState, decoded
from decentnode.node.checkpoint.safetensors_io import BadTensors, tensors_in

SCHEMA = 3
"""The version of the format; a change of meaning increments it."""
FOLDER = "checkpoints"
MOST_MANIFEST_BYTES = 1 << 28
"""Of one node."""
TENSORS, MANIFEST = ".safetensors", ".json"
CPU = torch.device("cpu")
_SHARED = re.compile(r"(\d{5,})-(\d{5,})")
"""The name of the folder of many nodes."""
_RANK = re.compile(rb'"rank":(\d{1,18}),')


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
    path: Path
    """Its manifest."""


class BadCheckpoint(ValueError):
    """A checkpoint that cannot be used; the message names the file and the defect."""


class NodeManifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All of a node but its tensors; `rank` comes before `state`, which may have anything."""

    schema: int
    version: str
    run_id: int
    rank: int
    round: int
    incarnation: int
    settings: str
    offset: int
    """Where the tensors of the node begin in the tensor file."""
    bytes: int
    """Their size."""
    sha256: str
    """Their hash."""
    state: Any
    """The state with references to tensors (state_encoding.py)."""


class _Sealed(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A manifest with the hash of its own bytes."""

    sha256: str
    manifest: msgspec.Raw


@dataclass(frozen=True)
class _Lines:
    """Where the lines of many nodes are in a manifest file."""

    places: dict[int, tuple[int, int]]
    """By rank its offset and its length."""
    is_whole: bool
    """Whether each line says whose it is."""


def read(directory: Path, rank: int, round: int, device: torch.device = CPU) -> Checkpoint:
    """Reads and checks one checkpoint; raises BadCheckpoint. `device`: for tensors that were on a GPU."""
    path = manifest_path(directory / f"{rank:05d}", round)
    if not path.exists():
        # The last one that was written: an earlier process may have had other nodes.
        shared = [file for file in _shared_files(directory, round) if rank in _ranks_by_name(file)]
        shared = [file for file in shared if rank in _lines_of(file).places] or shared
        path = max(shared, key=_changed, default=path)
    manifest = _read_manifest(path, rank)
    if (manifest.rank, manifest.round) != (rank, round):
        raise BadCheckpoint(f"{path}: is of rank {manifest.rank}, round {manifest.round}")
    tensors = path.with_suffix(TENSORS)
    # The size before the content: a damaged manifest must not fill the memory.
    content = _content(tensors, manifest.offset, manifest.bytes)
    if hashlib.sha256(content).hexdigest() != manifest.sha256:
        raise BadCheckpoint(f"{tensors}: was changed since it was written (its SHA-256 is another one)")
    try:
        state = decoded(manifest.state, tensors_in(content), device)
    except (BadTensors, InvalidState) as error:
        raise BadCheckpoint(f"{tensors}: {error}") from error
    stamp = RunStamp(manifest.run_id, manifest.incarnation, manifest.settings)
    return Checkpoint(rank, round, stamp, state=state, path=path)


def rounds_of(directory: Path, ranks: Collection[int] | None = None) -> dict[int, list[int]]:
    """By rank the rounds of its checkpoints, valid or not, ascending; by default of all that have any."""
    own = _own(directory)
    found: dict[int, set[int]] = {} if ranks is None else {rank: set() for rank in ranks}
    for rank in own if ranks is None else own.intersection(found):
        found[rank] = {*_rounds_in(directory / f"{rank:05d}")}
    for path in _shared_files(directory):
        named = _ranks_by_name(path)
        if ranks is not None and found.keys().isdisjoint(named):
            continue
        lines, round = _lines_of(path), int(path.stem)
        held = lines.places.keys() | (() if lines.is_whole else named)
        for rank in held if ranks is None else held & found.keys():
            found.setdefault(rank, set()).add(round)
    return {rank: sorted(rounds) for rank, rounds in sorted(found.items())}


def rounds(directory: Path, rank: int) -> list[int]:
    """The rounds of a rank's checkpoints, valid or not, ascending."""
    return rounds_of(directory, [rank])[rank]


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


def delete(directory: Path, ranks: Collection[int], round: int, only_files: bool = False) -> None:
    """Removes the checkpoints of these ranks after a round; raises OSError after trying all.

    `only_files`: files that other ranks share stay as they are, because a process may be writing there.
    """
    failed, ranks = None, {*ranks}
    for path in [manifest_path(directory / f"{rank:05d}", round) for rank in _own(directory) & ranks]:
        try:
            remove(path)
        except OSError as error:
            failed = error
    for path in _shared_files(directory, round):
        if ranks.isdisjoint(named := _ranks_by_name(path)):
            continue
        lines = _lines_of(path)
        # What cannot be read may be of any rank that the name has.
        held = lines.places.keys() | (() if lines.is_whole else named)
        try:
            if held <= ranks:
                remove(path)
            elif not only_files and held & ranks:
                content, kept, end = path.read_bytes(), [], 0
                for start, size in sorted(lines.places[rank] for rank in lines.places.keys() & ranks):
                    kept.append(content[end:start])
                    end = start + size
                write_durably(path, [*kept, content[end:]])
        except OSError as error:
            failed = error
    if failed is not None:
        raise failed


def remove(manifest: Path) -> None:
    """Removes a manifest and its tensors; raises OSError."""
    # A kill in between leaves tensors without a manifest, which is no checkpoint.
    for path in (manifest, manifest.with_suffix(TENSORS)):
        path.unlink(missing_ok=True)


def clean_up(folder: Path) -> None:
    """Removes what a crash left in a folder: partial files, and tensors without a manifest."""
    remove_temporaries(folder)
    kept = {f"{round:08d}" for round in _rounds_in(folder)}
    for path in folder.glob(f"*{TENSORS}"):
        # Tensors that cannot be deleted cost only space.
        if path.stem not in kept:
            with contextlib.suppress(OSError):
                path.unlink()


def line_of(manifest: NodeManifest) -> bytes:
    """Its line in a manifest file, with the hash of its own bytes."""
    return _sealed(msgspec.json.encode(manifest))


def manifest_path(folder: Path, round: int) -> Path:
    """Where the manifest of a round is."""
    return folder / f"{round:08d}{MANIFEST}"


def lines_in(manifest: Path) -> dict[int, bytes]:
    """By rank the lines of a manifest, whatever is in them; empty if there is none."""
    try:
        content = manifest.read_bytes()
    except OSError:
        return {}
    return {rank: content[start : start + size] for rank, (start, size) in _places(content)}


def _own(directory: Path) -> set[int]:
    """The ranks with a folder of their own."""
    names = [path.name for path in directory.glob("[0-9]*")]
    # Somebody may have kept a copy of a folder beside it.
    return {int(name) for name in names if name.isdecimal() and name == f"{int(name):05d}"}


def _shared_files(directory: Path, round: int | None = None) -> list[Path]:
    """The manifests of many nodes; `round`: only those of this one."""
    folders = [path for path in directory.glob("*-*") if _SHARED.fullmatch(path.name)]
    if round is not None:
        return [path for folder in folders if (path := manifest_path(folder, round)).exists()]
    return [manifest_path(folder, round) for folder in folders for round in _rounds_in(folder)]


def _rounds_in(folder: Path) -> list[int]:
    stems = [path.stem for path in folder.glob(f"*{MANIFEST}")]
    return sorted(int(stem) for stem in stems if stem.isdecimal() and stem == f"{int(stem):08d}")


def _ranks_by_name(manifest: Path) -> range:
    """The ranks between the first and the last of a shared file."""
    first, last = map(int, manifest.parent.name.split("-"))
    return range(first, last + 1)


def _changed(manifest: Path) -> int:
    """When it was written, in nanoseconds; 0: it is gone."""
    try:
        return manifest.stat().st_mtime_ns
    except OSError:
        return 0


def _lines_of(manifest: Path) -> _Lines:
    """Where the lines of a shared manifest are; raises nothing: what cannot be read has none."""
    try:
        file = manifest.stat()
        return _read_lines(manifest, file.st_ino, file.st_mtime_ns, file.st_size)
    except OSError:
        return _Lines({}, is_whole=False)


# Each of thousands of nodes asks. A manifest is only ever replaced as a whole.
@lru_cache(maxsize=8)
def _read_lines(manifest: Path, inode: int, changed: int, size: int) -> _Lines:
    content = manifest.read_bytes()
    places = dict(_places(content))
    return _Lines(places, is_whole=sum(length for _, length in places.values()) == len(content) > 0)


def _places(content: bytes) -> Iterator[tuple[int, tuple[int, int]]]:
    """The rank of each line that says one, its offset and its length."""
    start = 0
    while start < len(content):
        end = content.find(b"\n", start) + 1 or len(content)
        if said := _RANK.search(content, start, end):
            yield int(said[1]), (start, end - start)
        start = end


def _sealed(text: bytes) -> bytes:
    return msgspec.json.encode(_Sealed(hashlib.sha256(text).hexdigest(), msgspec.Raw(text))) + b"\n"


def _read_manifest(path: Path, rank: int) -> NodeManifest:
    if _SHARED.fullmatch(path.parent.name):
        place = _lines_of(path).places.get(rank)
        if place is None:
            raise BadCheckpoint(f"{path}: has no line of rank {rank} that can be read")
        content = _content(path, *place)
    else:
        content = _content(path)
    try:
        text = bytes(msgspec.json.decode(content, type=_Sealed).manifest)
        # Compared as bytes, so a change outside the manifest itself is found, too.
        unchanged = content == _sealed(text)
        manifest = msgspec.json.decode(text, type=NodeManifest)
    except UNDECODABLE as error:
        raise BadCheckpoint(f"{path}: is no manifest of a checkpoint: {error}"[:500]) from error
    if manifest.schema != SCHEMA:
        raise BadCheckpoint(f"{path}: has schema {manifest.schema}; this version reads schema {SCHEMA}")
    if not unchanged:
        raise BadCheckpoint(f"{path}: was changed since it was written (its SHA-256 is another one)")
    return manifest


def _content(path: Path, offset: int = 0, size: int | None = None) -> bytes:
    """The bytes of a file, or so many of them; raises BadCheckpoint if it is shorter, or too long."""
    try:
        with path.open("rb", buffering=0) as file:
            found = os.fstat(file.fileno()).st_size
            if size is None and found > MOST_MANIFEST_BYTES:
                raise BadCheckpoint(f"{path}: has {found} bytes; {MOST_MANIFEST_BYTES} may be")
            if size is not None and not 0 <= offset <= offset + size <= found:
                raise BadCheckpoint(f"{path}: has {found} bytes; {offset + size} were written")
            file.seek(offset)
            return file.readall() if size is None else file.read(size)
    except OSError as error:
        raise BadCheckpoint(f"{path}: cannot be read: {error.strerror}") from error
