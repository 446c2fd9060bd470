"""A run with writers of which one fails and one hangs; then what went on from a checkpoint of it."""

import json

import pandas
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from decentnode.launcher.state.run_directory import RunLock
from decentnode.results import Run as Files
from tests.integration.running import Run, wait_until

PLUGIN = """
import time
from dataclasses import dataclass
from decentnode.core.timeouts import Timeouts
from decentnode.results.writers import Writer

# The launcher imports this module, too.
Timeouts.last_rows = 10.0

@dataclass(kw_only=True)
class Fails(Writer):
    def begin(self, run, rows):
        for row in rows:
            self.row(row)

    def row(self, row):
        raise ConnectionError("no route to host")

    def close(self, summary):
        pass

@dataclass(kw_only=True)
class Hangs(Fails):
    def row(self, row):
        time.sleep(1000)

@dataclass(kw_only=True)
class Late(Writer):
    def begin(self, run, rows):
        self.file = (run.directory / "late").open("w")
        # As the import of a large library.
        time.sleep(4)
        for row in rows:
            self.row(row)

    def row(self, row):
        print(row.round, file=self.file, flush=True)

    def close(self, summary):
        print(summary.get("nodes", "killed"), file=self.file, flush=True)
"""
CONFIG = """
name: written
rounds: 8
graph: {name: ring, nodes: 4}
dataset: {name: synthetic, nodes: 4, samples_per_node: 40, features: 8, classes: 3}
model: {name: mlp, hidden: [8]}
training: {optimizer: {name: SGD, lr: 0.1}, batch_size: 8, steps_per_round: 2}
communication: inproc
evaluation: {every: 2}
checkpoint: {every: 4}
"""
WRITERS = "csv, parquet, {name: tensorboard, per_rank: true}"


def test_writers_fail_and_hang_alone_and_a_resume_continues_their_files(tmp_path):
    config = tmp_path / "written.yaml"
    config.write_text(CONFIG)
    (tmp_path / "own.py").write_text(PLUGIN)
    plain = Run(tmp_path / "plain", config=config)
    writers = f"records={{writers: [{WRITERS}, 'own:Fails', 'own:Hangs']}}"
    first = Run(tmp_path / "run", [writers, "rounds=4"], config=config)
    assert (plain.wait(), first.wait()) == (0, 0), first.text
    lines = [line for line in first.text.splitlines() if line.startswith("writer ")]
    assert lines == [
        "writer own:Fails is dropped: ConnectionError: no route to host; it lacks the evaluations after that",
        "writer own:Hangs is dropped: it had not finished in time; its last rows may be missing",
    ]
    events = map(json.loads, (first.run_dir / "events.jsonl").read_text().splitlines())
    dropped = [event for event in events if event["kind"] == "writer"]
    assert [event["text"] for event in dropped] == lines
    # Also one that was dropped after it could have read the summary.
    assert first.summary["health"] == dropped
    assert all(first.text.count(line) == 2 for line in lines)
    assert rounds_of(first.run_dir) == [2, 4]

    # The rows of a writer that was not there before, as those of one that was.
    resumed = Run(first.run_dir, [f"records.writers=[{WRITERS}]", "rounds=8"], verb="resume")
    assert resumed.wait() == 0, resumed.text
    assert "is dropped" not in resumed.text
    assert resumed.summary["model_hash"] == plain.summary["model_hash"]
    assert rounds_of(resumed.run_dir) == [2, 4, 6, 8]


def test_writers_have_all_rows_when_the_launcher_is_killed(tmp_path):
    """Also the one that has not begun to write by then."""
    config = tmp_path / "written.yaml"
    config.write_text(CONFIG)
    (tmp_path / "own.py").write_text(PLUGIN)
    words = [f"records={{writers: [{WRITERS}, 'own:Late']}}", "rounds=5000", "checkpoint={every: 100}"]
    run = Run(tmp_path / "run", words, config=config)
    rows = run.run_dir / "evaluations.jsonl"
    wait_until(lambda: rows.exists() and rows.read_bytes().count(b"\n") >= 20, 60, lambda: run.text)
    run.process.kill()
    run.process.wait()
    # A resume waits for its writers.
    RunLock(run.run_dir).release()
    rounds = rounds_of(run.run_dir)
    assert len(rounds) >= 20
    *late, end = (run.run_dir / "late").read_text().split()
    assert (late, end) == ([str(round - 1) for round in rounds], "killed")


def rounds_of(run_dir) -> list[int]:
    """Of the three files, which must agree with the run's own; each rank has a row for each round."""
    frame = Files(run_dir).evaluations
    pandas.testing.assert_frame_equal(pandas.read_csv(run_dir / "evaluations.csv"), frame)
    pandas.testing.assert_frame_equal(pandas.read_parquet(run_dir / "evaluations.parquet"), frame)
    events = EventAccumulator(str(run_dir / "tensorboard"))
    events.Reload()
    curve = {event.step: event.value for event in events.Scalars("accuracy/rank_00003")}
    own_rows = frame[frame["rank"] == 3]
    assert len(frame) == 4 * len(own_rows) and [*curve] == own_rows["round"].tolist()
    assert max(abs(own_rows["accuracy"] - [*curve.values()])) < 1e-6
    return [*curve]
