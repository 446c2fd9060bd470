"""What a host process settles before its nodes are built."""

import os
import resource
import time
from functools import partial
from types import SimpleNamespace

import pytest
import torch

from decentnode.core.byte_counters import ByteCounters
from decentnode.core.process_setup import keep_freed_memory
from decentnode.formats.records import RecordFile, Records
from decentnode.node import host_process as host
from decentnode.node.checkpoint.node_checkpoints import RunIdentity
from decentnode.node.host_process import start_together
from decentnode.node.node import Node
from tests.launcher.test_watchdog import DEADLINE, TRAIN, Machine

BLOCKS, ELEMENTS = 6, 4_000_000
BATCHES = 5
PAGES = BLOCKS * 4 * ELEMENTS // resource.getpagesize()


def use_memory() -> None:
    """Allocates, fills and frees as much as a batch of images through a network."""
    [torch.ones(ELEMENTS) for _ in range(BLOCKS)]


def faults_of_batches() -> int:
    """Pages that the kernel had to give for batches after the first ones."""
    use_memory()
    use_memory()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(BATCHES):
        use_memory()
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


def test_memory_of_a_batch_is_kept_for_the_next() -> None:
    # In a process of its own, because the allocator cannot be set back.
    pid = os.fork()
    if pid == 0:
        torch.set_num_threads(1)
        keep_freed_memory()
        os._exit(0 if faults_of_batches() < PAGES else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_a_process_that_is_restarted_has_all_the_time_to_get_ready(monkeypatch) -> None:
    """It is not as silent as the one before, and does not train, although it makes no other mark."""

    def stop_there(*_):
        raise InterruptedError

    monkeypatch.setattr(host, "prepare_process", stop_there)
    machine = Machine(monkeypatch, here=[1])
    machine.mark(3, TRAIN, 1)
    machine.pass_time(DEADLINE - 1)
    failures = SimpleNamespace(start_deadline=5.0)
    experiment = SimpleNamespace(
        settings=SimpleNamespace(failures=failures), processes=[SimpleNamespace(ranks=(1,))]
    )
    with pytest.raises(InterruptedError):
        host._run(SimpleNamespace(experiment=experiment, heartbeats=machine.heartbeats), 0, incarnation=1)
    machine.pass_time(DEADLINE + 4)
    assert not machine.stuck() and not machine.watchdog.hung(machine.now)
    assert machine.watchdog.activity_of(1) == "starting"


def test_time_counts_from_the_start_that_all_nodes_are_given_together(tmp_path):
    """Also in a process that gets to run only later, as one of a thousand does."""
    start = os.eventfd(1)
    identity = RunIdentity(tmp_path, "settings")
    identity.begin(time.monotonic() - 5.0)
    board = SimpleNamespace(fill=lambda handshakes: None, contents=dict)
    fork_context = SimpleNamespace(
        handshakes=board, reporter=SimpleNamespace(send=lambda _: None), start=start, identity=identity
    )
    records = Records(RecordFile(tmp_path, [0]))
    node = SimpleNamespace(
        rank=0, records=records,
        handshake=lambda: b"", receive_handshakes=lambda everybody: None,
        exchange=SimpleNamespace(endpoint=SimpleNamespace(counters=ByteCounters())),
    )  # fmt: skip
    node.set_elapsed = partial(Node.set_elapsed, node)
    start_together(fork_context, 0, [node])
    assert 5.0 <= records.seconds <= identity.seconds
