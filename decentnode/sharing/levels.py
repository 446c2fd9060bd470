"""A scheme for each of two levels: within clusters, and between their heads."""

import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any

import torch
from torch import Tensor

from decentnode.core.payload import Layout, Payload
from decentnode.core.registry import SHARINGS, name_of
from decentnode.core.vector import ParameterLayout
from decentnode.errors import BadInput, Defect, refuse
from decentnode.graph.base import View
from decentnode.graph.mixing import WeightedGraph
from decentnode.options import INLINED
from decentnode.sharing.base import Exchange, Incoming, Promises, Requirements, Setup, Sharing
from decentnode.sharing.blocks.server import ServerSharing
from decentnode.sharing.fed_stc import FedStc
from decentnode.sharing.gossip import Gossip
from decentnode.sharing.wrapper import SchemeWrapper
from decentnode.transforms.base import Transform
from decentnode.transforms.chain import Chain


@dataclass
class LevelScheme:
    """A scheme, and the transforms of its chain, which are a key beside its options."""

    scheme: Annotated[Sharing, INLINED]
    transforms: tuple[Transform, ...] = ()

    def __str__(self) -> str:
        return name_of(self.scheme)


@SHARINGS.register("levels")
@dataclass
class Levels(SchemeWrapper):
    """One scheme within clusters and another between their heads (HierFAVG: Liu et al., ICC 2020, Alg. 1).

    inner: x_i <- mix of the cluster;   outer, in its rounds: x_head <- mix of all heads

    With a server scheme inside, the heads are the servers: they exchange after they have added up, and before
    they send their model down, so that clients receive the mix of all heads. With fed_avg in both levels this
    is hierarchical FedAvg. Otherwise heads exchange after their clusters, and members learn of it in later
    rounds. Each level is a name, or a mapping with options and `transforms` of its own.
    """

    requirements = Requirements(levels=True)
    promises = Promises(
        allows_rejoin=False,
        sends_one_payload=False,
        wire="that of the inner scheme, and for heads that of the outer one, in its rounds",
    )

    inner: LevelScheme = field(default_factory=lambda: LevelScheme(Gossip()))
    outer: LevelScheme = field(default_factory=lambda: LevelScheme(Gossip()))

    def __post_init__(self) -> None:
        refuse(self._defects())
        self.outer_scheme = self.outer.scheme
        super().__init__(self.inner.scheme)
        self.registered_name = "levels"
        needs = [scheme.requirements for scheme in self.schemes]
        self.requirements = Requirements(
            levels=True,
            float32=any(need.float32 for need in needs),
            local_loss=any(need.local_loss for need in needs),
            plain_sgd=needs[0].plain_sgd,
        )

    def _defects(self) -> Iterator[Defect]:
        """Yields the schemes that do not work in their level."""
        for level, scheme in (("inner", self.inner.scheme), ("outer", self.outer.scheme)):
            promises, needs, name = scheme.promises, scheme.requirements, name_of(scheme)
            if promises.protects or promises.sends == "nothing" or needs.levels or needs.tree:
                yield Defect((level,), f"{name} does not work in a level; use gossip or fed_avg")
            elif level == "outer" and scheme.adjust_gradient is not None:
                yield Defect((level,), f"{name} changes local steps; heads only mix: use gossip")
            elif level == "inner" and isinstance(scheme, FedStc):
                what = f"{name} sends updates down, which a mix of heads would miss; use fed_avg"
                yield Defect((level,), what)

    def adjust_promises(self, promises: Promises) -> Promises:
        """Adjusts the promises: it tolerates a loss where both of its schemes do."""
        outer = self.outer_scheme.promises
        return replace(
            type(self).promises,
            tolerates_loss=promises.tolerates_loss and outer.tolerates_loss,
            phases=promises.phases + outer.phases,
        )

    @property
    def watched_weight(self) -> float | None:
        """Returns None, as the weight is unknown: the mix between heads counts, too."""
        return None

    @property
    def schemes(self) -> tuple[Sharing, Sharing]:
        """The inner and the outer scheme."""
        return self.scheme, self.outer_scheme

    @property
    def only_averages(self) -> bool:
        """Returns False: the chains of the levels are their own, and heads mix with another scheme."""
        return False

    def first_transforms(self) -> tuple[Transform, ...]:
        return ()

    def check(self, graph: WeightedGraph) -> None:
        """Checks nothing: `config/consistency.py` checks each scheme on its level."""

    def preserves_mean(self, chain: Chain) -> bool:
        return False

    def make_chain(
        self, transforms: Sequence[Transform], elements: int, dtype: torch.dtype = torch.float32,
        parameters: ParameterLayout | None = None,
    ) -> Chain:  # fmt: skip
        if transforms:
            raise BadInput("levels has a chain for each level: put transforms into inner and outer")
        self._chains = [
            level.scheme.make_chain(copy.deepcopy(level.transforms), elements, dtype, parameters=parameters)
            for level in (self.inner, self.outer)
        ]
        return Chain((), elements, dtype, parameters=parameters)

    def bind(self, setup: Setup) -> None:
        Sharing.bind(self, setup)
        graphs = [*setup.graph.levels, setup.graph, setup.graph]
        for scheme, graph, chain in zip(self.schemes, graphs, self._chains, strict=False):
            scheme.bind(replace(setup, graph=graph, chain=chain))
            scheme.refusals = self.refusals

    def handshake(self) -> bytes:
        return self.setup.samples.to_bytes(8, "little")

    def receive_handshakes(self, handshakes: Mapping[int, bytes]) -> None:
        Sharing.receive_handshakes(self, handshakes)
        if isinstance(self.scheme, ServerSharing):
            self.scheme.receive_handshakes(handshakes)

    def begin(self, vector: Tensor) -> None:
        for scheme in self.schemes:
            scheme.begin(vector)

    def payload_layout(self, phase: int = 0) -> Layout | None:
        before = 1 if isinstance(self.scheme, ServerSharing) else self.scheme.promises.phases
        if phase < before:
            return self.scheme.payload_layout(phase)
        if phase < before + self.outer_scheme.promises.phases:
            return self.outer_scheme.payload_layout(phase - before)
        return self.scheme.payload_layout(phase - self.outer_scheme.promises.phases)

    def outgoing(self, vector: Tensor, view: View) -> Mapping[int, Payload]:
        return self.scheme.outgoing(vector, view.levels[0])

    def mix(self, vector: Tensor, incoming: Incoming, view: View, out: Tensor) -> None:
        self.scheme.mix(vector, incoming, view.levels[0], out)

    async def share(self, vector: Tensor, view: View, exchange: Exchange, out: Tensor) -> None:
        """The exchanges of the inner scheme, with those of the outer one between them or after them."""
        inner, outer = view.levels
        if not isinstance(self.scheme, ServerSharing):
            await self.scheme.share(vector, inner, exchange, out=out)
            await self._mix_heads(outer, exchange, out)
            return
        await self.scheme.up(vector, inner, exchange, out=out)
        await self._mix_heads(outer, exchange, out)
        if view.rank in inner.servers:
            self.scheme.adopt(out)
        await self.scheme.down(inner, exchange, out)

    async def _mix_heads(self, view: View, exchange: Exchange, out: Tensor) -> None:
        """The exchanges of the outer scheme, which start from `out` and end there."""
        if not (view.targets or view.sources):
            for _ in range(self.outer_scheme.promises.phases):
                # All nodes count the same exchanges.
                await exchange({}, ())
            return
        if isinstance(self.outer_scheme, ServerSharing):
            samples = {
                head: sum(int.from_bytes(self.setup.handshakes[rank], "little") for rank in ranks)
                for head, ranks in view.clusters.items()
            }
            self.outer_scheme.receive_handshakes(
                {head: count.to_bytes(8, "little") for head, count in samples.items()}
            )
        model = out.clone()
        await self.outer_scheme.share(model, view, exchange, out=out)
        self.outer_scheme.accept(model, view, out)

    def accept(self, vector: Tensor, view: View, mixed: Tensor) -> None:
        self.scheme.accept(vector, view.levels[0], mixed)

    def on_peer_lost(self, rank: int) -> None:
        for scheme in self.schemes:
            scheme.on_peer_lost(rank)

    def on_peer_back(self, rank: int) -> None:
        for scheme in self.schemes:
            scheme.on_peer_back(rank)

    def state_dict(self) -> dict[str, Any]:
        # The two schemes have these names in saved checkpoints.
        return {
            "chain": self.chain.state_dict(), "_inner": self.scheme.state_dict(),
            "_outer": self.outer_scheme.state_dict(),
        }  # fmt: skip

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.scheme.load_state_dict(state["_inner"])
        self.outer_scheme.load_state_dict(state["_outer"])
