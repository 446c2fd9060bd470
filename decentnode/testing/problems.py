"""Problems whose answer is known in closed form."""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Quadratics:
    """f_i(x) = a_i |x - b_i|^2 / 2 on node i; computed in the dtype of x."""

    a: Tensor
    """The curvatures, shape (n,)."""
    b: Tensor
    """The minima of the f_i, shape (n,) for models of one value, else (n, d)."""

    def gradient(self, i: int, x: Tensor) -> Tensor:
        """The gradient of f_i at x, shape (d,)."""
        a, b = self.a[i].to(x), self.b[i].to(x)
        return a * (x - b)

    @property
    def optimum(self) -> Tensor:
        """The minimum of the sum of all f_i: sum_i a_i b_i / sum_i a_i, shape () or (d,)."""
        total: Tensor = torch.tensordot(self.a, self.b, dims=1)
        return total / self.a.sum()


Q8 = Quadratics(torch.tensor([1, 2] * 4, dtype=torch.float64), torch.arange(8, dtype=torch.float64))
"""Eight nodes, a = 1, 2, 1, 2, ..., b_i = i, one value; the optimum is 11/3."""


def random_models(n: int, d: int = 7, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    """Models of values about 1, shape (n, d), the same for the same seed."""
    return torch.randn(n, d, generator=torch.Generator().manual_seed(seed), dtype=dtype)
