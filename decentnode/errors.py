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
│   └── WorkerLost      a process that computes local steps has ended
└── PeerError           why a payload did not arrive; reported in an Inbox, not raised out of a round
    ├── PeerLost        the peer is lost
    │   ├── PeerUnmet   no link to its process was ever made
    │   └── PeerLeft    it ended, and sent LEAVE
    ├── PeerTimeout     the peer was silent for longer than the deadline
    └── ProtocolError   what arrived breaks the message rules
"""

import errno
import re
import signal
import sysconfig
import traceback
from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import IntEnum
from pathlib import Path
from types import FrameType
from typing import Self

import msgspec

Key = tuple[str | int, ...]
"""The place of a value in a configuration, for instance ("sharing", "transforms", 0, "fraction")."""

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
    WARNED_BY_USR1 = 138
    WARNED_BY_USR2 = 140
    TERMINATED = 143
    CPU_LIMIT = 152


STOPPED_BY = {
    signal.SIGINT: ExitCode.INTERRUPTED,
    signal.SIGTERM: ExitCode.TERMINATED,
    signal.SIGHUP: ExitCode.HUNG_UP,
    signal.SIGUSR1: ExitCode.WARNED_BY_USR1,
    signal.SIGUSR2: ExitCode.WARNED_BY_USR2,
    signal.SIGXCPU: ExitCode.CPU_LIMIT,
}
"""Signals that stop a run, with their exit codes: 128 and the number of the signal.

SIGHUP is sent when its terminal closes, the last three by batch systems before a limit of time.
"""


MISSING_KEY = "missing"
"""The problem of a key that must be there."""


@dataclass(frozen=True)
class Defect:
    """One thing to correct; `config/yaml_source.py` adds the file and line of its key."""

    key: Key
    """The key relative to the section that was checked, or to the top; empty: that section itself."""
    problem: str
    suggestion: str = ""
    """The correction that is suggested."""
    meant: str = ""
    """The known name that an unknown one resembles."""

    @classmethod
    def at(cls, key: str, problem: str, suggestion: str = "") -> Self:
        """The defect of a key in dotted form; of the section itself where it is empty."""
        return cls(key_of(key), problem, suggestion)

    @property
    def what(self) -> str:
        """Returns `problem; suggestion`."""
        return f"{self.problem}; {self.suggestion}" if self.suggestion else self.problem

    def below(self, key: Key) -> Self:
        """Returns the defect with `key`, the place of its section, before its own key."""
        return replace(self, key=(*key, *self.key))

    def __str__(self) -> str:
        return f"{key_text(self.key)}: {self.what}" if self.key else self.what


def key_text(key: Key) -> str:
    """The dotted form, for instance `sharing.transforms[0].fraction`."""
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in key).lstrip(".")


def key_of(text: str) -> Key:
    """The inverse of `key_text`."""
    return tuple(int(word) if word.isdigit() else word for word in re.findall(r"\w+", text))


class DecentnodeError(Exception):
    """The root of all errors that this package raises itself; a text is a defect without a key."""

    exit_code = ExitCode.FAILED

    def __init__(self, *defects: Defect | str) -> None:
        self.defects = tuple(
            defect if isinstance(defect, Defect) else Defect((), defect) for defect in defects
        )
        super().__init__("\n".join(self.lines))

    @classmethod
    def at(cls, key: str, problem: str) -> Self:
        """The error about the value of one key, in dotted form."""
        return cls(Defect.at(key, problem))

    @property
    def lines(self) -> tuple[str, ...]:
        """One line for each defect."""
        return tuple(map(str, self.defects))


class BadInput(DecentnodeError):
    """Something the user wrote is wrong; `defects` has each thing to correct."""

    exit_code = ExitCode.BAD_INPUT


def refuse(defects: Iterable[Defect | str], error: type[BadInput] = BadInput) -> None:
    """Raises one error with all defects, if there are any."""
    if listed := [*defects]:
        raise error(*listed)


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


class WorkerLost(RunFailed):
    """A process that computes local steps has ended, so all nodes of its host process fail alike."""


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


class PeerUnmet(PeerLost):
    """No link to the process of the peer was ever made, or nothing of it has ever arrived."""


class PeerLeft(PeerLost):
    """The peer ended, and sent LEAVE, after `round`; -1: before its first one, or it counts no exchanges."""

    def __init__(self, peer: int, round: int, failed: bool = False) -> None:
        """`failed`: the peer ended by an error."""
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


class ErrorElsewhere(Exception):
    """An unexpected error in another process; its text is that of `explained` there."""

    def __init__(self, text: str, out_of_memory: bool) -> None:
        super().__init__(text)
        self.out_of_memory = out_of_memory


def is_out_of_memory(error: BaseException) -> bool:
    """Whether Python, torch or CUDA ran out of memory."""
    if isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno == errno.ENOMEM):
        return True
    if isinstance(error, ErrorElsewhere):
        return error.out_of_memory
    text = str(error).lower()
    return "out of memory" in text or "can't allocate memory" in text


def origin(error: BaseException) -> str:
    """Returns `file:line, in Class.method` of the innermost frame outside this and installed packages.

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
    if isinstance(error, ErrorElsewhere):
        return str(error)
    message = (str(error) or "no reason given").splitlines()[0]
    where = origin(error)
    return f"{type(error).__name__}: {message}" + (f" ({where})" if where else "")
