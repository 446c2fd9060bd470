"""What may change when a run goes on, and how its files are brought back to a round."""

import errno
import json
import os
import threading
from types import SimpleNamespace

import pytest

from decentnode.communication.simulated import Simulated
from decentnode.config import loader as config
from decentnode.config.loader import load
from decentnode.core.timeouts import Timeouts
from decentnode.errors import BadInput
from decentnode.formats import records
from decentnode.formats.metrics import CLASSIFICATION
from decentnode.formats.reader import SCHEMA, CodeVersion
from decentnode.formats.records import cut_back
from decentnode.launcher.recovery import resume as resuming
from decentnode.launcher.recovery.resume import (
    ResumePlan,
    how_it_is_over,
    refuse_changes,
    settings_digest,
    write_state,
)
from decentnode.launcher.start import run_here
from decentnode.launcher.state import run_directory
from decentnode.launcher.state.messages import Join, Start
from decentnode.launcher.state.run_directory import RunLock, locked_directory
from decentnode.node.checkpoint import store as checkpoint
from decentnode.node.checkpoint.node_checkpoints import RunIdentity
from decentnode.node.checkpoint.store import RunStamp
from decentnode.node.experiment import Experiment
from decentnode.options import MODELS, effect_of
from tests.integration.running import QUICKSTART
from tests.support import checkpoints

CONFIG = """
name: trial
rounds: 20
graph: {name: ring, nodes: 4}
mapping: {machines: [{address: 127.0.0.1, nodes: 2}, {address: 127.0.0.2, nodes: 2}]}
dataset: {name: synthetic, nodes: 4, samples_per_node: 8, features: 3, classes: 2}
model: logistic_regression
training: {optimizer: {name: SGD, lr: 0.1}, batch_size: 4, epochs_per_round: 1}
sharing: gossip
"""
HARMLESS = [
    "rounds=40",
    "evaluation.every=3",
    "failures.deadline=5",
    "checkpoint.every=2",
    "machine=1",
    "communication={name: zeromq, local: tcp, nodes_per_process: 2}",
    "security=none",
    "mapping.rendezvous_port=29999",
    "mapping.machines[1].address=127.0.0.3",
    "name=another",
]
OTHER = {
    "seed=2": "seed",
    "training.optimizer.lr=0.2": "training.optimizer.lr",
    "training.batch_size=2": "training.batch_size",
    "sharing=push_sum": "sharing.name",
    "sharing.transforms=[cast]": "sharing.transforms",
    "mapping.machines=[{address: 127.0.0.1, nodes: 1}, {address: 127.0.0.2, nodes: 3}]": "mapping.machines",
    "graph.name=chain": "graph.name",
    "device=auto": "device",
    "dataset.classes=3": "dataset.classes",
}


VIRTUAL = [
    "communication={name: simulated, latency: 0.1, uplink: 1e6}", "training.pace={step_seconds: 0.01}",
    "mapping={machines: [{address: 127.0.0.1, nodes: 4}]}",
]  # fmt: skip
TIMING = {
    "communication.latency=0.2": "communication.latency",
    "communication.network_model=delay": "communication.network_model",
    "communication.tcp=cm02": "communication.tcp",
    "communication.seed=9": "communication.seed",
    "communication=inproc": "communication.name",
    "failures.grace=1": "failures.grace",
    "failures.on_loss=stop": "failures.on_loss",
}
"""What decides the models where virtual time does, and otherwise only how long a run takes."""
ASYNCHRONOUS = ["time_model=asynchronous", "sharing=push_gossip"]
FAILING = ["faults=[{name: offline, ranks: [1], at: 1, seconds: 2}]"]


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    path = tmp_path_factory.mktemp("resuming") / "trial.yaml"
    path.write_text(CONFIG)
    return path


def begun(run_dir, **state):
    """Writes the configuration and the state of a run that was begun; returns the plan to resume it."""
    (run_dir / "config.yaml").write_text(CONFIG)
    content = {
        "schema": SCHEMA, "run_id": f"{9:016x}", "incarnation": 0, "starts": [], "code": [], "threads": 1,
        "dataset": "",
    }  # fmt: skip
    content |= state
    (run_dir / "run.json").write_text(json.dumps(content))
    return ResumePlan(run_dir)


def record(run_dir, rank, *rounds):
    """Writes the records of a node."""
    (run_dir / "records").mkdir(exist_ok=True)
    lines = [json.dumps({"rank": rank, "round": round}) + "\n" for round in rounds]
    (run_dir / "records" / f"{rank:05d}.jsonl").write_text("".join(lines))


