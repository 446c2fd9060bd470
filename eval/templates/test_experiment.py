"""Tests of this folder: python -m pytest"""

import subprocess
import sys
from pathlib import Path

import torch

from decentnode.config.loader import load
from decentnode.testing import Lockstep, Quadratics, random_models

FOLDER = Path(__file__).parent
SETTINGS = load(FOLDER / "experiment.yaml")
GRAPH = SETTINGS.graph.make()


def network(models: torch.Tensor) -> Lockstep:
    """All nodes in lockstep, without a transport; they start from the rows of `models`, shape (n, d)."""
    return Lockstep(SETTINGS.sharing.make, GRAPH, models, weights=SETTINGS.sharing.weights.make())


def test_mixing_alone_makes_the_models_equal_and_keeps_their_mean() -> None:
    models = random_models(GRAPH.num_nodes)
    mixed = network(models).run(200)
    assert torch.allclose(mixed, models.mean(0).expand_as(mixed), rtol=0, atol=1e-6)


def test_nodes_with_different_losses_come_near_the_optimum_of_their_sum() -> None:
    """Node i has the loss (x - i)^2 / 2, so the sum is least at the mean of all i."""
    n = GRAPH.num_nodes
    problem = Quadratics(torch.ones(n, dtype=torch.float64), torch.arange(n, dtype=torch.float64))
    models = network(torch.zeros(n, 1, dtype=torch.float64)).run(2000, problem.gradient, eta=0.005)
    assert torch.allclose(models, problem.optimum.expand_as(models), rtol=0, atol=0.1)


def test_the_experiment_runs(tmp_path: Path) -> None:
    options = ["rounds=2", "communication=inproc", "evaluation.figures=false", f"run_dir={tmp_path / 'run'}"]
    command = [sys.executable, "-m", "decentnode", "run", "experiment.yaml", *options]
    subprocess.run(command, cwd=FOLDER, check=True, timeout=200)
