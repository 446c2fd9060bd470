"""WMT 2014 (Bojar et al., 2014): from the archives of its corpora to aligned texts, a vocabulary and ids.

The corpora, their order, and the lines to validate with are those of Decentralized-Training-Exp (Wang et al.,
ICLR 2025), which follows Gehring et al., 2017. Texts stay as they are, apart from blanks: BLEU has a
tokenization of its own, and byte pairs need none.
"""

import gzip
import html
import os
import re
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any, cast

import numpy as np

from decentnode.cli.download import made
from decentnode.core.atomic_files import write_durably
from decentnode.core.text import counted
from decentnode.datasets import byte_pairs
from decentnode.datasets.base import Source
from decentnode.datasets.download import name_of_file
from decentnode.datasets.parallel import TOKENIZER, Parallel
from decentnode.datasets.prepared_files import TextFile, prepared
from decentnode.errors import BadInput
from decentnode.interop.preparation.parts import Preparation, PreparedFiles, WorkPart
from decentnode.interop.preparation.raw_files import (
    blocks,
    check_sums,
    files_in,
    found,
    joined,
    missing,
    opened_tar,
)

ADDRESS = "https://www.statmt.org"
LINES = 100_000
"""Lines that a part makes."""
PARTS = ("train", "valid", "test")
INVISIBLE = dict.fromkeys([*range(0x20), *range(0x7F, 0xA0)], " ") | dict.fromkeys(
    [0xAD, *range(0x200B, 0x2010), *range(0x202A, 0x202F), *range(0x2060, 0x2065), 0xFEFF]
)
"""Control characters, which become blanks, and those of the format, such as soft hyphens, which vanish."""
IDS = "ids-"
SEGMENT = re.compile(rb"<seg[^>]*>(.*?)</seg>", re.IGNORECASE)


@dataclass(frozen=True)
class RawTexts:
    """A corpus: its archive, and the texts of two languages in it."""

    source: Source
    files: str
    """Their path in the archive, without the suffix of the language."""
    packed: str = ""
    """The suffix of packed texts."""


EUROPARL = Source(
    f"{ADDRESS}/wmt13/training-parallel-europarl-v7.tgz", 657_632_379,
    "sha256:0224c7c710c8a063dfd893b0cc0830202d61f4c75c17eb8e31836103d27d96e7",
)  # fmt: skip
CRAWL = Source(
    f"{ADDRESS}/wmt13/training-parallel-commoncrawl.tgz", 918_311_367,
    "sha256:c7a74e2ea01ac6c920123108627e35278d4ccb5701e15428ffa34de86fa3a9e5",
)  # fmt: skip
NEWS = Source(
    f"{ADDRESS}/wmt14/training-parallel-nc-v9.tgz", 80_418_416,
    "sha256:cb8953f292298e6877ae433c98912b927cb0766b303f4540512ddd286c748485",
)  # fmt: skip
UNITED_NATIONS = Source(
    f"{ADDRESS}/wmt13/training-parallel-un.tgz", 2_365_634_246,
    "sha256:29141b5c1eba149a94f7a59d3b1a834b2e47fe0f8758d68dcd77a3d3f497ee47",
)  # fmt: skip
GIGA = Source(
    f"{ADDRESS}/wmt10/training-giga-fren.tar", 2_595_102_720,
    "sha256:3ff8319f6919393520559bfbc7ad6a747ec81b3abc7be9993b338d4b017b4d9a",
)  # fmt: skip
TEST = Source(f"{ADDRESS}/wmt14/test-full.tgz", 0, "md5:a8cd784e006feb32ac6f3d9ec7eb389a")


@dataclass(frozen=True)
class Pair:
    """English and another language."""

    texts: Sequence[RawTexts]
    test: str
    """The languages in the names of the test files, newstest2014."""
    every: int
    """Every such line of the corpora is one to validate with."""
    vocabulary: int
    """That of the configurations."""
    experiment: str
    """One of these."""


