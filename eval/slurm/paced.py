"""Gossip whose rounds take a while, so that a short run lasts until a job's limit of time."""

import time
from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from decentnode.core.payload import Payload
from decentnode.graph.base import View
from decentnode.sharing import Gossip


@dataclass
class Paced(Gossip):
    """Gossip with a pause before each exchange."""

    pause: float = 0.5

    def outgoing(self, vector: Tensor, view: View) -> Mapping[int, Payload]:
        time.sleep(self.pause)
        return super().outgoing(vector, view)
