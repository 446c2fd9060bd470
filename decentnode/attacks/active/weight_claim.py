"""A wrong claim about a weight that a scheme sends."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from torch import Tensor

from decentnode.attacks.base import Adversarial, Attack, Seen
from decentnode.core.payload import Payload
from decentnode.core.registry import ATTACKS, name_of
from decentnode.errors import Defect
from decentnode.graph.base import Graph, View
from decentnode.options import PositiveFloat
from decentnode.sharing.base import Setup, Sharing
from decentnode.sharing.blocks.buffers import AveragedBuffers
from decentnode.sharing.blocks.server import ServerSharing
from decentnode.sharing.push_sum import WEIGHT, PushSum


@ATTACKS.register("weight_claim")
@dataclass(kw_only=True)
class WeightClaim(Attack):
    """Claims `factor` times the weight that it has (the premise of Kempe et al., FOCS 2003, fails).

    push_sum: sends z as it is, with factor w; so x = z / w of all others shrinks for a factor above 1, and
    grows for one below. Schemes with a server that average by samples: introduces itself with factor n_i
    samples, rounded. Where receivers know the weights from the graph, no claim is made: `scaling` is the
    same lie there.
    """

    knowledge = "its own weight"

    factor: PositiveFloat = 10.0

    def lie(self, model: Tensor, view: View, seen: Seen, target: int | None) -> Tensor:
        return model

    def defects(self, graph: Graph, sharing: Sharing) -> Iterator[Defect]:
        yield from super().defects(graph, sharing)
        by_samples = isinstance(sharing, ServerSharing) and sharing.average == "samples"
        if not (by_samples or isinstance(sharing, PushSum)):
            yield Defect(
                (),
                f"{name_of(sharing)} sends no weight; use scaling, or push_sum, or a scheme with a server "
                "and average: samples",
            )

    def wrap(self, scheme: Sharing) -> Sharing:
        if isinstance(scheme, AveragedBuffers) and isinstance(scheme.scheme, PushSum):
            # Inside, where a payload is that of push_sum.
            return AveragedBuffers(Claiming(scheme.scheme, self))
        return Claiming(scheme, self)


class Claiming(Adversarial):
    """A scheme whose node lies about its weight alone: about w in push_sum, else about its samples."""

    attack: WeightClaim

    def adjust_setup(self, setup: Setup) -> Setup:
        return replace(setup, samples=round(self.attack.factor * setup.samples))

    def outgoing(self, vector: Tensor, view: View) -> Mapping[int, Payload]:
        sent = super().outgoing(vector, view)
        if view.round < self.attack.first_round or not (sent and isinstance(self.scheme, PushSum)):
            return sent
        payload = next(iter(sent.values()))  # push_sum sends all targets the same
        inner, weight = WEIGHT.split(payload, self.scheme.chain.layout)
        return dict.fromkeys(sent, WEIGHT.join(inner, weight * self.attack.factor))
