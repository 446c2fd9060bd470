"""Nodes in the asynchronous loop: in this process, as processes that die or lose messages, and replayed."""

import asyncio
import os
import signal
from hashlib import sha256

import pytest
import torch

from decentnode.communication.exchange.handle import ExchangeOwner
from decentnode.communication.exchange.message_queue import MessageQueue
from decentnode.communication.inproc import LocalMessage
from decentnode.core.clock import Clock
from decentnode.core.payload import Payload
from decentnode.errors import BadInput, DecentnodeError, PeerLeft, PeerLost, RunFailed
from decentnode.formats.model_files import model_hash
from decentnode.formats.reader import read_events
from decentnode.formats.records import read_records
from decentnode.node.asynchronous.schedule import PeerRejoined, _written, read_schedule
from decentnode.node.checkpoint.safetensors_io import content_of
from decentnode.node.experiment import Experiment
from tests.integration.running import ROOT, Run
from tests.support.in_process import Nodes

CONFIG = ROOT / "configs" / "asynchronous.yaml"
FEW = ["graph={name: ring, nodes: 4}", "rounds=3", "time_model.seconds_per_round=0.15", "evaluation.every=0"]


def nodes_of(tmp_path, name, *overrides):
    experiment = Experiment.from_yaml(CONFIG, [*FEW, "communication=inproc", *overrides])
    return Nodes(experiment, tmp_path / name)


def run_whole(nodes):
    async def everybody():
        await asyncio.gather(*(node.run() for node in nodes.nodes))

    asyncio.run(everybody())
    return nodes.models


def test_a_recorded_run_is_replayed_bit_for_bit_over_two_transports(tmp_path):
    (tmp_path / "recorded").mkdir()
    recorded = nodes_of(tmp_path / "recorded", "records", "time_model.schedule=record")
    models = run_whole(recorded)
    # Every node has used messages, or this test shows nothing.
    for rank in range(4):
        events = [
            e for window in read_schedule(tmp_path / "recorded" / "schedule", rank, 3) for e in window.events
        ]
        assert any(isinstance(event, str) for event in events) and any(
            isinstance(event, int) for event in events
        )
    replay = ["time_model.schedule=replay", f"time_model.schedule_path={tmp_path / 'recorded'}"]
    assert torch.equal(run_whole(nodes_of(tmp_path, "again", *replay)), models)
    over_tcp = "communication={name: zeromq, local: tcp, base_port: 29840}"
    run = Run(tmp_path / "tcp", [*FEW, *replay, over_tcp], CONFIG)
    assert run.wait() == 0, run.story
    digests = {rank: sha256(content_of(model)).hexdigest() for rank, model in enumerate(models)}
    assert len(set(digests.values())) == 4
    assert run.summary["model_hash"] == model_hash(digests)


def test_a_node_that_dies_or_loses_messages_never_stops_the_others(tmp_path):
    lossy = "faults=[{name: drop, probability: 0.1}]"
    run = Run(tmp_path / "run", [*FEW, "rounds=12", lossy], CONFIG)
    run.wait_for_round(2)
    os.kill(run.pid_of(1), signal.SIGKILL)
    assert run.wait() == 3, run.story
    assert run.summary["lost_nodes"] == {"1": "killed by signal 9"}
    later = 0
    for rank in (0, 2, 3):
        records = read_records(run.run_dir / "records" / f"{rank:05d}.jsonl")
        assert [record.round for record in records] == list(range(12))
        later += sum(record.steps for record in records[4:])
    # Of all: on a busy machine one may get no time for so long.
    assert later > 0
    assert read_records(run.run_dir / "records" / "00000.jsonl")[-1].refused.keys() <= {"queue full"}


