"""Asynchronous nodes in virtual time: what wakes them, when their messages leave, and replays."""

import asyncio
import csv
from functools import partial

import pytest

from decentnode.communication.exchange.message_queue import MessageQueue
from decentnode.core.byte_counters import HEADER_BYTES
from decentnode.errors import PeerLost
from decentnode.node.experiment import Experiment
from decentnode.sharing.asynchronous.ad_psgd import AdPsgd
from decentnode.simulation.clock import VirtualClock
from decentnode.simulation.loop import VirtualLoop
from tests.integration.running import ROOT
from tests.simulation.test_runs import run, simulated
from tests.support.in_process import Nodes

MODEL_BYTES = 4 * (10 * 10 + 10) + HEADER_BYTES


def asynchronous(sharing, rounds=4, seconds=1.0, step_seconds=0.1, **time_model):
    return {
        "sharing": sharing,
        "time_model": {"name": "asynchronous", "seconds_per_round": seconds, **time_model},
        "training": {
            "steps_per_round": None,
            "pace": {"step_seconds": step_seconds, "slowdown": {"distribution": "exponential"}},
        },
        "rounds": rounds,
    }


def deliveries(run):
    with (run.directory / "network.csv").open() as file:
        return [{name: int(value) for name, value in row.items()} for row in csv.DictReader(file)]


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    "sharing",
    [
        "push_gossip",
        "swift",
        {"name": "divshare", "fragments": 3, "every": 2},
        {"name": "epidemic_push", "timeout": 1.5},
        "ad_psgd",
    ],
)
def test_a_recorded_run_is_replayed_in_real_time_and_in_less_of_it(sharing):
    """Messages arrive between the begin of a step and its end, and the replay has the same models."""
    network = simulated(latency="300 ms", uplink="20 kbit/s")
    slow = partial(asynchronous, sharing, rounds=6, seconds=10.0, step_seconds=1.0)
    recorded = run(network, **slow(schedule="record"))
    windows = [
        line for file in (recorded.directory / "schedule").iterdir() for line in file.read_text().splitlines()
    ]
    assert any('"begun"' in line for line in windows)
    assert all(len(line) > 40 for line in windows if '"round":6' not in line)
    replay = slow(schedule="replay", schedule_path=str(recorded.directory))
    replayed = run("inproc", **replay)
    assert replayed.model_hash == recorded.model_hash
    assert replayed.records["seconds"].max() < 45, "the recorded run took 60 simulated seconds"
    windows = recorded.records[recorded.records["round"] < 5]
    assert (windows["train_seconds"] + windows["exchange_seconds"] <= 10.0 + 1e-9).all()
    # Ten steps of a second fit into a window; epidemic_push waits for 1.5 s after each.
    assert 3 < windows["steps"].mean() < 15 and windows["train_seconds"].mean() > 3
    assert 60.0 <= recorded.records["seconds"].max() < 65
    if sharing == "swift":
        again = run(network, **replay)
        assert again.model_hash == recorded.model_hash
        assert again.records["seconds"].max() == pytest.approx(60.0)


def test_the_message_that_is_sent_before_a_step_leaves_at_its_begin():
    """SWIFT sends the model as it was before the step: while the step is computed, it is on its way."""
    once = asynchronous("swift", rounds=1, seconds=9.0, step_seconds=4.0)
    once["training"]["pace"]["slowdown"] = 1.0
    sent = deliveries(run(simulated(latency="1 s", delivery_log=True), **once))
    steps = [line for line in sent if line["bytes"] == MODEL_BYTES]
    assert {(line["sent"], line["delivered"]) for line in steps} == {
        (s * 10**9, (s + 1) * 10**9) for s in (0, 4, 8)
    }
    assert [line["number"] for line in sent] == sorted(line["number"] for line in sent)


def nodes_in_virtual_time(tmp_path, *overrides):
    config = ROOT / "configs" / "asynchronous.yaml"
    experiment = Experiment.from_yaml(config, ["evaluation.every=0", "communication=simulated", *overrides])
    clock = VirtualClock()
    return clock, Nodes(experiment, tmp_path / "records", clock=clock)


