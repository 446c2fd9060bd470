"""Keyed random choices: the same numbers whoever draws them."""

import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from decentnode.core.rng import generator, permutation


@pytest.fixture
def switching():
    """Threads take turns after each few instructions."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(interval)


def test_permutations_are_those_of_their_keys_in_any_number_of_threads(switching):
    def drawn(rank):
        return [permutation(40, 7, "shuffle", rank, epoch).tolist() for epoch in range(100)]

    with ThreadPoolExecutor(4) as threads:
        orders = list(threads.map(drawn, range(4)))
    assert orders == [
        [generator(7, "shuffle", rank, epoch).permutation(40).tolist() for epoch in range(100)]
        for rank in range(4)
    ]
