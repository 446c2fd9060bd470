"""The images of LEAF: characters of many writers, and faces."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from decentnode.core.registry import DATASETS
from decentnode.datasets.base import LoadedDataset, channel_statistics
from decentnode.datasets.image_folder import as_rgb, check_pillow
from decentnode.datasets.leaf import Arrays, Leaf, Part, User, check_labels
from decentnode.errors import DatasetError

PIXELS = 28 * 28
CHARACTERS = 62
LEVELS = 255
TOLERANCE = 1e-3
"""The tolerance of a pixel's level: files may have been written from numbers of 32 bits."""
SIDE = 84


class _Pixels(User):
    x: list[list[float]]
    y: list[int]


class _Names(User):
    x: list[str]
    y: list[float]  # LEAF divides, so 0.0 and 1.0


@DATASETS.register("femnist")
@dataclass(kw_only=True)
class Femnist(Leaf):
    """Handwritten characters of 3,550 writers, 28x28, 62 classes (Caldas et al., 2018, LEAF, FEMNIST).

    Pixels are fractions of 255 in the files and uint8 here, so nothing is lost; normalized by the training
    images. Writers are the groups of partition `natural`.
    """

    user: ClassVar[type[User]] = _Pixels
    name: ClassVar[str] = "femnist"

    def read(self, seed: int) -> LoadedDataset:
        return image_parts(self.parts(), CHARACTERS)

    def arrays(self, user: _Pixels) -> Arrays:
        for row, values in enumerate(user.x):
            if len(values) != PIXELS:
                raise ValueError(f"x[{row}] has {len(values)} pixels, an image has {PIXELS}")
        levels = np.array(user.x, dtype=np.float64).reshape(-1, PIXELS) * LEVELS
        pixels = np.rint(levels)
        wrong = np.argwhere((abs(pixels - levels) > TOLERANCE) | (pixels < 0) | (pixels > LEVELS))
        if len(wrong):
            row, column = wrong[0]
            value = user.x[row][column]
            raise ValueError(f"x[{row}][{column}] is {value:g}; pixels are 0/255, 1/255, ... 255/255")
        labels = check_labels(np.array(user.y, dtype=np.int64), CHARACTERS)
        return pixels.astype(np.uint8).reshape(-1, 1, 28, 28), labels


@DATASETS.register("celeba")
@dataclass(kw_only=True)
class Celeba(Leaf):
    """Faces, 84x84 in color; class 1 smiles (Caldas et al., 2018, LEAF, CelebA).

    The JSON files have the names of images (Liu et al., 2015, "Deep learning face attributes in the wild"),
    which are resized as in LEAF. Celebrities are the groups of partition `natural`.
    """

    images_path: str | None = None
    """The directory of the images, which may be PNG instead of JPEG; null: `raw/img_align_celeba`
    beside `train`, as in LEAF."""

    user: ClassVar[type[User]] = _Names
    name: ClassVar[str] = "celeba"
    places: ClassVar[tuple[str, ...]] = (*Leaf.places, "images_path")

    def read(self, seed: int) -> LoadedDataset:
        check_pillow("celeba")
        if not self._images().is_dir():
            raise DatasetError.at("dataset.images_path", f"{self._images()}: no directory with images")
        return image_parts(self.parts(), 2)

    def _images(self) -> Path:
        if self.images_path is not None:
            return Path(self.images_path)
        return self.directories()["train"].parent / "raw" / "img_align_celeba"

    def arrays(self, user: _Names) -> Arrays:
        labels = check_labels(np.array(user.y), 2)
        directory = self._images()
        faces = np.empty((len(user.x), 3, SIDE, SIDE), dtype=np.uint8)
        for face, name in zip(faces, user.x, strict=True):
            face[:] = read_image(directory, name)
        return faces, labels


def read_image(directory: Path, name: str) -> NDArray[np.uint8]:
    """An image of 3 x 84 x 84; raises ValueError with what is wrong."""
    from PIL import Image

    names = (name, f"{Path(name).stem}.png")
    # A name with a folder could lead out of the directory.
    path = next(
        (directory / name for name in names if Path(name).name == name and (directory / name).is_file()), None
    )
    if path is None:
        raise ValueError(f"no image {name!r} in {directory}")
    try:
        with Image.open(path) as image:
            resized: Any = as_rgb(image).resize((SIDE, SIDE))
            return np.asarray(resized).transpose(2, 0, 1)
    except (OSError, SyntaxError, Image.DecompressionBombError) as error:
        raise ValueError(f"{path} cannot be read: {error}") from error


def image_parts(parts: tuple[Part, Part], classes: int) -> LoadedDataset:
    """A dataset of uint8 images, normalized by the training images."""
    statistics = channel_statistics(parts[0].inputs)
    train, test = (part.samples(*statistics) for part in parts)
    return LoadedDataset(train, test, classes, shape=tuple(train.inputs.shape[1:]))