def loaded(digest: str) -> SimpleNamespace:
    """An experiment whose samples have this hash."""
    return SimpleNamespace(
        samples=SimpleNamespace(digest=digest, test_digest=digest, form={}),
        plan=SimpleNamespace(metrics=CLASSIFICATION),
    )


def digest(path, *overrides):
    return settings_digest(Experiment.from_yaml(path, overrides))


@pytest.mark.parametrize("override", HARMLESS)
def test_what_changes_no_model_may_change(path, override):
    refuse_changes(config.load(path), config.load(path, [override]))


def test_what_changes_no_model_is_not_in_the_hash_of_checkpoints(path):
    assert digest(path, *HARMLESS) == digest(path)


@pytest.mark.parametrize(("override", "key"), TIMING.items())
def test_what_decides_when_messages_arrive_may_change_unless_virtual_time_decides_the_models(
    path, override, key
):
    before = config.load(path, VIRTUAL)
    refuse_changes(before, config.load(path, [*VIRTUAL, override]))
    assert digest(path, *VIRTUAL, override) == digest(path, *VIRTUAL)
    # A fault at a virtual time needs virtual time.
    for timed in (ASYNCHRONOUS,) if override == "communication=inproc" else (ASYNCHRONOUS, FAILING):
        overrides = [*VIRTUAL, *timed]
        with pytest.raises(BadInput) as caught:
            refuse_changes(config.load(path, overrides), config.load(path, [*overrides, override]))
        assert f"{key} cannot change from " in str(caught.value)
        assert digest(path, *overrides, override) != digest(path, *overrides)


def test_an_option_of_a_transport_that_says_nothing_of_its_effect_counts_as_one_of_the_models():
    assert effect_of(Simulated, "latency").timing and effect_of(Simulated, "no_such_option") == MODELS


@pytest.mark.parametrize(("override", "key"), OTHER.items())
def test_what_would_make_another_run_is_refused_by_its_key(path, override, key):
    with pytest.raises(BadInput) as caught:
        refuse_changes(config.load(path), config.load(path, [override]))
    assert f"{key} cannot change from " in str(caught.value)


@pytest.mark.parametrize("override", ["seed=2", "training.optimizer.lr=0.2", "graph.name=chain"])
def test_checkpoints_of_another_run_have_another_hash(path, override):
    assert digest(path, override) != digest(path)


def test_rounds_can_only_grow(tmp_path):
    begun(tmp_path).lock.release()
    with pytest.raises(BadInput, match=r"^rounds can only grow; this run has 20, not 19"):
        ResumePlan(tmp_path, ["rounds=19"])


@pytest.mark.parametrize("rounds", [19, 20])
def test_the_first_command_of_a_run_that_was_extended_is_no_mistake_once_that_has_finished(tmp_path, rounds):
    begun(tmp_path).lock.release()
    plan = ResumePlan(tmp_path, settings=config.load(tmp_path / "config.yaml", [f"rounds={rounds}"]))
    if rounds == 19:
        with pytest.raises(BadInput, match=r"^rounds can only grow; this run has 20, not 19"):
            how_it_is_over(plan, 0)
    (tmp_path / "summary.json").write_text(json.dumps(LOST | {"finished_nodes": 4, "exit_code": 0}))
    line = f"{tmp_path}: this run has finished all its 20 rounds; nothing is left to do"
    assert how_it_is_over(plan, 0) == (line, 0)


@pytest.mark.parametrize("is_repeated", [False, True])
def test_a_change_that_makes_another_run_says_how_that_is_begun(tmp_path, is_repeated):
    begun(tmp_path).lock.release()
    remedy = "take another run_dir or DECENTNODE_JOB" if is_repeated else "begin a new run"
    line = f"^seed cannot change from 1 to 7, because it would be another run; {remedy}$"
    settings = config.load(tmp_path / "config.yaml", ["seed=7"]) if is_repeated else None
    with pytest.raises(BadInput, match=line):
        ResumePlan(tmp_path, ["seed=7"], settings=settings)


def test_lines_after_the_round_go_and_so_does_a_torn_one(tmp_path):
    path = tmp_path / "lines.jsonl"
    lines = [json.dumps({"round": round, "loss": None}).encode() for round in (0, 2, 1, 4, 3)]
    path.write_bytes(b"\n".join(lines) + b'\n{"round": 2, "lo')
    cut_back(path, 2)
    assert path.read_bytes() == b"\n".join(lines[:3]) + b"\n"
    cut_back(path, 2)
    assert path.read_bytes() == b"\n".join(lines[:3]) + b"\n"
    cut_back(tmp_path / "none.jsonl", 2)
    path.write_bytes(b"{}\n")
    with pytest.raises(BadInput, match=r"lines\.jsonl: not written by"):
        cut_back(path, 2)


