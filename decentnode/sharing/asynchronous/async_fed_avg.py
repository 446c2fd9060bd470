"""A server that makes a step as soon as some of its clients have sent: asynchronous DiLoCo."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from decentnode.core.payload import Layout, NotFinite, Payload, PayloadError, dense_layout
from decentnode.core.registry import SHARINGS, name_of
from decentnode.core.vector import is_finite
from decentnode.errors import BadInput
from decentnode.graph.base import View
from decentnode.graph.mixing import WeightedGraph
from decentnode.options import NonNegativeFloat, Positive
from decentnode.sharing.asynchronous.base import AsyncSharing, PeerMessage, Post, Posts
from decentnode.sharing.base import Requirements, Setup
from decentnode.sharing.blocks.outer import OptimizerMaker, OuterOptimizer, SavesOuter

UPDATE, MODEL, SPEED = range(3)
"""What a client sends after its local steps; the server's answer; steps per second, in both directions."""
SPEED_LAYOUT = dense_layout(1, torch.float64, "speed")
ROUNDING = 1e-6
"""How much of a step may be missing from a whole one by rounding."""


@SHARINGS.register("async_fed_avg", async_diloco="outer: {name: SGD, ...}")
@dataclass
class AsyncFedAvg(SavesOuter, AsyncSharing):
    """A server makes outer steps with what has come, for those that have sent (Liu et al., 2024, 2401.09135).

    client i, after H_i local steps from x_i to y_i:  sends u_i = C(y_i - x_i), waits for x, x_i <- x
    server:  D <- D - u_i for each,  after N of them  phi <- step of `outer` along D / N,  D <- 0;
             x = phi - lr D / N

    With `delay: N` this is the delayed Nesterov step of the paper (with c = 0): the gradient acts at once,
    and the momentum after N updates. Without, N is the number of updates that have come together.

    The server waits until `quorum` updates are there, or those of all live clients, and then `grace` seconds
    for others (Decoupled DiLoCo: Douillard et al., 2026, 2604.21428). Those that have sent receive x, all at
    the same time. A quorum of all clients is DiLoCo.

    With `follow_speed` H_i = floor(v_i / max_j v_j * every), at least 1, v_i the steps per second since its
    last answer (dynamic local updates of the paper): updates come after nearly the same time. Otherwise, and
    until the first client has reported its speed, H_i = `every`.

    State: x_i and the last update at a client; at the server x, phi, D, the moments, and an update and an
    answer of each client.
    """

    requirements = Requirements(server=True, float32=True)
    promises = replace(
        AsyncSharing.promises,
        sends="differences",
        sends_one_payload=True,
        phases=3,
        about_mean="does not keep it: the server has the model of all",
        wire="C(d) up and b d down for each update",
    )
    state: ClassVar = (
        *AsyncSharing.state, "_x", "_number", "_since", "_seconds", "_speeds", "_unanswered", "_sum",
        "_count", "_updates", "_numbers", "_answers",
    )  # fmt: skip

    every: Positive = 10
    """Local steps between two updates of a client; with `follow_speed` those of the fastest one."""
    quorum: Positive = 1
    """The updates for which the server waits, at most one of each live client."""
    grace: NonNegativeFloat = 0.0
    """Seconds for which it then waits for others."""
    delay: Positive | None = None
    """The updates in a step of `outer`; null: those that have come together."""
    follow_speed: bool = False
    """Whether slower clients make fewer steps between two updates."""
    outer: OptimizerMaker | None = None
    """The server's optimizer; null: the server adds the mean of the changes."""

    _is_stepping = False
    """Whether a local step is in progress, which only virtual time shows."""
    _repeats = False
    """Whether an update or its answer may have been lost, with a link or a process."""
    _until = math.inf
    """The end of the grace; infinity: it has not begun."""

    def __post_init__(self) -> None:
        if self.delay is None or self.outer is None:
            return
        optimizer = self.outer([nn.Parameter(torch.zeros(1))])
        if not isinstance(optimizer, torch.optim.SGD):
            what = (
                f"lets gradients act before their momentum, which is right for SGD, not {name_of(optimizer)}"
            )
            raise BadInput.at("delay", f"{what}; use outer: SGD, or leave it out")

    def check(self, graph: WeightedGraph) -> None:
        servers, clients = graph.graph.servers, graph.num_nodes - len(graph.graph.servers)
        if len(servers) > 1:
            raise BadInput(f"{name_of(self)} has one server; leave graph.standby out")
        if self.quorum > clients:
            raise BadInput.at("quorum", f"must be at most the {clients} clients, not {self.quorum}")

    def bind(self, setup: Setup) -> None:
        super().bind(setup)
        signal = setup.chain.layouts[0].fields[0]
        self._model_layout = dense_layout(signal.elements, signal.dtype)
        (self._server,) = setup.graph.graph.servers
        self._serves = setup.rank == self._server
        if self._serves:
            self._outer = OuterOptimizer(self.outer or partial(torch.optim.SGD, lr=1.0))

    def handshake(self) -> bytes:
        return self.setup.samples.to_bytes(8, "little")

    def receive_handshakes(self, handshakes: Mapping[int, bytes]) -> None:
        super().receive_handshakes(handshakes)
        # A client without samples never sends, so nobody waits for it.
        self._clients = [j for j, samples in sorted(handshakes.items()) if any(samples) and j != self._server]

    def begin(self, vector: Tensor) -> None:
        super().begin(torch.zeros_like(vector))
        self._x = vector.clone()
        self._number = self._since = 0
        """The updates of a client so far, or messages about speed; local steps since the last answer."""
        self._seconds = 0.0
        """The time of these steps."""
        self._speeds: dict[int, float] = {}
        """The speeds that are known by rank: of all clients at the server; at a client with the server's rank
        the greatest of them."""
        self._unanswered: Tensor | None = None
        """The bytes of the last update, until its answer comes."""
        self._sum, self._count = torch.zeros_like(vector) if self._serves else torch.zeros(0), 0
        """Changes since the last step of `outer`, and their number."""
        self._updates: dict[int, Tensor] = {}
        self._numbers: dict[int, int] = {}
        self._answers: dict[int, Tensor] = {}
        """The bytes of the last answer to each client."""
        if self._outer is not None:
            self._outer.begin(vector)

    def payload_layout(self, phase: int = 0) -> Layout | None:
        return (self.chain.layout, self._model_layout, SPEED_LAYOUT)[phase]

    @property
    def burst(self) -> int:
        return 2

    # A client.

    @property
    def local_steps(self) -> int:
        """The local steps H_i between two updates of this client."""
        fastest = self._speeds.get(self._server)
        if not fastest or not self._seconds:
            return self.every
        steps = min(self._since / self._seconds / fastest * self.every, self.every)
        return max(1, math.floor(steps + ROUNDING))

    def may_step(self, now: float) -> bool:
        return not self._serves and self._unanswered is None and self._since < self.local_steps

    def before_step(self, vector: Tensor, view: View) -> Posts:
        self._is_stepping = True
        return ()

    def after_step(self, vector: Tensor, view: View) -> Posts:
        self._is_stepping = False
        self._steps += 1
        self._since += 1
        return ()

    def measured(self, seconds: float) -> None:
        self._seconds += seconds

    def _send(self, vector: Tensor, view: View) -> Posts:
        """Sends what the local steps have changed."""
        self._number += 1
        posts = self.posts(torch.sub(vector, self._x), [self._server], view, tag=UPDATE, number=self._number)
        self._unanswered = posts[0].payload.buffer
        speed = self._since / self._seconds if self._seconds else 0.0
        return [*(self._speed_for([self._server], speed) if self.follow_speed else ()), *posts]

    def _speed_for(self, targets: Iterable[int], speed: float) -> Posts:
        payload = Payload.dense(torch.tensor([speed], dtype=torch.float64), "speed")
        return [Post(j, SPEED, self._number, payload=payload) for j in targets]

    def resend(self, now: float) -> Posts:
        repeats, self._repeats = self._repeats, False
        if not repeats or self._unanswered is None:
            return ()
        payload = Payload.parse(self.chain.layout, self._unanswered)
        return [Post(self._server, UPDATE, self._number, payload=payload)]

    def on_peer_back(self, rank: int) -> None:
        super().on_peer_back(rank)
        self._repeats = True

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        self._repeats = True

    # The server.

    @property
    def _live_clients(self) -> list[int]:
        return [j for j in self._clients if j not in self._lost]

    def advance_timer(self, now: float) -> bool:
        if not self._serves:
            return not self._is_stepping and self._unanswered is None and self._since >= self.local_steps
        live = self._live_clients
        if len(self._updates) < max(1, min(self.quorum, len(live))):
            return False
        self._until = min(self._until, now + self.grace)
        return now >= self._until or all(j in self._updates for j in live)

    def due(self, now: float) -> float:
        return self._until

    def on_timer(self, vector: Tensor, view: View) -> Posts:
        if not self._serves:
            return self._send(vector, view)
        updates, self._updates, self._until = dict(sorted(self._updates.items())), {}, math.inf
        self.step([*updates.values()])
        vector.copy_(self._x)
        answer = Payload.dense(self._x.clone()).buffer
        self._answers |= dict.fromkeys(updates, answer)
        live = [j for j in updates if j not in self._lost]
        speed = self._announce_speed(live) if self.follow_speed else ()
        return [*speed, *(self._answer(j) for j in live)]

    def _announce_speed(self, clients: Sequence[int]) -> Posts:
        """Tells them the greatest speed."""
        # When, and whom, must not follow from what was measured: a replay has the same messages.
        self._number += 1
        speeds = (self._speeds.get(j, 0.0) for j in self._live_clients)
        return self._speed_for(clients, max(speeds, default=0.0))

    def step(self, updates: Sequence[Tensor]) -> None:
        """The server's step with the changes u_i that have come together, each of shape (d,)."""
        assert self._outer is not None, "a server has one"
        N = self.delay or len(updates)
        for u in updates:
            self._sum.add_(u)
            self._count += 1
            if self._count == N:
                self._outer.step(torch.add(self._outer.phi, self._sum, alpha=1 / N))
                self._sum.zero_()
                self._count = 0
        self._x = torch.add(self._outer.phi, self._sum, alpha=self._outer.lr / N)

    def _answer(self, j: int) -> Post:
        payload = Payload.parse(self._model_layout, self._answers[j])
        return Post(j, MODEL, self._numbers[j], payload=payload)

    def answer_repeated(self, message: PeerMessage) -> Posts | None:
        again = super().answer_repeated(message)
        source, tag, number, _ = message
        is_answered = source in self._answers and source not in self._updates
        if again is None or tag != UPDATE or number != self._numbers.get(source) or not is_answered:
            return again
        return [self._answer(source)]

    # Both.

    def receive(self, vector: Tensor, message: PeerMessage, view: View) -> Posts:
        source, tag, number, payload = message
        if tag == UPDATE and self._serves:
            posts = super().receive(vector, message, view)
            if source not in self._updates:
                # It was refused; its client continues with the model of the server.
                self._numbers[source] = number
                self._answers[source] = Payload.dense(self._x.clone()).buffer
                return [self._answer(source)]
            return posts
        self._latest[message[:2]] = number
        try:
            if tag == SPEED:
                speed = float(payload["speed"][0])
                if not 0 <= speed < math.inf:
                    raise PayloadError(f"a speed of {speed} steps per second")
                is_first = not self._speeds
                self._speeds[source] = speed
                # The first to report is the fastest: no other needs to make as many steps.
                return self._announce_speed(self._live_clients) if self._serves and is_first else ()
            elif tag == MODEL and number == self._number and self._unanswered is not None:
                if not is_finite(payload["vector"]):
                    raise NotFinite(f"its {self.flaw_of(payload['vector'])}")
                self._x = payload["vector"].clone()
                vector.copy_(self._x)
                self._unanswered, self._since, self._seconds = None, 0, 0.0
        except PayloadError as error:
            self.refuse(source, view, error)
        return ()

    def fill_for(self, message: PeerMessage, vector: Tensor) -> Tensor | None:
        return None

    def use(self, vector: Tensor, message: PeerMessage, signal: Tensor, view: View) -> Posts:
        self._updates[message.source] = signal.to(vector.dtype, copy=True)
        self._numbers[message.source] = message.number
        return ()
