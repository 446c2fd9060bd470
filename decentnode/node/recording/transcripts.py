"""Records what an adversary receives: a round waits for a copy in memory, never for the disk."""

import os
import time
from collections.abc import Mapping as Map
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cache
from io import FileIO
from pathlib import Path
from typing import Literal, Protocol

import msgspec
import torch
from torch import Tensor

from decentnode.communication.exchange.handle import Message
from decentnode.config.settings import KeyFolder, Settings
from decentnode.core.atomic_files import make_folder, write_whole
from decentnode.core.line_file import LineFile, Warn
from decentnode.core.payload import Payload
from decentnode.core.vector import Vector
from decentnode.formats.records import AuxiliaryRecords
from decentnode.formats.transcript import TranscriptLine, bytes_path, cut_back, key_path, lines_path
from decentnode.mapping.base import Mapping
from decentnode.sharing.base import SharingBase

MOST_WAITING_BYTES = 256 << 20
"""Bytes of payloads that may wait for the disk; the bytes of later payloads are not kept."""
FLUSH_INTERVAL = 0.5
"""Seconds between writes where rounds are shorter: each hands the processor over and delays a round."""


@cache
def _writer(process: int) -> ThreadPoolExecutor:
    """Returns the writing thread of all nodes of a process; a fork of it has another one."""
    return ThreadPoolExecutor(1, f"decentnode-transcript-{process}")


class PassiveAdversary(Protocol):
    """A passive adversary, as far as a node knows it."""

    ranks: tuple[int, ...]

    @property
    def keeps_own_models(self) -> bool:
        """Whether its ranks also record their own models."""

    def sees(self, target: int, source: int) -> bool:
        """Whether it sees what `source` sends to `target`."""

    def opens(self, target: int, is_encrypted: bool) -> bool:
        """Whether it sees the bytes, not only how many there are and when."""

    def records(self, round: int, rounds: int, keeps_all: bool) -> bool:
        """Whether it needs what a round sends; `keeps_all`: payloads mean nothing without earlier ones."""


@dataclass
class TranscriptBatch:
    """Lines that are written together, and the bytes in which their offsets count."""

    lines: list[TranscriptLine] = field(default_factory=list)
    content: bytearray = field(default_factory=bytearray)
    began: float = field(default_factory=time.monotonic)


