"""All nodes in one process and in virtual time, behind a modelled network.

Threads: as in `inproc`, nothing runs beside the nodes. What is sent is delivered by a timer of the loop.
"""

import asyncio
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from typing import Annotated, cast

import numpy as np
from annotated_types import Ge, Lt

from decentnode.communication.base import BufferSpec, Communication, ProcessDirectory, TransportPlan
from decentnode.communication.peers.peers import PeersByRank
from decentnode.communication.simulated_links import SimulatedEndpoint, SimulatedLinks
from decentnode.communication.simulated_processes import OtherProcesses, least_latency
from decentnode.core.registry import COMMUNICATIONS, name_of
from decentnode.core.rng import generator
from decentnode.errors import BadInput
from decentnode.options import Positive, option
from decentnode.simulation.clock import VirtualClock
from decentnode.simulation.delivery_log import DeliveryLog
from decentnode.simulation.fair import MOST_FLOWS
from decentnode.simulation.loop import VirtualLoop
from decentnode.simulation.network import Model, Network
from decentnode.simulation.quantities import (
    RATES,
    TIMES,
    Distribution,
    Edges,
    PerPair,
    PerRank,
    Regions,
    in_unit,
    numbers_of,
)
from decentnode.simulation.tcp import TCP, TcpModel


