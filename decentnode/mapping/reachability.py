"""Why this machine cannot reach another one, found by trying to connect."""

import socket
import time

from decentnode.mapping.base import resolve_names

RETRY_INTERVAL = 0.2
UNKNOWN = "no address is known for this name"
REFUSED = "the machine answers, but no process listens at this port"
SILENT = "nothing answers there; a packet filter may drop what is sent"


def why_unreachable(address: str, port: int, seconds: float) -> str:
    """Tries to connect for that long; returns why the last try failed, or an empty text: one succeeded.

    A name may not be known yet, and a port not be open yet, while machines start.
    """
    limit, why = time.monotonic() + seconds, "no time is left"
    while (left := limit - time.monotonic()) > 0:
        known = resolve_names([address], left)[address]
        why = why if known else UNKNOWN
        for ip in known:
            try:
                socket.create_connection((ip, port), timeout=max(0.1, limit - time.monotonic())).close()
                return ""
            except TimeoutError:
                why = SILENT
            except ConnectionRefusedError:
                why = REFUSED
            except OSError as error:
                over = "IPv6" if ":" in ip else "IPv4"
                why = f"there is no way to it from here over {over}: {error.strerror or error}"
        time.sleep(min(RETRY_INTERVAL, max(0.0, limit - time.monotonic())))
    return why
