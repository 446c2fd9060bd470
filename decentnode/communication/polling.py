"""When a ZeroMQ socket has something to read."""

import zmq


def descriptor(socket: "zmq.Socket[bytes]") -> int:
    """What to watch for a socket; it becomes readable only after a read that found nothing."""
    return int(socket.getsockopt(zmq.FD))


def has_input(socket: "zmq.Socket[bytes]") -> bool:
    """Whether a read would find something."""
    return bool(int(socket.getsockopt(zmq.EVENTS)) & zmq.POLLIN)
