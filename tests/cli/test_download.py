"""`decentnode download` against a server on this machine that cuts connections and sends other files."""

import gzip
import hashlib
import io
import re
import tarfile
import zipfile
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import numpy as np
import pytest
from typer.testing import CliRunner

from decentnode.cli.app import app
from decentnode.core.registry import DATASETS
from decentnode.datasets import Cifar10, Idx, MovieLens, download, samples
from decentnode.datasets.base import Dataset, Source
from decentnode.errors import DatasetError, ExitCode

RUNNER = CliRunner()


class Server(ThreadingHTTPServer):
    """Has `files` by path; `cuts`: after how many bytes each of the next answers ends."""

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Answer)
        self.files, self.cuts, self.asked, self.ranges = {}, [], [], True

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_address[1]}"


class Answer(BaseHTTPRequestHandler):
    def do_GET(self):
        server, content = self.server, self.server.files.get(self.path)
        server.asked.append((self.path, self.headers.get("Range")))
        if content is None:
            self.send_error(404)
            return
        first = int(re.match(r"bytes=(\d+)-", self.headers.get("Range") or "bytes=0-")[1])
        first = first if server.ranges else 0
        if first >= len(content):
            self.send_error(416)
            return
        self.send_response(206 if first else 200)
        if first:
            self.send_header("Content-Range", f"bytes {first}-{len(content) - 1}/{len(content)}")
        self.send_header("Content-Length", str(len(content) - first))
        self.end_headers()
        cut = server.cuts.pop(0) if server.cuts else len(content)
        self.wfile.write(content[first : first + cut])

    def log_message(self, *words):
        pass


