"""Waiting for descriptors, whatever their numbers are."""

import os
import resource

import pytest

from decentnode.core.polling import ready


@pytest.fixture
def pipe():
    """The two ends of a pipe, at numbers that `select.select` does not take."""
    if resource.getrlimit(resource.RLIMIT_NOFILE)[0] < 3000:
        pytest.skip("this process may not have so many descriptors")
    made = os.pipe()
    ends = tuple(os.dup2(end, 2500 + i) for i, end in enumerate(made))
    yield ends
    for end in (*made, *ends):
        os.close(end)


def test_descriptors_of_any_number(pipe):
    reader, writer = pipe
    assert ready([reader], seconds=0) == []
    assert ready([reader], [writer], 0.01) == [writer]
    os.write(writer, b"x")
    assert set(ready([reader], [writer])) == {reader, writer}
    assert ready([reader]) == [reader]
