"""Differentially private stochastic gradient descent."""

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import Annotated, Any, ClassVar, Literal

import torch
from annotated_types import Gt, Lt
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.instancenorm import _InstanceNorm

from decentnode.core.registry import PRIVACIES
from decentnode.core.rng import RandomSource, SecureSource, SeededSource
from decentnode.core.vector import Vector
from decentnode.datasets.base import Batch, Samples
from decentnode.errors import BadInput
from decentnode.options import NonNegativeFloat, PositiveFloat
from decentnode.training.minibatches import Minibatches, Shard
from decentnode.training.objective import Objective
from decentnode.training.privacy.accountants import ACCOUNTANTS, LEAST_GIVEN, MOST_NOISE, Spending
from decentnode.training.privacy.base import History, Privacy, PrivacyPlan, PrivateSteps
from decentnode.training.privacy.per_example import ClippedSum
from decentnode.training.privacy.pipeline import Pipeline, Release

Delta = Annotated[float, Gt(0), Lt(1)]


@PRIVACIES.register("dp_sgd")
@dataclass
class DpSgd(Privacy):
    """Clips the gradient of each sample and adds noise to their sum (Abadi et al., 2016, algorithm 1).

    g <- (sum_i g_i min(1, C / |g_i|) + N(0, (sigma C)^2 I)) / B

    i is over the samples of a step, each drawn with probability q = B / n; B is `batch_size` x `accumulate`,
    and n the number of the node's samples. So (epsilon, delta) bounds what all models that a node sends
    tell about any one of its samples, whatever others do with them.
    """

    clip: PositiveFloat
    """C, the largest norm of a sample's gradient."""
    delta: Delta
    """The probability with which epsilon may not hold; below 1 / n."""
    noise: NonNegativeFloat | None = None
    """sigma, the standard deviation of the noise in units of `clip`; null: the least with which all steps
    of the run spend `epsilon`.
    """
    epsilon: PositiveFloat | None = None
    """The budget of each node; null: no limit."""
    accountant: Literal["rdp", "pld", "none"] = "rdp"
    """Who bounds epsilon: by Renyi divergences, by distributions of privacy losses (tighter), or nobody."""
    sampling: Literal["poisson", "shuffle"] = "poisson"
    """How the samples of a step are drawn; no accountant covers `shuffle`."""
    generator: Literal["secure", "seeded"] = "secure"
    """Where noise and samples come from: the operating system, or the seed, which is reproducible and
    protects nothing.
    """
    on_spent: Literal["stop", "warn"] = "stop"
    """What happens when the budget is spent before the last round."""
    pipeline: Pipeline | None = None
    """How mean and deviation of inputs, and categories, are released with noise before the steps, at the
    expense of the same budget; null: without noise, where a dataset computes them, which leaves no claim."""

    def __post_init__(self) -> None:
        if self.noise is None and self.epsilon is None:
            raise BadInput.at("training.privacy", "give noise, or epsilon, for which the noise is computed")
        if self.accountant == "none":
            if self.epsilon is not None:
                raise BadInput.at("training.privacy.epsilon", "needs an accountant: rdp or pld")
        elif self.sampling not in ACCOUNTANTS[self.accountant].samplings:
            raise BadInput.at(
                "training.privacy.sampling",
                f"{self.accountant} covers poisson, not {self.sampling}; use "
                "that, or accountant: none, which claims nothing",
            )
        if self.noise and not LEAST_GIVEN <= self.noise <= MOST_NOISE:
            raise BadInput.at(
                "training.privacy.noise",
                f"must be 0, or from {LEAST_GIVEN:g} to {MOST_NOISE:g}, not {self.noise:g}",
            )
        if self.noise == 0 and self.epsilon is not None:
            raise BadInput.at("training.privacy.noise", "0 protects nothing; leave it out to compute it")
        if self.pipeline is not None and self.pipeline.noise is None and self.epsilon is None:
            raise BadInput.at(
                "training.privacy.pipeline.epsilon_share",
                "is a part of training.privacy.epsilon, which is missing; give pipeline.noise instead",
            )

    @cached_property
    def release(self) -> Release | None:
        if self.pipeline is None:
            return None
        accountant, noise = ACCOUNTANTS.get(self.accountant), self.pipeline.noise
        delta = self.delta - self.delta_of_noise
        if accountant is None:
            return Release(noise or 0.0, None, self.pipeline.bounds, self.generator == "secure", delta)
        if noise is None:
            part = (self.pipeline.epsilon_share or 0.0) * (self.epsilon or 0.0)
            noise = accountant.noise_for(part, self.delta_of_noise, rate=1.0, steps=1)
        alone = accountant.epsilon([Spending(1.0, noise, 1)], self.delta_of_noise)
        if alone > (self.epsilon or float("inf")):
            raise BadInput.at(
                "training.privacy.pipeline.noise",
                f"{noise:g} spends epsilon {alone:.4g} before the first step, and the budget is "
                f"{self.epsilon:g}; add more noise",
            )
        return Release(noise, alone, self.pipeline.bounds, self.generator == "secure", delta)

    @property
    def delta_of_noise(self) -> float:
        """What the release of categories leaves of delta."""
        share = self.pipeline.delta_share if self.pipeline else None
        return self.delta * (1 - (share or 0.0))

    def described(self) -> dict[str, Any]:
        return {"name": "dp_sgd", "delta": self.delta, "accountant": self.accountant}

    def check(self, network: nn.Module, samples: Samples) -> None:
        for name, part in network.named_modules():
            # InstanceNorm mixes nothing, unless it keeps statistics of the samples it has seen.
            mixes = not isinstance(part, _InstanceNorm) or part.track_running_stats
            if isinstance(part, _NormBase) and mixes:
                raise BadInput.at(
                    "training.privacy",
                    f"{type(part).__name__} '{name}' of the model mixes samples, so that "
                    "each changes the gradients of others; use GroupNorm (norm: group)",
                )
        if name := next((name for name, p in network.named_parameters() if p.is_complex()), None):
            raise BadInput.at(
                "training.privacy", f"'{name}' of the model is complex, and dp_sgd clips real gradients"
            )
        if samples.weights is not None:
            raise BadInput.at(
                "training.privacy", "the samples have weights, which dp_sgd does not bound; leave them out"
            )

    def plan(self, size: int, expected: int, steps: Sequence[int]) -> PrivacyPlan:
        total, rate = sum(steps), min(1.0, expected / size) if size else 0.0
        if size and self.delta >= 1 / size and self.accountant != "none":
            raise BadInput.at(
                "training.privacy.delta",
                f"must be below 1 / {size}, for a node of {size} samples, not "
                f"{self.delta:g}, which would allow it to publish one of them",
            )
        # A node without samples has nothing to release.
        before = [Spending(1.0, self.release.noise, 1)] if self.release and size else []
        if self.accountant == "none":
            return PrivacyPlan(
                rate, self.noise or 0.0, total, epsilon=float("inf"), rounds=len(steps), before=before
            )
        accountant = ACCOUNTANTS[self.accountant]
        noise = self.noise
        if noise is None:
            noise = accountant.noise_for(
                self.epsilon or 0.0, self.delta_of_noise, rate, steps=total, before=before
            )

        def epsilon(count: int) -> float:
            return accountant.epsilon([*before, Spending(rate, noise, count)], self.delta_of_noise)

        affordable, budget = len(steps), self.epsilon or float("inf")
        if self.on_spent == "stop" and epsilon(total) > budget:
            affordable = bisect_left(list(accumulate(steps)), True, key=lambda count: epsilon(count) > budget)
        return PrivacyPlan(rate, noise, total, epsilon=epsilon(total), rounds=affordable, before=before)

    def private_steps(
        self, plan: PrivacyPlan, objective: Objective, vector: Vector, shard: Shard, batch_size: int
    ) -> "DpSgdSteps":
        return DpSgdSteps(self, plan, objective, vector=vector, shard=shard, batch_size=batch_size)


