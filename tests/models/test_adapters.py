"""Low-rank adapters: no effect at first, alone in the vector, and whole weights afterwards."""

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import decentnode.results
from decentnode.core.vector import ParameterLayout
from decentnode.errors import BadInput
from decentnode.models import Mlp, initial_model
from decentnode.models.adapters import Adapters, merge
from decentnode.models.module_copies import copied
from decentnode.models.module_state import keeps_only_tensors
from decentnode.node.experiment import Experiment
from tests.node.test_configs import CONFIGS, QUICK
from tests.support.in_process import Nodes

NAMES = [f"{layer}.parametrizations.weight.0.{part}" for layer in (1, 3) for part in "AB"]


def network(adapters=None, pretrained=None, dtype=torch.float64, seed=1):
    model = Mlp((6,), pretrained=pretrained, adapters=adapters)
    return initial_model(model, (8,), 4, seed=seed, dtype=dtype)


@torch.no_grad()
def with_changes(net, seed):
    """The network with other adapters, as after some training."""
    generator = torch.Generator().manual_seed(seed)
    for parameter in net.parameters():
        if parameter.requires_grad:
            parameter += torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype)
    return net


def test_it_starts_as_the_base_model_and_only_adapters_are_in_the_vector(tmp_path):
    weights = {name: value + 1 for name, value in network(seed=5, dtype=torch.float32).state_dict().items()}
    save_file(weights, tmp_path / "weights.safetensors")
    base, adapted = (
        network(adapters, tmp_path / "weights.safetensors") for adapters in (None, Adapters(2, alpha=6.0))
    )
    x = torch.randn(5, 8, dtype=torch.float64)
    assert torch.equal(adapted(x), base(x))
    layout = ParameterLayout.of(adapted, dtype=torch.float64)
    assert [entry.name for entry in layout.entries] == NAMES
    assert layout.numel == 2 * (8 + 6) + 2 * (6 + 4)
    assert keeps_only_tensors(adapted), "many nodes of a process use it in turn"
    with_changes(adapted, 1)
    W, A, B = base[1].weight, *(adapted.get_parameter(name) for name in NAMES[:2])
    assert torch.allclose(adapted[1].weight, W + 6 / 2 * B @ A, rtol=1e-12)
    assert torch.equal(copied(adapted)(x), adapted(x))


def test_merged_weights_give_the_same_scores_and_are_a_file_to_start_from(tmp_path):
    adapted = with_changes(network(Adapters(2), dtype=torch.float32), 2)
    x, whole = torch.randn(5, 8), copied(adapted)
    merge(whole)
    assert whole.state_dict().keys() == network(None, dtype=torch.float32).state_dict().keys()
    merge(whole)
    assert torch.equal(whole(x), adapted(x)), "the copy is merged alone"
    assert type(whole[1]) is nn.Linear
    save_file(whole.state_dict(), tmp_path / "merged.safetensors")
    assert torch.equal(network(None, tmp_path / "merged.safetensors", torch.float32)(x), adapted(x))


@pytest.mark.parametrize("freeze_a", [True, False])
def test_the_mean_of_models_is_that_of_their_weights_where_a_is_frozen(freeze_a):
    nets = [with_changes(network(Adapters(2, freeze_a=freeze_a)), seed) for seed in range(3)]
    mean = copied(nets[0])
    with torch.no_grad():
        for name, parameter in mean.named_parameters():
            parameter.copy_(torch.stack([net.get_parameter(name) for net in nets]).mean(0))
    products = torch.stack([net[1].weight.detach() for net in nets]).mean(0)
    assert torch.allclose(mean[1].weight, products, rtol=1e-12) == freeze_a
    names = [entry.name for entry in ParameterLayout.of(mean, dtype=torch.float64).entries]
    assert names == (NAMES[1::2] if freeze_a else NAMES)
    assert not torch.equal(
        network(Adapters(2), seed=2)[1].parametrizations.weight[0].A, nets[0].get_parameter(NAMES[0])
    )


