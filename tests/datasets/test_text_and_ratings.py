"""Text, tokens and ratings in their published formats, and files that are not."""

from functools import partial

import numpy as np
import pytest
import torch

from decentnode.datasets import Amazon, MovieLens, Text, Tokens
from decentnode.datasets.leaf import read_file
from decentnode.datasets.prepared_files import TextFile
from decentnode.errors import DatasetError

BOOK = "# One\nabcabcabcabcabcabc\n# Two\nbcabcabcabca\n"
HEAD = "userId,movieId,rating,timestamp\n"


def message_of(dataset):
    with pytest.raises(DatasetError) as caught:
        dataset.load(0)
    return str(caught.value)


def test_pieces_of_a_text_predict_the_next_character_and_stay_in_their_document(tmp_path):
    path = tmp_path / "book.txt"
    path.write_text(BOOK + "é", encoding="utf-8")
    loaded = Text(path=path, length=4, document="^#", test_fraction=0.25).load(0)
    characters = sorted(set(BOOK + "é"))
    assert loaded.num_classes == len(characters)

    def words(samples):
        x, y = samples.batch(torch.arange(len(samples)))
        rows = zip(x.tolist(), y.tolist(), strict=True)
        return [tuple("".join(characters[i] for i in row) for row in pair) for pair in rows]

    # Of the 6 and 4 pieces of the documents a quarter, rounded, is for testing.
    assert words(loaded.train) == [
        ("# On", " One"), ("e\nab", "\nabc"), ("cabc", "abca"), ("abca", "bcab"),
        ("# Tw", " Two"), ("o\nbc", "\nbca"), ("abca", "bcab"),
    ]  # fmt: skip
    assert words(loaded.test) == [("bcab", "cabc"), ("cabc", "abc\n"), ("bcab", "cabc")]
    assert (loaded.train.groups.tolist(), loaded.test.groups.tolist()) == ([0] * 4 + [1] * 3, [0, 0, 1])


def test_tokens_are_mapped_and_above_32767_right(tmp_path):
    tokens = np.random.default_rng(1).integers(0, 65536, 1000).astype("<u2")
    tokens.tofile(tmp_path / "train.bin")
    tokens[:50].tofile(tmp_path / "val.bin")
    loaded = Tokens(path=tmp_path, length=9, vocabulary=65536).load(0)
    x, y = loaded.train.batch(torch.tensor([3, 0]))
    assert (x.tolist(), y.tolist()) == (
        [tokens[27:36].tolist(), tokens[:9].tolist()], [tokens[28:37].tolist(), tokens[1:10].tolist()],
    )  # fmt: skip
    # Views of the file: nothing was copied.
    assert loaded.train.inputs.untyped_storage().nbytes() == tokens.nbytes


def test_tokens_of_32_bits_are_read_as_such_or_refused(tmp_path):
    ids = np.random.default_rng(1).integers(0, 100_000, 400)
    for name in ("train", "val"):
        ids.astype("<u4").tofile(tmp_path / f"{name}.bin")
    make = partial(Tokens, path=tmp_path, length=16)
    loaded = make(vocabulary=100_000).load(0)
    assert loaded.train.batch(torch.arange(3)).fields[0].flatten().tolist() == ids[:48].tolist()
    assert loaded.train.batch(torch.arange(1)).labels.tolist() == [ids[1:17].tolist()]
    with pytest.raises(
        DatasetError, match=r"^dataset.bits: ids of 16 bits are below 65536, not below 100000"
    ):
        make(vocabulary=100_000, bits=16)
    small = ids % 30_000
    for name in ("train", "val"):
        small.astype("<u4").tofile(tmp_path / f"{name}.bin")
    expected = (
        f"dataset.bits: {tmp_path}/train.bin: every second number is 0, so its ids have 32 bits; set bits: 32"
    )
    assert message_of(make(vocabulary=30_000)) == expected
    assert make(vocabulary=30_000, bits=32).load(0).train.inputs[0].tolist() == small[:16].tolist()
    for name in ("train", "val"):
        (1 + small).astype("<u2").tofile(tmp_path / f"{name}.bin")
    assert message_of(make(vocabulary=30_000, bits=32)) == (
        f"dataset.bits: {tmp_path}/train.bin: no number of 32 bits is below the vocabulary; "
        "its ids have 16 bits"
    )


