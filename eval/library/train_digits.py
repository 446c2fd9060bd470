"""Trains a small network on the digits with a loop of its own, each rank on its part; prints what it reaches.

    torchrun --nproc-per-node 4 eval/library/train_digits.py [--topology ring] [--epochs 20] [--all-reduce]
        [--device cpu|cuda] [--communication auto|zeromq|torch_distributed]

Every rank has its own images and talks to its neighbors alone. At the end: the accuracy of each rank's model
and of the average of all, and how far apart they are. With --all-reduce the same loop trains one model with
torch's DistributedDataParallel, for comparison.
"""

import argparse
import os
from collections.abc import Iterator

import torch
import torch.distributed as dist
from torch import Tensor, nn

from decentnode import DecentralizedDataParallel
from decentnode.datasets.base import LoadedDataset
from decentnode.datasets.digits import Digits

BATCH = 32
RATE = 2e-3
KEPT: list[nn.Module] = []
"""Torch waits for the threads of a process group that ends; they may wait for the interpreter then."""


def network() -> nn.Module:
    """Two hidden layers with a norm, whose running statistics are buffers."""
    return nn.Sequential(
        nn.Flatten(), nn.Linear(64, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU(),
        nn.Linear(32, 10),
    )  # fmt: skip


def accuracy(model: nn.Module, dataset: LoadedDataset) -> float:
    """The share of test images that the model names rightly."""
    model.eval()
    device = next(model.parameters()).device
    with torch.no_grad():
        images, labels = dataset.test.batch(torch.arange(len(dataset.test)))
        accuracy_ = float((model(images.to(device)).argmax(1) == labels.to(device)).float().mean())
    model.train()
    return accuracy_


def own_part(dataset: LoadedDataset, rank: int, size: int, epochs: int) -> Iterator[tuple[Tensor, Tensor]]:
    """The batches of one rank, as many as every other has, in a new order in each epoch."""
    own_rows = torch.arange(rank, len(dataset.train), size)
    order = torch.Generator().manual_seed(rank)
    for _ in range(epochs):
        shuffled = own_rows[torch.randperm(len(own_rows), generator=order)]
        for step in range(len(dataset.train) // size // BATCH):
            yield dataset.train.batch(shuffled[step * BATCH : (step + 1) * BATCH])


def train(topology: str, epochs: int, device: torch.device, communication: str) -> str:
    """What came of it on this rank."""
    dataset = Digits().load(seed=0)
    if communication == "torch_distributed" and device.type == "cuda":
        transport = {
            "name": communication,
            "share_gpu": int(os.environ["WORLD_SIZE"]) > torch.cuda.device_count(),
        }
    else:
        transport = {"name": communication}
    model = DecentralizedDataParallel(
        network().to(device),
        lambda parameters: torch.optim.Adam(parameters, lr=RATE),
        topology,
        clip_norm=5.0,
        communication=communication if communication == "auto" else transport,
    )
    for images, labels in own_part(dataset, model.rank, model.size, epochs):
        images, labels = images.to(device), labels.to(device)
        loss = nn.functional.cross_entropy(model(images), labels)
        loss.backward()  # computes the gradient, mixes with the neighbors, and makes the step
    mine = accuracy(model, dataset)
    with model.averaged() as distance:
        together = accuracy(model, dataset)
    model.close()
    return f"rank {model.rank}: accuracy {mine:.4f}, of the average {together:.4f}, distance {distance:.3f}"


def train_all_reduce(epochs: int) -> str:
    """The same with one model, whose gradients are averaged over all ranks."""
    dataset = Digits().load(seed=0)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    model = nn.parallel.DistributedDataParallel(network())
    KEPT.append(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=RATE)
    for images, labels in own_part(dataset, rank, dist.get_world_size(), epochs):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images), labels).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        optimizer.step()
    reached = accuracy(model, dataset)
    dist.destroy_process_group()
    return f"rank {rank}: accuracy {reached:.4f} by all-reduce"


def main() -> None:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--topology", default="ring")
    options.add_argument("--epochs", type=int, default=20)
    options.add_argument("--all-reduce", action="store_true")
    options.add_argument("--device", default="cpu")
    options.add_argument("--communication", default="auto", choices=("auto", "zeromq", "torch_distributed"))
    arguments = options.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    if arguments.all_reduce:
        print(train_all_reduce(arguments.epochs))
    else:
        device = torch.device(arguments.device)
        print(train(arguments.topology, arguments.epochs, device, arguments.communication))


if __name__ == "__main__":
    main()
