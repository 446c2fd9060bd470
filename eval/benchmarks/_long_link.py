"""A long link between two network namespaces: rate, delay and random loss, as a wide area network has them.

    west: eth0 -- middle: w --> TUN `east` (tbf: rate, queue; relay: delay; nft: loss) --> e -- east: eth0

and the same way back through the TUN device `west`. `tc netem` would do that alone, but not every kernel has
it. Needs the rights to make namespaces, and `ip`, `tc`, `nft` and `cc`.
"""

import json
import os
import subprocess
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

WEST, MIDDLE, EAST = (f"dn-long-{os.getpid()}-{name}" for name in ("west", "middle", "east"))
ADDRESSES = ("10.79.1.2", "10.79.2.2")
BURST_SECONDS = 0.016
"""What may leave at once: the timers of a busy machine are late by milliseconds."""
QUEUE_SECONDS = 0.1
"""What the router's queue holds at least: a tenth of a second, whatever the round trip."""


@dataclass(frozen=True)
class LongLink:
    """What one direction does to packets."""

    rate: float
    """Bits per second, headers of IP included."""
    delay: float
    """Seconds from one end to the other."""
    loss: float
    """The share of packets that are lost at random, beside those that the full queue drops."""
    congestion: str
    """The congestion control of TCP at both ends."""


def ip(*words: str, tool: str = "ip") -> str:
    """Runs `ip` or another tool; raises RuntimeError with what it says."""
    done = subprocess.run([tool, *words], capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{tool} {' '.join(words)}: {done.stderr.strip()[:500]}")
    return done.stdout


def inside(namespace: str, *words: str) -> list[str]:
    """The command that runs in a namespace."""
    return ["ip", "netns", "exec", namespace, *words]


class LaidLink:
    """The namespaces of a link, in a `with` block."""

    def __init__(self, link: LongLink) -> None:
        self._link = link
        self._relays: list[subprocess.Popen[bytes]] = []
        self._folder = tempfile.TemporaryDirectory(prefix="dn-")

    def __enter__(self) -> "LaidLink":
        try:
            self._lay()
        except BaseException:
            self.__exit__()
            raise
        return self

    def _lay(self) -> None:
        link = self._link
        for name in (WEST, MIDDLE, EAST):
            ip("netns", "add", name)
            ip("-n", name, "link", "set", "lo", "up")
        for end, peer, address in ((WEST, "w", ADDRESSES[0]), (EAST, "e", ADDRESSES[1])):
            router = address[:-1] + "1"
            ip("link", "add", "eth0", "netns", end, "type", "veth", "peer", "name", peer, "netns", MIDDLE)
            # One packet is what the wire carries: no larger one may pass the queue as if it were one.
            ip("-n", end, "link", "set", "eth0", "gso_max_segs", "1", "up")
            ip("-n", end, "address", "add", f"{address}/24", "dev", "eth0")
            # By the route: in a namespace the setting of the whole stack may allow the default alone.
            ip("-n", end, "route", "add", "default", "via", router, "congctl", link.congestion)
            ip("-n", MIDDLE, "link", "set", peer, "up")
            ip("-n", MIDDLE, "address", "add", f"{router}/24", "dev", peer)
        off = ("net.ipv4.ip_forward=1", "net.ipv4.conf.all.rp_filter=0", "net.ipv4.conf.default.rp_filter=0")
        ip(*inside(MIDDLE, "sysctl", "-qw", *off, "net.ipv4.conf.all.send_redirects=0")[1:])
        self._start_relays()
        queue = round(link.rate / 8 * max(QUEUE_SECONDS, 2 * link.delay))
        for table, entry, device in ((101, "w", "east"), (102, "e", "west")):
            ip("-n", MIDDLE, "link", "set", device, "up")
            ip(*inside(MIDDLE, "sysctl", "-qw", f"net.ipv4.conf.{device}.rp_filter=0")[1:])
            ip("-n", MIDDLE, "route", "add", "default", "dev", device, "table", str(table))
            ip("-n", MIDDLE, "rule", "add", "iif", entry, "lookup", str(table), "pref", str(table))
            rate = (
                f"{link.rate:.0f}bit",
                "burst",
                str(max(16_000, round(link.rate / 8 * BURST_SECONDS))),
                "limit",
                str(queue),
            )
            ip("-n", MIDDLE, "qdisc", "add", "dev", device, "root", "tbf", "rate", *rate, tool="tc")
        if link.loss:
            lose = f'iifname {{ "east", "west" }} numgen random mod 1000000 < {round(1e6 * link.loss)}'
            chain = "add chain ip long lose { type filter hook forward priority 0; }"
            rules = f"add table ip long\n{chain}\nadd rule ip long lose {lose} counter drop\n"
            subprocess.run(inside(MIDDLE, "nft", "-f", "-"), input=rules, text=True, check=True)

    def _start_relays(self) -> None:
        program = str(Path(self._folder.name) / "relay")
        ip("-O2", "-o", program, str(Path(__file__).with_name("_relay.c")), tool="cc")
        for device in ("east", "west"):
            command = inside(MIDDLE, program, str(round(1e6 * self._link.delay)), device)
            relay = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
            self._relays.append(relay)
            assert relay.stdout is not None
            if relay.stdout.readline() != b"ready\n":
                raise RuntimeError(f"the relay of {device} did not start")

    def dropped(self) -> tuple[int, int]:
        """The packets that were lost at random, and those that the queues dropped."""
        listed = json.loads(ip(*inside(MIDDLE, "nft", "-j", "list", "table", "ip", "long")[1:]))
        rules = [entry["rule"]["expr"] for entry in listed["nftables"] if "rule" in entry]
        lost = sum(part["counter"]["packets"] for rule in rules for part in rule if "counter" in part)
        queues = json.loads(ip("-n", MIDDLE, "-s", "-j", "qdisc", "show", tool="tc"))
        return lost, sum(queue["drops"] for queue in queues if queue["kind"] == "tbf")

    def __exit__(self, *_: object) -> None:
        for relay in self._relays:
            assert relay.stdin is not None
            relay.stdin.close()
            relay.wait(10)
        for name in (WEST, MIDDLE, EAST):
            with suppress(RuntimeError):
                ip("netns", "del", name)
        self._folder.cleanup()
