"""Fetches the files of datasets over HTTP: continues what was cut off, verifies it, and unpacks it safely."""

import gzip
import hashlib
import os
import shutil
import tarfile
import tempfile
import time
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from http.client import HTTPException
from io import BufferedRandom, BufferedReader
from pathlib import Path, PurePosixPath
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

from decentnode.core.text import counted
from decentnode.datasets.base import Source
from decentnode.errors import BadInput, DecentnodeError, ExitCode

BLOCK = 1 << 18
SILENCE = 30.0
"""Seconds that a server may send nothing."""
WINDOW, LEAST_BYTES = 60.0, 60_000
"""A download must receive at least LEAST_BYTES bytes in WINDOW seconds."""
ATTEMPTS = 4
"""How often a download is tried when its connection is cut; each attempt continues the file."""
PAUSE = 1.0
"""Seconds before the second attempt; before each further one twice as many."""

Progress = Callable[[int, int], None]
"""A function of the bytes received so far and of the size of the whole file (0: unknown)."""


class DownloadFailed(DecentnodeError):
    """A file could not be fetched, verified or unpacked."""

    exit_code = ExitCode.FAILED


def name_of_file(source: Source) -> str:
    """The file's own name."""
    return PurePosixPath(urlsplit(source.url).path).name


def place_of(source: Source, folder: Path) -> Path:
    """The path of the file as it is fetched."""
    return folder / source.folder / name_of_file(source)


def is_right(file: Path, source: Source) -> bool:
    """Whether the file is there with the right checksum."""
    try:
        with file.open("rb") as opened:
            return _has_checksum(opened, source)
    except FileNotFoundError:
        return False


def fetch(source: Source, folder: Path, progress: Progress) -> Path:
    """The file, fetched unless it is there with the right checksum; raises DownloadFailed or BadInput.

    A partial file of an earlier attempt is continued. The file gets its name once it is complete.
    """
    if urlsplit(source.url).scheme not in ("http", "https"):
        raise BadInput(f"{source.url}: no address of HTTP")
    path = place_of(source, folder)
    try:
        if is_right(path, source):
            return path
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_name(f"{path.name}.part")
        with _locked(part) as file:
            # What is unpacked comes on top, but its size is not known before.
            needed, free = source.size - file.seek(0, os.SEEK_END), shutil.disk_usage(path.parent).free
            if free < needed:
                raise DownloadFailed(f"{path.parent}: {needed} bytes are needed, and {free} are free")
            _complete(source, file, progress)
            part.replace(path)
    except OSError as error:
        raise DownloadFailed(f"{path}: {error.strerror or error}") from error
    return path


@contextmanager
def _locked(part: Path) -> Iterator[BufferedRandom]:
    import fcntl

    with part.open("a+b") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise DownloadFailed(f"{part}: another process fetches it") from error
        yield file


def _complete(source: Source, file: BufferedRandom, progress: Progress) -> None:
    """Fetches what is missing in `file`; raises DownloadFailed."""
    began_with = file.seek(0, os.SEEK_END)
    _attempt(source, file, progress)
    if _has_checksum(file, source):
        return
    file.truncate(0)
    if began_with:
        # The partial file was one of something else.
        _attempt(source, file, progress)
        if _has_checksum(file, source):
            return
        file.truncate(0)
    raise DownloadFailed(
        f"{source.url}: its checksum is not {source.checksum}; it was changed there or on its way"
    )


def _attempt(source: Source, file: BufferedRandom, progress: Progress) -> None:
    for number in range(1, ATTEMPTS + 1):
        try:
            _receive(source, file, progress)
            return
        except (URLError, HTTPException, ConnectionError, TimeoutError) as error:
            is_final = isinstance(error, HTTPError) and error.code < 500
            if is_final or number == ATTEMPTS:
                times = "" if is_final else f", {counted(ATTEMPTS, 'time')}"
                raise DownloadFailed(f"{source.url}: {_reason(error)}{times}") from error
            time.sleep(PAUSE * 2 ** (number - 1))


