"""What is imported before nodes are forked: torch's compiler where they need it, and only there."""

import sys
from pathlib import Path

import pytest
import torch

from decentnode.config import loader
from decentnode.node import dry_round, late_imports
from decentnode.sharing import Gossip
from decentnode.training.computation import Computation
from tests.node.test_dry_round import experiment, own

CONFIGS = Path(__file__).parents[2] / "configs"
MADE_UP = "imported_in_a_mix"


class Compiles(torch.optim.SGD):
    """Stands for another version of torch: its step imports what this process has not imported."""

    def step(self, closure=None):
        __import__(MADE_UP)


class Refuses(torch.optim.SGD):
    def step(self, closure=None):
        raise ValueError("four parameters are too few")


class Imports(Gossip):
    def mix(self, vector, incoming, view, out):
        super().mix(vector, incoming, view, out)
        __import__(MADE_UP)


@pytest.fixture
def made_up(tmp_path, monkeypatch):
    """A module in the place of the compiler."""
    (tmp_path / f"{MADE_UP}.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(late_imports, "COMPILER", MADE_UP)
    monkeypatch.setattr(dry_round, "COMPILER", MADE_UP)
    # Those of configurations with training.compile import the true one.
    monkeypatch.setattr(Computation, "prepare", lambda self: self.compile and late_imports.import_compiler())
    yield
    sys.modules.pop(MADE_UP, None)


@pytest.mark.parametrize(
    ("path", "override", "imported"),
    [
        ("quickstart", "training.optimizer={name: AdamW, lr: 0.1}", False),
        ("quickstart", "training.optimizer={name: LBFGS, lr: 0.1}", False),
        ("quickstart", f"training.optimizer={{name: {own(Compiles)}, lr: 0.1}}", True),
        ("quickstart", f"training.optimizer={{name: {own(Refuses)}, lr: 0.1}}", True),
        ("asynchronous", "seed=1", False),
        ("inversion", "seed=1", False),
        ("private", "seed=1", False),
        ("dp_sgd", "seed=1", True),
        ("resnet18/gossip", "seed=1", False),
        ("resnet18/ddp", "seed=1", True),
        ("experiments/decent_dp/transformer_wmt14_adam", "seed=1", False),
        ("experiments/decent_dp/transformer_wmt14_adam", "model.gradient_checkpointing=true", True),
        ("experiments/decent_dp/gpt2_accum_adamw", "seed=1", True),
    ],
)
def test_nodes_find_the_compiler_where_they_need_it(made_up, path, override, imported):
    late_imports.import_for_nodes(loader.load(CONFIGS / f"{path}.yaml", [override]))
    assert (MADE_UP in sys.modules) is imported


@pytest.mark.parametrize("scheme", [Gossip, Imports])
def test_the_dry_round_tells_what_a_plugin_imports(made_up, tmp_path, scheme):
    assert dry_round.check(experiment(tmp_path, own(scheme))).uses_compiler is (scheme is Imports)
    assert MADE_UP not in sys.modules
