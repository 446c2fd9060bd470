"""Byte-pair encoding of text by the library `tokenizers`, an extra (Sennrich et al., 2016)."""

import os
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any

import msgspec

from decentnode.datasets.ragged import Vocabulary
from decentnode.errors import DatasetError

PADDING, BEGIN, END = range(3)
"""Ids that are no text. Those of the library come after them."""
MARKS = 3
LEAST = MARKS + 256
"""Every byte has an id, so every text does."""
KEPT = (range(33, 127), range(161, 173), range(174, 256))
"""Bytes that the library writes as the character of that number."""


def trained(lines: Iterator[str], size: int, threads: bool = False) -> Any:
    """A tokenizer with a vocabulary of `size` ids, of which it has all but the marks; raises DatasetError.

    `threads`: whether the library may start threads, after which this process must not fork.
    """
    tokenizers = _library(threads)
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    byte_level = tokenizers.pre_tokenizers.ByteLevel
    tokenizer.pre_tokenizer = byte_level(add_prefix_space=False)
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=size - MARKS, initial_alphabet=byte_level.alphabet(), show_progress=False
    )
    tokenizer.train_from_iterator(lines, trainer)
    return tokenizer


def of_gpt2(merges: str) -> Any:
    """The tokenizer of GPT-2 (Radford et al., 2019) from the lines of its vocab.bpe; raises ValueError.

    Its ids are the bytes, the merges in their order, and last the end of a text, which no text gets.
    """
    tokenizers = _library()
    pairs = [line.split(" ") for line in merges.splitlines() if line and not line.startswith("#version")]
    if not pairs or any(len(pair) != 2 for pair in pairs):
        raise ValueError("no merges of byte pairs, two in each line")
    byte_of = _bytes_of_characters()
    pieces = [*byte_of, *map("".join, pairs)]
    tokenizer = tokenizers.Tokenizer(
        tokenizers.models.BPE(
            vocab={piece: id for id, piece in enumerate(pieces)}, merges=[(a, b) for a, b in pairs]
        )
    )
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    return tokenizer


def encoded(tokenizer: Any, lines: Sequence[str]) -> list[list[int]]:
    """The ids of each line."""
    return [[MARKS + id for id in encoding.ids] for encoding in tokenizer.encode_batch(lines)]


def vocabulary_of(content: bytes, size: int) -> Vocabulary:
    """The text of `size` ids of a tokenizer, from its JSON, without the library; raises ValueError."""
    try:
        ids: dict[str, int] = msgspec.json.decode(content)["model"]["vocab"]
        byte_of = _bytes_of_characters()
        known = sorted(ids, key=ids.__getitem__)
        pieces = [bytes(byte_of[character] for character in piece) for piece in known]
    except (KeyError, TypeError, msgspec.DecodeError) as error:
        raise ValueError(f"no tokenizer ({type(error).__name__}: {error})") from error
    marks, unused = (b"",) * MARKS, (b"",) * (size - MARKS - len(pieces))
    return Vocabulary((*marks, *pieces, *unused), END)


def _bytes_of_characters() -> dict[str, int]:
    """The library writes each byte as one visible character (Radford et al., 2019, GPT-2)."""
    kept = list(chain(*KEPT))
    others = [byte for byte in range(256) if byte not in kept]
    return {chr(byte): byte for byte in kept} | {chr(256 + n): byte for n, byte in enumerate(others)}


def loaded(content: str) -> Any:
    """The tokenizer from its JSON; raises DatasetError without the library."""
    return _library().Tokenizer.from_str(content)


def _library(threads: bool = False) -> Any:
    # Its threads would not survive the fork of the nodes; it reads this at each call.
    os.environ["TOKENIZERS_PARALLELISM"] = "true" if threads else "false"
    try:
        import tokenizers
    except ModuleNotFoundError as error:
        raise DatasetError.at(
            "dataset", "parallel needs tokenizers; run: pip install 'decentnode[tasks]'"
        ) from error
    return tokenizers
