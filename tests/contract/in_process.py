"""Real nodes with their training, all in this process."""

import asyncio
import io
import os

import torch

from decentnode.beacons import Beacons
from decentnode.checkpointing import Lineage
from decentnode.clock import Clock
from decentnode.experiment import Surroundings
from decentnode.reports import Reporter
from decentnode.snapshots import Snapshots


class Nodes:
    """All nodes of an experiment, freshly made."""

    def __init__(self, experiment, directory):
        directory.mkdir()
        count = experiment.graph.num_nodes
        self.lineage = Lineage(directory / "checkpoints", "of a test")
        surroundings = Surroundings(
            experiment.settings.communication.make(),
            Snapshots(range(count), experiment.layout.numel),
            Reporter(os.open(os.devnull, os.O_WRONLY)),
            directory,
            Clock(),
            Beacons(range(count)),
            self.lineage,
            shares_process=True,
        )
        self.nodes = [experiment.build(rank, surroundings) for rank in range(count)]
        introductions = {node.rank: node.sharing.introduction() for node in self.nodes}
        for node in self.nodes:
            node.sharing.meet({rank: said for rank, said in introductions.items() if said})

    def begin(self):
        for node in self.nodes:
            node.sharing.begin(node.training.vector.values)
        return self

    def run(self, first, end):
        async def rounds(node):
            for round in range(first, end):
                await node.run_round(round)

        async def everybody():
            await asyncio.gather(*map(rounds, self.nodes))

        asyncio.run(everybody())
        return self

    def saved(self):
        """Every node's state as bytes, by a format that holds tensors and plain values only."""
        found = []
        for node in self.nodes:
            torch.save(node.state_dict(), buffer := io.BytesIO())
            found.append(buffer.getvalue())
        return found

    def load(self, saved):
        for node, state in zip(self.nodes, saved, strict=True):
            node.load_state_dict(torch.load(io.BytesIO(state), weights_only=True))
        return self

    @property
    def models(self):
        return torch.stack([node.training.vector.values for node in self.nodes]).clone()

    @property
    def bytes_sent(self):
        return sum(node.exchange.endpoint.counters.sent for node in self.nodes)
