"""Two runs of one seed are the same message by message, whatever the machine does meanwhile."""

import csv
import os
import signal
import time
from contextlib import suppress

import pytest

import decentnode
from decentnode.errors import ExitCode
from decentnode.launcher.report.final_lines import closing_lines
from tests.integration.running import ROOT, Run
from tests.simulation.test_runs import run, simulated

NETWORK = (
    "{name: simulated, latency: {distribution: lognormal, median: 20 ms}, uplink: 2 Mbit/s, jitter: 3 ms, "
    "loss: 0.05, delivery_log: true}"
)
ASYNCHRONOUS = ["rounds=16", f"communication={NETWORK}", "evaluation.every=1", "evaluation.background=1"]


def test_hashes_and_a_suspended_observer_change_no_delivery(tmp_path):
    """The launcher, with the observer in it, and the evaluators stand for two seconds; virtual time, too."""
    config = ROOT / "configs" / "asynchronous.yaml"
    runs = [
        Run(tmp_path / seed, ASYNCHRONOUS, config, {"PYTHONHASHSEED": seed, "CUDA_VISIBLE_DEVICES": ""})
        for seed in ("1", "2")
    ]
    disturbed = runs[1]
    disturbed.wait_for_round(1)
    host = disturbed.pid_of(0)
    others = [disturbed.process.pid, *(pid for pid in disturbed.tree() if pid != host)]
    assert len(others) >= 3, "the launcher, the fork server and an evaluator"
    for pid in others:
        os.kill(pid, signal.SIGSTOP)
    time.sleep(2.0)
    assert len(disturbed.records(0)) < 16, disturbed.story
    for pid in others:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)
    for each in runs:
        assert each.wait() == 0, each.story
    first, second = (each.run_dir / "network.csv" for each in runs)
    assert first.read_bytes() == second.read_bytes()
    assert runs[0].summary["model_hash"] == runs[1].summary["model_hash"]
    assert runs[0].summary["simulated"]["seconds"] == runs[1].summary["simulated"]["seconds"]
    with first.open() as file:
        lines = [{name: int(value) for name, value in row.items()} for row in csv.DictReader(file)]
    assert len(lines) > 300
    assert [line["delivered"] for line in lines] == sorted(line["delivered"] for line in lines)
    assert all(line["sent"] < line["delivered"] for line in lines)
    by_link: dict[tuple[int, int], list[int]] = {}
    for line in lines:
        by_link.setdefault((line["source"], line["target"]), []).append(line["number"])
    assert all(numbers == sorted(numbers) for numbers in by_link.values()), "no message overtakes another"
    sent = sum(
        record.sent_payload + record.sent_index + record.sent_header
        for rank in range(8)
        for record in runs[0].records(rank)
    )
    # The records end with the last window, and what is on the way when all nodes have ended is not delivered.
    # One in twenty transmissions is lost, and counts as sent.
    assert sum(line["bytes"] for line in lines) == pytest.approx(0.95 * sent, rel=0.02)


def test_a_resumed_run_continues_at_its_virtual_time(tmp_path, monkeypatch):
    """With links that keep nothing, it is the run that was not interrupted, in models, times and messages."""
    monkeypatch.chdir(tmp_path)
    network = simulated(latency="50 ms", uplink="100 kbit/s", network_model="delay", delivery_log=True)
    training = {"pace": {"step_seconds": 0.2, "slowdown": {"distribution": "exponential"}}}
    whole = run(network, training=training)
    begun = run(network, training=training, rounds=4)
    with (begun.directory / "network.csv").open("a") as file:
        file.write("1,2")  # a line that a kill has cut off
    resumed = decentnode.resume(begun, progress=False, rounds=8)
    assert resumed.model_hash == whole.model_hash
    columns = ["rank", "round", "seconds", "train_seconds", "sent_payload"]
    for column in columns:
        assert (resumed.records[column] == whole.records[column]).all(), column
    walls = resumed.records.groupby("rank")["wall_seconds"]
    assert walls.is_monotonic_increasing.all()
    assert resumed.summary["simulated"]["seconds"] == whole.summary["simulated"]["seconds"]
    assert resumed.summary["wall_seconds"] < 100
    whole_log, log = (
        {tuple(line.split(",")[::2]) for line in (each.directory / "network.csv").read_text().splitlines()}
        for each in (whole, resumed)
    )
    assert log <= whole_log and len(log) > 0.9 * len(whole_log)


def test_an_asynchronous_run_says_that_a_resume_differs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    windows = {"name": "asynchronous", "seconds_per_round": 0.95}
    options = {"sharing": "ad_psgd", "time_model": windows, "rounds": 3}
    training = {"pace": {"step_seconds": 0.1}, "steps_per_round": None}
    finished = run(simulated(latency="30 ms"), training=training, **options)
    lines = [*closing_lines(finished.summary, ExitCode.OK, finished.directory)]
    at = next(number for number, (name, _) in enumerate(lines) if name == "resume with")
    told = "its models will differ from those of an uninterrupted run: steps and messages in progress are not"
    assert lines[at + 1][0] == "" and lines[at + 1][1].startswith(told)


def test_the_peer_sampling_service_is_waited_for_outside_of_virtual_time(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    graph = {"name": "peer_sampler", "nodes": 6, "degree": 2, "block": 2}
    real = run("inproc", graph=graph)
    network = simulated(latency="30 ms", uplink="1 Mbit/s")
    first, again = (run(network, graph=graph, training={"pace": {"step_seconds": 0.1}}) for _ in range(2))
    assert first.model_hash == again.model_hash == real.model_hash
    assert (first.records["seconds"] == again.records["seconds"]).all()