class Counting(nn.Linear):
    """It keeps a number beside its tensors."""


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens, self.body, self.head = nn.Embedding(4, 3), nn.Linear(3, 3), nn.Linear(3, 4)
        self.head.weight = self.tokens.weight


def test_targets_are_linear_layers_with_weights_of_their_own():
    net = Tied()
    Adapters(1).attach(net)
    assert [n for n, p in net.named_parameters() if p.requires_grad] == [
        f"body.parametrizations.weight.0.{part}" for part in "AB"
    ]
    counting = nn.Sequential(Counting(3, 3))
    Adapters(1).attach(counting)
    assert not keeps_only_tensors(counting), "as without an adapter"
    with pytest.raises(BadInput, match=r"targets\[0\]: no linear layer matches 'head' \(known: body\)"):
        Adapters(1, ("head",)).attach(Tied())
    with pytest.raises(BadInput, match=r"no linear layer matches '\*': the model has none"):
        Adapters(1).attach(nn.Conv2d(1, 1, 1))


def test_modules_to_save_are_trained_as_a_whole_beside_adapters():
    head = Adapters(2, modules_to_save=("3",))
    adapted = network(head)
    assert [n for n, p in adapted.named_parameters() if p.requires_grad] == [*NAMES[:2], "3.weight", "3.bias"]
    x = torch.randn(5, 8, dtype=torch.float64)
    assert torch.equal(adapted(x), network()(x))
    with_changes(adapted, 1)
    scores = adapted(x)
    assert torch.allclose(merge(adapted)(x), scores, rtol=1e-12) and type(adapted[3]) is nn.Linear
    for targets, saved, message in (
        (("*",), "head", r"modules_to_save\[0\]: no module matches 'head' \(known: 1, 3\)"),
        (("1", "3"), "3", r"targets\[1\]: no frozen linear layer matches '3'"),
        (("*",), "*", r"targets\[0\]: no frozen linear layer matches '\*': the model has"),
    ):
        with pytest.raises(BadInput, match=message):
            network(Adapters(2, targets, modules_to_save=(saved,)))


def test_a_run_sends_adapters_alone(tmp_path):
    path = next(path for path in CONFIGS if path.stem == "adapters")
    made = Experiment.from_yaml(path, QUICK)
    sent = []
    nodes = Nodes(made, tmp_path / "nodes").begin()
    for node in nodes.nodes:
        node.exchange.tap = lambda round, phase, inbox, messages: sent.extend(inbox.values())
    nodes.run(0, 2)
    adapters = 8 * (64 + 256) + 8 * (256 + 10)
    assert made.layout.numel == adapters and {payload.nbytes for payload in sent} == {4 * adapters}


def test_a_run_is_exported_as_whole_weights(tmp_path, call):
    run, out = tmp_path / "run", tmp_path / "whole"
    quick = ["rounds=2", "graph.nodes=3", "evaluation.figures=false", f"run_dir={run}"]
    assert call("run", "adapters", *quick)[0] == 0
    results, x = decentnode.results.Run(run), torch.randn(5, 1, 8, 8)
    for rank, options in ((1, ["--rank", "1"]), (None, [])):
        assert call("export", run, "--merged", *options, "--out", out) == (0, f"{out}.safetensors\n", "")
        model = Mlp((256,), pretrained=out.with_suffix(".safetensors"))
        scores = initial_model(model, (1, 8, 8), 10, seed=9)(x)
        expected = results.mean_model()
        if rank is not None:
            expected.load_state_dict(results.model(rank))
        assert torch.equal(scores, expected(x))
    assert (
        call("export", run, "--rank", "1")[2]
        == "--rank: is for --merged; evaluations are those of all nodes\n"
    )
    assert call("export", run, "--merged", "--rank", "3")[0] == 2
