"""Every command of every page works from the wheel alone, or its page says that it needs a checkout."""

import json
import os
import subprocess
import sys
import zipfile
from dataclasses import asdict
from functools import cache
from pathlib import Path

import pytest

from tests.support import page_commands
from tests.support.page_commands import Command, commands, problems
from tests.support.pages import ROOT

WRONG = """# A page

`decentnode run quickstart` works, `decentnode run quikstart` does not.

```sh
decentnode run quickstart roundz=5 && decentnode list sharing
decentnode run quickstart --fast | tee log
decentnode sweep studies/quik
decentnode graph rink nodes=4
decentnode list sharing chico
python eval/no_such_script.py
python eval/benchmarks/mix.py --no-such-option
decentnode validate configs/quickstart.yaml graph=graphs/ring_16.edges
```

## A section

This one needs a checkout: `decentnode bench mix --no-such-option`.
"""
REFUSED = (
    "run quikstart: no configuration quikstart", "roundz=5: ", "--fast: No such option",
    "studies/quik: no configuration", "graph rink nodes=4: no graph rink", "list sharing chico: ",
)  # fmt: skip
IN_CHECKOUT = (
    "no such file: eval/no_such_script.py", "mix.py --no-such-option: unknown option --no-such-option",
    "bench mix --no-such-option: unknown option --no-such-option",
)  # fmt: skip
IN_WHEEL = (
    "no_such_script.py: needs a checkout, and the page does not say so",
    "mix.py --no-such-option: needs a checkout",
    "validate configs/quickstart.yaml graph=graphs/ring_16.edges: needs a checkout",
)  # fmt: skip


@cache
def all_commands() -> list[Command]:
    # The changes of the past name options of the past.
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]
    return [command for page in pages for command in commands(page, str(page.relative_to(ROOT)))]


@pytest.fixture
def wrong(tmp_path) -> list[Command]:
    page = tmp_path / "wrong.md"
    page.write_text(WRONG)
    return [*commands(page, "wrong.md")]


def check(found: list[str], wanted: tuple[str, ...]) -> None:
    """Only the commands of the wrong page have problems, and all of these."""
    assert [line for line in found if not line.startswith("wrong.md:")] == []
    missing = [text for text in wanted if not any(text in line for line in found)]
    assert (missing, len(found)) == ([], len(wanted))


def test_every_command_of_every_page_is_understood_in_a_checkout(wrong, monkeypatch):
    assert len(all_commands()) > 450
    monkeypatch.chdir(ROOT)
    check(problems([*all_commands(), *wrong], is_checkout=True), REFUSED + IN_CHECKOUT)


def test_every_command_is_understood_by_the_wheel_or_says_that_it_needs_a_checkout(wrong, tmp_path):
    pytest.importorskip("hatchling", reason="pip install 'decentnode[test]'")
    site, empty = tmp_path / "site", tmp_path / "empty"
    empty.mkdir()
    words = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(words, cwd=ROOT, check=True, capture_output=True, timeout=100)
    zipfile.ZipFile(next(tmp_path.glob("*.whl"))).extractall(site)
    answer = subprocess.run(
        [sys.executable, "-P", Path(page_commands.__file__)],
        input=json.dumps([asdict(command) for command in [*all_commands(), *wrong]]),
        cwd=empty, env=os.environ | {"PYTHONPATH": str(site)}, capture_output=True, text=True, timeout=200,
    )  # fmt: skip
    assert answer.returncode == 0, answer.stderr
    check(json.loads(answer.stdout), REFUSED + IN_WHEEL)
    assert [*empty.iterdir()] == []
