"""Files on disks that are full, read-only, slow to recover, or cut off by a kill."""

import errno
import json
import os
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from decentnode.core import line_file
from decentnode.core.line_file import LineFile
from decentnode.formats.records import write_atomically


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


class Disk:
    """Stands in for os.write: takes so many bytes, then says that there is no room."""

    def __init__(self, room):
        self.room = room
        self.write = os.write

    def __call__(self, fd, content):
        if not self.room:
            raise OSError(errno.ENOSPC, "No space left on device")
        written = self.write(fd, bytes(content[: self.room]))
        self.room -= written
        return written


@pytest.fixture
def disk(monkeypatch):
    disk = Disk(10**9)
    monkeypatch.setattr(line_file.os, "write", disk)
    return disk


def test_lines_are_there_at_once(tmp_path):
    file = LineFile(tmp_path / "x")
    file.append(b"one")
    assert (tmp_path / "x").read_bytes() == b"one\n"
    file.append(b"two")
    assert (tmp_path / "x").read_bytes() == b"one\ntwo\n"
    assert file.close() == ""


def test_a_disk_that_brings_nothing_home_is_reported_and_ends_nothing(tmp_path, monkeypatch):
    synced, messages = [], []

    def refuse(fd):
        synced.append(fd)
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(line_file.os, "fdatasync", refuse)
    file = LineFile(tmp_path / "x", messages.append)
    assert file.sync() == ""
    assert (synced, messages) == ([], [])
    file.append(b"one")
    problem = f"{tmp_path / 'x'}: lines may not have reached the disk: Input/output error"
    for _ in range(3):
        assert file.sync() == problem
    assert len(synced) == 3
    assert messages == [f"{tmp_path / 'x'} cannot be brought to the disk: Input/output error"]
    monkeypatch.setattr(line_file.os, "fdatasync", synced.append)
    assert file.sync() == problem, "the system does not try these lines again"
    assert (file.close(), file.close()) == (problem, ""), "the system says it only once"


def test_a_disk_that_refuses_at_the_very_end_is_reported_once_and_ends_nothing(tmp_path, monkeypatch):
    close = os.close

    def refuse(fd):
        close(fd)
        raise OSError(errno.EDQUOT, "Disk quota exceeded")

    file = LineFile(tmp_path / "x")
    file.append(b"one")
    monkeypatch.setattr(line_file.os, "close", refuse)
    problem = f"{tmp_path / 'x'}: lines may not have reached the disk: Disk quota exceeded"
    assert (file.close(), file.close()) == (problem, "")


def test_no_file_is_made_for_no_line(tmp_path):
    assert LineFile(tmp_path / "x").close() == ""
    assert not (tmp_path / "x").exists()


def test_a_disk_that_is_full_for_a_while_costs_nothing(tmp_path, disk):
    messages = []
    file = LineFile(tmp_path / "x", messages.append)
    disk.room = 6
    lines = [f"line {i}".encode() for i in range(5)]
    for line in lines[:4]:
        file.append(line)
    assert (tmp_path / "x").read_bytes() == b"line 0"
    assert len(messages) == 1
    assert messages[0].startswith(f"{tmp_path / 'x'} cannot be written: No space left on device")
    disk.room = 10**9
    file.append(lines[4])
    assert (tmp_path / "x").read_bytes() == b"\n".join([*lines, b""])
    assert file.close() == ""


def test_what_waits_is_tried_again_before_the_file_is_brought_to_the_disk(tmp_path, disk):
    file = LineFile(tmp_path / "x")
    disk.room = 0
    file.append(b"one")
    file.append(b"two")
    waits = "its last lines could not be written (2 missing): No space left on device"
    assert file.sync() == f"{tmp_path / 'x'}: {waits}"
    disk.room = 10**9
    assert file.sync() == ""
    assert (tmp_path / "x").read_bytes() == b"one\ntwo\n"
    assert file.close() == ""


def test_a_file_that_will_never_be_whole_says_so_each_time(tmp_path, disk, monkeypatch):
    monkeypatch.setattr(line_file, "MOST_PENDING_BYTES", 8)
    file = LineFile(tmp_path / "x")
    disk.room = 0
    for line in (b"one", b"two", b"three"):
        file.append(line)
    disk.room = 10**9
    for _ in range(2):
        assert file.sync().endswith("(1 missing): there was no room for too long")
    assert (tmp_path / "x").read_bytes() == b"one\ntwo\n"


def test_the_warning_comes_again_after_a_minute(tmp_path, disk, monkeypatch):
    now, messages = [1000.0], []
    monkeypatch.setattr(line_file.time, "monotonic", lambda: now[0])
    disk.room = 0
    file = LineFile(tmp_path / "x", messages.append)
    for seconds in (0, 30, 59, 60, 61, 119, 121):
        now[0] = 1000.0 + seconds
        file.append(b"line")
    assert len(messages) == 3


