"""Shared memory of peers: what is attached, what is refused, and that it cannot shrink."""

import os
import time
from pathlib import Path

import pytest

from decentnode.communication.base import BufferSpec
from decentnode.communication.shared_memory.attached import AttachedSegments
from decentnode.communication.shared_memory.segment import Segment
from decentnode.communication.wire import SharedSegment, WireError


@pytest.fixture
def segment():
    made = Segment(3, BufferSpec(100), 5)
    yield made
    made.close()


def reason(announced, ranks=(3,)):
    with pytest.raises(WireError) as caught:
        AttachedSegments().learn([announced], ranks)
    return caught.value.reason


def descriptors():
    return sorted(entry.name for entry in Path("/proc/self/fd").iterdir())


def memory(name, flags):
    fd = os.memfd_create(name, flags)
    os.ftruncate(fd, 4096)
    return fd


def test_a_segment_is_attached_once_however_often_it_is_announced(segment):
    known = AttachedSegments()
    known.learn([segment.shared], [3])
    first, before = known.of(3), descriptors()
    for _ in range(100):
        known.learn([segment.shared] * 3, [3])
    assert known.of(3) is first
    assert descriptors() == before
    segment.slots[0].fill_(1.5)
    assert first.content[:4].tolist() == [0, 0, 192, 63]


def test_other_memory_of_the_same_rank_is_refused_until_it_was_forgotten(segment):
    known, other = AttachedSegments(), Segment(3, BufferSpec(200), 5)
    known.learn([segment.shared], [3])
    with pytest.raises(WireError, match=r"^hello$"):
        known.learn([other.shared], [3])
    known.forget(3)
    known.learn([other.shared], [3])
    other.close()
    with pytest.raises(WireError, match=r"^notice without shared memory$"):
        known.of(4)


def test_a_rank_of_another_process_is_refused(segment):
    assert reason(segment.shared, ranks=(1, 2)) == "hello"


def test_what_is_no_segment_is_refused_at_once(segment, tmp_path):
    """A pipe would block the one who opens it; a file of any other kind is somebody's content."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "file").write_bytes(bytes(4096))
    began = time.monotonic()
    for fd in (
        os.open(tmp_path / "pipe", os.O_RDWR | os.O_NONBLOCK),
        os.open(tmp_path / "file", os.O_RDONLY),
        memory("decentnode-3", os.MFD_CLOEXEC),
        memory("decentnode-4", os.MFD_ALLOW_SEALING),
        memory("decentnode-3", os.MFD_ALLOW_SEALING),
    ):
        announced = SharedSegment(3, os.getpid(), fd, 4096)
        assert reason(announced) == "shared memory cannot be attached"
        os.close(fd)
    assert time.monotonic() - began < 5.0


@pytest.mark.parametrize(
    "change",
    [{"pid": -1}, {"pid": 2**40}, {"fd": -1}, {"fd": 2**40}, {"size": 0}, {"size": -1}, {"size": 2**62}],
)
def test_numbers_that_lead_nowhere_are_refused(segment, change):
    fields = {"rank": 3, "pid": os.getpid(), "fd": segment.shared.fd, "size": segment.shared.size} | change
    assert reason(SharedSegment(**fields)) == "shared memory cannot be attached"


def test_nobody_can_shorten_memory_that_others_read(segment):
    for size in (0, segment.shared.size - 1, segment.shared.size + 1):
        with pytest.raises(PermissionError):
            os.ftruncate(segment.shared.fd, size)
