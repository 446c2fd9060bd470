"""Requests to a run in progress: one JSON line to its launcher's socket, one line back.

The socket is in the run's private directory; `live.json` in the run directory has its path.
"""

import contextlib
import os
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from decentnode.core.text import quoted
from decentnode.core.timeouts import Timeouts
from decentnode.errors import UNDECODABLE, DecentnodeError, RunFailed
from decentnode.formats.reader import Live
from decentnode.formats.run import run_directory

LIVE = "live.json"
NOBODY_THERE = (FileNotFoundError, ConnectionRefusedError)
"""Errors of a socket whose launcher has ended; other errors do not show that."""
HUNG_UP = (ConnectionResetError, BrokenPipeError)
MOST_CLIENTS = 8
MOST_REQUEST_BYTES = 4096
MOST_ANSWER_BYTES = 64 << 20


class Request(msgspec.Struct):
    """A query or a command."""

    request: str
    argument: str = ""


class Answer(msgspec.Struct):
    """The result of a request."""

    error: str = ""
    """The error, in one line; empty if there is none."""
    content: msgspec.Raw = msgspec.Raw(b"null")


class NodeStatus(msgspec.Struct):
    """The state of one node as the asked launcher knows it."""

    rank: int
    state: str
    round: int
    """The current round of the node; -1 before the first."""
    doing: str
    """Empty if unknown, as for nodes of other machines."""
    seconds: float
    """Seconds since that began, or since the last report."""
    waits_for: list[int]
    loss: float | None
    is_here: bool = True
    """Whether the asked launcher sees the node itself; otherwise all of this is as last reported."""


class Status(msgspec.Struct):
    """The state of a run."""

    name: str
    machine: int
    machines: int
    rounds: int
    seconds: float
    """Seconds since the first round started; 0 before that."""
    nodes: list[NodeStatus]
    waited: list[tuple[int, int, int]]
    """(rank, peer, seconds): the total waits, longest first."""


Requests = dict[str, Callable[[str], Any]]
"""By name the function that answers a request's argument; it may raise DecentnodeError."""


class _Client:
    """A connected client, and what must still be sent to it."""

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        self.connection = connection
        self.until = time.monotonic() + Timeouts.control_answer
        self.received = b""
        self.answer = b""


class ControlServer:
    """The launcher's end. It never waits: it disconnects clients that are slow, silent or send too much."""

    def __init__(self, run_dir: Path, socket_dir: str, machine: int, requests: Requests) -> None:
        """Opens the socket and publishes its path; raises OSError."""
        self.requests = requests
        self._clients: list[_Client] = []
        self._live = run_dir / LIVE
        path = f"{socket_dir}/control"
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        try:
            self._socket.bind(path)
            self._socket.listen(MOST_CLIENTS)
            # Published last: a client that finds the path can connect.
            self._live.write_bytes(msgspec.json.encode(Live(os.getpid(), machine, path)) + b"\n")
        except OSError:
            self.close()
            raise

    @property
    def readers(self) -> list[int]:
        """What to poll for input."""
        return [self._socket.fileno(), *(c.connection.fileno() for c in self._clients if not c.answer)]

    @property
    def writers(self) -> list[int]:
        """What to poll for room."""
        return [c.connection.fileno() for c in self._clients if c.answer]

    @property
    def next_due(self) -> float:
        """When the next slow client is disconnected."""
        return min((client.until for client in self._clients), default=float("inf"))

    def serve(self) -> None:
        """Accepts, answers and sends as far as possible without waiting."""
        with contextlib.suppress(BlockingIOError, ConnectionError):
            while True:
                connection, _ = self._socket.accept()
                # Bounds descriptors and memory; a client may try again.
                if len(self._clients) >= MOST_CLIENTS:
                    connection.close()
                else:
                    self._clients.append(_Client(connection))
        now = time.monotonic()
        for client in list(self._clients):
            try:
                # The limit holds for the whole conversation, so a client cannot extend it by single bytes.
                ended = now > client.until or self._advance(client)
            except BlockingIOError:
                continue
            except OSError:
                ended = True
            if ended:
                client.connection.close()
                self._clients.remove(client)

    def close(self) -> None:
        """Disconnects all clients and removes the published path."""
        for client in self._clients:
            client.connection.close()
        self._clients.clear()
        self._socket.close()
        with contextlib.suppress(OSError):
            self._live.unlink(missing_ok=True)

    def _advance(self, client: _Client) -> bool:
        """Takes one step of a conversation; returns True when it is over."""
        if not client.answer:
            piece = client.connection.recv(MOST_REQUEST_BYTES)
            client.received += piece
            if b"\n" not in client.received:
                return not piece or len(client.received) > MOST_REQUEST_BYTES
            client.answer = msgspec.json.encode(self._reply(client.received.split(b"\n")[0])) + b"\n"
        client.answer = client.answer[client.connection.send(client.answer) :]
        return not client.answer

    def _reply(self, line: bytes) -> Answer:
        try:
            request = msgspec.json.decode(line, type=Request)
        except UNDECODABLE as error:
            return Answer(f"not a request: {error}")
        make = self.requests.get(request.request)
        if make is None:
            known = ", ".join(sorted(self.requests))
            return Answer(f"unknown request {quoted(request.request)} (known: {known})")
        try:
            return Answer(content=msgspec.Raw(msgspec.json.encode(make(request.argument))))
        except (DecentnodeError, ValueError) as error:
            # A wrong request must not end the launcher.
            return Answer(str(error))


def query(path: str, request: Request) -> msgspec.Raw:
    """Returns the launcher's answer on the socket at `path`; raises RunFailed.

    Without a launcher: raises one of `NOBODY_THERE`.
    """
    try:
        answer = msgspec.json.decode(_answered(path, request), type=Answer)
    except UNDECODABLE as error:
        raise RunFailed(f"the launcher's answer cannot be read: {error}") from error
    if answer.error:
        raise RunFailed(answer.error)
    return answer.content


def _answered(path: str, request: Request, is_repeated: bool = False) -> bytes:
    """Returns the bytes of the answer, one line."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        # For each step; the launcher limits the whole conversation itself.
        connection.settimeout(Timeouts.control_answer)
        try:
            connection.connect(path)
            connection.sendall(msgspec.json.encode(request) + b"\n")
            answer = connection.makefile("rb").readline(MOST_ANSWER_BYTES)
        except (TimeoutError, BlockingIOError):
            # BlockingIOError: the backlog of a launcher that does not accept is full.
            raise RunFailed(f"the launcher does not answer within {Timeouts.control_answer:.0f} s") from None
        except NOBODY_THERE:
            raise
        except OSError as error:
            if isinstance(error, HUNG_UP) and not is_repeated:  # it may have ended just now
                return _answered(path, request, is_repeated=True)
            raise RunFailed(f"the launcher cannot be asked: {error.strerror or error}") from error
    if not answer.endswith(b"\n"):
        raise RunFailed("the launcher hung up without an answer")
    return answer


def live_of(run_dir: Path) -> Live | None:
    """Returns the control socket of the run; None if no launcher has published one. Raises BadInput if it is
    no run.
    """
    try:
        return msgspec.json.decode((run_directory(run_dir) / LIVE).read_bytes(), type=Live)
    except (OSError, *UNDECODABLE):
        return None
