"""Arguments of join, values of `launch --set`, and what a node returns of its model."""

import threading

import pytest
import torch
from torch import nn

import decentnode
from decentnode.parallel.join import _with_value


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
    means, models, parts = {}, {}, {}

    def train(rank):
        model = Tied()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
        with decentnode.join(
            model, optimizer=optimizer, rank=rank, size=2, graph="fully_connected", sharing="none",
            quiet=True, run_dir=str(tmp_path / "run"), evaluation={"figures": False},
        ) as node:  # fmt: skip
            ids = torch.arange(7)
            nn.functional.cross_entropy(model(ids), (ids + 1 + rank) % 7).backward()
            optimizer.step()
            node.step()
            means[rank], models[rank] = node.mean_model(), model.head.weight.detach().clone()
            with pytest.warns(UserWarning, match="deals single elements"):
                node.shard(torch.arange(10))
            parts[rank] = node.shard(range(0, 100, 10)).indices
            Tied().load_state_dict(means[rank])

    threads = [threading.Thread(target=train, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    mean = (models[0].double() + models[1].double()).div(2).float()
    assert not torch.equal(models[0], models[1])
    assert all(torch.equal(means[rank]["tokens.weight"], mean) for rank in range(2))
    assert sorted(parts[0] + parts[1]) == [*range(10)] and len(parts[0]) == 5
