"""The sockets between launchers: machine 0 binds one, the others connect to it.

Messages as large as a model have a connection of their own, so they delay no other message.
"""

import contextlib
import os
import socket
import time
from collections import Counter
from dataclasses import dataclass
from typing import Any

import zmq

from decentnode.communication.security.curve import Credentials, ZapAuthenticator, sender_of
from decentnode.communication.zmq_poll import has_input, milliseconds
from decentnode.core.timeouts import Timeouts
from decentnode.errors import StartError

SLACK_BYTES = 16 << 20
"""Room in a message beside a model's sum: handshakes of all nodes, or a full pipe of reports."""
WAITING_MESSAGES = 16
"""Messages per connection that this process queues for reading; more wait at the sender."""
UNSENT_MESSAGES = 64
"""Messages per connection that machine 0 queues for a slow receiver; later ones are dropped."""
KEEPALIVE_INTERVAL = 30
ID_BYTES = 15
TALK, VECTORS = b"\x01", b"\x02"
"""First byte of a launcher's routes; the rest is random, so no other launcher can have it."""
Connection = tuple[int, Any]
"""A descriptor and the address of its peer, because the system reuses descriptors."""
NOWHERE: Connection = (-1, None)


@dataclass(frozen=True)
class Arrival:
    """One message, not decoded yet."""

    content: bytes
    route: bytes = b""
    """The route for answers; empty on machines that only talk to machine 0."""
    machine: int | None = None
    """The machine whose key authenticated it; None on plain links."""
    connection: Connection = NOWHERE
    """The connection that brought it."""