def test_a_byte_order_mark_is_no_part_of_a_text_or_a_column(tmp_path):
    """Programs for Windows write one at the start of a file."""
    mark = b"\xef\xbb\xbf"
    (tmp_path / "book.txt").write_bytes(mark + b"abcabcabcabc" * 3)
    assert Text(path=tmp_path / "book.txt", length=4).load(0).num_classes == 3
    (tmp_path / "ratings.csv").write_bytes(mark + (HEAD + "1,1,4.0,1\n1,2,3.0,1\n2,1,5.0,1\n").encode())
    assert len(MovieLens(path=str(tmp_path), test_fraction=0.4).load(0).train) == 2
    for part in ("train", "test"):
        (tmp_path / part).mkdir()
        (tmp_path / part / "a.csv").write_bytes(mark + b"data_path,label_name\nfine,5\n")
        (tmp_path / part / "._a.csv").write_bytes(b"\0\5\26\7")
    assert Amazon(path=str(tmp_path)).load(0).train.labels.tolist() == [4]
    (tmp_path / "lines.de").write_bytes(mark + b"eins\nzwei\n")
    assert list(TextFile.at(tmp_path / "lines.de").texts()) == ["eins", "zwei"]
    (tmp_path / "users.json").write_bytes(
        mark + b'{"users": ["u"], "user_data": {"u": {}}, "num_samples": [0]}'
    )
    assert [user for user, _ in read_file(tmp_path / "users.json")] == ["u"]


def test_ratings_are_split_within_each_user(tmp_path):
    rows = [(user, 7 * film, (user + film) % 10 / 2 + 0.5) for user in (1, 4, 9) for film in range(1, 11)]
    (tmp_path / "ratings.csv").write_text(HEAD + "".join(f"{u},{f},{r},0\n" for u, f, r in rows))
    loaded = MovieLens(path=str(tmp_path)).load(0)
    assert [len(loaded.train), len(loaded.test)] == [21, 9]
    for part, each in ((loaded.train, 7), (loaded.test, 3)):
        assert part.groups.bincount().tolist() == [each] * 3
        assert torch.equal(part.inputs[:, 0].long(), part.groups)
    rating_of = {
        (user, film): rating
        for part in (loaded.train, loaded.test)
        for (user, film), rating in zip(part.inputs.tolist(), part.labels.tolist(), strict=True)
    }
    assert rating_of == {((1, 4, 9).index(u), f // 7 - 1): r for u, f, r in rows}
    assert not torch.equal(loaded.test.inputs, MovieLens(path=str(tmp_path)).load(1).test.inputs)


def write(path, content):
    path.write_bytes(content)
    return path


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"ab\xff", "dataset: {path}: is no UTF-8 text: invalid start byte at byte 2"),
        (b"abc", "dataset: {path}: 3 characters are too few for pieces of 80, with 0.1 of them for testing"),
    ],
)
def test_a_file_that_is_no_such_text_is_refused(tmp_path, content, message):
    path = write(tmp_path / "book.txt", content)
    assert message_of(Text(path=path)) == message.format(path=path)


def test_other_mistakes_with_text_are_one_line(tmp_path):
    path = write(tmp_path / "book.txt", b"abc" * 100)
    no_match = f"dataset.document: no line of {path} matches '^Chapter'"
    assert message_of(Text(path=path, document="^Chapter")) == no_match
    assert (
        message_of(Text(path=tmp_path / "x")) == f"dataset.path: {tmp_path / 'x'}: No such file or directory"
    )
    with pytest.raises(DatasetError, match=r"^dataset.document: is no regular expression: "):
        Text(path=path, document="(")
    with pytest.raises(DatasetError, match=r"^dataset.test_fraction: must be between 0 and 1, not 1$"):
        Text(path=path, test_fraction=1.0)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"abc", "dataset.path: {file}: 3 bytes are no tokens of 2 bytes; it is cut off or empty"),
        (b"", "dataset.path: {file}: 0 bytes are no tokens of 2 bytes; it is cut off or empty"),
        (b"ab" * 4, "dataset.length: 4: {file} has only 4 tokens"),
    ],
)
def test_a_file_that_is_no_tokens_is_refused(tmp_path, content, message):
    file = write(tmp_path / "train.bin", content)
    assert message_of(Tokens(path=tmp_path, length=4)) == message.format(file=file)


def test_a_token_outside_the_vocabulary_is_refused(tmp_path):
    for name in ("train.bin", "val.bin"):
        np.array([1, 2, 3, 9, 1, 2, 3], dtype="<u2").tofile(tmp_path / name)
    message = message_of(Tokens(path=tmp_path, length=2, vocabulary=9))
    assert message.splitlines()[0] == "dataset: the training label of sample 1 is 9; it must be one of 0..8"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("userId,rating\n1,2\n", "{file}:1: has no column movieId; it is no ratings.csv of MovieLens"),
        (
            HEAD + "1,2,3.5,0\n1,x,3,0\n",
            "{file}:3: is no rating: invalid literal for int() with base 10: 'x'",
        ),
        (HEAD + "1,2\n", "{file}:2: is no rating: could not convert string to float: ''"),
        (HEAD, "{file}: has no rating"),
    ],
)
def test_a_file_that_is_no_ratings_is_refused(tmp_path, content, message):
    file = write(tmp_path / "ratings.csv", content.encode())
    assert message_of(MovieLens(path=str(tmp_path))) == f"dataset.path: {message.format(file=file)}"