@pytest.fixture
def server(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DECENTNODE_DATASETS", raising=False)
    monkeypatch.setattr(download, "PAUSE", 0)
    with Server() as made:
        thread = Thread(target=made.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield made
        made.shutdown()
        thread.join(10)


def md5(content):
    return f"md5:{hashlib.md5(content).hexdigest()}"


def archive(server, monkeypatch, files=None):
    """CIFAR-10's archive at the server, made of a sample."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as tar:
        for name in files or (f"data_batch_{i}.bin" for i in range(1, 6)):
            add(tar, f"cifar-10-batches-bin/{name}")
        add(tar, "cifar-10-batches-bin/test_batch.bin")
    content = server.files["/c.tar.gz"] = packed.getvalue()
    source = Source(f"{server.url}/c.tar.gz", len(content), md5(content), unpack=True)
    monkeypatch.setattr(Cifar10, "sources", [source])
    return source, content


def add(tar, name):
    content = np.random.default_rng(1).integers(0, 10, 20 * 3073, dtype=np.uint8).tobytes()
    entry = tarfile.TarInfo(name)
    entry.size = len(content)
    tar.addfile(entry, io.BytesIO(content))


def call(*words):
    ended = RUNNER.invoke(app, ["download", *words])
    failure = ended.exception if isinstance(ended.exception, Exception) else None
    code = getattr(failure, "exit_code", ended.exit_code)
    return code, ended.output + (str(failure) if failure else "")


def test_a_cut_download_is_continued_and_the_dataset_finds_it(server, monkeypatch, tmp_path):
    source, content = archive(server, monkeypatch)
    # The first attempts of the first call end early, all four; the next call continues.
    third = len(content) // 8
    server.cuts = [third] * 4
    code, output = call("cifar10")
    assert code == ExitCode.FAILED and f"cut after {4 * third} of {len(content)} bytes, 4 times" in output
    assert f"curl -fL -C - --create-dirs -o data/c.tar.gz {source.url} && tar xzf" in output
    with pytest.raises(DatasetError, match="no complete set"):
        Cifar10().load(0)
    code, output = call("cifar10")
    assert (code, "cifar10: complete in data/cifar-10-batches-bin" in output) == (0, True), output
    assert [of for _, of in server.asked] == [None] + [f"bytes={n * third}-" for n in (1, 2, 3, 4)]
    assert len(Cifar10().load(0).train) == 100
    # Nothing is asked again, whether or not the archive is still there.
    assert call("cifar10")[0] == 0 and len(server.asked) == 5
    # Somebody deletes a batch: the archive is there, has the right checksum, and is unpacked again.
    (tmp_path / "data" / "cifar-10-batches-bin" / "data_batch_3.bin").unlink()
    assert call("cifar10")[0] == 0 and len(server.asked) == 5
    assert len(Cifar10().load(0).train) == 100
    assert not list(tmp_path.rglob("*.part")) and not list(tmp_path.rglob(".unpacking*"))


def test_a_file_with_another_checksum_is_not_taken(server, monkeypatch, tmp_path):
    source, content = archive(server, monkeypatch)
    server.files["/c.tar.gz"] = content[:-1] + b"x"
    code, output = call("cifar10", "--to", str(tmp_path / "sets"))
    assert code == ExitCode.FAILED and f"its checksum is not {source.checksum}" in output
    assert not (tmp_path / "sets" / "c.tar.gz").exists()
    # A part of another file, and one that is whole already; with and without a server that can continue.
    part = tmp_path / "sets" / "c.tar.gz.part"
    server.files["/c.tar.gz"] = content
    for old, ranges in ((b"other", True), (b"other", False), (b"x" * len(content), True), (content, True)):
        part.write_bytes(old)
        server.ranges = ranges
        assert call("cifar10", "--to", str(tmp_path / "sets"))[0] == 0
        assert (tmp_path / "sets" / "c.tar.gz").read_bytes() == content and not part.exists()
        (tmp_path / "sets" / "c.tar.gz").unlink()
        for file in (tmp_path / "sets" / "cifar-10-batches-bin").iterdir():
            file.unlink()
    code, output = call("cifar10", "--to", str(tmp_path / "sets"))
    assert f"use it as dataset: {{name: cifar10, path: {tmp_path}/sets/cifar-10-batches-bin}}" in output


def test_the_server_may_have_nothing_or_be_away(server, monkeypatch):
    source, _ = archive(server, monkeypatch)
    server.files.clear()
    code, output = call("cifar10")
    assert code == ExitCode.FAILED and f"{source.url}: the server answers 404 Not Found" in output
    assert len(server.asked) == 1
    server.shutdown()
    server.server_close()
    code, output = call("cifar10")
    assert code == ExitCode.FAILED and "Connection refused, 4 times" in output


def test_files_that_stay_packed_go_to_the_folder_of_their_variant(server, monkeypatch, tmp_path):
    (tmp_path / "made").mkdir()
    samples.idx(tmp_path / "made", "kmnist", "", "t10k", 10, 0)
    monkeypatch.setattr(samples, "IMAGES", 10)
    sources = []
    for file in (tmp_path / "made").iterdir():
        server.files[f"/{file.name}"] = content = file.read_bytes()
        sources.append(Source(f"{server.url}/{file.name}", len(content), md5(content), "kmnist"))
    monkeypatch.setattr(Idx, "sources", sources)
    code, output = call("kmnist")
    assert code == 0 and "use it as dataset: {name: idx, variant: kmnist}" in output
    assert len(Idx(variant="kmnist").load(0).test) == samples.TEST_IMAGES
    damaged = next((tmp_path / "data" / "kmnist").iterdir())
    damaged.write_bytes(b"damaged")
    assert call("idx", "variant=kmnist")[0] == 0 and len(server.asked) == 5
    assert server.asked[-1][0] == f"/{damaged.name}"


def test_the_ratings_that_decentralizepy_fetches_are_unpacked_and_read(server, monkeypatch, tmp_path):
    """ml-latest-small.zip has one folder with `ratings.csv` and others, and a readme with the terms."""
    samples.movielens(tmp_path / "ratings.csv")
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.write(tmp_path / "ratings.csv", "ml-latest-small/ratings.csv")
        archive.writestr("ml-latest-small/movies.csv", "movieId,title,genres\n1,Toy Story (1995),Comedy\n")
        archive.writestr("ml-latest-small/README.txt", "Summary")
    content = server.files["/ml-latest-small.zip"] = packed.getvalue()
    checksum = f"sha256:{hashlib.sha256(content).hexdigest()}"
    source = Source(f"{server.url}/ml-latest-small.zip", len(content), checksum, unpack=True)
    monkeypatch.setattr(MovieLens, "sources", [source])
    server.cuts = [len(content) // 2]
    code, output = call("movielens")
    assert (code, "movielens: complete in data/ml-latest-small" in output) == (0, True), output
    assert len(server.asked) == 2 and "licence: for research" in output
    dataset = MovieLens().load(0)
    rows = (tmp_path / "ratings.csv").read_text().count("\n") - 1
    assert len(dataset.train) + len(dataset.test) == rows


@pytest.mark.parametrize(
    ("cls", "file"), [(Cifar10, "cifar-10-python.tar.gz"), (MovieLens, "ml-latest-small.zip")]
)
def test_what_decentralizepy_fetches_has_its_address_and_checksum(cls, file):
    """Its `download_dataset.py` fetches CIFAR-10, and its `MovieLens.py` the small set of ratings."""
    (source,) = cls().sources
    assert source.url.endswith(f"/{file}") and source.unpack
    kind, _, checksum = source.checksum.partition(":")
    assert len(checksum) == 2 * hashlib.new(kind).digest_size and source.size > 900_000


def test_nothing_is_unpacked_outside_the_folder(tmp_path):
    folder = tmp_path / "folder"
    folder.mkdir()
    with zipfile.ZipFile(tmp_path / "out.zip", "w") as packed:
        packed.writestr("../outside", "x")
    with tarfile.open(tmp_path / "out.tar.gz", "w:gz") as tar:
        add(tar, "../outside")
    with tarfile.open(tmp_path / "link.tar", "w") as tar:
        link = tarfile.TarInfo("link")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        tar.addfile(link)
    (tmp_path / "cut.txt.gz").write_bytes(gzip.compress(b"text" * 99)[:-9])
    for name in ("out.zip", "out.tar.gz", "link.tar", "cut.txt.gz"):
        with pytest.raises(download.DownloadFailed, match=f"{name}: cannot be unpacked: "):
            download.unpack(tmp_path / name, folder)
    assert not list(folder.iterdir()) and not (tmp_path / "outside").exists()
    (tmp_path / "good.txt.gz").write_bytes(gzip.compress(b"text"))
    download.unpack(tmp_path / "good.txt.gz", folder)
    assert (folder / "good.txt").read_bytes() == b"text"


def test_what_takes_steps_of_ones_own_is_reported(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    code, output = call("femnist", "--to", "my sets")
    assert (
        code == ExitCode.FAILED and "git clone https://github.com/TalwalkarLab/leaf 'my sets'/leaf" in output
    )
    samples.femnist(tmp_path / "my sets" / "femnist" / "data")
    code, output = call("femnist", "--to", "my sets")
    assert code == 0 and "femnist: complete in my sets/femnist/data" in output
    assert call("digits") == (0, "digits: needs no files\n")
    code, output = call("cifr10")
    assert code == ExitCode.BAD_INPUT and "did you mean 'cifar10'?" in output
    for name, cls in DATASETS.classes().items():
        if cls.__module__.startswith("decentnode.") and cls.reads_files:
            dataset = cls(sample=True)
            assert dataset.sources or dataset.steps != Dataset.steps.fget(dataset), name
            assert dataset.licence or not dataset.sources, name
