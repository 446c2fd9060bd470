"""Schemes mix where the vector is: as on the CPU, to the bit on a pretended GPU, nearly on a real one."""

import pytest
import torch

from decentnode.core.vector import Entry, ParameterLayout
from decentnode.sharing.blocks import weighted_sum as mixing
from decentnode.testing import Lockstep
from tests.support.doubles import GPU, FakeGpu, in_memory, on_gpu
from tests.support.scheme_cases import CASES, plain

MODEL = ParameterLayout((Entry("weight", torch.Size([10, 25]), 0), Entry("bias", torch.Size([50]), 250)))
ON_HOST = {"moniqua", "power_gossip", "power_gossip rank 2", "secure_aggregation", "secure_aggregation fine"}
ON_HOST |= {"beer_per_edge", "choco_per_edge", "muffliato", "power_gossip changing", "zip_dl"}
ON_HOST |= {"cesar", "mosaic", "secure_aggregation threshold", "shatter"}
ON_HOST |= {"balance", "clipped_gossip", "geometric_median", "krum", "krum nearest", "rfa", "ubar"}
"""Schemes that compute what they send, its length, noise, or weights from distances in host memory."""

MASKED = {"secure_aggregation threshold", "cesar"}
"""Schemes that take seconds for their masks, all in host memory."""


def models_of(case, chain, place):
    """What all nodes have after some rounds of a gradient step and communication."""
    graph = small(min(case.graphs, key=lambda graph: graph.num_nodes))
    models = torch.randn(graph.num_nodes, MODEL.numel, generator=torch.Generator().manual_seed(1))
    network = Lockstep(case.make, graph, place(models), chain, case.weights, parameters=MODEL)
    return network.run(2, lambda i, x: 0.1 * x, 0.1)


def small(graph):
    """The same family with four nodes, where the number of nodes says all."""
    try:
        return type(graph)(4)
    except TypeError:
        return graph


@pytest.fixture
def without_a_kernel(monkeypatch):
    """A pretended GPU runs none."""
    monkeypatch.setattr(mixing, "fused_on", lambda device: None)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.long] * (name in MASKED)) for name in CASES]
)
def test_models_on_a_gpu_stay_there_and_become_what_they_become_on_the_cpu(name, without_a_kernel):
    case = CASES[name]
    for chain in {case.chains[0], case.chains[-1]}:
        expected = models_of(case, chain, lambda x: x)
        with FakeGpu() as gpu:
            models = models_of(case, chain, on_gpu)
            assert models.device == GPU
        assert torch.equal(in_memory(models), expected)
        if chain is plain and name not in ON_HOST and case.make().first_transforms() == ():
            assert gpu.crossings.out == gpu.crossings.into == []


@pytest.mark.gpu
@pytest.mark.parametrize("name", sorted(CASES.keys() - MASKED))
def test_models_on_a_real_gpu_become_what_they_become_on_the_cpu(name):
    case = CASES[name]
    for chain in {case.chains[0], case.chains[-1]}:
        expected = models_of(case, chain, lambda x: x)
        models = models_of(case, chain, lambda x: x.to(GPU))
        assert models.device == GPU
        # Where rounding decides which values are sent, or to which level they are rounded, a few may differ.
        apart = (models.cpu() - expected).abs() > 1e-4 * (1 + expected.abs())
        assert int(apart.sum()) <= (0 if chain is plain else apart.numel() // 50)
