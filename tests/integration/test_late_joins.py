"""Nodes and machines that come after the start, or come again."""

import os
import signal
import time

import pytest

from decentnode.formats.reader import EvaluationRow, read_evaluations
from decentnode.node.checkpoint import store as checkpoint
from tests.integration.running import Run, alive, call, wait_until
from tests.integration.test_machines import machines
from tests.support import checkpoints

ENDLESS = ["rounds=100000", "evaluation.every=0", "sharing=faulty:Paced"]
SLOWER = "sharing.pace=0.05"
"""For what is waited for by the clock: half of the rounds meanwhile."""
FOUR = [*ENDLESS, SLOWER, "graph=ring", "graph.nodes=4"]


def restart_node(run: Run, rank: int) -> tuple[int, str]:
    """What `decentnode restart` says, and its exit code."""
    answer = call("restart", str(run.run_dir), str(rank))
    return answer.returncode, answer.stdout + answer.stderr


def test_a_dead_node_is_restarted_when_somebody_asks(tmp_path):
    """No attempts are configured; the node has its neighbor's model and takes part to the end."""
    run = Run(tmp_path / "run", [*FOUR, "mapping={machines: [{address: localhost, nodes: 4}]}"])
    run.wait_for_round(5)
    code, output = restart_node(run, 2)
    assert (code, output) == (2, f"{run.run_dir}: rank 2 is running\n")
    os.kill(run.pid_of(2), signal.SIGKILL)
    wait_until(lambda: "rank 2 is lost" in run.text, 60, lambda: run.text)
    assert restart_node(run, 2) == (0, "rank 2: started again\n")
    wait_until(lambda: run.text.count("exchanges with rank 2 again") >= 2, 60, lambda: run.text)
    run.process.send_signal(signal.SIGTERM)
    assert run.wait() == 143, run.text
    assert run.summary["restarted_nodes"] == {"2": 1}
    assert run.summary["lost_nodes"] == {} and run.summary["stopped_nodes"] == 4
    seconds = [record.seconds for record in run.records(2)]
    assert seconds == sorted(seconds)  # its time goes on with that of the run
    code, output = restart_node(run, 2)
    assert code == 2 and "no launcher answers" in output


@pytest.mark.parametrize("keeps", [True, False], ids=["with an earlier one", "with nothing else"])
def test_a_node_whose_checkpoint_is_of_a_later_round_takes_part_where_the_others_are(tmp_path, keeps):
    """As one that went on alone, or whose peers were resumed from an earlier round; nobody follows it."""
    here = "mapping={machines: [{address: localhost, nodes: 4}]}"
    run = Run(tmp_path / "run", [*FOUR, here, "checkpoint.every=5"])
    run.wait_for_round(15)
    os.kill(run.pid_of(2), signal.SIGKILL)
    wait_until(lambda: "rank 2 is lost" in run.text, 60, lambda: run.text)
    died, directory = run.records(2)[-1].round, run.run_dir / "checkpoints"
    found, later = checkpoint.newest(directory, 2), 90_000
    found.state["node"]["round"] = later
    checkpoints.save(directory, 2, later, found.state, found.stamp)
    for round in [] if keeps else checkpoint.rounds(directory, 2)[:-1]:
        checkpoint.delete(directory, [2], round)
    assert restart_node(run, 2) == (0, "rank 2: started again\n")
    # Rounds are quicker here than what is said about them, so an edge may come back at the second try.
    wait_until(
        lambda: any(record.round > died and record.heard == 2 for record in run.records(2)),
        60, lambda: run.text,
    )  # fmt: skip
    run.wait_for_round(run.records(0)[-1].round + 20)
    run.process.send_signal(signal.SIGTERM)
    assert run.wait() == 143, run.text
    assert "silent for" not in run.text
    done = {rank: [record.round for record in run.records(rank)] for rank in range(4)}
    for rank in (0, 1, 3):
        assert done[rank] == list(range(len(done[rank]))), rank
    assert done[2] == sorted(set(done[2])) and done[2][-1] == done[0][-1]
    assert later not in checkpoint.rounds(directory, 2)
    log = (run.run_dir / "logs" / "00002.log").read_text()
    assert ("has its checkpoint of round" in log) == keeps and ("has the model of rank" in log) != keeps


