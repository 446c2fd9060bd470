"""Sweeps as people start them: killed, stopped, continued, with runs that fail."""

import json
import os
import signal
from pathlib import Path

import pytest

from decentnode.config import yaml_source
from decentnode.formats.records import read_records
from decentnode.launcher.dataset_cache import DatasetCache
from decentnode.results import Study
from decentnode.studies.expansion import planned_runs
from decentnode.studies.study_file import read_study
from decentnode.studies.sweep.directories import RunDirectory
from decentnode.studies.sweep.forecast import forecasts
from decentnode.studies.sweep.plan import cost_of
from tests.integration.running import Run, alive, descendants, start_command, wait_until

TIMEOUT = 100
STUDY = """
base: {base}
set:
  rounds: {rounds}
  evaluation.every: 0
  graph: {{name: ring, nodes: 3}}
  dataset: {{name: digits, train_size: 60, test_size: 30}}
axes:
  sharing: [gossip, push_sum]
seeds: 2
jobs: {jobs}
out: {out}
"""
BASE = Path(__file__).parents[2] / "configs" / "quickstart.yaml"
RUNS = [f"{variant}/seed-{seed}" for seed in range(2) for variant in ("gossip", "push_sum")]


class Sweep:
    """One `decentnode sweep`, started at once."""

    def __init__(self, folder: Path, *words: str, output: str = "sweep.out") -> None:
        self.output = folder / output
        self.process = start_command(
            self.output, "sweep", str(folder / "study.yaml"), *words, cwd=folder,
        )  # fmt: skip

    @property
    def text(self) -> str:
        return self.output.read_text(errors="replace")

    def wait(self) -> int:
        return self.process.wait(TIMEOUT)

    def tree(self) -> list[int]:
        return descendants(self.process.pid)


@pytest.fixture
def study(tmp_path):
    """Writes a study; returns the directory of its runs."""

    def write(rounds: int = 30, jobs: int = 1, **more: str) -> Path:
        out = tmp_path / "out"
        text = STUDY.format(base=BASE, rounds=rounds, jobs=jobs, out=out)
        for old, new in more.items():
            text = text.replace(old, new)
        (tmp_path / "study.yaml").write_text(text)
        return out

    return write


def rounds_in(run: Path) -> dict[int, list[int]]:
    """By rank, in the order of the lines."""
    paths = sorted((run / "records").iterdir())
    return {int(path.stem): [record.round for record in read_records(path)] for path in paths}


def whole(rounds: int) -> dict[int, list[int]]:
    """Each round of each rank once."""
    return {rank: list(range(rounds)) for rank in range(3)}


def state(run: Path) -> tuple[str, str, int]:
    """What changes if a run is repeated or resumed."""
    state = json.loads((run / "run.json").read_text())
    summary = json.loads((run / "summary.json").read_text())
    return state["run_id"], summary["model_hash"], (run / "summary.json").stat().st_mtime_ns


def has_rounds(run: Path, rounds: int) -> bool:
    record = run / "records" / "00000.jsonl"
    return record.exists() and record.read_bytes().count(b"\n") >= rounds


def done(out: Path) -> list[str]:
    return [name for name in RUNS if (out / name / "summary.json").exists()]


def test_a_killed_sweep_continues_with_nothing_twice_and_nothing_lost(tmp_path, study):
    out = study(rounds=100)
    sweep = Sweep(tmp_path)
    wait_until(lambda: has_rounds(out / RUNS[1], 5), TIMEOUT, lambda: sweep.text)
    below = sweep.tree()
    sweep.process.kill()
    wait_until(lambda: not any(map(alive, below)), TIMEOUT, lambda: sweep.text)
    assert done(out) == RUNS[:1]
    before = state(out / RUNS[0])
    again = Sweep(tmp_path, "seeds=[0, 7]", "jobs=2")
    assert again.wait() == 0, again.text
    assert state(out / RUNS[0]) == before
    names = [*RUNS[:2], "gossip/seed-7", "push_sum/seed-7"]
    for name in names:
        assert rounds_in(out / name) == whole(100), name
    siblings = sorted(path.name for path in (out / "push_sum").glob("seed-0.*"))
    assert siblings == ["seed-0.interrupted-1", "seed-0.interrupted-1.log", "seed-0.log"]
    entries = [json.loads((out / name / "study.json").read_text()) for name in names]
    # The last one may start when all others have ended.
    assert [entry["alone"] for entry in entries[1:3]] == [False, False]
    assert {entry["variant"] for entry in entries} == {"gossip", "push_sum"}
    third = Sweep(tmp_path, "seeds=[0, 7]")
    assert third.wait() == 0 and "nothing to do" in third.text