def test_a_machine_offers_all_that_is_good(tmp_path):
    past = begun(tmp_path)
    for rank, round in ((0, 9), (0, 19), (1, 14), (1, 19)):
        state = {"wall_seconds": float(round)}
        checkpoints.save(tmp_path / checkpoint.FOLDER, rank, round, state, RunStamp(9, 0, "ab"))
        record(tmp_path, rank, *range(20))
    assert past.with_checkpoints(Join(0, "", "", ""), [0, 1], "ab").offers == {0: [9, 19], 1: [14, 19]}


def test_one_start_at_a_time_writes_to_a_directory(tmp_path, monkeypatch):
    monkeypatch.setattr(Timeouts, "run_lock", 0.0)
    lock = RunLock(tmp_path)
    with pytest.raises(BadInput, match="this run is in progress"):
        RunLock(tmp_path)
    # Only writers of a killed launcher hold it now.
    lock.note_finishing()
    ending = threading.Timer(0.3, lock.release)
    ending.start()
    RunLock(tmp_path).release()
    ending.join()
    assert (tmp_path / "lock").read_bytes() == b""


@pytest.mark.parametrize(
    ("error", "message", "tries"),
    [
        (errno.EWOULDBLOCK, r"^\S+: this run is in progress; stop it first$", 2),
        (errno.ENOLCK, r"^\S+/lock cannot be locked: No locks available$", 1),
    ],
)
def test_only_a_lock_that_another_start_holds_is_waited_for(tmp_path, monkeypatch, error, message, tries):
    tried = []

    def refuse(fd, how):
        tried.append(fd)
        raise OSError(error, os.strerror(error))

    monkeypatch.setattr(Timeouts, "run_lock", 0.01)
    monkeypatch.setattr(run_directory.fcntl, "flock", refuse)
    with pytest.raises(BadInput, match=message):
        RunLock(tmp_path)
    assert len(tried) == tries


NO_CODE = ["", 3, [3], [{"round": 0}], [{"round": 0, "digest": "", "files": {"a": 1}}]]
DAMAGED = {
    "incarnation": ([-3, 1 << 31, (1 << 63) - 1, True, 2.0, "2", None],
                    r"incarnation must be a whole number, 0\.\.2147483647, not "),
    "starts": ([3, [-2], [1 << 62], [True], [None], {}], "starts must be a list of rounds, not "),
    "code": (NO_CODE, r"not written by [^\n]*: 'code': "),
    "threads": ([None, 0, "2", True], "threads must be a whole number above 0, not "),
    "schema": ([1, 2], r"has schema \d; this version of decentnode reads schema 3"),
}  # fmt: skip


@pytest.mark.parametrize(("key", "value"), [(key, v) for key, (values, _) in DAMAGED.items() for v in values])
def test_a_damaged_state_is_one_line_before_anything_changes(tmp_path, key, value):
    with pytest.raises(BadInput, match=rf"^{tmp_path}/run\.json: {DAMAGED[key][1]}[^\n]*$"):
        begun(tmp_path, **{key: value})


LOST = {"schema": SCHEMA, "run_id": f"{9:016x}", "finished_nodes": 3, "rounds": 20, "exit_code": 3}


@pytest.mark.parametrize(
    ("changes", "overrides", "code"),
    [
        ({}, [], 3),
        ({"finished_nodes": 4}, [], 3),  # links were lost
        ({"finished_nodes": 4, "exit_code": 0}, [], 0),
        ({"exit_code": 4}, [], 4),  # of a machine whose own nodes were lost
        ({"exit_code": 143}, [], None),
        ({"exit_code": 130, "finished_nodes": 0}, [], None),
        ({"finished_nodes": 0, "exit_code": 4}, [], None),
        ({"exit_code": None}, [], None),  # of an earlier version
        ({}, ["rounds=30"], None),
        ({}, ["failures.on_loss=stop"], None),
    ],
)
@pytest.mark.parametrize("machine", [0, 1])
def test_a_run_is_over_on_all_machines_if_it_has_ended_by_itself(tmp_path, machine, changes, overrides, code):
    """A machine that was lost has no summary; it sees that of machine 0 beside its own directory."""
    run_dir = tmp_path / f"machine-{machine}"
    for folder in {run_dir, tmp_path / "machine-0"}:
        folder.mkdir()
    begun(run_dir).lock.release()
    (tmp_path / "machine-0" / "summary.json").write_text(json.dumps(LOST | changes))
    settings = config.load(run_dir / "config.yaml", overrides)
    plan = ResumePlan(run_dir, settings=settings)
    over = how_it_is_over(plan, machine)
    assert (over and over[1]) == code
    if code and changes.get("finished_nodes") != 4:
        assert over[0].endswith(
            "has ended with 1 of 4 nodes lost; nothing is left to do; to repeat it, name another run_dir"
        )
        assert how_it_is_over(plan, machine, repeats_losses=True) is None
        plan.refuse_finished(4)


