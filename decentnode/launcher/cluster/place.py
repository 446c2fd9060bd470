"""How a machine whose addresses nobody lists finds a run in progress, and its own place there."""

import fcntl
import os
import socket
import tempfile
import time
from collections.abc import Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import zmq

from decentnode.communication.security.curve import Credentials
from decentnode.core.timeouts import Timeouts
from decentnode.errors import UNDECODABLE
from decentnode.formats.records import write_atomically
from decentnode.launcher.cluster.channel import ROUTE, prepare
from decentnode.launcher.state.messages import DECODER, PlaceOffer, PlaceRequest
from decentnode.mapping.base import tcp_endpoint

FILE = "machines.json"
ASK_INTERVAL = 0.5
MOST_AT_ONCE = 32


def save_addresses(run_dir: Path, addresses: Mapping[int, str]) -> None:
    """Writes where the machines of a run are reached, for one that returns."""
    if addresses:
        # Without it the machine finds the others through the first one.
        with suppress(OSError):
            write_atomically(run_dir / FILE, {str(machine): at for machine, at in addresses.items()})


def saved_addresses(run_dir: Path) -> dict[int, str]:
    """Returns what `save_addresses` has written; nothing if it cannot be read."""
    try:
        return msgspec.json.decode((run_dir / FILE).read_bytes(), type=dict[int, str])
    except (OSError, *UNDECODABLE):
        return {}


@dataclass
class Places:
    """The places of a run, and for whom one is kept: its machine still reads its data."""

    count: int
    seconds: float
    """How long a place is kept."""
    _kept: dict[int, tuple[str, float]] = field(default_factory=dict)
    """By place for whom, and until when on the clock of `time.monotonic`."""

    def offer(self, request: PlaceRequest, free: Collection[int], addresses: dict[int, str]) -> PlaceOffer:
        """Returns one of the free places, the one that the machine had or wants if that is possible."""
        now, asker = time.monotonic(), request.asker
        of_others = {index for index, (other, limit) in self._kept.items() if other != asker and limit > now}
        own = next((index for index, (other, _) in self._kept.items() if other == asker), request.wanted)
        # The first place is at the rendezvous, where machines that come look for the run. One that was never
        # given comes before one that may be in use.
        left = sorted(set(free) - of_others, key=lambda index: (index == 0, index in self._kept, index))
        if not left:
            return PlaceOffer(reason=f"all {self.count} machines are here; start no more than {self.count}")
        index = own if own in left else left[0]
        self._kept[index] = asker, now + self.seconds
        return PlaceOffer(index, addresses)


def find_place(
    known: Mapping[int, str],
    port: int,
    request: PlaceRequest,
    credentials: Credentials | None,
    seconds: float,
) -> PlaceOffer | None:
    """Asks launchers that are known for a place in their run; None: no run is found.

    `known`: addresses by machine. The answer may be the reason why there is no place.
    """
    limit, next_ask = time.monotonic() + seconds, 0.0
    with ThreadPoolExecutor(MOST_AT_ONCE) as pool:
        answers = pool.map(lambda address: is_listening(address, port), known.values())
        there = dict(of for of, is_there in zip(known.items(), answers, strict=True) if is_there)
    content, links = msgspec.msgpack.encode(request), dict[int, "zmq.Socket[bytes]"]()
    context = zmq.Context()
    try:
        while there and (now := time.monotonic()) < limit:
            for machine in there.keys() - links.keys():
                links[machine] = _connect(context, request, credentials, machine, there[machine], port)
                next_ask = 0.0
            if now >= next_ask:
                next_ask = now + ASK_INTERVAL
                for link in links.values():
                    with suppress(zmq.Again):
                        link.send_multipart([b"", content], zmq.NOBLOCK)
            for machine in [m for m, link in links.items() if link.poll(50, zmq.POLLIN)]:
                offer = _read(links[machine])
                if offer.index >= 0 or offer.reason:
                    return offer
                for named, address in offer.addresses.items() if offer.ask >= 0 else ():
                    # The machine that decides answers; it may have another address than before.
                    if there.get(named) != address:
                        there[named] = address
                        if named in links:
                            links.pop(named).close(0)
        return None
    finally:
        for link in links.values():
            link.close(0)
        context.term()


def _connect(
    context: "zmq.Context[zmq.Socket[bytes]]", request: PlaceRequest, credentials: Credentials | None,
    machine: int, address: str, port: int,
) -> "zmq.Socket[bytes]":  # fmt: skip
    link = context.socket(zmq.DEALER)
    prepare(link)
    link.set(zmq.ROUTING_ID, ROUTE.pack(1, request.machine, os.urandom(9), 0))
    if credentials is not None:
        credentials.guard_client(link, machine)
    link.connect(tcp_endpoint(address, port))
    return link


def _read(link: "zmq.Socket[bytes]") -> PlaceOffer:
    """Returns an answer; one without content for anything else."""
    try:
        message = DECODER.decode(link.recv())
    except UNDECODABLE:
        return PlaceOffer()
    return message if isinstance(message, PlaceOffer) else PlaceOffer()


def is_first_here(port: int) -> bool:
    """Whether this process is the first one on its host with a rendezvous at this port; until it ends."""
    path = Path(tempfile.gettempdir()) / f"decentnode-{os.getuid()}-{port}.lock"
    try:
        # Kept open: the lock ends with this process and those that it forks.
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def is_listening(address: str, port: int) -> bool:
    """Whether some process accepts connections there."""
    try:
        socket.create_connection((address, port), timeout=Timeouts.launcher_probe).close()
    except OSError:
        return False
    return True
