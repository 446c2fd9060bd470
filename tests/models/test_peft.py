"""Models of peft as they are: trained and shared as in a plain loop, and loaded back."""

import pytest
import torch
from torch import nn

import decentnode
from decentnode.formats.records import records_by_rank
from tests.parallel.test_join import Loops

peft = pytest.importorskip("peft", reason="pip install 'decentnode[frameworks]'")

PARAMETERS = 2 * (3 + 6) + (6 + 1) * 2
"""A, B, and the head that is saved as a whole."""


def base() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(3, 6), nn.Tanh(), nn.Linear(6, 2))


def adapted() -> nn.Module:
    return peft.get_peft_model(base(), peft.LoraConfig(r=2, target_modules=["0"], modules_to_save=["2"]))


def test_a_run_is_a_plain_loop_and_its_model_loads_into_peft(tmp_path):
    torch.manual_seed(2)
    inputs, labels = torch.randn(40, 3, dtype=torch.float64), torch.arange(40) % 2
    training = {"optimizer": {"name": "AdamW", "lr": 0.01}, "batch_size": 40, "steps_per_round": 1}
    values = {
        "rounds": 4,
        "graph": {"name": "fully_connected", "nodes": 1},
        "dataset": ((inputs, labels), (inputs, labels)),
        "training": {**training, "dtype": "float64"},
        "sharing": "none",
        "communication": "inproc",
        "evaluation": {"figures": False},
    }
    plain, losses = adapted().double(), []
    optimizer = torch.optim.AdamW([p for p in plain.parameters() if p.requires_grad], lr=0.01)
    for _ in range(4):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(plain(inputs), labels)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    for name, model in {"function": adapted, "object": adapted()}.items():
        run = decentnode.run(values, progress=False, model=model, run_dir=tmp_path / name)
        assert run.summary["parameters"] == PARAMETERS
        assert [record.loss for record in records_by_rank(run.directory)[0]] == pytest.approx(losses)
        torch.testing.assert_close(run.model(0), dict(plain.state_dict()), rtol=1e-10, atol=1e-12)
        run.mean_model(with_its_code=True).save_pretrained(tmp_path / f"{name}-adapter")
        loaded = peft.PeftModel.from_pretrained(base(), tmp_path / f"{name}-adapter").double()
        merged = run.merged_model(with_its_code=True).double()
        assert type(merged) is nn.Sequential
        for network in (loaded, merged):
            torch.testing.assert_close(network(inputs), plain(inputs), rtol=1e-5, atol=1e-5)


def test_ranks_that_join_share_what_peft_trains(tmp_path):
    def work(node, model, step):
        for _ in range(4):
            step()
            node.step()
        return model.state_dict()

    run, states = Loops(tmp_path).run(work, make=adapted)
    assert run.summary["parameters"] == PARAMETERS
    trained = {name for name, parameter in adapted().named_parameters() if parameter.requires_grad}
    for name, tensor in adapted().state_dict().items():
        assert torch.equal(states[0][name], states[1][name])
        assert torch.equal(states[0][name], tensor) == (name not in trained)
