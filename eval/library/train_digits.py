"""Trains a small network on the digits with a loop of its own, each rank on its part; prints what it reaches.

    torchrun --nproc-per-node 4 eval/library/train_digits.py [--topology ring] [--epochs 20]

Every rank has its own images and talks to its neighbors alone. At the end: the accuracy of each rank's model
and of the average of all, and how far apart they are.
"""

import argparse

import torch
from torch import nn

from decentnode import DecentralizedDataParallel
from decentnode.datasets.base import LoadedDataset
from decentnode.datasets.digits import Digits

BATCH = 32


def network() -> nn.Module:
    """Two hidden layers with a norm, whose running statistics are buffers."""
    return nn.Sequential(
        nn.Flatten(), nn.Linear(64, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU(),
        nn.Linear(32, 10),
    )  # fmt: skip


def accuracy(model: nn.Module, dataset: LoadedDataset) -> float:
    """The share of test images that the model names rightly."""
    model.eval()
    with torch.no_grad():
        images, labels = dataset.test.batch(torch.arange(len(dataset.test)))
        found = float((model(images).argmax(1) == labels).float().mean())
    model.train()
    return found


def train(topology: str, epochs: int) -> tuple[int, float, float, float]:
    """Rank, its accuracy, that of the average model, and its distance from it."""
    dataset = Digits().load(seed=0)
    model = DecentralizedDataParallel(
        network(),
        lambda parameters: torch.optim.Adam(parameters, lr=2e-3),
        topology,
        clip_norm=5.0,
    )
    own = torch.arange(model.rank, len(dataset.train), model.size)
    order = torch.Generator().manual_seed(model.rank)
    steps = len(dataset.train) // model.size // BATCH  # the same on all ranks
    for _ in range(epochs):
        shuffled = own[torch.randperm(len(own), generator=order)]
        for step in range(steps):
            images, labels = dataset.train.batch(shuffled[step * BATCH : (step + 1) * BATCH])
            loss = nn.functional.cross_entropy(model(images), labels)
            loss.backward()  # computes the gradient, mixes with the neighbors, and makes the step
    mine = accuracy(model, dataset)
    with model.averaged() as distance:
        together = accuracy(model, dataset)
    model.close()
    return model.rank, mine, together, distance


def main() -> None:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--topology", default="ring")
    options.add_argument("--epochs", type=int, default=20)
    arguments = options.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    rank, mine, together, distance = train(arguments.topology, arguments.epochs)
    print(f"rank {rank}: accuracy {mine:.4f}, of the average {together:.4f}, distance {distance:.3f}")


if __name__ == "__main__":
    main()
