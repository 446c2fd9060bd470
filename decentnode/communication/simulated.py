"""All nodes in one process and in virtual time, behind a modelled network.

Threads: as in `inproc`, nothing runs beside the nodes. What is sent is delivered by a timer of the loop.
"""

import asyncio
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import inf
from pathlib import Path
from typing import Annotated, cast

import numpy as np
from annotated_types import Ge, Lt

from decentnode.communication.base import BufferSpec, Communication, ProcessDirectory, TransportPlan
from decentnode.communication.exchange.handle import Key, Message
from decentnode.communication.inproc import WithinProcess
from decentnode.communication.peers.peer import Peer
from decentnode.communication.peers.peers import Peers
from decentnode.communication.routes import Route, RoutedEndpoint
from decentnode.core.byte_counters import HEADER_BYTES
from decentnode.core.payload import Payload
from decentnode.core.registry import COMMUNICATIONS
from decentnode.core.rng import generator
from decentnode.errors import BadInput
from decentnode.simulation.clock import VirtualClock
from decentnode.simulation.delivery_log import DeliveryLog
from decentnode.simulation.loop import VirtualLoop
from decentnode.simulation.network import Model, Network
from decentnode.simulation.quantities import (
    RATES,
    TIMES,
    Distribution,
    PerPair,
    PerRank,
    Regions,
    in_unit,
    numbers_of,
)


class SimulatedLinks(Route):
    """Hands payloads over as `inproc` does, when the network has carried their bytes."""

    delivery_log: DeliveryLog | None = None
    """Where deliveries are written, if they are."""

    def __init__(self, rank: int, peers: dict[int, Peers], network: Network, clock: VirtualClock) -> None:
        self._rank = rank
        self._within = WithinProcess(rank, peers)
        self._network = network
        self._clock = clock

    def carried(self, payload: Payload, targets: list[int]) -> list[int]:
        return self._within.carried(payload, targets)

    def send(self, payload: Payload, targets: list[int], key: Key, seq: int) -> None:
        for target in targets:
            self._carry(payload, target, partial(self._within.send, payload, [target], key, seq))

    def send_single(self, target: int, payload: Payload, window: int, tag: int, number: int) -> bool:
        if not self._within.carried(payload, [target]):
            return False
        self._carry(payload, target, partial(self._within.send_single, target, payload, window, tag, number))
        return True

    def _carry(self, payload: Payload, target: int, deliver: Callable[[], object]) -> None:
        loop = cast(VirtualLoop, asyncio.get_running_loop())
        size = payload.nbytes + HEADER_BYTES
        if self.delivery_log is not None:
            deliver = self.delivery_log.logged(self._rank, target, size, deliver)
        self._network.send(loop, self._clock.nanoseconds, self._rank, target, size, deliver)

    def acknowledge(self, source: int, message: Message) -> bool:
        return self._within.acknowledge(source, message)

    def invalidate(self, peer: int, seq: int) -> None:
        self._within.invalidate(peer, seq)

    def introduce(self, peer: Peer) -> None:
        self._within.introduce(peer)

    def leave(self, failed: bool) -> None:
        self._within.leave(failed)


