"""Asynchronous schemes of several nodes, and a network that loses, repeats and reorders their messages."""

from dataclasses import dataclass, field

import numpy as np
import torch

from decentnode.core.payload import Payload
from decentnode.graph.mixing import MetropolisHastings, Uniform, WeightedGraph
from decentnode.sharing.asynchronous.base import PeerMessage
from decentnode.testing.lockstep import bound


@dataclass
class Messages:
    """All nodes of a graph; a test decides which message arrives, and when."""

    make: object
    graph: object
    models: torch.Tensor
    transforms: object = tuple
    time: float = field(default=0.0, init=False)

    def __post_init__(self):
        n = len(self.models)
        self.models = self.models.clone()
        weighted = WeightedGraph(self.graph, Uniform() if self.graph.directed else MetropolisHastings())
        self.views = [weighted.view(i, 0) for i in range(n)]
        self.schemes = [self.fresh(i, weighted) for i in range(n)]
        handshakes = {i: scheme.handshake() for i, scheme in enumerate(self.schemes)}
        for scheme, model in zip(self.schemes, self.models, strict=True):
            scheme.receive_handshakes({i: content for i, content in handshakes.items() if content})
            scheme.begin(model)
        self.steps = [0] * n
        self.flying = []
        """(sender, Post) that were sent and have not arrived."""

    def fresh(self, i, weighted):
        """A scheme as that of node i before the start; servers have no samples."""
        n, d = self.models.shape
        samples = int(i not in self.graph.servers)
        return bound(
            self.make(), n, d, self.transforms(), self.models.dtype, graph=weighted, rank=i, samples=samples
        )

    def post(self, i, posts):
        for post in posts:
            # As over a wire: bytes, read by the layout that the receiver knows.
            layout = self.schemes[i].payload_layout(post.tag)
            assert post.payload.layout.hash == layout.hash
            payload = Payload.parse(layout, post.payload.buffer.clone())
            self.flying.append((i, post._replace(payload=payload)))

    def step(self, i, change=None, seconds=0.0):
        """A local step of node i that takes so long, if its scheme allows one."""
        scheme, model, view = self.schemes[i], self.models[i], self.views[i]
        if not scheme.may_step(self.time):
            return False
        self.post(i, scheme.before_step(model, view))
        if change is not None:
            model += change(i, model.clone()) if callable(change) else change
        self.post(i, scheme.after_step(model, view))
        self.steps[i] += 1
        scheme.measured(seconds)
        self.fire(i)
        return True

    def fire(self, i):
        """Lets node i do what its time has come for."""
        if self.schemes[i].advance_timer(self.time):
            self.post(i, self.schemes[i].on_timer(self.models[i], self.views[i]))

    def wait(self, seconds):
        """Lets time pass for all nodes."""
        self.time += seconds
        for i in range(len(self.schemes)):
            self.fire(i)

    def arrive(self, index):
        """Delivers one message that is on its way, and takes it from there."""
        self.deliver(*self.flying.pop(index))

    def deliver(self, i, post):
        j, scheme = post.target, self.schemes[post.target]
        message = PeerMessage(i, post.tag, post.number, post.payload)
        again = scheme.answer_repeated(message)
        self.post(j, scheme.receive(self.models[j], message, self.views[j]) if again is None else again)
        self.fire(j)

    def flush(self):
        """Delivers everything in order, and all that follows from it."""
        while self.flying:
            self.arrive(0)

    def settle(self):
        """Repeats what was lost until nobody waits for an answer."""
        for _ in range(4):
            self.flush()
            self.time += 1e6
            for i, scheme in enumerate(self.schemes):
                self.post(i, scheme.resend(self.time))
        self.flush()
        assert not any(list(scheme.awaited) for scheme in self.schemes)


def standard_normal(*shape, seed=0):
    return torch.from_numpy(np.random.default_rng(seed).standard_normal(shape))
