"""The nodes of a run with `training.name: ddp`, each in a thread of this process."""

import asyncio
from dataclasses import replace

from decentnode.communication import InProcess
from decentnode.communication.base import HostProcess, ProcessDirectory
from decentnode.config import loader as configuration
from decentnode.config.settings import CommunicationSettings, FailureSettings
from decentnode.node.experiment import Experiment
from decentnode.node.host_process import sync_context
from tests.support.in_process import Nodes
from tests.support.rank_threads import in_threads

LONG_DEADLINES = FailureSettings(deadline=30.0, start_deadline=30.0)
RUN_ID = 5


def place_of(rank, nodes, directory):
    return ProcessDirectory(
        tuple(HostProcess(0, i, (i,), "127.0.0.1") for i in range(nodes)), rank, str(directory)
    )


class Ranks(Nodes):
    """All nodes of a configuration; they are together after `meet`."""

    def __init__(self, config, directory, *overrides):
        self.directory = directory
        settings = configuration.load(config, overrides)
        # Refused in a configuration: process groups want a process for each rank, or here a thread.
        inproc = CommunicationSettings(cls=InProcess, kind="communication", name="inproc")
        self.experiment = Experiment.from_settings(replace(settings, communication=inproc))
        super().__init__(self.experiment, directory)
        self.begin()

    def meet(self):
        count = len(self.nodes)

        def join(rank):
            node, place = self.nodes[rank], place_of(rank, count, self.directory)
            node.training.join(
                self.experiment.samples.gradient_sync.connect(
                    sync_context(LONG_DEADLINES, node, place, RUN_ID)
                )
            )

        in_threads(count, join)
        return self

    def run(self, first, end):
        async def rounds(node):
            for round in range(first, end):
                await node.run_round(round)

        in_threads(len(self.nodes), lambda rank: asyncio.run(rounds(self.nodes[rank])))
        return self

    def close(self):
        for node in self.nodes:
            node.training.reducer.close()