def test_what_cannot_be_written_in_the_end_is_reported(tmp_path, disk):
    file = LineFile(tmp_path / "x")
    file.append(b"kept")
    disk.room = 2
    file.append(b"cut")
    file.append(b"gone")
    assert file.close() == (
        f"{tmp_path / 'x'}: its last lines could not be written (2 missing): No space left on device"
    )
    assert (tmp_path / "x").read_bytes() == b"kept\ncu"


def test_memory_is_bounded_and_what_is_written_is_a_prefix(tmp_path, disk, monkeypatch):
    monkeypatch.setattr(line_file, "MOST_PENDING_BYTES", 40)
    disk.room = 0
    file = LineFile(tmp_path / "x")
    for i in range(100):
        file.append(f"line {i:04d}".encode())
    disk.room = 10**9
    file.append(b"after a gap")
    assert file.lost == 97
    assert "(97 missing)" in file.close()
    assert (tmp_path / "x").read_bytes() == b"".join(b"line %04d\n" % i for i in range(4))


def test_a_file_that_is_deleted_meanwhile_is_reported_at_the_next_line_and_in_the_end(tmp_path):
    """Everything that is written to it succeeds, and nobody will ever find it."""
    warned = []
    file = LineFile(tmp_path / "x.jsonl", warned.append)
    file.append(b"1")
    assert file.sync() == ""
    (tmp_path / "x.jsonl").unlink()
    file.append(b"2")
    assert warned == [f"{tmp_path}/x.jsonl was deleted; its lines are lost"]
    for gap in (file.sync(), file.close()):
        assert gap == f"{tmp_path}/x.jsonl: lines may not have reached the disk: the file was deleted"


def test_a_missing_folder_and_a_read_only_one_are_no_exception(tmp_path):
    file = LineFile(tmp_path / "no" / "x")
    file.append(b"line")
    assert "No such file or directory" in file.close()


@given(st.lists(st.integers(0, 30), max_size=30))
def test_whatever_room_there_is_at_each_line_nothing_is_torn(tmp_path_factory, rooms):
    path = tmp_path_factory.mktemp("disk") / "x"
    disk = Disk(0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(line_file.os, "write", disk)
        file = LineFile(path)
        for number, room in enumerate(rooms):
            disk.room = room
            file.append(json.dumps({"line": number}).encode())
        disk.room = 10**9
        assert file.close() == ""
    written = [json.loads(line) for line in path.read_text().splitlines()] if rooms else []
    assert written == [{"line": number} for number in range(len(rooms))]


def test_lines_continue_after_a_last_one_that_was_cut_off(tmp_path):
    path = tmp_path / "x"
    path.write_bytes(b"whole\ntor")
    file = LineFile(path)
    file.append(b"next")
    file.close()
    assert path.read_bytes() == b"whole\nnext\n"
    path.write_bytes(b"tor")
    file = LineFile(path)
    file.append(b"next")
    file.close()
    assert path.read_bytes() == b"next\n"


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path, monkeypatch):
    path = tmp_path / "x.json"
    write_atomically(path, {"old": 1})
    write_atomically(path, {"new": 2})
    assert json.loads(path.read_text()) == {"new": 2}

    def refuse(fd):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", refuse)
    with pytest.raises(OSError, match="No space left"):
        write_atomically(path, {"newer": 3})
    assert json.loads(path.read_text()) == {"new": 2}
    assert names(tmp_path) == ["x.json"]


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 64 kB that is really full when it is full."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(folder)], capture_output=True
    )
    if mounted.returncode:
        pytest.skip("mounting is not allowed here")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def fill(folder: Path) -> Path:
    path = folder / "filler"
    with path.open("wb", buffering=0) as file:
        try:
            while file.write(b"x" * 4096):
                pass
        except OSError:
            pass
    return path


def test_a_disk_that_is_really_full(small_disk):
    file, messages = LineFile(small_disk / "x", lambda text: messages.append(text)), []
    file.append(b"a" * 4095)
    filler = fill(small_disk)
    for _ in range(3):
        file.append(b"b" * 4095)
    assert len(messages) == 1
    with pytest.raises(OSError, match="No space left"):
        write_atomically(small_disk / "summary.json", {"x": "x" * 8192})
    assert names(small_disk) == ["filler", "x"]
    filler.unlink()
    assert file.close() == ""
    assert [line[:1] for line in (small_disk / "x").read_bytes().splitlines()] == [b"a", b"b", b"b", b"b"]


def test_a_disk_that_turns_read_only(small_disk):
    file = LineFile(small_disk / "x")
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    file.append(b"line")
    assert "Read-only file system" in file.close()
    with pytest.raises(OSError, match="Read-only"):
        write_atomically(small_disk / "summary.json", {})
