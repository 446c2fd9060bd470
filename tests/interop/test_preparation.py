"""`decentnode prepare` on small files in the formats of ImageNet, WMT14 and OpenWebText."""

import gzip
import hashlib
import io
import os
import signal
import sys
import tarfile
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from scipy.io import savemat
from typer.testing import CliRunner

from decentnode.cli.app import app
from decentnode.datasets import ImageFolder, Parallel, byte_pairs
from decentnode.datasets.base import Source
from decentnode.datasets.text import Tokens
from decentnode.errors import BadInput, ExitCode
from decentnode.interop.preparation import imagenet, openwebtext, raw_files, wmt14
from decentnode.interop.preparation.parts import WORK, PartFailed, Preparation, WorkPart

RUNNER = CliRunner()
CLASSES = {"n01440764": (250, 10, 10), "n01443537": (10, 250, 10), "n01484850": (10, 10, 250)}
TEST_CLASSES = [2, 0, 1, 2, 0]
"""The class of each test image, by its number."""


def call(*words):
    ended = RUNNER.invoke(app, ["prepare", *map(str, words)])
    failure = ended.exception if isinstance(ended.exception, Exception) else None
    code = getattr(failure, "exit_code", ended.exit_code)
    return code, ended.output + (str(failure) if failure else "")


def forbidden(*_):
    raise AssertionError("what is made is not made again")


def packed(files, mode="w"):
    """A tar archive of contents by names, with the folders that archives have."""
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode=mode) as tar:
        for name, value in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(value)
            tar.addfile(entry, io.BytesIO(value))
        folder = tarfile.TarInfo("folder")
        folder.type = tarfile.DIRTYPE
        tar.addfile(folder)
    return content.getvalue()


def jpeg(color, size):
    content = io.BytesIO()
    Image.new("RGB", size, color).save(content, "JPEG")
    return content.getvalue()


def write_imagenet(folder, each=3):
    """The three files of ILSVRC 2012, with three classes."""
    folder.mkdir()
    classes = {
        f"{name}.tar": packed({f"{name}_{n}.JPEG": jpeg(color, (30 + n, 24)) for n in range(each)})
        for name, color in CLASSES.items()
    }
    (folder / "ILSVRC2012_img_train.tar").write_bytes(packed(classes))
    colors = list(CLASSES.values())
    images = {f"ILSVRC2012_val_{n:08}.JPEG": jpeg(colors[c], (24, 32)) for n, c in enumerate(TEST_CLASSES, 1)}
    (folder / "ILSVRC2012_img_val.tar").write_bytes(packed(dict(reversed(images.items()))))
    # Numbers of the devkit are not in the order of the names, and it has higher synsets, too.
    rows = [
        (number, name, "words", "gloss", 0, 0, 0, 0) for number, name in ((3, "n01440764"), (1, "n01443537"))
    ]
    rows += [(2, "n01484850", "words", "gloss", 0, 0, 0, 0), (4, "n00001740", "entity", "gloss", 3, 0, 0, 0)]
    fields = ("ILSVRC2012_ID", "WNID", "words", "gloss", "num_children", "children", "height", "images")
    meta = io.BytesIO()
    savemat(meta, {"synsets": np.array(rows, dtype=[(field, object) for field in fields])[:, None]})
    labels = "".join(f"{(3, 1, 2)[number]}\n" for number in TEST_CLASSES)
    files = {"meta.mat": meta.getvalue(), "ILSVRC2012_validation_ground_truth.txt": labels.encode()}
    inside = {f"ILSVRC2012_devkit_t12/data/{name}": content for name, content in files.items()}
    (folder / "ILSVRC2012_devkit_t12.tar.gz").write_bytes(packed(inside, "w:gz"))
    return folder


