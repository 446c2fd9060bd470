"""Large files of lines, and what is prepared from them once for a machine."""

import os
import shutil
import socket
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import TypeVar

import xxhash

from decentnode.core.atomic_files import sync_folder
from decentnode.errors import DatasetError

T = TypeVar("T")

BLOCK = 1 << 20
"""Bytes that are read at a time."""
MAKING = ".making"
"""The prefix of folders that are not complete."""


@dataclass(frozen=True)
class TextFile:
    """A file of UTF-8 text with one text in each line."""

    path: Path
    lines: int
    digest: bytes
    """A hash of its content."""
    first: int = 1
    """The number of its first line in the file at `path`, of which it may be a piece."""
    offset: int = 0
    """The byte where that line starts."""

    @classmethod
    def at(cls, path: Path) -> "TextFile":
        """Reads the file once; raises DatasetError where it is missing or empty."""
        content, lines, last = xxhash.xxh3_128(), 0, b"\n"
        try:
            with path.open("rb") as file:
                while block := file.read(BLOCK):
                    content.update(block)
                    lines += block.count(b"\n")
                    last = block[-1:]
        except OSError as error:
            raise DatasetError.at("dataset.path", f"{path}: {error.strerror}") from error
        lines += last != b"\n"
        if not lines:
            raise DatasetError.at("dataset.path", f"{path}: is empty")
        return cls(path, lines, content.digest())

    def texts(self) -> Iterator[str]:
        """Each line without blanks around it; raises DatasetError where it is no UTF-8."""
        # In binary, because text ends lines at more characters than a line feed.
        with self.path.open("rb") as file:
            file.seek(self.offset)
            for number, line in enumerate(islice(file, self.lines), self.first):
                try:
                    yield line.decode("utf-8-sig" if number == 1 else "utf-8").strip()
                except UnicodeDecodeError as error:
                    raise DatasetError.at(
                        "dataset.path",
                        f"{self.path}:{number}: is no UTF-8 text: {error.reason} at byte "
                        f"{error.start} of the line",
                    ) from error

    def pieces(self, lines: int) -> Iterator["TextFile"]:
        """Yields it in pieces of so many lines, with its digest, for several processes."""
        offset = self.offset
        with self.path.open("rb") as file:
            file.seek(offset)
            for start in range(0, self.lines, lines):
                count = min(lines, self.lines - start)
                yield replace(self, lines=count, first=self.first + start, offset=offset)
                offset += sum(map(len, islice(file, count)))


def in_groups(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """Yields groups of so many items."""
    iterator = iter(items)
    while group := list(islice(iterator, size)):
        yield group


def prepared(cache: Path, name: str, make: Callable[[Path], None]) -> Path:
    """The folder `name` in `cache`, which `make` fills if it is not there; raises DatasetError.

    Several processes may ask at once: each fills a folder of its own, and the first one to end gives its
    folder the name. So none waits, and a folder with the name is complete.
    """
    folder, making = cache / name, cache / f"{MAKING}-{socket.gethostname()}-{os.getpid()}"
    if folder.is_dir():
        return folder
    try:
        cache.mkdir(parents=True, exist_ok=True)
        _remove_interrupted(cache)
        making.mkdir()
        try:
            make(making)
            sync_folder(making)
            try:
                making.rename(folder)
            except OSError:
                # Another process was first, and its folder is as good.
                if not folder.is_dir():
                    raise
            sync_folder(cache)
        finally:
            shutil.rmtree(making, ignore_errors=True)
    except OSError as error:
        raise DatasetError.at(
            "dataset.cache_path", f"{cache}: {error.strerror}; name a directory that can be written"
        ) from error
    return folder


def _remove_interrupted(cache: Path) -> None:
    """Removes what processes of this machine left that are gone, or had the number of this one."""
    for folder in cache.glob(f"{MAKING}-{socket.gethostname()}-*"):
        process = folder.name.rpartition("-")[2]
        if process == str(os.getpid()) or not Path("/proc", process).exists():
            shutil.rmtree(folder, ignore_errors=True)
