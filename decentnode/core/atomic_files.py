"""Files that are there whole or not at all, whatever ends the process or the machine."""

import contextlib
import os
from collections.abc import Iterable
from pathlib import Path

TEMPORARY = ".tmp"
"""How the names of files end that are still being written; what a crash leaves of them means nothing."""


def write_durably(path: Path, pieces: Iterable[bytes | memoryview]) -> None:
    """Writes beside the path, lets that reach the disk, then renames it; raises OSError and tears nothing."""
    temporary = path.with_name(path.name + TEMPORARY)
    try:
        with temporary.open("wb", buffering=0) as file:
            for piece in pieces:
                write_whole(file.fileno(), piece)
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise


def write_whole(fd: int, piece: bytes | memoryview) -> None:
    """All of it, in as many calls as the kernel wants."""
    rest = memoryview(piece).cast("B")
    while rest:
        rest = rest[os.write(fd, rest) :]


def sync_folder(folder: Path) -> None:
    """Lets what was made, renamed or removed in a folder reach the disk."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def make_folder(folder: Path) -> None:
    """Makes a folder below one that exists, and lets that reach the disk."""
    if not folder.is_dir():
        folder.mkdir(exist_ok=True)
        sync_folder(folder.parent)


def remove_temporaries(folder: Path) -> None:
    """Removes what a crash has left half written."""
    for path in folder.glob(f"*{TEMPORARY}"):
        with contextlib.suppress(OSError):
            path.unlink()
