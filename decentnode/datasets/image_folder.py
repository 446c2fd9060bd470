"""Images in folders that are named after their classes, decoded once per machine into a mapped file."""

import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from decentnode.core.registry import DATASETS
from decentnode.datasets import samples
from decentnode.datasets.base import LoadedDataset, NamedClasses, image_dataset
from decentnode.datasets.locate import FileDataset, is_hidden
from decentnode.errors import DatasetError
from decentnode.options import Positive

SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp"})
RESIZED = 256 / 224
"""The shorter side before the crop, by the size after it, as usual for ImageNet."""
DECODED_IMAGES = 512
"""Images that are decoded before they are written."""

Pixels = NDArray[np.uint8]


def usual_cache() -> Path:
    """Returns the folder of decoded images where nothing names one; raises RuntimeError without a home."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "decentnode"


@dataclass(kw_only=True)
class Images(NamedClasses, FileDataset):
    """Images of any sizes, which become squares of one: resized, and cut out of the middle."""

    size: Positive = 224
    """The side of the images in pixels."""
    resize: Positive | None = None
    """The shorter side before the crop; null: 256/224 of `size`, as usual for ImageNet."""
    cache_path: str | None = None
    """The folder of the decoded images; null: `decentnode` in $XDG_CACHE_HOME or ~/.cache."""

    uses_seed: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if self.side < self.size:
            raise DatasetError.at("dataset.resize", f"must be at least size, {self.size}, not {self.resize}")

    @property
    def side(self) -> int:
        """The shorter side before the crop."""
        return round(self.size * RESIZED) if self.resize is None else self.resize

    def square(self, source: Any, name: str) -> Pixels:
        """A decoded image of shape (3, size, size); raises DatasetError that names it as `name`."""
        from PIL import Image

        try:
            with Image.open(source) as opened:
                # JPEG files are decoded at half or a quarter of their size where that suffices.
                opened.draft("RGB", (self.side, self.side))
                image = as_rgb(opened)
        except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
            raise DatasetError.at("dataset.path", f"{name} cannot be read: {error}") from error
        scale = self.side / min(image.size)
        width, height = (max(self.side, round(scale * length)) for length in image.size)
        left, top = (width - self.size) // 2, (height - self.size) // 2
        resized = image.resize((width, height), Image.Resampling.BILINEAR)
        cut: Any = resized.crop((left, top, left + self.size, top + self.size))
        return np.asarray(cut).transpose(2, 0, 1)

    def decoded(self, count: int, image: Callable[[int], Pixels], contents: Sequence[str]) -> Tensor:
        """`count` images, `image(i)` the i-th, from a mapped file that is made where it is missing.

        All processes of the machine share the pages of the file that they use. `contents` as for `cached`.
        Raises DatasetError.
        """
        file, shape = self.cached(count, contents)
        try:
            if not is_whole(file, shape):
                file.parent.mkdir(parents=True, exist_ok=True)
                self._write(file, shape, image)
            # Copy on write: torch asks for writable memory, and nobody writes.
            return torch.from_numpy(np.memmap(file, np.uint8, mode="c", shape=shape))
        except OSError as error:
            raise DatasetError.at("dataset.cache_path", f"{file}: {error.strerror or error}") from error

    def cached(self, count: int, contents: Sequence[str]) -> tuple[Path, tuple[int, ...]]:
        """The file of so many decoded images, and their shape; raises DatasetError.

        `contents` says what the images are, and so which file it is.
        """
        identity = hashlib.sha256("\n".join([*contents, f"{self.size} {self.side}"]).encode())
        file = self._cache() / f"images-{identity.hexdigest()[:32]}-{self.size}.u8"
        return file, (count, 3, self.size, self.size)

    def _cache(self) -> Path:
        if self.cache_path is not None:
            return Path(self.cache_path)
        try:
            return usual_cache()
        except RuntimeError:
            raise DatasetError.at(
                "dataset.cache_path", "missing, and this user has no home directory; name a folder"
            ) from None

    def _write(self, file: Path, shape: tuple[int, ...], image: Callable[[int], Pixels]) -> None:
        check_space(file.parent, shape)
        # Under a name of its own until it is whole: several launchers may make it at once.
        descriptor, name = tempfile.mkstemp(dir=file.parent, prefix=f"{file.name}-")
        try:
            with os.fdopen(descriptor, "wb") as opened, ThreadPoolExecutor(os.cpu_count()) as threads:
                for start in range(0, shape[0], DECODED_IMAGES):
                    block = range(start, min(start + DECODED_IMAGES, shape[0]))
                    for pixels in threads.map(image, block):
                        opened.write(np.ascontiguousarray(pixels).data)
            Path(name).replace(file)
        finally:
            with suppress(FileNotFoundError):
                Path(name).unlink()


@dataclass(frozen=True)
class ListedImages:
    """The image files of a part, with their classes."""

    part: str
    """`train`, or the name of the folder to test with."""
    files: Sequence[Path]
    labels: Sequence[int]
    contents: Sequence[str]
    """What tells other images apart from these."""


@DATASETS.register("image_folder", "imagenet")
@dataclass(kw_only=True)
class ImageFolder(Images):
    """Images in train/CLASS and val/CLASS, the layout of ImageNet (Russakovsky et al., 2015).

    Classes are numbered in the order of their names. Images are decoded once per machine, resized and cut as
    usual for ImageNet, into a file of uint8 in `cache_path`, which is mapped: 3 * size^2 bytes for each, so
    193 GB for the 1.28 million of ImageNet at 224 pixels, and 16 GB at 64. Needs Pillow.
    """

    images_per_class: Positive | None = None
    """How many images of each class and part are used, the first by their names; null: all."""

    title = "image_folder"
    folders = ("imagenet", "image_folder")

    @property
    def steps(self) -> str:
        return (
            "put images into {folder}/imagenet/train/CLASS and {folder}/imagenet/val/CLASS; those of "
            "ImageNet are at https://image-net.org/download (155 GB, for research, with an account), and "
            "decentnode prepare imagenet {folder}/imagenet unpacks them"
        )

    def is_complete(self, directory: Path) -> bool:
        return (directory / "train").is_dir() and self._test(directory).is_dir()

    @staticmethod
    def _test(directory: Path) -> Path:
        return directory / ("val" if (directory / "val").is_dir() else "test")

    def write_sample(self, directory: Path) -> Mapping[str, Any]:
        check_pillow("image_folder")
        samples.image_folder(directory / "images")
        return {"path": str(directory / "images"), "cache_path": str(directory / "cache")}

    def read(self, seed: int) -> LoadedDataset:
        parts, classes = self.listed()
        images = [(self._decoded(part), torch.tensor(part.labels)) for part in parts]
        return replace(image_dataset(images[0], images[1], len(classes)), class_names=classes)

    def listed(self) -> tuple[list[ListedImages], tuple[str, ...]]:
        """The images of both parts, and the names of the classes; raises DatasetError."""
        check_pillow("image_folder")
        directory = self.directory()
        classes = sorted(folder.name for folder in class_folders(directory / "train"))
        parts = [self._listed(part, classes) for part in (directory / "train", self._test(directory))]
        return parts, tuple(classes)

    def _decoded(self, images: ListedImages) -> Tensor:
        files = images.files
        return self.decoded(len(files), lambda i: self.square(files[i], str(files[i])), images.contents)

    def _listed(self, folder: Path, classes: Sequence[str]) -> ListedImages:
        files, labels = list[Path](), list[int]()
        try:
            for inside in sorted(class_folders(folder)):
                if inside.name not in classes:
                    raise DatasetError.at("dataset.path", f"{inside}: a class without a folder in train")
                image_files = sorted(
                    file for file in inside.rglob("*")
                    if file.suffix.lower() in SUFFIXES
                    and not any(is_hidden(Path(part)) for part in file.relative_to(inside).parts)
                )  # fmt: skip
                if not image_files and folder.name == "train":
                    raise DatasetError.at(
                        "dataset.path", f"{inside}: a class without images; remove the folder"
                    )
                files += image_files[: self.images_per_class]
                labels += [classes.index(inside.name)] * len(image_files[: self.images_per_class])
            contents = [f"{f.relative_to(folder)} {(s := f.stat()).st_size} {s.st_mtime_ns}" for f in files]
        except OSError as error:
            raise DatasetError.at(
                "dataset.path", f"{folder}: cannot be searched: {error.strerror}"
            ) from error
        if not files:
            raise DatasetError.at("dataset.path", f"{folder}: no images in folders of classes")
        return ListedImages(folder.name, files, labels, contents)


def is_whole(file: Path, shape: tuple[int, ...]) -> bool:
    """Whether the file of decoded images is there."""
    return file.is_file() and file.stat().st_size == int(np.prod(shape))


def check_space(folder: Path, shape: tuple[int, ...], there: int = 0) -> None:
    """Raises DatasetError where a folder has no room for decoded images, of which it has `there` bytes."""
    size, free = int(np.prod(shape)) - there, shutil.disk_usage(folder).free
    if size > free:
        raise DatasetError.at(
            "dataset.cache_path",
            f"{folder}: {shape[0]} decoded images need {size / 1e9:.3g} GB, and "
            f"{free / 1e9:.3g} GB are free; name another folder, or a smaller size",
        )


def class_folders(folder: Path) -> list[Path]:
    """The folders of the classes in a part, in any order."""
    return [entry for entry in folder.iterdir() if entry.is_dir() and not is_hidden(entry)]


def as_rgb(image: Any) -> Any:
    """A decoded image in RGB, 8 bits each; raises ValueError where the scale of its numbers is not known.

    Pillow alone would cut numbers of 16 bits off at 255, and so make such images white.
    """
    from PIL import Image

    if image.mode.startswith("I;16") or (image.mode == "I" and image.format == "PNG"):
        image = Image.fromarray((np.asarray(image).astype(np.uint32) >> 8).astype(np.uint8))
    elif image.mode in ("I", "F"):
        raise ValueError(f"its gray values have 32 bits (mode {image.mode}); write it with 8 or 16 bits")
    return image.convert("RGB")


def check_pillow(name: str) -> None:
    """Raises DatasetError where Pillow is not installed."""
    if find_spec("PIL") is None:
        raise DatasetError.at("dataset", f"{name} needs Pillow; run: pip install 'decentnode[tasks]'")
