"""The texts of LEAF: plays by the character, comments by the word, and tweets."""

import re
import zlib
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import chain
from pathlib import Path
from typing import ClassVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from decentnode.core.registry import DATASETS
from decentnode.datasets.base import LoadedDataset
from decentnode.datasets.cifar10_batches import DEFECTS, walk
from decentnode.datasets.leaf import Arrays, Leaf, User, check_labels, dataset_of
from decentnode.errors import DatasetError
from decentnode.options import Positive

CHARACTERS = "dhlptx@DHLPTX $(,048cgkoswCGKOSW[_#'/37;?bfjnrvzBFJNRVZ\"&*.26:\naeimquyAEIMQUY]!%)-159\r{{}}<>"
"""Ids are places in it. As in decentralizepy, 2 of its 92 characters are there twice; the last counts."""
LENGTH = 80
WORDS = 10
PADDING, UNKNOWN_WORD = 0, 1
TEXT = 4
"""The field of a tweet with its text."""
WORD = re.compile(r"[\w']+|[.,!?;]")
UNKNOWN = 255


def _ids_of_bytes() -> bytes:
    ids = bytearray([UNKNOWN]) * 256
    for place, character in enumerate(CHARACTERS):
        ids[ord(character)] = place
    return bytes(ids)


IDS = _ids_of_bytes()


class _Texts(User):
    x: list[str]
    y: list[str]


@DATASETS.register("shakespeare")
@dataclass(kw_only=True)
class Shakespeare(Leaf):
    """The next character after 80 of a play, out of 92 (Caldas et al., 2018, LEAF, Shakespeare).

    A sample has one label. Ids are those of decentralizepy (Dhasade et al., 2023). Roles are the groups of
    partition `natural`.
    """

    task: ClassVar[str] = "next_token"
    user: ClassVar[type[User]] = _Texts
    name: ClassVar[str] = "shakespeare"

    def read(self, seed: int) -> LoadedDataset:
        return dataset_of(self.parts(), len(CHARACTERS))

    def arrays(self, user: _Texts) -> Arrays:
        inputs = character_ids("x", user.x, LENGTH)
        return inputs, character_ids("y", user.y, 1)[:, 0].astype(np.int64)


def character_ids(name: str, texts: list[str], length: int) -> NDArray[np.uint8]:
    """Ids of texts of one length, shape (texts, length); raises ValueError with the first that is wrong."""
    if set(map(len, texts)) - {length}:
        row = next(row for row, text in enumerate(texts) if len(text) != length)
        raise ValueError(f"{name}[{row}] has {len(texts[row])} characters; it must have {length}")
    together = "".join(texts)
    try:
        ids = np.frombuffer(together.encode("latin-1").translate(IDS), dtype=np.uint8)
        wrong = np.flatnonzero(ids == UNKNOWN)[:1].tolist()
    except UnicodeEncodeError as error:
        wrong = [error.start]
    if wrong:
        row, character = wrong[0] // length, together[wrong[0]]
        raise ValueError(
            f"{name}[{row}] has {character!r}, which is none of the {len(CHARACTERS)} characters"
        )
    return ids.reshape(-1, length)


class _Comment(msgspec.Struct):
    target_tokens: list[list[str]]


class _Comments(User):
    x: list[list[list[str]]]
    y: list[_Comment]


