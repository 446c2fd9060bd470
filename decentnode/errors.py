"""Every error that this package raises itself, as one tree.

DecentnodeError
├── BadInput            something the user wrote is wrong; found before anything starts (exit 2)
│   ├── ConfigError     one or many defects of a YAML file
│   ├── GraphError      a defect of a graph file or of a generator's options
│   ├── DatasetError    data that is missing, broken, or cannot be partitioned as asked
│   ├── MappingError    machines and addresses that do not fit the graph or this host
│   └── UnknownPlugin   a name that no registry knows
├── StartError          the rendezvous failed (exit 4): missing nodes, hashes that differ
├── RunFailed           the run ended without a usable result (exit 4)
└── PeerError           why a payload did not arrive; reported in an Inbox, not raised out of a round
    ├── PeerLost        the peer is lost
    │   └── PeerLeft    it ended, and sent LEAVE
    ├── PeerTimeout     the peer was silent for longer than the deadline
    └── ProtocolError   what arrived breaks the message rules
"""

import errno
import signal
import sysconfig
import traceback
from enum import IntEnum
from pathlib import Path
from types import FrameType

import msgspec

UNDECODABLE = (msgspec.MsgspecError, RecursionError, UnicodeDecodeError)
"""Errors of msgspec for bytes from outside, and Python's own for text that is not UTF-8."""
PACKAGE = str(Path(__file__).parent)
INSTALLED = tuple({sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")})


class ExitCode(IntEnum):
    """Exit codes of the command line."""

    OK = 0
    BAD_INPUT = 2
    NODES_LOST = 3
    FAILED = 4
    OUT_OF_MEMORY = 5
    HUNG_UP = 129
    INTERRUPTED = 130
    TERMINATED = 143


STOPPED_BY = {
    signal.SIGINT: ExitCode.INTERRUPTED,
    signal.SIGTERM: ExitCode.TERMINATED,
    signal.SIGHUP: ExitCode.HUNG_UP,
}
"""Signals that stop a run, with their exit codes; the last one is sent when its terminal closes."""


class DecentnodeError(Exception):
    """The root of all errors that this package raises itself."""

    exit_code = ExitCode.FAILED


class BadInput(DecentnodeError):
    """Something the user wrote is wrong; `defects` has one line for each thing to correct."""

    exit_code = ExitCode.BAD_INPUT

    def __init__(self, *defects: str) -> None:
        super().__init__("\n".join(defects))
        self.defects = defects


class ConfigError(BadInput):
    """Defects of a YAML file, each as `file:line key: what is wrong; what would be right`."""


class GraphError(BadInput):
    """A defect of a graph file (as `file:line: ...`) or of a generator's options."""


class DatasetError(BadInput):
    """Data that is missing, broken, or cannot be partitioned as asked."""


class MappingError(BadInput):
    """Machines and addresses that do not fit the graph or this host."""


class UnknownPlugin(BadInput):
    """A name that no registry knows; the message lists the right ones and guesses which was meant."""


class StartError(DecentnodeError):
    """The rendezvous failed; the message names the missing nodes and machines, or what differs."""


class RunFailed(DecentnodeError):
    """The run ended without a usable result."""


class PeerError(DecentnodeError):
    """Why a payload of one peer did not arrive in one round."""

    def __init__(self, peer: int, reason: str) -> None:
        super().__init__(f"rank {peer}: {reason}")
        self.peer = peer
        self.reason = reason


class PeerLost(PeerError):
    """The peer exchanges nothing, but not for this node's own timeout.

    Its link broke, it left, it timed out on this node, it skips rounds, or it was not met yet.
    """


class PeerLeft(PeerLost):
    """The peer ended, and sent LEAVE, after `round`; -1: before its first one, or it counts no exchanges."""

    def __init__(self, peer: int, round: int, failed: bool = False) -> None:
        """`failed`: it ended by an error."""
        when = [f"after round {round + 1}"] if round >= 0 else [] if failed else ["before its first round"]
        super().__init__(peer, "left " + ", ".join([*when, *(["by an error"] if failed else [])]))
        self.failed = failed


class PeerTimeout(PeerError):
    """The peer was silent for longer than the deadline of `seconds`."""

    def __init__(self, peer: int, reason: str, seconds: float = 0.0) -> None:
        super().__init__(peer, reason)
        self.seconds = seconds


class ProtocolError(PeerError):
    """The peer's message is invalid; `counted_as` is its name in the records."""

    def __init__(self, peer: int, reason: str, counted_as: str = "payload") -> None:
        super().__init__(peer, reason)
        self.counted_as = counted_as


def is_out_of_memory(error: BaseException) -> bool:
    """Whether Python, torch or CUDA ran out of memory."""
    if isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno == errno.ENOMEM):
        return True
    text = str(error).lower()
    return "out of memory" in text or "can't allocate memory" in text


def origin(error: BaseException) -> str:
    """`file:line, in Class.method` of the innermost frame outside this and installed packages.

    Otherwise the innermost frame of this package; empty for an error that was not raised.
    """
    frames = [(frame, line) for frame, line in traceback.walk_tb(error.__traceback__)]
    own_frames = [(frame, line) for frame, line in frames if not is_foreign(frame)]
    ours = [(frame, line) for frame, line in frames if frame.f_code.co_filename.startswith(PACKAGE)]
    for frame, line in reversed(own_frames or ours):
        return f"{frame.f_code.co_filename}:{line}, in {frame.f_code.co_qualname}"
    return ""


def is_foreign(frame: FrameType) -> bool:
    """Whether its code belongs to this or an installed package."""
    file = frame.f_code.co_filename
    return file.startswith((PACKAGE, *INSTALLED, "<"))


def explained(error: BaseException) -> str:
    """Type, message and origin of an unexpected error, in one line."""
    message = (str(error) or "no reason given").splitlines()[0]
    where = origin(error)
    return f"{type(error).__name__}: {message}" + (f" ({where})" if where else "")
