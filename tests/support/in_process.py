"""Real nodes with their training, all in this process."""

import asyncio
import os
import weakref

import torch

from decentnode.communication.base import ProcessDirectory
from decentnode.communication.launcher_link.heartbeats import HeartbeatBoard
from decentnode.communication.launcher_link.reports import Reporter
from decentnode.communication.launcher_link.snapshots import EvaluatorBoard, SnapshotBuffers
from decentnode.core.clock import Clock
from decentnode.node.checkpoint import store as checkpoint
from decentnode.node.checkpoint.node_checkpoints import RunIdentity
from decentnode.node.evaluation import NodeResources
from decentnode.node.factory import NodeFactory, NodeHost
from tests.support import checkpoints


def unheard_reporter():
    """Writes to a pipe that nobody reads."""
    read, write = os.pipe()
    os.close(read)
    reporter = Reporter(write)
    weakref.finalize(reporter, os.close, write)
    return reporter


class ReadSnapshots(SnapshotBuffers):
    """Those of a run whose observer has no time to lose."""

    async def publish(self, rank, round, vector, clock):
        is_published = await super().publish(rank, round, vector, clock)
        self.release(rank, round)
        return is_published


class Nodes:
    """All nodes of an experiment, freshly made."""

    def __init__(self, experiment, directory, clock=None):
        """`clock`: a virtual one, for simulated communication."""
        directory.mkdir()
        count = experiment.graph.num_nodes
        self.identity = RunIdentity(directory / "checkpoints", "of a test")
        resources = NodeResources(
            ReadSnapshots(range(count), experiment.layout.shared.numel, experiment.layout.dtype),
            EvaluatorBoard(SnapshotBuffers([], 1), 0),
            1.0,
            unheard_reporter(),
            directory,
            HeartbeatBoard(range(count)),
            self.identity,
        )
        communication = experiment.settings.communication.make()
        if clock is not None:
            communication.prepare(ProcessDirectory(experiment.processes, 0, "", clock=clock), 0)
        executor = experiment.execution.executor_here(count)
        host = NodeHost(resources, communication, clock or Clock(), is_shared=True, executor=executor)
        self.host = host
        self.nodes = [NodeFactory(experiment).node(rank, host) for rank in range(count)]
        # Property tests make hundreds of these in one process, and a user may open 1,024 files.
        for node in self.nodes:
            weakref.finalize(self, node.records.close)
        handshakes = {node.rank: node.handshake() for node in self.nodes}
        for node in self.nodes:
            node.receive_handshakes({rank: content for rank, content in handshakes.items() if content})

    def begin(self):
        for node in self.nodes:
            node.sharing.begin(node.training.vector.shared)
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
        """Checkpoints of all nodes, by the directory that they lie in."""
        for node in self.nodes:
            state = node.snapshot()
            checkpoints.save(self.identity.directory, node.rank, node.round, state, self.identity.stamp)
        return self.identity.directory

    def load(self, saved):
        for node in self.nodes:
            node.restore(checkpoint.newest(saved, node.rank).state)
        return self

    @property
    def models(self):
        return torch.stack([node.training.vector.values for node in self.nodes]).clone()

    @property
    def bytes_sent(self):
        return sum(node.exchange.endpoint.counters.sent for node in self.nodes)
