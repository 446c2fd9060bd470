"""Whole runs in virtual time: the models of a real run, and the times of closed forms."""

import os
import signal
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

import decentnode
from decentnode.core.byte_counters import HEADER_BYTES
from decentnode.errors import ConfigError, ExitCode, RunFailed
from decentnode.launcher.report.final_lines import closing_lines
from decentnode.sharing import Gossip

ROOT = Path(__file__).parents[2]
QUIET = {"every": 0, "figures": False}
SMALL = {
    "name": "small",
    "graph": {"name": "ring", "nodes": 6},
    "dataset": {"name": "synthetic", "nodes": 6, "samples_per_node": 20, "features": 10},
    "model": "logistic_regression",
    "training": {"optimizer": {"name": "SGD", "lr": 0.1}, "batch_size": 4, "steps_per_round": 1},
    "rounds": 8,
    "evaluation": QUIET,
}
INSTANT = {"pace": "instant"}
BYTES = 4 * (10 * 10 + 10) + HEADER_BYTES


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def run(communication, **overrides):
    return decentnode.run(SMALL, progress=False, communication=communication, **overrides)


def simulated(**options):
    return {"name": "simulated", **options}


@pytest.mark.parametrize(
    ("sharing", "options"),
    [
        ("gossip", {}),
        ({"name": "choco", "gamma": 0.5}, {"network_model": "fair", "tcp": "lv08"}),
        ("gradient_tracking", {"bandwidth": {"edges": [[0, 1, "300 kbit/s"]]}, "tcp": "cm02"}),
    ],
)
def test_models_are_those_of_real_time_whatever_the_network(sharing, options):
    """And two runs with one seed have the same times, which another seed changes."""
    real = run("inproc", sharing=sharing)
    network = simulated(
        latency={"distribution": "lognormal", "median": "30 ms"}, uplink="1 Mbit/s", downlink="4 Mbit/s",
        jitter="10 ms", loss=0.1, **options,
    )  # fmt: skip
    slow = {"pace": {"step_seconds": 0.02, "slowdown": {"distribution": "exponential"}}}
    first, again = (run(network, sharing=sharing, training=slow) for _ in range(2))
    assert first.model_hash == again.model_hash == real.model_hash
    assert first.summary["bytes_received"] == real.summary["bytes_received"]
    # A tenth of the transmissions is lost, and sent again until it arrives.
    assert first.summary["bytes_sent"] == pytest.approx(real.summary["bytes_sent"] / 0.9, rel=0.05)
    sent = first.records[["sent_payload", "sent_index", "sent_header"]].to_numpy().sum()
    assert first.summary["bytes_sent"] == again.summary["bytes_sent"] == sent
    assert (first.records["seconds"] == again.records["seconds"]).all()
    other = run({**network, "seed": 5}, sharing=sharing, training=slow)
    assert other.model_hash == real.model_hash
    assert (first.records["seconds"] != other.records["seconds"]).any()
    assert first.records["wall_seconds"].notna().all() and real.records["wall_seconds"].isna().all()


ANY_LATENCY = {"distribution": "lognormal", "median": "30 ms"}
ANY_PACE = {"pace": {"step_seconds": 0.02, "slowdown": {"distribution": "exponential"}}}


@pytest.mark.parametrize("sharing", ["gossip", {"name": "choco", "gamma": 0.5}, "gradient_tracking"])
def test_several_processes_have_the_models_and_times_of_one(sharing):
    """Also where all links and steps differ: what crosses processes comes when it would come in one."""
    options = {"sharing": sharing, "training": ANY_PACE, "evaluation": {"every": 3, "figures": False}}
    one, several = (
        run(simulated(latency=ANY_LATENCY, nodes_per_process=nodes), **options) for nodes in (None, 4)
    )
    assert several.model_hash == one.model_hash
    assert several.summary["bytes_received"] == one.summary["bytes_received"]
    columns = ["rank", "round", "seconds", "train_loss", "exchange_seconds", "received_payload"]
    assert several.records[columns].equals(one.records[columns])
    of_evaluations = ["round", "seconds", "accuracy", "consensus_distance"]
    assert several.evaluations[of_evaluations].equals(one.evaluations[of_evaluations])
    logs = [sorted(path.name for path in (found.directory / "logs").iterdir()) for found in (one, several)]
    assert logs == [["00000.log"], ["00000.log", "00004.log"]]


