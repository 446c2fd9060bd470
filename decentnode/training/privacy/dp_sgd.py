"""Differentially private stochastic gradient descent."""

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import accumulate
from math import ceil, sqrt
from typing import Annotated, Any, ClassVar, Literal, cast

import numpy as np
import torch
from annotated_types import Gt, Lt
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.instancenorm import _InstanceNorm

from decentnode.core.registry import PRIVACIES, name_of
from decentnode.core.rng import RandomSource, SecureSource, SeededSource, permutation
from decentnode.core.vector import Vector
from decentnode.datasets.base import Batch, Samples
from decentnode.errors import BadInput
from decentnode.options import NonNegativeFloat, PositiveFloat
from decentnode.training.minibatches import Minibatches, Shard
from decentnode.training.objective import Objective
from decentnode.training.privacy.accountants import (
    ACCOUNTANTS,
    LEAST_GIVEN,
    MOST_NOISE,
    Spending,
    gaussian_epsilon,
    gaussian_noise,
)
from decentnode.training.privacy.base import History, Privacy, PrivacyPlan, PrivateSteps, total
from decentnode.training.privacy.correlation import (
    CorrelatedNoise,
    Correlation,
    Independent,
    Matrix,
    Participation,
    Workload,
)
from decentnode.training.privacy.edges import Decor, EdgeNoise, EdgeShare
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
    tell about any one of its samples, whatever others do with them; with `edges`, against one other node.
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
    sampling: Literal["poisson", "shuffle", "cyclic"] = "poisson"
    """How the samples of a step are drawn: each with a probability; in epochs, which no accountant covers; or
    in batches that are fixed at the start and come by turns."""
    correlation: Correlation = field(default_factory=Independent)
    """How the noise of the steps hangs together."""
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
                f"{self.accountant} covers poisson and cyclic, not {self.sampling}; use "
                "one of these, or accountant: none, which claims nothing",
            )
        if self.sampling == "shuffle" and not self.correlation.is_independent:
            raise BadInput.at(
                "training.privacy.correlation",
                "needs to know in which steps a sample may be; use sampling: poisson or cyclic",
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
        # Of batches that are fixed, each step is a Gaussian mechanism, of which epsilon is known exactly.
        is_exact = self.sampling == "cyclic" and self.accountant != "none"
        accountant = "gaussian" if is_exact else self.accountant
        correlation = name_of(self.correlation)
        described = {"name": "dp_sgd", "delta": self.delta, "accountant": accountant}
        against = {} if self.edges is None else {"adversary": self.edges.adversary}
        return described | {"correlation": correlation} | against

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

    @property
    def needs_all_rounds(self) -> bool:
        return not self.correlation.is_independent or self.sampling == "cyclic"

    def plan(self, size: int, expected: int, steps: Sequence[int], workload: Workload) -> PrivacyPlan:
        total = sum(steps)
        if size and self.delta >= 1 / size and self.accountant != "none":
            raise BadInput.at(
                "training.privacy.delta",
                f"must be below 1 / {size}, for a node of {size} samples, not "
                f"{self.delta:g}, which would allow it to publish one of them",
            )
        bands = self.correlation.bands(max(1, total), self._most_bands(size, expected))
        plans = [self._plan(size, expected, total, band, workload) for band in bands]
        plan = plans[0] if len(plans) == 1 else self._best(plans, workload)
        return self._limited(plan, steps)

    def _limited(self, plan: PrivacyPlan, steps: Sequence[int]) -> PrivacyPlan:
        """The plan with the rounds that the budget allows."""
        affordable, budget = len(steps), self.epsilon or float("inf")
        if self.on_spent == "stop" and plan.epsilon > budget and self.accountant != "none":
            spent = partial(self.spent, plan, delta=self.delta_of_noise)
            affordable = bisect_left(list(accumulate(steps)), True, key=lambda count: spent(count) > budget)
        return replace(plan, rounds=affordable)

    @property
    def edges(self) -> Decor | None:
        return cast(Decor, self.correlation) if self.correlation.has_edges else None

    def over_edges(
        self, plans: Sequence[PrivacyPlan], steps: Sequence[Sequence[int]], adjacency: Matrix, gram: Matrix
    ) -> tuple[PrivacyPlan, ...]:
        assert self.edges is not None
        ratio = self.edges.chosen_ratio(adjacency, gram)
        sensitivities = self.edges.sensitivities(adjacency, ratio).tolist()
        # All nodes have the same noise of their own, so that no edge cancels in part.
        own = self.noise
        if own is None:
            own = max(plan.noise * far for plan, far in zip(plans, sensitivities, strict=True))
        found = []
        for rank, (plan, far) in enumerate(zip(plans, sensitivities, strict=True)):
            neighbors = tuple(np.flatnonzero(adjacency[rank]).tolist())
            share = EdgeShare(own, ratio * own, neighbors)
            plan = replace(plan, noise=own / far, edges=share)
            plan = replace(plan, epsilon=self.spent(plan, plan.steps, self.delta_of_noise))
            found.append(self._limited(plan, steps[rank]))
        return tuple(found)

    def _best(self, plans: Sequence[PrivacyPlan], workload: Workload) -> PrivacyPlan:
        """The plan whose noise moves models least at the epsilon of the first."""
        if self.accountant == "none":
            return plans[-1]
        epsilon = self.epsilon or plans[0].epsilon
        gram = self.correlation.gram(plans[0].steps, workload)

        def error(plan: PrivacyPlan) -> float:
            moved = plan.strategy.error(gram) if plan.strategy else float("inf")
            return self._noise_for(plan, epsilon) ** 2 * moved

        return min(plans, key=error)

    def _most_bands(self, size: int, expected: int) -> int | None:
        """The most diagonals of C for samples that are drawn: as many groups have a step's samples each."""
        return None if self.sampling == "cyclic" else max(1, size // expected)

    def _plan(self, size: int, expected: int, steps: int, band: int, workload: Workload) -> PrivacyPlan:
        """The steps of a node with C of so many diagonals, of which the budget allows all."""
        if self.sampling == "cyclic":
            participation = Participation(steps, max(1, round(size / expected)), is_drawn=False)
            rate = 1.0 if size else 0.0
        else:
            if size and band > max(1, size // expected):
                raise BadInput.at(
                    "training.privacy.correlation",
                    f"samples are drawn in as many groups as C has diagonals, {band}, and {size} samples "
                    f"of a node are {size // expected} times those of a step ({expected}); use sampling: "
                    "cyclic, or fewer diagonals",
                )
            participation = Participation(steps, band, is_drawn=True)
            rate = min(1.0, band * expected / size) if size else 0.0
        is_plain = self.correlation.is_independent and participation.is_drawn
        strategy = None if is_plain or not steps else self.correlation.strategy(participation, band, workload)
        # A node without samples has nothing to release.
        before = (Spending(1.0, self.release.noise, 1),) if self.release and size else ()
        plan = PrivacyPlan(rate, self.noise or 0.0, steps, float("inf"), 0, before=before, strategy=strategy)
        if self.noise is None:
            plan = replace(plan, noise=self._noise_for(plan, self.epsilon or 0.0))
        return replace(plan, epsilon=self.spent(plan, steps, self.delta_of_noise))

    def spent(self, plan: PrivacyPlan, steps: int, delta: float) -> float:
        if self.accountant == "none":
            return float("inf")
        before = [Spending(*one) for one in plan.before]
        if plan.strategy is None or plan.strategy.participation.is_drawn:
            # A sample is in at most one of `period` steps (Choquette-Choo et al., NeurIPS 2023, theorem 1).
            spending = Spending(plan.rate, plan.noise, ceil(steps / plan.period))
            return ACCOUNTANTS[self.accountant].epsilon([*before, spending], delta)
        moved = moved_by(before)
        if steps and plan.rate:
            if not plan.noise:
                return float("inf")
            moved += (float(plan.strategy.sensitivities[min(steps, plan.steps) - 1]) / plan.noise) ** 2
        return gaussian_epsilon(sqrt(moved), delta) if moved else 0.0

    def _noise_for(self, plan: PrivacyPlan, epsilon: float) -> float:
        """The least noise with which all steps of a plan spend at most epsilon; raises BadInput."""
        before = [Spending(*one) for one in plan.before]
        if plan.strategy is None or plan.strategy.participation.is_drawn:
            steps = ceil(plan.steps / plan.period)
            return ACCOUNTANTS[self.accountant].noise_for(
                epsilon, self.delta_of_noise, plan.rate, steps=steps, before=before
            )
        left = gaussian_noise(epsilon, self.delta_of_noise) ** -2 - moved_by(before)
        noise = float(plan.strategy.sensitivities[-1]) / sqrt(left) if left > 0 else float("inf")
        if noise > MOST_NOISE:
            what = f"{epsilon:g} needs noise above {MOST_NOISE:g}; allow more, or make fewer steps"
            raise BadInput.at("training.privacy.epsilon", what)
        # So that epsilon, computed back, is not above by a rounding error.
        return noise * (1 + 1e-9)

    def private_steps(
        self, plan: PrivacyPlan, objective: Objective, vector: Vector, shard: Shard, batch_size: int
    ) -> "DpSgdSteps":
        return DpSgdSteps(self, plan, objective, vector=vector, shard=shard, batch_size=batch_size)


def moved_by(spendings: Sequence[Spending]) -> float:
    """How far one sample moves Gaussian mechanisms that use all samples, in deviations, squared."""
    return sum(one.steps / one.noise**2 for one in spendings)


class DpSgdSteps(PrivateSteps):
    """The steps of one node by DP-SGD, and what they have spent."""

    state: ClassVar = ("history", "source", "noise")

    def __init__(
        self, dp_sgd: DpSgd, plan: PrivacyPlan, objective: Objective, vector: Vector, shard: Shard,
        batch_size: int,
    ) -> None:  # fmt: skip
        """`batch_size`: the samples that are computed at a time."""
        super().__init__()
        seeded = dp_sgd.generator == "seeded"
        self.source: RandomSource = SeededSource(shard.seed, shard.rank) if seeded else SecureSource()
        self.minibatches = (
            Minibatches(shard, batch_size)
            if dp_sgd.sampling == "shuffle"
            else PoissonBatches(shard, batch_size, plan.rate, source=self.source, period=plan.period)
        )
        self.noise: CorrelatedNoise | EdgeNoise | None = None
        """The noise of the steps, in units of that of the plan; None: independent draws."""
        self._deviation = plan.noise * dp_sgd.clip
        if plan.edges is not None:
            self.noise = EdgeNoise(plan.edges, shard.rank, shard.seed if seeded else None)
            self._deviation = dp_sgd.clip
        elif plan.strategy is not None:
            self.noise = CorrelatedNoise(plan.strategy, vector.layout.dtype)
        self.history = [(rate, noise, steps) for rate, noise, steps in plan.before]
        self._dp_sgd = dp_sgd
        self._plan = plan
        self._vector = vector
        self._is_sum = objective.reduction == "sum"
        self._expected = plan.rate * len(shard.indices) / plan.period
        self._sum = ClippedSum(objective, vector.layout)
        self._is_spent = False

    def handshake(self) -> bytes:
        return self.noise.handshake() if isinstance(self.noise, EdgeNoise) else b""

    def receive_handshakes(self, handshakes: Mapping[int, bytes]) -> None:
        if isinstance(self.noise, EdgeNoise):
            self.noise.receive_handshakes(handshakes)

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
            drawn = (
                self.source.normal(parameters)
                if self.noise is None
                else self.noise.draw(self.source, parameters)
            )
            noise = drawn.mul_(self._deviation)
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

    @property
    def _of_steps(self) -> History:
        """The history without what was spent before the first step."""
        return self.history[len(self._plan.before) :]

    @property
    def _made(self) -> int:
        """How many steps the node has made."""
        return total(self._of_steps)

    def _after(self, more: int) -> float:
        """Returns epsilon after so many further steps."""
        accountant = ACCOUNTANTS.get(self._dp_sgd.accountant)
        if accountant is None:
            return float("inf")
        if self._plan.strategy is not None:
            return self._dp_sgd.spent(self._plan, self._made + more, self._dp_sgd.delta_of_noise)
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
            "steps were repeated after a restart, and planned noise is accounted for once": (
                self._plan.strategy is not None and self.noise is not None and self._made != self.noise.step
            ),
            "some steps had other noise than planned": self._plan.strategy is not None
            and any(
                (rate, noise) != (self._plan.rate, self._plan.noise) for rate, noise, _ in self._of_steps
            ),
            f"no accountant covers sampling: {self._dp_sgd.sampling}": self._dp_sgd.accountant == "none",
        }
        return tuple(reason for reason, holds in holds_by_reason.items() if holds)


class PoissonBatches(Minibatches):
    """Each step uses each sample with probability q, so the size of its batch varies (Abadi et al., 2016, 2).

    q is the expected size over the size of the shard, at most 1; a batch may be empty. `per_epoch` counts
    minibatches as if they were not drawn so.
    """

    def __init__(
        self, shard: Shard, batch_size: int, rate: float, source: RandomSource, period: int = 1
    ) -> None:
        """`batch_size`: the samples that are computed at a time.

        `period`: the groups into which the samples are dealt by the seed; step t uses group t mod `period`.
        """
        super().__init__(shard, batch_size)
        order = shard.indices
        if period > 1:
            order = order[torch.from_numpy(permutation(len(order), shard.seed, "groups", shard.rank))]
        self._groups = [order[group::period] for group in range(period)]
        self._rate = rate
        self._source = source
        self._piece = batch_size
        self._drawn = 0

    def several(self, count: int) -> list[Batch]:
        """The samples of a step in pieces; none where no sample was drawn."""
        group = self._groups[self._drawn % len(self._groups)]
        drawn = group[self._source.chosen(len(group), self._rate)]
        self._drawn += 1
        return [self._shard.batch(part, self._drawn) for part in torch.split(drawn, self._piece) if len(part)]

    def state_dict(self) -> dict[str, int]:
        """The number of draws, of which each is a new one."""
        return {"drawn": self._drawn}

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Continues from `state_dict()`."""
        self._drawn = state["drawn"]
