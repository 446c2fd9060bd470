"""One network namespace for each node, with an uplink and a downlink, and a relay in the middle.

    node i: eth0 --(htb: uplink)--> hub: n<i> --> relay (latency) --> n<j> --(htb: downlink)--> node j: eth0

Only addresses 10.78.*.* are used, which exist in these namespaces alone. Needs the rights to make them.
"""

import ctypes
import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np

HUB = "decentnode-hub"
TABLE = "78"
CLONE_NEWNET = 0x40000000
NODE_PORT = 29600
"""communication.base_port: what goes to or comes from it is limited, but not what launchers send."""
FREE_PORT = 7000
CONGESTION = "cubic"
"""The congestion control of TCP: the default of Linux, whatever this machine has."""


def name_of(rank: int) -> str:
    return f"decentnode-node-{rank}"


def address_of(rank: int) -> str:
    return f"10.78.{rank}.2"


def batch(command: str, lines: list[str], *options: str) -> None:
    """Runs lines of `ip` or `tc` in one process; raises RuntimeError with what it says."""
    done = subprocess.run(
        [command, *options, "-batch", "-"], input="\n".join(lines), capture_output=True, text=True
    )
    if done.returncode:
        raise RuntimeError(f"{command}: {done.stderr.strip()[:500]}")


class Links:
    """The namespaces of so many nodes, until `remove`."""

    def __init__(self, nodes: int, latency: Path) -> None:
        """`latency`: a file with a matrix of seconds, line i from rank i."""
        self.nodes = nodes
        remove_all()
        names = [name_of(rank) for rank in range(nodes)]
        batch("ip", [f"netns add {name}" for name in [HUB, *names]])
        batch(
            "ip",
            [
                f"link add eth0 netns {name} type veth peer name n{rank} netns {HUB}"
                for rank, name in enumerate(names)
            ],
        )
        hub = ["link set lo up"]
        for rank, name in enumerate(names):
            batch("ip", [
                f"address add {address_of(rank)}/24 dev eth0", "link set eth0 up", "link set lo up",
                f"route add default via 10.78.{rank}.1 congctl {CONGESTION}",
            ], "-n", name)  # fmt: skip
            hub += [f"address add 10.78.{rank}.1/24 dev n{rank}", f"link set n{rank} up"]
        batch("ip", hub, "-n", HUB)
        self._sysctl(
            HUB,
            "net.ipv4.ip_forward=1",
            "net.ipv4.conf.all.rp_filter=0",
            "net.ipv4.conf.all.send_redirects=0",
        )
        relay = Path(__file__).with_name("_relay.py")
        self.relay = subprocess.Popen(
            ["ip", "netns", "exec", HUB, sys.executable, str(relay), "relay", str(latency)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip
        assert self.relay.stdout is not None
        if self.relay.stdout.readline() != b"ready\n":
            raise RuntimeError("the relay did not start")
        self._sysctl(HUB, "net.ipv4.conf.relay.rp_filter=0")
        # What comes from the relay goes to its node, everything else to the relay.
        batch("ip", [
            "link set relay txqueuelen 10000", "link set relay up",
            f"route add default dev relay table {TABLE}",
            "rule add iif relay lookup main pref 100", f"rule add lookup {TABLE} pref 200",
        ], "-n", HUB)  # fmt: skip

    @staticmethod
    def _sysctl(name: str, *settings: str) -> None:
        subprocess.run(["ip", "netns", "exec", name, "sysctl", "-qw", *settings], check=True)

    def limit(self, uplink: float, downlink: float) -> None:
        """Limits the rates of what nodes send each other, in bits per second of Ethernet frames."""
        for rank in range(self.nodes):
            batch("tc", _limits("eth0", uplink), "-n", name_of(rank))
        batch("tc", [line for i in range(self.nodes) for line in _limits(f"n{i}", downlink)], "-n", HUB)

    def carried(self) -> tuple[int, int]:
        """Returns the bytes of Ethernet frames that the downlinks have carried, and the packets dropped."""
        lines = "".join(f"class show dev n{rank} classid 1:2\n" for rank in range(self.nodes))
        shown = subprocess.run(
            ["tc", "-n", HUB, "-s", "-batch", "-"], input=lines, capture_output=True, text=True, check=True
        )
        counts = re.findall(r"class htb 1:2 .*\n Sent (\d+) bytes \d+ pkt \(dropped (\d+)", shown.stdout)
        assert len(counts) == self.nodes, shown.stdout[:500]
        return sum(int(sent) for sent, _ in counts), sum(int(dropped) for _, dropped in counts)

    def relayed(self) -> tuple[int, float]:
        """Returns the packets so far, and the greatest lateness since the last call in seconds."""
        assert self.relay.stdin is not None and self.relay.stdout is not None
        self.relay.stdin.write(b"?")
        self.relay.stdin.flush()
        count, latest = self.relay.stdout.readline().split()
        return int(count), float(latest)

    def remove(self) -> None:
        assert self.relay.stdin is not None
        with suppress(BrokenPipeError):
            self.relay.stdin.close()
        self.relay.wait(10)
        remove_all()


def remove_all() -> None:
    """Takes away all namespaces of this script, also those that an earlier one has left."""
    listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True).stdout
    for name in (line.split()[0] for line in listed.splitlines() if line):
        if name == HUB or name.startswith("decentnode-node-"):
            subprocess.run(["ip", "netns", "del", name], check=True)


def _limits(device: str, rate: float) -> list[str]:
    """Lines of `tc` that send what goes to or comes from the port of a node through one queue."""
    # Little is sent at once: it would not be limited.
    burst = max(1600, int(rate / 8 / 500))
    rate_and_burst = f"rate {rate:.0f}bit burst {burst} cburst {burst} quantum 1514"
    return [
        f"qdisc add dev {device} root handle 1: htb default 1",
        f"class add dev {device} parent 1: classid 1:1 htb rate 10gbit quantum 60000",
        f"class add dev {device} parent 1: classid 1:2 htb {rate_and_burst}",
        f"qdisc add dev {device} parent 1:2 bfifo limit 8000000",
        *(
            f"filter add dev {device} parent 1: protocol ip u32 match ip {end} {NODE_PORT} 0xffff flowid 1:2"
            for end in ("sport", "dport")
        ),
    ]


@contextmanager
def inside(rank: int) -> Iterator[None]:
    """Makes the sockets of this thread in the namespace of a rank."""
    libc = ctypes.CDLL(None, use_errno=True)
    with Path("/proc/thread-self/ns/net").open() as own, Path("/run/netns", name_of(rank)).open() as other:
        if libc.setns(other.fileno(), CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), f"network namespace {name_of(rank)} cannot be entered")
        try:
            yield
        finally:
            libc.setns(own.fileno(), CLONE_NEWNET)


