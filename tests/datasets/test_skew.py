"""What each skew does to the samples of a rank, against closed forms."""

from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch

from decentnode.datasets import LoadedDataset, Samples, Skew
from decentnode.datasets.skew import Color, LabelNoise, Noise, Rotation, apply, rotated
from decentnode.errors import DatasetError
from tests.support.pages import blocks

CLASSES = 5


def dataset(inputs, labels=None):
    labels = torch.arange(len(inputs)) % CLASSES if labels is None else labels
    samples = Samples(inputs, labels, groups=torch.arange(len(inputs)))
    return LoadedDataset(samples, samples, CLASSES, tuple(inputs.shape[1:]))


def images(count, *shape, seed=0):
    return torch.randint(0, 256, (count, *shape), generator=torch.Generator().manual_seed(seed)).byte()


def halves(count):
    """Two ranks that train, and one between them that does not."""
    return [torch.arange(0, count, 2), torch.empty(0, dtype=torch.int64), torch.arange(1, count, 2)]


def test_a_rotation_by_right_angles_moves_pixels_and_changes_none():
    for kind in (torch.uint8, torch.float64):
        image = images(3, 2, 7, 7).to(kind)
        for turns in range(5):
            assert torch.equal(rotated(image, 90.0 * turns), torch.rot90(image, turns, (-2, -1)))
    assert torch.equal(rotated(wide := images(1, 1, 4, 6), 180.0), wide.flip(-1, -2))


def test_a_rotation_interpolates_between_pixels_and_black():
    ramp = torch.arange(9, dtype=torch.float64).repeat(9, 1)
    turned = rotated(ramp, 45.0)
    y, x = np.mgrid[:9, :9] - 4
    expected = 4 + (x - y) * np.sqrt(0.5)
    near = x**2 + y**2 < 16
    assert np.abs(turned.numpy() - expected)[near].max() < 1 / 256
    assert turned[0, 0] == 0, "a corner comes from outside"


def test_every_rank_has_its_own_angle_and_the_others_stay():
    loaded, parts = dataset(images(6, 1, 5, 5)), halves(6)
    before = loaded.train.inputs.clone()
    turned, levels = apply([Rotation(degrees=90)], loaded, parts, seed=1)
    assert levels == [[(0.0,), (), (90.0,)]]
    assert torch.equal(turned.train.inputs[0::2], before[0::2])
    assert torch.equal(turned.train.inputs[1::2], torch.rot90(before[1::2], 1, (-2, -1)))
    assert torch.equal(loaded.train.inputs, before) and torch.equal(turned.test.inputs, before)
    assert turned.train.labels is loaded.train.labels, "what does not change is not copied"
    several = apply([Rotation(degrees=120)], loaded, list(torch.arange(6).split(1)), seed=1)[1][0]
    assert several == [(0.0,), (120.0,), (240.0,)] * 2
    drawn = [apply([Rotation(degrees=30, angles="uniform")], loaded, parts, seed)[1] for seed in (1, 1, 2)]
    assert drawn[0] == drawn[1] != drawn[2]
    assert all(-30 <= angle <= 30 for level in drawn[0][0] for angle in level)


def test_noise_grows_with_the_rank_in_the_unit_of_the_inputs():
    gray = dataset(torch.full((4000, 1, 2, 2), 128, dtype=torch.uint8))
    noisy, levels = apply([Noise(std=0.1)], gray, halves(4000), seed=3)
    assert levels == [[(0.05,), (), (0.1,)]]
    assert noisy.train.inputs.dtype == torch.uint8
    for first, std in ((0, 0.05), (1, 0.1)):
        noise = (noisy.train.inputs[first::2].double() - 128) / 255
        # Rounding adds a variance of 1/12 of a step; five deviations of an estimate from 8,000 values.
        expected = np.sqrt(std**2 + 1 / 12 / 255**2)
        assert noise.std().item() == pytest.approx(expected, rel=5 / np.sqrt(2 * 8000))
    features = dataset(torch.zeros(4000, 1))
    features = replace(features, train=replace(features.train, std=torch.tensor(10.0)))
    noisy, _ = apply([Noise(std=0.1)], features, [torch.arange(4000)], seed=3)
    assert noisy.train.inputs.std().item() == pytest.approx(1.0, rel=5 / np.sqrt(8000))
    white, _ = apply([Noise(std=1)], dataset(torch.full((50, 1, 1, 1), 255).byte()), [torch.arange(50)], 0)
    assert white.train.inputs.max() == 255, "no value wraps around"


