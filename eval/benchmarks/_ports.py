"""TCP ports that nobody uses."""

import random
import socket


def free_ports(count: int) -> int:
    """The first of `count` free TCP ports in a row, below those that the kernel gives out by itself."""
    for _ in range(100):
        first = random.randrange(20_000, 32_000)
        try:
            for port in range(first, first + count):
                with socket.create_server(("127.0.0.1", port)):
                    pass
        except OSError:
            continue
        return first
    raise RuntimeError(f"no {count} free TCP ports in a row")
