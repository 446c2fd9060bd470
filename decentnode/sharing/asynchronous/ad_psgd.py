"""Averaging of random pairs by exchanges of two messages."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from math import inf
from typing import ClassVar

import torch
from torch import Tensor

from decentnode.core.payload import Layout, Payload
from decentnode.core.registry import SHARINGS
from decentnode.graph.base import View
from decentnode.options import NonNegative, Positive
from decentnode.sharing.asynchronous.base import AsyncSharing, PeerMessage, Post, Posts
from decentnode.sharing.base import Requirements
from decentnode.sharing.blocks.answer_timer import AnswerTimer

REQUEST, ANSWER, DECLINE = range(3)
NOTHING = Layout(())


@SHARINGS.register("ad_psgd")
@dataclass
class AdPsgd(AsyncSharing):
    """Averages with one random neighbor after a local step (AD-PSGD: Lian et al., ICML 2018, Alg. 1).

    i sends x_i;   j: delta = C(x_i - x_j) / 2,  x_j <- x_j + delta,  sends delta;   i: x_i <- x_i - delta

    Both ends apply the same delta, so the sum of all models stays whatever happens to x_i meanwhile. A
    request has a number and is repeated until it is answered. j keeps its last answer to each peer and sends
    it again, but applies it once. So the sum survives lost, repeated and reordered messages.

    A node answers requests while it waits, so no graph leads to a deadlock, and none must be bipartite. Two
    nodes that ask each other at the same time would swap models; then the node of lower rank declines. At
    most `staleness` steps are made while a request is unanswered. If a peer is silent until the deadline, the
    node continues without it. A late answer still counts. State: an answer per neighbor, and a request.
    """

    requirements = Requirements(undirected_graph=True)
    promises = replace(
        AsyncSharing.promises,
        keeps_mean=True,
        about_mean="keeps the sum of all models in every exchange, also under lost messages",
        wire="2 C(d) per exchange",
        phases=3,
    )
    state: ClassVar = (
        *AsyncSharing.state, "_number", "_asked", "_requests", "_since", "_served", "_answers",
    )  # fmt: skip

    staleness: NonNegative = 1
    """Steps that may be made while a request is unanswered."""
    every: Positive = 1
    """Steps between two requests, at least."""

    def begin(self, vector: Tensor) -> None:
        super().begin(vector)
        self._number = 0
        self._asked: int | None = None
        """The peer for whose answer the node waits."""
        self._requests: dict[int, tuple[int, Tensor]] = {}
        """The number and the bytes of an unanswered request by peer, also to lost peers."""
        self._since = 0
        """Steps since the last request."""
        self._served: dict[int, tuple[int, int]] = {}
        """The number and tag of the last answer to each peer."""
        self._answers: dict[int, Tensor] = {}

    @cached_property
    def _timer(self) -> AnswerTimer:
        return AnswerTimer()

    def payload_layout(self, phase: int = 0) -> Layout | None:
        return NOTHING if phase == DECLINE else self.chain.layout

    def may_step(self, now: float) -> bool:
        return self._asked is None or self._since < self.staleness

    @property
    def awaited(self) -> Iterable[int]:
        return () if self._asked is None else (self._asked,)

    def after_step(self, vector: Tensor, view: View) -> Posts:
        self._steps += 1
        self._since += 1
        live = self.live_targets(view)
        if self._asked is not None or self._since < self.every or not live:
            return ()
        self._since, (self._asked,) = 0, self.draw_targets(view, 1)
        if self._asked in self._requests:  # an old request to a peer that was lost, and is back
            return [self._request(self._asked)]
        self._number += 1
        (post,) = self.posts(vector, [self._asked], view, tag=REQUEST, number=self._number)
        self._requests[self._asked] = self._number, post.payload.buffer
        return [post]

    def _request(self, peer: int) -> Post:
        number, buffer = self._requests[peer]
        return Post(peer, REQUEST, number, payload=Payload.parse(self.chain.layout, buffer))

    def resend(self, now: float) -> Posts:
        if self._asked is None:
            self._timer.stop(now)
            return ()
        number = self._requests[self._asked][0]
        if not self._timer.is_for(self._asked, number):
            self._timer.start(self._asked, number, now, sent_before=number != self._number)
        elif now >= self._timer.due:
            self._timer.repeat(now)
            return [self._request(self._asked)]
        return ()

    def due(self, now: float) -> float:
        return inf if self._asked is None else self._timer.due

    def answer_repeated(self, message: PeerMessage) -> Posts | None:
        source, tag, number, _ = message
        if tag != REQUEST:
            request = self._requests.get(source)
            return None if request is not None and request[0] == number else ()
        served = self._served.get(source, (0, 0))[0]
        if number > served:
            return None
        return [self._answer(source)] if number == served else ()

    def _answer(self, peer: int) -> Post:
        number, tag = self._served[peer]
        layout = self.chain.layout if tag == ANSWER else NOTHING
        return Post(peer, tag, number, payload=Payload.parse(layout, self._answers[peer]))

    def receive(self, vector: Tensor, message: PeerMessage, view: View) -> Posts:
        source = message.source
        if message.tag == DECLINE:
            self._settle(source)
            return ()
        if message.tag == REQUEST and source == self._asked and view.rank < source:
            return self._keep(message, DECLINE, torch.empty(0, dtype=torch.uint8))
        return super().receive(vector, message, view)

    def fill_for(self, message: PeerMessage, vector: Tensor) -> Tensor | None:
        # The difference is zero where a request has no value; a difference that was not sent is zero.
        return vector if message.tag == REQUEST else None

    def use(self, vector: Tensor, message: PeerMessage, signal: Tensor, view: View) -> Posts:
        if message.tag == ANSWER:
            vector.sub_(signal.to(vector.dtype))
            self._settle(message.source)
            return ()
        delta = signal.to(vector.dtype).sub(vector).mul_(0.5)
        (post,) = self.posts(delta, [message.source], view, tag=ANSWER, number=message.number)
        # As the other end decodes it: rounding must not change the sum.
        sent = PeerMessage(view.rank, ANSWER, message.number, payload=post.payload)
        context = self.message_context(view.rank, message.source, ANSWER, number=message.number, view=view)
        vector.add_(self.chain.decode(sent.payload, context).to(vector.dtype))
        return self._keep(message, ANSWER, post.payload.buffer)

    def _keep(self, message: PeerMessage, tag: int, buffer: Tensor) -> Posts:
        """Keeps the answer to a request, in case that it is lost, and sends it."""
        self._served[message.source] = message.number, tag
        self._answers[message.source] = buffer
        return [self._answer(message.source)]

    def _settle(self, peer: int) -> None:
        del self._requests[peer]
        if self._asked == peer:
            self._asked = None

    def on_peer_lost(self, rank: int) -> None:
        super().on_peer_lost(rank)
        if self._asked == rank:
            self._asked = None
            self._timer.cancel()
