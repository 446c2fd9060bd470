"""Optimizers without torch's compiler: the same numbers, modes, hooks and errors as torch's own."""

import copy
from unittest.mock import patch

import pytest
import torch
from torch import nn

from decentnode.config.torch_classes import OPTIMIZERS
from decentnode.training.optim import uncompiled as module
from decentnode.training.optim.uncompiled import trial_step, uncompiled

LACKING = {"SparseAdam"} | ({"Muon"} if not hasattr(torch.optim, "Muon") else set())
CLASSES = {name: cls for name, cls in OPTIMIZERS.classes().items() if name not in LACKING}


def trained(make, steps=3, differentiable=False):
    """Parameters, loss and state after steps on a small network with a schedule, and what the hooks saw."""
    torch.manual_seed(1)
    # Muon takes matrices alone.
    network, inputs = nn.Linear(4, 3, bias=False), torch.randn(6, 4)
    optimizer, seen = make(network.parameters()), []
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2, gamma=0.5)
    optimizer.register_step_post_hook(lambda *_: seen.append(type(optimizer).__name__))

    def closure():
        optimizer.zero_grad()
        loss = network(inputs).square().mean()
        loss.backward()
        return loss

    for _ in range(steps):
        loss = optimizer.step(closure)
        schedule.step()
        # As a node that resumes.
        optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    return [*network.parameters(), loss.detach()], optimizer.state_dict(), seen


@pytest.mark.parametrize("name", CLASSES)
def test_it_computes_the_same_bits(name):
    cls = CLASSES[name]
    made = uncompiled(cls)
    assert made is uncompiled(cls) and issubclass(made, cls) and made.__name__ == name
    assert {"add_param_group", "zero_grad", "state_dict", "load_state_dict"} <= vars(made).keys()
    assert "__wrapped__" in vars(cls.state_dict)
    tensors, state, seen = trained(made)
    expected, known, _ = trained(cls)
    assert all(map(torch.equal, tensors, expected)) and repr(state) == repr(known)
    assert seen == [name] * 3
    # Torch has put its hook around the step of the class now.
    uncompiled.cache_clear()
    assert all(map(torch.equal, trained(uncompiled(cls))[0], expected))


@pytest.mark.parametrize("cls", [torch.optim.Adagrad, torch.optim.Adam])
def test_gradients_flow_through_a_step_only_where_they_are_requested(cls):
    """The derivative of the parameter after a step by the one before, and the mode that is left behind."""
    steps = []
    for make in (cls, uncompiled(cls)):
        start = torch.tensor([2.0], requires_grad=True)
        parameter = start.clone()
        parameter.grad = start.square()
        make([parameter], lr=0.1, eps=1.0, differentiable=True).step()
        steps.append(torch.autograd.grad(parameter, start)[0])
    assert torch.equal(*steps) and steps[0] != 1

    modes = []

    def failing():
        modes.append(torch.is_grad_enabled())
        raise ValueError("in a closure")

    for mode in (True, False):
        optimizer = uncompiled(cls)([torch.ones(1, requires_grad=True)], lr=0.1)
        with torch.set_grad_enabled(mode), pytest.raises(ValueError, match="in a closure"):
            try:
                optimizer.step(failing)
            finally:
                assert torch.is_grad_enabled() is mode
    assert modes == [True, True]


def test_what_is_not_known_stays_as_it_is():
    class Own(torch.optim.SGD):
        def step(self, closure=None):
            return super().step(closure)

    def make(parameters):
        return Own(parameters, lr=0.1)

    assert "step" not in vars(uncompiled(Own)) and "zero_grad" in vars(uncompiled(Own))
    assert uncompiled(make) is make and uncompiled(nn.Identity) is nn.Identity
    assert module._made_by(torch, "_no_such_decorator") is None
    uncompiled.cache_clear()
    with patch.multiple(module, _MARKED=None, _IN_GRAD_MODE=None, _PROFILED=None):
        assert uncompiled(torch.optim.SGD) is torch.optim.SGD
    uncompiled.cache_clear()
    assert trial_step(make, torch.float64)["param_groups"][0]["lr"] == 0.1
