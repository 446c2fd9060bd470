"""ImageNet (Russakovsky et al., 2015): from its archives to class folders, and to decoded images."""

import io
import os
import re
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path, PurePosixPath
from typing import cast

import numpy as np

from decentnode.cli.download import made
from decentnode.core.atomic_files import sync_folder, write_durably
from decentnode.core.text import counted
from decentnode.datasets.base import Source
from decentnode.datasets.download import name_of_file
from decentnode.datasets.image_folder import ImageFolder, ListedImages, check_space, class_folders, is_whole
from decentnode.errors import BadInput
from decentnode.interop.preparation.parts import Preparation, PreparedFiles, WorkPart
from decentnode.interop.preparation.raw_files import check_sums, files_in, found, missing, opened_tar

ADDRESS = "https://image-net.org/data/ILSVRC/2012"
TRAIN = Source(f"{ADDRESS}/ILSVRC2012_img_train.tar", 147_897_477_120, "md5:1d675b47d978889d74fa0da5fadfb00e")
VALIDATION = Source(
    f"{ADDRESS}/ILSVRC2012_img_val.tar", 6_744_924_160, "md5:29b22e2961454d5413ddabcf34fc5622"
)
LABELS = Source(f"{ADDRESS}/ILSVRC2012_devkit_t12.tar.gz", 2_568_145, "md5:fa75699e90414af021442c21a62c3abf")
ACCOUNT = "for research, with an account of image-net.org"
UNPACKING = ".unpacking-"
"""The prefix of folders that are not complete."""
BLOCK = 512
"""Images that a part unpacks or decodes."""


def prepare(preparation: Preparation, options: Sequence[str]) -> PreparedFiles:
    """Unpacks the archives, and decodes all images into the file that nodes map."""
    folder = preparation.folder
    dataset = replace(cast(ImageFolder, made("image_folder", options)), path=str(folder))
    needed = [*_needed(folder / "train", TRAIN), *_needed(folder / "val", VALIDATION, LABELS)]
    check_sums(preparation, needed)
    archive, tests, labels = (folder / name_of_file(source) for source in (TRAIN, VALIDATION, LABELS))
    if TRAIN in needed:
        _unpack_all(preparation, folder / "train", "folder", partial(_class_parts, archive))
    if VALIDATION in needed:
        _unpack_all(preparation, folder / "val", "image", partial(_test_parts, tests, labels))
    listed, classes = dataset.listed()
    lines = []
    for images in listed:
        file = _decode(preparation, dataset, images)
        lines.append(
            f"{images.part}: {counted(len(images.files), 'image')} of {len(classes)} classes, in {file}"
        )
    return PreparedFiles("image_folder", {}, "resnet50_imagenet_all_reduce", lines)


def _needed(part: Path, *sources: Source) -> Sequence[Source]:
    """The archives that a part is unpacked from, unless it is there; raises BadInput where one is missing."""
    if part.is_dir() and class_folders(part):
        return ()
    for source in sources:
        if found(part.parent, source) is None:
            raise missing(part.parent, source, f"{part}/CLASS/*.JPEG", ACCOUNT)
    return sources


def _unpack_all(
    preparation: Preparation, part: Path, unit: str, parts_in: Callable[[Path], list[WorkPart]]
) -> None:
    """Unpacks into a folder under another name, which it gets when all is there."""
    unpacking = part.with_name(f"{UNPACKING}{part.name}")
    unpacking.mkdir(exist_ok=True)
    preparation.make(f"{part.name} unpacked", parts_in(unpacking), unit)
    unpacking.rename(part)
    sync_folder(part.parent)


def _class_parts(archive: Path, folder: Path) -> list[WorkPart]:
    """A part for each class whose folder is missing: the archive has an archive for each class."""
    with opened_tar(archive) as tar:
        classes = {PurePosixPath(name): member.offset_data for name, member in files_in(tar)}
    return [
        WorkPart(name.stem, partial(_unpack_class, archive, offset, folder / name.stem))
        for name, offset in classes.items()
        if name.suffix == ".tar" and not (folder / name.stem).is_dir()
    ]


def _unpack_class(archive: Path, offset: int, folder: Path) -> None:
    unpacking = folder.with_name(f"{UNPACKING}{folder.name}")
    shutil.rmtree(unpacking, ignore_errors=True)
    unpacking.mkdir()
    with opened_tar(archive, offset) as tar:
        for name, member in files_in(tar):
            content = tar.extractfile(member)
            assert content is not None
            write_durably(unpacking / name, [content.read()])
    sync_folder(unpacking)
    unpacking.rename(folder)


