"""The same small network for every loop, and samples of its own."""

import torch
from torch import nn

SAMPLES = 24


def samples_of(rank):
    """Inputs and labels."""
    inputs = torch.randn(SAMPLES, 6, generator=torch.Generator().manual_seed(rank))
    return inputs, (inputs[:, :2].sum(1) > 0).long()


def small_classifier():
    """The same values in each thread, of which torch has one generator."""
    network = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 2))
    with torch.no_grad():
        for index, parameter in enumerate(network.parameters()):
            parameter.copy_(torch.linspace(-0.4, 0.5, parameter.numel()).roll(index).view_as(parameter))
    return network


def flat(network):
    """A copy of all parameters as one vector."""
    return nn.utils.parameters_to_vector(network.parameters()).detach().clone()
