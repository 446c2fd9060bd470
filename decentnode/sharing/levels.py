"""A scheme for each of two levels: within clusters, and between their heads."""

import copy
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, get_type_hints

import torch
from pydantic import TypeAdapter, ValidationError
from torch import Tensor

from decentnode.core.payload import Layout, Payload
from decentnode.core.registry import SHARINGS, TRANSFORMS, Registry, guess, name_of
from decentnode.core.vector import ParameterLayout
from decentnode.errors import BadInput, Defect
from decentnode.graph.base import View
from decentnode.graph.mixing import WeightedGraph
from decentnode.sharing.base import Exchange, Incoming, Promises, Requirements, Setup, Sharing
from decentnode.sharing.blocks.server import ServerSharing
from decentnode.sharing.fed_stc import FedStc
from decentnode.sharing.wrapper import SchemeWrapper
from decentnode.transforms.base import Transform
from decentnode.transforms.chain import Chain


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

    inner: dict[str, Any] | str = "gossip"
    outer: dict[str, Any] | str = "gossip"

    def __post_init__(self) -> None:
        self.outer_scheme = _scheme("outer", self.outer)
        if self.outer_scheme.adjust_gradient is not None:
            name = name_of(self.outer_scheme)
            raise BadInput.at("outer", f"{name} changes local steps; heads only mix: use gossip")
        super().__init__(_scheme("inner", self.inner))
        if isinstance(self.scheme, FedStc):
            raise BadInput.at(
                "inner", "fed_stc sends updates down, which a mix of heads would miss; use fed_avg"
            )
        self._transforms = [_transforms("inner", self.inner), _transforms("outer", self.outer)]
        self.registered_name = "levels"
        needs = [scheme.requirements for scheme in self.schemes]
        self.requirements = Requirements(
            levels=True,
            float32=any(need.float32 for need in needs),
            local_loss=any(need.local_loss for need in needs),
            plain_sgd=needs[0].plain_sgd,
        )

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
            scheme.make_chain(copy.deepcopy(stages), elements, dtype, parameters=parameters)
            for scheme, stages in zip(self.schemes, self._transforms, strict=True)
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


def _scheme(level: str, level_options: Mapping[str, Any] | str) -> Sharing:
    """The scheme of a level; raises BadInput."""
    options = {"name": level_options} if isinstance(level_options, str) else dict(level_options)
    options.pop("transforms", None)
    scheme: Sharing = _made(level, SHARINGS, options)
    promises = scheme.promises
    if (
        promises.protects
        or promises.sends == "nothing"
        or isinstance(scheme, Levels)
        or scheme.requirements.tree
    ):
        raise BadInput.at(level, f"{name_of(scheme)} does not work in a level; use gossip or fed_avg")
    return scheme


def _transforms(level: str, level_options: Mapping[str, Any] | str) -> list[Transform]:
    listed = [] if isinstance(level_options, str) else level_options.get("transforms") or []
    if not isinstance(listed, list):
        raise BadInput.at(f"{level}.transforms", "must be a list of transforms")
    return [
        _made(f"{level}.transforms[{index}]", TRANSFORMS, transform) for index, transform in enumerate(listed)
    ]


def _made(where: str, registry: Registry, plugin_options: Mapping[str, Any] | str) -> Any:
    """The plug-in with its options; raises BadInput with a line for each defect."""
    options = {"name": plugin_options} if isinstance(plugin_options, str) else dict(plugin_options)
    name = options.pop("name", None)
    if not isinstance(name, str):
        raise BadInput.at(f"{where}.name", f"missing; name one of: {registry.names}")
    cls = registry.find(name)
    hints = get_type_hints(cls, include_extras=True)
    known = [field.name for field in fields(cls) if field.init]
    lines = []
    for option, value in options.items():
        if option not in known:
            lines.append(Defect.at(f"{where}.{option}", f"unknown option of {name}{guess(option, known)}"))
            continue
        try:
            options[option] = TypeAdapter(hints[option]).validate_json(json.dumps(value), strict=True)
        except ValidationError as error:
            lines.append(
                Defect.at(f"{where}.{option}", f"{error.errors()[0]['msg'].lower()}, not {json.dumps(value)}")
            )
    if lines:
        raise BadInput(*lines)
    return cls(**options)
