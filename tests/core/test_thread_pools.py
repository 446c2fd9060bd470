"""A fork of a process that has computed on several threads computes on several threads."""

import subprocess
import sys

import pytest

SCRIPT = """
import os, signal, sys, torch
from decentnode.core.process_setup import end_thread_pools

def compute():
    torch.set_num_threads(2)
    torch.log_softmax(torch.zeros(8, 3), 1)

compute()
if sys.argv[1] == "ended":
    end_thread_pools()
child = os.fork()
if child == 0:
    signal.alarm(3)
    compute()
    os._exit(0)
code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
compute()
print(code)
"""


@pytest.mark.parametrize(("pools", "code"), [("ended", 0), ("kept", -14)])
def test_a_fork_does_not_wait_for_threads_that_it_has_not(pools, code):
    command = [sys.executable, "-c", SCRIPT, pools]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert int(done.stdout) == code
