"""What a receiver makes of payloads that it cannot read one by one: its scheme runs again on what arrived.

The scheme mixes linearly. Run with an own model of zeros and with one of ones, it tells the sum of what
others sent, and the weight that this had at each coordinate.
"""

import asyncio
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from decentnode.attacks.passive.scene import Scene
from decentnode.core.payload import Payload
from decentnode.graph.relayed import Relayed
from decentnode.sharing.blocks.masked_sums import MaskedSums
from decentnode.sharing.shatter import Shatter, use_key

LEAST_WEIGHT = 1e-6
Phases = Sequence[Mapping[int, Payload]]
"""The payloads that arrived in each exchange of a round, by source."""


def is_mixed(scheme: object) -> bool:
    """Whether a receiver learns a mean of several models, and none of them alone."""
    return isinstance(scheme, MaskedSums | Shatter)


class MixReplay:
    """The scheme of one receiver, as it would run on two models of its own."""

    def __init__(self, scene: Scene, rank: int, key: bytes = b"") -> None:
        """`key`: the private key of the rank, where its scheme decrypts with one."""
        self._scene, self._rank = scene, rank
        self._pair = [scene.scheme(rank), scene.scheme(rank)]
        # What would be sent is discarded, so any keys of others do.
        others = scene.scheme(rank)
        made_up = dict.fromkeys(range(scene.graph.num_nodes), others.handshake())
        for scheme in self._pair:
            scheme.receive_handshakes(
                {rank: scheme.handshake()} | {j: k for j, k in made_up.items() if j != rank}
            )
            scheme.begin(scene.initial)
            if isinstance(scheme, Shatter) and key:
                use_key(scheme, key)

    def read(self, round: int, phases: Phases, known: Tensor) -> dict[int, Tensor]:
        """Returns the mean of arrived values by possible origin, shape (d,); `known` where none arrived."""
        view = self._scene.graph.view(self._rank, round, 0.0)
        outs = []
        for scheme, value in zip(self._pair, (0.0, 1.0), strict=True):
            own_model, left = torch.full_like(self._scene.initial, value), iter(phases)

            async def exchange(
                outgoing: Mapping[int, Payload], sources: Sequence[int], left: object = left
            ) -> dict[int, Payload]:
                arrived: Mapping[int, Payload] = next(left, {})  # type: ignore[call-overload]
                return {source: arrived[source] for source in sources if source in arrived}

            out = own_model.clone()
            asyncio.run(scheme.share(own_model, view, exchange, out=out))
            outs.append(out.double())
        weight = 1 - (outs[1] - outs[0])
        has_any = weight > LEAST_WEIGHT
        if not has_any.any():
            return {}
        mean = torch.where(has_any, outs[0] / weight.clamp(min=LEAST_WEIGHT), known.double()).float()
        graph, origins = self._scene.graph.graph, sorted(phases[-1])
        if isinstance(self._pair[0], Shatter) and isinstance(graph, Relayed):
            origins = sorted(graph.neighbors.targets(self._rank, round))
        return dict.fromkeys(origins, mean)
