"""Forked processes: their pipes, their exit codes, and what is left where none can be forked."""

import errno
import mmap
import os
from pathlib import Path

import pytest

from decentnode.core.process_setup import ForkedProcess, use_huge_pages


def open_here():
    return len([*Path("/proc/self/fd").iterdir()])


def test_the_work_gets_its_ends_of_the_pipes_and_gives_the_exit_code():
    def work(orders, replies):
        os.write(replies, os.read(orders, 10)[::-1])
        return 3

    before = open_here()
    process = ForkedProcess(work, down=1, up=1)
    orders, replies = process.ends
    os.write(orders, b"abc")
    assert os.read(replies, 10) == b"cba" and os.read(replies, 10) == b"", "the end is seen, too"
    assert process.reap()[0] == process.reap()[0] == 3 and process.has_ended()
    process.close_ends()
    assert open_here() == before


def test_an_error_of_the_work_is_printed_and_a_killed_process_has_no_code(capfd):
    def fails():
        raise ValueError("no good")

    assert ForkedProcess(fails).reap()[0] == 1
    assert "ValueError: no good" in capfd.readouterr().err
    assert ForkedProcess(fails, failed=lambda error: 7).reap()[0] == 7
    process = ForkedProcess(lambda orders: len(os.read(orders, 1)), down=1)
    process.kill()
    assert process.reap()[0] == -9
    process.close_ends()


def test_where_no_process_can_be_forked_nothing_stays_open(monkeypatch):
    def refuse():
        raise OSError(errno.EAGAIN, "Resource temporarily unavailable")

    before = open_here()
    monkeypatch.setattr(os, "fork", refuse)
    with pytest.raises(OSError, match="temporarily"):
        ForkedProcess(lambda *ends: 0, down=1, up=2)
    assert open_here() == before


def test_memory_in_huge_pages_has_the_same_content_here_and_in_a_fork():
    content = bytes(range(256)) * (8 << 12)

    def work():
        memory = mmap.mmap(-1, len(content), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        memory[:] = content
        use_huge_pages()

        def write():
            memory[5_000_000] = 77
            return int(memory[:] != content[:5_000_000] + b"M" + content[5_000_001:])

        return ForkedProcess(write).reap()[0] or int(memory[:] != content)

    assert ForkedProcess(work).reap()[0] == 0
