"""Loops of one's own as threads, with the same small network and samples of their own."""

import threading

import torch
from torch import nn

LIMIT = 200.0
SAMPLES = 24


def in_loop_threads(size, work):
    """What `work(rank)` gives in each of the threads; the first error is raised."""
    results, errors = [None] * size, []

    def perform(rank):
        try:
            results[rank] = work(rank)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=perform, args=(rank,), daemon=True) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT)
    if errors:
        raise errors[0]
    assert not any(thread.is_alive() for thread in threads), "a loop hangs"
    return results


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
