"""torch's stores: small servers of keys and values over TCP, through which processes find each other."""

import socket
import time
from datetime import timedelta

from torch.distributed import Store, TCPStore  # type: ignore[attr-defined]

from decentnode.core.text import first_line
from decentnode.errors import StartError

POLL_INTERVAL = 0.05


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
    limit = timedelta(seconds=seconds)
    try:
        return TCPStore(address, port, None, serves, limit, wait_for_workers=False, multi_tenant=serves)
    except (OSError, RuntimeError) as error:
        why = first_line(error)[:200]
        raise StartError(f"no store answers at {address}, port {port}: {why}") from error


def part(store: Store, readers: int, waits: bool, seconds: float) -> None:
    """Counts those that have read; the process with the store `waits` for all of them, and exits last."""
    limit = time.monotonic() + seconds
    done = store.add("parted", 1)
    while waits and done < readers and time.monotonic() < limit:
        time.sleep(POLL_INTERVAL)
        done = store.add("parted", 0)
