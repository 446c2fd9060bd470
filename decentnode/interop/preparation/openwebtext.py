"""OpenWebText (Gokaslan and Cohen, 2019): from its archives to the token files of nanoGPT (Karpathy, 2022).

Documents, their order and cleaning, and those to test with are as nanoGPT gets them from the library
`datasets`, so val.bin is the same. train.bin has the same documents, in the order of the archive.
"""

import re
import shutil
from collections.abc import Iterator, Sequence
from functools import cache, partial
from math import ceil
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from decentnode.cli.download import made
from decentnode.core.atomic_files import write_durably
from decentnode.core.text import counted
from decentnode.datasets import byte_pairs
from decentnode.datasets.base import Source
from decentnode.datasets.download import name_of_file
from decentnode.datasets.prepared_files import in_groups
from decentnode.datasets.text import TOKENS
from decentnode.errors import BadInput
from decentnode.interop.preparation.parts import Preparation, PreparedFiles, WorkPart
from decentnode.interop.preparation.raw_files import blocks, check_sums, files_in, found, missing, opened_tar

ARCHIVE = Source(
    "https://zenodo.org/records/3834942/files/openwebtext.tar.xz", 12_880_189_440,
    "sha256:9fe39d154c5bc67da8c359415372b79510eb1e2edb0d035fe4f7fc3a732b9336",
)  # fmt: skip
MERGES = Source(
    "https://openaipublic.blob.core.windows.net/gpt-2/encodings/main/vocab.bpe", 456_318,
    "sha256:1ce1664773c50f3e0cc8842619a93edc4624525b728b188a9e0be33b7726adc5",
)  # fmt: skip
SUBSETS = "urlsf_subset*_data.xz"
FOLDER = "openwebtext"
"""The folder in the archives."""
TEST_SHARE, SEED = 0.0005, 2357
"""How nanoGPT divides the documents."""
DOCUMENTS = 1000
"""Documents that are tokenized at a time."""


def prepare(preparation: Preparation, options: Sequence[str]) -> PreparedFiles:
    """Makes train.bin and val.bin."""
    made("tokens", options)  # these options change no file, but must be right
    folder, work = preparation.folder, preparation.work
    files = [folder / "train.bin", folder / "val.bin"]
    if not all(file.is_file() for file in files):
        if found(folder, MERGES) is None:
            raise missing(folder, MERGES)
        raw = _raw(preparation)
        pieces = work / "tokens"
        pieces.mkdir(exist_ok=True)
        parts = []
        for number, file in enumerate(raw):
            status = file.stat()
            make = partial(_tokenize, folder / name_of_file(MERGES), file, pieces / f"{number:05}")
            parts.append(WorkPart(f"{number} {file.name} {status.st_size} {status.st_mtime_ns}", make))
        preparation.make("tokens", parts, "file", pieces / "made")
        stems = [pieces / f"{number:05}" for number in range(len(raw))]
        joins = [WorkPart(str(file), partial(_join, stems, file)) for file in files if not file.is_file()]
        preparation.make("joined", joins, "file")
        shutil.rmtree(pieces)
        shutil.rmtree(work / FOLDER, ignore_errors=True)
    size = TOKENS[16].itemsize
    lines = [f"{file.name}: {counted(file.stat().st_size // size, 'token')}" for file in files]
    return PreparedFiles("tokens", {}, "gpt2_all_reduce", lines)


def _raw(preparation: Preparation) -> list[Path]:
    """The files with documents, in their order; raises BadInput."""
    folder, unpacked = preparation.folder, preparation.work / FOLDER
    if tables := sorted((folder / "plain_text").glob("*.parquet")):
        check_sums(preparation, [MERGES])
        return tables
    if subsets := sorted((folder / FOLDER).glob(SUBSETS)):
        check_sums(preparation, [MERGES])
        return subsets
    archives = sorted((folder / "subsets").glob("urlsf_subset*.tar")) or [folder / name_of_file(ARCHIVE)]
    if not archives[0].is_file():
        raise missing(folder, ARCHIVE, f"{folder / FOLDER / SUBSETS}, and {folder}/plain_text/*.parquet")
    check_sums(preparation, [MERGES, ARCHIVE])
    unpacked.mkdir(exist_ok=True)
    parts = []
    for archive in archives:
        status = archive.stat()
        name = f"{archive.name} {status.st_size} {status.st_mtime_ns}"
        parts.append(WorkPart(name, partial(_unpack, archive, unpacked)))
    preparation.make("unpacked", parts, "archive", unpacked / "made")
    return sorted(unpacked.glob(SUBSETS))


