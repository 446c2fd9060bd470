"""What each partition promises beyond the contract: its mathematics, its limits and its messages."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from decentnode.datasets import Samples, label_histogram
from decentnode.datasets.partition import (
    Dirichlet,
    Iid,
    Natural,
    Partition,
    Quantity,
    Shards,
    Sizes,
    apportion,
    fill,
)
from decentnode.errors import DatasetError


def labelled(labels, groups=None):
    labels = torch.as_tensor(labels, dtype=torch.int64)
    groups = None if groups is None else torch.as_tensor(groups)
    return Samples(torch.zeros(len(labels), 1), labels, groups=groups)


def balanced(per_label, num_labels=10):
    return labelled(np.repeat(np.arange(num_labels), per_label))


def sizes_of(parts):
    return [len(part) for part in parts]


def message_of(partition, samples, num_nodes):
    with pytest.raises(DatasetError) as caught:
        partition.split(samples, num_nodes, seed=0)
    return str(caught.value)


def test_iid_sizes_differ_by_at_most_one():
    assert sizes_of(Iid().split(balanced(10), 7, 0)) == [15, 15, 14, 14, 14, 14, 14]


def test_iid_holds_every_label_near_its_share():
    histogram = np.array(label_histogram(s := balanced(1000), Iid().split(s, 4, 0), 10))
    # Hypergeometric: 250 expected, deviation sqrt(1000 * 1/4 * 3/4) = 13.7; five of them.
    assert np.abs(histogram - 250).max() < 69


@given(st.data(), st.integers(1, 12), st.integers(1, 8), st.integers(0, 5))
@settings(max_examples=60)
def test_shards_gives_exactly_k_labels(chooser, num_nodes, num_labels, seed):
    k = chooser.draw(st.integers(-(-num_labels // num_nodes), num_labels))
    sizes = chooser.draw(st.lists(st.integers(num_nodes, 40), min_size=num_labels, max_size=num_labels))
    samples = labelled(np.repeat(np.arange(num_labels), sizes))
    parts = Shards(labels_per_node=k).split(samples, num_nodes, seed)
    assert [len(samples.labels[part].unique()) for part in parts] == [k] * num_nodes


def test_shards_of_equal_labels_are_equal():
    assert set(sizes_of(Shards(labels_per_node=2).split(balanced(40), 20, 3))) == {20}


def test_shards_keeps_the_largest_shard_as_small_as_can_be():
    samples = labelled([0] * 90 + [1] * 10)
    histogram = label_histogram(samples, Shards(labels_per_node=1).split(samples, 10, 0), 2)
    assert sorted(histogram) == [[0, 10]] + [[10, 0]] * 9


def test_shards_uses_a_rare_label_no_more_often_than_it_has_samples():
    samples = labelled([0] * 30 + [1] * 30 + [2])
    histogram = label_histogram(samples, Shards(labels_per_node=2).split(samples, 5, 0), 3)
    assert sum(row[2] > 0 for row in histogram) == 1
    assert all(sum(count > 0 for count in row) == 2 for row in histogram)


def test_shards_mixes_labels_differently_for_different_seeds():
    samples = balanced(20)
    histograms = [label_histogram(samples, Shards().split(samples, 10, seed), 10) for seed in (0, 1)]
    assert histograms[0] != histograms[1]


@given(st.floats(1e-6, 1e6), st.integers(1, 60), st.integers(0, 4), st.integers(0, 3))
@settings(max_examples=80)
def test_dirichlet_reaches_its_minimum_size_at_any_alpha(alpha, num_nodes, min_size, seed):
    parts = Dirichlet(alpha=alpha, min_size=min_size).split(balanced(24), num_nodes, seed)
    assert min(sizes_of(parts)) >= min_size
    assert sum(sizes_of(parts)) == 240


def test_dirichlet_with_huge_alpha_gives_all_ranks_the_same_histogram():
    histogram = np.array(label_histogram(s := balanced(160), Dirichlet(alpha=1e6).split(s, 16, 0), 10))
    assert np.abs(histogram - 10).max() <= 1


def test_dirichlet_with_tiny_alpha_gives_each_label_to_one_rank():
    parts = Dirichlet(alpha=1e-6, min_size=0).split(s := balanced(50), 16, 0)
    histogram = np.array(label_histogram(s, parts, 10))
    assert ((histogram > 0).sum(axis=0) == 1).all()


def test_dirichlet_shares_have_the_mean_and_variance_of_the_distribution():
    alpha, n, labels, per_label = 0.5, 4, 1000, 200
    samples = balanced(per_label, labels)
    parts = Dirichlet(alpha=alpha, min_size=0).split(samples, n, 0)
    shares = np.array(label_histogram(samples, parts, labels)) / per_label
    # Dir(alpha 1_n): mean 1/n, variance (1/n)(1 - 1/n) / (n alpha + 1).
    variance = (1 / n) * (1 - 1 / n) / (n * alpha + 1)
    assert shares.mean(axis=1) == pytest.approx(np.full(n, 1 / n), abs=5 * np.sqrt(variance / labels))
    assert shares.var() == pytest.approx(variance, rel=0.05)


def test_dirichlet_favors_no_rank_when_labels_are_rarer_than_ranks():
    samples = labelled(np.arange(5000))
    sizes = np.array(sizes_of(Dirichlet(alpha=1e6, min_size=0).split(samples, 10, 0)))
    # Binomial(5000, 1/10): deviation sqrt(5000 * 0.09) = 21.2; five of them.
    assert np.abs(sizes - 500).max() < 106


def test_fill_takes_from_the_then_largest_part():
    parts = [np.arange(0, 6), np.arange(6, 11), np.arange(11, 11)]
    filled = fill(parts, 3)
    assert sizes_of(filled) == [4, 4, 3]
    assert sorted(np.concatenate(filled)) == list(range(11))


@given(st.lists(st.floats(0, 1), min_size=1, max_size=20).filter(lambda f: sum(f) > 0), st.integers(0, 10**6))
def test_apportion_stays_within_one_of_the_exact_share(fractions, total):
    exact = np.array(fractions) / sum(fractions) * total
    counts = apportion(np.array(fractions), total)
    assert counts.sum() == total
    assert np.abs(counts - exact).max() < 1 + 1e-6


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [((0.5, 0.3, 0.2), [50, 30, 20]), ((70, 30, 0), [70, 30, 0]), ((1 / 3, 1 / 3, 1 / 3), [34, 33, 33])],
)
def test_sizes_takes_fractions_and_counts(sizes, expected):
    assert sizes_of(Sizes(sizes=sizes).split(balanced(10), 3, 0)) == expected


def test_sizes_follows_the_order_of_ranks():
    parts = Sizes(sizes=(0.9, 0.1), ranks=(2, 0)).split(balanced(10), 3, 0)
    assert sizes_of(parts) == [10, 0, 90]


def test_natural_gives_whole_groups_in_turn():
    samples = labelled([0, 1, 0, 1, 0, 1], groups=[7, 3, 5, 3, 7, 9])
    parts = Natural().split(samples, 2, 0)
    assert [part.tolist() for part in parts] == [[0, 1, 3, 4], [2, 5]]


def held(options, sizes, num_nodes=3, seed=0):
    """The groups of each rank, where group g has sizes[g] samples."""
    samples = labelled(np.zeros(sum(sizes)), groups=np.repeat(np.arange(len(sizes)), sizes))
    parts = Natural(**options).split(samples, num_nodes, seed)
    clients = [samples.groups[part].unique().tolist() for part in parts]
    wanted = [sum(sizes[group] for group in groups) for groups in clients]
    assert sizes_of(parts) == wanted, "groups stay whole"
    return clients


def test_natural_gives_each_rank_so_many_groups():
    ones = [1] * 8
    assert held({}, ones) == [[0, 3, 6], [1, 4, 7], [2, 5]]
    assert held({"groups_per_node": 2, "rest": "leave_out"}, ones) == [[0, 3], [1, 4], [2, 5]]
    assert held({"groups_per_node": 2}, ones) == [[0, 3, 6], [1, 4, 7], [2, 5]]
    assert held({"order": "contiguous"}, ones) == [[0, 1, 2], [3, 4, 5], [6, 7]]
    contiguous = {"groups_per_node": 2, "order": "contiguous"}
    assert held(contiguous, ones) == [[0, 1, 6], [2, 3, 7], [4, 5]]
    assert held(contiguous | {"rest": "leave_out"}, ones) == [[0, 1], [2, 3], [4, 5]]
    drawn = [
        held({"groups_per_node": 2, "rest": "leave_out", "order": "random"}, ones, 3, s) for s in (0, 0, 1)
    ]
    assert drawn[0] == drawn[1] != drawn[2]
    assert len({group for groups in drawn[0] for group in groups}) == 6


def test_natural_balances_samples_with_the_largest_groups_first():
    sizes = [1, 9, 2, 8, 7, 3]
    assert held({"order": "balanced"}, sizes) == [[0, 1], [2, 3], [4, 5]]
    # 100 and the smallest two are as balanced as can be with two groups each.
    assert held({"order": "balanced", "groups_per_node": 2}, [100, 1, 2, 3, 4, 5]) == [[0, 1], [2, 5], [3, 4]]
    left = {"order": "balanced", "groups_per_node": 1, "rest": "leave_out"}
    assert held(left, [1, 5, 2, 8, 7, 3]) == [[3], [4], [1]]


def test_quantity_sizes_have_the_variance_of_the_distribution_and_labels_of_the_whole():
    alpha, n, total = 0.5, 4, 4000
    samples, drawn = balanced(total // 10), Quantity(alpha=alpha, min_size=0)
    shares = np.array([sizes_of(drawn.split(samples, n, seed)) for seed in range(200)]) / total
    # Dir(alpha 1_n): mean 1/n, variance (1/n)(1 - 1/n) / (n alpha + 1).
    variance = (1 / n) * (1 - 1 / n) / (n * alpha + 1)
    assert shares.mean(axis=0) == pytest.approx(np.full(n, 1 / n), abs=5 * np.sqrt(variance / 200))
    assert shares.var() == pytest.approx(variance, rel=0.15)
    even = Quantity(alpha=1e6).split(samples := balanced(1000), 4, 0)
    assert max(sizes_of(even)) - min(sizes_of(even)) <= 25
    assert np.abs(np.array(label_histogram(samples, even, 10)) - 250).max() < 90
    assert sorted(sizes_of(Quantity(alpha=1e-6, min_size=3).split(balanced(10), 5, 0))) == [3, 3, 3, 3, 88]


def test_ranks_without_samples_do_not_shift_the_others():
    parts = Iid(ranks=(1, 3)).split(balanced(10), 5, 0)
    assert sizes_of(parts) == [0, 50, 0, 50, 0]


def test_label_histogram_counts_every_class():
    samples = labelled([0, 0, 2, 1])
    parts = [torch.tensor([0, 1, 2]), torch.tensor([3]), torch.tensor([], dtype=torch.int64)]
    assert label_histogram(samples, parts, 4) == [[2, 0, 1, 0], [0, 1, 0, 0], [0, 0, 0, 0]]


def test_natural_with_too_few_groups_says_so():
    message = message_of(Natural(), labelled([0, 1, 0], groups=[0, 1, 0]), 3)
    assert message == "dataset.partition: natural has 2 groups for 3 training ranks; each needs at least one"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"groups_per_node": 3}, "2 training ranks of 3 groups need 6, there are 5; it must be at most 2"),
        (
            {"groups_per_node": 2, "rest": "refuse"},
            "2 training ranks of 2 groups leave 1 of 5; use rest: pool or leave_out",
        ),
    ],
)
def test_natural_says_what_its_number_of_groups_would_need(options, message):
    found = message_of(Natural(**options), labelled([0] * 5, groups=range(5)), 2)
    assert found == f"dataset.partition.groups_per_node: {message}"


def test_labels_that_run_out_are_named():
    message = message_of(Shards(labels_per_node=2), balanced(10), 60)
    rare = "60 training ranks of 2 labels need more samples of rare labels"
    assert message == f"dataset.partition.labels_per_node: {rare}"


@pytest.mark.parametrize(
    "partition",
    [
        Iid(),
        Sizes(sizes=(0.5, 0.0, 0.3, 0.2)),
        Quantity(alpha=0.5),
        Dirichlet(alpha=0.3),
        Shards(labels_per_node=4),
    ],
    ids=lambda partition: type(partition).__name__,
)
def test_own_test_samples_are_distributed_as_the_training_samples_of_each_rank(partition):
    """By label where labels are dealt, else by size; no sample is of two ranks, and the seed decides."""
    train, test = balanced(400), balanced(100)
    parts = partition.split(train, 4, seed=3)
    own = partition.split_test(train, parts, test, seed=3)
    assert torch.cat(own).sort().values.tolist() == list(range(len(test)))
    counts = [label_histogram(samples, of, 10) for samples, of in ((train, parts), (test, own))]
    deals_labels = isinstance(partition, Dirichlet | Shards)
    trained, tested = (
        torch.tensor(of).double() if deals_labels else torch.tensor(of).sum(1).double() for of in counts
    )
    assert (tested - trained / 4).abs().max() <= 1
    again = partition.split_test(train, parts, test, seed=3)
    assert all(torch.equal(one, other) for one, other in zip(own, again, strict=True))
    assert any(
        not torch.equal(one, other)
        for one, other in zip(own, partition.split_test(train, parts, test, seed=4), strict=True)
    )


def test_own_test_samples_of_natural_are_those_of_the_groups_and_what_has_none_is_refused():
    train, test = labelled([0] * 6, groups=[0, 0, 1, 1, 2, 2]), labelled([0] * 5, groups=[2, 0, 3, 0, 1])
    partition = Natural()
    parts = partition.split(train, 3, seed=0)
    assert [own.tolist() for own in partition.split_test(train, parts, test, 0)] == [[1, 3], [4], [0]]
    with pytest.raises(DatasetError, match="node_test_split: natural needs test samples with groups"):
        partition.split_test(train, parts, labelled([0]), 0)
    with pytest.raises(DatasetError, match="no test sample is of a group that is trained on"):
        partition.split_test(train, parts, labelled([0], groups=[7]), 0)

    class Mine(Partition):
        divide = Iid.divide

    with pytest.raises(DatasetError, match="has no rule for test samples; define divide_test"):
        Mine().split_test(train, parts, test, 0)