@DATASETS.register("reddit")
@dataclass(kw_only=True)
class Reddit(Leaf):
    """The next word after 10 words of a comment (Caldas et al., 2018, LEAF, Reddit).

    As in decentralizepy, a sample is a line of `x`, and its one label is the last word of the line of
    `target_tokens` that is no padding; lines of padding alone are left out. Users are the groups of
    partition `natural`.
    """

    vocabulary_path: str | None = None
    """LEAF's reddit_vocab.pck, which is read and not unpickled; null: in `vocab`, two levels above the
    training files."""

    task: ClassVar[str] = "next_token"
    user: ClassVar[type[User]] = _Comments
    name: ClassVar[str] = "reddit"
    places: ClassVar[tuple[str, ...]] = (*Leaf.places, "vocabulary_path")

    def read(self, seed: int) -> LoadedDataset:
        # The vocabulary first, because the files are long.
        words = 1 + max(self._words.values())
        # build_vocab.py of LEAF reads the training texts.
        return replace(dataset_of(self.parts(), words), fitted=("the vocabulary",))

    @cached_property
    def _words(self) -> dict[str, int]:
        if self.vocabulary_path is not None:
            return read_vocabulary(Path(self.vocabulary_path))
        train = self.directories()["train"].absolute()
        return read_vocabulary(train.parents[1] / "vocab" / "reddit_vocab.pck")

    def arrays(self, user: _Comments) -> Arrays:
        lines = list(chain.from_iterable(user.x))
        targets = list(chain.from_iterable(comment.target_tokens for comment in user.y))
        if len(lines) != len(targets):
            raise ValueError(f"{len(targets)} lines of target_tokens for {len(lines)} lines of x")
        inputs, labels = (self._ids(name, of) for name, of in (("x", lines), ("target_tokens", targets)))
        counts = labels != PADDING
        # The first from the end.
        last = WORDS - 1 - counts[:, ::-1].argmax(1)
        kept = counts.any(1)
        return inputs[kept], labels[np.arange(len(labels)), last][kept].astype(np.int64)

    def _ids(self, name: str, lines: list[list[str]]) -> NDArray[np.int32]:
        for row, words in enumerate(lines):
            if len(words) != WORDS:
                raise ValueError(f"line {row} of {name} has {len(words)} words; it must have {WORDS}")
        ids = [self._words.get(word, UNKNOWN_WORD) for word in chain.from_iterable(lines)]
        return np.array(ids, dtype=np.int32).reshape(-1, WORDS)


def read_vocabulary(file: Path) -> dict[str, int]:
    """The id of each word in a file of LEAF's build_vocab.py; raises DatasetError."""
    key = "dataset.vocabulary_path"
    try:
        embeddings = walk(file.read_bytes())
        words = msgspec.convert(embeddings["vocab"], type=dict[str, int])
        if (embeddings["pad_symbol"], embeddings["unk_symbol"]) != (PADDING, UNKNOWN_WORD):
            raise ValueError(f"padding must have the id {PADDING}, unknown words {UNKNOWN_WORD}")
        if not words or min(words.values()) < 0 or max(words.values()) >= 2**31:
            raise ValueError("its ids are none of 0..2147483647")
    except OSError as error:
        raise DatasetError.at(key, f"{file}: {error.strerror}") from error
    except (ValueError, msgspec.ValidationError, *DEFECTS) as error:
        raise DatasetError.at(
            key, f"{file}: no vocabulary of LEAF ({type(error).__name__}: {error})"
        ) from error
    return words


class _Tweets(User):
    x: list[list[str]]
    y: list[int]


@DATASETS.register("sent140", "sentiment140")
@dataclass(kw_only=True)
class Sent140(Leaf):
    """The mood of tweets, 1 where it is good (Go et al., 2009; Caldas et al., 2018, LEAF, Sent140).

    Ids are those of the first `length` words, split as in LEAF; id 0 fills up. LEAF looks words up in a file
    of GloVe. Here words are hashed (Weinberger et al., 2009, "Feature hashing"), which needs no file. Users
    are the groups of partition `natural`.
    """

    length: Positive = 25
    """Words of a sample; 25 is LEAF's."""
    buckets: Positive = 10_000
    """Ids of words are 1..buckets."""

    user: ClassVar[type[User]] = _Tweets
    name: ClassVar[str] = "sent140"

    def read(self, seed: int) -> LoadedDataset:
        return dataset_of(self.parts(), 2)

    def arrays(self, user: _Tweets) -> Arrays:
        ids = np.zeros((len(user.x), self.length), dtype=np.int32)
        for row, fields in enumerate(user.x):
            if len(fields) <= TEXT:
                raise ValueError(f"x[{row}] has {len(fields)} fields; the text is field {TEXT + 1}")
            words = WORD.findall(fields[TEXT].lower())[: self.length]
            ids[row, : len(words)] = [1 + hashed(word) % self.buckets for word in words]
        labels = np.array(user.y, dtype=np.int64)
        # The source of the tweets has 4 for a good mood, LEAF has 1.
        return ids, check_labels(np.where(labels == 4, 1, labels), 2)


@lru_cache(maxsize=1 << 20)
def hashed(word: str) -> int:
    """A number of `word` that all machines agree on."""
    return zlib.crc32(word.encode())