@pytest.mark.parametrize(
    "options",
    [
        {"graph": {"name": "teleport", "nodes": 8, "active": 3}},
        {"graph": {"name": "one_peer_exponential", "nodes": 8}, "sharing": "push_sum"},
    ],
)
def test_models_are_the_same_where_neighbors_change(options):
    """Also of a node whose first payload arrives when its sender has ended; times may differ a little."""
    options = options | {"dataset.nodes": 8}
    real = run("inproc", **options)
    for nodes in (None, 3):
        network = simulated(latency=ANY_LATENCY, nodes_per_process=nodes)
        found = run(network, training=ANY_PACE, **options)
        assert found.model_hash == real.model_hash and not found.summary["broken_edges"]


@dataclass
class EndsAt(Gossip):
    """Gossip in which one rank ends in a round, by an error or with its process."""

    kills: bool = False

    def outgoing(self, vector, view):
        if (view.rank, view.round) == (5, 4):
            if self.kills:
                os.kill(os.getpid(), signal.SIGKILL)
            raise RuntimeError("a defect on purpose")
        return super().outgoing(vector, view)


def test_a_process_that_ends_ends_the_simulation(capfd):
    """And a node that fails ends alone: the nodes of the other process go on, too."""
    network, sharing = simulated(latency="10 ms", nodes_per_process=3), {"name": f"{__name__}:EndsAt"}
    alone = run(network, sharing=sharing, training=INSTANT)
    assert alone.summary["finished_nodes"] == 5 and alone.summary["exit_code"] == ExitCode.NODES_LOST
    with pytest.raises(RunFailed):
        decentnode.run(SMALL, communication=network, sharing=sharing | {"kills": True}, training=INSTANT)
    said = capfd.readouterr().out
    assert "rank 0: the process of ranks 3 to 5 has ended at 0.04 simulated s" in said
    assert "rank 5: killed by signal 9" in said


def test_devices_of_classes_take_their_time(tmp_path):
    """And files are beside the configuration that names them."""
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    (folder / "devices.csv").write_text("class,factor\nphone,4\nlaptop,1\n")
    (folder / "trace.csv").write_text("1 2\n" * 6)
    pace = {"step_seconds": "10 ms", "device_classes": "devices.csv", "trace_path": "trace.csv"}
    config = SMALL | {"communication": "simulated", "training": SMALL["training"] | {"pace": pace}}
    (folder / "small.yaml").write_text(yaml.safe_dump(config))
    devices = ["laptop", "phone", *["laptop"] * 4]
    finished = decentnode.run(folder / "small.yaml", progress=False, **{"training.pace.device": devices})
    # All wait for the phone, in the last round only its neighbors.
    assert finished.summary["simulated"]["seconds"] == pytest.approx(0.04 * 4 * (1 + 2))
    assert finished.summary["simulated"]["pace"] == "steps of 0.01 s, devices of devices.csv, by trace"


def test_a_ring_of_equal_nodes_takes_what_it_must(capfd):
    """A round is a step, the latency, and two models through the uplink, which end at the same time."""
    network = simulated(latency="50 ms", uplink="100 kbit/s")
    timed = decentnode.run(SMALL, communication=network, training={"pace": {"step_seconds": 0.2}})
    round_seconds = 0.2 + 0.05 + 2 * 8 * BYTES / 1e5
    expected = [round_seconds * n for n in range(1, 9)]
    slowest = timed.records.groupby("round")["seconds"].max()
    assert slowest.to_numpy() == pytest.approx(expected, abs=1e-7)
    assert timed.summary["simulated"]["seconds"] == pytest.approx(expected[-1])
    lines = capfd.readouterr().out
    assert "simulated time: network fair, latency 50 ms, uplink 100 kbit/s; steps of 0.2 s" in lines
    assert timed.summary["simulated"]["ratio"] == pytest.approx(
        expected[-1] / timed.summary["wall_seconds"], rel=0.01
    )
    assert "simulated time    " in lines
    assert timed.summary["bytes_sent"] == 8 * 6 * 2 * BYTES, "what the links carried"
    # One after the other they take as long.
    queue = run({**network, "network_model": "queue"}, training={"pace": {"step_seconds": 0.2}})
    assert queue.summary["simulated"]["seconds"] == pytest.approx(expected[-1])
    # Nothing is shared with `delay`.
    alone = run({**network, "network_model": "delay"}, training={"pace": {"step_seconds": 0.2}})
    assert alone.summary["simulated"]["seconds"] == pytest.approx(8 * (0.25 + 8 * BYTES / 1e5))


def test_the_slowest_of_n_random_steps_decides_a_round():
    """Exponential steps of mean s on a complete graph: a round takes s (1 + 1/2 + ... + 1/n) on average."""
    pace = {"step_seconds": 1.0, "slowdown": {"distribution": "exponential"}}
    rounds = 600
    long = run(
        simulated(), training={"pace": pace}, rounds=rounds, graph={"name": "fully_connected", "nodes": 6}
    )
    mean = long.summary["simulated"]["seconds"] / rounds
    assert mean == pytest.approx(sum(1 / n for n in range(1, 7)), rel=0.08)