class LauncherChannel:
    """The links of one launcher; all calls come from one thread.

    With keys, machine 0 admits only listed machines, and the others connect only to machine 0.
    """

    def __init__(
        self, endpoint: str, machine: int, credentials: Credentials | None,
        most_bytes: int = SLACK_BYTES,
    ) -> None:  # fmt: skip
        """Binds or connects; raises StartError. `most_bytes`: the largest message accepted."""
        self.most_bytes = most_bytes
        self.refused: Counter[str] = Counter()
        """Refused connections, by reason."""
        self.is_turned_away = False
        """Machine 0 does not have this machine's key."""
        self._hosts = machine == 0
        self._endpoint = endpoint
        self._credentials = credentials
        self._context = zmq.Context()
        self._socket = self._make(zmq.ROUTER if self._hosts else zmq.DEALER)
        self._sockets = [self._socket]
        """The socket for messages and, on machines other than 0, the one for vectors after the first one."""
        self._name = os.urandom(ID_BYTES)
        self._gate: ZapAuthenticator | None = None
        self._monitor: zmq.Socket[bytes] | None = None
        try:
            self._attach()
        except zmq.ZMQError as error:
            self.close()
            reason = zmq.strerror(error.errno or 0)
            raise StartError(f"{endpoint}: {reason} (key mapping.rendezvous_port)") from error

    def _make(self, kind: int) -> "zmq.Socket[bytes]":
        made = self._context.socket(kind)
        made.set(zmq.IPV6, 1)
        # Set again in `close`; until then an error path must not block on undelivered messages.
        made.set(zmq.LINGER, 0)
        made.set(zmq.MAXMSGSIZE, self.most_bytes)
        # Vectors are large: what is not read yet must wait at the sender, not in this process.
        made.set(zmq.RCVHWM, WAITING_MESSAGES)
        if self._hosts:
            made.set(zmq.SNDHWM, UNSENT_MESSAGES)
            # A reconnected launcher keeps its route even if the old connection is not closed yet.
            made.set(zmq.ROUTER_HANDOVER, 1)
        elif self._credentials is not None:
            self._credentials.guard_client(made, 0)
        return made

    def _attach(self) -> None:
        if not self._hosts:
            if self._credentials is not None:
                self._monitor = self._socket.get_monitor_socket(zmq.EVENT_HANDSHAKE_FAILED_AUTH)
            # A fixed name, so a broken connection does not look like a second start of this launcher.
            self._socket.set(zmq.ROUTING_ID, TALK + self._name)
            self._socket.connect(self._endpoint)
            return
        if self._credentials is not None:
            # Before the socket listens: no connection may be made unchecked.
            self._gate = ZapAuthenticator(self._socket, self._credentials, self._refuse)
        self._socket.bind(self._endpoint)

    def _own_link(self) -> "zmq.Socket[bytes]":
        """A second connection to machine 0 for vectors; it queues at most one more vector."""
        if len(self._sockets) == 1:
            made = self._make(zmq.DEALER)
            made.set(zmq.SNDHWM, 1)
            made.set(zmq.ROUTING_ID, VECTORS + self._name)
            # No other traffic keeps it alive between two evaluations.
            made.set(zmq.TCP_KEEPALIVE, 1)
            made.set(zmq.TCP_KEEPALIVE_IDLE, KEEPALIVE_INTERVAL)
            made.set(zmq.TCP_KEEPALIVE_INTVL, KEEPALIVE_INTERVAL)
            made.connect(self._endpoint)
            self._sockets.append(made)
        return self._sockets[1]

    def _refuse(self, reason: str) -> None:
        self.refused[reason] += 1

    @property
    def descriptors(self) -> list[int]:
        """What a thread polls while `has_messages` is False; readable when that may have changed."""
        return [link.fileno() for link in self._read]

    @property
    def has_messages(self) -> bool:
        """Whether a message can be read, or a machine asks to be admitted."""
        return any(map(has_input, self._read))

    @property
    def _read(self) -> "list[zmq.Socket[bytes]]":
        return [*self._sockets, *([self._gate.questions] if self._gate else [])]

    def wait(self, timeout: float) -> bool:
        """Whether a message arrives within `timeout` seconds."""
        limit = time.monotonic() + timeout
        polled = [(link, zmq.POLLIN) for link in self._read]
        while True:
            zmq.zmq_poll(polled, milliseconds(limit))
            if self._gate is not None:
                # A connection sends nothing before its key is admitted here.
                self._gate.serve()
            if self._monitor is not None and has_input(self._monitor):
                self.is_turned_away = True
            if any(map(has_input, self._sockets)):
                return True
            if time.monotonic() >= limit:
                return False

    def receive(self) -> Arrival | None:
        """The next message, if one is here."""
        while (source := next(filter(has_input, self._sockets), None)) is not None:
            *routes, frame = source.recv_multipart(zmq.NOBLOCK, copy=False)
            if len(routes) == self._hosts:
                route = routes[0].bytes if routes else b""
                return Arrival(frame.bytes, route, self._machine_of(frame), connection_of(frame))
            self.refused["frame count"] += 1
        return None

    def _machine_of(self, frame: zmq.Frame) -> int | None:
        if self._credentials is None:
            return None
        return sender_of(frame) if self._hosts else 0

    def send(self, content: bytes, route: bytes = b"", is_vector: bool = False) -> bool:
        """Sends one message; returns False if it was dropped because the receiver is too slow. Never waits.

        On machine 0 a vector takes the route by which that machine's vectors arrive.
        """
        link = self._own_link() if is_vector and not self._hosts else self._socket
        try:
            # A launcher that does not read must never block the monitoring of nodes.
            link.send_multipart([route, content] if route else [content], zmq.NOBLOCK)
        except zmq.Again:
            return False
        return True

    def cut(self, connection: Connection = NOWHERE) -> None:
        """Closes a connection and drops its queue: the given one, or this machine's own one for vectors."""
        if self._hosts:
            shut_down(connection)
        else:
            for link in self._sockets[1:]:
                link.close(0)
            del self._sockets[1:]

    def close(self) -> None:
        """Delivers what was sent within two seconds, and closes the sockets."""
        if self._gate is not None:
            self._gate.close()
        if self._monitor is not None:
            self._socket.disable_monitor()
            self._monitor.close(0)
        for link in self._sockets:
            link.close(round(1000 * Timeouts.launcher_linger))
        self._context.term()


def connection_of(frame: zmq.Frame) -> Connection:
    """The connection that brought a frame; NOWHERE if it has ended."""
    try:
        fd = int(frame.get(zmq.SRCFD))
        with _shared(fd) as found:
            return fd, found.getpeername()
    except (OSError, zmq.ZMQError):  # zmq: a peer with one of the oldest versions of the protocol
        return NOWHERE


def shut_down(connection: Connection) -> None:
    """Closes a connection below ZeroMQ, which has no call for it; does nothing if it has ended."""
    fd, peer = connection
    with contextlib.suppress(OSError), _shared(fd) as found:
        # The descriptor may belong to another connection by now.
        if found.getpeername() == peer:
            found.shutdown(socket.SHUT_RDWR)


def _shared(fd: int) -> socket.socket:
    """A duplicate of a descriptor as a socket; closing it leaves the original open."""
    return socket.socket(fileno=os.dup(fd))