def test_results_of_a_run_that_begins_again_are_moved_and_not_removed(tmp_path):
    past = begun(tmp_path)
    record(tmp_path, 0, 0, 1)
    past.begin(Start(run_id=0, round=-1), range(4), past.settings)
    assert past.aside is None and not (tmp_path / "records" / "00000.jsonl").read_text()
    for number in (1, 2):
        record(tmp_path, 0, 0, 1)
        (tmp_path / "evaluations.jsonl").write_text('{"round": 1}\n')
        (tmp_path / "summary.json").write_text("{}")
        (tmp_path / "transcript").mkdir(exist_ok=True)
        (tmp_path / "transcript" / "00000.key").touch()
        past.begin(Start(run_id=0, round=-1), range(4), past.settings)
        assert past.aside == tmp_path / f"earlier-{number}"
        moved = {str(path.relative_to(past.aside)) for path in past.aside.rglob("*") if path.is_file()}
        assert moved == {"records/00000.jsonl", "evaluations.jsonl", "summary.json"}
        assert (tmp_path / "transcript" / "00000.key").exists() and (tmp_path / "records").is_dir()
        assert not (tmp_path / "summary.json").exists()


@pytest.mark.parametrize(
    "content", ["{}", '{"finished_nodes": null, "rounds": 20}', '{"finished_nodes": "4"}']
)
def test_a_damaged_summary_is_one_line(tmp_path, content):
    past = begun(tmp_path)
    (tmp_path / "summary.json").write_text(content.replace("{", '{"schema": 3, ').replace(", }", "}"))
    with pytest.raises(BadInput, match=rf"^{tmp_path}/summary.json: not written by [^\n]*$"):
        past.refuse_finished(4)


@pytest.fixture
def unwritable(monkeypatch):
    """The disk has become read-only after the lock was taken."""

    def refuse(path, pieces):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))

    for module in (resuming, records):
        monkeypatch.setattr(module, "write_durably", refuse)


def test_where_nothing_can_be_written_no_run_continues_and_one_line_says_so(tmp_path, unwritable):
    past = begun(tmp_path)
    with pytest.raises(BadInput, match=r"^\S+: this run cannot continue there: Read-only file system$"):
        past.begin(Start(run_id=0, round=2), range(4), past.settings)


@pytest.fixture
def saved(tmp_path):
    """A run of which rank 0 is here, with a checkpoint after round 9 and a record that was cut off."""
    past = begun(tmp_path)
    checkpoints.save(tmp_path / checkpoint.FOLDER, 0, 9, {"wall_seconds": 1.0}, RunStamp(9, 0, "ab"))
    record(tmp_path, 0, *range(10))
    with (tmp_path / "records" / "00000.jsonl").open("ab") as file:
        file.write(b'{"rank":0,"ro')
    return past


def test_a_record_that_was_cut_off_keeps_nobody_from_going_on(saved):
    before = contents(saved.run_dir)
    assert saved.with_checkpoints(Join(0, "", "", ""), [0], "ab").offers == {0: [9]}
    assert contents(saved.run_dir) == before


def test_a_checkpoint_that_records_do_not_reach_is_not_offered(saved):
    """What is missing there would never be written again."""
    checkpoints.save(saved.run_dir / checkpoint.FOLDER, 0, 19, {"wall_seconds": 2.0}, RunStamp(9, 0, "ab"))
    path = saved.run_dir / "records" / "00000.jsonl"
    for rounds, offered in ((range(20), [9, 19]), (range(19), [9]), (range(9), None), (range(10, 20), [19])):
        record(saved.run_dir, 0, *rounds)
        if offered is None:
            reason = rf"{path}: has no record of rank 0 in round 20, [^;]* \(its last one is of round 9\);"
            with pytest.raises(BadInput, match=f"rank 0 has no checkpoint to resume from: {reason} restore"):
                saved.with_checkpoints(Join(0, "", "", ""), [0], "ab")
        else:
            assert saved.with_checkpoints(Join(0, "", "", ""), [0], "ab").offers == {0: offered}


