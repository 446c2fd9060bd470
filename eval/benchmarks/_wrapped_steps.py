"""Steps of a configuration in a loop of one's own: by `DecentralizedDataParallel`, and by torch's DDP."""

import os
import time
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
import torch._dynamo  # or every forked process would import it at its first optimizer
import torch.distributed as dist
from _forked import run_forked
from _ports import free_ports
from torch import nn
from torch.optim import Optimizer

from decentnode import DecentralizedDataParallel
from decentnode.communication.device.staging import device_for
from decentnode.errors import BadInput
from decentnode.models.module_copies import copied
from decentnode.node.experiment import Experiment
from decentnode.training.optim import decay_groups

LIMIT = 120.0
WARM_UP = 3
KEPT: list[nn.Module] = []
"""Torch waits for the threads of a process group that ends; they may wait for the interpreter then."""
Step = Callable[[], None]


def check(experiment: Experiment) -> None:
    """Raises BadInput for steps that the loops here do not make."""
    training = experiment.settings.training
    if training.amp == "float16":
        raise BadInput.at("training.amp", "--wrapper has no scaler of losses; use bfloat16 or null")
    if training.privacy is not None:
        raise BadInput.at("training.privacy", "--wrapper makes no private steps; leave it out")
    if experiment.layout.personal.entries:
        raise BadInput.at("sharing.personal", "--wrapper mixes all parameters; leave it out")


def step_seconds(experiment: Experiment, steps: int, repeats: int) -> dict[str, list[float]]:
    """Seconds of a step of the wrapper and of DDP, those of the slowest rank, in each repetition."""
    ranks, port = range(experiment.graph.num_nodes), free_ports(1)
    results = run_forked(ranks, lambda rank: _race(experiment, rank, port, steps=steps, repeats=repeats))
    return {
        name: [max(column) for column in zip(*(r[name] for r in results), strict=True)] for name in results[0]
    }


def _race(experiment: Experiment, rank: int, port: int, steps: int, repeats: int) -> dict[str, list[float]]:
    """In one process: the seconds per step of both, in turns, in each repetition."""
    size = experiment.graph.num_nodes
    threads = experiment.settings.training.threads
    torch.set_num_threads(threads if isinstance(threads, int) else 1)
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(size), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    dist.init_process_group("gloo")
    device = device_for(experiment.settings.device, rank)
    seconds: dict[str, list[float]] = {"wrapper": [], "ddp": []}
    loops = {"wrapper": _wrapped(experiment, rank, device), "ddp": _parallel(experiment, rank, device)}
    for _ in range(repeats):
        for name, step in loops.items():
            seconds[name].append(_timed(step, steps, device))
    for module in KEPT:
        if isinstance(module, DecentralizedDataParallel):
            module.close()
    return seconds


def _timed(step: Step, steps: int, device: torch.device) -> float:
    began = 0.0
    for number in range(WARM_UP + steps):
        if number == WARM_UP:
            dist.barrier()
            began = time.monotonic()
        step()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    spent = (time.monotonic() - began) / steps
    dist.barrier()
    return spent


def _network(experiment: Experiment, device: torch.device) -> nn.Module:
    network = copied(experiment.network).to(device).train()
    return network.to(memory_format=torch.channels_last) if experiment.layout.channels_last else network


def _wrapped(experiment: Experiment, rank: int, device: torch.device) -> Step:
    """A step of the wrapper, on the graph and with the weights of the configuration."""
    training = experiment.settings.training

    def optimizer(named: list[tuple[str, nn.Parameter]]) -> Optimizer:
        if training.decay == "weights":
            return training.make_optimizer(decay_groups(named, training.optimizer.options["weight_decay"]))
        return training.make_optimizer([parameter for _, parameter in named])

    model = DecentralizedDataParallel(
        _network(experiment, device), optimizer, experiment.graph.graph, weights=experiment.graph.mixing,
        clip_norm=training.clip_norm, deadline=LIMIT,
    )  # fmt: skip
    return _backward(experiment, rank, model)


def _parallel(experiment: Experiment, rank: int, device: torch.device) -> Step:
    """A step of torch's DDP with the same optimizer."""
    training, network = experiment.settings.training, _network(experiment, device)
    model = nn.parallel.DistributedDataParallel(network)
    optimizer = training.make_optimizer(training.trained(network))
    backward = _backward(experiment, rank, model)

    def step() -> None:
        backward()
        if training.clip_norm is not None:
            nn.utils.clip_grad_norm_(network.parameters(), training.clip_norm)
        optimizer.step()
        optimizer.zero_grad()

    return step


def _backward(experiment: Experiment, rank: int, model: Any) -> Step:
    """The forward and backward passes of a step, on the rank's own minibatches."""
    KEPT.append(model)
    training = experiment.settings.training
    objective = training.objective(model.module, experiment.layout.channels_last)
    objective.use(model)
    minibatches = training.make_minibatches(experiment.samples.shard(rank))

    def step() -> None:
        shares = objective.shares(minibatches.several(training.accumulate))
        for place, (batch, share) in enumerate(shares, 1):
            with nullcontext() if place == len(shares) else model.no_sync():
                (share * objective(batch)[1]).backward()

    return step
