"""One quadratic function per node, with an optimum in closed form."""

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import torch
from annotated_types import MinLen
from torch import Tensor

from decentnode.core.registry import DATASETS
from decentnode.core.rng import generator
from decentnode.datasets.base import Dataset, LoadedDataset, Samples
from decentnode.options import Positive, PositiveFloat


@DATASETS.register("quadratic")
@dataclass(kw_only=True)
class Quadratic(Dataset):
    """Node i has f_i(x) = a_i/2 |x - b_i|^2, for model `quadratic` (as in Shi et al., 2015, section 4).

    Their mean is least at x = sum_i a_i b_i / sum_i a_i. By default a = 1, 2, 1, 2, ... and b_i = i: with
    eight nodes the optimum is 11/3, where the mean of all f_i is 47/12. Each node has one sample, (a, b), for
    training and for testing, and `groups` is the node. Use partition `natural`, and loss `NLLLoss`, which
    reads the one score of the model, -f_i.
    """

    nodes: Positive = 8
    dimension: Positive = 1
    a: Annotated[tuple[PositiveFloat, ...], MinLen(1)] = (1.0, 2.0)
    """Repeated until there is one for each node."""
    b: Literal["rank", "normal"] | Annotated[tuple[float, ...], MinLen(1)] = "rank"
    """rank: b_i = i; normal: each coordinate drawn from N(0, 1); numbers: repeated, one for each node."""

    reads_files: ClassVar[bool] = False

    def read(self, seed: int) -> LoadedDataset:
        inputs = torch.empty(self.nodes, 2, self.dimension, dtype=torch.float64)
        inputs[:, 0] = repeated(self.a, self.nodes)[:, None]
        inputs[:, 1] = self._centers(seed)
        groups = torch.arange(self.nodes)
        samples = Samples(inputs, torch.zeros(self.nodes, dtype=torch.int64), groups=groups)
        return LoadedDataset(samples, samples, num_classes=1, shape=(2, self.dimension))

    def _centers(self, seed: int) -> Tensor:
        """All b_i; of shape (nodes, dimension), or (nodes, 1) where all coordinates are equal."""
        if self.b == "normal":
            drawn = generator(seed, "quadratic").standard_normal((self.nodes, self.dimension))
            return torch.from_numpy(drawn)
        numbers = tuple(range(self.nodes)) if self.b == "rank" else self.b
        return repeated(numbers, self.nodes)[:, None]


def repeated(numbers: tuple[float, ...], count: int) -> Tensor:
    """The first `count` numbers of the repeated sequence."""
    return torch.tensor([numbers[i % len(numbers)] for i in range(count)], dtype=torch.float64)
