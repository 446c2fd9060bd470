"""Authentication between machines: CURVE on every link (RFC 25, 26), and one list of public keys.

A key identifies a machine. Other claims of a link, such as routing ids, are not used.

Threads: the thread that owns the guarded sockets.
"""

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import reduce
from operator import or_

import zmq
from zmq.utils import z85
from zmq.utils.monitor import recv_monitor_message

from decentnode.communication.zmq_poll import has_input
from decentnode.core.timeouts import Timeouts
from decentnode.errors import StartError

DOMAIN = b"decentnode"
ENVELOPE_BYTES = 64
"""An upper bound of what encryption adds to a frame, for the limit of frame sizes."""
OLDEST_LIBZMQ = (4, 3, 5)
"""Earlier versions have defects in the handshake itself, which strangers can reach."""
_ZAP_ENDPOINT = "inproc://zeromq.zap.01"
_MONITOR_ENDPOINT = "inproc://gate"
_VERDICTS: dict[int, str] = {
    zmq.EVENT_HANDSHAKE_SUCCEEDED: "",
    zmq.EVENT_HANDSHAKE_FAILED_AUTH: "unknown key",
    zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL: "handshake",
    zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL: "handshake",
}
_EVENTS = reduce(or_, _VERDICTS, zmq.EVENT_ACCEPTED)

Socket = zmq.Socket[bytes]


@dataclass(frozen=True)
class KeyPair:
    """A CURVE25519 key pair, both halves as 40 characters of Z85 (RFC 32)."""

    public: bytes
    secret: bytes = field(repr=False)

    @classmethod
    def make(cls) -> "KeyPair":
        """A new key pair from the system's source of randomness."""
        return cls(*zmq.curve_keypair())


@dataclass(frozen=True)
class Credentials:
    """The keys of this machine, and the public keys of all machines."""

    machine: int
    own_keys: KeyPair
    public: tuple[bytes, ...]
    """The public CURVE keys of all machines, by index; no other key is admitted."""
    signing: bytes = field(default=b"", repr=False)
    """This machine's secret Ed25519 key."""
    signers: tuple[bytes, ...] = ()
    """The public Ed25519 keys of all machines; empty: nothing is signed."""

    def guard_server(self, socket: Socket) -> None:
        """Makes a socket that will be bound admit only listed machines; needs a `ZapAuthenticator`.

        Call it after the limit of frame sizes is set.
        """
        most = int(socket.get(zmq.MAXMSGSIZE))
        socket.set(zmq.MAXMSGSIZE, most + ENVELOPE_BYTES if most >= 0 else most)
        socket.set(zmq.CURVE_SERVER, 1)
        socket.set(zmq.CURVE_SECRETKEY, self.own_keys.secret)
        socket.set(zmq.ZAP_DOMAIN, DOMAIN)
        # Without an authenticator this admits no one; libzmq's default admits everyone.
        socket.set(zmq.ZAP_ENFORCE_DOMAIN, 1)
        socket.set(zmq.HANDSHAKE_IVL, round(1000 * Timeouts.key_handshake))

    def guard_client(self, socket: Socket, machine: int) -> None:
        """Makes a socket that will connect talk to that machine alone."""
        socket.set(zmq.CURVE_SERVERKEY, self.public[machine])
        socket.set(zmq.CURVE_PUBLICKEY, self.own_keys.public)
        socket.set(zmq.CURVE_SECRETKEY, self.own_keys.secret)
        socket.set(zmq.HANDSHAKE_IVL, round(1000 * Timeouts.key_handshake))


def sender_of(frame: zmq.Frame) -> int:
    """The machine whose key authenticated a received frame."""
    return int(frame.get("User-Id"))