@COMMUNICATIONS.register("simulated", "simulation", "simulator")
@dataclass
class Simulated(Communication):
    """Virtual time behind a modelled network, after SimGrid (Casanova et al., 2014); models as with `inproc`.

    Times are seconds or texts such as `20 ms`, rates bits per second or texts such as `10 Mbit/s`; one for
    all, one for each rank, a distribution, or a file.
    """

    latency: PerPair = option(0.0, changes="results", timing=True)
    """The time from one node to another; a file has a matrix, `{table: azure}` data centers, `{edges: ...}`
    single edges."""
    uplink: PerRank | None = option(None, changes="results", timing=True)
    """The rate at which a node sends; null: infinite."""
    downlink: PerRank | None = option(None, changes="results", timing=True)
    """The rate at which a node receives; null: infinite."""
    bandwidth: PerPair | None = option(None, changes="results", timing=True)
    """The rate from one node to another, a limit in addition to uplink and downlink; null: infinite."""
    jitter: Annotated[float, Ge(0)] | str = option(0.0, changes="results", timing=True)
    """The mean of an exponential time that is added to each latency."""
    loss: Annotated[float, Ge(0), Lt(1)] = option(0.0, changes="results", timing=True)
    """The probability that a transmission is lost; it is repeated after a round trip."""
    network_model: Model = option("fair", changes="results", timing=True)
    """fair: links are shared max-min fairly, as in SimGrid. queue: first in, first out at uplink and
    downlink, in less processor time. delay: links are not shared."""
    tcp: TcpModel | None = option(None, changes="results", timing=True)
    """What TCP makes of latencies and rates, as SimGrid's models CM02 and LV08 have it; null: nothing."""
    seed: int = option(0, changes="results", timing=True)
    """Of distributions, jitter and losses; null: that of the run."""
    delivery_log: bool = option(False, changes="results")
    """Whether each delivered message has a line in `network.csv`, in the directory of the run."""
    nodes_per_process: Positive | None = option(None, changes="results")
    """The most nodes in one host process, so that a machine's processors share the work; null: all of them.
    The latency between nodes of different processes must not be 0, and nothing else may delay messages."""
    _peers: PeersByRank = field(default_factory=PeersByRank, init=False, repr=False)
    _clock: VirtualClock = field(default_factory=VirtualClock, init=False, repr=False)
    _links: SimulatedLinks | None = field(default=None, init=False, repr=False)
    _log_directory: Path | None = field(default=None, init=False, repr=False)
    _others: OtherProcesses | None = field(default=None, init=False, repr=False)
    """Where the nodes are in several processes."""

    def __post_init__(self) -> None:
        # Nodes are not known yet; what can be checked without them is.
        for key, quantity, units in self._quantities():
            is_file = isinstance(quantity, str) and Path(quantity).is_file()
            if isinstance(quantity, str | int | float) and not is_file:
                numbers_of(quantity, units, 1, key, seed=0)
        try:
            in_unit(self.jitter, TIMES)
        except ValueError as error:
            raise BadInput.at("jitter", str(error)) from None

    @property
    def plan(self) -> TransportPlan:
        return TransportPlan(
            one_machine=True,
            nodes_per_process=self.nodes_per_process,
            has_messages=True,
            has_virtual_time=True,
        )

    @property
    def network_text(self) -> str:
        """The modelled network, as the first line of a run names it."""

        def shown(quantity: object, unit: str) -> str:
            if isinstance(quantity, Distribution):
                return name_of(quantity)
            if isinstance(quantity, Regions):
                return f"of {len(quantity.regions or quantity.times)} regions ({quantity.table})"
            if isinstance(quantity, Edges):
                return "by edge"
            if isinstance(quantity, tuple):
                return "by rank"
            return f"{quantity:g} {unit}" if isinstance(quantity, int | float) else str(quantity)

        parts = [f"network {self.network_model}", f"latency {shown(self.latency, 's')}"]
        parts += [f"uplink {shown(self.uplink, 'bit/s')}"] if self.uplink is not None else []
        parts += [f"downlink {shown(self.downlink, 'bit/s')}"] if self.downlink is not None else []
        parts += [f"bandwidth {shown(self.bandwidth, 'bit/s')}"] if self.bandwidth is not None else []
        parts += [f"tcp {self.tcp}"] if self.tcp is not None else []
        parts += [f"jitter {shown(self.jitter, 's')}"] if self.jitter else []
        parts += [f"loss {self.loss:g}"] if self.loss else []
        return ", ".join(parts)

    @property
    def most_flows(self) -> int | None:
        limits = (self.uplink, self.downlink, self.bandwidth, self.tcp)
        is_limited = any(limit is not None for limit in limits)
        return MOST_FLOWS if self.network_model == "fair" and is_limited else None

    def check_nodes(self, nodes: int) -> None:
        network, most = self.network_of(nodes), self.nodes_per_process or nodes
        if most >= nodes:
            return
        options = {
            "uplink": self.uplink, "downlink": self.downlink, "bandwidth": self.bandwidth,
            "jitter": network.jitter, "loss": self.loss, "tcp": self.tcp, "delivery_log": self.delivery_log,
        }  # fmt: skip
        if given := [name for name, value in options.items() if value]:
            what = (
                f"a message takes its latency alone between processes; leave out {', '.join(given)}, or this"
            )
            raise BadInput.at("nodes_per_process", what)
        groups = [range(first, min(first + most, nodes)) for first in range(0, nodes, most)]
        if not least_latency(network, groups):
            what = "is 0 between nodes of different processes (nodes_per_process), which must take some time"
            raise BadInput.at("latency", f"{what}; write it like 20 ms")

    def network_of(self, nodes: int) -> Network:
        """Returns the network of so many nodes; raises BadInput where an option does not fit them."""
        seed, unlimited = self.seed, np.full(nodes, inf)
        rates = {
            key: unlimited if quantity is None else numbers_of(quantity, RATES, nodes, key, seed=seed)
            for key, quantity in (("uplink", self.uplink), ("downlink", self.downlink))
        }
        bandwidth = None
        zeros = {key: nodes - np.count_nonzero(values) for key, values in rates.items()}
        if self.bandwidth is not None:
            bandwidth = numbers_of(self.bandwidth, RATES, nodes, "bandwidth", seed=seed, pairs=True)
            # A node does not send to itself: its own place in a matrix may be 0.
            own = nodes - np.count_nonzero(bandwidth.diagonal())
            zeros["bandwidth"] = bandwidth.size - np.count_nonzero(bandwidth) - own
        for key, number in zeros.items():
            if number:
                raise BadInput.at(key, "a rate is 0; leave the option out for links without a limit")
        return Network(
            self.network_model,
            numbers_of(self.latency, TIMES, nodes, "latency", seed=seed, pairs=True),
            rates["uplink"],
            rates["downlink"],
            jitter=in_unit(self.jitter, TIMES),
            loss=self.loss,
            random=generator(seed, "network"),
            bandwidth=bandwidth,
            tcp=TCP[self.tcp] if self.tcp else None,
        )

    def regions_of(self, nodes: int) -> list[str]:
        """Returns the region of each rank; empty where the nodes have none."""
        quantities = (quantity for _, quantity, _ in self._quantities())
        regions = next((quantity for quantity in quantities if isinstance(quantity, Regions)), None)
        return [] if regions is None else regions.of_ranks(nodes)

    def prepare(self, directory: ProcessDirectory, most_bytes: int) -> None:
        self._clock = cast(VirtualClock, directory.clock)
        self._log_directory = directory.run_directory if self.delivery_log else None
        network = self.network_of(sum(len(process.ranks) for process in directory.processes))
        self._links = SimulatedLinks(
            self._peers, network, self._clock, directory.outages, grace=directory.grace
        )
        if len(directory.processes) > 1:
            self._others = OtherProcesses(directory, self._peers, network, self._clock)

    def endpoint(self, rank: int, buffer_spec: BufferSpec) -> SimulatedEndpoint:
        assert self._links is not None, "prepared before it has endpoints"
        return SimulatedEndpoint(rank, buffer_spec, self._peers, self._links, self._others, clock=self._clock)

    def open(self, peers: Sequence[int], run_id: int, timeout: float, absent: Collection[int] = ()) -> None:
        if self._others is not None:
            self._others.open(timeout)
        # Not before: a resumed run begins at the time of its checkpoints.
        if self._log_directory is not None:
            assert self._links is not None, "prepared before it opens"
            self._links.delivery_log = DeliveryLog(self._log_directory, self._clock)

    def enter_loop(self) -> None:
        assert self._links is not None, "prepared before it begins"
        self._links.begin()
        if self._others is not None:
            loop = cast(VirtualLoop, asyncio.get_running_loop())
            self._others.enter(loop)
            loop.join(self._others)

    def close(self, timeout: float) -> None:
        if self._links is not None and self._links.delivery_log is not None:
            self._links.delivery_log.close()
        if self._others is not None:
            self._others.close()
        self._peers.clear()

    def _quantities(self) -> list[tuple[str, PerPair | None, dict[str, float]]]:
        return [
            ("latency", self.latency, TIMES),
            ("uplink", self.uplink, RATES),
            ("downlink", self.downlink, RATES),
            ("bandwidth", self.bandwidth, RATES),
        ]
