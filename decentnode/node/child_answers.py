"""What a forked child finds out, so that the code of a plug-in changes nothing in this process.

Processes that work beside the nodes for the whole run are `launcher/processes/child_process.py`.
"""

import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import BinaryIO, NoReturn

import torch

from decentnode.core.polling import ready
from decentnode.core.streams import flush_output
from decentnode.core.text import how_it_ended


@dataclass(frozen=True)
class ChildAnswer:
    """The answer of a child."""

    content: bytes
    """What it has written until it ended or was killed."""
    is_late: bool
    """Whether it took too long and was killed."""
    status: int
    """Its exit code, or minus the signal that ended it."""

    @property
    def end(self) -> str:
        """Returns how the child ended, as text."""
        return how_it_ended(self.status)


def answer_of(work: Callable[[BinaryIO], object], seconds: float) -> ChildAnswer:
    """Returns what `work` writes to its argument in a child, within so many seconds.

    The code of a plug-in may hang or crash there. Raises OSError if the kernel refuses a process.
    """
    # The child would print what is still buffered a second time.
    flush_output()
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reading)
        _answer(work, writing)
    # Only the child writes: with its end the answer ends, too.
    os.close(writing)
    limit, pieces, has_ended = time.monotonic() + seconds, list[bytes](), False
    try:
        while not has_ended and ready([reading], seconds=limit - time.monotonic()):
            pieces.append(os.read(reading, 1 << 16))
            has_ended = not pieces[-1]
    finally:
        # Also where a Ctrl-C ends the wait.
        os.close(reading)
        if not has_ended:
            os.kill(pid, signal.SIGKILL)
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    return ChildAnswer(b"".join(pieces), not has_ended, status)


def _answer(work: Callable[[BinaryIO], object], pipe: int) -> NoReturn:
    """Runs in the child: writes the answer and exits."""
    code = 1
    try:
        # Torch's threads do not survive the fork; with more than one the child may hang.
        torch.set_num_threads(1)
        null = os.open(os.devnull, os.O_WRONLY)
        # What plug-ins print is no part of the answer.
        os.dup2(null, 1)
        with open(pipe, "wb") as file:
            work(file)
        code = 0
    finally:
        flush_output()
        os._exit(code)
