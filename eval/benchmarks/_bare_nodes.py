"""Hand-written counterpart of a start: processes forked from one that has torch, each training alone.

    python eval/benchmarks/_bare_nodes.py NODES STEPS

Prints when (Unix time) the last process had made its first step and when all had made all of theirs.
"""

import json
import sys
import time

import torch
import torch._dynamo
from _forked import run_forked
from torch import nn

from decentnode.datasets.digits import Digits

HIDDEN, BATCH = 64, 16


def main() -> None:
    nodes, steps = int(sys.argv[1]), int(sys.argv[2])
    torch.set_num_threads(1)
    train = Digits().load(1).train

    def work(rank: int) -> list[float]:
        model = nn.Sequential(nn.Flatten(), nn.Linear(64, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, 10))
        optimizer, loss = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), nn.CrossEntropyLoss()
        times = []
        for step in range(steps):
            inputs, labels = train.batch((torch.arange(BATCH) + BATCH * (rank + step)) % len(train))
            optimizer.zero_grad()
            loss(model(inputs), labels).backward()
            optimizer.step()
            times.append(time.time())
        return [times[0], times[-1]]

    times = run_forked(range(nodes), work)
    print(json.dumps({"first": max(first for first, _ in times), "last": max(last for _, last in times)}))


if __name__ == "__main__":
    main()
