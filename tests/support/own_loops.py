"""Loops of one's own in place of a run's local steps: every scheme, the same batches, the same model."""

import asyncio
from dataclasses import dataclass
from hashlib import sha256

import torch
import yaml
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

import decentnode
from decentnode.config import loader
from decentnode.config.yaml_source import Document
from decentnode.core.registry import SHARINGS
from decentnode.core.rng import generator
from decentnode.formats.model_files import model_hash
from decentnode.models.base import initial_model
from decentnode.node.checkpoint.safetensors_io import content_of
from decentnode.node.experiment import Experiment
from decentnode.node.host_process import ForkContext, _run_nodes
from decentnode.node.run_samples import RunSamples
from decentnode.sharing import Shatter
from decentnode.simulation.clock import VirtualClock
from decentnode.simulation.loop import VirtualLoop
from tests.node.test_resume import GRAPHS, OPTIONS, TRANSFORMS
from tests.support.in_process import Nodes
from tests.support.rank_threads import in_threads

NODES, ROUNDS, STEPS, RATE, BATCH = 4, 3, 2, 0.1, 8
ASYNCHRONOUS = [name for name, cls in SHARINGS.classes().items() if cls.asynchronous]
IN_ROUNDS = [name for name in SHARINGS.classes() if name not in ASYNCHRONOUS]
SIMULATED = {"name": "simulated", "latency": "30 ms", "uplink": "20 Mbit/s"}


@dataclass(kw_only=True)
class FixedShatter(Shatter):
    """Shatter with a key that is the same in every run, and so its chunks."""

    def __post_init__(self):
        super().__post_init__()
        self._private = X25519PrivateKey.from_private_bytes(bytes(32))


def sections_of(name, **changes):
    """A configuration of a scheme, as in YAML; `changes` of its sections."""
    cls = SHARINGS.find(name)
    graph = GRAPHS.get(name, "chain")
    if cls.asynchronous:
        graph = "federated" if cls.requirements.server else "ring"
    graph = yaml.safe_load(f"{{name: {graph}, nodes: {NODES}}}")
    sharing = yaml.safe_load(f"{{name: {name}, {OPTIONS.get(name, '')}}}")
    if name == "shatter":
        sharing["name"] = "tests.support.own_loops:FixedShatter"
    if name in TRANSFORMS:
        sharing["transforms"] = yaml.safe_load(f"[{TRANSFORMS[name]}]")
    servers = [0] if graph["name"] == "federated" else []
    partition = {"name": "iid", "ranks": [rank for rank in range(NODES) if rank not in servers]}
    sections = {
        "rounds": ROUNDS,
        "graph": graph,
        "dataset": {"name": "digits", "partition": partition},
        "model": {"name": "mlp", "hidden": [8]},
        "training": {
            "optimizer": {"name": "SGD", "lr": RATE}, "loss": "CrossEntropyLoss", "batch_size": BATCH,
            "steps_per_round": STEPS,
        },
        "sharing": sharing,
        "communication": "inproc",
        "evaluation": {"every": 0, "final": False, "average_model": False, "figures": False},
        "failures": {"deadline": 20.0},
    }  # fmt: skip
    if cls.asynchronous:
        sections["training"] |= {"pace": {"step_seconds": 0.02}}
        sections["time_model"] = {"name": "asynchronous", "seconds_per_round": 0.1}
    return {**sections, **changes}


def with_loop(sections, loop="awaited"):
    """The configuration of a run whose local steps are those of a loop in this module."""
    loop = f"tests.support.own_loops:{loop}"
    return {**sections, "training": {**sections["training"], "loop": loop}}


def simulated(sections):
    """The configuration of the same run in virtual time."""
    training = {"pace": {"step_seconds": 0.02}} | sections["training"]
    given = sections["communication"]
    kept = {"overlap": True} if isinstance(given, dict) and given.get("overlap") else {}
    return {**sections, "training": training, "communication": SIMULATED | kept}


def with_schedule(sections, mode, path=None):
    """The configuration of an asynchronous run that records its schedule, or replays that of a run."""
    schedule = {"schedule": mode} | ({} if path is None else {"schedule_path": str(path)})
    return {**sections, "time_model": {**sections["time_model"], **schedule}}


def settings_of(sections):
    return loader.understand(Document("x.yaml", sections))


def digest_of(model):
    """The digest of a final model, of which a run's model hash is made."""
    return sha256(content_of(model)).hexdigest()


def hash_of(models):
    """The model hash that a run with these models has, by rank."""
    return model_hash(dict(enumerate(map(digest_of, models))))


