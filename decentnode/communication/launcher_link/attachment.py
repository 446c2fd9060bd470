"""How a process that somebody else has started, or a script, gets a place among those of a launcher.

It connects to a socket of the launcher on its machine, says what it shares, and gets the settings of the run
with the memory that host processes inherit elsewhere. The connection stays open as long as it takes part.
"""

import os
import socket
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from decentnode.core.polling import ready
from decentnode.errors import BadInput, StartError

MOST_FDS = 8
LEFT, FAILED = b"l", b"f"
"""What a process sends when its part has ended, well or by an error."""
RETRY_INTERVAL = 0.05


class SharedModel(msgspec.Struct, frozen=True):
    """What a process shares, as far as its launcher has to know it."""

    parameters: dict[str, list[int]]
    """The shapes of parameters by name, in the order of the vector."""
    buffers: dict[str, list[int]] = {}
    """Those of float buffers that are averaged, too."""
    dtype: str = "float32"
    """That of real numbers, and of the parts of complex ones."""
    complex: list[str] = []
    """The parameters that are complex."""
    digest: str = ""
    """A hash of the values that it begins with, which all ranks begin with."""
    shards: int = 1
    """The processes that the model is sharded over; ranks of one node follow each other."""


class AttachRequest(msgspec.Struct, frozen=True):
    """A process asks for its place."""

    ranks: list[int]
    size: int
    """The ranks of the run."""
    pid: int
    version: str
    model: SharedModel
    config: str | None = None
    """The path of a configuration, or a shipped name."""
    values: dict[str, Any] = {}
    """Values of keys in addition, as in a configuration."""
    optimizer: dict[str, Any] | None = None
    """Name and options of the first optimizer; None: the process has shown none."""
    samples: int | None = None
    continues: str = ""
    """From where its saved state continues, which is the same for all ranks; empty: it begins."""
    or_resume: bool = False
    """Whether the run is resumed if an earlier start has begun it."""
    script: str = "script"
    """The name of the script, which its run has by default."""
    folder: str = "."
    """The current folder."""


class RunPlace(msgspec.Struct, frozen=True):
    """The place of a process in a run."""

    settings: str
    """The configuration of the run, as YAML."""
    position: int
    """Its position among the host processes."""
    incarnation: int
    local_ranks: list[int]
    """All ranks of its machine."""
    run_dir: str
    socket_dir: str
    state: str
    """The hash of the settings in checkpoints."""


class JoinRefusal(msgspec.Struct, frozen=True):
    """Why a process has no place, or has lost it."""

    reason: str
    is_bad_input: bool = False
    is_finished: bool = False
    """Whether nothing is left to do, so that the process may end well."""

    def error(self) -> BadInput | StartError | SystemExit:
        """Returns it as an error."""
        if self.is_finished:
            print(self.reason, flush=True)
            return SystemExit(0)
        return (BadInput if self.is_bad_input else StartError)(self.reason)


def send(connection: socket.socket, message: msgspec.Struct, fds: Sequence[int] = ()) -> None:
    """Sends a message with descriptors; raises OSError. What it has to say may be long, so a file has it."""
    content = os.memfd_create("decentnode-message")
    try:
        os.write(content, msgspec.json.encode({type(message).__name__: message}))
        socket.send_fds(connection, [b"m"], [content, *fds])
    finally:
        os.close(content)


def receive(connection: socket.socket, *kinds: type[msgspec.Struct]) -> tuple[Any, list[int]]:
    """Returns the next message, of one of these kinds, with its descriptors; raises OSError, ValueError."""
    word, fds, _, _ = socket.recv_fds(connection, 1, MOST_FDS)
    if not word or not fds:
        for fd in fds:
            os.close(fd)
        raise ConnectionError("the connection has ended")
    content, *others = fds
    try:
        size = os.fstat(content).st_size
        fields = msgspec.json.decode(os.pread(content, size, 0), type=dict[str, msgspec.Raw])
    finally:
        os.close(content)
    (name, raw), *_ = fields.items()
    kind = next((kind for kind in kinds if kind.__name__ == name), None)
    if kind is None:
        raise ValueError(f"unexpected message {name[:40]}")
    return msgspec.json.decode(raw, type=kind), others


def connect(path: Path, seconds: float) -> socket.socket:
    """Connects to a launcher, which may be starting unless `seconds` is 0; raises StartError."""
    limit = time.monotonic() + seconds
    while True:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        try:
            connection.connect(str(path))
            return connection
        except OSError as error:
            connection.close()
            if not seconds:
                raise StartError(
                    f"the run that has started this script has ended ({error.strerror})"
                ) from error
            if time.monotonic() > limit:
                why = f"no launcher at {path} within {seconds:.0f} s: {error.strerror}"
                raise StartError(f"{why}; did the first rank of this machine join?") from error
        time.sleep(RETRY_INTERVAL)


def listen(path: Path) -> socket.socket:
    """Binds the socket of a launcher; raises StartError."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        path.unlink(missing_ok=True)
        listener.bind(str(path))
        path.chmod(0o600)
        listener.listen(128)
    except OSError as error:
        listener.close()
        raise StartError(f"{path}: no socket can be made there: {error.strerror}") from error
    return listener


def has_word(connection: socket.socket, seconds: float) -> bool:
    """Whether something can be read from a connection within so many seconds."""
    return bool(ready([connection.fileno()], seconds=seconds))
