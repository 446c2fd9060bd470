"""Muon with AdamW against torch's own two optimizers, step by step, and which parameter is whose."""

import copy
import math
import re

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import LambdaLR

import decentnode
from decentnode import DecentralizedDataParallel
from decentnode.errors import BadInput
from decentnode.models import Gpt2, Mlp, initial_model
from decentnode.models.adapters import Adapters
from decentnode.node.experiment import Experiment
from decentnode.training.optim import Muon, muon_groups
from tests.support.in_process import Nodes
from tests.support.wrapper_ranks import Run, batches, flat, in_rank_threads, loss_of

pytestmark = pytest.mark.skipif(not hasattr(torch.optim, "Muon"), reason="torch has it from 2.9 on")

MUON = {"lr": 0.03, "weight_decay": 0.2, "momentum": 0.9, "adjust_lr_fn": "match_rms_adamw"}
ADAMW = {"lr": 0.004, "betas": (0.8, 0.95), "eps": 1e-6, "weight_decay": 0.3}


class Net(nn.Module):
    """Parameters of all kinds; two matrices are hidden."""

    def __init__(self):
        super().__init__()
        self.out = nn.Linear(4, 3)
        self.tokens = nn.Embedding(5, 6)
        self.conv = nn.Conv2d(1, 2, 3)
        self.norm = nn.LayerNorm((2, 3))
        self.bias = nn.Parameter(torch.ones(2, 3))
        self.wave = nn.Parameter(torch.ones(2, 2, dtype=torch.complex64))
        self.frozen = nn.Linear(3, 3).requires_grad_(False)
        self.wide = nn.Linear(3, 7)
        self.tall = nn.Linear(8, 3, bias=False)
        self.head = nn.Linear(3, 4)
        # The same parameter under another name.
        self.tied = self.tall


def of_muon(module, *args, **options):
    """The names of the parameters in the group of Muon; the other group has all others."""
    names = {id(p): name for name, p in module.named_parameters() if p.requires_grad}
    matrices, others = muon_groups(module, *args, **options)
    assert (matrices["use_muon"], others["use_muon"]) == (True, False)
    both = [*map(id, matrices["params"]), *map(id, others["params"])]
    assert sorted(both) == sorted(names)
    return [names[id(p)] for p in matrices["params"]]


def with_gradients(module, step):
    generator = torch.Generator().manual_seed(step)
    for parameter in module.parameters():
        if parameter.requires_grad:
            parameter.grad = torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype)


def test_hidden_matrices_are_muons():
    net = Net()
    assert of_muon(net) == ["out.weight", "wide.weight", "tall.weight"]
    assert of_muon(net, ["out.*", "ti?d*"]) == ["wide.weight"], "a pattern may be for any of the names"
    everything = ["out.weight", "tokens.weight", "wide.weight", "tall.weight", "head.weight"]
    assert of_muon(net, (), False) == everything
    some = muon_groups(net, parameters=[("wide.weight", net.wide.weight), ("head.bias", net.head.bias)])
    assert [group["params"] for group in some] == [[net.wide.weight], [net.head.bias]]
    for patterns, hidden_only, message in (
        (["heda.*"], True, "adamw_params: no parameter matches 'heda.*'; did you mean 'head.*'?"),
        (["frozen*"], True, "adamw_params: no parameter matches 'frozen"),
        (["*.weight"], True, "no hidden matrix of Net is left for it; use AdamW"),
        (["*.weight"], False, "no matrix of Net is left for it; use AdamW"),
    ):
        with pytest.raises(ValueError, match="^" + re.escape(message)):
            muon_groups(net, patterns, hidden_only)


def test_the_last_layer_of_networks():
    """GPT-2 ends with its embedding, so that its last linear layer is hidden; that of an MLP is not."""
    mlp = initial_model(Mlp((6, 5)), (8,), 4, seed=1)
    assert of_muon(mlp) == ["1.weight", "3.weight"]
    gpt = initial_model(Gpt2(layers=2, heads=2, width=8), (5,), 20, seed=1, zeros=torch.zeros(2, 5).long())
    linear = [f"{name}.weight" for name, part in gpt.named_modules() if isinstance(part, nn.Linear)]
    assert of_muon(gpt) == linear and linear[-1].endswith("feed_forward.2.weight")
    # Adapters of the last layer are part of it.
    adapted = initial_model(Mlp((6,), adapters=Adapters(2)), (8,), 4, seed=1)
    assert of_muon(adapted) == [f"1.parametrizations.weight.0.{part}" for part in "AB"]


