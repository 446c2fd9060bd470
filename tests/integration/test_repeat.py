"""`decentnode repeat`: the same models from what a run has saved, and what differs where they are others."""

import json

import pytest

import decentnode
from decentnode.errors import BadInput
from decentnode.sharing import Gossip

SCHEME = "from decentnode.sharing.gossip import Gossip\n\n\nclass Mine(Gossip):\n    beta = {}\n"
QUICK = {"rounds": 2, "communication": "inproc", "evaluation.figures": False}


def lines(capsys):
    said = capsys.readouterr().out.splitlines()
    return [line for line in said if line.startswith(("repeats", "the same", "other"))]


@pytest.fixture
def first(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "edited.py").write_text(SCHEME.format(1))
    (tmp_path / "ring.edges").write_text("4\n0 1\n1 0\n1 2\n2 1\n2 3\n3 2\n3 0\n0 3\n")
    values = {"graph": "ring.edges", "sharing": "edited:Mine", **QUICK}
    return decentnode.run("quickstart", run_dir="first", progress=False, **values)


@pytest.mark.slow
def test_a_repeated_run_has_the_same_models_or_says_what_differs(first, capsys):
    again = decentnode.repeat(first)
    assert again.directory != first.directory and again.model_hash == first.model_hash
    same = f"the same models as {first.directory}: {first.model_hash[:16]}"
    assert lines(capsys) == [f"repeats {first.directory}; code, versions and processor are the same", same]
    (first.directory.parent / "edited.py").write_text(SCHEME.format(2))
    state = json.loads((first.directory / "run.json").read_text())
    state["code"][0]["environment"]["processor"] = "another"
    (first.directory / "run.json").write_text(json.dumps(state))
    now = json.loads((again.directory / "run.json").read_text())["code"][0]["environment"]["processor"]
    other = decentnode.repeat(first, rounds=3, seed=2)
    rings = lines(capsys)
    what = f"seed 2 (was 1); rounds 3 (was 2); edited.py, processor {now} (was another)"
    assert rings[0] == f"repeats {first.directory}; what differs: {what}"
    assert rings[1].startswith(f"other models than {first.directory}: {other.model_hash[:16]}, not ")
    assert rings[1].endswith(f" ({what}; the samples)")
    (first.directory.parent / "ring.edges").write_text("4\n0 1\n1 0\n1 2\n2 1\n2 3\n3 2\n")
    assert decentnode.repeat(first, with_its_code=True).model_hash != first.model_hash
    assert "the content of a file that graph or sharing.weights names" in lines(capsys)[1]


def test_what_cannot_be_repeated_is_one_line(first, tmp_path, call):
    (tmp_path / "begun").mkdir()
    (tmp_path / "begun" / "config.yaml").write_text((first.directory / "config.yaml").read_text())
    code, out, err = call("repeat", tmp_path / "begun")
    assert (code, out) == (
        2,
        "",
    ) and "was never started, so there is nothing to repeat; decentnode run" in err
    run = decentnode.run("quickstart", progress=False, run_dir="objects", sharing=Owned(), **QUICK)
    with pytest.raises(BadInput, match=r"'object:Owned' was passed as an object .*decentnode.repeat"):
        decentnode.repeat(run)
    assert decentnode.repeat(run, sharing=Owned(), progress=False).model_hash == run.model_hash


class Owned(Gossip):
    """It has no fields of its own, but an attribute."""

    def __init__(self) -> None:
        super().__init__()
        self.seen = 1
