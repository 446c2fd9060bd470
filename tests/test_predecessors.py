"""The table of the predecessors' words (docs/predecessors.md): each row has a test that exists."""

import re
import tomllib

from tests.support.pages import ROOT

PAGE = (ROOT / "docs/predecessors.md").read_text()


def test_each_word_has_a_test_that_exists():
    rows = re.findall(r"^\| .+ \| .+ \| `(\S+)::(\w+)` \|$", PAGE, re.MULTILINE)
    assert len(rows) == len(re.findall(r"^\| (?!their)[^|-]", PAGE, re.MULTILINE)) >= 45
    missing = [
        f"{path}::{name}"
        for path, name in rows
        if not re.search(rf"^def {name}\(", (ROOT / "tests" / path).read_text(), re.MULTILINE)
    ]
    assert missing == []
    assert f"{len(rows)} rows" in PAGE


def test_the_extra_of_contributors_has_what_they_use():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    (dev,) = extras["dev"]
    assert "test" in dev and {"pytest", "ruff", "mypy"} <= {
        re.split(r"[<>=;]", one)[0] for one in extras["test"]
    }
