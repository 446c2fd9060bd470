"""Plug-ins that fail on purpose, named from YAML as `faulty:Class`."""

import os
import signal
import threading
import time
import traceback
from dataclasses import dataclass
from pathlib import Path

import torch

from decentnode.communication.zeromq.plugin import ZeroMQ
from decentnode.graph.overlays.peer_sampler import PeerSampler
from decentnode.sharing import Gossip
from decentnode.sharing.asynchronous.push_gossip import PushGossip


@dataclass
class Paced(Gossip):
    """Gossip whose rounds take a while, so that waiting for what happens meanwhile costs next to nothing."""

    pace: float = 0.02

    def outgoing(self, vector, view):
        time.sleep(self.pace)
        return super().outgoing(vector, view)


def ends_when_told(round, means, path):
    """Ends the run after an evaluation, once a file is there; for `after_round`."""
    return Path(path).exists()


@dataclass
class RaisesAt(Paced):
    """Gossip that raises at one rank in one round."""

    pace: float = 0.0
    rank: int = 0
    round: int = 3
    memory: bool = False

    def outgoing(self, vector, view):
        if (view.rank, view.round) == (self.rank, self.round):
            raise MemoryError("no room") if self.memory else RuntimeError("a defect on purpose")
        return super().outgoing(vector, view)


@dataclass
class PushRaisesAt(PushGossip):
    """Asynchronous push gossip that raises at rank 2 in its first step from the third window on."""

    def after_step(self, vector, view):
        if view.rank == 2 and view.round >= 2:
            raise RuntimeError("a defect on purpose")
        return super().after_step(vector, view)


@dataclass
class HangsInTraining(Paced):
    """Gossip under which one rank, or all, sleep for ever in the first step of a round."""

    pace: float = 0.0
    only: int = -1
    round: int = 0

    def outgoing(self, vector, view):
        self.rank, self.begun = view.rank, view.round + 1
        return super().outgoing(vector, view)

    @property
    def adjust_gradient(self):
        def adjust(gradient, vector, step):
            is_dry = any(frame.filename.endswith("dry_round.py") for frame in traceback.extract_stack())
            if is_dry:
                return
            if getattr(self, "begun", 0) == self.round and self.only in (-1, getattr(self, "rank", -1)):
                time.sleep(1000)

        return adjust


class RaisesInTheObserver(torch.nn.CrossEntropyLoss):
    """A loss that nobody but the nodes can compute."""

    def forward(self, scores, labels):
        if threading.current_thread().name == "decentnode-observer":
            raise RuntimeError("no loss of a mean")
        return super().forward(scores, labels)


class GivesNoNumbers(torch.nn.Sequential):
    """A network whose scores are no numbers whenever it is tested."""

    def __init__(self):
        super().__init__(torch.nn.Flatten(), torch.nn.Linear(64, 10))

    def forward(self, inputs):
        return super().forward(inputs) * (1.0 if self.training else torch.nan)


@dataclass
class LogsModels(Gossip):
    """Gossip that says what each model was before and after each mix."""

    def accept(self, vector, view, mixed):
        print(f"mixed in {view.round}: {[vector.tolist(), mixed.tolist()]}", flush=True)


@dataclass
class LeavesSlowly(ZeroMQ):
    """ZeroMQ of a process whose last messages need a while: it says when they are out."""

    def close(self, timeout):
        time.sleep(1.0)
        super().close(timeout)
        print(f"has left, with {timeout:.0f} s for it", flush=True)


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
                time.sleep(0.3)

        return adjust


class DyingService(PeerSampler):
    """A graph whose service is killed when it is to send the third block."""

    def answer(self, number):
        if number == 2 and Path("/proc/self/fd/1").readlink().name == "peer-sampling.log":
            os.kill(os.getpid(), signal.SIGKILL)
        return super().answer(number)
