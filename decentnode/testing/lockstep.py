"""Runs all nodes of a graph in one process, round by round, with the schemes' own `share`."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from decentnode.core.payload import Payload
from decentnode.core.vector import ParameterLayout
from decentnode.graph.base import Graph, View
from decentnode.graph.families import FullyConnected
from decentnode.graph.mixing import MetropolisHastings, Mixing, WeightedGraph
from decentnode.sharing.base import Incoming, Setup, Sharing
from decentnode.sharing.blocks.lockstep import Requests, share_all
from decentnode.transforms.base import Transform

Gradient = Callable[[int, Tensor], Tensor | None]
"""The gradient of node i at x, in the shape of x; None: the node makes no step."""


def bound(
    scheme: Sharing,
    num_nodes: int,
    elements: int,
    transforms: Sequence[Transform] = (),
    dtype: torch.dtype = torch.float64,
    seed: int = 0,
    parameters: ParameterLayout | None = None,
    graph: WeightedGraph | None = None,
    **more: Any,
) -> Sharing:
    """The scheme as in a run with models of `elements` values, on a complete graph unless given.

    `more`: further fields of its setup, such as `samples` or `local_loss`. Raises BadInput.
    """
    chain = scheme.make_chain(transforms, elements, dtype, parameters=parameters)
    graph = graph or WeightedGraph(FullyConnected(num_nodes), MetropolisHastings(), seed)
    scheme.bind(Setup(parameters or ParameterLayout(()), chain, graph, **more))
    return scheme


@dataclass
class Lockstep:
    """A run of all nodes; each round checks the rules for schemes (AssertionError where one is broken).

    Payloads fit the declared layout and are for targets only. Payloads are not written before the next
    exchange, `vector` is not written at all, and `out` is written whole.
    """

    make: Callable[[], Sharing]
    """A new scheme; called once for every node."""
    graph: Graph
    models: Tensor
    """The models, shape (n, d), with equal rows or not; the run has their dtype and device."""
    transforms: Callable[[], Sequence[Transform]] = tuple
    """A new chain; called once for every node."""
    weights: Mixing = field(default_factory=MetropolisHastings)
    is_live: Callable[[int, int], bool] = lambda i, j: True
    """Whether messages from j reach i."""
    parameters: ParameterLayout | None = None
    """Names and shapes of the parameters; None: unknown."""
    seed: int = 0
    setup_of: Callable[[int], Mapping[str, Any]] = lambda rank: {}
    """A function of further fields of the setup of a rank, such as `samples` or `local_loss`."""
    scribbles: bool = False
    """Whether memory that a scheme may not keep is overwritten when it becomes invalid."""
    round: int = field(default=0, init=False)
    """The number of completed rounds."""
    eta: float = field(default=0.0, init=False)
    """The learning rate of the last step."""
    sent: int = field(default=0, init=False)
    """Bytes of all payloads so far."""
    payloads: list[Payload] = field(default_factory=list, init=False)
    """Copies of the payloads of the last round."""
    schemes: list[Sharing] = field(init=False)

    def __post_init__(self) -> None:
        self.weighted = WeightedGraph(self.graph, self.weights, self.seed)
        self.models = self.models.clone()
        n, d = self.models.shape
        self.schemes = [
            bound(
                self.make(), n, d, transforms=self.transforms(), dtype=self.models.dtype, seed=self.seed,
                parameters=self.parameters, graph=self.weighted, rank=rank, **self.setup_of(rank),
            )
            for rank in range(n)
        ]  # fmt: skip
        handshakes = {i: scheme.handshake() for i, scheme in enumerate(self.schemes)}
        for scheme, model in zip(self.schemes, self.models, strict=True):
            scheme.receive_handshakes({i: handshake for i, handshake in handshakes.items() if handshake})
            scheme.begin(model)
        self._views: dict[int, View] = {}
        self._phase = 0
        self._arrived: list[Tensor] = []
        self._outgoing: dict[int, list[tuple[Payload, Payload]]] = {}
        """The last payloads of each node, with copies."""

    def run(self, rounds: int, gradient: Gradient | None = None, eta: float = 0.0) -> Tensor:
        """Runs rounds of a gradient step (if there is a gradient) and communication; returns the models."""
        for _ in range(rounds):
            if gradient is not None:
                self.train(gradient, eta)
            self.mix()
        return self.models

    def train(self, gradient: Gradient, eta: float) -> None:
        """Makes one exact gradient step of every node: x <- x - eta g, g as `adjust_gradient` leaves it."""
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

    def mix(self) -> Tensor:
        """Makes one round of communication; returns the models."""
        mixed, before = torch.full_like(self.models, float("nan")), self.models.clone()
        self.payloads, self._phase, self._arrived = [], 0, []
        schemes, models = dict(enumerate(self.schemes)), dict(enumerate(self.models))
        self._views = {i: self.weighted.view(i, self.round, self.eta) for i in schemes}
        share_all(schemes, models, self._views, out=dict(enumerate(mixed)), deliver=self._deliver)
        for i, scheme in schemes.items():
            scheme.accept(models[i], self._views[i], mixed[i])
        self._scribble()
        assert torch.equal(self.models, before), "a scheme wrote to the vector"
        assert not (mixed.isnan().any() and before.isfinite().all()), (
            "a scheme left elements of out unwritten"
        )
        if self.scribbles:
            self.models.fill_(float("nan"))
        self.models, self.round = mixed, self.round + 1
        return mixed

    def state(self, name: str) -> list[Any]:
        """Returns an attribute of each scheme's `state`, by rank."""
        return [scheme.state_dict()[name] for scheme in self.schemes]

    @property
    def disagreement(self) -> float:
        """The sum of the squared distances of all models from their mean."""
        return float((self.models - self.models.mean(0)).square().sum())

    def _deliver(self, requests: Requests) -> Mapping[int, Incoming]:
        """Makes one exchange of all nodes that take part in it; each receiver gets copies."""
        self._scribble()
        copies = {i: self._posted(i, request.outgoing) for i, request in requests.items()}
        received = {i: self._received(i, request.sources, copies) for i, request in requests.items()}
        self._phase += bool(requests)
        return received

    def _posted(self, i: int, outgoing: Mapping[int, Payload]) -> dict[int, Payload]:
        scheme = self.schemes[i]
        assert set(outgoing) <= set(self._views[i].targets), "a payload for a node that is no target"
        assert self._phase < scheme.promises.phases, "more exchanges in a round than `phases` says"
        one_for_all = scheme.promises.sends_one_payload and not scheme.chain.per_receiver
        several = len({id(payload) for payload in outgoing.values()}) > 1
        assert not (one_for_all and several), "several payloads where `sends_one_payload` promises one"
        for payload, copy in () if self.scribbles else self._outgoing.get(i, ()):
            assert torch.equal(payload.buffer, copy.buffer), "written before the next exchange"
        sent = {id(payload): payload for payload in outgoing.values()}
        copies = {key: Payload(p.layout, p.buffer.clone(), p.counts) for key, p in sent.items()}
        self._outgoing[i] = [(sent[key], copies[key]) for key in sent]
        posted = {j: copies[id(payload)] for j, payload in outgoing.items()}
        self.payloads += posted.values()
        self.sent += sum(payload.nbytes for payload in posted.values())
        return posted

    def _received(
        self, i: int, sources: Sequence[int], posted: Mapping[int, Mapping[int, Payload]]
    ) -> dict[int, Payload]:
        layout, payloads = self.schemes[i].payload_layout(self._phase), {}
        for j in sources:
            payload = posted.get(j, {}).get(i)
            if payload is None or not self.is_live(i, j):
                continue
            assert layout is not None and payload.layout.hash == layout.hash, "not the layout declared"
            assert payload.nbytes <= layout.max_bytes, "larger than the layout allows"
            payloads[j] = Payload.parse(layout, payload.buffer.clone()).to(self.models.device)
            self._arrived.append(payloads[j].buffer)
        return payloads

    def _scribble(self) -> None:
        for buffer in self._arrived if self.scribbles else ():
            buffer.fill_(255)
        self._arrived = []
