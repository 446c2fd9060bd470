"""Settings, options and fixtures that all tests share."""

import gc
import itertools
import os
import re
import signal
from collections.abc import Iterator

# Whether triton's functions are for its interpreter is settled when anything, torch too, first imports it.
# With TRITON_INTERPRET=0 tests on a GPU run its kernels.
os.environ.setdefault("TRITON_INTERPRET", "1")

import pytest
import torch
from hypothesis import settings

from decentnode.core.packages import load_plugins
from decentnode.node.plugin_sources import package_digest, package_hashes
from tests.integration.spawner import SHARED, WORKER, Spawner

# A busy machine is no defect: property tests judge answers, never how long they took.
settings.register_profile("decentnode", deadline=None, max_examples=50)
settings.register_profile("quick", deadline=None, max_examples=5)
settings.load_profile("decentnode")

# As in host processes: several threads on tiny tensors mostly wait for each other.
torch.set_num_threads(1)

# Tests of all plug-ins include those of decentnode.contrib.
load_plugins(only_own=True)

# A shell makes background jobs ignore Ctrl-C, which runs then ignore, too; some tests stop runs by it.
signal.signal(signal.SIGINT, signal.default_int_handler)

pytest_plugins = ["tests.support.forked_workers"]

SLOW = (
    "tests/integration/",
    *(
        f"tests/communication/test_{name}.py"
        for name in ("communication_failures", "group_membership", "hello_barrier", "rejoin", "security")
    ),
    "tests/core/test_thread_pools.py",
    "tests/launcher/test_rendezvous_slow.py",
    "tests/node/test_torn_files.py",
    "tests/parallel/test_wrapper_processes.py",
    "tests/sharing/test_fused_mix.py",
    "tests/training/test_dtypes.py",
    "tests/training/test_tokens.py",
)
"""Tests that start processes, or wait for time to pass."""


FOLDERS = itertools.count()


@pytest.fixture
def tmp_path(request, tmp_path_factory):
    """As pytest's, which lists the folders of all tests before it to find a number."""
    name = re.sub(r"\W", "_", request.node.name)[:30]
    folder = tmp_path_factory.getbasetemp() / f"{os.environ.get(WORKER, '0')}-{next(FOLDERS)}-{name}"
    folder.mkdir(mode=0o700)
    return folder


@pytest.fixture
def call(capsys):
    """Runs a command line in this process; returns exit code, standard output and standard error."""
    from decentnode.cli import app

    def run(*words: object) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as ended:
            app.main([*map(str, words)])
        return ended.value.code or 0, *capsys.readouterr()

    return run


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--quick", action="store_true", help="a part of the tests, for work in between")
    parser.addoption("--all", action="store_true", help="the long tests, too: twice the time")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--quick"):
        settings.load_profile("quick")
    # Workers inherit the variable: one process with torch serves them all.
    if config.getoption("workers"):
        os.environ[SHARED] = str(Spawner.of_this_process().folder)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[object]:
    """The tests and what they import stay to the end; from here on the collector skips them."""
    gc.disable()
    try:
        return (yield)
    finally:
        # Each run that is forked from a test would read 600 files for these.
        package_digest()
        package_hashes()
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves long tests to `--all`; a quick run has the first case of each test not slow, or `quick`.

    Without a GPU the tests that need one are left out.
    """
    quick, everything = config.getoption("--quick"), config.getoption("--all")
    has_gpu = bool(torch.cuda.device_count())
    seen: set[str] = set()
    kept, left = [], []
    for item in items:
        name, has = item.nodeid.split("[")[0], item.get_closest_marker
        slow = item.nodeid.startswith(SLOW) or has("slow") is not None
        is_first = name not in seen and (not slow or has("quick") is not None)
        is_kept = (everything or has("long") is None) and (is_first or not quick)
        is_kept = is_kept and (has_gpu or has("gpu") is None)
        seen.add(name)
        (kept if is_kept else left).append(item)
    items[:] = kept
    config.hook.pytest_deselected(items=left)
