"""Mixing by (1 - a) I + a W: against its equations, plain gossip, and the library's runs."""

from functools import partial
from pathlib import Path

import pytest
import torch
from torch import nn

from decentnode.node.experiment import Experiment
from decentnode.parallel.module import DecentralizedDataParallel
from decentnode.training.optim import WarmupCosine
from tests.support.in_process import Nodes
from tests.support.wrapper_ranks import flat, in_rank_threads

CONFIGS = Path(__file__).parents[2] / "configs"
ROUNDS = 12
RATES = [WarmupCosine._rate(WarmupCosine(torch.optim.SGD([nn.Parameter(torch.zeros(1))], 0.1), 60, 5), 0.1, t)
         for t in range(60)]  # fmt: skip
CASES = {
    "0.3": lambda round: 0.3,
    "0.0": lambda round: 0.0,
    "[[2, 1.0], [6, 0.2]]": lambda round: 1 - 0.2 * min(max(round - 2, 0), 4),
    "learning_rate": lambda round: RATES[round] / max(RATES),
}


def experiment(*overrides):
    return Experiment.from_yaml(CONFIGS / "dsgd_ac.yaml", overrides)


def models(folder, *overrides):
    return Nodes(experiment(*overrides), folder).begin().run(0, ROUNDS).models


class OneModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.x = nn.Parameter(torch.zeros(3, dtype=torch.float64))


@pytest.mark.parametrize("given", CASES)
def test_a_run_follows_the_equations_and_is_that_of_the_library(given, tmp_path):
    own = experiment(f"sharing.mixing_strength={given}")
    inputs, a = own.samples.dataset.train.inputs, CASES[given]
    A, b, X = inputs[:, 0], inputs[:, 1], torch.zeros(8, 3, dtype=torch.float64)
    W = torch.zeros(8, 8, dtype=torch.float64)
    for i in range(8):
        W[i, [i, (i + 1) % 8, (i - 1) % 8]] = 1 / 3
    for round in range(ROUNDS):
        Y = X - RATES[round] * A * (X - b)
        X = (1 - a(round)) * Y + a(round) * W @ Y
    run = Nodes(own, tmp_path / "run").begin().run(0, ROUNDS).models
    assert torch.allclose(run, X, rtol=0, atol=1e-13)

    def work(rank, rendezvous):
        model = DecentralizedDataParallel(
            OneModel(), partial(torch.optim.SGD, lr=0.1), "ring", rendezvous=rendezvous,
            scheme="adapt_then_combine", mixing_strength=a,
            scheduler=lambda optimizer: WarmupCosine(optimizer, 60, 5),
        )  # fmt: skip
        for _ in range(ROUNDS):
            model.zero_grad()
            (A[rank] * (model.module.x - b[rank]) ** 2 / 2).sum().backward()
        values = flat(model)
        model.close()
        return values

    assert torch.allclose(torch.stack(in_rank_threads(8, work)), run, rtol=0, atol=1e-15)


def test_strength_one_is_gossip_bit_for_bit(tmp_path):
    plain, always = (
        models(tmp_path / str(i), f"sharing.mixing_strength={a}") for i, a in enumerate(["1", "[[0, 1]]"])
    )
    assert torch.equal(plain, always)