def test_imagenet_becomes_class_folders_and_decoded_images(tmp_path, monkeypatch):
    folder, cache = write_imagenet(tmp_path / "imagenet"), tmp_path / "cache"
    monkeypatch.setattr(imagenet, "BLOCK", 2)
    words = ("imagenet", folder, "size=8", f"cache_path={cache}", "--processes", 2, "--unchecked")
    code, output = call(*words)
    assert code == 0, output
    assert "train: 9 images of 3 classes" in output and "val: 5 images of 3 classes" in output
    use = f"{{name: image_folder, path: {folder}, size: 8, cache_path: {cache}}}"
    assert f"use it as dataset: {use}, as in experiments/decent_dp/resnet50_imagenet_all_reduce" in output
    assert sorted(path.name for path in (folder / "train").iterdir()) == sorted(CLASSES)
    make = partial(ImageFolder, path=str(folder), size=8)
    decoded = make(cache_path=str(tmp_path / "other")).load(0)
    with monkeypatch.context() as patched:
        patched.setattr(ImageFolder, "square", None)  # nothing is decoded again, by the data set or here
        loaded = make(cache_path=str(cache)).load(0)
        for archive in folder.glob("*.tar*"):
            archive.unlink()
        assert call(*words)[0] == 0
    assert sorted(path.suffix for path in cache.iterdir()) == [".u8", ".u8"]
    for part in ("train", "test"):
        ours, theirs = getattr(loaded, part), getattr(decoded, part)
        assert torch.equal(ours.inputs, theirs.inputs) and torch.equal(ours.labels, theirs.labels)
        # Each class has the color of its number.
        assert torch.equal(ours.inputs.float().mean((2, 3)).argmax(1), ours.labels)
    assert sorted(loaded.test.labels.tolist()) == sorted(TEST_CLASSES)


@pytest.mark.slow
def test_what_was_decoded_is_not_decoded_again(tmp_path, monkeypatch):
    folder, cache = write_imagenet(tmp_path / "imagenet"), tmp_path / "cache"
    monkeypatch.setattr(imagenet, "BLOCK", 2)
    words = ("imagenet", folder, "size=8", f"cache_path={cache}", "--unchecked", "--processes", 1)
    square, seen, problem = ImageFolder.square, tmp_path / "seen", [None]

    def watched(self, source, name):
        with seen.open("a") as lines:
            lines.write(f"{name}\n")
        if len(seen.read_text().splitlines()) == 5 and problem[0]:
            problem[0]()
        return square(self, source, name)

    def full():
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(ImageFolder, "square", watched)
    problem[0] = full
    code, output = call(*words)
    assert code == ExitCode.FAILED and "images from 4 on: No space left on device" in output
    assert not list(cache.glob("*.u8")), "what is not whole has another name"
    problem[0] = lambda: os.kill(os.getpid(), signal.SIGKILL)
    seen.unlink()
    code, output = call(*words)
    assert code == ExitCode.FAILED
    assert "images from 8 on: its process was killed by signal 9; run the command again" in output
    problem[0] = None
    seen.unlink()
    assert call(*words)[0] == 0
    assert len(seen.read_text().splitlines()) == 1 + len(TEST_CLASSES), "the last image, and the tests"
    loaded = ImageFolder(path=str(folder), size=8, cache_path=str(cache)).load(0)
    assert torch.equal(loaded.train.inputs.float().mean((2, 3)).argmax(1), loaded.train.labels)


@pytest.mark.slow
def test_raw_files_are_compared_with_published_sums_once(tmp_path, monkeypatch):
    folder = write_imagenet(tmp_path / "imagenet")
    words = ("imagenet", folder, "size=8", f"cache_path={tmp_path / 'cache'}")
    code, output = call(*words)
    assert code == ExitCode.BAD_INPUT and not (folder / "train").exists()
    assert "its checksum is not md5:" in output and "fetch it again, or add --unchecked" in output
    for name in ("TRAIN", "VALIDATION", "LABELS"):
        source = getattr(imagenet, name)
        content = (folder / source.url.rpartition("/")[2]).read_bytes()
        right = replace(source, checksum=f"md5:{hashlib.md5(content).hexdigest()}")
        monkeypatch.setattr(imagenet, name, right)
    assert call(*words)[0] == 0
    monkeypatch.setattr(raw_files, "is_right", None)
    assert call(*words)[0] == 0
    (folder / "val").rename(tmp_path / "val")
    assert call(*words)[0] == 0, "unpacked again, and not compared again"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ("imagnet", "{folder}"),
            "prepare: unknown data set 'imagnet'; did you mean 'imagenet'? (known",
        ),
        (("imagenet", "{folder}/nowhere"), "nowhere: no such folder; put the raw files of imagenet into it"),
        (("imagenet", "{folder}", "path=x"), "prepare: path is no option here; files get their names"),
        (
            ("imagenet", "{folder}"),
            "{folder}/ILSVRC2012_img_train.tar: missing, and so is {folder}/train/CLASS/*.JPEG; fetch it "
            "(148 GB, for research, with an account of image-net.org) from https://image-net.org/data/",
        ),
        (("wmt14", "{folder}", "target=cs"), "wmt14: source and target are en and cs; en and one of de, fr"),
        (
            ("wmt14", "{folder}"),
            "{folder}/training-parallel-europarl-v7.tgz: missing, and so is "
            "{folder}/training/europarl-v7.de-en.en; fetch it (658 MB) from https://www.statmt.org/wmt13/",
        ),
        (("openwebtext", "{folder}"), "{folder}/vocab.bpe: missing; fetch it (456 kB) from https://openai"),
    ],
)
def test_what_is_wrong_is_said_in_a_line(tmp_path, words, message):
    code, output = call(*(word.format(folder=tmp_path) for word in words))
    assert code == ExitCode.BAD_INPUT and message.format(folder=tmp_path) in output, output