LIMITS = {"machine_twin": 1.0}
MAPPING = machines(["127.0.0.1", "127.0.0.2", "127.0.0.3"], [2, 2, 3])


@pytest.fixture
def started():
    """Runs that are ended with the test, however it ends."""
    runs = []
    yield runs
    for run in runs:
        if run.process.poll() is None:
            run.process.kill()


def start(tmp_path, machine: int, port: int) -> Run:
    ring = [*ENDLESS, SLOWER, "graph=ring", "graph.nodes=7", "checkpoint.every=5"]
    ports = [f"mapping.rendezvous_port={port}", f"communication={{name: zeromq, base_port: {port + 10}}}"]
    failures = "failures={start: at_least 4, grace: 1, deadline: 20}"
    everywhere = [*ring, MAPPING, *ports, failures, "security=none", f"machine={machine}"]
    return Run(tmp_path / f"machine{machine}", everywhere, limits=LIMITS)


def test_a_machine_takes_part_that_comes_after_the_start_and_comes_again(tmp_path, started):
    """Two of three begin; the third comes, is killed whole, and comes again from its checkpoints."""
    first, second = (start(tmp_path, i, 30600) for i in range(2))
    started += first, second
    first.wait_for_round(5)
    assert "rank 4 on machine 2 is lost: has not come yet" in first.text
    third = start(tmp_path, 2, 30600)
    started.append(third)
    take_part(third, 10)
    began = third.records(4)[0]
    assert_same_time(first, third)
    wait_until(lambda: list(third.run_dir.glob("checkpoints/00005/*.json")), 40, lambda: third.text)
    third.process.kill()
    third.process.wait()
    time.sleep(LIMITS["machine_twin"])  # so long machine 0 takes the first one to be alive
    done = third.records(4)[-1].round
    third = Run(third.run_dir, verb="resume")
    started.append(third)
    take_part(third, done + 1)
    assert_same_time(first, third)
    assert third.records(4)[0] == began, "its records of before are those of before"
    assert "has its checkpoint of round" in (third.run_dir / "logs" / "00005.log").read_text()
    first.process.send_signal(signal.SIGTERM)
    assert [run.wait() for run in (first, second, third)] == [143] * 3, first.text
    assert first.summary["lost_nodes"] == {} and first.summary["stopped_nodes"] == 7
    assert first.summary["restarted_nodes"] == {"4": 2, "5": 2, "6": 2}
    assert len({run.summary["run_id"] for run in (first, second, third)}) == 1


def start_evaluated(tmp_path, machine: int, port: int, *overrides: str) -> Run:
    """One of three machines that evaluate and observe; the same command starts it again."""
    everywhere = [
        "graph=ring", "graph.nodes=7", "checkpoint.every=10", "evaluation.every=10", MAPPING,
        f"mapping.rendezvous_port={port}", f"communication={{name: zeromq, base_port: {port + 10}}}",
        "failures={grace: 1, deadline: 20}", "security=none", f"machine={machine}", "--continue",
    ]  # fmt: skip
    limits = LIMITS | {"machine_silent": 3.0}
    run = Run(tmp_path / f"machine{machine}", [*everywhere, *overrides], limits=limits)
    run.run_dir /= f"machine-{machine}"
    return run


def evaluated(run: Run) -> list[EvaluationRow]:
    return read_evaluations(run.run_dir / "evaluations.jsonl")


def kill_machine(run: Run) -> int:
    """Kills the launcher and waits until its nodes have followed; returns the last round of rank 0."""
    tree = run.tree()
    run.process.kill()
    run.process.wait()
    wait_until(lambda: not any(map(alive, tree)), 30)
    return run.records(0)[-1].round


