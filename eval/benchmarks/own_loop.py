"""What a loop of one's own costs: `decentnode launch` beside `decentnode run` of the same training.

    python eval/benchmarks/own_loop.py [SIZE ...] [--pairs N] [--small]

SIZE is how many parameters the model has, such as 1e5. Two nodes train the same network on batches of digits,
one step in each round, over shared memory. Times are those of a round, by the records of the nodes; both
commands take turns.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from _report import Target, conclude, median, parser, show
from torch import nn
from torch.nn import functional as F

import decentnode
from decentnode.datasets.digits import Digits

NODES, BATCH, WARM_UP, ROUNDS = 2, 16, 50, 400
MOST_OVERHEAD = 0.05
INPUTS, CLASSES = 64, 10


def hidden(size: int) -> int:
    """The width of a perceptron with about so many parameters."""
    return (size - CLASSES) // (INPUTS + CLASSES + 1)


def train(size: int, run_dir: str) -> None:
    """The script: a plain loop over batches of digits."""
    digits = Digits().load(1).train
    images, numbers = digits.batch(torch.arange(len(digits)))
    torch.manual_seed(1)
    width = hidden(size)
    model = nn.Sequential(nn.Linear(INPUTS, width), nn.ReLU(), nn.Linear(width, CLASSES))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    node = decentnode.join(
        model, optimizer=optimizer, graph="fully_connected", sharing="gossip", run_dir=run_dir,
        checkpoint={"final": False},
    )  # fmt: skip
    inputs, labels = (t.chunk(node.size)[node.rank] for t in (images.flatten(1), numbers))
    random = node.generator("batches")
    for _ in range(ROUNDS):
        rows = torch.randint(len(labels), (BATCH,), generator=random)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(inputs[rows]), labels[rows])
        loss.backward()
        optimizer.step()
        node.step(loss)
    node.leave()


def seconds_per_round(run_dir: Path) -> float:
    """The mean over nodes of the seconds of a round, without the first ones."""
    times = []
    for path in sorted((run_dir / "records").glob("*.jsonl")):
        ended = [json.loads(line)["seconds"] for line in path.read_text().splitlines()]
        times.append((ended[-1] - ended[WARM_UP]) / (len(ended) - 1 - WARM_UP))
    return statistics.fmean(times)


def run_once(kind: str, size: int, folder: Path) -> float:
    """The seconds of a round of one of both commands."""
    command = [sys.executable, "-m", "decentnode"]
    run_dir = folder / f"{kind}-{size}-{len(list(folder.iterdir()))}"
    if kind == "run":
        overrides = [
            f"rounds={ROUNDS}", "graph={name: fully_connected, nodes: 2}", "dataset.partition=iid",
            f"model={{name: mlp, hidden: [{hidden(size)}]}}", f"training.batch_size={BATCH}",
            "training.steps_per_round=1", "training.optimizer={name: SGD, lr: 0.01}", f"run_dir={run_dir}",
            "evaluation={every: 0, final: false, figures: false}", "checkpoint.final=false",
        ]  # fmt: skip
        command += ["run", "quickstart", *overrides]
    else:
        command += ["launch", "--nodes", str(NODES), __file__, "--script", str(size), str(run_dir)]
    subprocess.run(command, check=True, capture_output=True, timeout=300, env=dict(os.environ))
    return seconds_per_round(run_dir)


def main() -> None:
    options = parser(__doc__)
    options.add_argument("sizes", nargs="*", type=lambda text: int(float(text)), default=[100_000, 1_000_000])
    options.add_argument("--pairs", type=int, default=3)
    options.add_argument("--script", nargs=2, help=argparse.SUPPRESS)
    given = options.parse_args()
    if given.script:
        train(int(given.script[0]), given.script[1])
        return
    figures, ratio, targets = [], {}, []
    with tempfile.TemporaryDirectory(prefix="own-loop-") as text:
        for size in given.sizes[:1] if given.small else given.sizes:
            pairs = [
                (run_once("run", size, Path(text)), run_once("launch", size, Path(text)))
                for _ in range(1 if given.small else given.pairs)
            ]
            of_pairs = [own / ours for ours, own in pairs]
            ours, own = ([1e3 * pair[index] for pair in pairs] for index in (0, 1))
            line = {"parameters": size, "run_ms": median(ours), "own_loop_ms": median(own)}
            show(line | {"ratios": [round(one, 3) for one in of_pairs]})
            figures.append(line)
            ratio[f"{size:,}"] = statistics.median(of_pairs)
            name = f"own loop, {size:,} parameters: round of launch over round of run"
            targets.append(Target(name, ratio[f"{size:,}"], "at most", 1 + MOST_OVERHEAD))
    conclude("own_loop", given.small, figures, ratio, targets)


if __name__ == "__main__":
    main()