def _test_parts(archive: Path, labels: Path, folder: Path) -> list[WorkPart]:
    """Parts for the images that are missing in the folders of their classes, which the labels tell."""
    classes, images = _classes(labels), list[_PackedImage]()
    for name in {*classes}:
        (folder / name).mkdir(exist_ok=True)
    with opened_tar(archive) as tar:
        for name, member in files_in(tar):
            number = re.search(r"_val_(\d+)\.", name)
            if number is None or not 0 < int(number[1]) <= len(classes):
                what = f"is none of the {len(classes)} images that {labels} has labels of"
                raise BadInput(f"{archive}: {name} {what}; fetch both again")
            file = folder / classes[int(number[1]) - 1] / name
            if not file.is_file():
                images.append(_PackedImage(file, member.offset_data, member.size))
    return [
        WorkPart(images[start].file.name, partial(_unpack, archive, some), len(some))
        for start in range(0, len(images), BLOCK)
        if (some := images[start : start + BLOCK])
    ]


@dataclass(frozen=True)
class _PackedImage:
    """An image in an archive, and the file that it becomes."""

    file: Path
    offset: int
    size: int


def _unpack(archive: Path, images: Sequence[_PackedImage]) -> None:
    with archive.open("rb") as opened:
        for image in images:
            opened.seek(image.offset)
            write_durably(image.file, [opened.read(image.size)])


def _classes(labels: Path) -> list[str]:
    """The class of each image to validate with, in the order of their numbers; raises BadInput."""
    try:
        from scipy.io import loadmat
    except ModuleNotFoundError as error:
        raise BadInput(f"{labels}: needs scipy, which reads its meta.mat; run: pip install scipy") from error
    contents = dict[str, bytes]()
    with opened_tar(labels) as tar:
        for name, member in files_in(tar):
            if name in ("meta.mat", "ILSVRC2012_validation_ground_truth.txt") and "/data/" in member.name:
                content = tar.extractfile(member)
                assert content is not None
                contents[name] = content.read()
    try:
        synsets = loadmat(io.BytesIO(contents["meta.mat"]), squeeze_me=True)["synsets"]
        names = {int(row["ILSVRC2012_ID"]): str(row["WNID"]) for row in np.atleast_1d(synsets)}
        numbers = contents["ILSVRC2012_validation_ground_truth.txt"].split()
        return [names[int(number)] for number in numbers]
    except (KeyError, ValueError) as error:
        raise BadInput(
            f"{labels}: has no classes and labels in its data folder ({error!r}); fetch it again"
        ) from error


def _decode(preparation: Preparation, dataset: ImageFolder, images: ListedImages) -> Path:
    """Decodes images into the file that nodes map, unless it is whole; returns the file.

    Each part writes its place in a file under another name; a second file has the parts that are there.
    """
    file, shape = dataset.cached(len(images.files), images.contents)
    if is_whole(file, shape):
        return file
    making, record = (file.with_name(f"{file.name}.{name}") for name in ("making", "parts"))
    file.parent.mkdir(parents=True, exist_ok=True)
    size = int(np.prod(shape))
    if not making.is_file() or making.stat().st_size != size:
        record.unlink(missing_ok=True)
        with making.open("wb") as opened:
            opened.truncate(size)
    check_space(file.parent, shape, there=min(size, making.stat().st_blocks * 512))
    parts = [
        WorkPart(f"images from {start} on", partial(_decode_block, dataset, images, making, start), len(some))
        for start in range(0, shape[0], BLOCK)
        if (some := images.files[start : start + BLOCK])
    ]
    preparation.make(f"{images.part} decoded", parts, "image", record)
    making.replace(file)
    record.unlink()
    sync_folder(file.parent)
    return file


def _decode_block(dataset: ImageFolder, images: ListedImages, making: Path, start: int) -> None:
    bytes_each = 3 * dataset.size**2
    with making.open("r+b") as opened:
        opened.seek(start * bytes_each)
        for path in images.files[start : start + BLOCK]:
            opened.write(np.ascontiguousarray(dataset.square(path, str(path))).data)
        opened.flush()
        os.fsync(opened.fileno())