def test_steps_are_those_of_torch():
    """Of both optimizers alone, with one schedule, copies and saved states between the steps."""

    def factor(step):
        return 1 / (1 + step)

    torch.manual_seed(0)
    net, alone = Net(), Net()
    alone.load_state_dict(net.state_dict())
    ours = Muon(net, **MUON, **{f"adamw_{name}": value for name, value in ADAMW.items()})
    schedule = LambdaLR(ours, factor)
    matrices, others = (group["params"] for group in muon_groups(alone))
    theirs = [torch.optim.Muon(matrices, **MUON), torch.optim.AdamW(others, **ADAMW)]
    their_schedules = [LambdaLR(optimizer, factor) for optimizer in theirs]
    for step in range(6):
        for module in (net, alone):
            with_gradients(module, step)
        assert ours.step(lambda: 7.0) == 7.0
        for optimizer in theirs:
            optimizer.step()
        for each in (schedule, *their_schedules):
            each.step()
        if step == 2:
            ours.load_state_dict(copy.deepcopy(ours.state_dict()))
        if step == 4:
            net, ours, schedule = copy.deepcopy((net, ours, schedule))
        for (name, parameter), expected in zip(net.named_parameters(), alone.parameters(), strict=True):
            assert torch.equal(parameter, expected), (step, name)
        assert [group["lr"] for group in ours.param_groups] == [o.param_groups[0]["lr"] for o in theirs]
    assert {*ours.state[net.tall.weight]} == {"momentum_buffer"}
    assert {*ours.state[net.head.weight]} == {"step", "exp_avg", "exp_avg_sq"}


@pytest.mark.parametrize("shape", [(40, 60), (60, 40), (50, 50)])
@pytest.mark.parametrize("adjust", ["original", "match_rms_adamw"])
def test_an_update_is_nearly_orthogonal(shape, adjust):
    """Its singular vectors are those of the gradient, and its singular values are near 1."""
    rows, columns = shape
    torch.manual_seed(3)
    # Singular values from 1 down to 0.1.
    u, _ = torch.linalg.qr(torch.randn(rows, min(shape), dtype=torch.float64))
    v, _ = torch.linalg.qr(torch.randn(columns, min(shape), dtype=torch.float64))
    gradient = u @ torch.logspace(0, -1, min(shape), dtype=torch.float64).diag() @ v.T
    W = nn.Parameter(torch.randn(shape, dtype=torch.float64))
    before, W.grad = W.detach().clone(), gradient
    Muon([W], lr=0.1, weight_decay=0.5, adjust_lr_fn=adjust).step()
    factor = math.sqrt(max(1, rows / columns)) if adjust == "original" else 0.2 * math.sqrt(max(shape))
    update = (before * (1 - 0.1 * 0.5) - W.detach()) / (0.1 * factor)
    values = torch.linalg.svdvals(update)
    assert values.min() > 0.6 and values.max() < 1.3
    in_basis = u.T @ update @ v
    assert (in_basis - in_basis.diagonal().diag()).abs().max() < 0.05, "bfloat16 has three digits"