def test_a_dataset_that_has_changed_is_reported_before_the_others_count_on_the_machine(saved):
    write_state(saved.run_dir, Start(run_id=9), loaded("ab" * 16))
    saved.lock.release()
    past = ResumePlan(saved.run_dir)
    assert past.with_checkpoints(Join(0, "", "", "ab" * 16), [0], "ab").offers == {0: [9]}
    before = contents(saved.run_dir)
    line = (
        rf"^{saved.run_dir}: the dataset is not the one that this run began with; restore that one, [^\n]*$"
    )
    with pytest.raises(BadInput, match=line):
        past.with_checkpoints(Join(0, "", "", "cd" * 16), [0], "ab")
    assert contents(saved.run_dir) == before


def test_plugins_that_were_edited_are_reported_by_file_unless_that_is_accepted(saved):
    began = CodeVersion(0, "12" * 32, {"phd.py": "a", "lab/nets.py": "b"})
    write_state(saved.run_dir, Start(run_id=9), loaded("ab"), [CodeVersion(0, "0" * 64, {}), began])
    saved.lock.release()
    line = (
        f"{saved.run_dir}: the code is not that of this run: phd.py; restore it from "
        f"{saved.run_dir}/code/121212121212, or continue with --accept-code-change (in Python "
        "accept_code_change=True)"
    )
    (saved.run_dir / "code" / "121212121212").mkdir(parents=True)
    edited = Join(0, "", "", "ab", code={"phd.py": "c", "lab/nets.py": "b"})
    before = contents(saved.run_dir)
    for join, accepts in ((Join(0, "", "", "ab", code=began.files), False), (edited, True), (edited, False)):
        past = ResumePlan(saved.run_dir, accepts_other_code=accepts)
        past.lock.release()
        if join is edited and not accepts:
            with pytest.raises(BadInput) as caught:
                past.with_checkpoints(join, [0], "ab")
            assert str(caught.value) == line
        else:
            assert past.with_checkpoints(join, [0], "ab").offers == {0: [9]}
    assert contents(saved.run_dir) == before


def test_damaged_records_are_told_before_the_others_count_on_the_machine(saved):
    path = saved.run_dir / "records" / "00000.jsonl"
    path.write_bytes(b'{"rank":0,"round":0}\n{"rank":0,"ro\0\0\0\n{"rank":0,"round":2}\n')
    before = contents(saved.run_dir)
    with pytest.raises(BadInput, match=rf"^{path}:2: not written by [^\n]*$"):
        saved.with_checkpoints(Join(0, "", "", ""), [0], "ab")
    assert contents(saved.run_dir) == before


def test_a_disk_that_takes_nothing_is_reported_before_the_others_count_on_the_machine(saved, unwritable):
    with pytest.raises(BadInput, match=r"^\S+: this run cannot continue there: Read-only file system$"):
        saved.with_checkpoints(Join(0, "", "", ""), [0], "ab")


def contents(directory):
    return {path: path.read_bytes() for path in directory.rglob("*") if path.is_file()}


def test_a_run_that_cannot_say_which_one_it_is_does_not_start(tmp_path, unwritable):
    with pytest.raises(BadInput, match=r"run\.json cannot be written: Read-only file system$"):
        write_state(tmp_path, Start(run_id=0), loaded("ab"))


def test_nodes_read_what_the_machines_agreed_on(tmp_path):
    identity = RunIdentity(tmp_path, "ab")
    assert identity.round == -1
    identity.settle(1 << 61, 3, 17)
    assert (identity.round, identity.stamp.run_id, identity.stamp.incarnation) == (17, 1 << 61, 3)


def test_of_two_starts_of_one_name_one_has_the_directory_before_it_binds_a_port(tmp_path, monkeypatch):
    """Regression: both bound ports, and the second one named a port in use, or other keys."""
    monkeypatch.setattr(Timeouts, "run_lock", 0.1)
    first = locked_directory(tmp_path / "runs" / "machine-1")
    settings = load(QUICKSTART, [f"run_dir={tmp_path / 'runs' / 'machine-1'}", "communication.base_port=1"])
    with pytest.raises(BadInput, match=r"machine-1: this run is in progress \(process \d+ on .*\); stop it"):
        run_here(settings, QUICKSTART, (), or_resume=True)
    first.release()