def test_a_schedule_that_does_not_fit_is_refused_before_the_start(tmp_path):
    (tmp_path / "schedule").mkdir()
    replay = ["time_model.schedule=replay", f"time_model.schedule_path={tmp_path}"]
    with pytest.raises(BadInput, match="No such file"):
        nodes_of(tmp_path, "a", *replay)
    file = tmp_path / "schedule" / "00000.jsonl"
    file.write_text('{"round": 0, "events": [3, "1:0:1"]}\n')
    with pytest.raises(BadInput, match="has 0 whole rounds; a replay needs all 3"):
        nodes_of(tmp_path, "b", *replay)
    for event in ('"1:zero"', '"77:0:1"', '"lost:4"', '"back:one"', '"5"', "-3"):
        file.write_text(f'{{"round": 0, "events": [3, {event}]}}\n')
        with pytest.raises(BadInput, match="schedule_path"):
            nodes_of(tmp_path, "c", *replay)


def test_a_message_that_does_not_come_ends_a_replay_with_one_line(tmp_path):
    (tmp_path / "schedule").mkdir()
    for rank in range(4):
        events = ["1:0:77"] if rank == 0 else []
        lines = [f'{{"round": {round}, "events": {events if not round else []}}}' for round in range(4)]
        text = "\n".join(lines).replace("'", '"') + "\n"
        (tmp_path / "schedule" / f"{rank:05d}.jsonl").write_text(text)
    replay = ["time_model.schedule=replay", f"time_model.schedule_path={tmp_path}", "failures.deadline=0.2"]
    with pytest.raises(
        RunFailed, match=r"rank 0, round 1: replay: message 77 \(tag 0\) of rank 1 .* within 0 s"
    ):
        run_whole(nodes_of(tmp_path, "nodes", *replay))


def test_a_node_resumes_from_its_checkpoint_but_not_with_a_schedule(tmp_path):
    nodes = nodes_of(tmp_path, "one").begin().run(0, 1)
    saved = nodes.saved()
    resumed = nodes_of(tmp_path, "two").load(saved)
    assert torch.equal(resumed.models, nodes.models)
    resumed.run(1, 3)
    assert all(node.sharing._steps for node in resumed.nodes)
    (tmp_path / "x").mkdir()
    with pytest.raises(
        DecentnodeError, match=r"rank 0: a schedule is of a whole run; leave out time_model\.schedule"
    ):
        nodes_of(tmp_path / "x", "three", "time_model.schedule=record").load(saved)


def test_stopped_delayed_and_parted_nodes_continue_and_so_does_a_run_that_was_interrupted(tmp_path):
    faults = (
        "faults=[{name: delay, probability: 0.2, seconds: 0.1}, "
        "{name: partition, groups: [[0, 1], [2, 3]], rounds: [2, 4]}]"
    )
    run = Run(tmp_path / "run", [*FEW, "rounds=18", faults, "failures.deadline=20"], CONFIG)
    run.wait_for_round(1)
    frozen = run.pid_of(1)
    os.kill(frozen, signal.SIGSTOP)
    run.wait_for_round(5)
    os.kill(frozen, signal.SIGCONT)
    run.wait_for_round(6)
    os.kill(run.process.pid, signal.SIGINT)
    assert run.wait() == 130, run.story
    before = {rank: len(read_records(run.run_dir / "records" / f"{rank:05d}.jsonl")) for rank in range(4)}
    assert all(0 < count < 18 for count in before.values()), before
    again = Run(run.run_dir, verb="resume")
    assert again.wait() == 0, again.story
    assert again.summary["finished_nodes"] == 4 and not again.summary["lost_nodes"]
    for rank in range(4):
        records = read_records(run.run_dir / "records" / f"{rank:05d}.jsonl")
        assert [record.round for record in records] == list(range(18))
        assert sum(record.steps for record in records[before[rank] :]) > 0