def test_colors_are_scaled_by_the_factors_of_the_rank():
    colored, levels = apply([Color(strength=0.5)], dataset(images(8, 3, 2, 2)), halves(8), seed=1)
    factors = torch.tensor(levels[0][0], dtype=torch.float64)[:, None, None]
    assert ((factors >= 0.5) & (factors <= 1.5)).all() and levels[0][0] != levels[0][2]
    scaled = (images(8, 3, 2, 2)[::2].double() * factors).clamp(0, 255).round().byte()
    assert torch.equal(colored.train.inputs[::2], scaled)
    floats, of_floats = apply([Color(strength=0.5)], dataset(torch.ones(2, 3, 1, 1)), halves(2), seed=1)
    assert of_floats == levels
    assert floats.train.inputs[0].flatten().tolist() == pytest.approx(levels[0][0])


@pytest.mark.parametrize("rate", [0.0, 0.3, 1.0])
def test_label_noise_takes_all_other_classes_equally_often(rate):
    count = 20_000
    loaded = dataset(torch.zeros(count, 1), torch.full((count,), 2))
    relabeled, _ = apply([LabelNoise(rate=rate)], loaded, [torch.arange(count)], seed=1)
    counts = torch.bincount(relabeled.train.labels, minlength=CLASSES).double() / count
    expected = torch.full((CLASSES,), rate / (CLASSES - 1), dtype=torch.float64)
    expected[2] = 1 - rate
    assert ((counts - expected).abs() <= 5 * (expected * (1 - expected) / count).sqrt()).all()
    assert torch.equal(relabeled.test.labels, loaded.test.labels)
    of_each, levels = apply([LabelNoise(rate=(0.0, 1.0))], loaded, halves(count), seed=1)
    assert levels == [[(0.0,), (), (1.0,)]]
    assert (of_each.train.labels[::2] == 2).all() and (of_each.train.labels[1::2] != 2).all()


def test_skews_follow_each_other_and_are_the_same_everywhere():
    chain = [Rotation(degrees=90), Noise(std=0.1), LabelNoise(rate=0.5)]
    first, second = (apply(chain, dataset(images(40, 1, 4, 4)), halves(40), 7)[0].train for _ in range(2))
    assert torch.equal(first.inputs, second.inputs) and torch.equal(first.labels, second.labels)
    alone = apply(chain[:1], dataset(images(40, 1, 4, 4)), halves(40), 7)[0].train
    assert 0 < (first.inputs.double() - alone.inputs.double()).std() < 0.1 * 255


@dataclass(kw_only=True)
class Own(Skew):
    what: str

    def change(self, samples, rank, rng):
        if self.what == "float":
            return replace(samples, inputs=samples.inputs.float())
        return replace(samples, labels=samples.labels + rank.num_classes)


ids = torch.zeros(4, 3, dtype=torch.int32)
two = torch.zeros(4, 3, dtype=torch.int64)


@pytest.mark.parametrize(
    ("skew", "inputs", "labels", "message"),
    [
        (Rotation(), ids, None,
         "[0]: needs images (channels, height, width), the inputs are ids of shape (3,)"),
        (Rotation(), ids.float(), None,
         "[0]: needs images (channels, height, width), the inputs are features of shape (3,)"),
        (Color(), images(4, 1, 2, 2), None, "[0]: needs color images of 3 channels, these have 1"),
        (Noise(), ids, None, "[0]: needs images or features, the inputs are ids"),
        (LabelNoise(rate=0.5), ids, two,
         "[0]: needs samples that have one class each, of two or more"),
        (LabelNoise(rate=0.5), ids, torch.zeros(4),
         "[0]: needs samples that have one class each, of two or more"),
        (LabelNoise(rate=(0.5,)), ids, None, "[0]: rate has 1 entries for 2 training ranks"),
        (Own(what="float"), images(4, 1, 2, 2), None, "[0]: Own returns inputs of another type or shape"),
        (Own(what="labels"), ids, None, ": the training label of sample 3 is 8; it must be one of 0..4"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_one_line(skew, inputs, labels, message):
    with pytest.raises(DatasetError) as caught:
        apply([skew], dataset(inputs, labels), halves(4), seed=1)
    assert str(caught.value) == "dataset.skew" + message


def test_the_skew_of_the_page_does_what_it_says():
    """Its last line asserts that a picture of 100 becomes one of 50."""
    assert "assert Darker()" in blocks("docs/partitions.md", "python")[0]
    exec(compile(blocks("docs/partitions.md", "python")[0], "darker.py", "exec"), {"__name__": "darker"})