def test_a_folder_has_one_preparation_at_a_time(tmp_path):
    with (
        Preparation(tmp_path).locked(),
        pytest.raises(BadInput, match="another process prepares it"),
        Preparation(tmp_path).locked(),
    ):
        pass
    with pytest.raises(PartFailed, match="first: its process ended with exit code 1; run the command again"):
        Preparation(tmp_path, 1).make("step", [WorkPart("first", partial(int, "x"))], "part")


ENGLISH = [
    "The cat sat.",
    "A dog\u00a0 ran\x93 off",
    "",
    "so\u00adft",
    "one & two",
    "the cat",
    "a dog",
    "it is",
]
GERMAN = [
    "Die Katze saß.",
    "Ein Hund\tlief",
    "ohne Quelle",
    "weich",
    "eins & zwei",
    "die Katze",
    "ein Hund",
    "es",
]


def lines(texts):
    return "".join(f"{text}\n" for text in texts).encode()


def segments(texts, kind):
    inside = "\n".join(f'<seg id="{n}">{text.replace("&", "&amp;")}</seg>' for n, text in enumerate(texts, 1))
    return f'<{kind}set setid="newstest2014"><doc>\n<p>\n{inside}\n</p>\n</doc></{kind}set>\n'.encode()


def write_wmt14(folder, other, pair):
    """The archives of the corpora, each with the same lines, and of the test set."""
    folder.mkdir()
    for corpus in pair.texts:
        texts = {"en": lines(ENGLISH), other: lines(GERMAN)}
        files = {
            f"{corpus.files}.{language}{corpus.packed}": gzip.compress(text) if corpus.packed else text
            for language, text in texts.items()
        }
        name = corpus.source.url.rpartition("/")[2]
        content = packed({**files, "training/europarl-v7.cs-en.cs": b"x\n"}, "w:gz" if "tgz" in name else "w")
        (folder / name).write_bytes(content)
    test = {
        f"test-full/newstest2014-{pair.test}-src.en.sgm": segments(ENGLISH[:2] + ENGLISH[4:], "src"),
        f"test-full/newstest2014-{pair.test}-ref.{other}.sgm": segments(GERMAN[:2] + GERMAN[4:], "ref"),
    }
    (folder / "test-full.tgz").write_bytes(packed(test, "w:gz"))
    return folder


@pytest.mark.parametrize("other", ["de", "fr"])
def test_wmt14_becomes_texts_and_ids_as_the_data_set_makes_them(tmp_path, monkeypatch, other):
    pair = replace(wmt14.PAIRS[other], every=5)
    monkeypatch.setitem(wmt14.PAIRS, other, pair)
    monkeypatch.setattr(wmt14, "LINES", 3)
    folder = write_wmt14(tmp_path / "wmt14", other, pair)
    words = ("wmt14", folder, f"target={other}", "vocabulary=300", "--unchecked", "--processes", 2)
    code, output = call(*words)
    assert code == 0, output
    count = len(pair.texts) * len(ENGLISH)
    # Every fifth line of all corpora; the third of each has no translation.
    numbers = [n for n in range(1, count + 1) if (n - 1) % len(ENGLISH) != 2]
    valid = [n for n in numbers if n % 5 == 0]
    assert f"train: {len(numbers) - len(valid)} pairs" in output and f"valid: {len(valid)} pairs" in output
    assert f"test: {len(ENGLISH) - 2} pairs" in output and "valid: test measures BLEU" in output
    clean = ["The cat sat.", "A dog ran off", "", "soft", *ENGLISH[4:]]
    assert (folder / "valid.en").read_text().splitlines() == [clean[(n - 1) % len(clean)] for n in valid]
    assert (folder / f"test.{other}").read_text().splitlines() == [
        "Die Katze saß.", "Ein Hund lief", *GERMAN[4:]
    ]  # fmt: skip
    for part in ("valid", "test"):
        make = partial(Parallel, path=folder, target=other, vocabulary=300, valid=part)
        theirs = make(cache_path=tmp_path / "other").load(0)
        with monkeypatch.context() as patched:
            patched.setitem(sys.modules, "tokenizers", None)  # nothing is made again
            ours = make().load(0)
        for one, two in ((ours.train, theirs.train), (ours.test, theirs.test)):
            assert torch.equal(one.inputs.values, two.inputs.values) and len(one) == len(two)
    names = [{file.name for file in path.iterdir()} for path in (folder / "decentnode-cache").iterdir()]
    assert names == [{"tokenizer.json", "train.ids", "train.npy", "test.ids", "test.npy"}] * 2
    made = {path: path.stat().st_mtime_ns for path in folder.rglob("*.ids")}
    for archive in folder.glob("*.t*"):
        archive.unlink() if archive.suffix in (".tgz", ".tar") else None
    assert call(*words)[0] == 0, "all is there"
    assert made == {path: path.stat().st_mtime_ns for path in folder.rglob("*.ids")}
    code, output = call("wmt14", folder, f"target={'fr' if other == 'de' else 'de'}")
    assert code == ExitCode.BAD_INPUT and "each pair of languages needs its own folder" in output