def wait_for_observations(run: Run, after: int, nodes: int) -> None:
    """Waits for an evaluation of so many nodes in a later round that has their consensus distance."""

    def has_one() -> bool:
        rows = (row for row in evaluated(run) if row.round > after)
        return any(row.consensus_distance is not None and len(row.ranks) == nodes for row in rows)

    wait_until(has_one, 60, lambda: run.story)


def test_machine_0_is_killed_and_comes_back_and_all_machines_end_with_everything(tmp_path, started):
    told = tmp_path / "enough"
    ends = [f"after_round=[{{name: 'faulty:ends_when_told', path: {told}}}]"]
    endless = ["rounds=100000", "sharing=faulty:Paced", SLOWER, *ends]
    runs = [start_evaluated(tmp_path, machine, 30720, *endless) for machine in range(3)]
    started += runs
    runs[0].wait_for_round(15)
    died = kill_machine(runs[0])
    wait_for_observations(runs[1], died, nodes=5)
    runs[0] = start_evaluated(tmp_path, 0, 30720, *endless)
    started.append(runs[0])
    wait_for_observations(runs[1], evaluated(runs[1])[-1].round, nodes=7)
    told.touch()
    assert [run.wait() for run in runs] == [0, 0, 0], runs[1].story
    summaries = [run.summary for run in runs]
    assert [summary["finished_nodes"] for summary in summaries] == [7, 7, 7]
    assert len({summary["model_hash"] for summary in summaries}) == 1
    assert len({summary["run_id"] for summary in summaries}) == 1
    assert [summary["restarted_nodes"] for summary in summaries] == [{"0": 1, "1": 1}] * 3
    rounds = [[row.round for row in evaluated(run)] for run in runs]
    assert rounds[0] == rounds[1] == rounds[2]
    assert "the run ends after round" in runs[1].text and "the run ends after" not in runs[0].text


def test_machine_0_never_returns_and_the_others_have_all_that_they_did(tmp_path, started):
    words = ["rounds=80", "sharing=faulty:Paced", SLOWER]
    runs = [start_evaluated(tmp_path, machine, 30760, *words) for machine in range(3)]
    started += runs
    runs[0].wait_for_round(25)
    kill_machine(runs[0])
    assert [run.wait() for run in runs[1:]] == [3, 3], runs[1].story
    for run in runs[1:]:
        assert run.summary["finished_nodes"] == 5 and sorted(run.summary["lost_nodes"]) == ["0", "1"]
        assert [row.round for row in evaluated(run)] == [*range(9, 80, 10)]
        # All but that in progress at the loss.
        for row in evaluated(run)[3:]:
            assert row.ranks == [2, 3, 4, 5, 6] and row.consensus_distance is not None, row.round
    assert runs[1].summary["model_hash"] == runs[2].summary["model_hash"]


@pytest.mark.parametrize("way", ["RaisesAt, rank: 3, round: 5", "HangsInTraining, only: 3, round: 5"])
def test_the_only_node_of_a_machine_fails_and_is_restarted_by_itself(tmp_path, started, way):
    """Its launcher, which has no other node at work, stays for it; then all go on together."""
    ports = ["mapping.rendezvous_port=30640", "communication={name: zeromq, base_port: 30650}"]
    failures = "failures={deadline: 3, grace: 1, restart: {attempts: 1}}"
    where = machines(["127.0.0.1", "127.0.0.2"], [3, 1])
    fails = f"sharing={{name: faulty:{way}, pace: 0.02}}"
    everywhere = [*FOUR, where, *ports, failures, fails, "security=none"]
    started += [Run(tmp_path / f"machine{i}", [*everywhere, f"machine={i}"]) for i in range(2)]
    first, second = started
    wait_until(lambda: first.text.count("exchanges with rank 3 again") >= 2, 60, lambda: first.story)
    first.process.send_signal(signal.SIGTERM)
    assert [run.wait() for run in started] == [143, 143], first.story
    assert first.summary["restarted_nodes"] == {"3": 1} and first.summary["stopped_nodes"] == 4
    assert "started again (1 of 1)" in second.text


