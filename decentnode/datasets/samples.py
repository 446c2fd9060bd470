"""Tiny samples of datasets in their real formats, for tests and first runs. The numbers are random."""

import csv
import gzip
import io
import itertools
import string
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from decentnode.core.rng import generator

PARTS = ("train", "test")
CLIENTS = 100
"""Clients of the sample that stands for a dataset's files: enough for 96 nodes."""
IMAGES, TEST_IMAGES = 24 * CLIENTS, 5 * CLIENTS
TEXT = "To be, or not to be, that is the question:\nWhether 'tis nobler in the mind to suffer; "
LENGTH = 80
WORDS = ("<PAD>", "<UNK>", "<BOS>", "<EOS>", "the", "a", "of", "cat", "dog", "sat", "ran", "well")
"""Ids are places."""

VERSE = (
    TEXT + "The slings and arrows of outrageous fortune, or to take arms against a sea of troubles;"
).split()
Array = NDArray[Any]
Labelled = tuple[NDArray[np.uint8], NDArray[np.uint8]]
Users = dict[str, dict[str, list[Any]]]
"""x and y of each user."""


def write_leaf(directory: Path, parts: dict[str, Users], files: int = 1) -> None:
    """Writes users of `train` and `test` into so many files each, in the format of LEAF."""
    for part, users in parts.items():
        (directory / part).mkdir(parents=True, exist_ok=True)
        for number in range(files):
            names = list(users)[number::files]
            content = {
                "users": names,
                "num_samples": [len(users[name]["y"]) for name in names],
                "user_data": {name: users[name] for name in names},
            }
            file = directory / part / f"all_data_{number}_{part}.json"
            file.write_bytes(msgspec.json.encode(content))


def femnist(directory: Path, users: int = 4, samples: int = 12, seed: int = 1) -> dict[str, Users]:
    """Writes and returns a sample of FEMNIST: each class is a bright row of the image, in noise."""
    rng = generator(seed, "femnist")

    def drawn() -> dict[str, list[Any]]:
        labels = rng.integers(0, 62, samples)
        images = rng.integers(0, 64, (samples, 28, 28))
        images[np.arange(samples), labels % 28] = 255 - labels[:, None]
        return {"x": (images.reshape(samples, -1) / 255).tolist(), "y": labels.tolist()}

    return _written(directory, [f"f{number:04}_{number % 50:02}" for number in range(users)], drawn)


def shakespeare(directory: Path, users: int = 4, samples: int = 12, seed: int = 1) -> dict[str, Users]:
    """Writes and returns a sample of Shakespeare: pieces of a text that repeats, and what follows."""
    rng = generator(seed, "shakespeare")
    text = TEXT * 3

    def drawn() -> dict[str, list[Any]]:
        first = int(rng.integers(0, len(TEXT)))
        starts = [(first + step) % len(TEXT) for step in range(samples)]
        return {
            "x": [text[start : start + LENGTH] for start in starts],
            "y": [text[start + LENGTH] for start in starts],
        }

    letters = string.ascii_uppercase
    roles = [f"THE_TRAGEDY_OF_HAMLET_{letters[n // 26]}{letters[n % 26]}" for n in range(users)]
    return _written(directory, roles, drawn)


def reddit(directory: Path, users: int = 4, samples: int = 5, seed: int = 1) -> dict[str, Users]:
    """Writes and returns a sample of Reddit: comments of 8 words and of 12, that is of 1 line and of 2.

    The directory must be two levels deep in one of its own, because the vocabulary lies beside its parent.
    """
    rng = generator(seed, "reddit")

    def comment(words: list[str]) -> tuple[list[list[str]], dict[str, Any]]:
        padding = [WORDS[0]] * (-(len(words) + 2) % 10)
        lines = [np.array([*part, *padding]).reshape(-1, 10).tolist() for part in (
            [WORDS[2], *words, WORDS[3]], [*words, WORDS[3], WORDS[0]],
        )]  # fmt: skip
        return lines[0], {"target_tokens": lines[1], "subreddit": "cats", "created_utc": "1512086400"}

    def drawn() -> dict[str, list[Any]]:
        sizes = [8 if index % 2 else 12 for index in range(samples)]
        words = [[WORDS[4 + index] for index in rng.integers(0, len(WORDS) - 4, size)] for size in sizes]
        return {"x": [comment(line)[0] for line in words], "y": [comment(line)[1] for line in words]}

    written = _written(directory, [f"user_{number}" for number in range(users)], drawn)
    folder = directory.parent / "vocab"
    folder.mkdir(exist_ok=True)
    (folder / "reddit_vocab.pck").write_bytes(_vocabulary())
    return written


def _vocabulary() -> bytes:
    """Returns what pickle.dumps makes of LEAF's vocabulary, written by hand: protocol 2."""

    def text(value: str) -> bytes:
        return b"X" + len(value).to_bytes(4, "little") + value.encode()

    words = b"}(" + b"".join(text(word) + b"K" + bytes([place]) for place, word in enumerate(WORDS)) + b"u"
    sizes = text("size") + b"M\x10\x27" + text("unk_symbol") + b"K\x01" + text("pad_symbol") + b"K\x00"
    return b"\x80\x02}(" + text("vocab") + words + sizes + b"u."