class DpSgdSteps(PrivateSteps):
    """The steps of one node by DP-SGD, and what they have spent."""

    state: ClassVar = ("history", "source")

    def __init__(
        self, dp_sgd: DpSgd, plan: PrivacyPlan, objective: Objective, vector: Vector, shard: Shard,
        batch_size: int,
    ) -> None:  # fmt: skip
        """`batch_size`: the samples that are computed at a time."""
        super().__init__()
        seeded = dp_sgd.generator == "seeded"
        self.source: RandomSource = SeededSource(shard.seed, shard.rank) if seeded else SecureSource()
        self.minibatches = (
            PoissonBatches(shard, batch_size, plan.rate, source=self.source)
            if dp_sgd.sampling == "poisson"
            else Minibatches(shard, batch_size)
        )
        self.history = [(rate, noise, steps) for rate, noise, steps in plan.before]
        self._dp_sgd = dp_sgd
        self._plan = plan
        self._vector = vector
        self._is_sum = objective.reduction == "sum"
        self._expected = plan.rate * len(shard.indices)
        self._sum = ClippedSum(objective, vector.layout)
        self._is_spent = False

    def begin(self, steps: int) -> int:
        budget = self._dp_sgd.epsilon
        if budget is None or self._after(steps) <= budget:
            return steps
        if self._dp_sgd.on_spent == "stop":
            steps = bisect_left(range(steps), True, key=lambda more: self._after(more + 1) > budget)
        if not self._is_spent:
            effect = (
                "more local steps exceed it" if self._dp_sgd.on_spent == "warn" else "no more local steps"
            )
            print(f"training.privacy: the budget of epsilon {budget:g} is spent: {effect}", flush=True)
        self._is_spent = True
        return steps

    def gradient(self, batches: Sequence[Batch]) -> Tensor:
        clip, parameters = self._dp_sgd.clip, self._vector.layout.parameters.numel
        gradient = self._vector.gradient[:parameters]
        losses = [self._sum.add(batch, clip, gradient) for batch in batches]
        if self._plan.noise:
            noise = self.source.normal(parameters).mul_(self._plan.noise * clip)
            gradient.add_(noise.to(gradient.device, gradient.dtype))
        if not self._is_sum:
            gradient.div_(self._expected)
        self.history = self.after(1)
        total = torch.stack(losses).sum() if losses else gradient.new_zeros(())
        return total if self._is_sum else total / max(1, sum(map(len, batches)))

    def after(self, steps: int) -> History:
        rate, noise, before = self._plan.rate, self._plan.noise, self.history
        if before and (before[-1][0], before[-1][1]) == (rate, noise):
            return [*before[:-1], (rate, noise, before[-1][2] + steps)]
        return [*before, (rate, noise, steps)]

    def _after(self, more: int) -> float:
        """Returns epsilon after so many further steps."""
        accountant = ACCOUNTANTS.get(self._dp_sgd.accountant)
        if accountant is None:
            return float("inf")
        spent = [Spending(rate, noise, steps) for rate, noise, steps in self.after(more)]
        return accountant.epsilon(spent, self._dp_sgd.delta_of_noise)

    @property
    def epsilon(self) -> float:
        return self._after(0)

    @property
    def doubts(self) -> tuple[str, ...]:
        holds_by_reason = dict.fromkeys(super().doubts, True) | {
            "generator: seeded, so anyone with the seed can compute the noise": not self.source.is_secret,
            "noise: 0": not self._plan.noise,
            f"no accountant covers sampling: {self._dp_sgd.sampling}": self._dp_sgd.accountant == "none",
        }
        return tuple(reason for reason, holds in holds_by_reason.items() if holds)


class PoissonBatches(Minibatches):
    """Each step uses each sample with probability q, so the size of its batch varies (Abadi et al., 2016, 2).

    q is the expected size over the size of the shard, at most 1; a batch may be empty. `per_epoch` counts
    minibatches as if they were not drawn so.
    """

    def __init__(self, shard: Shard, batch_size: int, rate: float, source: RandomSource) -> None:
        """`batch_size`: the samples that are computed at a time."""
        super().__init__(shard, batch_size)
        self._rate = rate
        self._source = source
        self._piece = batch_size
        self._drawn = 0

    def several(self, count: int) -> list[Batch]:
        """The samples of a step in pieces; none where no sample was drawn."""
        drawn = self._shard.indices[self._source.chosen(len(self._shard.indices), self._rate)]
        self._drawn += 1
        return [self._shard.batch(part, self._drawn) for part in torch.split(drawn, self._piece) if len(part)]

    def state_dict(self) -> dict[str, int]:
        """The number of draws, of which each is a new one."""
        return {"drawn": self._drawn}

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Continues from `state_dict()`."""
        self._drawn = state["drawn"]