@pytest.mark.slow
def test_an_interrupted_translation_corpus_goes_on(tmp_path, monkeypatch):
    pair = replace(wmt14.PAIRS["de"], every=5)
    monkeypatch.setitem(wmt14.PAIRS, "de", pair)
    monkeypatch.setattr(wmt14, "LINES", 3)
    folder = write_wmt14(tmp_path / "wmt14", "de", pair)
    words = ("wmt14", folder, "vocabulary=300", "--unchecked", "--processes", 1)
    whole, seen = tmp_path / "whole", tmp_path / "seen"
    write_wmt14(whole, "de", pair)
    assert call("wmt14", whole, *words[2:])[0] == 0
    for step, broken in (("_clean", 4), ("_write_piece", 5), ("_join_ids", 0)):
        original = getattr(wmt14, step)

        def failing(*arguments, original=original, broken=broken):
            seen.open("a").write("x")
            if seen.stat().st_size > broken:
                raise OSError(28, "No space left on device")
            original(*arguments)

        monkeypatch.setattr(wmt14, step, failing)
        code, output = call(*words)
        assert code == ExitCode.FAILED and "No space left on device" in output
        assert seen.stat().st_size == broken + 1
        seen.unlink()
        monkeypatch.setattr(wmt14, step, original)
        if step == "_clean":
            assert not (folder / "train.en").exists()
            monkeypatch.setattr(wmt14, "_unpack_texts", forbidden)  # once is enough
    monkeypatch.setattr(wmt14, "_clean", forbidden)
    monkeypatch.setattr(wmt14, "_write_piece", forbidden)
    assert call(*words)[0] == 0
    for path in whole.rglob("*"):
        if path.suffix in (".en", ".de", ".ids", ".npy", ".json"):
            assert (folder / path.relative_to(whole)).read_bytes() == path.read_bytes(), path


DOCUMENTS = [
    "The cat\n\n\n\nsat.\n", "", "It was the best", "ünï \U0001f408", "the\r\ncat", " the end <|endoftext|>"
]  # fmt: skip
CLEAN = [
    "The cat\n\nsat.",
    "",
    "It was the best",
    "ünï \U0001f408",
    "the\ncat",
    "the end <|endoftext|>",
]


def merges():
    """A small vocab.bpe, as the library writes it."""
    import tokenizers

    tokenizer = byte_pairs.trained(iter([*CLEAN] * 3), 300)
    made = tokenizers.Tokenizer.from_str(tokenizer.to_str()).model
    (folder := Path(os.environ["PYTEST_FOLDER"])).mkdir(exist_ok=True)
    made.save(str(folder))
    return (folder / "merges.txt").read_bytes()


def write_openwebtext(folder, repeats=4):
    """openwebtext.tar.xz: an archive of packed archives of texts, whose names are not in order."""
    subsets = {}
    for number in range(repeats):
        texts = {f"{n:07}-abc.txt": text.encode() for n, text in enumerate(DOCUMENTS)}
        subsets[f"openwebtext/urlsf_subset{number:02}-1_data.xz"] = packed(
            dict(reversed(texts.items())), "w:xz"
        )
    (folder / "openwebtext.tar.xz").write_bytes(packed(dict(reversed(subsets.items())), "w:xz"))


