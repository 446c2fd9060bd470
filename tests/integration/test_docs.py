"""What the README and the tutorial tell people to type works, in the order in which they read it."""

import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from decentnode.core.registry import SHARINGS, TRANSFORMS
from tests.integration.running import Run
from tests.integration.spawner import Spawner
from tests.support.pages import ROOT, blocks, write_files

PARTS = (
    "decentnode", "eval", "configs", "graphs", "docs", "README.md", "generate_graph.py", "pyproject.toml",
    "constraints.txt", "CHANGELOG.md", "CONTRIBUTING.md", "CITATION.cff", "LICENSE",
)  # fmt: skip
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
RUN = re.compile(r"^(\./eval/run\.sh|decentnode run) \S+", re.MULTILINE)
NUMBER = re.compile(r"\d(?:[\d,]|\\\.)*")
"""In a text that `re.escape` has passed: its dots have a backslash."""
LINK = re.compile(r"\]\(([^)#:]+)\)")


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A copy in which commands may leave files, with `decentnode` and `python` on the path."""
    for part in PARTS:
        source = ROOT / part
        copy = shutil.copytree if source.is_dir() else shutil.copy
        copy(source, tmp_path / part)
    # Pictures are drawn and looked at by another test, which does all 40 rounds, too.
    quickstart = tmp_path / "configs" / "quickstart.yaml"
    content = quickstart.read_text().replace("{every: 10}", "{every: 10, figures: false}")
    quickstart.write_text(content.replace("rounds: 40\n", "rounds: 5\n"))
    for folder, python in {"bin": sys.executable, "warm": Spawner.of_this_process().python()}.items():
        (tmp_path / folder).mkdir()
        for name, words in {"python": "", "decentnode": "-m decentnode"}.items():
            script = tmp_path / folder / name
            script.write_text(f'#!/bin/sh\nexec {python} {words} "$@"\n')
            script.chmod(0o755)
    return tmp_path


def shell(checkout: Path, commands: str, python: str = "warm") -> str:
    """What the commands print; each must succeed.

    `python`: the folder of the one they use, `bin` for a person's, `warm` for one that has torch in memory.
    """
    commands = RUN.sub(r"\g<0> evaluation.figures=false", commands)
    environment = os.environ | {
        "PATH": f"{checkout / python}:{os.environ['PATH']}",
        "PYTHONPATH": str(checkout),
        "PYTHON": str(checkout / python / "python"),
        # What commands start themselves: it draws pictures, or asks for facts about torch.
        "PYTHON_EXEC": str(checkout / python / "python"),
    }
    answer = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", commands],
        cwd=checkout,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert answer.returncode == 0, f"{commands}\n{answer.stdout}\n{answer.stderr}"
    return answer.stdout


@pytest.mark.slow
def test_readme(checkout):
    (checkout / "my_scheme.py").write_text(blocks("README.md", "python")[-1])
    quickstart, *others, last = blocks("README.md", "sh")
    shell(checkout, quickstart, "bin")
    for commands in others:
        shell(checkout, commands)
    shell(checkout, last + "\n")
    newest = max((checkout / "runs").iterdir(), key=lambda path: path.stat().st_mtime)
    saved = (newest / "config.yaml").read_text()
    assert "name: my_scheme:Cautious" in saved
    assert "gamma: 0.3" in saved


@pytest.mark.slow
def test_tutorial(checkout):
    printed = "".join(shell(checkout, commands) for commands in blocks("docs/tutorial.md", "sh"))
    assert "bridge.yaml: ok, 8 nodes" in printed
    assert re.search(r"diameter\s+5", printed), "two squares and a bridge"
    for run in ("regular", "ring", "bridge", "two-0", "two-1"):
        assert (checkout / "runs" / run / "summary.json").exists()
    assert "all 8 nodes finished 10 rounds" in (checkout / "machine1.txt").read_text()
    shown = [line for block in blocks("docs/tutorial.md", "text") for line in block.splitlines() if line]
    assert len(shown) > 60
    # Pictures are not drawn here.
    assert [line for line in shown if "  pictures " not in line and not is_printed(line, printed)] == []


def is_printed(line: str, printed: str) -> bool:
    """Whether a line is printed with any numbers and hash: seconds and last digits are a machine's."""
    words = (
        r"\S+"
        if "/home/you/" in word or len(word) == 64
        else NUMBER.sub(lambda _: r"[\d.,]+", re.escape(word))
        for word in line.replace("kB", "MB").split()
    )
    pattern = r"^\s*" + r"\s+".join(words) + "$"
    return re.search(pattern, printed.replace("kB", "MB"), re.MULTILINE) is not None