# Loops inside a run.


async def awaited(node):
    """Trains as a node's own steps do."""
    optimizer = node.use(torch.optim.SGD(node.model.parameters(), lr=RATE))
    if node.is_server:
        await node.serve()
    while not node.is_over:
        inputs, labels = node.batch()
        optimizer.zero_grad()
        loss = node.loss(node.model(inputs), labels)
        loss.backward()
        optimizer.step()
        await node.step(loss)


def blocking(node):
    """Trains as a node's own steps do, in a process of its own."""
    optimizer = node.use(torch.optim.SGD(node.model.parameters(), lr=RATE))
    if node.is_server:
        node.serve()
    while not node.is_over:
        inputs, labels = node.batch()
        optimizer.zero_grad()
        loss = node.loss(node.model(inputs), labels)
        loss.backward()
        optimizer.step()
        node.step(loss)


async def leaving(node):
    """Rank 1 exits with a code."""
    if node.rank == 1:
        raise SystemExit(3)
    await awaited(node)


class LoopNodes(Nodes):
    """All nodes of an experiment in this process, run to their end with whatever makes their steps."""

    def to_the_end(self, experiment):
        clock = self.host.clock
        context = ForkContext(
            **vars(self.host.resources), experiment=experiment, handshakes=None, start=-1, socket_dir="",
            threads=1, credentials=None,
        )  # fmt: skip
        factory = (lambda: VirtualLoop(clock)) if clock.is_virtual else None
        with asyncio.Runner(loop_factory=factory) as runner:
            codes = runner.run(_run_nodes(self.nodes, self.host.communication, context, clock))
        failures = [node.failure for node in self.nodes if node.failure is not None]
        if failures:
            raise failures[0]
        assert not any(codes)
        return self.models


def models_of(sections, folder, samples=None):
    """The models of all nodes at the end of a run in this process; `samples`: the dataset, if loaded."""
    experiment = Experiment.from_settings(settings_of(sections), samples)
    is_simulated = experiment.settings.communication.make().plan.has_virtual_time
    nodes = LoopNodes(experiment, folder, VirtualClock() if is_simulated else None)
    return nodes.to_the_end(experiment)


# Loops that join.


class OwnLoop:
    """The loop of one rank with the model, the samples and the batches of a run."""

    def __init__(self, sections, rank):
        self.settings = settings = settings_of(sections)
        self.rank = rank
        samples = RunSamples.load(settings, NODES)
        self.shard = samples.shard(rank)
        self.minibatches = settings.training.make_minibatches(self.shard)
        dataset = samples.dataset
        self.model = initial_model(
            settings.model.make(), dataset.shape, dataset.num_classes, seed=settings.seed,
            zeros=dataset.train.zeros(2),
        )  # fmt: skip
        self.criterion = torch.nn.CrossEntropyLoss()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=RATE)
        self.node = None

    def local_loss(self, model):
        """The loss of a neighbor's model on the samples that a run would draw."""
        random = generator(self.shard.seed, "local_loss", self.node.rounds, self.rank)
        chosen = random.choice(len(self.shard.indices), BATCH, replace=False)
        batch = self.shard.samples.batch(self.shard.indices[torch.from_numpy(chosen)])
        return self.criterion(model(*batch.fields), batch.labels)

    def join(self, sections, **where):
        """Joins with what the scheme asks for; `where`: arguments of `join`."""
        tests_models = SHARINGS.find(self.settings.sharing.name).requirements.local_loss
        self.node = decentnode.join(
            self.model, sections, optimizer=self.optimizer, samples=len(self.shard.indices), quiet=True,
            loss=self.local_loss if tests_models else None, **where,
        )  # fmt: skip
        return self.node

    def step(self):
        """Makes a local step of a run; returns its loss."""
        batch = self.minibatches.next()
        self.optimizer.zero_grad()
        loss = self.criterion(self.model(*batch.fields), batch.labels)
        loss.backward()
        self.optimizer.step()
        return loss

    def train(self):
        """Trains to the end of the run and leaves; returns the model, shape (d,)."""
        node = self.node
        if node.is_server:
            node.serve()
        while not node.is_over:
            node.step(self.step())
        node.leave()
        return node.vector.detach().clone()


def joined_threads(sections, run_dir):
    """The models of all nodes at the end of a run of threads that join."""
    loops = [OwnLoop(sections, rank) for rank in range(NODES)]

    def work(rank):
        loops[rank].join(sections, rank=rank, size=NODES, run_dir=str(run_dir))
        return loops[rank].train()

    return in_threads(NODES, work)
