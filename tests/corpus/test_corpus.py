"""Each bad input gives exit code 2 and one line for each defect; each good one is accepted.

`eval/reliability/corpus.py` tries the same cases as processes of their own, with the time they take.
"""

import socket
import sys
from collections import Counter
from functools import cache
from pathlib import Path

import pytest
import typer.main

from decentnode.cli import app as cli
from decentnode.core.timeouts import Timeouts
from tests.corpus.bad_cases import bad_cases
from tests.corpus.case import COMMON, Case, edited
from tests.corpus.good_cases import good_cases

BAD, GOOD = bad_cases(), good_cases()


@pytest.fixture(scope="module", autouse=True)
def built_once():
    """The command line is the same in all cases; to build it takes as long as to read a configuration."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(typer.main, "get_command", cache(typer.main.get_command))
        yield


@pytest.fixture(scope="module")
def busy():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()[1]


@pytest.fixture(scope="module")
def modules():
    """The names of the modules that cases write."""
    files = {name for case in BAD + GOOD for name in COMMON | dict(case.files)}
    return sorted(Path(name).stem for name in files if name.startswith("corpus_"))


@pytest.fixture
def call(tmp_path, monkeypatch, capsys, busy, modules):
    """Runs a case in this process; gives exit code, and what stands on standard error and standard output."""

    def run(case):
        case.write(tmp_path)
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
        monkeypatch.setattr(Timeouts, "early_end", 0.1)
        with pytest.raises(SystemExit) as ended:
            cli.main(case.command(busy))
        for name in modules:
            sys.modules.pop(name, None)
        told = capsys.readouterr()
        return ended.value.code or 0, told.err, told.out

    return run


@pytest.mark.parametrize("case", BAD, ids=lambda case: case.id)
def test_bad_input_is_refused_in_words(call, case, tmp_path, busy):
    code, messages, output = call(case)
    assert case.violations(code, messages, tmp_path, busy) == []
    may_print = "--draw" in case.words or "the other machines are told" in output
    assert output == "" or may_print, "the report stands before the picture"


@pytest.mark.parametrize("case", GOOD, ids=lambda case: case.id)
def test_good_input_is_accepted(call, case):
    assert call(case)[:2] == (0, "")


def test_what_may_be_a_mistake_is_reported_and_accepted(call):
    text = edited("{name: file, path: ring.edges}", "corpus_graphs:Pairs")
    code, output, _ = call(Case("pairs", ["validate", "x.yaml"], files={"x.yaml": text}))
    falls = "the graph falls into 2 components, nodes 0 and 2 do not reach each other"
    assert (code, output) == (0, f"graph Pairs: in its first 64 rounds {falls}\n")


def test_the_corpus_is_as_large_as_promised():
    assert len(BAD) >= 800
    assert len(GOOD) >= 250
    assert sum("..." not in line for case in BAD for line in case.lines) >= 700
    assert Counter(case.id for case in BAD + GOOD).most_common(1)[0][1] == 1


def test_a_case_notices_what_breaks_the_promise(tmp_path):
    case = next(case for case in BAD if len(case.lines) == 1 and "..." not in case.lines[0])
    (line,) = case.lines
    assert case.violations(2, line + "\n", tmp_path, 1) == []
    assert case.violations(0, line, tmp_path, 1) == ["exit code 0"]
    assert case.violations(2, line + "\nmore", tmp_path, 1) == ["2 lines instead of 1"]
    assert case.violations(2, "Traceback", tmp_path, 1)[0] == "a traceback"
    assert case.violations(2, "x" * 999, tmp_path, 1)[0] == "a line of 999 letters"