PAIRS = {
    "de": Pair(
        (
            RawTexts(EUROPARL, "training/europarl-v7.de-en"),
            RawTexts(CRAWL, "commoncrawl.de-en"),
            RawTexts(NEWS, "training/news-commentary-v9.de-en"),
        ),
        test="deen",
        every=100,
        vocabulary=37_120,
        experiment="transformer_wmt14_all_reduce",
    ),
    "fr": Pair(
        (
            RawTexts(EUROPARL, "training/europarl-v7.fr-en"),
            RawTexts(CRAWL, "commoncrawl.fr-en"),
            RawTexts(UNITED_NATIONS, "un/undoc.2000.fr-en"),
            RawTexts(NEWS, "training/news-commentary-v9.fr-en"),
            RawTexts(GIGA, "giga-fren.release2.fixed", packed=".gz"),
        ),
        test="fren",
        every=1333,
        vocabulary=32_000,
        experiment="transformer_big_wmt14_all_reduce",
    ),
}
"""By the other language."""


def _pair_of(dataset: Parallel) -> Pair:
    """The corpora of a dataset's languages; raises BadInput."""
    languages = {dataset.source, dataset.target}
    other = next(iter(languages - {"en"}), "")
    if "en" not in languages or other not in PAIRS:
        given = f"{dataset.source} and {dataset.target}"
        raise BadInput(f"wmt14: source and target are {given}; en and one of {', '.join(PAIRS)} are known")
    return PAIRS[other]


def prepare(preparation: Preparation, options: Sequence[str]) -> PreparedFiles:
    """Makes aligned texts, the vocabulary of both languages, and the ids."""
    folder = preparation.folder
    dataset = replace(cast(Parallel, made("parallel", options)), path=folder)
    pair = _pair_of(dataset)
    if not any(option.startswith("vocabulary=") for option in options):
        dataset = replace(dataset, vocabulary=pair.vocabulary)
    for other in PAIRS.keys() - {dataset.source, dataset.target}:
        if (folder / f"train.{other}").exists():
            raise BadInput(f"{folder}/train.{other}: is there; each pair of languages needs its own folder")
    languages = (dataset.source, dataset.target)
    texts = [folder / f"{part}.{language}" for part in PARTS for language in languages]
    if not all(text.is_file() for text in texts):
        _make_texts(preparation, pair, languages, texts)
    counts = dict[str, int]()
    for part in PARTS[1:]:
        counts |= _make_ids(preparation, replace(dataset, valid=part))
    for work in preparation.work.glob(f"{IDS}*"):
        shutil.rmtree(work)
    lines = [f"{part}: {counted(count, 'pair')}" for part, count in counts.items()]
    return PreparedFiles(
        "parallel",
        {"source": dataset.source, "target": dataset.target, "vocabulary": str(dataset.vocabulary)},
        pair.experiment,
        [*lines, "test is newstest2014: valid: test measures BLEU with it"],
    )


def _make_texts(preparation: Preparation, pair: Pair, languages: tuple[str, str], texts: list[Path]) -> None:
    """Makes the texts to train, validate and test with from the corpora; raises BadInput."""
    pieces = preparation.work / "pieces"
    raw = _unpack(preparation, pair, languages)
    pieces.mkdir(exist_ok=True)
    parts, number = list[WorkPart](), 0
    for corpus in pair.texts:
        source, target = (TextFile.at(raw[f"{corpus.files}.{language}"]) for language in languages)
        if source.lines != target.lines:
            raise BadInput(
                f"{source.path} has {source.lines} lines, {target.path} has {target.lines}; fetch them again"
            )
        for sides in zip(source.pieces(LINES), target.pieces(LINES), strict=True):
            stem = pieces / f"{len(parts):05}"
            clean = partial(_clean, sides, stem, languages, pair.every, number + sides[0].first)
            digest = (source.digest + target.digest).hex()
            parts.append(WorkPart(f"{digest} {stem.name}", clean, sides[0].lines))
        number += source.lines
    preparation.make("corpora", parts, "pair", pieces / "made")
    joins = []
    for text in (text for text in texts if not text.is_file()):
        part, language = text.name.split(".")
        if part == "test":
            kind = "src" if language == languages[0] else "ref"
            sgm = raw[f"test-full/newstest2014-{pair.test}-{kind}.{language}.sgm"]
            joins.append(WorkPart(str(text), partial(_write_test, sgm, text)))
        else:
            files = [pieces / f"{number:05}.{part}.{language}" for number in range(len(parts))]
            joins.append(WorkPart(str(text), partial(_join, files, text)))
    preparation.make("texts", joins, "file")
    shutil.rmtree(pieces)
    shutil.rmtree(preparation.work / "raw", ignore_errors=True)