def run_whole(clock, nodes):
    async def everybody():
        await asyncio.gather(*(node.run() for node in nodes.nodes))

    with asyncio.Runner(loop_factory=partial(VirtualLoop, clock)) as runner:
        runner.run(everybody())


def test_a_request_over_a_slow_link_is_sent_once(tmp_path, monkeypatch):
    """An answer takes some 8 s, far more than the least pause of .5 s, and nothing is lost."""
    repeats, resend = [], AdPsgd.resend

    def counted(scheme, now):
        posts = resend(scheme, now)
        repeats.extend(posts)
        return posts

    monkeypatch.setattr(AdPsgd, "resend", counted)
    clock, nodes = nodes_in_virtual_time(
        tmp_path, "graph={name: ring, nodes: 4}", "rounds=2", "time_model.seconds_per_round=200",
        "training.pace={step_seconds: 4}", "communication={name: simulated, uplink: 100 kbit/s}",
        "sharing={name: ad_psgd, every: 4}", "failures.deadline=60",
    )  # fmt: skip
    run_whole(clock, nodes)
    requests = sum(node.sharing._number for node in nodes.nodes)
    assert requests > 50
    # Before the first answers a node cannot know: from .5 s on, four repeats are more than 8 s.
    assert len(repeats) <= 4 * len(nodes.nodes)
    assert not any(node.exchange.missing for node in nodes.nodes)


@pytest.mark.parametrize("sharing", ["ad_psgd", "epidemic_push"])
def test_idle_nodes_are_woken_by_events_alone(tmp_path, monkeypatch, sharing):
    """64 nodes and an hour of virtual time; looks every 50 ms would be 4.6 million."""
    looks = []
    wait = MessageQueue.wait

    async def counted(queue, clock, seconds):
        looks.append(seconds)
        await wait(queue, clock, seconds)

    monkeypatch.setattr(MessageQueue, "wait", counted)
    clock, nodes = nodes_in_virtual_time(
        tmp_path, "graph={name: ring, nodes: 64}", "rounds=6", "time_model.seconds_per_round=600",
        "training.pace={step_seconds: 1800}", f"sharing={sharing}",
        "dataset={name: synthetic, nodes: 64, samples_per_node: 20}", "model=logistic_regression",
    )  # fmt: skip
    run_whole(clock, nodes)
    assert clock.now() >= 3600
    # A step, the end of a window, and the messages of two steps.
    assert 6 * 64 <= len(looks) < 6 * 64 * 4
    assert sum(node.sharing._steps for node in nodes.nodes) == 64


def test_a_waiting_node_sees_a_loss_at_once_and_takes_no_silent_peer_for_lost(tmp_path):
    clock, nodes = nodes_in_virtual_time(
        tmp_path, "graph={name: ring, nodes: 4}", "rounds=1", "time_model.seconds_per_round=1000",
        "training.pace={step_seconds: 300}", "failures.deadline=20", "sharing={name: ad_psgd, staleness: 0}",
    )  # fmt: skip
    seen = []
    for node in nodes.nodes:
        continue_without = node.exchange.continue_without

        def noted(error, node=node, then=continue_without):
            seen.append((clock.now(), node.rank, error.peer, type(error).__name__))
            then(error)

        node.exchange.continue_without = noted
    silent = nodes.nodes[2]

    async def main():
        async def lose():
            await clock.sleep(100.25)
            nodes.nodes[0].exchange.endpoint.peers.lose(1, PeerLost(1, "link broken"))

        async def node(node):
            if node is silent:
                # It neither answers nor leaves until the others have ended.
                await clock.sleep(2000.0)
            else:
                await node.run()

        await asyncio.gather(lose(), *map(node, nodes.nodes))

    with asyncio.Runner(loop_factory=partial(VirtualLoop, clock)) as runner:
        runner.run(main())
    assert (100.25, 0, 1, "PeerLost") in seen
    assert "PeerTimeout" not in {kind for _, _, _, kind in seen}, (
        "virtual time looks at links, not at silence"
    )
