"""Failures in virtual time: what a run without them, or a real one, must agree with."""

import asyncio
from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import decentnode
from decentnode.communication.simulated_links import SimulatedLinks
from decentnode.errors import ConfigError, RunFailed
from decentnode.node.faults import NodeAvailability
from decentnode.simulation import loop
from decentnode.simulation.clock import SECOND, VirtualClock
from decentnode.simulation.network import Network
from decentnode.simulation.outages import NEVER, Outages, OutageSchedule, interval

SMALL = {
    "name": "small",
    "graph": {"name": "ring", "nodes": 6},
    "dataset": {"name": "synthetic", "nodes": 6, "samples_per_node": 20, "features": 10},
    "model": "logistic_regression",
    "training": {
        "optimizer": {"name": "SGD", "lr": 0.1}, "batch_size": 4, "steps_per_round": 1,
        "pace": {"step_seconds": 0.2},
    },
    "communication": {"name": "simulated", "latency": "10 ms"},
    "failures": {"grace": 1.0},
    "rounds": 12,
    "evaluation": {"every": 0, "figures": False},
    "records": {"models": {}},
}  # fmt: skip


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def run(*faults, **overrides):
    return decentnode.run(SMALL, progress=False, faults=list(faults), **overrides)


intervals = st.lists(st.tuples(st.integers(0, 60), st.integers(1, 20)).map(lambda t: (t[0], t[0] + t[1])))


@given(st.lists(intervals.map(sorted), max_size=3), st.integers(0, 80), st.integers(0, 40))
def test_a_step_ends_after_so_many_instants_outside_of_all_outages(sources, now, duration):
    schedule = OutageSchedule(*sources)
    offline = {instant for source in sources for begin, end in source for instant in range(begin, end)}
    due, left = now, duration
    while left or due in offline:
        # At its due time a step is done, also where an outage begins there.
        if not left and due > now and due - 1 not in offline:
            break
        left -= due not in offline
        due += 1
    assert schedule.after(now, duration) == due
    assert all(end < begin for (_, end), (begin, _) in zip(list(schedule), list(schedule)[1:], strict=False))
    assert OutageSchedule([(5, NEVER)]).after(0, 6) >= NEVER


def test_an_outage_shorter_than_grace_costs_time_and_nothing_else():
    plain = run()
    for fault in (
        {"name": "offline", "ranks": 2, "at": "0.5 s", "seconds": "0.7 s"},
        {"name": "link_down", "links": [[2, 3]], "at": "0.4 s", "seconds": "0.9 s"},
        {"name": "partition", "groups": [[0, 1, 2], [3, 4, 5]], "at": "0.4 s", "seconds": 0.9},
    ):
        interrupted = run(fault)
        assert interrupted.model_hash == plain.model_hash
        later = interrupted.summary["simulated"]["seconds"] - plain.summary["simulated"]["seconds"]
        assert 0.6 < later < 1.0, "everybody waits for the end of the outage"
        assert not interrupted.records["lost"].any()
    # A step that is interrupted ends as much later: .5 s was within the third step, so all end .7 s later.
    offline = run({"name": "offline", "ranks": 2, "at": "0.5 s", "seconds": "0.7 s"})
    more = offline.summary["simulated"]["seconds"] - plain.summary["simulated"]["seconds"]
    assert more == pytest.approx(0.7, abs=1e-6)


@pytest.mark.parametrize("model", ["delay", "queue", "fair"])
def test_a_cut_costs_what_it_lasts_and_a_crashed_node_holds_up_nobody(model):
    """Messages take 5 s or more, and continue after a cut; those of a node that is gone use no link."""
    network = {"name": "simulated", "uplink": "704 bit/s", "downlink": "704 bit/s", "network_model": model}
    options = {"rounds": 1, "communication": network, "failures": {"grace": 2.0}}
    plain = run(**options).summary["simulated"]["seconds"]
    for moment in (0.3, 5.0, 9.0):
        cut = {"name": "link_down", "links": [[2, 3]], "at": moment, "seconds": 1.0}
        # The rest travels again, and is a whole number of bytes.
        assert run(cut, **options).summary["simulated"]["seconds"] <= plain + 1.0 + 0.01 + 1 / 88, moment
    crashed = run({"name": "crash", "ranks": 2, "at": 0.3}, **options)
    assert crashed.summary["simulated"]["seconds"] <= plain + 1e-6
    assert crashed.records["lost"].sum() == 2


def test_a_crash_leaves_the_models_that_a_real_one_leaves():
    """At the beginning of round 5, in both: 4 rounds of .21 s are done at .85 s."""
    simulated = run({"name": "crash", "ranks": 2, "at": "0.85 s"})
    real = run(
        {"name": "crash", "ranks": 2, "rounds": 4, "activity": "train"},
        communication="zeromq", training={"pace": None},
    )  # fmt: skip
    assert simulated.summary["lost_nodes"].keys() == real.summary["lost_nodes"].keys() == {"2"}
    assert "crashed at 0.85 simulated s" in simulated.summary["lost_nodes"]["2"]
    assert simulated.model_hash == real.model_hash


