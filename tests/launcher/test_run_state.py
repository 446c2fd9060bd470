"""What a launcher keeps of a run that goes on, when it comes late or others have undone what it has."""

import json

import msgspec
import pytest

from decentnode.communication.launcher_link.reports import Rejoined
from decentnode.errors import BadInput
from decentnode.formats.reader import SCHEMA, EvaluationRow
from decentnode.launcher.recovery.resume import ResumePlan
from decentnode.launcher.recovery.run_state import RunState
from decentnode.launcher.state.dispatcher import Dispatcher
from decentnode.launcher.state.messages import Start
from decentnode.node.checkpoint import store as checkpoint
from decentnode.node.experiment import Experiment
from tests.launcher.test_resume_plan import CONFIG
from tests.support import checkpoints

RANKS = [2, 3]
"""Those of machine 1."""


def rounds_in(path):
    return [json.loads(line)["round"] for line in path.read_text().splitlines()]


def state_of(experiment, incarnation):
    """The content of run.json."""
    return {
        "schema": SCHEMA, "run_id": f"{7:016x}", "incarnation": incarnation, "starts": [], "code": [],
        "threads": 1, "dataset": experiment.samples.digest,
    }  # fmt: skip


@pytest.fixture
def late(tmp_path):
    """Machine 1 of a run, which was started again once, did ten rounds and was saved after some."""
    config = tmp_path / "config.yaml"
    config.write_text(CONFIG)
    (tmp_path / "records").mkdir()
    experiment = Experiment.from_yaml(config)
    (tmp_path / "run.json").write_text(json.dumps(state_of(experiment, incarnation=1)))
    run_state = RunState(experiment, 1, tmp_path, ResumePlan(tmp_path))
    run_state.identity.settle(7, 1)
    for rank in RANKS:
        for round in (1, 4, 9):
            checkpoints.save(
                run_state.identity.directory, rank, round, {"wall_seconds": 1.5}, run_state.identity.stamp
            )
        lines = [json.dumps({"rank": rank, "round": round}) + "\n" for round in range(10)]
        (tmp_path / "records" / f"{rank:05d}.jsonl").write_text("".join(lines))
    rows = [EvaluationRow(round, 0.0, {}, {}, {}) for round in (1, 3, 5, 7, 9)]
    (tmp_path / "evaluations.jsonl").write_bytes(b"".join(msgspec.json.encode(r) + b"\n" for r in rows))
    yield run_state
    run_state.lock.release()


def saved(found, rank):
    return checkpoint.rounds(found.identity.directory, rank)


def test_a_machine_whose_own_nodes_have_finished_goes_back_with_the_others(late, tmp_path):
    summary = {"schema": SCHEMA, "finished_nodes": len(RANKS), "rounds": 20}
    (tmp_path / "summary.json").write_text(json.dumps(summary))
    assert late.join_message().offers == {rank: [1, 4, 9] for rank in RANKS}


def past_of_machine_0(tmp_path, **files):
    """What machine 0 keeps of a run that has these files."""
    config = tmp_path / "config.yaml"
    config.write_text(CONFIG)
    experiment = Experiment.from_yaml(config)
    for name, content in {"run": state_of(experiment, incarnation=0), **files}.items():
        (tmp_path / f"{name}.json").write_text(json.dumps({"schema": SCHEMA} | content))
    return RunState(experiment, 0, tmp_path, ResumePlan(tmp_path))


def test_a_run_cannot_continue_as_a_whole_from_the_round_that_it_continued_from_without_a_machine(tmp_path):
    past = past_of_machine_0(tmp_path)
    past.begin(Start(7, incarnation=1, round=4, absent=[1]))
    assert past.retention.newest_round is None
    for rank in RANKS:
        past.retention.note(rank, 4)
    assert past.retention.newest_round == 4
    past.lock.release()


@pytest.mark.parametrize(("finished", "is_over"), [(3, False), (4, True)])
def test_machine_0_refuses_a_run_of_which_all_nodes_have_finished(tmp_path, finished, is_over):
    past = past_of_machine_0(
        tmp_path, summary={"finished_nodes": finished, "rounds": 20, "run_id": f"{7:016x}"}
    )
    reason = r"all its 20 rounds; .*rounds=40" if is_over else "rank 0 has no checkpoint.*checkpoint.final"
    with pytest.raises(BadInput, match=reason):
        past.join_message()
    past.lock.release()


def test_what_others_have_undone_since_goes_before_a_late_machine_begins(late, tmp_path):
    late.begin(Start(7, incarnation=2, round=4, late=1))
    for rank in RANKS:
        assert saved(late, rank) == [1, 4]
        assert rounds_in(tmp_path / "records" / f"{rank:05d}.jsonl") == [0, 1, 2, 3, 4]
    assert rounds_in(tmp_path / "evaluations.jsonl") == [1, 3]
    state = json.loads((tmp_path / "run.json").read_text())
    digest = Experiment.from_yaml(tmp_path / "config.yaml").samples.digest
    assert (state["incarnation"], state["dataset"]) == (2, digest)
    assert (late.identity.round, late.news) == (-1, "")


def test_a_machine_that_missed_several_starts_goes_back_to_the_earliest(late, tmp_path):
    late.begin(Start(7, incarnation=3, round=9, starts=[4, 9], late=1))
    assert saved(late, 2) == [1, 4]
    assert rounds_in(tmp_path / "evaluations.jsonl") == [1, 3]
    assert json.loads((tmp_path / "run.json").read_text())["starts"] == [4, 9]


def test_a_late_machine_that_was_there_when_the_run_continued_keeps_what_it_has(late, tmp_path):
    late.begin(Start(7, incarnation=1, round=4, late=1))
    assert saved(late, 2) == [1, 4, 9]
    assert len(rounds_in(tmp_path / "records" / "00002.jsonl")) == 10
    assert rounds_in(tmp_path / "evaluations.jsonl") == [1, 3, 5, 7, 9]


def test_what_its_nodes_have_discarded_counts_no_more(late):
    late.begin(Start(7, incarnation=1, late=1))
    for rank in RANKS:
        late.retention.note(rank, 14)
    reports = Dispatcher()
    late.retention.register(reports)
    reports.dispatch(Rejoined(2, 6))
    assert late.retention.newest_round is None


def test_what_all_nodes_were_saved_after_a_late_machine_knows_from_the_coordinator(late):
    for rank in RANKS:
        late.retention.note(rank, 14)
    assert late.saved_by_all is None
    late.retention.settle(14, 9)
    assert late.saved_by_all == 9
