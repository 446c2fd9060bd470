"""What holds for all tests that start runs."""

import os
import signal
from collections.abc import Iterator
from contextlib import suppress

import pytest

from tests.integration.running import STARTED


@pytest.fixture(autouse=True)
def no_run_outlives_its_test() -> Iterator[None]:
    """A test that fails would leave its run behind, which takes the processors from all others."""
    yield
    while STARTED:
        run = STARTED.pop()
        if run.process.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(run.process.pid, signal.SIGKILL)
