"""A fork of a process that has computed on several threads computes on several threads."""

import os
import subprocess
import sys

import pytest

from decentnode.core.process_setup import default_threads

SCRIPT = """
import os, signal, sys, torch
from decentnode.core.process_setup import end_thread_pools

def compute():
    torch.set_num_threads(2)
    torch.log_softmax(torch.zeros(8, 3), 1)

def fork(seconds):
    child = os.fork()
    if child == 0:
        signal.alarm(seconds)
        compute()
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

compute()
kept = fork(1)
end_thread_pools()
ended = fork(30)
compute()
print(kept, ended)
"""


def test_a_fork_does_not_wait_for_threads_that_it_has_not():
    """While the pools are kept, it does."""
    command = [sys.executable, "-c", SCRIPT]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "-14 0\n"


@pytest.mark.parametrize(
    ("environment", "threads"),
    [({}, 4), ({"OMP_NUM_THREADS": "3"}, 3), ({"OMP_NUM_THREADS": "2,1"}, 2), ({"OMP_NUM_THREADS": "0"}, 4),
     ({"OMP_NUM_THREADS": "many"}, 4), ({"OMP_NUM_THREADS": "3", "MKL_NUM_THREADS": "5"}, 5)],
)  # fmt: skip
def test_the_environment_sets_the_number_of_threads(monkeypatch, environment, threads):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert default_threads(2) == threads
    assert default_threads(100) == (1 if threads == 4 else threads)
