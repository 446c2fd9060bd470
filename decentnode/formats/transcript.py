"""What a node received, as files: `transcript/RANK.jsonl` has a line for each payload, `RANK.bin` its bytes.

Where an adversary asks for it, also the models of the node itself: what a party knows, or the truth.
Both only grow while the node runs. A payload's bytes are written before its line, so a line that can be read
has them (docs/attacks.md).
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from decentnode.core.atomic_files import write_durably
from decentnode.errors import BadInput
from decentnode.formats.reader import StrPath

FOLDER = "transcript"
KEY_ENDING = ".key"


class TranscriptLine(msgspec.Struct, omit_defaults=True):
    """A payload that arrived, a model of the node itself, or a mark: the end of a round, or of the record.

    `trained` is the model after the local steps, which it shares, and `mixed` the one after the mix.
    """

    kind: Literal["payload", "trained", "mixed", "round", "end"]
    round: int
    phase: int = 0
    """The number of the exchange within the round."""
    source: int = -1
    target: int = -1
    order: int = 0
    """The place of the payload among the arrivals of the exchange, from 0."""
    seconds: float = 0.0
    """The time of its arrival, by the receiver's monotonic clock."""
    bytes: int = 0
    layout: int = 0
    """The hash of the payload's layout, which both ends compute from the settings."""
    offset: int = -1
    """The offset of its bytes in `RANK.bin`; -1: they are not known, because the link was encrypted."""
    lost: bool = False
    """The disk was too slow: the bytes are missing, although the node received them."""
    sealed: bool = False
    """The link was encrypted: the receiver knows the bytes, and an eavesdropper does not."""


def lines_path(run: Path, rank: int) -> Path:
    """The lines of what a rank received."""
    return run / FOLDER / f"{rank:05d}.jsonl"


def bytes_path(run: Path, rank: int) -> Path:
    """The bytes of what a rank received."""
    return run / FOLDER / f"{rank:05d}.bin"


def key_path(run: Path, rank: int) -> Path:
    """The private key of a rank, where its scheme decrypts with one; readable by its owner alone."""
    return run / FOLDER / f"{rank:05d}{KEY_ENDING}"


class Transcript:
    """Reads what a rank received, also while the node still writes."""

    def __init__(self, run: StrPath, rank: int) -> None:
        self.rank = rank
        self._run = Path(run)
        self._position = 0
        self._file = 0
        """The inode of the file of lines, which a node replaces when it repeats rounds."""
        self.lines: dict[int, list[TranscriptLine]] = {}
        """The payloads of each round, in the order of their arrival."""
        self.own_lines: dict[tuple[str, int], TranscriptLine] = {}
        """The models of the node itself, by `trained` or `mixed` and round."""
        self.complete = -1
        """The last round whose lines are all known."""
        self.ended = False

    @property
    def exists(self) -> bool:
        """Whether the node has recorded anything."""
        return lines_path(self._run, self.rank).exists()

    @property
    def key(self) -> bytes:
        """The private key of the node, empty where its scheme needs none."""
        path = key_path(self._run, self.rank)
        return path.read_bytes() if path.exists() else b""

    def advance(self) -> None:
        """Reads the lines that are new; raises BadInput for a file that is no transcript."""
        for line in self._new_lines():
            if line.kind == "payload":
                self.lines.setdefault(line.round, []).append(line)
            elif line.kind in ("trained", "mixed"):
                self.own_lines[line.kind, line.round] = line
            else:
                self.complete = max(self.complete, line.round)
                self.ended = line.kind == "end"

    def content(self, line: TranscriptLine) -> NDArray[np.uint8] | None:
        """The bytes of a payload, shape (bytes,); None where they are not known."""
        if line.offset < 0:
            return None
        # Not mapped: a node that repeats rounds cuts the file.
        with bytes_path(self._run, self.rank).open("rb") as file:
            file.seek(line.offset)
            content = file.read(line.bytes)
        return np.frombuffer(bytearray(content), np.uint8) if len(content) == line.bytes else None

    def _new_lines(self) -> Iterator[TranscriptLine]:
        path = lines_path(self._run, self.rank)
        if not path.exists():
            return
        with path.open("rb") as file:
            if (inode := os.fstat(file.fileno()).st_ino) != self._file:
                self._file, self._position = inode, 0
                self.lines.clear()
                self.own_lines.clear()
            file.seek(self._position)
            content = file.read()
        whole = content[: content.rfind(b"\n") + 1]
        self._position += len(whole)
        for line in whole.splitlines():
            try:
                yield msgspec.json.decode(line, type=TranscriptLine)
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                raise BadInput(f"{path}: no transcript of this version of decentnode: {error}") from error


def cut_back(run: Path, rank: int, round: int) -> None:
    """Removes what was received in rounds after `round`, which the node repeats; raises BadInput, OSError."""
    transcript = Transcript(run, rank)
    if not transcript.exists:
        return
    transcript.advance()
    kept = [line for r, lines in sorted(transcript.lines.items()) if r <= round for line in lines]
    kept += [line for line in transcript.own_lines.values() if line.round <= round]
    marks = [TranscriptLine("round", min(round, transcript.complete))] if round >= 0 else []
    encode = msgspec.json.encode
    write_durably(lines_path(run, rank), [encode(line) + b"\n" for line in [*kept, *marks]])
    if bytes_path(run, rank).exists():
        os.truncate(
            bytes_path(run, rank), max((at.offset + at.bytes for at in kept if at.offset >= 0), default=0)
        )
