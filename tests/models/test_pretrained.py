"""Weights from a file: both formats, any model, and one line for a file that does not fit."""

import sys

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from decentnode.config import loader
from decentnode.errors import BadInput
from decentnode.models import Mlp, initial_model, model_of
from decentnode.models.pretrained import load_weights


def write(path, tensors):
    if path.suffix == ".safetensors":
        save_file(tensors, path)
    else:
        torch.save(tensors, path)
    return path


@pytest.mark.parametrize("suffix", [".safetensors", ".pt"])
@pytest.mark.parametrize("own", [True, False], ids=["registered", "module:Class"])
def test_a_model_starts_from_the_tensors_of_a_file(tmp_path, suffix, own):
    tensors = {"weight": torch.randn(3, 4), "bias": torch.randn(3)}
    renamed = {f"1.{name}": tensor for name, tensor in tensors.items()} if own else tensors
    path = write(tmp_path / f"weights{suffix}", renamed)
    options = {"in_features": 4, "out_features": 3, "pretrained": path}
    model = Mlp((), pretrained=path) if own else model_of(nn.Linear, options)
    network = initial_model(model, (4,), 3, seed=1, dtype=torch.bfloat16)
    assert [p.dtype for p in network.parameters()] == [torch.bfloat16] * 2
    parameters = [p.float() for p in network.parameters()]
    assert torch.allclose(parameters[0], tensors["weight"], rtol=0.01) and parameters[1].shape == (3,)


def test_a_tensor_with_two_names_may_have_either(tmp_path):
    network = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    network[1].weight = network[0].weight
    biases = {"0.bias": torch.zeros(3), "1.bias": torch.zeros(3)}
    for name in ("0.weight", "1.weight"):
        value = torch.randn(3, 3)
        load_weights(network, write(tmp_path / "tied.safetensors", biases | {name: value}))
        assert torch.equal(network[0].weight, value)


class Unpickled:
    """Would run code on loading."""

    def __reduce__(self):
        return print, ("never",)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"weight": torch.ones(3, 4)}, "it has no 'bias', which the model needs, of the shape (3,)"),
        ({"weight": torch.ones(3, 5), "bias": torch.ones(3)},
         "'weight' has the shape (3, 5); the model needs (3, 4)"),
        ({"weight": torch.ones(3, 4), "bias": torch.ones(3), "extra": torch.ones(1)},
         "the model has no 'extra'"),
        ({"epoch": 3}, "must hold the tensors of a state_dict, by name; it holds a dict with other things"),
        ({"weight": Unpickled()},
         "neither a .safetensors file nor a state_dict of tensors alone, written by torch.save"),
    ],
)  # fmt: skip
def test_a_file_that_does_not_fit_is_refused_in_one_line(tmp_path, capsys, content, message):
    path = write(tmp_path / "weights.pt", content)
    with pytest.raises(BadInput) as caught:
        initial_model(
            model_of(nn.Linear, {"in_features": 4, "out_features": 3, "pretrained": path}), (4,), 3, 1
        )
    assert str(caught.value) == f"model.pretrained: {path}: {message}"
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("content", [b"", b"\xff" * 40], ids=["empty", "no header"])
def test_a_broken_safetensors_file_is_refused(tmp_path, content):
    path = tmp_path / "weights.safetensors"
    path.write_bytes(content)
    with pytest.raises(BadInput, match=r"weights.safetensors: cannot be read: "):
        load_weights(nn.Linear(1, 1), path)


CONFIG = """
rounds: 1
graph: {name: ring, nodes: 2}
dataset: {name: digits, train_size: 20}
model: {name: 'function_of_options:%s', out_features: 10, pretrained: start.pt}
training: {optimizer: {name: SGD, lr: 0.1}, batch_size: 4, steps_per_round: 1}
"""
FUNCTION = """
from torch import nn

def flat(weights=None, **options):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, **options))

class Flat(nn.Linear):
    def __init__(self, out_features: int):
        super().__init__(64, out_features)

three = 3
"""


def test_yaml_names_a_function_and_a_file_beside_it(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    (tmp_path / "function_of_options.py").write_text(FUNCTION)
    weight = torch.randn(10, 64)
    for name, prefix in (("flat", "1."), ("Flat", "")):
        path = tmp_path / f"{name}.yaml"
        path.write_text(CONFIG % name)
        write(tmp_path / "start.pt", {f"{prefix}weight": weight, f"{prefix}bias": torch.zeros(10)})
        network = initial_model(loader.load(path).model.make(), (1, 8, 8), 10, seed=1)
        assert torch.equal(network.state_dict()[f"{prefix}weight"], weight)
    path.write_text(CONFIG % "three")
    with pytest.raises(BadInput, match="module 'function_of_options' has no class 'three'"):
        loader.load(path)
    path.write_text((CONFIG % "Flat").replace("out_features", "outs"))
    with pytest.raises(BadInput, match=r"unknown option of function_of_options:Flat"):
        loader.load(path)


class Counted(nn.Linear):
    """Has extra state, and a buffer that is made later."""

    def __init__(self):
        super().__init__(2, 1)
        self.calls = 0
        self.register_buffer("table", None)

    def get_extra_state(self):
        return {"calls": self.calls}

    def set_extra_state(self, state):
        self.calls = state["calls"]


def test_extra_state_and_late_buffers_are_read_from_a_state_dict(tmp_path):
    first, other = Counted(), Counted()
    first.calls, first.table = 3, torch.ones(2)
    torch.save(first.state_dict(), tmp_path / "whole.pt")
    load_weights(other, tmp_path / "whole.pt")
    assert (
        other.calls == 3
        and torch.equal(other.table, torch.ones(2))
        and torch.equal(other.weight, first.weight)
    )
    tensors = {"weight": torch.zeros(1, 2), "bias": torch.zeros(1)}
    load_weights(other, write(tmp_path / "weights.safetensors", tensors))
    assert other.calls == 3 and not other.weight.any()
    torch.save(tensors | {"_extra_state": 7}, tmp_path / "odd.pt")
    with pytest.raises(BadInput, match="the model does not take its '_extra_state'"):
        load_weights(other, tmp_path / "odd.pt")
