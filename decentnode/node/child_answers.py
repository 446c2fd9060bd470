"""What a forked child finds out, so that the code of a plug-in changes nothing in this process."""

import contextlib
import multiprocessing
import os
from collections.abc import Callable
from dataclasses import dataclass
from io import StringIO
from multiprocessing.connection import Connection
from typing import NoReturn

import torch

from decentnode.core.text import how_it_ended


@dataclass(frozen=True)
class ChildAnswer:
    """The answer of a child."""

    content: bytes
    """The content of the answer; empty if there is none."""
    is_late: bool
    """Whether it took too long."""
    end: str = ""
    """How a child without an answer ended, as text."""


def answer_of(work: Callable[[], bytes], seconds: float) -> ChildAnswer:
    """Returns what `work` returns in a child, within so many seconds; plug-in code may hang or crash it."""
    fork = multiprocessing.get_context("fork")
    answers, pipe = fork.Pipe(duplex=False)
    child = fork.Process(target=_answer, args=(work, pipe))
    child.start()
    # Only the child writes: with its end the answer ends, too.
    pipe.close()
    has_answer, content = False, b""
    try:
        has_answer = answers.poll(seconds)
        with contextlib.suppress(EOFError):
            content = answers.recv_bytes() if has_answer else b""
    finally:
        # Also where a Ctrl-C ends the wait.
        child.kill()
        child.join()
    return ChildAnswer(content, not has_answer, "" if content else how_it_ended(child.exitcode or 0))


def _answer(work: Callable[[], bytes], pipe: Connection) -> NoReturn:
    """Runs in the child: sends the answer and exits."""
    try:
        # Torch's threads do not survive the fork; with more than one the child may hang.
        torch.set_num_threads(1)
        with contextlib.redirect_stdout(StringIO()):
            pipe.send_bytes(work())
    finally:
        os._exit(0)