def test_gpt2_has_bytes_and_then_merges():
    tokenizer = byte_pairs.of_gpt2("#version: 0.2\nh e\nl l\nhe ll\nhell o\n")
    # As in GPT-2, ! is the first byte and a blank the 221st.
    assert tokenizer.encode("hello hello!").ids == [259, 220, 259, 0]
    assert tokenizer.get_vocab_size() == 260
    with pytest.raises(ValueError, match="two in each line"):
        byte_pairs.of_gpt2("<html>no such file</html>")


def test_openwebtext_becomes_the_files_of_nanogpt(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTEST_FOLDER", str(tmp_path / "merges"))
    monkeypatch.setattr(openwebtext, "TEST_SHARE", 0.2)
    folder, tables = tmp_path / "openwebtext", tmp_path / "tables"
    for place in (folder, tables / "plain_text"):
        place.mkdir(parents=True)
    (folder / "vocab.bpe").write_bytes(merges())
    write_openwebtext(folder)
    words = ("--unchecked", "--processes", 2)
    code, output = call("openwebtext", folder, *words)
    assert code == 0, output
    tokenizer = byte_pairs.of_gpt2((folder / "vocab.bpe").read_text())
    end = tokenizer.get_vocab_size()
    ids = [[*tokenizer.encode(text).ids, end] for text in CLEAN] * 4
    # train_test_split of the library `datasets`: the first of a permutation, rounded up.
    chosen = np.random.default_rng(2357).permutation(24)[:5].tolist()
    train = [id for number, some in enumerate(ids) if number not in chosen for id in some]
    assert np.fromfile(folder / "train.bin", "<u2").tolist() == train
    assert np.fromfile(folder / "val.bin", "<u2").tolist() == [id for n in chosen for id in ids[n]]
    assert f"train.bin: {len(train)} tokens" in output and f"path: {folder}}}, as in" in output
    assert len(Tokens(path=folder, length=4).load(0).train) == (len(train) - 1) // 4
    assert {path.name for path in (folder / WORK).iterdir()} == {"lock"}
    before = (folder / "train.bin").stat().st_mtime_ns
    (folder / "openwebtext.tar.xz").unlink()
    assert call("openwebtext", folder, *words)[0] == 0
    assert (folder / "train.bin").stat().st_mtime_ns == before
    # The tables of a hub have the same documents.
    parquet = pytest.importorskip("pyarrow.parquet")
    import pyarrow

    (tables / "vocab.bpe").write_bytes((folder / "vocab.bpe").read_bytes())
    for number in range(2):
        table = pyarrow.table({"text": CLEAN * 2})
        parquet.write_table(table, tables / "plain_text" / f"train-{number:05}-of-00002.parquet")
    assert call("openwebtext", tables, *words)[0] == 0
    for name in ("train.bin", "val.bin"):
        assert (tables / name).read_bytes() == (folder / name).read_bytes()


@pytest.mark.slow
def test_interrupted_tokens_go_on_and_a_cut_archive_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTEST_FOLDER", str(tmp_path / "merges"))
    monkeypatch.setattr(openwebtext, "TEST_SHARE", 0.2)
    (tmp_path / "vocab.bpe").write_bytes(merges())
    write_openwebtext(tmp_path)
    archive = tmp_path / "openwebtext.tar.xz"
    words = ("openwebtext", tmp_path, "--unchecked", "--processes", 1)
    content = archive.read_bytes()
    archive.write_bytes(content[: len(content) // 2])
    code, output = call(*words)
    assert code == ExitCode.BAD_INPUT and f"{archive}: is no whole archive (" in output
    archive.write_bytes(content)
    documents, seen = openwebtext._documents, tmp_path / "seen"

    def failing(file):
        seen.open("a").write("x")
        if seen.stat().st_size == 3:
            raise OSError(28, "No space left on device")
        return documents(file)

    monkeypatch.setattr(openwebtext, "_documents", failing)
    code, output = call(*words)
    assert code == ExitCode.FAILED and "No space left on device" in output
    assert not (tmp_path / "train.bin").exists()
    monkeypatch.setattr(openwebtext, "_unpack", forbidden)
    assert call(*words)[0] == 0
    assert seen.stat().st_size == 5, "four files, one of them twice"


def test_sums_and_sizes_of_sources_are_written_out():
    sources = [value for module in (imagenet, openwebtext, wmt14) for value in vars(module).values()]
    sources = [source for source in sources if isinstance(source, Source)]
    assert len(sources) == 11
    for source in sources:
        kind, _, digest = source.checksum.partition(":")
        assert len(digest) == 2 * hashlib.new(kind).digest_size and source.url.startswith("https://")