def test_what_it_refuses(monkeypatch):
    vector, matrix = (nn.Parameter(torch.zeros(shape)) for shape in ((4,), (2, 2)))
    assert [len(group["params"]) for group in Muon([vector, matrix]).param_groups] == [1, 1]
    only = Muon([{"params": [vector], "use_muon": False}])
    assert [len(group["params"]) for group in only.param_groups] == [0, 1], "a bucket may have no matrix"
    for make, message in (
        (lambda: Muon([vector]), "none of these parameters is a matrix; use AdamW"),
        (lambda: Muon([("a", matrix)]), "params must be a module, parameters without names, or groups of"),
        (lambda: Muon([{"params": [matrix]}]), "params must be a module, parameters without names, or"),
        (lambda: Muon([{"params": [vector], "use_muon": True}]), "only supports 2D"),
        (lambda: Muon([matrix], momentum=-1), "momentum should be >= 0"),
        (lambda: Muon([matrix], adamw_lr=-1), "Invalid learning rate"),
        (lambda: Muon([matrix], adamw_params="head"), "adamw_params must be a list of patterns, not 'head'"),
    ):
        with pytest.raises(ValueError, match=message):
            make()
    monkeypatch.delattr(torch.optim, "Muon")
    with pytest.raises(ValueError, match=r"^needs torch 2\.9 or newer, not 2.*; use AdamW$"):
        Muon([matrix])
    assert decentnode.Muon is Muon


def test_the_wrapper_makes_it_for_each_bucket():
    """Most buckets have no matrix for Muon. A rank alone mixes nothing: its step is that of one optimizer."""

    def work(rank, rendezvous):
        run = Run(steps=3)
        network, whole = copy.deepcopy(run.network), copy.deepcopy(run.network)
        make = lambda named: Muon(muon_groups(network, parameters=named), **MUON)
        model = DecentralizedDataParallel(network, make, "ring", rendezvous=rendezvous, bucket_mb=1e-6)
        run.train(model, rank)
        model.close()
        optimizer = Muon(whole, **MUON)
        for batch in batches(rank, 3):
            optimizer.zero_grad()
            loss_of(whole, batch).backward()
            optimizer.step()
        return flat(network), flat(whole)

    ((wrapped, whole),) = in_rank_threads(1, work)
    assert torch.equal(wrapped, whole)


CONFIG = """
rounds: 6
graph: {name: ring, nodes: 3}
dataset: {name: synthetic, nodes: 3, samples_per_node: 20, features: 6, classes: 3}
model: {name: mlp, hidden: [8, 8]}
training:
  optimizer: {name: Muon, lr: 0.02, adamw_lr: 0.01, adamw_params: ["1.*"]}
  scheduler: {name: WarmupCosine, total: 6}
  batch_size: 10
  steps_per_round: 2
communication: inproc
evaluation: {every: 0}
"""


@pytest.fixture
def written(tmp_path):
    path = tmp_path / "muon.yaml"
    path.write_text(CONFIG)
    return path


@pytest.mark.parametrize("key", ["training.decay=all", "training.decay=weights"])
def test_an_experiment_continues(written, tmp_path, key):
    """Of nodes that share one network, bit for bit."""
    experiment = Experiment.from_yaml(written, [key])
    straight = Nodes(experiment, tmp_path / "straight").begin().run(0, 5)
    saved = Nodes(experiment, tmp_path / "first").begin().run(0, 3).saved()
    again = Nodes(experiment, tmp_path / "second").load(saved).run(3, 5)
    assert torch.equal(again.models, straight.models)
    training = straight.nodes[0].training
    names = {id(p): name for name, p in training.module.named_parameters()}
    groups = [
        (group["use_muon"], group["weight_decay"], {names[id(p)] for p in group["params"]})
        for group in training.optimizer.param_groups
    ]
    weights, biases = {"1.weight", "5.weight"}, {"1.bias", "3.bias", "5.bias"}
    rest = [(False, 0.01, weights | biases)]
    if key == "training.decay=weights":
        rest = [(False, 0.01, weights), (False, 0.0, biases)]
    assert groups == [(True, 0.1, {"3.weight"}), *rest]
    assert training.learning_rate == pytest.approx(0.02 * (1 + math.cos(math.pi * 5 / 6)) / 2)


def test_a_model_without_a_hidden_matrix_is_refused_before_the_start(written):
    for overrides, message in (
        (["training.optimizer.adamw_params=['1.*', '7.*']"], "adamw_params: no parameter matches '7.*'"),
        (
            ["model=logistic_regression", "training.optimizer.adamw_params=[]"],
            "no hidden matrix of Sequential",
        ),
    ):
        with pytest.raises(BadInput, match=re.escape(f"training.optimizer: Muon: {message}")):
            Experiment.from_yaml(written, overrides)