def celeba(directory: Path, users: int = 4, samples: int = 3, seed: int = 1) -> dict[str, Users]:
    """Writes and returns a sample of CelebA with its images, where bright ones smile. Needs Pillow."""
    from PIL import Image

    rng = generator(seed, "celeba")
    folder = directory / "raw" / "img_align_celeba"
    folder.mkdir(parents=True, exist_ok=True)
    numbers = itertools.count(1)

    def drawn() -> dict[str, list[Any]]:
        labels = rng.integers(0, 2, samples).tolist()
        names = []
        for label in labels:
            names.append(f"{next(numbers):06}.jpg")
            pixels = rng.integers(0, 56, (55, 45, 3)) + 200 * label
            Image.fromarray(pixels.astype(np.uint8)).save(folder / names[-1])
        # LEAF writes the labels of CelebA as floats.
        return {"x": names, "y": [float(label) for label in labels]}

    return _written(directory, [str(1000 + number) for number in range(users)], drawn)


def sent140(directory: Path, users: int = 4, samples: int = 6, seed: int = 1) -> dict[str, Users]:
    """Writes and returns a sample of Sent140."""
    rng = generator(seed, "sent140")

    def drawn() -> dict[str, list[Any]]:
        labels = rng.integers(0, 2, samples).tolist()
        moods = [("what a good", "love")[index] if label else "such a bad" for index, label in
                 zip(rng.integers(0, 2, samples), labels, strict=True)]  # fmt: skip
        fields = ("1467810369", "Mon Apr 06 22:19:45 PDT 2009", "NO_QUERY", "someone")
        return {"x": [[*fields, f"{mood} day, really!"] for mood in moods], "y": labels}

    return _written(directory, [f"tweeter{number}" for number in range(users)], drawn)


DICTIONARY = {
    "the": "die", "a": "eine", "cat": "Katze", "dog": "Hündin", "sees": "sieht", "hears": "hört",
    "old": "alte", "little": "kleine",
}  # fmt: skip
"""The dictionary of `parallel`, whose second language has the words in reverse."""