@pytest.mark.parametrize("transport", ["inproc", "zeromq"])
@pytest.mark.parametrize("on_loss", ["continue", "stop"])
def test_a_peer_that_fails_is_a_loss_and_not_a_node_that_has_ended(tmp_path, transport, on_loss):
    options = [f"communication={transport}", f"failures.on_loss={on_loss}", "sharing=faulty:PushRaisesAt"]
    # Rank 2 must make a step in one of them, and on a busy machine it may get no time for seconds.
    run = Run(tmp_path / "run", [*FEW, "rounds=40", *options], CONFIG)
    code = run.wait()
    lost, events = run.summary["lost_nodes"], read_events(run.run_dir / "events.jsonl")
    assert "a defect on purpose" in lost["2"]
    if on_loss == "continue":
        assert code == 3 and lost.keys() == {"2"}, run.story
        assert {(e.rank, e.peer) for e in events if e.kind == "peer_lost"} == {(1, 2), (3, 2)}
        assert all("left by an error" in e.text for e in events if e.kind == "peer_lost")
    else:
        assert code == 4 and lost.keys() == {"0", "1", "2", "3"}, run.story
        # Each stops at the first loss that it sees, which may be that of a node that has stopped.
        assert all("left by an error (failures.on_loss: stop)" in lost[rank] for rank in "013")
        assert any("lost rank 2: left by an error" in lost[rank] for rank in "13")


def test_a_peer_that_leaves_in_order_is_asked_no_more_and_is_no_loss(tmp_path, monkeypatch):
    node = nodes_of(tmp_path, "records").begin().run(0, 1).nodes[0]
    exchange, scheme = node.exchange, node.exchange._sharing
    exchange.finished.clear()
    scheme._asked = 3
    monkeypatch.setattr(exchange.endpoint, "why_lost", lambda peer: PeerLeft(peer, 2))
    for error in list(exchange.lost()):
        exchange.continue_without(error)
    assert exchange.missing.keys() == {1, 3} and not exchange._peer_errors and not exchange.unfinished
    assert not list(scheme.awaited) and scheme.live_targets(exchange._view) == []
    assert not list(exchange.lost())
    events = [PeerLeft(3, 2), PeerLeft(3, 2, failed=True), PeerLost(3, "link broken"), PeerRejoined(3)]
    assert list(map(_written, events)) == ["left:3", "lost:3", "lost:3", "back:3"]


def test_a_neighbor_of_an_earlier_window_that_leaves_in_order_is_awaited_no_more(tmp_path, monkeypatch):
    node = nodes_of(tmp_path, "records").begin().run(0, 1).nodes[0]
    exchange, scheme = node.exchange, node.exchange._sharing
    exchange.finished |= {1, 3}
    scheme._asked = 2
    assert 2 not in exchange._neighbors
    monkeypatch.setattr(exchange.endpoint, "why_lost", lambda peer: PeerLeft(peer, 2))
    (error,) = exchange.lost()
    exchange.continue_without(error)
    assert error.peer == 2 and not list(scheme.awaited) and not exchange._peer_errors
    assert not list(exchange.lost())


@pytest.mark.parametrize("most", [1, 4])
def test_the_newest_messages_of_a_sender_stay_in_the_queue(most):
    owner = ExchangeOwner(None)
    queue = MessageQueue(owner)
    queue.most = most
    payload = Payload.dense(torch.zeros(1))
    for number in range(6):
        for source in (1, 2):
            queue.put(7, LocalMessage(source, number, 0, payload, 0, {}))
    taken = queue.take()
    for source in (1, 2):
        assert [m.seq for _, m in taken if m.source == source] == list(range(6 - most, 6))
    assert owner.refused == {"queue full": 2 * (6 - most)} and queue.take() == []
    asyncio.run(queue.wait(Clock(), 0.001))


def test_a_transport_that_broke_ends_the_node():
    owner = ExchangeOwner(None)
    owner.failure = OSError("no sockets")
    with pytest.raises(RunFailed, match="the transport broke: no sockets"):
        MessageQueue(owner).take()