def _unpack(preparation: Preparation, pair: Pair, languages: tuple[str, str]) -> dict[str, Path]:
    """The raw texts by their names in the archives, which are unpacked where needed; raises BadInput."""
    folder, unpacked = preparation.folder, preparation.work / "raw"
    names = dict[Source, dict[str, str]]()
    for corpus in pair.texts:
        for language in languages:
            name = f"{corpus.files}.{language}"
            names.setdefault(corpus.source, {})[f"{name}{corpus.packed}"] = name
    for kind, language in zip(("src", "ref"), languages, strict=True):
        name = f"test-full/newstest2014-{pair.test}-{kind}.{language}.sgm"
        names.setdefault(TEST, {})[name] = name
    raw, archives = dict[str, Path](), dict[Source, dict[str, Path]]()
    for source, members in names.items():
        for member, name in members.items():
            raw[name] = next((r / name for r in (folder, unpacked) if (r / name).is_file()), unpacked / name)
            if not raw[name].is_file():
                if found(folder, source) is None:
                    raise missing(folder, source, str(folder / name))
                archives.setdefault(source, {})[member] = raw[name]
    check_sums(preparation, list(archives))
    parts = [
        WorkPart(name_of_file(source), partial(_unpack_texts, folder / name_of_file(source), members))
        for source, members in archives.items()
    ]
    preparation.make("unpacked", parts, "archive")
    return raw


def _unpack_texts(archive: Path, members: dict[str, Path]) -> None:
    left = dict(members)
    with opened_tar(archive) as tar:
        for _, member in files_in(tar):
            target = left.pop(member.name.removeprefix("./"), None)
            if target is not None:
                content: Any = tar.extractfile(member)
                target.parent.mkdir(parents=True, exist_ok=True)
                with gzip.GzipFile(fileobj=content) if member.name.endswith(".gz") else content as opened:
                    write_durably(target, blocks(opened))
            if not left:
                return
    raise BadInput(f"{archive}: has no {', '.join(left)}; fetch it again")


def _clean(
    sides: tuple[TextFile, TextFile], stem: Path, languages: tuple[str, str], every: int, number: int
) -> None:
    """Writes the pairs of a piece to train and to validate with.

    `number` is that of its first pair in all corpora.
    """
    texts: dict[str, tuple[list[str], list[str]]] = {"train": ([], []), "valid": ([], [])}
    for at, pair in enumerate(zip(*(side.texts() for side in sides), strict=True), number):
        source, target = map(cleaned, pair)
        if source and target:
            for column, text in zip(texts["train" if at % every else "valid"], (source, target), strict=True):
                column.append(f"{text}\n")
    for part, columns in texts.items():
        for language, lines in zip(languages, columns, strict=True):
            write_durably(stem.with_suffix(f".{part}.{language}"), ["".join(lines).encode()])


def cleaned(text: str) -> str:
    """The text with single blanks for all others and for control characters, without invisible characters."""
    return " ".join(text.translate(INVISIBLE).split())


