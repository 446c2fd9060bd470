"""A real node without samples: it goes through its rounds as always, and exchanges and mixes."""

import os
from dataclasses import dataclass
from pathlib import Path

import torch
from _raw_exchange import Stopwatch
from torch import nn

from decentnode.communication.base import BufferSpec, Communication, Endpoint, HostProcess, ProcessDirectory
from decentnode.communication.launcher_link.heartbeats import HeartbeatBoard
from decentnode.communication.launcher_link.reports import Reporter
from decentnode.communication.security.curve import Credentials
from decentnode.communication.torch_distributed.plugin import TorchDistributed
from decentnode.communication.zeromq.plugin import ZeroMQ
from decentnode.core.clock import Clock
from decentnode.core.timeouts import Timeouts
from decentnode.core.vector import ModuleTensors, ParameterLayout, Vector
from decentnode.datasets.base import Samples
from decentnode.formats.records import RecordFile, Records
from decentnode.graph.families import FullyConnected
from decentnode.graph.mixing import MetropolisHastings, WeightedGraph
from decentnode.node.checkpoint.node_checkpoints import NodeCheckpoints, RunIdentity
from decentnode.node.local_update import AdaptThenCombine
from decentnode.node.participant import Participant
from decentnode.node.round_exchange import RoundExchange
from decentnode.node.round_scheduler import RoundScheduler
from decentnode.sharing.base import Setup
from decentnode.sharing.gossip import Gossip
from decentnode.training.minibatches import Shard
from decentnode.training.settings import Factory, TrainingSettings
from decentnode.training.training import Training
from decentnode.transforms.chain import Chain

RUN_ID = 1
TIMEOUT = 60.0
NO_SAMPLES = Samples(torch.empty(0, 1), torch.empty(0, dtype=torch.int64))


@dataclass(frozen=True)
class NodeCase:
    """One run of the product's nodes."""

    local: str
    nodes: int
    elements: int
    rounds: int
    warm_up: int
    base_port: int
    directory: Path
    credentials: Credentials | None = None
    """What guards links over TCP."""


class OneTensor(nn.Module):
    """A model that is nothing but a vector."""

    def __init__(self, elements: int, value: float) -> None:
        super().__init__()
        self.vector = nn.Parameter(torch.full((elements,), value))


async def run_rounds(node: Participant, case: NodeCase) -> dict[str, float]:
    """All rounds, timed from the end of the warm-up."""
    watch = Stopwatch(case.warm_up)
    for round in range(case.rounds):
        watch.round(round)
        await node.run_round(round)
    return watch.stop(node.vector.values)


def open_communication(case: NodeCase, rank: int) -> tuple[Communication, Endpoint]:
    """The transport of one process, bound and not yet connected, and the node's end of it."""
    communication: Communication
    if case.local == "gloo":
        communication = TorchDistributed(backend="gloo")
    else:
        communication = ZeroMQ(local=case.local, base_port=case.base_port)  # type: ignore[arg-type]
    processes = tuple(HostProcess(0, i, (i,), "127.0.0.1") for i in range(case.nodes))
    place = ProcessDirectory(processes, rank, str(case.directory), credentials=case.credentials)
    communication.prepare(place, 4 * case.elements)
    return communication, communication.endpoint(rank, BufferSpec(case.elements))


def build_node(case: NodeCase, rank: int, endpoint: Endpoint) -> Participant:
    """D-PSGD's averaging on a complete graph, starting from the vector that is `rank` everywhere."""
    clock, reporter = Clock(), Reporter(os.pipe()[1])
    network = OneTensor(case.elements, float(rank))
    layout = ParameterLayout.of(network)
    settings = TrainingSettings(Factory(torch.optim.SGD, {"lr": 0.1}), steps_per_round=0)
    shard = Shard(NO_SAMPLES, torch.empty(0, dtype=torch.int64), 1, rank)
    training = Training(Vector(ModuleTensors(network, layout), endpoint.slots), settings, shard)
    graph = WeightedGraph(FullyConnected(case.nodes), MetropolisHastings())
    sharing = Gossip()
    sharing.bind(Setup(layout, Chain([], case.elements), graph))
    heartbeats, identity = HeartbeatBoard([rank]), RunIdentity(case.directory, "")
    course = RoundScheduler(case.rounds, endpoint, heartbeats, clock)
    exchanger = RoundExchange(endpoint, sharing, clock, reporter, course.heartbeat, Timeouts(*[TIMEOUT] * 4))
    records = Records(RecordFile(case.directory, [rank]))
    checkpoints = NodeCheckpoints(identity, 0, False, reporter, rank, course, records)
    adaptation = AdaptThenCombine(training, course.heartbeat, clock)
    return Participant(
        rank=rank, local_steps=training, adaptation=adaptation, graph=graph, sharing=sharing,
        exchange=exchanger, records=records, scheduler=course, checkpoints=checkpoints,
    )  # fmt: skip
