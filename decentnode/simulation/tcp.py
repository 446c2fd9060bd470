"""What TCP makes of latency and rate, as two of SimGrid's models have it.

CM02: H. Casanova and L. Marchal, A Network Model for Simulation of Grid Application (LIP RR-2002-40, 2002).
LV08: P. Velho and A. Legrand, Accuracy Study and Improvement of Network Simulation in the SimGrid Framework
(SIMUTools 2009). The numbers are those of SimGrid's `network_cm02.cpp`.
"""

from dataclasses import dataclass
from math import inf
from typing import Literal

TcpModel = Literal["cm02", "lv08"]
BITS = 8


@dataclass(frozen=True)
class Tcp:
    """Factors of latency and rate, the bound of the window, and the weights of flows that share a link."""

    latency_factor: float = 1.0
    """Slow start: a message waits for several round trips until the window is open."""
    bandwidth_factor: float = 1.0
    """The share of a rate that headers leave."""
    cross_traffic: float = 0.0
    """The rate of acknowledgments on the way back, for a rate of 1."""
    window: float = 4194304.0
    """Bytes that are on the way at most, without an acknowledgment (SimGrid's TCP-gamma)."""
    shared_bytes: float = 0.0
    """Bytes whose transfer over each of its links counts as round trip of a flow (SimGrid's weight-S)."""

    def window_rate(self, latency: float) -> float:
        """Returns the bits per second that a window in each round trip allows."""
        return self.bandwidth_factor * BITS * self.window / (2 * latency) if latency > 0 else inf

    def weight(self, latency: float, *rates: float) -> float:
        """Returns the share of a flow on a full link: the inverse of its round trip.

        `rates`: of the links on its way. Without a latency it is 1, as in SimGrid, whatever the rates.
        """
        if latency == 0.0:
            return 1.0
        return 1.0 / (latency + BITS * self.shared_bytes * sum(1 / rate for rate in rates))


TCP: dict[TcpModel, Tcp] = {
    "cm02": Tcp(),
    "lv08": Tcp(latency_factor=13.01, bandwidth_factor=0.97, cross_traffic=0.05, shared_bytes=20537.0),
}