def test_a_node_that_was_offline_for_longer_rejoins_and_every_run_is_the_same():
    long = {"name": "offline", "ranks": 2, "at": "0.5 s", "seconds": "3 s"}
    first, again = run(long, rounds=40), run(long, rounds=40)
    assert first.model_hash == again.model_hash
    assert first.records["seconds"].equals(again.records["seconds"])
    lost = first.records[first.records["lost"] > 0]
    assert set(lost["rank"]) == {1, 2, 3}, "its neighbors continue without it, and it without them"
    # Neighbors lose it a second after it has gone, and have it back at most a few rounds after .5 + 3 s.
    others = lost[lost["rank"] != 2]
    assert others["seconds"].min() == pytest.approx(1.5, abs=0.3)
    assert others["seconds"].max() < 4.2
    assert first.records.groupby("rank")["round"].max().eq(40).all()


def test_a_link_that_is_cut_for_ever_hides_no_standstill(monkeypatch):
    monkeypatch.setattr(loop, "STANDSTILL", 0.1)
    monkeypatch.setattr(loop, "LONGEST_BLOCK", 0.05)
    clock, reported = VirtualClock(), []
    clock.nanoseconds = 5 * SECOND
    cuts = [(interval(1.0, 3.0), lambda rank, peer: True), (interval(6.0, None), lambda rank, peer: True)]
    outages = Outages(cuts=cuts, report=lambda rank, what: reported.append(what))
    links = SimulatedLinks({}, Network("queue", *np.zeros((3, 2, 2))), clock, outages, grace=1.0)
    links._known_peers[0].add(1)

    async def main():
        links.begin()
        await asyncio.Event().wait()

    links._break = lambda rank, peer: reported.append("broken")
    with (
        asyncio.Runner(loop_factory=partial(loop.VirtualLoop, clock)) as runner,
        pytest.raises(RunFailed, match="virtual time stands at 7 s"),
    ):
        runner.run(main())
    # The first cut was over when the run was resumed.
    assert reported == ["link to rank 1 cut at 6 simulated s", "broken"]


def test_asynchronous_nodes_come_and_go():
    churn = {"name": "churn", "ranks": [1, 4], "online": "1 s", "offline": "1 s"}
    asynchronous = {
        "sharing": "ad_psgd",
        "time_model": {"name": "asynchronous", "seconds_per_round": 1.0},
        "training": {"steps_per_round": None, "pace": {"step_seconds": 0.1}},
        "rounds": 8,
    }
    first, again = run(churn, **asynchronous), run(churn, **asynchronous)
    assert first.model_hash == again.model_hash
    steps = first.records.groupby("rank")["steps"].sum()
    assert steps[[1, 4]].max() < 0.9 * steps[[0, 2, 3, 5]].min(), "no steps while a node is offline"


def test_a_trace_says_when_nodes_are_online(tmp_path):
    trace = tmp_path / "trace.csv"
    trace.write_text("rank,from,to\n2,0,0.5\n2,1.1,inf\n")
    interrupted = run({"name": "availability", "path": str(trace)})
    offline = run({"name": "offline", "ranks": 2, "at": "0.5 s", "seconds": "0.6 s"})
    assert interrupted.model_hash == offline.model_hash
    assert interrupted.records["seconds"].equals(offline.records["seconds"])
    fault = NodeAvailability(path=str(trace))
    for text, what in {
        "": "line 1: must be rank,from,to, not empty",
        "rank,from,to\n1,0\n": "line 2: must be a rank and two times, not 1,0",
        "rank,from,to\n1,0,5\n1,4,6\n": "line 3: begins at 4 s and ends at 6 s, after 5 s",
        "rank,from,to\n1,0,5 mins\n": "line 2: '5 mins' has an unknown unit; write it like 20 ms",
        "rank,from,to\n9,0,5\n": "rank 9 does not exist; the graph has the ranks 0..5",
    }.items():
        trace.write_text(text)
        with pytest.raises(ConfigError) as error:
            decentnode.validate(SMALL, load=False, faults=[{"name": "availability", "path": fault.path}])
        assert what in str(error.value)


@pytest.mark.parametrize(
    ("fault", "line"),
    [
        ({"name": "crash", "ranks": 1, "rounds": 1}, "crash needs `at` in virtual time, the second at which"),
        ({"name": "drop", "at": 1}, "drop acts on real processes; in virtual time use crash, partition,"),
        ({"name": "crash", "at": 1, "rounds": 1}, "rounds: has no effect in virtual time; `at` says when it"),
        ({"name": "crash", "at": "soon"}, "at: 'soon' is no number; write it like 20 ms"),
        ({"name": "crash", "at": 1, "activity": "mix"}, "activity: has no effect in virtual time; leave it"),
        ({"name": "offline", "seconds": "0 s"}, "seconds: must be > 0 and finite, not 0 s"),
        ({"name": "link_down", "links": [[1, 2]], "probability": 0.5}, "probability: has no effect in virtu"),
        ({"name": "link_down", "links": [[1, 1]]}, "links: must be pairs of two ranks, such as [[0, 1]"),
        ({"name": "churn", "online": 3}, "offline: missing"),
    ],
)
def test_what_is_no_failure_of_virtual_time_is_told(fault, line):
    with pytest.raises(ConfigError) as error:
        decentnode.validate(SMALL, load=False, faults=[fault])
    assert line in str(error.value)


def test_real_runs_have_no_virtual_faults():
    with pytest.raises(ConfigError) as error:
        decentnode.validate(
            SMALL, load=False, communication="zeromq", faults=[{"name": "offline", "seconds": 3}]
        )
    assert "offline acts at virtual times, which communication: simulated has" in str(error.value)