@pytest.mark.parametrize(
    ("overrides", "line"),
    [
        (
            {"training": {}},
            "training.pace: missing: virtual time knows the duration of a step from here alone; write",
        ),
        (
            {"communication": "inproc", "training": {"pace": "instant"}},
            "training.pace: instant: only in virtual time",
        ),
        (
            {"communication": simulated(uplink="10")},
            "communication.uplink: '10' has no unit; write it like 10 Mbit/s",
        ),
        (
            {"communication": simulated(uplink=-1.0)},
            "communication.uplink: must be a number >= 0 or text or a list",
        ),
        (
            {"communication": simulated(downlink=[1.0])},
            "communication.downlink: has 1 numbers; it must have one for",
        ),
        (
            {
                "communication": simulated(uplink="1 Mbit/s"),
                "graph": {"name": "fully_connected", "nodes": 200},
            },
            "communication.network_model: fair computes at most 16,384 flows at once; the graph has 39,800",
        ),
        (
            {"communication": simulated(tcp="reno")},
            "communication.tcp: must be 'cm02' or 'lv08' or null, not 'reno'",
        ),
        (
            {"communication": simulated(latency={"edges": [[0, 1, 0.02]], "other": 1.0})},
            "communication.latency.other: unknown key; did you mean 'others'?",
        ),
        (
            {"communication": simulated(bandwidth={"edges": [[0, 9, "1 Mbit/s"]]})},
            "communication.bandwidth: edges[0]: 0 9 must be two of the 6 ranks, 0 to 5",
        ),
        (
            {"communication": simulated(latency="no.csv")},
            "communication.latency: 'no.csv' is no number, nor a file that is there",
        ),
        (
            {"training": {"seconds_per_round": 1.0, "pace": "instant"}},
            "training.seconds_per_round: needs training.pace",
        ),
        (
            {
                "sharing": "push_gossip",
                "time_model": {"name": "asynchronous"},
                "training": {"pace": "instant", "steps_per_round": None},
            },
            "training.pace: instant: a window of time has no end of steps without duration; write",
        ),
        ({"security": {"keys": "keys"}}, "security: keys are of links between machines, and a simulation"),
        ({"security": "environment"}, "security: keys are of links between machines, and a simulation"),
        (
            {"communication": simulated(latency="-20 ms")},
            "communication.latency: '-20 ms' is negative; write it like 20 ms",
        ),
        (
            {
                "mapping": {
                    "name": "linear",
                    "machines": [{"address": f"127.0.0.{n}", "nodes": 3} for n in (1, 2)],
                }
            },
            "communication: carries nodes of one machine, but there are 2 machines",
        ),
    ],
)
def test_what_is_no_simulation_is_told(overrides, line):
    whole = {"communication": simulated(), "training": {"pace": {"step_seconds": 0.1}}} | overrides
    with pytest.raises(ConfigError) as error:
        decentnode.validate(SMALL, load=False, **whole)
    assert line in str(error.value)


def test_of_many_nodes_a_sample_is_tested_in_all_evaluations(monkeypatch):
    """The same nodes, without adversaries; the mean model is that of all, and `all` changes nothing else."""
    monkeypatch.setattr("decentnode.config.settings.MOST_TESTED", 4)
    attacked = {"adversaries": [{"name": "sign_flip", "ranks": [2]}], "rounds": 3}
    tests = {"every": 1, "figures": False}
    sampled, whole = (
        run(simulated(), training=INSTANT, evaluation=tests | more, **attacked)
        for more in ({}, {"nodes": "all"})
    )
    ranks = [row.ranks for row in sampled.rows]
    assert ranks == [ranks[0]] * 3 and len(ranks[0]) == 4 and 2 not in ranks[0]
    assert [row.ranks for row in whole.rows] == [[0, 1, 3, 4, 5]] * 3
    assert sampled.model_hash == whole.model_hash
    for few, every in zip(sampled.rows, whole.rows, strict=True):
        assert few.average_model == every.average_model and few.bytes_sent == every.bytes_sent
        assert few.consensus_distance == every.consensus_distance
        assert few.metrics["loss"] == {rank: every.metrics["loss"][rank] for rank in few.ranks}
    assert (sampled.summary["tested_nodes"], whole.summary["tested_nodes"]) == (4, 5)
    assert "mean of 4 of 6 nodes" in sampled._repr_html_()
    said = [value for name, value in closing_lines(sampled.summary, ExitCode.OK, Path())]
    assert sum("(over 4 of 6 nodes)" in value for value in said) == 2