class ZapAuthenticator:
    """Admits or refuses keys for the guarded socket of one context, and counts refusals (ZAP, RFC 27).

    It has no thread: the owner of the context calls `serve` when `questions` is readable, and at `next_due`.
    """

    def __init__(self, guarded: Socket, credentials: Credentials, refuse: Callable[[str], None]) -> None:
        """Makes a socket admit only listed machines, before it is bound.

        `refuse` is called with the reason of each refused connection.
        """
        self._guarded = guarded
        self._refuse = refuse
        self._machines = {z85.decode(key): str(i).encode() for i, key in enumerate(credentials.public)}
        self.questions = guarded.context.socket(zmq.REP)
        """The socket to poll: readable when a connection waits for an answer."""
        self.questions.set(zmq.LINGER, 0)
        self.questions.bind(_ZAP_ENDPOINT)
        credentials.guard_server(guarded)
        guarded.monitor(_MONITOR_ENDPOINT, _EVENTS)
        self.monitor = guarded.context.socket(zmq.PAIR)
        """Must be polled, too: readable when a connection arrives, or is decided."""
        # No limit: libzmq's I/O thread writes the events, and would block all links when the queue is full.
        self.monitor.set(zmq.RCVHWM, 0)
        self.monitor.connect(_MONITOR_ENDPOINT)
        self._undecided: deque[float] = deque()
        """When connections arrived that had no event since."""

    @property
    def next_due(self) -> float:
        """When the oldest undecided connection counts as silent."""
        return self._undecided[0] + Timeouts.silent_connection if self._undecided else float("inf")

    def serve(self) -> None:
        """Answers all requests, and counts refused and silent connections."""
        while has_input(self.questions):
            self.questions.send_multipart(self._answer(self.questions.recv_multipart(zmq.NOBLOCK)))
        while has_input(self.monitor):
            self._note(int(recv_monitor_message(self.monitor, zmq.NOBLOCK)["event"]))
        while self.next_due < time.monotonic():
            self._undecided.popleft()
            self._refuse("no handshake")

    def close(self) -> None:
        """Closes the authenticator; before the guarded socket and the context."""
        self._guarded.disable_monitor()
        self.monitor.close(0)
        self.questions.close(0)

    def _answer(self, question: list[bytes]) -> list[bytes]:
        version, request, domain, _, _, mechanism, *shown = question
        machine = None
        # The key alone decides: address and routing id of a request can be forged.
        if (version, domain, mechanism) == (b"1.0", DOMAIN, b"CURVE") and len(shown) == 1:
            machine = self._machines.get(shown[0])
        # Also a request of another version, domain or mechanism is refused, never ignored.
        if machine is None:
            return [b"1.0", request, b"400", b"not on the list", b"", b""]
        return [b"1.0", request, b"200", b"", machine, b""]

    def _note(self, event: int) -> None:
        """Records an event of some connection. Events do not name it, so the oldest undecided one stands for
        it.

        So the undecided connections are counted correctly, and none is taken for younger than it is.
        """
        if event == zmq.EVENT_ACCEPTED:
            self._undecided.append(time.monotonic())
            return
        if self._undecided:
            self._undecided.popleft()
        if reason := _VERDICTS[event]:
            self._refuse(reason)


def prove_guard(credentials: Credentials, seconds: float) -> None:
    """Proves that a guarded socket admits this machine and no stranger; raises StartError.

    A guard that is set up wrongly tends to admit everyone, and no other check would detect that.
    """
    context = zmq.Context()
    refused: list[str] = []
    server = context.socket(zmq.ROUTER)
    gate = ZapAuthenticator(server, credentials, refused.append)
    try:
        # A real connection over TCP, because the guard works inside libzmq.
        server.bind("tcp://127.0.0.1:*")
        where = server.get_string(zmq.LAST_ENDPOINT)
        stranger = _knock(context, where, replace(credentials, own_keys=KeyPair.make()))
        # The stranger first: an open guard would otherwise look right with the own key.
        _serve_until(gate, seconds, lambda: bool(refused))
        listed = _knock(context, where, credentials)
        _serve_until(gate, seconds, lambda: has_input(server))
        frames = server.recv_multipart(zmq.NOBLOCK, copy=False) if has_input(server) else []
        stranger.close(0)
        listed.close(0)
    finally:
        gate.close()
        server.close(0)
        context.term()
    if refused[:1] != ["unknown key"]:
        raise StartError("security: the self-test's stranger was not refused; this libzmq cannot be trusted")
    if not frames or sender_of(frames[-1]) != credentials.machine:
        raise StartError(f"security: the self-test's own key was not admitted within {seconds:.0f} s")


def _knock(context: "zmq.Context[Socket]", endpoint: str, credentials: Credentials) -> Socket:
    """A socket that tries to deliver a message with these keys."""
    client = context.socket(zmq.DEALER)
    credentials.guard_client(client, credentials.machine)
    client.connect(endpoint)
    client.send(DOMAIN)
    return client


def _serve_until(authenticator: ZapAuthenticator, seconds: float, is_done: Callable[[], bool]) -> None:
    limit = time.monotonic() + seconds
    while not is_done() and time.monotonic() < limit:
        authenticator.serve()
        time.sleep(0.001)
