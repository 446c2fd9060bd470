"""Runs on graphs that nodes agree on by messages, or that a service draws."""

import json
import os
import signal
import time

import pytest
import torch

from decentnode.formats.reader import read_object
from decentnode.formats.records import read_records
from decentnode.node.experiment import Experiment
from tests.integration.running import Run
from tests.integration.test_time_varying import assert_same_models, written
from tests.support.in_process import Nodes

GRAPHS = [
    "{name: flipper, nodes: 8, degree: 3}",
    "{name: peer_sampler, nodes: 6, degree: 3, block: 3}",
    "{name: similarity, nodes: 8, neighbors: 2, of: gradient, every: 3}",
]


@pytest.mark.parametrize("graph", GRAPHS)
def test_processes_end_with_the_same_models_as_one_process(tmp_path, graph):
    assert_same_models(tmp_path, graph, "zeromq")


@pytest.mark.parametrize("graph", GRAPHS)
def test_a_resumed_run_ends_with_the_same_models(tmp_path, graph):
    path = written(tmp_path, graph)
    experiment = Experiment.from_yaml(path, ["communication=inproc"])
    first = Nodes(experiment, tmp_path / "first").begin().run(0, 5)
    resumed = Nodes(experiment, tmp_path / "second").load(first.saved())
    assert torch.equal(first.run(5, 9).models, resumed.run(5, 9).models)


def test_nodes_repeat_their_views_when_the_service_is_killed(tmp_path):
    """The process that draws views is killed as it sends the third block; all nodes notice it alike."""
    graph = "{name: 'faulty:DyingService', nodes: 6, degree: 3, block: 3}"
    path = written(tmp_path, graph)
    run = Run(tmp_path / "run", ["failures={grace: 0.5, deadline: 40}", "communication=zeromq"], path)
    assert run.wait() == 0, run.text
    events = [json.loads(line) for line in (run.run_dir / "events.jsonl").read_text().splitlines()]
    told = [event for event in events if event["kind"] == "peer_sampling"]
    repeats = (
        "no answer of the peer-sampling service: from round 7 on nodes repeat the views of rounds 4 to 6"
    )
    assert [event["text"].partition(";")[0] for event in told] == [
        "the peer-sampling service has ended (killed by signal 9)", repeats,
    ]  # fmt: skip
    # The summary repeats it, and the last lines do.
    assert read_object(run.run_dir / "summary.json")["health"] == told
    assert run.text.count(repeats) == 2
    logs = [(run.run_dir / "logs" / f"{rank:05d}.log").read_text() for rank in range(6)]
    assert [log.count(repeats) for log in logs] == [1] * 6
    # No edge was awaited in vain: each end repeats the same view.
    assert {event["kind"] for event in events} == {"peer_sampling", "started", "ended"}
    records = [read_records(file) for file in sorted((run.run_dir / "records").glob("*.jsonl"))]
    assert [[record.heard for record in node] for node in records] == [[3] * 9] * 6


def test_suspended_nodes_take_part_again_in_the_views_of_the_others(tmp_path):
    """Nodes that count their own suspension as silence of the service repeat views that others have not."""
    path = written(tmp_path, "{name: peer_sampler, nodes: 6, degree: 3, block: 3}")
    paced = ["sharing=faulty:Paced", "sharing.pace=0.05", "rounds=60"]
    run = Run(tmp_path / "run", [*paced, "failures={grace: 1.5, deadline: 40}", "communication=zeromq"], path)
    run.wait_for_round(7)
    suspended = run.pid_of(1), run.pid_of(4)
    for pid in suspended:
        os.kill(pid, signal.SIGSTOP)
    time.sleep(4.0)
    for pid in suspended:
        os.kill(pid, signal.SIGCONT)
    assert run.wait() == 0, run.text
    events = (run.run_dir / "events.jsonl").read_text()
    assert "peer_lost" not in events and "repeating" not in events
