"""Images in the format of CIFAR-10's binary batches, made up: each class is a pattern under noise."""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

CLASSES, PIXELS = 10, 3 * 32 * 32
TRAINING_BATCHES = 5
NOISE = 60.0


def write_images(directory: Path, training: int, test: int) -> None:
    """Five training batches and one test batch, always the same; `training` is a multiple of 5."""
    random = np.random.default_rng(1)
    patterns = random.integers(0, 256, (CLASSES, PIXELS))
    for batch in range(1, TRAINING_BATCHES + 1):
        write_batch(directory / f"data_batch_{batch}.bin", patterns, training // TRAINING_BATCHES, random)
    write_batch(directory / "test_batch.bin", patterns, test, random)


def write_batch(path: Path, patterns: NDArray[np.int64], images: int, random: np.random.Generator) -> None:
    """Records of one label byte and the pixels, channel by channel (Krizhevsky, 2009)."""
    labels = np.arange(images) % CLASSES
    pixels = np.clip(patterns[labels] + random.normal(0, NOISE, (images, PIXELS)), 0, 255)
    path.write_bytes(np.concatenate([labels[:, None], pixels], axis=1).astype(np.uint8).tobytes())
