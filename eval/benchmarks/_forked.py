"""Functions run in forked processes, as the nodes of a run are."""

import gc
import json
import os
import traceback
from collections.abc import Callable
from typing import Any, NoReturn


def run_forked(ranks: range, work: Callable[[int], Any]) -> list[Any]:
    """What `work(rank)` gives in a process of its own for each rank, all at once; it must fit into JSON."""
    gc.collect()
    # As the product does: no collection in a child may visit, and so copy, what it has inherited.
    gc.freeze()
    readers = [_fork(work, rank) for rank in ranks]
    answers = []
    for pid, reader in readers:
        with os.fdopen(reader, "rb") as file:
            content = file.read()
        _, status = os.waitpid(pid, 0)
        if status or not content:
            raise RuntimeError(f"process {pid} ended with status {status}")
        answers.append(json.loads(content))
    return answers


def _fork(work: Callable[[int], Any], rank: int) -> tuple[int, int]:
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reader)
        _work(work, rank, writer)
    os.close(writer)
    return pid, reader


def _work(work: Callable[[int], Any], rank: int, writer: int) -> NoReturn:
    status = 1
    try:
        content = json.dumps(work(rank)).encode()
        os.write(writer, content)
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)