def round_trips(count: int = 200, pause: float = 0.005) -> np.ndarray:
    """Returns seconds until small datagrams of rank 0 come back from rank 1."""
    with inside(1):
        echo = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        echo.bind((address_of(1), FREE_PORT))
    with inside(0):
        asking = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        asking.bind((address_of(0), FREE_PORT))
    times = []
    with echo, asking:
        for end in (echo, asking):
            end.settimeout(5.0)
        # The first one finds the addresses of the links.
        for _ in range(count + 1):
            began = time.monotonic()
            asking.sendto(b"?", (address_of(1), FREE_PORT))
            echo.sendto(*echo.recvfrom(16))
            asking.recv(16)
            times.append(time.monotonic() - began)
            time.sleep(pause)
    return np.array(times[1:])


def transfer(size: int, port: int) -> float:
    """Returns seconds until a new connection of rank 0 has carried so many bytes to rank 1."""
    with inside(1):
        listener = socket.create_server((address_of(1), port))
    with inside(0):
        sender = socket.create_connection((address_of(1), port), timeout=60.0)
    receiver, _ = listener.accept()
    with listener, sender, receiver:
        receiver.settimeout(60.0)
        began = time.monotonic()
        if os.fork() == 0:
            sender.sendall(bytes(size))
            os._exit(0)
        left = size
        while left:
            left -= len(receiver.recv(1 << 16))
        seconds = time.monotonic() - began
        os.wait()
    return seconds
