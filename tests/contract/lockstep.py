"""All nodes of a graph in one process, in lockstep and without a transport, by the schemes' own `share`."""

import asyncio
from collections import defaultdict
from dataclasses import dataclass, field

import torch

from decentnode.mixing import MetropolisHastings, WeightedGraph
from decentnode.payload import Payload
from decentnode.transforms.chain import Chain
from decentnode.vector import ParameterLayout


def bound(scheme, num_nodes, elements, transforms=(), dtype=torch.float64, seed=0, parameters=None):
    """A scheme with its chain, as an experiment binds it."""
    chain = Chain([*scheme.first_transforms(), *transforms], elements, dtype, parameters)
    scheme.check_chain(chain)
    scheme.bind(parameters or ParameterLayout(()), num_nodes, chain, seed)
    return scheme


@dataclass
class Lockstep:
    """`make()` gives a scheme and `transforms()` its chain; `models` is (n, d), its rows begin alike or not.

    `is_live(i, j)` says whether what j sends reaches i. `sent` counts the bytes of all payloads, `payloads`
    are copies of those of the last round. `scribbles`: memory that a scheme may not keep is overwritten once
    it is void.
    """

    make: object
    graph: object
    models: torch.Tensor
    transforms: object = tuple
    weights: object = field(default_factory=MetropolisHastings)
    is_live: object = lambda i, j: True
    parameters: object = None
    seed: int = 0
    scribbles: bool = False
    round: int = field(default=0, init=False)
    sent: int = field(default=0, init=False)
    payloads: list = field(default_factory=list, init=False)
    recent: dict = field(default_factory=lambda: defaultdict(list), init=False)

    def __post_init__(self):
        self.weighted = WeightedGraph(self.graph, self.weights)
        n, d = self.models.shape
        self.schemes = [
            bound(self.make(), n, d, self.transforms(), self.models.dtype, self.seed, self.parameters)
            for _ in range(n)
        ]
        introductions = {i: scheme.introduction() for i, scheme in enumerate(self.schemes)}
        for scheme, model in zip(self.schemes, self.models, strict=True):
            scheme.meet({i: said for i, said in introductions.items() if said})
            scheme.begin(model)

    def train(self, gradient, eta):
        """One exact gradient step of every node; `gradient(i, x)` has the shape of x, or is None: no step."""
        self.eta = eta
        before, self.models = self.models, self.models.clone()
        if self.scribbles:
            before.fill_(float("nan"))
        for i, (scheme, x) in enumerate(zip(self.schemes, self.models, strict=True)):
            g = gradient(i, x.clone())
            if g is None:
                continue
            if scheme.adjust_gradient is not None:
                scheme.adjust_gradient(g, x, 0)
            x -= eta * g

    def mix(self):
        """One round of communication."""
        mixed, before = torch.full_like(self.models, float("nan")), self.models.clone()
        board = defaultdict(None)
        self.payloads = []

        async def node(i, scheme):
            view = await self.weighted.view(i, self.round, getattr(self, "eta", 0.0))
            phase, arrived = -1, []

            async def exchange(outgoing, sources):
                nonlocal phase
                scribble(arrived)
                phase += 1
                here = phase
                assert set(outgoing) <= set(view.targets)
                one_for_all = type(scheme).sends_one_payload and not scheme.chain.per_receiver
                assert one_for_all <= (len({id(p) for p in outgoing.values()}) <= 1)
                copies = [Payload(p.layout, p.buffer.clone(), p.counts) for p in outgoing.values()]
                for payload, copy in () if self.scribbles else self.recent[i]:
                    assert torch.equal(payload.buffer, copy.buffer), "written before the next exchange"
                self.recent[i] = list(zip(outgoing.values(), copies, strict=True))
                self.payloads += copies
                for j in view.targets:
                    board[here, i, j].set_result(outgoing.get(j))
                layout, found = scheme.payload_layout(here), {}
                for j in sources:
                    payload = await board[here, j, i]
                    if payload is not None and self.is_live(i, j):
                        assert payload.layout.hash == layout.hash
                        assert payload.nbytes <= layout.max_bytes
                        found[j] = Payload.parse(layout, payload.buffer.clone()).to(self.models.device)
                        arrived.append(found[j].buffer)
                self.sent += sum(payload.nbytes for payload in outgoing.values())
                return found

            await scheme.share(self.models[i], view, exchange, mixed[i])
            scheme.accept(self.models[i], view, mixed[i])
            assert phase + 1 <= scheme.phases
            scribble(arrived)

        def scribble(buffers):
            for buffer in buffers if self.scribbles else ():
                buffer.fill_(255)

        async def all_nodes():
            board.default_factory = asyncio.get_running_loop().create_future
            await asyncio.gather(*(node(i, scheme) for i, scheme in enumerate(self.schemes)))

        asyncio.run(all_nodes())
        assert torch.equal(self.models, before), "a scheme wrote to the vector"
        if self.scribbles:
            self.models.fill_(float("nan"))
        self.models, self.round = mixed, self.round + 1
        return mixed

    def run(self, rounds, gradient=None, eta=0.0):
        """Rounds of a gradient step, where there is a gradient, and communication."""
        for _ in range(rounds):
            if gradient is not None:
                self.train(gradient, eta)
            self.mix()
        return self.models

    @property
    def disagreement(self):
        """The sum of the squared distances of all models from their mean."""
        return (self.models - self.models.mean(0)).square().sum().item()


A8 = torch.tensor([1, 2] * 4, dtype=torch.float64)
B8 = torch.arange(8, dtype=torch.float64)
OPTIMUM8 = 11 / 3


def q8_gradient(i, x):
    """f_i(x) = a_i (x - b_i)^2 / 2 on eight nodes, a = 1,2,1,2,..., b_i = i; the optimum is 11/3."""
    return A8[i] * (x - B8[i])
