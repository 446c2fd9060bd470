"""The baseline without communication."""

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from decentnode.core.payload import Layout, Payload
from decentnode.core.registry import SHARINGS
from decentnode.graph.base import View
from decentnode.sharing.base import Exchange, Incoming, Promises, Sharing


@SHARINGS.register("none", "local", "no_communication")
@dataclass
class NoSharing(Sharing):
    """Never communicates: every node trains alone (the lower baseline of Lian et al., NeurIPS 2017)."""

    promises = Promises(by_coordinate=True, keeps_mean=True, overlaps=True, sends="nothing", wire="0")

    def payload_layout(self, phase: int = 0) -> Layout | None:
        return None

    def outgoing(self, vector: Tensor, view: View) -> Mapping[int, Payload]:
        return {}

    def mix(self, vector: Tensor, incoming: Incoming, view: View, out: Tensor) -> None:
        out.copy_(vector)

    async def share(self, vector: Tensor, view: View, exchange: Exchange, out: Tensor) -> None:
        """Exchanges nothing."""
        self.mix(vector, {}, view, out)
