"""`decentnode clean`: what no result needs is listed and deleted, and nothing else."""

import shutil
from pathlib import Path

import pytest

import decentnode
from decentnode.cli.clean import delete, leftovers
from decentnode.formats.lease import LOCK
from decentnode.launcher.state.run_directory import RunLock

EAVESDROPPER = [{"name": "record", "ranks": [0], "every": 1}]


def contents(folder: Path) -> dict[Path, bytes]:
    return {
        path.relative_to(folder): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and path.name not in (LOCK, "events.jsonl")
    }


@pytest.fixture
def runs(tmp_path, monkeypatch):
    """A finished run, the same in progress and stopped, attempts that were repeated, and failed starts."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    folder = tmp_path / "runs"
    decentnode.run(
        "quickstart", rounds=2, communication="inproc", adversaries=EAVESDROPPER, run_dir=folder / "whole",
        evaluation={"figures": False}, progress=False, graph={"name": "ring", "nodes": 4},
    )  # fmt: skip
    for name in ("alive", "stopped", "again.failed-1", "study/late/machine-1"):
        shutil.copytree(folder / "whole", folder / name)
        if name != "alive":
            (folder / name / "summary.json").unlink()
    (folder / "again.failed-1" / "records" / "00000.jsonl.tmp").write_text("x")
    shutil.copytree(folder / "whole" / "checkpoints", folder / "stopped" / "earlier-1" / "checkpoints")
    (folder / "dead" / "records").mkdir(parents=True)
    (folder / "dead" / "config.yaml").write_text("name: trial\n")
    return folder


def test_leftovers_are_deleted_and_results_and_living_runs_stay(runs, call):
    lock = RunLock(runs / "alive")
    wanted = {
        "again.failed-1/checkpoints", "again.failed-1/records/00000.jsonl.tmp", "dead",
        "stopped/earlier-1/checkpoints", "whole/checkpoints", "whole/transcript",
    }  # fmt: skip
    before = contents(runs)
    code, out, err = call("clean", runs, "--dry-run")
    listed = {line.split(f"{runs}/")[1].partition(": ")[0] for line in out.splitlines() if str(runs) in line}
    assert (code, listed, err) == (0, wanted, "") and out.endswith("  in 6 places\n")
    code, _, err = call("clean", runs)
    assert (code, err) == (2, "nothing was deleted: no terminal to ask; add --yes, or --dry-run to list\n")
    assert contents(runs) == before
    assert call("clean", runs, "--yes")[1].endswith("\ndeleted\n")
    gone = {path for path in before if any(path.is_relative_to(name) for name in wanted)}
    assert contents(runs) == {path: content for path, content in before.items() if path not in gone}
    assert decentnode.verify(runs / "whole") == []
    assert call("clean", runs) == (0, f"{runs}: nothing to delete\n", "")
    lock.release()
    assert "alive/checkpoints" in call("clean", runs, "--dry-run")[1]


def test_what_has_changed_since_it_was_listed_stays(runs):
    found = [*leftovers(runs, caches=False)]
    (runs / "whole" / "summary.json").unlink()
    lock = RunLock(runs / "alive")
    alive = [one for one in found if one.run == runs / "alive"]
    assert {one.path.name for one in alive} == {"checkpoints", "transcript"}
    problems = delete([one for one in found if one.run in (runs / "whole", runs / "alive")])
    assert sorted(problems)[1:] == [
        f"{runs / 'whole' / name}: is needed again" for name in ("checkpoints", "transcript")
    ]
    assert "this run is in progress" in sorted(problems)[0]
    assert (runs / "whole" / "checkpoints").is_dir() and (runs / "alive" / "checkpoints").is_dir()
    lock.release()
