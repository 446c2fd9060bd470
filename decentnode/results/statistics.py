"""Means over seeds with their intervals, paired tests between variants, and curves between evaluations."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from math import inf, isfinite, nan, sqrt
from statistics import fmean, stdev

from decentnode.results.extra import need

CONFIDENCE = 0.95
POWER = 0.8
FEWEST_SEEDS, MOST_SEEDS = 2, 1000
LARGEST_SIZE = 50.0
"""Standard deviations of a difference beyond which two seeds suffice."""
FEWEST_FOR_RANKS = 6
"""Pairs from which a rank test can give a p-value below 0.05 at all: two-sided it is at least 2 / 2**n."""


@dataclass(frozen=True)
class Interval:
    """A mean over seeds with its 95 % confidence interval, from Student's t distribution."""

    mean: float
    half: float
    """Half the width; nan for fewer than two values."""
    count: int

    @property
    def low(self) -> float:
        """The lower end."""
        return self.mean - self.half

    @property
    def high(self) -> float:
        """The upper end."""
        return self.mean + self.half


def interval(values: Sequence[float]) -> Interval:
    """The mean of these values with its interval; nan where one of them is not finite, or there is none."""
    if not values or not all(map(isfinite, values)):
        return Interval(nan, nan, len(values))
    if len(values) < 2:
        return Interval(values[0], nan, 1)
    quantile = float(need("scipy.stats").t.ppf((1 + CONFIDENCE) / 2, len(values) - 1))
    return Interval(fmean(values), quantile * stdev(values) / sqrt(len(values)), len(values))


def seeds_needed(difference: Interval) -> int | None:
    """The seeds with which a paired t-test at 5 % finds a difference of this size with a power of 80 %.

    The power of a test against a difference of d standard deviations is that of the noncentral t
    distribution with d * sqrt(n) (Cohen, 1988, section 2.4). None where it is unknown, or above MOST_SEEDS.
    """
    if not (isfinite(difference.half) and difference.mean):
        return None
    stats = need("scipy.stats")
    quantile = float(stats.t.ppf((1 + CONFIDENCE) / 2, difference.count - 1))
    deviation = difference.half * sqrt(difference.count) / quantile
    size = abs(difference.mean) / deviation if deviation else inf

    def power(seeds: int) -> float:
        limit = stats.t.ppf((1 + CONFIDENCE) / 2, seeds - 1)
        seen = stats.nct(seeds - 1, min(size, LARGEST_SIZE) * sqrt(seeds))
        other_side = float(seen.cdf(-limit))
        # scipy has no number for what is below the smallest one.
        return float(seen.sf(limit)) + (other_side if isfinite(other_side) else 0.0)

    # With a known deviation, which takes a few seeds less, the test would be normal.
    normal = stats.norm.ppf((1 + CONFIDENCE) / 2) + stats.norm.ppf(POWER)
    fewest = max(FEWEST_SEEDS, int(min((normal / size) ** 2, MOST_SEEDS)))
    return next((seeds for seeds in range(fewest, MOST_SEEDS) if power(seeds) >= POWER), None)


@dataclass(frozen=True)
class Comparison:
    """Two variants over the seeds that both have; positive differences: `first` has the higher values."""

    first: str
    second: str
    difference: Interval
    t_test: float
    """The p-value of the paired t-test; nan for fewer than two pairs."""
    rank_test: float
    """The p-value of Wilcoxon's signed-rank test; nan for fewer than six pairs."""
    adjusted_t: float = nan
    """The p-values after Holm's correction over all comparisons."""
    adjusted_rank: float = nan


def compare_pairs(values: Mapping[str, Mapping[int, float]], against: str = "") -> list[Comparison]:
    """All pairs of variants, or one with all others; seeds that one of two lacks do not count.

    `values`: by variant and seed.
    """
    names = [(against, name) for name in values if name != against] if against else combinations(values, 2)
    pairs = [_compare(a, values[a], b, b=values[b]) for a, b in names]
    by_t, by_rank = holm([pair.t_test for pair in pairs]), holm([pair.rank_test for pair in pairs])
    return [
        replace(pair, adjusted_t=t, adjusted_rank=rank)
        for pair, t, rank in zip(pairs, by_t, by_rank, strict=True)
    ]


def _compare(first: str, a: Mapping[int, float], second: str, b: Mapping[int, float]) -> Comparison:
    seeds = sorted(seed for seed in a.keys() & b.keys() if isfinite(a[seed]) and isfinite(b[seed]))
    differences = [a[seed] - b[seed] for seed in seeds]
    return Comparison(
        first, second, interval(differences), t_test=t_test(differences), rank_test=rank_test(differences)
    )


def t_test(differences: Sequence[float]) -> float:
    """The two-sided p-value of the t-test that the mean difference is 0; nan for fewer than two.

    Differences that are equal but for rounding have the p-value 0, or 1 if they are 0.
    """
    if len(differences) < 2:
        return nan
    most = max(map(abs, differences))
    if stdev(differences) <= 1e-12 * most:
        return 0.0 if most else 1.0
    return float(need("scipy.stats").ttest_1samp(differences, 0.0).pvalue)


def rank_test(differences: Sequence[float]) -> float:
    """The two-sided p-value of Wilcoxon's signed-rank test (Wilcoxon, 1945); nan below six differences."""
    if len(differences) < FEWEST_FOR_RANKS:
        return nan
    if not any(differences):
        return 1.0
    return float(need("scipy.stats").wilcoxon(differences).pvalue)


def holm(p_values: Sequence[float]) -> list[float]:
    """The p-values after Holm's step-down correction (Holm, 1979); nan is left out and stays."""
    order = sorted((p, i) for i, p in enumerate(p_values) if isfinite(p))
    adjusted, most = [nan] * len(p_values), 0.0
    for place, (p, i) in enumerate(order):
        most = max(most, min(1.0, p * (len(order) - place)))
        adjusted[i] = most
    return adjusted


def value_at(x: float, xs: Sequence[float], ys: Sequence[float]) -> float:
    """The curve through (xs, ys) at x, straight between two evaluations; nan outside of them. xs rise."""
    if not xs or not xs[0] <= x <= xs[-1]:
        return nan
    after = next(i for i, each in enumerate(xs) if each >= x)
    if xs[after] == x:
        return ys[after]
    share = (x - xs[after - 1]) / (xs[after] - xs[after - 1])
    return ys[after - 1] + share * (ys[after] - ys[after - 1])


def first_crossing(target: float, xs: Sequence[float], ys: Sequence[float], rising: bool) -> float:
    """The smallest x where the curve reaches the target, straight between evaluations; nan if it does not.

    `rising`: whether higher values are better. A curve that begins beyond the target reaches it at xs[0].
    """
    sign = 1.0 if rising else -1.0
    for i, (x, y) in enumerate(zip(xs, ys, strict=True)):
        if sign * (y - target) >= 0:
            before = ys[i - 1] if i else nan
            if not isfinite(before):
                return x
            return xs[i - 1] + (x - xs[i - 1]) * (target - before) / (y - before)
    return nan
