"""Hand-written counterpart of the experiment: the same steps and tests of LeNet, and nothing else.

    python eval/benchmarks/_bare_experiment.py IMAGES STEPS TESTS PROCESSES

Each process makes its share of all steps, and of all tests of a model on the test images.
"""

import sys
from pathlib import Path

import torch
import torch._dynamo
from _forked import run_forked
from torch import nn

from decentnode.datasets.cifar10 import Cifar10
from decentnode.models.lenet import LeNet

BATCH, TEST_BATCH = 8, 64


def main() -> None:
    directory, steps, tests, processes = Path(sys.argv[1]), *map(int, sys.argv[2:])
    torch.set_num_threads(1)
    dataset = Cifar10(path=str(directory)).load(1)

    def share(whole: int, rank: int) -> int:
        return whole * (rank + 1) // processes - whole * rank // processes

    def work(rank: int) -> float:
        model = LeNet().build(dataset.shape, dataset.num_classes)
        model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        optimizer, loss = torch.optim.SGD(model.parameters(), lr=0.01), nn.CrossEntropyLoss()
        for step in range(share(steps, rank)):
            indices = (torch.arange(BATCH) + BATCH * step) % len(dataset.train)
            inputs, labels = dataset.train.batch(indices)
            optimizer.zero_grad()
            loss(model(inputs.contiguous(memory_format=torch.channels_last)), labels).backward()
            optimizer.step()
        model.eval()
        correct = 0
        with torch.inference_mode():
            for _ in range(share(tests, rank)):
                for first in range(0, len(dataset.test), TEST_BATCH):
                    indices = torch.arange(first, min(first + TEST_BATCH, len(dataset.test)))
                    inputs, labels = dataset.test.batch(indices)
                    scores = model(inputs.contiguous(memory_format=torch.channels_last))
                    loss(scores, labels).item()
                    correct += int((scores.argmax(1) == labels).sum())
        return correct / max(1, share(tests, rank) * len(dataset.test))

    run_forked(range(processes), work)


if __name__ == "__main__":
    main()
