"""Two aligned text files become ids once for a machine; files that do not belong together are refused."""

import os
import sys

import numpy as np
import pytest
import torch

from decentnode.datasets import Parallel, byte_pairs, samples
from decentnode.datasets.base import IGNORED
from decentnode.datasets.prepared_files import MAKING, prepared
from decentnode.errors import DatasetError

ENGLISH = ["The cat sat.", "", "two\tspaces  here", "naïve <pad> \u2028 🐈", "the cat sat on the cat"]
GERMAN = ["Die Katze saß.", "ohne Quelle", "zwei", "naiv <s>", "die Katze saß auf der Katze"]


def write(folder, source=ENGLISH, target=GERMAN, ending="\n"):
    for part in ("train", "valid"):
        for suffix, lines in (("en", source), ("de", target), ("document", list("abcab"))):
            (folder / f"{part}.{suffix}").write_bytes(ending.join([*lines, ""]).encode())
    return folder


def texts(rows, vocabulary, fill):
    every = [rows.index_select(0, torch.tensor([row]))[0].tolist() for row in range(len(rows))]
    return [vocabulary.text([id for id in row if id != fill]) for row in every]


@pytest.mark.parametrize("ending", ["\n", "\r\n"])
def test_sentences_become_ids_and_text_again(tmp_path, ending):
    write(tmp_path, ending=ending)
    options = {"path": tmp_path, "vocabulary": 300, "documents": "document"}
    loaded = Parallel(**options).load(0)
    assert (loaded.num_classes, loaded.shape) == (300, (156,))
    kept = [0, 2, 3, 4]
    for part in (loaded.train, loaded.test):
        assert texts(part.inputs, part.vocabulary, 0) == [ENGLISH[i] for i in kept]
        assert texts(part.labels, part.vocabulary, IGNORED) == [GERMAN[i] for i in kept]
        assert part.groups.tolist() == [0, 2, 0, 1]
        (source, target), labels = part.batch(torch.tensor([1])).fields, part.batch(torch.tensor([1])).labels
        assert (source[0, -1], target[0, 0], labels[0, -1]) == (2, 1, 2)
        assert torch.equal(target[:, 1:], labels[:, :-1]) and target.min() > 0
    # One storage, which is the mapped file.
    train = loaded.train
    assert len({rows.values.data_ptr() for rows in (train.inputs, train.labels, *train.more)}) == 1
    short = Parallel(**options, length=3).load(0).train
    assert [short.inputs.shape, short.labels.shape] == [(4, 3), (4, 3)]
    first, whole = (part.batch(torch.tensor([0])) for part in (short, train))
    assert first.fields[0].tolist() == whole.fields[0][:, :3].tolist()
    assert first.labels.tolist() == whole.labels[:, :3].tolist()
    assert Parallel(path=tmp_path, vocabulary=300, source="de", target="en").load(0).train.groups is None
    if ending == "\n":
        large = Parallel(path=tmp_path, vocabulary=70_000).load(0).train
        assert large.inputs.dtype == torch.int32
        assert texts(large.inputs, large.vocabulary, 0) == [ENGLISH[i] for i in kept]


def test_ids_are_made_once_for_each_content_and_never_half(tmp_path, monkeypatch):
    write(tmp_path)
    dataset = Parallel(path=tmp_path, vocabulary=300, cache_path=tmp_path / "cache")
    # A process that does not exist any more left this.
    left = tmp_path / "cache" / f"{MAKING}-{os.uname().nodename}-4194999"
    left.mkdir(parents=True)
    (left / "train.ids").write_bytes(b"half")

    def interrupted(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(byte_pairs, "encoded", interrupted)
        with pytest.raises(KeyboardInterrupt):
            dataset.load(0)
    assert list((tmp_path / "cache").iterdir()) == []
    first = dataset.load(0)
    (folder,) = (tmp_path / "cache").iterdir()
    with monkeypatch.context() as patched:
        # Nothing is made again, not even with the library.
        patched.setitem(sys.modules, "tokenizers", None)
        again = dataset.load(0)
        (tmp_path / "train.en").write_text("\n".join([*ENGLISH[:4], "another"]))
        with pytest.raises(DatasetError) as caught:
            dataset.load(0)
    assert torch.equal(again.train.inputs.flatten(), first.train.inputs.flatten())
    assert str(caught.value) == "dataset: parallel needs tokenizers; run: pip install 'decentnode[tasks]'"
    assert len(dataset.load(0).train) == 4 and len(list((tmp_path / "cache").iterdir())) == 2
    write(tmp_path)
    for file, why in (("train.ids", "train.npy does not fit train.ids"), ("tokenizer.json", "no tokenizer")):
        content = (folder / file).read_bytes()
        (folder / file).write_bytes(content[:-2])
        with pytest.raises(DatasetError) as caught:
            dataset.load(0)
        assert str(caught.value).startswith(f"dataset.cache_path: {folder}: is damaged ({why}")
        assert str(caught.value).endswith("; remove it")
        (folder / file).write_bytes(content)


def test_another_process_may_be_first(tmp_path):
    def make(own):
        (own / "x").write_text("ours")
        (tmp_path / "name").mkdir()
        (tmp_path / "name" / "x").write_text("theirs")

    folder = prepared(tmp_path, "name", make)
    assert (folder / "x").read_text() == "theirs" and list(tmp_path.iterdir()) == [folder]


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("train.en", b"", "dataset.path: {path}/train.en: is empty"),
        ("valid.de", None, "dataset.path: {path}/valid.de: No such file or directory"),
        ("train.de", b"eins\nzwei",
         "dataset.path: {path}/train.en has 5 lines, {path}/train.de has 2; each line of one must belong "
         "to that line of the other"),
        ("valid.document", b"a\n",
         "dataset.path: {path}/valid.en has 5 lines, {path}/valid.document has 1; each line of one must "
         "belong to that line of the other"),
        ("train.en", b"a\nb\nc\nd \xff\ne\n",
         "dataset.path: {path}/train.en:4: is no UTF-8 text: invalid start byte at byte 2 of the line"),
        ("train.de", b"\n \n\t\n\n\n", "dataset.path: {path}/train.en: has no sentence with a translation"),
    ],
)  # fmt: skip
def test_files_that_do_not_belong_together_are_refused(tmp_path, file, content, message):
    write(tmp_path)
    (tmp_path / file).unlink() if content is None else (tmp_path / file).write_bytes(content)
    with pytest.raises(DatasetError) as caught:
        Parallel(path=tmp_path, vocabulary=300, documents="document").load(0)
    assert str(caught.value) == message.format(path=tmp_path)


def test_other_mistakes_are_one_line(tmp_path):
    with pytest.raises(DatasetError, match=r"^dataset.vocabulary: must be at least 259, not 258$"):
        Parallel(path=tmp_path, vocabulary=258)
    write(tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(DatasetError) as caught:
        Parallel(path=tmp_path, vocabulary=300, cache_path=tmp_path / "file").load(0)
    place = f"dataset.cache_path: {tmp_path / 'file'}: "
    assert str(caught.value) == f"{place}File exists; name a directory that can be written"


def test_the_generated_sample_is_a_reversed_translation(tmp_path):
    samples.parallel(tmp_path, pairs=8)
    lines = [(tmp_path / f"train.{suffix}").read_text().splitlines() for suffix in ("en", "de", "document")]
    for english, german, _ in zip(*lines, strict=True):
        assert german.split() == [samples.DICTIONARY[word] for word in english.split()[::-1]]
    assert np.unique(lines[2]).tolist() == ["letter 0", "letter 1"]
