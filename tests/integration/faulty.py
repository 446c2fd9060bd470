"""Plug-ins that fail on purpose, named from YAML as `faulty:Class`."""

from dataclasses import dataclass

from decentnode.sharing import Gossip


@dataclass
class RaisesAt(Gossip):
    """Gossip that raises at one rank in one round."""

    rank: int = 0
    round: int = 3
    memory: bool = False

    def outgoing(self, vector, view):
        if (view.rank, view.round) == (self.rank, self.round):
            raise MemoryError("no room") if self.memory else RuntimeError("a defect on purpose")
        return super().outgoing(vector, view)
