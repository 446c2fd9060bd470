"""What all tests share."""

import gc
import os
from collections import Counter
from collections.abc import Iterator

# Whether triton's functions are for its interpreter is settled when anything, torch too, first imports it.
os.environ["TRITON_INTERPRET"] = "1"

import pytest
import torch
from hypothesis import settings

# A busy machine is no defect: property tests judge answers, never how long they took.
settings.register_profile("decentnode", deadline=None, max_examples=50)
settings.register_profile("quick", deadline=None, max_examples=5)
settings.load_profile("decentnode")

# As in host processes: several threads on tiny tensors mostly wait for each other.
torch.set_num_threads(1)

MOST_CASES = 2
"""Of a parametrized test, in a quick run."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--quick", action="store_true", help="a part of the tests, for work in between")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--quick"):
        settings.load_profile("quick")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[object]:
    """The tests and what they import stay to the end; from here on the collector skips them."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves a quick run the first cases of each test, and of the slow tests those marked `quick`."""
    if not config.getoption("--quick"):
        return
    cases: Counter[str] = Counter()
    kept, left = [], []
    for item in items:
        name = item.nodeid.split("[")[0]
        slow = item.nodeid.startswith("tests/integration") or item.get_closest_marker("slow") is not None
        is_kept = (not slow or item.get_closest_marker("quick") is not None) and cases[name] < MOST_CASES
        cases[name] += is_kept
        (kept if is_kept else left).append(item)
    items[:] = kept
    config.hook.pytest_deselected(items=left)