def _unpack(archive: Path, folder: Path) -> None:
    count = 0
    with opened_tar(archive) as tar:
        for name, member in files_in(tar):
            if name.endswith("_data.xz"):
                count, file = count + 1, folder / name
                # What an interrupted call has unpacked.
                if not file.is_file() or file.stat().st_size != member.size:
                    content = tar.extractfile(member)
                    assert content is not None
                    write_durably(file, blocks(content))
    if not count:
        raise BadInput(f"{archive}: has no {SUBSETS}; fetch it again")


def _documents(file: Path) -> Iterator[str]:
    """The documents of a subset, which is an archive of texts, or of a table."""
    if file.suffix == ".parquet":
        yield from _rows(file)
        return
    with opened_tar(file) as tar:
        texts = {}
        for name, member in files_in(tar):
            if name.endswith(".txt"):
                content = tar.extractfile(member)
                assert content is not None
                texts[name] = content.read()
    for name in sorted(texts):
        try:
            text = texts[name].decode()
        except UnicodeDecodeError as error:
            raise BadInput(f"{file}: {name} is no UTF-8 text; fetch it again") from error
        yield re.sub("\n\n\n+", "\n\n", text.replace("\r\n", "\n").replace("\r", "\n")).strip()


def _rows(file: Path) -> Iterator[str]:
    try:
        from pyarrow import ArrowException, parquet
    except ModuleNotFoundError as error:
        raise BadInput(f"{file}: needs pyarrow; run: pip install 'decentnode[tasks]'") from error
    try:
        for batch in parquet.ParquetFile(file).iter_batches(DOCUMENTS, columns=["text"]):
            yield from batch.column(0).to_pylist()
    except (ArrowException, OSError) as error:
        raise BadInput(f"{file}: has no column of texts that can be read ({error})") from error


@cache
def _tokenizer(merges: Path) -> Any:
    try:
        return byte_pairs.of_gpt2(merges.read_text("utf-8"))
    except ValueError as error:
        raise BadInput(f"{merges}: {error}; fetch it again from {MERGES.url}") from error


def _tokenize(merges: Path, file: Path, stem: Path) -> None:
    """Writes the ids of a file's documents, and their numbers, each with the end of a text."""
    tokenizer = _tokenizer(merges)
    end, lengths = tokenizer.get_vocab_size(), list[int]()

    def pieces() -> Iterator[bytes]:
        for texts in in_groups(_documents(file), DOCUMENTS):
            for encoding in tokenizer.encode_batch(texts):
                lengths.append(len(encoding.ids) + 1)
                yield np.array([*encoding.ids, end], TOKENS[16]).tobytes()

    write_durably(stem.with_suffix(".bin"), pieces())
    write_durably(stem.with_suffix(".lengths"), [np.array(lengths, "<i8").tobytes()])


def tested(count: int) -> NDArray[np.int64]:
    """The numbers of the documents to test with, in their order in val.bin."""
    return np.random.default_rng(SEED).permutation(count)[: ceil(TEST_SHARE * count)]


def _join(stems: Sequence[Path], file: Path) -> None:
    """Writes the tokens of all documents to train with, or to test with."""
    lengths = [np.fromfile(stem.with_suffix(".lengths"), "<i8") for stem in stems]
    counts = [len(some) for some in lengths]
    chosen = tested(sum(counts))
    is_test = np.zeros(sum(counts), bool)
    is_test[chosen] = True
    is_train = file.name == "train.bin"
    texts = dict[int, bytes]()

    def pieces() -> Iterator[bytes]:
        first = 0
        for stem, count, some in zip(stems, counts, lengths, strict=True):
            tokens = np.fromfile(stem.with_suffix(".bin"), TOKENS[16])
            here = is_test[first : first + count]
            if is_train:
                yield tokens[np.repeat(~here, some)].tobytes()
            else:
                ends = some.cumsum()
                for number in np.flatnonzero(here).tolist():
                    texts[first + number] = tokens[ends[number] - some[number] : ends[number]].tobytes()
            first += count
        yield from (texts[number] for number in chosen.tolist() if not is_train)

    write_durably(file, pieces())
