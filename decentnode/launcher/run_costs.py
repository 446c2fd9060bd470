"""What the parts of a round take on this machine, from a few of them."""

import time
from dataclasses import dataclass

import torch

from decentnode.core.byte_counters import HEADER_BYTES
from decentnode.node.dry_round import DryNodes
from decentnode.node.experiment import Experiment

TIMED_STEPS = 3
SHARED_ROUNDS = 4
"""Some schemes send other amounts in other rounds."""


@dataclass(frozen=True)
class Costs:
    """The costs of one node."""

    step_seconds: float
    """A local step, without the optimizer."""
    share_seconds: float
    """Encode, decode and mix."""
    test_seconds: float
    """An evaluation on all test samples."""
    sent_bytes: float
    """Bytes sent to one neighbor in a round, with headers."""


def measure(experiment: Experiment) -> Costs:
    """Times a few steps, a few exchanges and a batch of the evaluation; changes global state of plug-ins."""
    nodes = DryNodes(experiment)
    # The first step also allocates, and imports what it needs.
    nodes.train()
    began = time.perf_counter()
    for _ in range(TIMED_STEPS):
        nodes.train()
    stepped = time.perf_counter()
    for round in range(SHARED_ROUNDS):
        for _ in nodes.share(round):
            pass
    shared = time.perf_counter()
    tests, size = experiment.samples.dataset.test, experiment.plan.batch_size
    with torch.inference_mode():
        nodes.objective(tests.batch(torch.arange(min(size, len(tests)))))
    tested = time.perf_counter()
    sent = sum(nodes.sent) + HEADER_BYTES * len(nodes.sent)
    return Costs(
        experiment.settings.training.accumulate * (stepped - began) / TIMED_STEPS,
        (shared - stepped) / len(nodes.ranks) / SHARED_ROUNDS,
        (tested - shared) * max(1.0, len(tests) / size),
        sent / nodes.receivers if nodes.receivers else 0.0,
    )


def steps(experiment: Experiment, rank: int, round: int) -> int:
    """Returns the local steps of a node in a round."""
    training = experiment.settings.training
    per_epoch = training.make_minibatches(experiment.samples.shard(rank)).steps_per_epoch(training.accumulate)
    return training.steps(rank, round, per_epoch)
