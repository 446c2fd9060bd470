"""The socket between launchers: machine 0 binds it, the others connect to it."""

import errno
import os
import time
from collections import Counter
from dataclasses import dataclass

import zmq
from zmq.utils.monitor import recv_monitor_message

from decentnode.communication.security.curve import Credentials, ZapAuthenticator, sender_of
from decentnode.communication.zmq_poll import has_input, milliseconds
from decentnode.core.timeouts import Timeouts
from decentnode.errors import BadInput, StartError

MOST_BYTES = 16 << 20
"""The largest message accepted: room for the handshakes of all nodes, or a full pipe of reports."""
WAITING_MESSAGES = 16
"""Messages per connection that this process queues for reading; more wait at the sender."""
UNSENT_MESSAGES = 64
"""Messages per connection that machine 0 queues for a slow receiver; later ones are dropped."""
ID_BYTES = 15
FAILED_HANDSHAKES = (
    zmq.EVENT_HANDSHAKE_FAILED_AUTH
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
)
MOST_HANDSHAKES = 4
"""Failed handshakes after which machine 0 is taken to have other keys."""


@dataclass(frozen=True)
class Arrival:
    """One message, not decoded yet."""

    content: bytes
    route: bytes = b""
    """The route for answers; empty on machines that only talk to machine 0."""
    machine: int | None = None
    """The machine whose key authenticated it; None on plain links."""


class LauncherChannel:
    """The link of one launcher; all calls come from one thread.

    With keys, machine 0 admits only listed machines, and the others connect only to machine 0.
    """

    def __init__(self, endpoint: str, machine: int, credentials: Credentials | None) -> None:
        """Binds or connects; raises BadInput for a port that another program has taken, and StartError."""
        self.refused: Counter[str] = Counter()
        """Refused connections, by reason."""
        self.is_refused = False
        """Machine 0 does not have this machine's key, or has not the key that this machine expects."""
        self._handshakes = 0
        """Handshakes with machine 0 that have failed."""
        self._hosts = machine == 0
        self._credentials = credentials
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.ROUTER if self._hosts else zmq.DEALER)
        self._authenticator: ZapAuthenticator | None = None
        self._monitor: zmq.Socket[bytes] | None = None
        try:
            self._attach(endpoint)
        except zmq.ZMQError as error:
            self.close()
            key = "(key mapping.rendezvous_port)"
            if error.errno == errno.EADDRINUSE:
                raise BadInput(f"{endpoint} is in use by another program {key}") from error
            raise StartError(f"{endpoint}: {zmq.strerror(error.errno or 0)} {key}") from error

    def _attach(self, endpoint: str) -> None:
        link, credentials = self._socket, self._credentials
        link.set(zmq.IPV6, 1)
        # Set again in `close`; until then an error path must not block on undelivered messages.
        link.set(zmq.LINGER, 0)
        link.set(zmq.MAXMSGSIZE, MOST_BYTES)
        # What is not read yet must wait at the sender, not in this process.
        link.set(zmq.RCVHWM, WAITING_MESSAGES)
        if self._hosts:
            link.set(zmq.SNDHWM, UNSENT_MESSAGES)
            # A reconnected launcher keeps its route even if the old connection is not closed yet.
            link.set(zmq.ROUTER_HANDOVER, 1)
            if credentials is not None:
                # Before the socket listens: no connection may be made unchecked.
                self._authenticator = ZapAuthenticator(
                    link, credentials, lambda why: self.refused.update([why])
                )
            link.bind(endpoint)
            return
        if credentials is not None:
            credentials.guard_client(link, 0)
            self._monitor = link.get_monitor_socket(FAILED_HANDSHAKES)
        # A fixed name, so a broken connection does not look like a second start of this launcher. It is
        # random, so no other launcher has it; a first byte of zero is reserved.
        link.set(zmq.ROUTING_ID, b"\x01" + os.urandom(ID_BYTES))
        link.connect(endpoint)

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
        return [self._socket, *([self._authenticator.questions] if self._authenticator else [])]

    def wait(self, timeout: float) -> bool:
        """Whether a message arrives within `timeout` seconds."""
        limit = time.monotonic() + timeout
        polled = [(link, zmq.POLLIN) for link in self._read]
        while True:
            zmq.zmq_poll(polled, milliseconds(limit))
            if self._authenticator is not None:
                # A connection sends nothing before its key is admitted here.
                self._authenticator.serve()
            while self._monitor is not None and has_input(self._monitor):
                event = recv_monitor_message(self._monitor, zmq.NOBLOCK)["event"]
                # Machine 0 may also end amid a handshake, but not again and again.
                self._handshakes += MOST_HANDSHAKES if event == zmq.EVENT_HANDSHAKE_FAILED_AUTH else 1
                self.is_refused = self._handshakes >= MOST_HANDSHAKES
            if has_input(self._socket):
                return True
            if time.monotonic() >= limit:
                return False

    def receive(self) -> Arrival | None:
        """Returns the next message, if one is here."""
        while has_input(self._socket):
            *routes, frame = self._socket.recv_multipart(zmq.NOBLOCK, copy=False)
            if len(routes) == self._hosts:
                return Arrival(frame.bytes, routes[0].bytes if routes else b"", self._machine_of(frame))
            self.refused["frame count"] += 1
        return None

    def _machine_of(self, frame: zmq.Frame) -> int | None:
        if self._credentials is None:
            return None
        return sender_of(frame) if self._hosts else 0

    def send(self, content: bytes, route: bytes = b"") -> bool:
        """Sends one message without waiting; returns False if it was dropped: the receiver is too slow."""
        try:
            # A launcher that does not read must never block the monitoring of nodes.
            self._socket.send_multipart([route, content] if route else [content], zmq.NOBLOCK)
        except zmq.Again:
            return False
        return True

    def close(self) -> None:
        """Delivers what was sent within two seconds, and closes the socket."""
        if self._authenticator is not None:
            self._authenticator.close()
        if self._monitor is not None:
            self._socket.disable_monitor()
            self._monitor.close(0)
        self._socket.close(round(1000 * Timeouts.launcher_linger))
        self._context.term()
