"""The original form of exact diffusion (D^2), which diverges on some graphs."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from decentnode.core.registry import SHARINGS, name_of
from decentnode.errors import BadInput
from decentnode.graph.mixing import WeightedGraph
from decentnode.sharing.exact_diffusion import ExactDiffusion

LIMIT = -1 / 3
ROUNDING = 1e-9


@SHARINGS.register("d2")
@dataclass
class D2(ExactDiffusion):
    """Exact diffusion with W itself, for comparison (D^2: Tang et al., ICML 2018, Alg. 1).

    x+ = W phi,   phi = psi + x - psi_prev: x+ = W (2x - x_prev - eta (g - g_prev)) with one gradient step

    Converges only where the least eigenvalue of W is above -1/3, which excludes rings of an even number of
    nodes, most tori and hypercubes with Metropolis-Hastings weights. `exact_diffusion` is right on all
    graphs.
    """

    alpha: ClassVar[float] = 1.0

    def check(self, graph: WeightedGraph) -> None:
        super().check(graph)
        least = float(np.linalg.eigvalsh(graph.matrix())[0])
        if least <= LIMIT + ROUNDING:
            raise BadInput(
                f"{name_of(self)} diverges where the least eigenvalue of W is -1/3 or below; here it is "
                f"{least:.4g}; use exact_diffusion"
            )
