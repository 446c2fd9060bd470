"""Nodes that take long, of launchers that have less patience than others; named `impatient:Slow` in YAML."""

import time
from dataclasses import dataclass

from decentnode.launcher import graceful_stop as stopping
from decentnode.sharing import Gossip

stopping.MOST_SECONDS = 1.5
STEP = 0.3


@dataclass
class Slow(Gossip):
    """Gossip under which one rank takes long for each step of a round."""

    only: int = 1
    round: int = 3

    def outgoing(self, vector, view):
        self.begun = (view.rank, view.round + 1)
        return super().outgoing(vector, view)

    @property
    def adjust_gradient(self):
        def adjust(gradient, vector, step):
            if getattr(self, "begun", None) == (self.only, self.round):
                time.sleep(STEP)

        return adjust
