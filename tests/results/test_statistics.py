"""Statistics over seeds: against closed forms and published tables."""

from math import atan, inf, isnan, nan, pi, sqrt

import pytest

from decentnode.results.statistics import (
    compare_pairs,
    first_crossing,
    holm,
    interval,
    rank_test,
    t_test,
    value_at,
)

T_OF_2 = 0.95 * sqrt(2 / 0.0975)
"""The 97.5 % quantile of Student's t with two degrees of freedom."""


def test_an_interval_is_that_of_student():
    estimate = interval([1.0, 2.0, 3.0])
    assert (estimate.mean, estimate.count) == (2.0, 3)
    assert estimate.half == pytest.approx(T_OF_2 / sqrt(3), rel=1e-9)
    assert (estimate.low, estimate.high) == (2.0 - estimate.half, 2.0 + estimate.half)
    alone = interval([5.0])
    assert alone.mean == 5.0 and isnan(alone.half)
    assert isnan(interval([]).mean) and isnan(interval([1.0, nan]).mean) and isnan(interval([1.0, inf]).mean)


def test_a_paired_t_test_has_its_closed_form_for_two_pairs():
    # One degree of freedom is Cauchy's distribution; the mean is 2 and its standard error 1.
    assert t_test([1.0, 3.0]) == pytest.approx(1 - 2 / pi * atan(2), rel=1e-9)
    assert t_test([2.0, 2.0]) == 0.0 and t_test([0.0, 0.0, 0.0]) == 1.0
    assert isnan(t_test([1.0]))


def test_a_rank_test_counts_signs_and_ranks_exactly():
    assert rank_test([1, 2, 3, 4, 5, 6]) == pytest.approx(2 / 2**6)
    # Of the 64 sign patterns 4 are at least as far out on both sides together.
    assert rank_test([-1, 2, 3, 4, 5, 6]) == pytest.approx(4 / 2**6)
    assert isnan(rank_test([1, 2, 3, 4, 5])) and rank_test([0.0] * 6) == 1.0


def test_the_correction_is_holms():
    assert holm([0.01, 0.04, nan, 0.03])[:2] == pytest.approx([0.03, 0.06])
    assert holm([0.01, 0.04, nan, 0.03])[3] == pytest.approx(0.06)
    assert isnan(holm([0.01, 0.04, nan, 0.03])[2])
    assert holm([0.9, 0.8]) == [1.0, 1.0] and holm([]) == []


def test_pairs_share_their_seeds():
    values = {"a": {0: 3.0, 1: 4.0, 2: 9.0}, "b": {0: 1.0, 1: 2.0, 7: 5.0}, "c": {0: 3.0, 1: nan, 2: 1.0}}
    ab, ac, bc = compare_pairs(values)
    assert (ab.first, ab.second, ab.difference.mean, ab.difference.count) == ("a", "b", 2.0, 2)
    assert ab.t_test == 0.0 and ab.adjusted_t == 0.0 and isnan(ab.rank_test)
    assert ac.difference.count == 2 and ac.difference.mean == 4.0
    assert bc.difference.count == 1 and isnan(bc.t_test) and isnan(bc.adjusted_t)


def test_a_curve_is_straight_between_evaluations():
    xs, ys = [10.0, 20.0, 40.0], [50.0, 70.0, 80.0]
    assert [value_at(x, xs, ys) for x in (10.0, 15.0, 20.0, 30.0, 40.0)] == [50.0, 60.0, 70.0, 75.0, 80.0]
    assert isnan(value_at(9.9, xs, ys)) and isnan(value_at(40.1, xs, ys)) and isnan(value_at(1.0, [], []))
    assert [first_crossing(y, xs, ys, True) for y in (40.0, 50.0, 60.0, 75.0)] == [10.0, 10.0, 15.0, 30.0]
    assert isnan(first_crossing(80.1, xs, ys, True))
    assert first_crossing(2.0, xs, [4.0, 3.0, 1.0], False) == 30.0
    assert first_crossing(2.0, xs, [4.0, nan, 1.0], False) == 40.0