SEVERAL = [*ENDLESS, "sharing.pace=0.005", "graph=ring", "graph.nodes=8"]


def models_of_a_process(run: Run, first: int) -> list[str]:
    """For each node of a process that came back without checkpoints where its model was from."""
    log = (run.run_dir / "logs" / f"{first:05d}.log").read_text()
    sources = [line for line in log.splitlines() if " has the model " in line]
    return sorted(line.split(":")[0] for line in sources)


def test_a_process_with_several_nodes_rejoins_as_quickly_as_one_with_one(tmp_path):
    """Its inner nodes ask nobody: who could answer them comes back, too."""
    four = ["communication={name: zeromq, nodes_per_process: 4}"]
    failures = "failures={start_deadline: 5, deadline: 3, restart: {attempts: 1}}"
    run = Run(tmp_path / "run", [*SEVERAL, *four, failures])
    run.wait_for_round(5)
    os.kill(run.pid_of(4), signal.SIGKILL)
    for rank in (4, 7):
        wait_until(lambda rank=rank: f"exchanges with rank {rank} again" in run.text, 60, lambda: run.story)
    run.process.send_signal(signal.SIGTERM)
    assert run.wait() == 143, run.story
    assert models_of_a_process(run, 4) == [
        "rank 4 has the model of rank 3", "rank 5 has the model of rank 4",
        "rank 6 has the model of rank 4", "rank 7 has the model of rank 0",
    ]  # fmt: skip
    assert run.summary["lost_nodes"] == {} and run.summary["stopped_nodes"] == 8
    assert run.summary["restarted_nodes"] == dict.fromkeys("4567", 1)


def test_a_machine_whose_nodes_share_a_process_takes_part_after_the_start(tmp_path, started):
    where, port = machines(["127.0.0.1", "127.0.0.2"], [4, 4]), 30680
    four = f"communication={{name: zeromq, nodes_per_process: 4, base_port: {port + 10}}}"
    failures = "failures={start: at_least 4, grace: 1, deadline: 3, start_deadline: 5}"
    everywhere = [*SEVERAL, where, four, f"mapping.rendezvous_port={port}", failures, "security=none"]
    first = Run(tmp_path / "machine0", [*everywhere, "machine=0"])
    started.append(first)
    first.wait_for_round(5)
    second = Run(tmp_path / "machine1", [*everywhere, "machine=1"])
    started.append(second)
    wait_until(lambda: any(not r.lost for r in second.records(6)), 40, lambda: first.story)
    first.process.send_signal(signal.SIGTERM)
    assert [run.wait() for run in started] == [143, 143], first.story
    assert len(models_of_a_process(second, 4)) == 4
    assert not any("all nodes started from" in line for line in models_of_a_process(second, 4))
    assert first.summary["lost_nodes"] == {} and first.summary["stopped_nodes"] == 8


def assert_same_time(run: Run, late: Run) -> None:
    """The nodes of a late machine have the time of the run, not that since they began themselves."""
    others = {record.round: record.seconds for record in run.records(0)}
    apart = [abs(r.seconds - others[r.round]) for r in late.records(4)[-20:] if r.round in others]
    # Of rounds one of which was slow here or there, the difference says less.
    assert apart and min(apart) < 0.5, apart


def take_part(run: Run, first: int) -> None:
    """Waits until each of the machine's nodes has heard all its neighbors in a round from `first` on."""
    wait_until(
        lambda: all(any(r.round >= first and not r.lost for r in run.records(i)[-50:]) for i in (4, 5, 6)),
        60, lambda: run.text,
    )  # fmt: skip
