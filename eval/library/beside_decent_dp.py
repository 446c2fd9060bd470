"""Trains the same model with decentnode.decent_dp and with Decent-DP itself, and compares the parameters.

    pip install decent-dp
    python eval/library/beside_decent_dp.py [--steps 20]

Both train over gloo with the same data: four ranks, four topologies, SGD in float32 and Adam in float64, with
decay, a schedule and an adaptive factor below 1. Exit code 1 if a parameter differs by more than 1e-6.
"""

import argparse
import importlib
import json
import os
import subprocess
import sys
from functools import partial
from itertools import product

import torch
import torch.distributed as dist
from torch import nn

RANKS = 4
TOPOLOGIES = ("complete", "ring", "one-peer-exp", "alternating-exp-ring")
OPTIMIZERS = ("sgd", "adam", "accum_adamw")
MOST = 1e-6


def network(dtype: torch.dtype) -> nn.Module:
    """A network whose initial parameters are the same everywhere."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.Tanh(), nn.Flatten(), nn.Linear(144, 16), nn.LayerNorm(16), nn.Tanh(),
        nn.Linear(16, 3),
    ).to(dtype)  # fmt: skip


def grouped(named: list[tuple[str, nn.Parameter]]) -> list[dict[str, object]]:
    """Matrices, which decay, and the others."""
    return [
        {"params": [p for _, p in named if (p.ndim > 1) == decays], "weight_decay": 0.1 * decays}
        for decays in (True, False)
    ]


def optimizer(package: str, kind: str, named: list[tuple[str, nn.Parameter]]) -> torch.optim.Optimizer:
    """The optimizer of one bucket."""
    if kind == "sgd":
        return torch.optim.SGD(grouped(named), lr=0.05, momentum=0.9)
    if kind == "adam":
        return torch.optim.Adam(grouped(named), lr=0.01)
    return importlib.import_module(f"{package}.optim").AccumAdamW(grouped(named), lr=0.01, accum_iter=3)


def train(package: str, topology: str, kind: str, steps: int) -> dict[str, list[float]]:
    """Trains on this rank; returns its parameters by name, and its distance from the average."""
    wrapper = importlib.import_module(f"{package}.ddp").DecentralizedDataParallel
    dtype = torch.float32 if kind == "sgd" else torch.float64
    model = wrapper(
        network(dtype), partial(optimizer, package, kind),
        partial(torch.optim.lr_scheduler.StepLR, step_size=5, gamma=0.7), topology=topology,
        bucket_size_in_mb=0.001, _local_world_size=2,
    )  # fmt: skip
    draw = torch.Generator().manual_seed(dist.get_rank())
    for step in range(steps):
        images = torch.randn(8, 1, 8, 8, generator=draw, dtype=dtype)
        labels = torch.randint(3, (8,), generator=draw)
        if step == steps // 2:
            model.set_adaptive_factor(0.5)
        loss = nn.functional.cross_entropy(model(images), labels)
        model.zero_grad()
        loss.backward()
    local = {name: p.detach().flatten().tolist() for name, p in model._model.named_parameters()}
    distance = model.global_avg(return_d2c=True)
    mean = {f"mean {name}": p.detach().flatten().tolist() for name, p in model._model.named_parameters()}
    model.revert_global_avg()
    return {**local, **mean, "distance": [distance]}


def work(package: str, steps: int) -> None:
    """One rank: prints all that it has trained."""
    dist.init_process_group("gloo")
    cases = product(TOPOLOGIES, OPTIMIZERS)
    found = {f"{topology}, {kind}": train(package, topology, kind, steps) for topology, kind in cases}
    dist.barrier()
    print(json.dumps(found), flush=True)
    # Its last all-reduces may still be in flight, and a destructor would wait for them.
    os._exit(0)


def started(package: str, steps: int, port: int) -> list[dict[str, dict[str, list[float]]]]:
    """The results of all ranks of one package."""
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(RANKS)}
    ranks = [
        subprocess.Popen(
            [sys.executable, __file__, "--package", package, "--steps", str(steps)],
            env={**os.environ, **place, "RANK": str(rank), "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for rank in range(RANKS)
    ]  # fmt: skip
    found = []
    try:
        for rank in ranks:
            output, errors = rank.communicate(timeout=120)
            if rank.returncode:
                sys.exit(f"{package}: {errors}")
            found.append(json.loads(output.splitlines()[-1]))
    finally:
        for rank in ranks:
            rank.kill()
    return found


def main() -> None:
    """Prints the largest difference of each case."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--package", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.package:
        work(options.package, options.steps)
    theirs, ours = (
        started(package, options.steps, 29610 + i)
        for i, package in enumerate(("decent_dp", "decentnode.decent_dp"))
    )
    worst = 0.0
    for case in theirs[0]:
        differences = [
            abs(a - b)
            for one, other in zip(theirs, ours, strict=True)
            for name, values in one[case].items()
            for a, b in zip(values, other[case][name], strict=True)
        ]
        print(f"{case}: {max(differences):.1e} over {len(differences)} numbers")
        worst = max(worst, *differences)
    sys.exit(worst > MOST)


if __name__ == "__main__":
    main()
