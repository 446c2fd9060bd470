"""The sockets between launchers: each binds one to receive, and connects one to each other to send."""

import errno
import os
import struct
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import cycle

import zmq
from zmq.utils.monitor import recv_monitor_message

from decentnode.communication.security.curve import Credentials, ZapAuthenticator, sender_of
from decentnode.communication.zmq_poll import has_input, milliseconds
from decentnode.core.timeouts import Timeouts
from decentnode.errors import BadInput, StartError
from decentnode.mapping.job import MOST_HOSTS

MOST_BYTES = 16 << 20
"""The largest message accepted: room for the handshakes of all nodes, or a full pipe of reports."""
WAITING_MESSAGES = 16
"""Messages per connection that this process queues for reading; more wait at the sender."""
UNSENT_MESSAGES = 1000
"""Messages per connection that a launcher queues for a slow receiver; later ones are dropped."""
FAILED_HANDSHAKES = (
    zmq.EVENT_HANDSHAKE_FAILED_AUTH
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
)
MOST_HANDSHAKES = 4
"""Failed handshakes after which machine 0 is taken to have other keys."""
ROUTE = struct.Struct("!BI9sH")
"""A byte that is not zero, because libzmq has those, the machine, a random part, which all connections of a
launcher have in common, and the number of the connection: one that is dropped may still come up after its
successor, and with the same route it would take its place, so that nothing of the launcher was heard.
"""


@dataclass(frozen=True)
class Arrival:
    """One message, not decoded yet."""

    content: bytes
    machine: int
    """The sender; where links are guarded its key has proved it."""
    launcher: bytes = b""
    """The launcher that sent it: a machine that is started again has another one. Empty for an answer."""
    start: bytes = b""
    """The start of the run that it belongs to; empty before the start."""


