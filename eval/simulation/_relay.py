"""Delays the packets between network namespaces: what this kernel lacks of `tc netem`.

Runs in the namespace in the middle, which routes every packet to the interface that this process makes. It
returns each one to the same interface when the latency of its pair of ranks has passed; rank i has the
addresses 10.78.i.*. Packets of a pair keep their order. It ends when its standard input does.

    ip netns exec NAMESPACE python _relay.py INTERFACE MATRIX
"""

import fcntl
import heapq
import os
import select
import struct
import sys
import time

import numpy as np

TUNSETIFF, IFF_TUN, IFF_NO_PI = 0x400454CA, 0x0001, 0x1000
"""linux/if_tun.h"""
MOST_BYTES = 1 << 16
SOURCE, TARGET = 14, 18
"""Bytes of an IPv4 header that have the rank: the third of each address."""


def main() -> None:
    interface, path = sys.argv[1:]
    latency = np.loadtxt(path, ndmin=2).tolist()
    tun = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(tun, TUNSETIFF, struct.pack("16sH", interface.encode(), IFF_TUN | IFF_NO_PI))
    # It stands for a wire, so no training node may keep it waiting.
    os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    print("ready", flush=True)
    waiting: list[tuple[float, int, bytes]] = []
    count, latest = 0, 0.0
    while True:
        timeout = max(0.0, waiting[0][0] - time.monotonic()) if waiting else None
        readable, _, _ = select.select([tun, 0], [], [], timeout)
        now = time.monotonic()
        if tun in readable:
            # Not all at once: what is due must leave.
            for _ in range(32):
                try:
                    packet = os.read(tun, MOST_BYTES)
                except BlockingIOError:
                    break
                if packet[0] >> 4 == 4:
                    heapq.heappush(waiting, (now + latency[packet[SOURCE]][packet[TARGET]], count, packet))
                    count += 1
        while waiting and waiting[0][0] <= now:
            due, _, packet = heapq.heappop(waiting)
            latest = max(latest, now - due)
            os.write(tun, packet)
        if 0 in readable:
            print(count, latest, flush=True)
            if not os.read(0, 1):
                return
            latest = 0.0


if __name__ == "__main__":
    main()
