"""What the evaluation of models costs a run, and what of it `evaluation.background` hides.

    python eval/benchmarks/evaluation.py [--small] [--repeats N]

Three runs of LeNet on images like CIFAR-10, each with the same evaluations by the nodes and in the
background, in turn: 4 nodes in one process, so that one of two processors is idle, with ten small evaluations
and with none; the same with four evaluations of 2,000 images; the usual experiment of 16 nodes. Whole
commands are timed, so what is evaluated after the last round counts. All metrics of each pair are compared.
Then one evaluation is timed against the raw forward passes of the same batches, and against batches of 64.
"""

import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from _command import CONFIGS, call
from _images import write_images
from _report import Target, conclude, median, median_ratio, parser, show
from torch import Tensor, nn

from decentnode.datasets.base import Samples
from decentnode.models import LeNet, Mlp
from decentnode.results import read_evaluations
from decentnode.training.evaluation import BATCH_SIZE, batch_size, evaluate
from decentnode.training.objective import Objective
from decentnode.training.tasks import Classification

ONE_PROCESS = "communication=inproc"
NO_EVALUATION = ("evaluation.every=0", "evaluation.final=false")
TIMES = 5
"""Evaluations of one model that are timed; the fastest counts."""


@dataclass(frozen=True)
class Size:
    """How big the runs are."""

    training_images: int
    test_images: int
    small_test: int
    rounds: int


FULL = Size(8000, 2000, 500, 80)
SMALL = Size(200, 50, 20, 4)
FEW_NODES = 4


@dataclass(frozen=True)
class Timed:
    """A command that has ended, with what it measured."""

    seconds: float
    rows: list[Any]


def run(size: Size, images: Path, *overrides: str) -> Timed:
    """One command with a configuration of the usual experiment."""
    with tempfile.TemporaryDirectory(prefix="benchmark-") as folder:
        out = Path(folder) / "run"
        words = [f"dataset.path={images}", f"rounds={size.rounds}", "evaluation.figures=false", *overrides]
        ended = call(["-m", "decentnode", "run", str(CONFIGS / "experiment.yaml"), f"run_dir={out}", *words])
        file = out / "evaluations.jsonl"
        rows = read_evaluations(file) if file.exists() else []
        return Timed(ended.seconds, [(row.round, row.metrics, row.consensus_distance) for row in rows])


def pairs(
    size: Size, images: Path, repeats: int, *overrides: str, without: bool = False
) -> dict[str, list[float]]:
    """Seconds of each command by who evaluates, in turn; raises RuntimeError if a number differs."""
    seconds_of: dict[str, list[float]] = {"nodes": [], "background": [], "none": []}
    for _ in range(repeats):
        here = run(size, images, *overrides)
        there = run(size, images, *overrides, "evaluation.background=true")
        if here.rows != there.rows:
            raise RuntimeError(f"evaluation in the background changes numbers: {overrides}")
        seconds_of["nodes"].append(here.seconds)
        seconds_of["background"].append(there.seconds)
        if without:
            seconds_of["none"].append(run(size, images, *overrides, *NO_EVALUATION).seconds)
    return seconds_of


def hidden(seconds: dict[str, list[float]]) -> float:
    """The share of the evaluations' time that the command does not wait for."""
    shares = [
        (here - there) / (here - none)
        for here, there, none in zip(seconds["nodes"], seconds["background"], seconds["none"], strict=True)
    ]
    return median(shares)


def fastest(work: Callable[[], object]) -> float:
    """Seconds of the fastest of some calls, after one that allocates."""
    work()
    seconds = []
    for _ in range(TIMES):
        began = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - began)
    return min(seconds)


def one_evaluation(name: str, network: nn.Module, shape: tuple[int, ...], count: int) -> dict[str, Any]:
    """Milliseconds of one evaluation, as it is and with batches of 64, and of its raw forward passes."""
    torch.manual_seed(0)
    images = torch.randint(0, 256, (count, *shape), dtype=torch.uint8)
    samples = Samples(images, torch.randint(0, 10, (count,)), torch.tensor(128.0), torch.tensor(64.0))
    is_last = name.startswith("lenet")
    network = network.to(memory_format=torch.channels_last) if is_last else network
    inputs, size = (images.float() - 128) / 64, batch_size(network)

    def raw() -> list[Tensor]:
        with torch.inference_mode():
            return [network(inputs[start : start + size]) for start in range(0, count, size)]

    objective = Objective(network, nn.CrossEntropyLoss(), Classification(), is_last)
    ours = fastest(lambda: evaluate(objective, samples, size))
    by_64 = fastest(lambda: evaluate(objective, samples, BATCH_SIZE))
    bare = fastest(raw)
    return {
        "model": name,
        "milliseconds": median([1e3 * ours]),
        "of_batches_of_64": median([ours / by_64]),
        "of_raw_forward_passes": median([ours / bare]),
    }


def measure(size: Size, repeats: int, small: bool) -> dict[str, Any]:
    """The figures of all runs."""
    few = [ONE_PROCESS, f"graph={{name: ring, nodes: {FEW_NODES}}}"]
    with tempfile.TemporaryDirectory(prefix="benchmark-images-") as folder:
        images = Path(folder)
        write_images(images, size.training_images, size.test_images)
        often = [f"dataset.test_size={size.small_test}", f"evaluation.every={size.rounds // 10 or 1}"]
        batches = "training.batch_size=16"
        idle = pairs(size, images, repeats, *few, *often, batches, without=True)
        quarter = f"evaluation.every={size.rounds // 4}"
        half = pairs(size, images, repeats, *few, quarter)
        # In a small run, too, so that every figure is there.
        full = half if small else pairs(size, images, repeats, quarter)
    return {
        "idle_processor_seconds": {name: median(values) for name, values in idle.items()},
        "hidden": hidden(idle),
        "half_idle_seconds": {name: median(values) for name, values in half.items() if values},
        "half_idle_speedup": median_ratio(half["nodes"], half["background"]),
        "usual_seconds": {name: median(values) for name, values in full.items() if values},
        "usual_speedup": median_ratio(full["nodes"], full["background"]),
    }


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--repeats", type=int, default=3)
    arguments = options.parse_args()
    size = SMALL if arguments.small else FULL
    figures = [measure(size, 1 if arguments.small else arguments.repeats, arguments.small)]
    torch.set_num_threads(1)
    count = 10 if arguments.small else 1
    figures += [
        one_evaluation("mlp, digits", Mlp().build((1, 8, 8), 10), (1, 8, 8), 360 // count),
        one_evaluation("mlp, 28 x 28", Mlp().build((1, 28, 28), 10), (1, 28, 28), 10_000 // count),
        one_evaluation("lenet, 32 x 32", LeNet().build((3, 32, 32), 10), (3, 32, 32), 2_000 // count),
    ]
    for line in figures:
        show(line)
    first = figures[0]
    ratio = {
        "4 nodes on 1 of 2 processors": first["half_idle_speedup"],
        "usual experiment": first["usual_speedup"],
        **{f"evaluation, {line['model']}": line["of_batches_of_64"] for line in figures[1:]},
    }
    targets = [
        Target("share of the evaluation hidden on an idle processor", first["hidden"], "at least", 0.8),
        Target("speed-up of 4 nodes on 1 of 2 processors", first["half_idle_speedup"], "at least", 1.3),
        Target("speed-up of the usual experiment", first["usual_speedup"], "at least", 0.97),
    ]
    conclude("evaluation", arguments.small, figures, ratio, [] if arguments.small else targets)


if __name__ == "__main__":
    main()
