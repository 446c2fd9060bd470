"""Augmentations against loops over the samples of a batch."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from decentnode.core.registry import AUGMENTATIONS
from decentnode.core.rng import generator
from decentnode.datasets.base import Batch, LoadedDataset, Samples
from decentnode.errors import BadInput
from decentnode.models import LeNet, initial_model
from decentnode.training.augmentation import Crop, Cutout, Flip, Mixup, RandomResizedCrop
from decentnode.training.objective import Objective
from decentnode.training.settings import Factory
from decentnode.training.tasks import Classification
from tests.training.test_training import RANK, SEED, run, toy_samples, training_of

EVERY = {
    "crop": Crop(padding=2), "cutout": Cutout(size=3), "flip": Flip(), "mixup": Mixup(alpha=1.0),
    "random_resized_crop": RandomResizedCrop(),
}  # fmt: skip


def images(count=64, channels=2, height=6, width=5):
    shape = (count, channels, height, width)
    return torch.arange(1.0, math.prod(shape) + 1).reshape(shape).double()


def applied(augmentation, inputs, seed=1):
    batch = Batch((inputs.clone(),), torch.arange(len(inputs)))
    return augmentation.apply(batch, generator(seed, "test"))


def test_crop_takes_a_window_of_each_padded_image():
    originals = images()
    padded = nn.functional.pad(originals, (2, 2, 2, 2))
    seen = set()
    for image, source in zip(applied(EVERY["crop"], originals).fields[0], padded, strict=True):
        windows = {(y, x): source[:, y : y + 6, x : x + 5] for y in range(5) for x in range(5)}
        (place,) = [place for place, window in windows.items() if torch.equal(window, image)]
        seen.add(place)
    assert {y for y, _ in seen} == {x for _, x in seen} == set(range(5))
    assert len({(y, x) for y, x in seen}) > 15


def test_flip_mirrors_its_fraction_of_the_images():
    originals = images(400)
    flipped = applied(Flip(probability=0.25), originals).fields[0]
    is_mirrored = [torch.equal(a, b.flip(2)) for a, b in zip(flipped, originals, strict=True)]
    is_same = [torch.equal(a, b) for a, b in zip(flipped, originals, strict=True)]
    assert all(a != b for a, b in zip(is_mirrored, is_same, strict=True))
    assert 70 < sum(is_mirrored) < 130


def test_cutout_clears_a_square_around_any_pixel():
    originals = images(400)
    centers = set()
    for image, source in zip(applied(EVERY["cutout"], originals).fields[0], originals, strict=True):
        cleared = image == 0
        assert torch.equal(cleared[0], cleared[1]) and torch.equal(image[~cleared], source[~cleared])
        rows, columns = cleared[0].any(1).nonzero()[:, 0].tolist(), cleared[0].any(0).nonzero()[:, 0].tolist()
        assert cleared[0].sum() == len(rows) * len(columns) and 2 <= len(rows) <= 3 and 2 <= len(columns) <= 3
        centers.add((rows[0] + 1 if rows[0] or len(rows) == 3 else 0, columns[-1]))
    assert {y for y, _ in centers} == set(range(6))
    assert applied(Cutout(size=5), images(9, 1, 5, 5)).fields[0].count_nonzero() > 0


def test_a_resized_crop_is_a_part_of_a_linear_image_and_keeps_it_linear():
    """On an image whose colors are its coordinates, the corners of the part can be read."""
    height, width = 40, 30
    y, x = torch.meshgrid(
        (torch.arange(height) + 0.5) / height, (torch.arange(width) + 0.5) / width, indexing="ij"
    )
    coordinates = torch.stack([y, x])[None].repeat(300, 1, 1, 1).double()
    parts = applied(RandomResizedCrop(least_area=0.25, most_stretch=2.0), coordinates).fields[0]
    # Pixels next to the border repeat it, so steps are measured in the middle.
    tall = (parts[:, 0, 21, 0] - parts[:, 0, 20, 0]) * height
    wide = (parts[:, 1, 0, 16] - parts[:, 1, 0, 15]) * width
    area, ratio = tall * wide, wide / tall
    assert (area > 0.24).all() and (area < 1.001).all() and area.min() < 0.3 and area.max() > 0.9
    assert (ratio > 0.499).all() and (ratio < 2.001).all() and ratio.min() < 0.6 and ratio.max() > 1.6
    assert (parts.diff(dim=2)[:, 0] >= -1e-9).all() and (parts.diff(dim=3)[:, 1] >= -1e-9).all()
    # The same parts in fewer pixels: the means of a linear image stay.
    small = applied(RandomResizedCrop(least_area=0.25, most_stretch=2.0, size=20), coordinates).fields[0]
    assert small.shape == (300, 2, 20, 20)
    assert torch.allclose(small.mean((2, 3)), parts.mean((2, 3)), atol=0.01)


def test_mixup_mixes_samples_and_losses():
    originals = images(8, 1, 2, 2)
    mixed = applied(EVERY["mixup"], originals)
    others, share = mixed.mixed
    assert 0 < share < 1 and sorted(others.tolist()) == [*range(8)] and others.tolist() != [*range(8)]
    assert torch.allclose(mixed.fields[0], share * originals + (1 - share) * originals[others])
    module = nn.Sequential(nn.Flatten(), nn.Linear(4, 8)).double()
    batch = replace(mixed, fields=(mixed.fields[0] / 32,))
    _, loss = Objective(module, nn.CrossEntropyLoss(), Classification())(batch)
    scores = module(batch.fields[0]).log_softmax(1)
    each = [-share * scores[i, i] - (1 - share) * scores[i, others[i]] for i in range(8)]
    assert loss.item() == pytest.approx(sum(each).item() / 8, rel=1e-13)
    weights = torch.arange(1.0, 9.0)
    _, loss = Objective(module, nn.CrossEntropyLoss(), Classification())(replace(batch, weights=weights))
    wanted = sum(w * e for w, e in zip(weights.double(), each, strict=True)) / weights.sum()
    assert loss.item() == pytest.approx(wanted.item(), rel=1e-7)


@pytest.mark.parametrize("name", AUGMENTATIONS.classes())
def test_every_augmentation_keeps_shape_and_dtype_and_follows_its_generator(name):
    augmentation = EVERY[name]
    assert type(augmentation) is AUGMENTATIONS.find(name)
    for dtype in (torch.float32, torch.bfloat16, torch.float64):
        originals = images().to(dtype) / 4000
        first, repeated, other_seed = (applied(augmentation, originals, seed) for seed in (1, 1, 2))
        assert first.fields[0].shape == originals.shape and first.fields[0].dtype == dtype
        assert torch.equal(first.fields[0], repeated.fields[0])
        assert not torch.equal(first.fields[0], other_seed.fields[0])
        assert torch.equal(first.labels, torch.arange(64))


def test_training_batches_alone_are_changed_by_numbers_of_seed_round_rank_and_step():
    samples = toy_samples(8, (1, 8, 8))
    module, plain = (initial_model(LeNet(), (1, 8, 8), 3, seed=1) for _ in range(2))
    factories = (Factory(Crop, {"padding": 2}), Factory(Flip))
    training = training_of(module, samples=samples, augmentation=factories, batch_size=8, steps_per_round=1)
    for round in range(2):
        np.random.default_rng().random(round)
        run(training, [round])
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.1)
    for round in range(2):
        order = torch.from_numpy(generator(SEED, "shuffle", RANK, round).permutation(8))
        random = generator(SEED, "augmentation", round, RANK, 0, 0)
        batch = Flip().apply(Crop(padding=2).apply(samples.batch(order), random), random)
        optimizer.zero_grad()
        nn.functional.cross_entropy(plain(batch.fields[0]), batch.labels).backward()
        optimizer.step()
    for a, b in zip(module.parameters(), plain.parameters(), strict=True):
        assert torch.allclose(a, b, atol=1e-6)


def loaded(samples, classes=3):
    return LoadedDataset(samples, samples, classes, tuple(samples.inputs.shape[1:]))


@pytest.mark.parametrize(
    ("augmentation", "samples", "message"),
    [
        (Flip(), Samples(torch.zeros(2, 3, dtype=torch.int64), torch.zeros(2, 3, dtype=torch.int64)),
         "flip needs images of shape (channels, height, width); the dataset has ids of shape (3,)"),
        (Mixup(), Samples(torch.zeros(2, 3), torch.zeros(2)),
         "mixup needs one class for each sample; the labels are numbers"),
        (Mixup(), Samples(torch.zeros(2, 3), torch.zeros(2, 5, dtype=torch.int64)),
         "mixup needs one class for each sample; the labels are of shape (5,) each"),
        (Mixup(), Samples(torch.zeros(2, 3, dtype=torch.int64), torch.zeros(2, dtype=torch.int64)),
         "mixup needs one input of numbers, and ids are none"),
    ],
)  # fmt: skip
def test_samples_that_an_augmentation_cannot_change(augmentation, samples, message):
    with pytest.raises(BadInput) as caught:
        augmentation.check(loaded(samples))
    assert str(caught.value) == f"training.augmentation: {message}"
    Mixup().check(loaded(toy_samples()))
    Crop().check(loaded(toy_samples(2, (1, 8, 8))))
