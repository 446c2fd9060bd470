"""Where vectors, and what comes from peers, lie in memory."""

from pathlib import Path

import pytest
import torch

from decentnode.communication.base import BufferSpec
from decentnode.communication.huge_pages import LARGE, new_bytes
from decentnode.communication.torch_distributed.transfers import Pool

CPU = torch.device("cpu")
SIZES = [0, 1, LARGE - 1, LARGE, 4_000_000, 2 * LARGE, 2 * LARGE + 100, 5_000_000]


def flags_at(address: int) -> str:
    """What the kernel was told of the memory there."""
    within = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        span = line.split()[0]
        if "-" in span and not span.endswith(":"):
            first, last = (int(end, 16) for end in span.split("-"))
            within = first <= address < last
        elif within and span == "VmFlags:":
            return line
    return ""


@pytest.mark.parametrize("size", SIZES)
def test_there_are_so_many_bytes_and_all_are_zero_and_can_be_written(size):
    found = new_bytes(size, CPU)
    assert found.shape == (size,) and found.dtype == torch.uint8
    assert found.untyped_storage().nbytes() == size
    assert not found.any()
    found.fill_(7)
    assert int(found.sum(dtype=torch.int64)) == 7 * size


@pytest.mark.parametrize("size", [size for size in SIZES if size >= LARGE])
def test_what_is_large_begins_at_a_large_page(size):
    assert new_bytes(size, CPU).data_ptr() % LARGE == 0


@pytest.mark.skipif(
    not Path("/sys/kernel/mm/transparent_hugepage").exists(), reason="this kernel has no large pages"
)
def test_large_pages_are_asked_for_where_nearly_all_of_one_is_used():
    for size in (2 * LARGE + 100, 2 * LARGE + LARGE // 5 * 4):
        found = new_bytes(size, CPU)
        ends = [found.data_ptr(), found.data_ptr() + 2 * LARGE - 1, found.data_ptr() + 2 * LARGE]
        assert [" hg" in flags_at(end) for end in ends] == [True, True, False]
    found = new_bytes(4_000_000, CPU)
    assert " hg" in flags_at(found.data_ptr() + 4_000_000 - 1)


def test_more_than_there_is_is_said_as_memory_that_ran_out():
    with pytest.raises(MemoryError, match="no room for"):
        new_bytes(1 << 60, CPU)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.uint8])
def test_slots_are_vectors_of_zeros_that_begin_alike(dtype):
    first, second = BufferSpec(1_000_003, dtype).slots()
    assert first.shape == second.shape == (1_000_003,) and first.dtype == second.dtype == dtype
    assert not first.any() and not second.any()
    assert first.data_ptr() % 64 == second.data_ptr() % 64 == 0


def test_a_pool_has_all_of_a_large_piece_again_after_a_part_of_it_was_used():
    pool = Pool()
    whole = pool.take(3 * LARGE, CPU)
    start = whole.data_ptr()
    pool.return_buffer(whole)
    part = pool.take(LARGE, CPU)
    assert part.data_ptr() == start and part.numel() == LARGE
    pool.return_buffer(part)
    again = pool.take(3 * LARGE, CPU)
    assert again.data_ptr() == start and again.numel() == 3 * LARGE
