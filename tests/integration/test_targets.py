"""Runs that end for all nodes when an evaluation has reached a target."""

import json

from decentnode.formats.reader import read_evaluations
from decentnode.results.run import Run as Results
from tests.integration.running import Run

WINDOWS = """
name: windows
rounds: 14
graph: {name: ring, nodes: 4}
dataset: {name: synthetic, nodes: 4, samples_per_node: 40, features: 8, classes: 3}
model: {name: mlp, hidden: [8]}
training: {optimizer: {name: SGD, lr: 0.05}, batch_size: 8, steps_per_round: 20}
sharing: ad_psgd
communication: inproc
time_model: {name: asynchronous, seconds_per_round: 0.2}
evaluation: {every: 2, target: {loss: 1.0}}
"""


def events(run, kind):
    lines = (run.run_dir / "events.jsonl").read_text().splitlines()
    return [event for event in map(json.loads, lines) if event["kind"] == kind]


def test_all_machines_end_after_the_same_round_and_count_as_finished(tmp_path):
    """Models are tested in the background, some of them on some samples: at the end all on all."""
    machines = "[{address: 127.0.0.1, nodes: 2}, {address: 127.0.0.2, nodes: 2}]"
    overrides = [
        "graph={name: ring, nodes: 4}", f"mapping={{machines: {machines}, rendezvous_port: 31940}}",
        "communication={name: zeromq, base_port: 31950}", "rounds=2000", "records.models={}",
        "evaluation={every: 7, nodes: 3, samples: 200, background: 1, figures: false}",
        "evaluation.target.accuracy=0.9",
    ]  # fmt: skip
    runs = [Run(tmp_path / f"machine{m}", [*overrides, f"machine={m}"]) for m in range(2)]
    assert [run.wait() for run in runs] == [0, 0], runs[0].text + runs[1].text
    ends = [run.summary["target"] for run in runs]
    reached, last = ends[0]["reached_round"], ends[0]["last_round"]
    assert [(end["reached_round"], end["last_round"]) for end in ends] == [(reached, last)] * 2
    assert reached < last < 1999
    assert [run.summary["finished_nodes"] for run in runs] == [4, 4]
    assert [run.summary["stopped_nodes"] for run in runs] == [0, 0]
    assert Results(runs[0].run_dir).state == "finished"
    rows = {row.round: row for row in read_evaluations(runs[0].run_dir / "evaluations.jsonl")}
    means = {round: sum(row.values("accuracy")) / len(row.ranks) for round, row in rows.items()}
    assert means[reached] == ends[0]["reached_value"] >= 0.9
    assert all(mean < 0.9 for round, mean in means.items() if round < reached)
    assert max(rows) == last and (last % 7 == 6 or rows[last].ranks == [0, 1, 2, 3])
    assert len(runs[0].summary["test"]["accuracy"]) == 4
    for machine, run in enumerate(runs):
        assert [record.round for record in run.records(2 * machine)] == [*range(last + 1)]
        assert (run.run_dir / "models" / f"{2 * machine:05d}" / f"{last:08d}.safetensors").exists()
        text = f"all nodes end after round {last + 1}, because round {reached + 1} has reached the target"
        assert (events(run, "target")[-1]["text"], events(run, "target")[-1]["round"]) == (text, reached)
    assert (
        f"all 4 nodes finished at the target, after {last + 1} of 2,000 rounds (exit code 0)" in runs[0].text
    )
    assert f"accuracy 90.00 % was reached in round {reached + 1} (" in runs[0].text
    again = Run(runs[0].run_dir, verb="resume")
    assert again.wait() == 2
    assert f"this run has reached its target in round {reached + 1}; to continue, set" in again.text


def test_windows_of_time_end_at_a_target_too_and_go_on_to_one_that_is_never_reached(tmp_path):
    path = tmp_path / "windows.yaml"
    path.write_text(WINDOWS)
    run = Run(tmp_path / "run", config=path)
    assert run.wait() == 0, run.text
    end, last = run.summary["target"], run.summary["target"]["last_round"]
    assert end["reached_round"] < last < 13 and run.summary["finished_nodes"] == 4, run.text
    assert end["reached_value"] <= 1.0 and run.summary["test"]["loss"]["mean"] > 0
    further = Run(run.run_dir, ["evaluation.target.loss=0"], verb="resume")
    assert further.wait() == 0, further.text
    assert f"continues after round {last + 1}\n" in further.text
    end = further.summary["target"]
    assert (end["reached_round"], end["last_round"], further.summary["finished_nodes"]) == (None, 13, 4)
    assert f"loss 0.0000 was not reached; the best mean was {end['best']:.4f}\n" in further.text
