"""Ranks of DecentralizedDataParallel as threads or processes, and the same training by dense matrices."""

import copy
import os
from dataclasses import dataclass, field

import torch
import torch._dynamo  # or every forked process would import it at its first optimizer
from torch import nn

from decentnode import DecentralizedDataParallel
from decentnode.errors import DecentnodeError
from decentnode.parallel.rendezvous import ThreadRendezvous
from tests.support.processes import FORK, free_ports
from tests.support.rank_threads import in_threads

LIMIT = 30.0


def in_rank_threads(size, work, limit=LIMIT):
    """What `work(rank, rendezvous)` gives on each rank; the first error is raised."""
    rendezvous = ThreadRendezvous(size)
    return in_threads(size, lambda rank: work(rank, rendezvous.join(rank)), limit)


def small_network(seed=0):
    """Three layers in float64; made before threads are, because torch's generator is one for all."""
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3), nn.Tanh(), nn.Linear(3, 2)).double()


def flat(module):
    return torch.cat([p.detach().reshape(-1) for p in module.parameters()])


def batches(rank, steps, inputs=4, outputs=2):
    draw = torch.Generator().manual_seed(1000 + rank)
    options = {"generator": draw, "dtype": torch.float64}
    return [(torch.randn(6, inputs, **options), torch.randn(6, outputs, **options)) for _ in range(steps)]


def loss_of(model, batch):
    return (model(batch[0]) - batch[1]).square().mean()


@dataclass
class Run:
    """One training: how the ranks are wrapped, and how they train."""

    network: nn.Module = field(default_factory=small_network)
    optimizer: object = lambda p: torch.optim.SGD(p, lr=0.1)
    topology: object = "ring"
    steps: int = 4
    accumulation: int = 1
    options: dict = field(default_factory=dict)

    def wrap(self, rendezvous, **more):
        return DecentralizedDataParallel(
            copy.deepcopy(self.network),
            self.optimizer,
            self.topology,
            rendezvous=rendezvous,
            **self.options | more,
        )

    def train(self, model, rank, first=0, last=None):
        """Steps `first` to `last` of this rank's own batches."""
        steps = self.steps if last is None else last
        mine = batches(rank, self.steps * self.accumulation)
        for step in range(first, steps):
            *others, final = mine[step * self.accumulation : (step + 1) * self.accumulation]
            model.zero_grad()
            with model.no_sync():
                for batch in others:
                    loss_of(model, batch).backward()
            loss_of(model, final).backward()
            if model.options.update_in == "step":
                model.optimizer.step()

    def models(self, size):
        """The parameters of all ranks after the training, shape (size, d)."""

        def work(rank, rendezvous):
            model = self.wrap(rendezvous)
            self.train(model, rank)
            parameters = flat(model)
            model.close()
            return parameters

        return torch.stack(in_rank_threads(size, work))

    def oracle(self, size, matrix_at, rests=lambda rank, step: False):
        """The same by the equations: `matrix_at(t)` is W of step t, mixing strength included.

        The optimizer of a rank that `rests` makes no step.
        """
        networks = [copy.deepcopy(self.network) for _ in range(size)]
        optimizers = [self.optimizer(list(net.named_parameters())) for net in networks]
        every = [batches(rank, self.steps * self.accumulation) for rank in range(size)]
        x = torch.stack([flat(net) for net in networks])
        for step in range(self.steps):
            stepped = []
            for rank, net in enumerate(networks):
                nn.utils.vector_to_parameters(x[rank].clone(), net.parameters())
                net.zero_grad()
                for batch in every[rank][step * self.accumulation : (step + 1) * self.accumulation]:
                    loss_of(net, batch).backward()
                if not rests(rank, step):
                    optimizers[rank].step()
                stepped.append(flat(net))
            w, y = matrix_at(step), torch.stack(stepped)
            late = self.options.get("scheme") == "adapt_then_combine"
            x = w @ y if late else w @ x + (y - x)
        return x


def in_rank_processes(size, work, limit=60.0, absent=(), mute=()):
    """What `work(rank)` gives in a process for each rank, as torchrun would start it, or the error it raised.

    Ranks that are `absent` are not started, and those that are `mute` answer nothing.
    """
    port, answers = free_ports(1), FORK.Queue()

    def perform(rank):
        torch.set_num_threads(1)
        place = {"RANK": rank, "WORLD_SIZE": size, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        os.environ.update({name: str(value) for name, value in place.items()})
        try:
            answers.put((rank, work(rank)))
        except DecentnodeError as error:
            answers.put((rank, f"{type(error).__name__}: {error}"))
        answers.close()
        answers.join_thread()

    ranks = [rank for rank in range(size) if rank not in absent]
    children = [FORK.Process(target=perform, args=(rank,), daemon=True) for rank in ranks]
    for child in children:
        child.start()
    try:
        results = dict(answers.get(timeout=limit) for _ in range(len(ranks) - len(mute)))
        for child in children:
            child.join(limit)
            assert child.exitcode == 0
        return results
    finally:
        for child in children:
            child.kill()