def test_two_sweeps_share_the_runs_and_one_goes_on_with_what_a_killed_one_leaves(tmp_path, study):
    out = study(rounds=150)
    first = Sweep(tmp_path)
    wait_until(lambda: has_rounds(out / RUNS[0], 5), TIMEOUT, lambda: first.text)
    second = Sweep(tmp_path, output="second.out")
    waits = f"{RUNS[0]}: process {first.process.pid} on "
    wait_until(lambda: waits in second.text, TIMEOUT, lambda: second.text)
    changed = Sweep(tmp_path, "set.training.batch_size=4", output="changed.out")
    assert changed.wait() == 2, changed.text
    assert "was made with other settings: training.batch_size was" in changed.text
    assert done(out) == [] or first.process.poll() is None
    first.process.kill()
    assert second.wait() == 0, second.text
    assert f"4 of {len(RUNS)} runs done" in second.text
    for name in RUNS:
        assert rounds_in(out / name) == whole(150), name


def test_the_forecast_of_memory_is_what_runs_take_however_nodes_share_processes(tmp_path, study):
    """Within a factor of 1.5, the one of docs/studies.md for small models."""
    variants = "inproc, zeromq, {name: zeromq, local: tcp, nodes_per_process: 4, base_port: 30560}"
    changes = {
        "sharing: [gossip, push_sum]": f"communication: [{variants}]", "nodes: 3": "nodes: 8",
        "train_size: 60": "train_size: 600", "seeds: 2": "seeds: 1",
    }  # fmt: skip
    study(10, **changes)
    runs = planned_runs(read_study(tmp_path / "study.yaml"))
    expected = forecasts(runs, DatasetCache())
    sweep = Sweep(tmp_path)
    assert sweep.wait() == 0, sweep.text
    for run in runs:
        measured = cost_of(RunDirectory(run)).memory_bytes
        assert 1 / 1.5 < expected[run.variant.name].memory_bytes / measured < 1.5, run.name


def test_a_sweep_that_is_stopped_resumes_its_runs(tmp_path, study):
    """Over TCP, where runs at the same time need ports of their own; the models are those of single runs."""
    base_port = {"seeds: 2": "seeds: 1", "  rounds: 200": "  rounds: 200\n  communication: {port}"}
    port = "{name: zeromq, local: tcp, base_port: 30510}"
    out = study(200, 2, **{old: new.format(port=port) for old, new in base_port.items()})
    sweep = Sweep(tmp_path)
    wait_until(lambda: all(has_rounds(out / name, 5) for name in RUNS[:2]), TIMEOUT, lambda: sweep.text)
    below = sweep.tree()
    # Ctrl-C reaches the sweep alone: its runs have sessions of their own.
    os.killpg(sweep.process.pid, signal.SIGINT)
    assert sweep.wait() == 130, sweep.text
    assert not any(map(alive, below))
    stopped = [name for name in RUNS[:2] if f"{name}: stopped, and can be resumed" in sweep.text]
    # On a busy machine one may be done by then.
    assert stopped and set(stopped) | set(done(out)) == set(RUNS[:2]), sweep.text
    assert f"continue with: decentnode sweep {tmp_path}/study.yaml" in sweep.text
    # Readers know which run each is before its end, too.
    unfinished = Study(out)
    assert {run.directory.parent.name: run.entry.variant for run in unfinished.runs} == {
        "gossip": "gossip", "push_sum": "push_sum",
    }  # fmt: skip
    assert {run.entry.exit_code for run in unfinished.runs} <= {None, 0}
    assert all(variant.axes for variant in unfinished.variants)
    again = Sweep(tmp_path)
    assert again.wait() == 0, again.text
    for name in RUNS[:2]:
        assert ("continues after round" in (out / f"{name}.log").read_text()) is (name in stopped)
        assert rounds_in(out / name) == whole(200)
    ports = [
        yaml_source.read(out / name / "config.yaml").value["communication"]["base_port"] for name in RUNS[:2]
    ]
    assert len(set(ports)) == 2
    single = Run(tmp_path / "single", ["communication=inproc"], config=out / RUNS[1] / "config.yaml")
    assert single.wait() == 0, single.text
    assert single.summary["model_hash"] == state(out / RUNS[1])[1]


def test_a_run_that_fails_is_repeated_once_and_the_others_continue(tmp_path, study):
    out = study(5, 1, **{"[gossip, push_sum]": "['faulty:RaisesAt', gossip]", "seeds: 2": "seeds: 1"})
    sweep = Sweep(tmp_path)
    assert sweep.wait() == 4, sweep.text
    why = "exit code 3: rank 0, round 4: RuntimeError: a defect on purpose ("
    assert f"RaisesAt/seed-0: failed, and is repeated once: {why}" in sweep.text
    assert f"RaisesAt/seed-0: failed: {why}" in sweep.text
    assert "1 of 2 runs done, 1 failed" in sweep.text
    files = sorted(path.name for path in (out / "RaisesAt").iterdir())
    assert files == ["seed-0", "seed-0.failed-1", "seed-0.failed-1.log", "seed-0.log"]