@COMMUNICATIONS.register("simulated")
@dataclass
class Simulated(Communication):
    """Virtual time behind a modelled network, after SimGrid (Casanova et al., 2014); models as with `inproc`.

    Times are seconds or texts such as `20 ms`, rates bits per second or texts such as `10 Mbit/s`; one for
    all, one for each rank, a distribution, or a file.
    """

    latency: PerPair = 0.0
    """The time from one node to another; a file has a matrix, and `{table: azure}` data centers."""
    uplink: PerRank | None = None
    """The rate at which a node sends; null: infinite."""
    downlink: PerRank | None = None
    """The rate at which a node receives; null: infinite."""
    jitter: Annotated[float, Ge(0)] | str = 0.0
    """The mean of an exponential time that is added to each latency."""
    loss: Annotated[float, Ge(0), Lt(1)] = 0.0
    """The probability that a transmission is lost; it is repeated after a round trip."""
    network_model: Model = "queue"
    """delay: messages do not share links. queue: first in, first out at uplink and downlink."""
    seed: int | None = None
    """Of distributions, jitter and losses; null: that of the run."""
    delivery_log: bool = False
    """Whether each delivered message has a line in `network.csv`, in the directory of the run."""
    _peers: dict[int, Peers] = field(default_factory=dict, init=False, repr=False)
    _clock: VirtualClock = field(default_factory=VirtualClock, init=False, repr=False)
    _network: Network | None = field(default=None, init=False, repr=False)
    _routes: list[SimulatedLinks] = field(default_factory=list, init=False, repr=False)
    _log_directory: Path | None = field(default=None, init=False, repr=False)

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
        return TransportPlan(one_process=True, has_messages=True, simulation=self._in_words())

    def _in_words(self) -> str:
        """Returns the network as the first line of a run names it."""

        def shown(quantity: object, unit: str) -> str:
            if isinstance(quantity, Distribution):
                return quantity.distribution
            if isinstance(quantity, Regions):
                return f"of {len(quantity.regions or quantity.times)} regions ({quantity.table})"
            if isinstance(quantity, tuple):
                return "by rank"
            return f"{quantity:g} {unit}" if isinstance(quantity, int | float) else str(quantity)

        parts = [f"network {self.network_model}", f"latency {shown(self.latency, 's')}"]
        parts += [f"uplink {shown(self.uplink, 'bit/s')}"] if self.uplink is not None else []
        parts += [f"downlink {shown(self.downlink, 'bit/s')}"] if self.downlink is not None else []
        parts += [f"jitter {shown(self.jitter, 's')}"] if self.jitter else []
        parts += [f"loss {self.loss:g}"] if self.loss else []
        return ", ".join(parts)

    def network_of(self, nodes: int) -> Network:
        """Returns the network of so many nodes; raises BadInput where an option does not fit them."""
        seed = self.seed or 0
        unlimited = np.full(nodes, inf)
        rates = {
            key: unlimited if quantity is None else numbers_of(quantity, RATES, nodes, key, seed=seed)
            for key, quantity in (("uplink", self.uplink), ("downlink", self.downlink))
        }
        for key, values in rates.items():
            if not (values > 0).all():
                raise BadInput.at(key, "a rate is 0; leave the option out for links without a limit")
        return Network(
            self.network_model,
            numbers_of(self.latency, TIMES, nodes, "latency", seed=seed, pairs=True),
            rates["uplink"],
            rates["downlink"],
            jitter=in_unit(self.jitter, TIMES),
            loss=self.loss,
            random=generator(seed, "network"),
        )

    def prepare(self, directory: ProcessDirectory, most_bytes: int) -> None:
        self._clock = cast(VirtualClock, directory.clock)
        self._log_directory = directory.run_directory if self.delivery_log else None
        self._network = self.network_of(sum(len(process.ranks) for process in directory.processes))

    def endpoint(self, rank: int, buffer_spec: BufferSpec) -> RoutedEndpoint:
        assert self._network is not None, "prepared before it has endpoints"
        route = SimulatedLinks(rank, self._peers, self._network, self._clock)
        endpoint = RoutedEndpoint(rank, buffer_spec, buffer_spec.slots(), [route], clock=self._clock)
        self._peers[rank] = endpoint.peers
        self._routes.append(route)
        return endpoint

    def open(self, peers: Sequence[int], run_id: int, timeout: float, absent: Collection[int] = ()) -> None:
        # Not before: a resumed run begins at the time of its checkpoints.
        if self._log_directory is not None:
            log = DeliveryLog(self._log_directory, self._clock)
            for route in self._routes:
                route.delivery_log = log

    def close(self, timeout: float) -> None:
        if self._routes and (log := self._routes[0].delivery_log) is not None:
            log.close()
        self._peers.clear()

    def _quantities(self) -> list[tuple[str, PerPair | None, dict[str, float]]]:
        return [
            ("latency", self.latency, TIMES),
            ("uplink", self.uplink, RATES),
            ("downlink", self.downlink, RATES),
        ]
