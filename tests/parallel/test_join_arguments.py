"""Arguments of join, values of `launch --set`, and what a node returns of its model."""

from uuid import uuid4

import pytest
import torch
from torch import nn

import decentnode
from decentnode.errors import DecentnodeError
from decentnode.parallel.join import _with_value
from tests.support.rank_threads import in_threads


def joined(model, optimizer, rank, folder, **options):
    """One of two ranks."""
    return decentnode.join(
        model, optimizer=optimizer, rank=rank, size=2, graph="fully_connected", quiet=True,
        run_dir=str(folder / "run"), evaluation={"figures": False}, **options,
    )  # fmt: skip


def test_a_value_at_a_dotted_key_keeps_what_else_is_there():
    assert _with_value({"sharing": "choco"}, ["sharing", "gamma"], 0.3) == {
        "sharing": {"name": "choco", "gamma": 0.3}
    }
    assert _with_value({"checkpoint": {"final": False}}, ["checkpoint", "every"], 2) == {
        "checkpoint": {"final": False, "every": 2}
    }
    assert _with_value({}, ["rounds"], 5) == {"rounds": 5}


class Tied(nn.Module):
    """Two names of one parameter, as a language model has them."""

    def __init__(self):
        super().__init__()
        self.tokens, self.head = nn.Embedding(7, 3), nn.Linear(3, 7, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, ids):
        return self.head(self.tokens(ids))


def test_the_mean_model_loads_into_a_model_with_tied_parameters(tmp_path):
    def train(rank):
        model = Tied()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
        with joined(model, optimizer, rank, tmp_path, sharing="none") as node:
            ids = torch.arange(7)
            nn.functional.cross_entropy(model(ids), (ids + 1 + rank) % 7).backward()
            optimizer.step()
            node.step()
            mean = node.mean_model()
            with pytest.warns(UserWarning, match="deals single elements"):
                node.shard(torch.arange(10))
            Tied().load_state_dict(mean)
            part = node.shard(range(0, 100, 10)).indices
            return mean["tokens.weight"], model.head.weight.detach().clone(), part

    means, models, parts = zip(*in_threads(2, train), strict=True)
    mean = (models[0].double() + models[1].double()).div(2).float()
    assert not torch.equal(models[0], models[1])
    assert all(torch.equal(one, mean) for one in means)
    assert sorted(parts[0] + parts[1]) == [*range(10)] and len(parts[0]) == 5


class Waves(nn.Module):
    """A number, a vector of complex ones, and a float64 buffer."""

    def __init__(self, dtype=torch.float32, buffer=torch.float64, device=None):
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(2.0, dtype=dtype, device=device))
        self.waves = nn.Parameter(torch.arange(3).to(dtype.to_complex()).to(device) * (1 - 2j))
        self.register_buffer("mean", torch.ones(2, dtype=buffer, device=device))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("sharing", ["gossip", "choco"])
def test_scalar_and_complex_parameters_are_shared(dtype, sharing, tmp_path):
    def train(rank):
        model = Waves(dtype)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
        with joined(model, optimizer, rank, tmp_path, sharing=sharing) as node:
            # The gradient of |w|^2 is 2 w, and that of the number is the rank's.
            (model.scale * (rank + 1) + model.waves.abs().square().sum() * rank / 4).backward()
            optimizer.step()
            before = model.scale.item(), model.waves.detach().clone()
            node.step()
        return before, (model.scale.item(), model.waves.detach().clone())

    before, after = zip(*in_threads(2, train), strict=True)
    assert [number for number, _ in before] == [1.5, 1.0]
    begun = torch.arange(3).to(dtype.to_complex()) * (1 - 2j)
    assert torch.equal(before[0][1], begun) and torch.equal(before[1][1], begun * 0.75)
    if sharing == "gossip":
        assert [number for number, _ in after] == [1.25, 1.25]
        assert all(torch.equal(waves, begun * 0.875) for _, waves in after)


def test_what_cannot_be_shared_is_said(tmp_path):
    def first_error(build, **options):
        with pytest.raises(DecentnodeError) as error:
            folder = tmp_path / uuid4().hex
            in_threads(2, lambda rank: one_step(*build(), rank, folder, **options))
        return str(error.value)

    def one_step(model, backward, rank, folder, **options):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
        with joined(model, optimizer, rank, folder, **options) as node:
            backward(model)
            optimizer.step()
            node.step()

    def sparse():
        model = nn.Embedding(5, 2, sparse=True)
        return model, lambda model: model(torch.tensor([1])).sum().backward()

    assert first_error(lambda: (Waves(device="meta"), None)) == (
        "join: 'scale' is on the meta device, without values; make the model's first"
    )
    assert "buffer 'mean' is torch.float64, and parameters are torch.float32; leave training.mix" in (
        first_error(lambda: (Waves(), None), training={"mix_buffers": True})
    )
    assert "the gradient of 'weight' is sparse" in first_error(sparse, sharing="gradient_tracking")
    mixed = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2).double())
    assert "(shared= names those to share)" in first_error(lambda: (mixed, None))


def test_ranks_of_scripts_have_no_virtual_time(tmp_path):
    def join(rank):
        model = nn.Linear(2, 1)
        optimizer, virtual = torch.optim.SGD(model.parameters(), lr=0.1), {"communication": "simulated"}
        joined(model, optimizer, rank, tmp_path, training={"pace": "instant"}, **virtual)

    with pytest.raises(DecentnodeError, match="simulated has virtual time, and ranks of scripts wait"):
        in_threads(2, join)