def test_the_graph_of_ones_own_trains_and_continues_where_it_was_stopped(tmp_path):
    """Over a network, without a checkpoint of its end, it does the same rounds in the same pairs."""
    write_files(tmp_path, "docs/your_graph.md")
    overrides = ["communication=inproc", "checkpoint.every=20"]
    straight = Run(tmp_path / "run", overrides, config=tmp_path / "matching.yaml")
    assert straight.wait(100) == 0, straight.text
    wanted = straight.summary
    assert wanted["consensus_distance"] < 0.1, "pairs that stay as they are end at 0.3"
    for path in (straight.run_dir / "summary.json", *straight.run_dir.glob("checkpoints/*/00000039.*")):
        path.unlink()
    resumed = Run(straight.run_dir, ["communication=zeromq"], verb="resume")
    assert resumed.wait(100) == 0, resumed.text
    assert "continues after round 20" in resumed.text
    assert (resumed.summary["model_hash"], resumed.summary["refused_messages"]) == (wanted["model_hash"], {})


def test_the_pages_are_built_without_a_warning(checkout):
    pytest.importorskip("mkdocstrings", reason="pip install 'decentnode[docs]'")
    assert "build/site/index.html" in shell(checkout, "docs/build.sh", "bin")
    reference = checkout / "build" / "site" / "docs" / "reference" / "schemes.html"
    assert "decentnode.sharing.base.Sharing.mix" in reference.read_text()
    scripts = re.findall(r'<script src="([^"]+)"', reference.read_text())
    assert "../iframe-worker.js" in scripts, "without it the search does not work from the disk"
    assert not any(script.startswith("http") for script in scripts)


def test_the_scheme_in_the_readme_is_short():
    assert len(blocks("README.md", "python")[-1].splitlines()) <= 36


def test_the_readme_counts_schemes_and_transforms():
    counted = re.findall(r"\((\d+) (exist|transforms)\)", (ROOT / "README.md").read_text())
    numbers = {"exist": len(SHARINGS.classes()), "transforms": len(TRANSFORMS.classes())}
    assert counted == [(str(number), what) for what, number in numbers.items()]


def test_links_of_the_readme_hold_on_the_page_of_the_package():
    hook = PROJECT["tool"]["hatch"]["metadata"]["hooks"]["fancy-pypi-readme"]
    (rule,), repository = hook["substitutions"], PROJECT["project"]["urls"]["Repository"]
    text = re.sub(rule["pattern"], rule["replacement"], (ROOT / "README.md").read_text())
    targets = re.findall(r"\]\(([^)#]+)", text)
    assert len(targets) > 30
    files = [target.removeprefix(f"{repository}/blob/main/") for target in targets]
    assert [file for file in files if not (ROOT / file).exists()] == []


@pytest.mark.parametrize(
    "document",
    [
        "README.md",
        "CHANGELOG.md",
        "CONTRIBUTING.md",
        *(str(path.relative_to(ROOT)) for path in sorted((ROOT / "docs").rglob("*.md"))),
    ],
)
def test_links_lead_somewhere(document):
    targets = LINK.findall((ROOT / document).read_text())
    assert [t for t in targets if not (ROOT / document).parent.joinpath(t).exists()] == []


@pytest.mark.parametrize(
    "document",
    ["README.md", *(f"docs/{path.name}" for path in sorted((ROOT / "docs").glob("architecture*.md")))],
)
def test_files_that_are_named_exist(document):
    """Words in code style that look like our files: `communication/wire.py`, `sharing/`."""
    names = re.findall(r"`([\w/]+(?:\.py|/))`", (ROOT / document).read_text())
    places = (ROOT, ROOT / "decentnode", ROOT / "docs")
    mentioned_as_an_example = {"my_scheme.py", "runs/", "records/", "logs/"}
    missing = [
        n for n in names if n not in mentioned_as_an_example and not any((p / n).exists() for p in places)
    ]
    assert missing == []


