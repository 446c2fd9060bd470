"""The API reference: every public class of a seam is in it, and the example of each page runs."""

import importlib
import re
import sys
from functools import cache
from pkgutil import resolve_name

import pytest

from decentnode import DecentralizedDataParallel, results, testing
from decentnode.communication.base import Endpoint
from decentnode.core.registry import REGISTRIES
from decentnode.datasets import LoadedDataset, Samples
from decentnode.graph import __all__ as graph_names
from tests.support.pages import ROOT, blocks

PAGES = sorted(path.name for path in (ROOT / "docs" / "reference").glob("[a-z]*.md"))


@cache
def documented() -> dict[str, object]:
    """By its full name, what the pages ask mkdocstrings for."""
    text = "".join((ROOT / "docs" / "reference" / page).read_text() for page in PAGES)
    return {name: resolve_name(name) for name in re.findall(r"^::: ([\w.]+)$", text, re.MULTILINE)}


def test_every_public_class_of_a_seam_has_a_page():
    seams = {base for registry in REGISTRIES for base in registry.bases}
    seams |= {getattr(importlib.import_module("decentnode.graph"), name) for name in graph_names}
    seams |= {getattr(testing, name) for name in testing.__all__}
    seams |= {getattr(results, name) for name in results.__all__}
    seams |= {DecentralizedDataParallel, Endpoint, LoadedDataset, Samples}
    ours = {seam for seam in seams if callable(seam) and seam.__module__.startswith("decentnode")}
    assert {seam.__qualname__ for seam in ours - set(documented().values())} == set()


@pytest.mark.parametrize("page", PAGES)
def test_a_page_has_an_example_and_is_in_the_list_and_in_the_menu(page):
    assert len(blocks(f"docs/reference/{page}", "python")) == 1
    assert f"({page})" in (ROOT / "docs" / "reference" / "README.md").read_text()
    assert f"- docs/reference/{page}\n" in (ROOT / "docs" / "mkdocs.yml").read_text()


@pytest.mark.parametrize("page", [page for page in PAGES if page != "results.md"])
def test_the_example_of_a_page_runs(page, tmp_path, monkeypatch):
    """That of the results needs a run: tests/integration/test_own_plugins.py has one."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "reference_example.py").write_text(blocks(f"docs/reference/{page}", "python")[0])
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "reference_example", raising=False)
    importlib.import_module("reference_example")
    monkeypatch.delitem(sys.modules, "reference_example")
