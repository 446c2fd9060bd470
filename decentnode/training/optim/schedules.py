"""Learning rates with a warm-up and a decay, as for large models.

A step is one call of `step()`: a minibatch in your own loop, a round in an experiment. The rate of step t (0
is the first) is a formula of t alone, so a resumed schedule continues exactly.
"""

import math

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler


class WarmupCosine(LRScheduler):
    """Linear growth to the optimizer's rate, then half a cosine down (Loshchilov and Hutter, ICLR 2017).

    The rate of step t:

        lr(t) = lr (f + (1 - f) t/warmup)                                     for t < warmup
        lr(t) = final + (lr - final) (1 + cos(pi (t - warmup)/(total - warmup))) / 2    up to total
        lr(t) = final                                                         from total on
    """

    def __init__(
        self, optimizer: Optimizer, total: int, warmup: int = 0, start_factor: float = 0.01,
        final_lr: float = 0.0, last_epoch: int = -1,
    ) -> None:  # fmt: skip
        """`warmup` of `total` steps grow, from `start_factor` (f) of the rate; raises ValueError."""
        if not 0 <= warmup < total:
            raise ValueError(f"warmup must be >= 0 and below total, not {warmup} of {total}")
        if not 0 < start_factor <= 1:
            raise ValueError(f"start_factor must be > 0 and <= 1, not {start_factor}")
        if final_lr < 0:
            raise ValueError(f"final_lr must be >= 0, not {final_lr}")
        self.warmup = warmup
        self.total = total
        self.start_factor = start_factor
        self.final_lr = final_lr
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[float]:  # type: ignore[override]
        """The rate of each group for step `last_epoch`."""
        return [self._rate(float(base), self.last_epoch) for base in self.base_lrs]

    def _rate(self, base: float, t: int) -> float:
        if t < self.warmup:
            return base * (self.start_factor + (1 - self.start_factor) * t / self.warmup)
        done = min(1.0, (t - self.warmup) / (self.total - self.warmup))
        return self.final_lr + (base - self.final_lr) * (1 + math.cos(math.pi * done)) / 2


class InverseSquareRoot(LRScheduler):
    """Linear growth to the optimizer's rate, then as 1/sqrt(t) (Vaswani et al., NeurIPS 2017, Section 5.3).

        lr(t) = lr min((t + 1)/warmup, sqrt(warmup/(t + 1)))

    The paper's rate for width d is that with lr = 1/sqrt(d warmup).
    """

    def __init__(self, optimizer: Optimizer, warmup: int = 4000, last_epoch: int = -1) -> None:
        """`warmup` steps grow; raises ValueError when there are none."""
        if warmup < 1:
            raise ValueError(f"warmup must be a whole number > 0, not {warmup}")
        self.warmup = warmup
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[float]:  # type: ignore[override]
        """The rate of each group for step `last_epoch`."""
        t, w = self.last_epoch + 1, self.warmup
        return [float(base) * min(t / w, math.sqrt(w / t)) for base in self.base_lrs]