class LauncherChannel:
    """The links of one launcher; all calls come from one thread.

    With keys, it admits only listed machines, and connects only to them.
    """

    def __init__(
        self, endpoints: Callable[[int], str], bound: str, machine: int, credentials: Credentials | None
    ) -> None:
        """`endpoints`: where each machine receives; `bound`: where this one does.

        Raises BadInput for a port that another program has taken, and StartError.
        """
        self.refused: Counter[str] = Counter()
        """Refused connections, by reason."""
        self.is_refused = False
        """Machine 0 does not have this machine's key, or has not the key that this machine expects."""
        self.start = b""
        """The start of the run that messages belong to from now on."""
        self._handshakes = 0
        """Handshakes with machine 0 that have failed."""
        self._machine, self._endpoints, self._credentials = machine, endpoints, credentials
        # Random, so a launcher that is started again is another one.
        self._random, self._numbers = os.urandom(9), cycle(range(1 << 16))
        self._routes: dict[bytes, bytes] = {}
        """By launcher the route of its newest connection; the one that was heard last is the last."""
        self._context = zmq.Context()
        self._inbox = self._context.socket(zmq.ROUTER)
        self._outboxes: dict[int, zmq.Socket[bytes]] = {}
        self._authenticator: ZapAuthenticator | None = None
        self._monitor: zmq.Socket[bytes] | None = None
        try:
            self._bind(bound)
        except zmq.ZMQError as error:
            self.close()
            key = "(key mapping.rendezvous_port)"
            if error.errno == errno.EADDRINUSE:
                raise BadInput(f"{bound} is in use by another program {key}") from error
            raise StartError(f"{bound}: {zmq.strerror(error.errno or 0)} {key}") from error

    def _bind(self, bound: str) -> None:
        prepare(self._inbox)
        # A reconnected launcher keeps its route even if the old connection is not closed yet.
        self._inbox.set(zmq.ROUTER_HANDOVER, 1)
        if self._credentials is not None:
            # Before the socket listens: no connection may be made unchecked.
            self._authenticator = ZapAuthenticator(
                self._inbox, self._credentials, lambda why: self.refused.update([why])
            )
        self._inbox.bind(bound)

    def _outbox(self, machine: int) -> "zmq.Socket[bytes] | None":
        """Returns the socket that sends to a machine, which the first message connects; None: no address."""
        if (outbox := self._outboxes.get(machine)) is not None or not (endpoint := self._endpoints(machine)):
            return outbox
        outbox = self._context.socket(zmq.DEALER)
        prepare(outbox)
        outbox.set(zmq.ROUTING_ID, ROUTE.pack(1, self._machine, self._random, next(self._numbers)))
        outbox.set(zmq.SNDHWM, UNSENT_MESSAGES)
        # A machine may come back before the kernel gives up an attempt to reach it.
        outbox.set(zmq.CONNECT_TIMEOUT, round(1000 * Timeouts.connect))
        if self._credentials is not None:
            self._credentials.guard_client(outbox, machine)
        try:
            outbox.connect(endpoint)
        except zmq.ZMQError:
            self.refused["address"] += 1
            outbox.close(0)
            return None
        if self._credentials is not None and machine == 0:
            self._monitor = outbox.get_monitor_socket(FAILED_HANDSHAKES)
        self._outboxes[machine] = outbox
        return outbox

    def begin(self, start: bytes, absent: Iterable[int] = ()) -> None:
        """Sends messages of this start from now on; to machines that are absent on new connections."""
        self.start = start
        # Those to others stay: to end one amid its handshake would look like a refusal there.
        for machine in absent:
            self.renew(machine)

    def renew(self, machine: int) -> None:
        """Drops what was not sent to a machine, and connects anew: another launcher receives there."""
        if (outbox := self._outboxes.pop(machine, None)) is not None:
            if machine == 0 and self._monitor is not None:
                self._handshakes = 0
                outbox.disable_monitor()
                self._monitor.close(0)
                self._monitor = None
            outbox.close(0)

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
        questions = [self._authenticator.questions] if self._authenticator else []
        return [self._inbox, *questions, *self._answering.values()]

    @property
    def _answering(self) -> "dict[int, zmq.Socket[bytes]]":
        """The outboxes on which answers may come: none after the start."""
        return {} if self.start else self._outboxes

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
            if has_input(self._inbox) or any(map(has_input, self._answering.values())):
                return True
            if time.monotonic() >= limit:
                return False

    def receive(self) -> Arrival | None:
        """Returns the next message, if one is here."""
        for machine, outbox in self._answering.items():
            while has_input(outbox):
                answer = outbox.recv_multipart(zmq.NOBLOCK)
                if len(answer) == 1:
                    return Arrival(answer[0], machine)
                self.refused["frame count"] += 1
        while has_input(self._inbox):
            route, *frames = self._inbox.recv_multipart(zmq.NOBLOCK, copy=False)
            if len(frames) != 2 or len(route) != ROUTE.size:
                self.refused["frame count"] += 1
                continue
            start, frame = frames
            launcher, machine = route.bytes[:-2], ROUTE.unpack(route.bytes)[1]
            # The key decides: a machine cannot write in another one's name.
            if self._credentials is not None and sender_of(frame) != machine:
                self.refused["identity"] += 1
                continue
            self._routes.pop(launcher, None)
            self._routes[launcher] = route.bytes
            if len(self._routes) > MOST_HOSTS:
                del self._routes[next(iter(self._routes))]
            return Arrival(frame.bytes, machine, launcher, start.bytes)
        return None

    def send(self, content: bytes, machine: int) -> bool:
        """Sends one message without waiting; returns False if it was dropped: the receiver is too slow."""
        if (outbox := self._outbox(machine)) is None:
            return False
        try:
            # A launcher that does not read must never block the monitoring of nodes.
            outbox.send_multipart([self.start, content], zmq.NOBLOCK)
        except zmq.Again:
            return False
        return True

    def answer(self, content: bytes, launcher: bytes) -> None:
        """Answers a launcher that need not receive where its machine does; drops what is not sent at once."""
        self._inbox.send_multipart([self._routes.get(launcher, launcher), content], zmq.NOBLOCK)

    def close(self) -> None:
        """Delivers what was sent within two seconds, and closes the sockets."""
        if self._authenticator is not None:
            self._authenticator.close()
        if self._monitor is not None:
            self._outboxes[0].disable_monitor()
            self._monitor.close(0)
        for link in (self._inbox, *self._outboxes.values()):
            link.close(round(1000 * Timeouts.launcher_linger))
        self._context.term()


def prepare(link: "zmq.Socket[bytes]") -> None:
    """Sets the limits of a socket between launchers."""
    link.set(zmq.IPV6, 1)
    # Set again in `close`; until then an error path must not block on undelivered messages.
    link.set(zmq.LINGER, 0)
    link.set(zmq.MAXMSGSIZE, MOST_BYTES)
    # What is not read yet must wait at the sender, not in this process.
    link.set(zmq.RCVHWM, WAITING_MESSAGES)
