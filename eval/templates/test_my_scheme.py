"""The equation of the scheme against its matrix form: python -m pytest"""

import torch
from my_scheme import MyScheme

from decentnode.graph.families import Ring
from decentnode.graph.mixing import MetropolisHastings, WeightedGraph
from decentnode.testing import Lockstep, random_models


def test_it_is_the_equation() -> None:
    """X <- X + gamma (W X - X), with a row of X for each node."""
    x = random_models(8)
    network = Lockstep(lambda: MyScheme(gamma=0.3), Ring(8), x)
    W = torch.from_numpy(WeightedGraph(Ring(8), MetropolisHastings()).matrix())
    for _ in range(20):
        x = x + 0.3 * (W @ x - x)
        assert torch.allclose(network.mix(), x, rtol=0, atol=1e-13)
