"""What a private step costs beside an ordinary one of the same samples, and the share of the noise in it.

    python eval/benchmarks/private_step.py [--small] [--repeats N]

Both take turns in one run, in processor seconds of one thread. A private step clips the gradient of each of
32 samples, draws noise for each parameter and adds it; the batch is the same in both.
"""

import argparse
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from _report import Target, conclude, median, median_ratio, parser, show
from torch import nn

from decentnode.core.vector import ModuleTensors, ParameterLayout, Vector
from decentnode.datasets.base import Batch, Samples
from decentnode.models import Gpt2, LeNet, Mlp, ShakespeareLstm
from decentnode.training.minibatches import Shard
from decentnode.training.objective import Objective
from decentnode.training.privacy import DpSgd
from decentnode.training.tasks import Classification

SAMPLES, MOST_TIMES = 32, 3.0
CASES = {
    "lenet": (LeNet(), (3, 32, 32), 10),
    "mlp": (Mlp((64,)), (1, 8, 8), 10),
    "shakespeare_lstm": (ShakespeareLstm(hidden=64), (80,), 80),
    "gpt2": (Gpt2(layers=2, heads=4, width=64), (32,), 80),
}
"""Model, shape of a sample, classes."""


def processor_seconds(act: Callable[[], object]) -> float:
    """Processor seconds of one call, which other programs disturb less."""
    began = time.process_time()
    act()
    return time.process_time() - began


def samples_of(name: str, shape: tuple[int, ...], classes: int) -> Samples:
    """Random samples; a text has a label for each token where the model scores each."""
    inputs = torch.randn(SAMPLES, *shape) if len(shape) > 1 else torch.randint(classes, (SAMPLES, *shape))
    each = shape if name == "gpt2" else ()
    return Samples(inputs, torch.randint(classes, (SAMPLES, *each)))


def measure(name: str, repeats: int) -> dict[str, Any]:
    """One line of the table."""
    model, shape, classes = CASES[name]
    network = model.build(shape, classes).train()
    layout = ParameterLayout.of(network)
    slots = (torch.empty(layout.numel), torch.empty(layout.numel))
    vector, objective = (
        Vector(ModuleTensors(network, layout), slots),
        Objective(network, nn.CrossEntropyLoss(), Classification()),
    )
    samples = samples_of(name, shape, classes)
    shard = Shard(samples, torch.arange(SAMPLES), 1, 0)
    privacy = DpSgd(clip=1.0, noise=1.0, delta=1e-3, accountant="none")
    steps = privacy.private_steps(
        privacy.plan(SAMPLES, SAMPLES, (1,), lambda: np.ones((1, 1))), objective, vector, shard, SAMPLES
    )
    batch: Batch = samples.batch(shard.indices)

    def ordinary() -> None:
        vector.gradient.zero_()
        objective(batch)[1].backward()  # type: ignore[no-untyped-call]

    acts: dict[str, Callable[[], object]] = {
        "ordinary": ordinary,
        "private": lambda: steps.gradient([batch]),
        "noise": lambda: steps.source.normal(layout.numel),
    }
    times: dict[str, list[float]] = {act: [] for act in acts}
    for _ in range(repeats + 1):
        for act, call in acts.items():
            times[act].append(processor_seconds(call))
    # The first private step compares two ways to compute a gradient.
    times = {act: seconds[1:] for act, seconds in times.items()}
    return {
        "model": name,
        "parameters": layout.numel,
        **{f"{act}_ms": median([1e3 * second for second in seconds]) for act, seconds in times.items()},
        "times_ordinary": median_ratio(times["private"], times["ordinary"]),
        "share_of_noise": median_ratio(times["noise"], times["private"]),
    }


def arguments() -> argparse.Namespace:
    """What was asked for."""
    made = parser(__doc__)
    made.add_argument("--repeats", type=int, default=15, help="how often each is timed")
    return made.parse_args()


def main() -> None:
    """Measures all cases."""
    asked = arguments()
    torch.set_num_threads(1)
    figures = []
    for name in CASES:
        figures.append(measure(name, 2 if asked.small else asked.repeats))
        show(figures[-1])
    ratio = {f"{figure['model']}, private over ordinary": figure["times_ordinary"] for figure in figures}
    lenet = figures[0]["times_ordinary"]
    targets = [Target(f"LeNet, {SAMPLES} samples: times an ordinary step", lenet, "at most", MOST_TIMES)]
    conclude("private_step", asked.small, figures, ratio, targets)


if __name__ == "__main__":
    main()
