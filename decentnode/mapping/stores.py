"""torch's stores: small servers of keys and values over TCP, through which processes find each other."""

import json
import secrets
import socket
import time
from collections.abc import Sequence
from datetime import timedelta

from torch.distributed import Store, TCPStore  # type: ignore[attr-defined]

from decentnode.core.text import first_line
from decentnode.core.timeouts import Timeouts
from decentnode.errors import StartError
from decentnode.mapping.reachability import why_unreachable

POLL_INTERVAL = 0.05
ENDED, TOLD = "ended", "told"
"""The keys of what a process says that ends, and of how many others have read it."""


class PeerEnded(RuntimeError):
    """Another process has ended before all have answered."""

    def __init__(self, index: int, reason: str, is_bad_input: bool) -> None:
        super().__init__(reason)
        self.index, self.reason, self.is_bad_input = index, reason, is_bad_input


def serve(address: str, port: int, seconds: float, backlog: int) -> TCPStore:
    """Opens a store at this address of this machine only; raises StartError.

    It closes when nothing refers to it. Port 0: the system chooses. `seconds`: the limit of each request.
    """
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        # Bound here, because torch would listen on all addresses of the machine.
        listening = socket.create_server((address, port), family=family, backlog=backlog)
    except OSError as error:
        raise StartError(f"a store cannot be opened at {address}, port {port}: {error.strerror}") from error
    return TCPStore(
        address, listening.getsockname()[1], None, True, timedelta(seconds=seconds), wait_for_workers=False,
        use_libuv=False, master_listen_fd=listening.detach(),
    )  # fmt: skip


def join(address: str, port: int, seconds: float, serves: bool = False) -> TCPStore:
    """Connects to a store, which may open meanwhile; raises StartError.

    `seconds`: the limit of this and of each request. `serves`: this process opens it, if it has not done so,
    on all addresses of its machine, as torch's own users of that port do.
    """
    began = time.monotonic()
    # A machine need not know its own name. Torch would print each try, and wait twice as long.
    host = "localhost" if serves else address
    if not serves and (why := why_unreachable(address, port, seconds)):
        raise StartError(f"no store answers at {address}, port {port}: {why}")
    limit = timedelta(seconds=max(1.0, seconds - (time.monotonic() - began)))
    try:
        return TCPStore(host, port, None, serves, limit, wait_for_workers=False, multi_tenant=serves)
    except (OSError, RuntimeError) as error:
        why = first_line(error)[:200]
        raise StartError(f"no store answers at {address}, port {port}: {why}") from error


def gathered(store: Store, index: int, count: int, content: str, seconds: float) -> tuple[list[str], str]:
    """Returns what each of `count` processes says, in order, and a name that this exchange alone has.

    The store may have what processes said that have ended since, and engines count restarts for each machine
    on its own. So the first process makes a new call, and counts the answers to that call alone; another one
    takes a result that has its own answer. Raises RuntimeError after `seconds`, and PeerEnded where one of
    them says that it ends.
    """
    limit, own = time.monotonic() + seconds, secrets.token_hex(8)

    def wait(*keys: str) -> None:
        while keys and not store.check([*keys]):
            pause(f"{keys[0]} is missing")

    def pause(why: str) -> None:
        if store.check([ENDED]):
            said = json.loads(get(ENDED))
            store.add(TOLD, 1)
            if index == 0:
                # The one that has ended may have been killed before it could.
                await_end(store, Timeouts.refusal)
                store.delete_key(ENDED)
                store.delete_key(TOLD)
            raise PeerEnded(*said)
        if time.monotonic() > limit:
            raise RuntimeError(why)
        time.sleep(POLL_INTERVAL)

    def get(key: str) -> str:
        return store.get(key).decode("utf-8", "replace")

    if index == 0:
        store.set("call", own)
        answers = [f"answer/{own}/{other}" for other in range(1, count)]
        wait(*answers)
        store.set(f"result/{own}", json.dumps([[own, content], *(json.loads(get(key)) for key in answers)]))
    wait("call")
    while True:
        call = get("call")
        if index:
            store.set(f"answer/{call}/{index}", json.dumps([own, content]))
        # Another call may have taken its place meanwhile: the first process was started again.
        while not store.check([f"result/{call}"]) and get("call") == call:
            pause(f"no result of {count} processes")
        if store.check([f"result/{call}"]):
            result = json.loads(get(f"result/{call}"))
            if result[index][0] == own:
                return [said for _, said in result], call
        pause(f"no result of {count} processes that has this one")


def end_all(store: Store, count: int, said: Sequence[object], seconds: float) -> None:
    """Ends the waiting of all in `gathered`; waits for those to come, for so many seconds.

    `said`: the arguments of the PeerEnded that they raise. Afterwards the store is as it was before: others
    may start again with it.
    """
    limit = time.monotonic() + seconds
    if store.check([ENDED]):
        store.add(TOLD, 1)
    else:
        store.set(ENDED, json.dumps([*said]))
        while store.add(TOLD, 0) < count - 1 and time.monotonic() < limit:
            time.sleep(POLL_INTERVAL)
        store.delete_key(ENDED)
        store.delete_key(TOLD)


def await_end(store: Store, seconds: float) -> None:
    """Waits, in the process that serves the store, until all that come have read what another one said."""
    limit = time.monotonic() + seconds
    while store.check([ENDED]) and time.monotonic() < limit:
        time.sleep(POLL_INTERVAL)


def absent(store: Store, count: int) -> list[int]:
    """Returns the processes that have not answered the present call; the first one if there is no call."""
    try:
        if not store.check(["call"]):
            return [0]
        call = store.get("call").decode()
        return [other for other in range(1, count) if not store.check([f"answer/{call}/{other}"])]
    except RuntimeError:
        return [0]


def part(store: Store, readers: int, waits: bool, seconds: float) -> None:
    """Counts those that have read; the process with the store `waits` for all of them, and exits last."""
    limit = time.monotonic() + seconds
    done = store.add("parted", 1)
    while waits and done < readers and time.monotonic() < limit:
        time.sleep(POLL_INTERVAL)
        done = store.add("parted", 0)
