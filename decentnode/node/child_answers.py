"""What a forked child finds out, so that the code of a plug-in changes nothing in this process.

Processes that work beside the nodes for the whole run are `launcher/processes/child_process.py`.
"""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import BinaryIO

import torch

from decentnode.core.polling import ready
from decentnode.core.process_setup import ForkedProcess
from decentnode.core.text import how_it_ended
from decentnode.errors import BadInput, StartError

MOST_BUSY = 4
"""How many times the limit of a child may become longer on a busy machine."""


@dataclass(frozen=True)
class ChildAnswer:
    """The answer of a child."""

    content: bytes
    """What it has written until it ended or was killed."""
    is_late: bool
    """Whether it took too long and was killed."""
    seconds: float
    """The limit."""
    waited: float
    """Seconds for which it had no processor, because others were busy on all of them."""
    status: int
    """Its exit code, or minus the signal that ended it."""

    def refuse_late(self, what: str, remedy: str, key: str = "") -> None:
        """Raises BadInput, at the key, if `what` took too long; StartError if others were the reason."""
        if self.is_late and self.waited > self.seconds:
            raise StartError(
                f"{what} did not end, because this machine is busy: in {self.seconds + self.waited:.0f} s it "
                f"had a processor for {self.seconds:.0f} s at most; try again when others have ended"
            )
        if self.is_late:
            raise BadInput.at(key, f"{what} did not end within {self.seconds:g} s; {remedy}")

    @property
    def end(self) -> str:
        """Returns how the child ended, as text."""
        return how_it_ended(self.status)


def answer_of(work: Callable[[BinaryIO], object], seconds: float) -> ChildAnswer:
    """Returns what `work` writes to its argument in a child, within so many seconds.

    Seconds without a processor do not count, up to `MOST_BUSY` times as many. The code of a plug-in may hang
    or crash there. Raises OSError if the kernel refuses a process.
    """
    child = ForkedProcess(partial(_answer, work), up=1, failed=lambda _: 1)
    (reading,) = child.ends
    limit, pieces, has_ended, waited = time.monotonic() + seconds, list[bytes](), False, 0.0
    try:
        while not has_ended:
            if ready([reading], seconds=limit + waited - time.monotonic()):
                pieces.append(os.read(reading, 1 << 16))
                has_ended = not pieces[-1]
            elif waited == (waited := min(_waited(child.pid), MOST_BUSY * seconds)):
                break
    finally:
        # Also where a Ctrl-C ends the wait.
        child.close_ends()
        if not has_ended:
            child.kill()
        status, _ = child.reap()
    return ChildAnswer(b"".join(pieces), not has_ended, seconds, waited, status or 0)


def _waited(pid: int) -> float:
    """Returns the seconds for which a process was ready and had no processor; 0 if nobody counts them."""
    try:
        return int(Path(f"/proc/{pid}/schedstat").read_text().split()[1]) / 1e9
    except (OSError, IndexError, ValueError):
        return 0.0


def _answer(work: Callable[[BinaryIO], object], pipe: int) -> int:
    # Torch's threads do not survive the fork; with more than one the child may hang.
    torch.set_num_threads(1)
    null = os.open(os.devnull, os.O_WRONLY)
    # What plug-ins print is no part of the answer.
    os.dup2(null, 1)
    with open(pipe, "wb") as file:
        work(file)
    return 0
