"""Files that are complete or absent, whatever ends the process or the machine."""

import contextlib
import os
from collections.abc import Iterable
from pathlib import Path

TEMPORARY = ".tmp"
"""Suffix of files that are being written; after a crash they have no meaning."""


def write_durably(
    path: Path, pieces: Iterable[bytes | memoryview], mode: int = 0o666, syncs: bool = True
) -> None:
    """Writes beside the path, syncs, then renames; raises OSError and never leaves a partial file.

    `mode`: what the umask leaves of it; nobody has more access at any time. `syncs`: False where nobody is to
    wait for the disk; a loss of power may then leave a part, which a hash must show to its reader.
    """
    temporary = path.with_name(path.name + TEMPORARY)
    try:
        # What a crash left may have another mode.
        temporary.unlink(missing_ok=True)
        with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb", 0) as file:
            for piece in pieces:
                write_whole(file.fileno(), piece)
            # Before the rename: otherwise a loss of power may leave the new name with empty content.
            if syncs:
                os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise


MOST_PER_WRITE = 512 << 10
"""Bytes; with calls of 4 to 16 MB, Linux 6.18 takes 4 to 8 times as long on ext4."""


def write_whole(fd: int, piece: bytes | memoryview) -> None:
    """Writes all bytes, in as many calls as it takes."""
    unwritten = memoryview(piece).cast("B")
    while unwritten:
        unwritten = unwritten[os.write(fd, unwritten[:MOST_PER_WRITE]) :]


def sync_folder(folder: Path) -> None:
    """Syncs what was created, renamed or removed in a folder."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def make_folder(folder: Path, syncs: bool = True) -> None:
    """Makes a folder below an existing one, and syncs that if `syncs`."""
    if not folder.is_dir():
        folder.mkdir(exist_ok=True)
        if syncs:
            sync_folder(folder.parent)


def remove_temporaries(folder: Path) -> None:
    """Removes partial files that a crash left."""
    for path in folder.glob(f"*{TEMPORARY}"):
        with contextlib.suppress(OSError):
            path.unlink()
