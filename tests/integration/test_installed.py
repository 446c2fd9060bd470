"""The package as somebody has it who installs it: no checkout, an empty folder."""

import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path, PurePosixPath

import pytest

from tests.support.pages import ROOT

pytest.importorskip("hatchling", reason="pip install 'decentnode[test]'")
FOLDERS = ("configs", "graphs", "eval/templates")
IN_WHEEL = PurePosixPath("decentnode/shipped")


def build(source: Path, out: Path) -> tuple[Path, Path]:
    """Builds wheel and source distribution as pip would, but in this environment."""
    words = ["-m", "hatchling", "build", "-d", str(out)]
    subprocess.run([sys.executable, *words], cwd=source, check=True, capture_output=True, timeout=100)
    return next(out.glob("*.whl")), next(out.glob("*.tar.gz"))


@pytest.fixture(scope="module")
def distributions(tmp_path_factory) -> tuple[Path, Path]:
    return build(ROOT, tmp_path_factory.mktemp("dist"))


def shipped_files() -> set[str]:
    """Paths of what is shipped, from the root of the checkout."""
    files = (path for folder in FOLDERS for path in (ROOT / folder).rglob("*") if path.is_file())
    return {str(path.relative_to(ROOT)) for path in files if "__pycache__" not in path.parts}


def test_wheel_and_source_distribution_have_what_is_shipped_and_make_the_same_wheel(distributions, tmp_path):
    wheel, source = distributions
    names = set(zipfile.ZipFile(wheel).namelist())
    shipped = {name for name in names if PurePosixPath(name).is_relative_to(IN_WHEEL)}
    assert {str(PurePosixPath(name).relative_to(IN_WHEEL)) for name in shipped} == shipped_files()
    assert not [name for name in names if name.startswith((*FOLDERS, "tests", "eval"))]
    with tarfile.open(source) as archive:
        archive.extractall(tmp_path, **({"filter": "data"} if hasattr(tarfile, "data_filter") else {}))
    (unpacked,) = tmp_path.iterdir()
    assert [name for name in shipped_files() if not (unpacked / name).is_file()] == []
    assert (unpacked / "eval" / "run.sh").is_file()
    again, _ = build(unpacked, tmp_path / "dist")
    assert set(zipfile.ZipFile(again).namelist()) == names


def test_an_editable_install_leads_to_the_checkout(tmp_path):
    """As `eval/run.sh` makes it: hatchling refuses it where folders are mapped and no folder is named."""
    words = ["-c", "import sys; from hatchling.build import build_editable; build_editable(sys.argv[1])"]
    subprocess.run([sys.executable, *words, str(tmp_path)], cwd=ROOT, check=True, timeout=100)
    archive = zipfile.ZipFile(next(tmp_path.glob("*.whl")))
    (path,) = (name for name in archive.namelist() if name.endswith(".pth"))
    assert archive.read(path).decode().strip() == str(ROOT)


@pytest.mark.slow
def test_the_installed_package_works_in_an_empty_folder(distributions, tmp_path):
    site, folder = tmp_path / "site", tmp_path / "empty"
    folder.mkdir()
    install = ["-m", "pip", "install", "-q", "--no-deps", "--no-index", "--target", str(site)]
    subprocess.run([sys.executable, *install, str(distributions[0])], check=True, timeout=100)

    def call(*words: str) -> str:
        environment = os.environ | {"PYTHONPATH": str(site)}
        command = [str(site / "bin" / "decentnode"), *words]
        return subprocess.run(
            command, cwd=folder, env=environment, check=True, capture_output=True, text=True, timeout=100
        ).stdout

    listed = call("list", "configs").splitlines()
    assert len(listed) == len([*ROOT.glob("configs/**/*.yaml")])
    (folder / "mine.yaml").write_text(call("show", "quickstart") + "task: classification\n")
    assert call("validate", "mine.yaml", "--no-load") == "mine.yaml: ok, 16 nodes, graph file, model mlp\n"
    assert call("validate", "quickstart").startswith("quickstart: ok, 16 nodes, graph file")
    assert "graph file" not in call("graph", "ring_16.edges")
    assert "all 16 nodes finished 2 rounds" in call(
        "run", "quickstart", "rounds=2", "communication=inproc", "evaluation.figures=false", "run_dir=out"
    )
    saved = (folder / "out" / "config.yaml").read_text()
    assert f"path: {site / IN_WHEEL / 'graphs' / 'regular_16_4.edges'}" in saved