def _reason(error: Exception) -> str:
    if isinstance(error, HTTPError):
        return f"the server answers {error.code} {error.reason}"
    reason = error.reason if isinstance(error, URLError) else error
    return str(getattr(reason, "strerror", None) or reason or type(error).__name__)


def _receive(source: Source, file: BufferedRandom, progress: Progress) -> None:
    """Appends what is missing; raises ConnectionError where the answer ends too early."""
    have = file.seek(0, os.SEEK_END)
    request = Request(source.url, headers={"User-Agent": "decentnode", "Accept-Encoding": "identity"})
    if have:
        request.add_header("Range", f"bytes={have}-")
    try:
        answer = urlopen(request, timeout=SILENCE)
    except HTTPError as error:
        if have and error.code == 416:  # nothing is missing, as the checksum will tell
            return
        raise
    with answer:
        continues = answer.status == 206 and answer.headers.get("Content-Range", "").startswith(
            f"bytes {have}-"
        )
        if have and not continues:
            file.truncate(0)
            have = 0
        length = answer.headers.get("Content-Length")
        whole = have + int(length) if length and length.isdigit() else 0
        window, window_bytes = time.monotonic(), 0
        progress(have, whole)
        # Not read(BLOCK), which would wait for a whole block however slowly it comes.
        while block := answer.read1(BLOCK):
            file.write(block)
            have += len(block)
            window_bytes += len(block)
            progress(have, whole)
            if time.monotonic() - window > WINDOW:
                if window_bytes < LEAST_BYTES:
                    raise ConnectionError(f"{window_bytes} bytes in {WINDOW:g} s are too slow")
                window, window_bytes = time.monotonic(), 0
    file.flush()
    if have < whole:
        raise ConnectionError(f"the connection was cut after {have} of {whole} bytes")


def _has_checksum(file: BufferedRandom | BufferedReader, source: Source) -> bool:
    kind, _, wanted = source.checksum.partition(":")
    file.flush()
    file.seek(0)
    # Not for security where it is md5: the checksums are those that others publish.
    return hashlib.file_digest(file, lambda: hashlib.new(kind, usedforsecurity=False)).hexdigest() == wanted


def unpack(archive: Path, folder: Path) -> None:
    """The content of an archive into a folder; raises DownloadFailed. Nothing is written elsewhere.

    Files get their places once all are unpacked, so what is there is whole.
    """
    try:
        with tempfile.TemporaryDirectory(dir=folder, prefix=".unpacking-") as name:
            inside = Path(name)
            _extract(archive, inside)
            for file in sorted(inside.rglob("*")):
                if file.is_dir() and not file.is_symlink():
                    continue
                target = folder / file.relative_to(inside)
                target.parent.mkdir(parents=True, exist_ok=True)
                file.replace(target)
    except (tarfile.TarError, zipfile.BadZipFile, EOFError, zlib.error) as error:
        raise DownloadFailed(f"{archive}: cannot be unpacked: {error}") from error
    except OSError as error:
        raise DownloadFailed(f"{archive}: cannot be unpacked: {error.strerror or error}") from error


def _refuse_outside(archive: Path, names: Iterable[str]) -> None:
    for name in names:
        if name.startswith("/") or ".." in PurePosixPath(name).parts:
            raise DownloadFailed(f"{archive}: cannot be unpacked: {name!r} is outside the folder")


def _extract(archive: Path, inside: Path) -> None:
    if zipfile.is_zipfile(archive):
        with zipfile.ZipFile(archive) as packed_files:
            _refuse_outside(archive, packed_files.namelist())
            packed_files.extractall(inside)
    elif tarfile.is_tarfile(archive):
        with tarfile.open(archive) as packed:
            if hasattr(tarfile, "data_filter"):
                packed.extractall(inside, filter="data")
            else:
                # Python before 3.11.4 checks nothing itself; a link could lead anywhere.
                _refuse_outside(
                    archive, [m.name if m.isfile() or m.isdir() else f"/{m.name}" for m in packed]
                )
                packed.extractall(inside)
    else:
        with gzip.open(archive) as stream, (inside / archive.stem).open("wb") as file:
            shutil.copyfileobj(stream, file, BLOCK)