def parallel(directory: Path, pairs: int = 64, words: int = 5, documents: int = 2, seed: int = 1) -> None:
    """Writes a parallel corpus: up to so many words, whose translations are reversed."""
    rng, known = generator(seed, "parallel"), list(DICTIONARY)
    directory.mkdir(parents=True, exist_ok=True)
    for part, count in (("train", pairs), ("valid", max(1, pairs // 4))):
        sentences = [
            [known[index] for index in rng.integers(0, len(known), int(rng.integers(2, words + 1)))]
            for _ in range(count)
        ]
        files = {
            "en": [" ".join(sentence) for sentence in sentences],
            "de": [" ".join(DICTIONARY[word] for word in sentence[::-1]) for sentence in sentences],
            "document": [f"letter {documents * index // count}" for index in range(count)],
        }
        for suffix, lines in files.items():
            (directory / f"{part}.{suffix}").write_text("\n".join([*lines, ""]), encoding="utf-8")


def _written(
    directory: Path, names: Sequence[str], drawn: Callable[[], dict[str, list[Any]]]
) -> dict[str, Users]:
    parts = {part: {name: drawn() for name in names} for part in PARTS}
    write_leaf(directory, parts)
    return parts


# Images. Each class is a pattern of its own, in noise.


def patterned(kind: str, count: int, classes: int, shape: tuple[int, ...], seed: int = 1) -> Labelled:
    """Returns `count` uint8 images of a shape, with the labels 0, 1, 2, ... in turn."""
    labels = np.arange(count) % classes
    patterns = generator(1, kind).integers(0, 128, (classes, *shape), dtype=np.uint8)
    noise = generator(seed, kind).integers(0, 128, (count, *shape), dtype=np.uint8)
    return patterns[labels] + noise, labels.astype(np.uint8)


def idx(directory: Path, variant: str, prefix: str, test: str, classes: int, first: int) -> None:
    """Writes a sample of MNIST or a relative: gzipped IDX files; `first` is the least label."""
    for part, count, seed in (("train", IMAGES, 1), (test, TEST_IMAGES, 2)):
        images, labels = patterned(variant, count, classes, shape=(28, 28), seed=seed)
        for content, values in (("images-idx3", images), ("labels-idx1", (labels + first).astype(np.uint8))):
            header = bytes([0, 0, 8, values.ndim]) + np.array(values.shape, dtype=">u4").tobytes()
            packed = gzip.compress(header + values.tobytes(), compresslevel=1, mtime=0)
            (directory / f"{prefix}{part}-{content}-ubyte.gz").write_bytes(packed)


def cifar(directory: Path, kind: str, files: dict[str, int], label_bytes: Callable[[Array], Array]) -> None:
    """Writes a sample of CIFAR's binary batches, `files` with so many images each."""
    for seed, (file, count) in enumerate(files.items()):
        images, labels = patterned(
            kind, count, 10 if kind == "cifar10" else 100, shape=(3 * 32 * 32,), seed=seed
        )
        (directory / file).write_bytes(np.concatenate([label_bytes(labels), images], axis=1).tobytes())


def image_folder(directory: Path, side: int = 40, classes: int = 12) -> None:
    """Writes a sample in the layout of ImageNet: JPEG files of several sizes. Needs Pillow."""
    from PIL import Image

    for part, count, seed in (("train", 4 * CLIENTS, 1), ("val", CLIENTS, 2)):
        images, labels = patterned("image_folder", count, classes, shape=(side, side + 8, 3), seed=seed)
        for number, (image, label) in enumerate(zip(images, labels, strict=True)):
            folder = directory / part / f"n{label:08}"
            folder.mkdir(parents=True, exist_ok=True)
            Image.fromarray(image[:, : side + number % 9]).save(folder / f"{number:05}.jpg")


def pngs(count: int, seed: int) -> list[bytes]:
    """The content of so many PNG files, with the labels 0 to 4 in turn. Needs Pillow."""
    from PIL import Image

    images = []
    for image in patterned("pngs", count, 5, shape=(36, 36, 3), seed=seed)[0]:
        content = io.BytesIO()
        Image.fromarray(image).save(content, "PNG", compress_level=1)
        images.append(content.getvalue())
    return images


# Texts.


def sentence(rng: np.random.Generator, words: int) -> str:
    """Words of a small vocabulary, in which the next one depends on the last."""
    place, lines = int(rng.integers(len(VERSE))), []
    for step in rng.integers(1, 4, words):
        place = (place + int(step)) % len(VERSE)
        lines.append(VERSE[place])
    return " ".join(lines)


def text(file: Path, length: int, pieces: int) -> None:
    """Writes a text of 100 documents, each of so many pieces of `length` characters.

    A document starts with a line such as `# Document 7`.
    """
    rng = generator(1, "text")
    story = "\n".join(sentence(rng, 9) for _ in range(200))
    size = length * pieces
    documents = []
    for number in range(CLIENTS):
        first = 37 * number % len(story)
        body = (story[first:] + story * (1 + size // len(story)))[:size]
        documents.append(f"# Document {number}\n{body}\n")
    file.write_text("".join(documents), encoding="utf-8")


def tokens(directory: Path, length: int, vocabulary: int) -> None:
    """Writes a sample of nanoGPT's files: steps of 1 to 3 through the ids."""
    for name, pieces, seed in (("train.bin", 8 * CLIENTS, 1), ("val.bin", CLIENTS, 2)):
        steps = generator(seed, "tokens").integers(1, 4, pieces * length + 1)
        (np.cumsum(steps) % min(vocabulary, 1 << 16)).astype("<u2").tofile(directory / name)


def movielens(file: Path, films: int = 60, ratings: int = 24) -> None:
    """Writes a sample of ratings.csv, in which users and films have a taste."""
    rng = generator(1, "movielens")
    good, kind = rng.normal(0, 1, films), rng.normal(0, 0.5, CLIENTS)
    rows = ["userId,movieId,rating,timestamp"]
    for user in range(CLIENTS):
        for film in np.sort(rng.choice(films, ratings, replace=False)).tolist():
            stars = float(np.clip(np.round(2 * (3 + good[film] + kind[user])) / 2, 0.5, 5))
            rows.append(f"{user + 1},{film + 1},{stars},964982703")
    file.write_text("\n".join(rows) + "\n")


def amazon(directory: Path, text_column: str, label_column: str) -> None:
    """Writes a sample of reviews, one CSV file for each client, in which good ones have other words."""
    rng = generator(1, "amazon")
    moods = ("awful waste", "poor", "fair enough", "good", "great, love it")
    for part in PARTS:
        (directory / part).mkdir()
        for client in range(CLIENTS):
            with (directory / part / f"A{client:06}.csv").open("w", newline="", encoding="utf-8") as file:
                rows = csv.writer(file)
                rows.writerow([text_column, label_column])
                for stars in rng.integers(1, 6, 10).tolist():
                    rows.writerow([f'{moods[stars - 1]}: "{sentence(rng, 6)}"', stars])


# Tables.


@dataclass(frozen=True)
class Columns:
    """Rows of a table, by column."""

    values: Array
    """Shape (n, features), float32."""
    labels: Array
    groups: Array


def columns(count: int, features: int, is_number: bool = False, seed: int = 1) -> Columns:
    """Rows around a center for each of five classes, or with the mean of their features as label."""
    rng = generator(seed, "columns")
    labels = np.arange(count) % 5
    centers = generator(1, "centers").normal(0, 2, (5, features))
    values = (centers[labels] + rng.normal(0, 1, (count, features))).astype(np.float32)
    return Columns(values, values.mean(1) if is_number else labels, np.arange(count) // 5 % CLIENTS)
