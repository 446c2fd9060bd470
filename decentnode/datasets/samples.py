"""Tiny samples of datasets in their real formats, for tests and first runs. The numbers are random."""

import string
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from decentnode.core.rng import generator
from decentnode.datasets.leaf import PARTS

TEXT = "To be, or not to be, that is the question:\nWhether 'tis nobler in the mind to suffer; "
LENGTH = 80
WORDS = ("<PAD>", "<UNK>", "<BOS>", "<EOS>", "the", "a", "of", "cat", "dog", "sat", "ran", "well")
"""Ids are places."""

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

    roles = [f"THE_TRAGEDY_OF_HAMLET_{letter}" for letter in string.ascii_uppercase[:users]]
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
        return {"x": [comment(one)[0] for one in words], "y": [comment(one)[1] for one in words]}

    written = _written(directory, [f"user_{number}" for number in range(users)], drawn)
    folder = directory.parent / "vocab"
    folder.mkdir(exist_ok=True)
    (folder / "reddit_vocab.pck").write_bytes(_vocabulary())
    return written


def _vocabulary() -> bytes:
    """What pickle.dumps makes of LEAF's vocabulary, written by hand: protocol 2."""

    def text(value: str) -> bytes:
        return b"X" + len(value).to_bytes(4, "little") + value.encode()

    words = b"}(" + b"".join(text(word) + b"K" + bytes([place]) for place, word in enumerate(WORDS)) + b"u"
    sizes = text("size") + b"M\x10\x27" + text("unk_symbol") + b"K\x01" + text("pad_symbol") + b"K\x00"
    return b"\x80\x02}(" + text("vocab") + words + sizes + b"u."


def celeba(directory: Path, users: int = 4, samples: int = 4, seed: int = 1) -> dict[str, Users]:
    """Writes and returns a sample of CelebA with its images, where bright ones smile. Needs Pillow."""
    from PIL import Image

    rng = generator(seed, "celeba")
    folder = directory / "raw" / "img_align_celeba"
    folder.mkdir(parents=True, exist_ok=True)

    def drawn() -> dict[str, list[Any]]:
        labels = rng.integers(0, 2, samples).tolist()
        names = []
        for label in labels:
            names.append(f"{len(list(folder.iterdir())) + 1:06}.jpg")
            pixels = rng.integers(0, 56, (109, 89, 3)) + 200 * label
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
"""Of `parallel`, whose second language has the words in reverse."""


def parallel(directory: Path, pairs: int = 64, words: int = 5, seed: int = 1) -> None:
    """Writes a parallel corpus with two documents: up to so many words, whose translations are reversed."""
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
            "document": [f"letter {2 * index // count}" for index in range(count)],
        }
        for suffix, lines in files.items():
            (directory / f"{part}.{suffix}").write_text("\n".join([*lines, ""]), encoding="utf-8")


def _written(
    directory: Path, names: Sequence[str], drawn: Callable[[], dict[str, list[Any]]]
) -> dict[str, Users]:
    parts = {part: {name: drawn() for name in names} for part in PARTS}
    write_leaf(directory, parts)
    return parts