def test_the_architecture_names_every_package():
    text = (ROOT / "docs" / "architecture.md").read_text()
    modules = {path.name for path in (ROOT / "decentnode").glob("[!_]*.py")}
    folders = {f"{path.parent.name}/" for path in (ROOT / "decentnode").glob("*/**/__init__.py")}
    assert sorted(name for name in modules | folders if name not in text) == []


LONG_PAGES = {"architecture", "privacy", "reliability", "results", "simulation"}
"""Pages with annexes, which are named after them: `privacy_measured.md`."""
MOST_WORDS = 2000
MOST_CELL_CHARACTERS = 150


@pytest.mark.parametrize("page", sorted(LONG_PAGES))
def test_a_page_with_annexes_is_short_and_leads_to_all_of_them(page):
    text = (ROOT / "docs" / f"{page}.md").read_text()
    assert len(text.split()) <= MOST_WORDS, "move what a reader needs later to an annex"
    annexes = [path.name for path in sorted((ROOT / "docs").glob(f"{page}_*.md"))]
    assert [name for name in annexes if f"]({name})" not in text] == []
    assert len(annexes) >= 3


def test_the_page_about_tests_names_every_folder_and_every_script():
    text = (ROOT / "docs" / "what_is_tested.md").read_text()
    folders = {
        f"`{path.relative_to(ROOT / 'tests').parts[0]}/`" for path in ROOT.glob("tests/*/**/test_*.py")
    }
    scripts = (
        path for path in (ROOT / "eval" / "reliability").glob("*.py") if "__main__" in path.read_text()
    )
    missing = {name for name in folders | {f"`{path.name}`" for path in scripts} if name not in text}
    assert missing == set()
    assert len(text.split()) <= 1000


def cells(text: str) -> Iterator[str]:
    """The cells of all tables, indented ones too, outside of code blocks."""
    inside_code = False
    for line in text.splitlines():
        inside_code ^= line.lstrip().startswith("```")
        if line.lstrip().startswith("|") and not inside_code:
            yield from (cell.strip() for cell in re.split(r"(?<!\\)\|", line))


def anchors(path: Path) -> set[str]:
    """The names of the headings of a page, as a site makes them."""
    text = re.sub(r"^```.*?^```$", "", path.read_text(), flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


def test_the_first_page_leads_from_tasks_to_all_pages_and_sections():
    text, docs = (ROOT / "docs" / "README.md").read_text(), ROOT / "docs"
    assert len(re.findall(r"^- \*\*", text, re.MULTILINE)) <= 60
    links = [link.partition("#") for link in re.findall(r"\]\(([^)]+)\)", text)]
    assert [(page, name) for page, _, name in links if name and name not in anchors(docs / page)] == []
    # Annexes are reached from their page.
    pages = {path.name for path in docs.glob("*.md") if path.stem.split("_")[0] not in LONG_PAGES}
    assert pages - {page for page, _, _ in links} == {"README.md"}
    assert "](docs/README.md)" in (ROOT / "README.md").read_text()


def test_the_gallery_has_small_pictures_and_the_file_of_each():
    text = (ROOT / "docs" / "gallery.md").read_text()
    pictures = sorted((ROOT / "docs" / "images" / "gallery").iterdir())
    row = r"^\| !\[[^\]]{10,}\]\((images/gallery/\w+\.png)\) \| `[\w/]+\.(?:png|html)`"
    rows = re.findall(row, text, re.MULTILINE)
    assert sorted(rows) == [f"images/gallery/{path.name}" for path in pictures]
    sizes = [path.stat().st_size for path in pictures]
    assert (max(sizes) <= 30_000, sum(sizes) <= 600_000) == (True, True)


def test_no_cell_of_a_table_is_a_paragraph():
    documents = [ROOT / name for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md")]
    documents += (ROOT / "docs").rglob("*.md")
    found = [(path.name, cell) for path in documents for cell in cells(path.read_text())]
    assert [(name, cell) for name, cell in found if len(cell) > MOST_CELL_CHARACTERS] == []
    assert len(found) > 2000, "tables are still tables"