def _join(files: Sequence[Path], text: Path) -> None:
    write_durably(text, joined(files))


def _write_test(sgm: Path, text: Path) -> None:
    """Writes the segments of a test file, one in each line; raises BadInput."""
    segments = SEGMENT.findall(sgm.read_bytes())
    if not segments:
        raise BadInput(f"{sgm}: has no <seg>; fetch it again")
    lines = (cleaned(html.unescape(segment.decode("utf-8", "replace"))) for segment in segments)
    write_durably(text, ["".join(f"{line}\n" for line in lines).encode()])


def _make_ids(preparation: Preparation, dataset: Parallel) -> dict[str, int]:
    """Makes the vocabulary and the ids of the texts, where the data set reads them.

    Returns the number of pairs to train with, and to test with.
    """
    pairs = dataset.file_pairs()
    source, target = pairs[0][:2]
    folder = dataset.cache / dataset.cache_name(pairs)
    if not folder.is_dir():
        work = preparation.work / f"{IDS}{dataset.cache_name(pairs[:1])}"
        work.mkdir(exist_ok=True)
        tokenizer, stem = work / TOKENIZER, work / "train"
        train = partial(dataset.trained_tokenizer, tokenizer, source, target, threads=True)
        preparation.make(
            "vocabulary", [] if tokenizer.is_file() else [WorkPart(str(tokenizer), train)], "file"
        )
        sides = [*zip(source.pieces(LINES), target.pieces(LINES), strict=True)]
        stems = [work / f"{number:05}" for number in range(len(sides))]
        parts = [
            WorkPart(stem.name, partial(_write_piece, dataset, tokenizer, side, stem), side[0].lines)
            for stem, side in zip(stems, sides, strict=True)
        ]
        preparation.make("ids", parts, "pair", work / "made")
        join = WorkPart(str(stem), partial(_join_ids, dataset, stems, stem, source))
        preparation.make("ids joined", [join], "file", work / "joined")
        prepared(dataset.cache, folder.name, partial(_fill, dataset, work, pairs[1]))
    names = {dataset.train: "train.npy", dataset.valid: "test.npy"}
    return {part: len(np.load(folder / name, mmap_mode="r")) for part, name in names.items()}


@cache
def _tokenizer(file: Path) -> Any:
    return byte_pairs.loaded(file.read_text("utf-8"))


def _write_piece(dataset: Parallel, tokenizer: Path, sides: tuple[TextFile, TextFile], stem: Path) -> None:
    rows = dataset.write_ids(stem, _tokenizer(tokenizer), *sides)
    rows[:, 2] += sides[0].first - 1
    with stem.with_suffix(".npy").open("wb") as file:
        np.save(file, rows)
        file.flush()
        os.fsync(file.fileno())


def _join_ids(dataset: Parallel, stems: Sequence[Path], stem: Path, source_file: TextFile) -> None:
    write_durably(stem.with_suffix(".ids"), joined([stem.with_suffix(".ids") for stem in stems]))
    rows = np.concatenate([np.load(stem.with_suffix(".npy")) for stem in stems])
    dataset.write_rows(stem, rows, source_file)
    for piece in stems:
        for suffix in (".ids", ".npy"):
            piece.with_suffix(suffix).unlink()


def _fill(dataset: Parallel, work: Path, test_files: Sequence[TextFile], folder: Path) -> None:
    """Fills a folder as the data set would."""
    for name in (TOKENIZER, "train.ids", "train.npy"):
        # The ids to train with belong to two folders, one for each text to test with.
        try:
            os.link(work / name, folder / name)
        except OSError:
            write_durably(folder / name, joined([work / name]))
    tokenizer = byte_pairs.loaded((work / TOKENIZER).read_text("utf-8"))
    rows = dataset.write_ids(folder / "test", tokenizer, *test_files[:2])
    dataset.write_rows(folder / "test", rows, test_files[0])
