"""A scheme around another one."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from decentnode.core.payload import Layout, Payload, PayloadError
from decentnode.core.registry import name_of
from decentnode.core.vector import AdjustGradient, ParameterLayout
from decentnode.graph.base import View
from decentnode.graph.mixing import WeightedGraph
from decentnode.sharing.base import Exchange, Incoming, Promises, Setup, Sharing
from decentnode.transforms.base import Transform
from decentnode.transforms.chain import Chain


class SchemeWrapper(Sharing):
    """Delegates everything to the scheme inside; subclasses change some of it.

    It is made around a scheme that is not bound yet, and binds it. `share` is that of the scheme inside, so a
    subclass that changes `outgoing` or `mix` overrides `share`, too.
    """

    def __init__(self, scheme: Sharing) -> None:
        self.scheme = scheme
        self.registered_name = name_of(scheme)
        self.requirements = scheme.requirements
        self.promises = self.adjust_promises(scheme.promises)

    def adjust_setup(self, setup: Setup) -> Setup:
        """Returns the setup that the scheme inside is given."""
        return setup

    def adjust_promises(self, promises: Promises) -> Promises:
        """The promises of this scheme, given those of the scheme inside."""
        return promises

    def first_transforms(self) -> tuple[Transform, ...]:
        return self.scheme.first_transforms()

    def check(self, graph: WeightedGraph) -> None:
        self.scheme.check(graph)

    def check_chain(self, chain: Chain) -> None:
        self.scheme.check_chain(chain)

    def preserves_mean(self, chain: Chain) -> bool:
        return self.scheme.preserves_mean(chain)

    def make_chain(
        self, transforms: Sequence[Transform], elements: int, dtype: torch.dtype = torch.float32,
        parameters: ParameterLayout | None = None,
    ) -> Chain:  # fmt: skip
        return self.scheme.make_chain(transforms, elements, dtype, parameters=parameters)

    def bind(self, setup: Setup) -> None:
        super().bind(setup)
        self.scheme.bind(self.adjust_setup(setup))
        self.promises = self.adjust_promises(self.scheme.promises)
        # The node reads the refusals of both in one list.
        self.refusals = self.scheme.refusals

    def handshake(self) -> bytes:
        return self.scheme.handshake()

    def receive_handshakes(self, handshakes: Mapping[int, bytes]) -> None:
        super().receive_handshakes(handshakes)
        self.scheme.receive_handshakes(handshakes)

    def begin(self, vector: Tensor) -> None:
        self.scheme.begin(vector)

    def payload_layout(self, phase: int = 0) -> Layout | None:
        return self.scheme.payload_layout(phase)

    @property
    def adjust_gradient(self) -> AdjustGradient | None:
        return self.scheme.adjust_gradient

    @property
    def reach(self) -> float:
        return self.scheme.reach

    @property
    def private_key(self) -> bytes:
        return self.scheme.private_key

    @property
    def watched_weight(self) -> float | None:
        return self.scheme.watched_weight

    @property
    def schemes(self) -> tuple[Sharing, ...]:
        return self.scheme.schemes

    @property
    def only_averages(self) -> bool:
        return self.scheme.only_averages

    @property
    def gives_model(self) -> bool:
        return super().gives_model and self.scheme.gives_model

    def refuse(self, rank: int, view: View, error: PayloadError) -> None:
        self.scheme.refuse(rank, view, error)

    def outgoing(self, vector: Tensor, view: View) -> Mapping[int, Payload]:
        return self.scheme.outgoing(vector, view)

    def mix(self, vector: Tensor, incoming: Incoming, view: View, out: Tensor) -> None:
        self.scheme.mix(vector, incoming, view, out)

    async def share(self, vector: Tensor, view: View, exchange: Exchange, out: Tensor) -> None:
        await self.scheme.share(vector, view, exchange, out=out)

    def adjust_change(self, change: Tensor, view: View) -> None:
        self.scheme.adjust_change(change, view)

    def accept(self, vector: Tensor, view: View, mixed: Tensor) -> None:
        self.scheme.accept(vector, view, mixed)

    def on_peer_lost(self, rank: int) -> None:
        self.scheme.on_peer_lost(rank)

    def on_peer_back(self, rank: int) -> None:
        self.scheme.on_peer_back(rank)

    def state_dict(self) -> dict[str, Any]:
        return self.scheme.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.scheme.load_state_dict(state)
