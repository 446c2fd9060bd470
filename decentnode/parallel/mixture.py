"""The inputs of one bucket's mix in one step."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite

from torch import Tensor

from decentnode.core.vector import accumulator, describe_not_finite
from decentnode.parallel.buckets import BucketMemory
from decentnode.sharing.blocks.weighted_sum import in_pieces, weighted_sum


@dataclass(eq=False)
class MixInput:
    """Own and neighbors' values of one bucket, all flat, with their weights, before they are summed.

    `weights` are those of the step and include the mixing strength: (1 - a) I + a W. A hook may change them,
    or put other tensors into `received`; it must not write to `own` or to received memory.
    """

    step: int
    rank: int
    weights: dict[int, float]
    """The weights by rank, ascending, including the own one."""
    own: Tensor
    """x_i of this bucket, as the neighbors received it."""
    received: dict[int, Tensor]
    """The values that each neighbor sent, by rank; in memory of the neighbors."""
    bucket: BucketMemory
    start: int = 0
    """The offset of these values in the block."""

    def named(self, rank: int) -> dict[str, Tensor]:
        """The tensors of a neighbor, or of this rank, by their names in the module."""
        return {entry.name: entry.view(self._of(rank)) for entry in self.bucket.layout.entries}

    def write(self, out: Tensor) -> None:
        """Sets out <- sum_j w_ij x_j, in rank order; raises ValueError, with a rank, if not finite."""
        if not weighted_sum(((w, self._of(j)) for j, w in self.weights.items()), out):
            self._check_finite()

    def add_change(self, out: Tensor) -> None:
        """Sets out <- out + sum_j w_ij x_j - x_i, where `out` holds x_i plus a step."""
        self._add(1.0, {j: w - (j == self.rank) for j, w in self.weights.items()}, out)

    def mix_into(self, out: Tensor) -> None:
        """Sets out <- w_ii out + sum_{j != i} w_ij x_j, where `out` holds x_i after changes."""
        others = {j: w for j, w in self.weights.items() if j != self.rank}
        self._add(self.weights.get(self.rank, 0.0), others, out)

    def _add(self, scale: float, weights: Mapping[int, float], out: Tensor) -> None:
        """Sets out <- scale out + sum_j weights_j x_j; raises ValueError as `write` does."""
        wide, finite = accumulator(out.dtype), True
        for piece, *columns in in_pieces(out, *(self._of(j) for j in weights)):
            total = piece.to(wide)
            if scale != 1:
                total.mul_(scale)
            for w, x in zip(weights.values(), columns, strict=True):
                total.add_(x, alpha=w)
            finite = finite and isfinite(float(total.sum()))
            if total is not piece:
                piece.copy_(total)
        if not finite:
            self._check_finite()

    def _of(self, rank: int) -> Tensor:
        return self.own if rank == self.rank else self.received[rank]

    def _check_finite(self) -> None:
        """Raises ValueError for inputs that are not finite; large sums of finite values pass."""
        for j in self.weights:
            if found := describe_not_finite(self._of(j), self.bucket.layout, self.start):
                raise ValueError(f"rank {j}: its model is not finite: {found}")