class TranscriptWriter(AuxiliaryRecords):
    """Writes down the payloads that the adversaries of one node see."""

    def __init__(
        self, run: Path, rank: int, adversaries: Sequence[PassiveAdversary], settings: Settings,
        mapping: Mapping, scheme: SharingBase, vector: Vector, warn: Warn,
    ) -> None:  # fmt: skip
        """`scheme`, `vector`: those of the node."""
        self._run, self._rank, self._rounds = run, rank, settings.rounds
        self._adversaries = adversaries
        self._keeps_own = any(rank in each.ranks and each.keeps_own_models for each in adversaries)
        self._vector = vector
        # Such payloads tell little without those of the rounds before.
        self._keeps_all = scheme.promises.sends == "differences" or scheme.chain.selects
        # Links of one machine need no keys.
        has_keys = isinstance(settings.security, KeyFolder)
        self._plain = mapping.ranks_of(mapping.machine_of(rank)) if has_keys else range(mapping.num_nodes)
        self._warn = warn
        self._lines = LineFile(lines_path(run, rank), warn)
        self._round = -1
        self._batch = TranscriptBatch()
        self._submitted = 0
        self._written = 0
        """Written bytes; each counter is changed by one thread alone."""
        self._last: Future[None] | None = None
        self._problem = ""
        self._file: FileIO | None = None
        if scheme.private_key and any(rank in adversary.ranks for adversary in adversaries):
            # The party knows the private key with which the node reads what it receives.
            path = key_path(run, rank)
            make_folder(path.parent)
            path.touch(0o600)
            path.write_bytes(scheme.private_key)

    def take(self, round: int, phase: int, payloads: Map[int, Payload], arrived: Map[int, Message]) -> None:
        """Copies what has arrived in an exchange and starts to write it; `arrived` is in order of arrival."""
        # A line of a later round proves that the earlier one is complete.
        if round > self._round >= 0:
            self._batch.lines.append(TranscriptLine("round", self._round))
        self._round = round
        if phase == 0:
            # The mix goes into the other slot, so this is still what the node shares.
            self._take_own("trained", round)
        listening = [
            adversary
            for adversary in self._adversaries
            if adversary.records(round, self._rounds, self._keeps_all)
        ]
        for order, (source, message) in enumerate(arrived.items() if listening else ()):
            hearing = [adversary for adversary in listening if adversary.sees(self._rank, source)]
            payload = payloads.get(source)
            # What was refused has no payload: the party could not read it either.
            if payload is None or not hearing:
                continue
            sealed = source not in self._plain
            line = TranscriptLine(
                kind="payload",
                round=round,
                phase=phase,
                source=source,
                target=self._rank,
                order=order,
                seconds=message.received,
                bytes=payload.nbytes,
                layout=message.layout,
                sealed=sealed,
            )
            self._batch.lines.append(line)
            if any(adversary.opens(self._rank, sealed) for adversary in hearing):
                self._keep(line, payload.buffer)
        if time.monotonic() - self._batch.began >= FLUSH_INTERVAL:
            self._flush()

    def after(self, round: int) -> None:
        self._take_own("mixed", round)

    def sync(self) -> str:
        self._flush()
        if self._last is not None:
            self._last.result()
        return self._problem

    def close(self) -> str:
        # With a mark that the node has ended.
        if self._round >= 0:
            self._batch.lines.append(TranscriptLine("end", self._round))
        problem = self.sync()
        if self._file is not None:
            self._file.close()
        return self._lines.close() or problem

    def cut_back(self, round: int) -> None:
        cut_back(self._run, self._rank, round)

    def _take_own(self, kind: Literal["trained", "mixed"], round: int) -> None:
        """Copies the model as the node has it, if a party asks for it."""
        if self._keeps_own:
            content = self._vector.shared.view(torch.uint8)
            line = TranscriptLine(kind, round, source=self._rank, target=self._rank, bytes=len(content))
            self._batch.lines.append(line)
            self._keep(line, content)

    def _keep(self, line: TranscriptLine, content: Tensor) -> None:
        """Copies the bytes of a line, uint8 of shape (bytes,), unless the disk is too slow."""
        # The node never waits for a slow disk.
        line.lost = self._submitted - self._written + len(content) > MOST_WAITING_BYTES
        if not line.lost:
            line.offset = len(self._batch.content)
            # A copy, because a payload is invalid after the exchange.
            self._batch.content += content.cpu().numpy().data
            self._submitted += len(content)

    def _flush(self) -> None:
        """Starts to write what has been recorded since the last call."""
        if self._batch.lines:
            self._last = _writer(os.getpid()).submit(self._write, self._batch)
        self._batch = TranscriptBatch()

    def _write(self, batch: TranscriptBatch) -> None:
        with_bytes = [line for line in batch.lines if line.offset >= 0]
        try:
            make_folder(lines_path(self._run, self._rank).parent)
            start = self._append(batch.content) if batch.content else 0
            for line in with_bytes:
                line.offset += start
        except OSError as error:
            for line in with_bytes:
                line.offset, line.lost = -1, True
            self._problem = f"{bytes_path(self._run, self._rank)} cannot be written: {error.strerror}"
            self._warn(self._problem)
        self._written += len(batch.content)
        self._lines.append(b"\n".join(map(msgspec.json.encode, batch.lines)))

    def _append(self, content: bytearray) -> int:
        """Writes bytes to the end of the file; returns where they begin."""
        if self._file is None:
            # Without a buffer: the lines that follow promise the bytes.
            self._file = bytes_path(self._run, self._rank).open("ab", buffering=0)
        start = self._file.tell()
        try:
            write_whole(self._file.fileno(), memoryview(content))
        except OSError:
            self._file.truncate(start)
            raise
        self._file.seek(0, os.SEEK_END)
        return start


def writer_for(
    run: Path, rank: int, settings: Settings, mapping: Mapping, scheme: SharingBase, vector: Vector,
    warn: Warn,
) -> TranscriptWriter | None:  # fmt: skip
    """The writer of a node that a passive adversary observes, or None. `scheme`, `vector`: of the node."""
    adversaries = [plugin.make() for plugin in settings.adversaries]
    hearing = [adversary for adversary in adversaries if not adversary.active and adversary.listens_at(rank)]
    if not hearing:
        return None
    return TranscriptWriter(
        run, rank, adversaries=hearing, settings=settings, mapping=mapping, scheme=scheme, vector=vector,
        warn=warn,
    )  # fmt: skip
