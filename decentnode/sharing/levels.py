"""A scheme for each of two levels: within clusters, and between their heads."""

import copy
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, ClassVar, get_type_hints

import torch
from pydantic import TypeAdapter, ValidationError
from torch import Tensor

from decentnode.core import rng
from decentnode.core.payload import Layout, Payload
from decentnode.core.registry import SHARINGS, TRANSFORMS, Registry, guess, name_of
from decentnode.core.vector import AdjustGradient, ParameterLayout
from decentnode.errors import BadInput, Defect
from decentnode.graph.base import View
from decentnode.graph.mixing import WeightedGraph
from decentnode.sharing.base import Exchange, Incoming, Sharing
from decentnode.sharing.blocks.server import ServerSharing
from decentnode.sharing.fed_stc import FedStc
from decentnode.transforms.base import Transform
from decentnode.transforms.chain import Chain


@SHARINGS.register("levels")
@dataclass
class Levels(Sharing):
    """One scheme within clusters and another between their heads (HierFAVG: Liu et al., ICC 2020, Alg. 1).

    inner: x_i <- mix of the cluster;   outer, in its rounds: x_head <- mix of all heads

    With a server scheme inside, the heads are the servers: they exchange after they have added up, and before
    they send their model down, so that clients receive the mix of all heads. With fed_avg in both levels this
    is hierarchical FedAvg. Otherwise heads exchange after their clusters, and members learn of it in later
    rounds. Each level is a name, or a mapping with options and `transforms` of its own.
    """

    needs_levels: ClassVar = True
    takes_back: ClassVar = False
    mean: ClassVar = "does not keep the mean of all models"
    sends_one_payload: ClassVar = False
    wire: ClassVar = "that of the inner scheme, and for heads that of the outer one, in its rounds"
    state: ClassVar = ("_inner", "_outer")

    inner: dict[str, Any] | str = "gossip"
    outer: dict[str, Any] | str = "gossip"

    def __post_init__(self) -> None:
        self._inner, self._outer = _scheme("inner", self.inner), _scheme("outer", self.outer)
        self._transforms = [_transforms("inner", self.inner), _transforms("outer", self.outer)]
        if isinstance(self._inner, FedStc):
            raise BadInput.at(
                "inner", "fed_stc sends updates down, which a mix of heads would miss; use fed_avg"
            )
        if self._outer.adjust_gradient is not None:
            raise BadInput.at(
                "outer", f"{name_of(self._outer)} changes local steps; heads only mix: use gossip"
            )
        both = (self._inner, self._outer)
        # Of the instance: what one of its schemes cannot do, it cannot do.
        self.tolerates_loss = all(scheme.tolerates_loss for scheme in both)  # type: ignore[misc]
        self.needs_float32 = any(scheme.needs_float32 for scheme in both)  # type: ignore[misc]
        self.needs_plain_sgd = self._inner.needs_plain_sgd  # type: ignore[misc]
        self.phases = self._inner.phases + self._outer.phases  # type: ignore[misc]

    @property
    def schemes(self) -> tuple[Sharing, Sharing]:
        """The inner and the outer scheme."""
        return self._inner, self._outer

    def preserves_mean(self, chain: Chain) -> bool:
        return False

    def make_chain(
        self, transforms: Sequence[Transform], elements: int, dtype: torch.dtype = torch.float32,
        parameters: ParameterLayout | None = None,
    ) -> Chain:  # fmt: skip
        if transforms:
            raise BadInput("levels has a chain for each level: put transforms into inner and outer")
        pairs = zip(self.schemes, self._transforms, strict=True)
        self._chains = [
            scheme.make_chain(copy.deepcopy(own), elements, dtype, parameters) for scheme, own in pairs
        ]
        return Chain((), elements, dtype, parameters)

    def bind(self, layout: ParameterLayout, num_nodes: int, chain: Chain, seed: int) -> None:
        super().bind(layout, num_nodes, chain, seed)
        seeds = (seed, rng.key(seed, "outer level"))
        for scheme, own, key in zip(self.schemes, self._chains, seeds, strict=True):
            scheme.bind(layout, num_nodes, own, key)
            scheme.refusals = self.refusals

    def fit(self, graph: WeightedGraph) -> None:
        for scheme, level in zip(self.schemes, graph.levels, strict=False):
            scheme.fit(level)

    def handshake(self) -> bytes:
        return self.samples.to_bytes(8, "little")

    def receive_handshakes(self, handshakes: Mapping[int, bytes]) -> None:
        self._handshakes = handshakes
        if isinstance(self._inner, ServerSharing):
            self._inner.receive_handshakes(handshakes)

    def begin(self, vector: Tensor) -> None:
        super().begin(vector)
        for scheme in self.schemes:
            scheme.begin(vector)

    @property
    def adjust_gradient(self) -> AdjustGradient | None:
        return self._inner.adjust_gradient

    def payload_layout(self, phase: int = 0) -> Layout | None:
        before = 1 if isinstance(self._inner, ServerSharing) else self._inner.phases
        if phase < before:
            return self._inner.payload_layout(phase)
        if phase < before + self._outer.phases:
            return self._outer.payload_layout(phase - before)
        return self._inner.payload_layout(phase - self._outer.phases)

    def outgoing(self, vector: Tensor, view: View) -> Mapping[int, Payload]:
        return self._inner.outgoing(vector, view.levels[0])

    def mix(self, vector: Tensor, incoming: Incoming, view: View, out: Tensor) -> None:
        self._inner.mix(vector, incoming, view.levels[0], out)

    async def share(self, vector: Tensor, view: View, exchange: Exchange, out: Tensor) -> None:
        """The exchanges of the inner scheme, with those of the outer one between them or after them."""
        inner, outer = view.levels
        if not isinstance(self._inner, ServerSharing):
            await self._inner.share(vector, inner, exchange, out)
            await self._mix_heads(outer, exchange, out)
            return
        await self._inner.up(vector, inner, exchange, out)
        await self._mix_heads(outer, exchange, out)
        if view.rank in inner.servers:
            self._inner.adopt(out)
        await self._inner.down(inner, exchange, out)

    async def _mix_heads(self, view: View, exchange: Exchange, out: Tensor) -> None:
        """The exchanges of the outer scheme, which start from `out` and end there."""
        if not (view.targets or view.sources):
            for _ in range(self._outer.phases):
                # All nodes count the same exchanges.
                await exchange({}, ())
            return
        if isinstance(self._outer, ServerSharing):
            self._outer.receive_handshakes(
                {head: self._samples_of(ranks) for head, ranks in view.clusters.items()}
            )
        model = out.clone()
        await self._outer.share(model, view, exchange, out)
        self._outer.accept(model, view, out)

    def _samples_of(self, ranks: Sequence[int]) -> bytes:
        found = (int.from_bytes(self._handshakes[rank], "little") for rank in ranks)
        return sum(found).to_bytes(8, "little")

    def accept(self, vector: Tensor, view: View, mixed: Tensor) -> None:
        self._inner.accept(vector, view.levels[0], mixed)

    def on_peer_lost(self, rank: int) -> None:
        for scheme in self.schemes:
            scheme.on_peer_lost(rank)


def _scheme(level: str, given: Mapping[str, Any] | str) -> Sharing:
    """The scheme of a level; raises BadInput."""
    options = {"name": given} if isinstance(given, str) else dict(given)
    options.pop("transforms", None)
    found: Sharing = _made(level, SHARINGS, options)
    if found.protects or found.needs_tree or found.sends == "nothing" or isinstance(found, Levels):
        raise BadInput.at(level, f"{name_of(found)} does not work in a level; use gossip or fed_avg")
    return found


def _transforms(level: str, given: Mapping[str, Any] | str) -> list[Transform]:
    listed = [] if isinstance(given, str) else given.get("transforms") or []
    if not isinstance(listed, list):
        raise BadInput.at(f"{level}.transforms", "must be a list of transforms")
    return [_made(f"{level}.transforms[{index}]", TRANSFORMS, one) for index, one in enumerate(listed)]


def _made(where: str, registry: Registry, given: Mapping[str, Any] | str) -> Any:
    """The plug-in with its options; raises BadInput with a line for each defect."""
    options = {"name": given} if isinstance(given, str) else dict(given)
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
