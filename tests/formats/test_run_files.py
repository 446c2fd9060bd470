"""The files of a run: written, read back, summed up, and documented."""

import hashlib
import json
import re
import shutil
from math import inf, nan, sqrt
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from decentnode.communication.launcher_link.reports import Evaluated, Failed, Finished, PeerMissing, Published
from decentnode.core.byte_counters import ByteCounters
from decentnode.errors import BadInput
from decentnode.formats.metrics import CLASSIFICATION
from decentnode.formats.model_files import model_hash
from decentnode.formats.reader import EvaluationRow, Event, read_evaluations, read_events, read_object
from decentnode.formats.records import RecordFile, Records, RoundRecord, read_records, write_atomically
from decentnode.graph.families import Chain
from decentnode.launcher.cluster.scheduler import part_of
from decentnode.launcher.report.summary import spread, summarize
from decentnode.launcher.state.evaluation_log import EvaluationLog, Observation
from decentnode.launcher.state.membership import MembershipTable
from decentnode.launcher.state.run_directory import make_run_directory, unused_directory
from decentnode.node.experiment import Experiment
from tests.support.reported import report_to

DOCUMENT = "\n".join(
    (Path(__file__).parents[2] / "docs" / f"{page}.md").read_text()
    for page in ("results", "results_records", "results_summary")
)
CONFIG = """
name: trial
rounds: 2
graph: {name: ring, nodes: 3}
dataset: {name: synthetic, nodes: 3, samples_per_node: 8, features: 3, classes: 2}
model: logistic_regression
training: {optimizer: {name: SGD, lr: 0.1}, batch_size: 4, epochs_per_round: 1}
sharing: gossip
"""
EXPERIMENT = SimpleNamespace(
    settings=SimpleNamespace(
        name="trial",
        seed=7,
        rounds=10,
        training=SimpleNamespace(privacy=None),
        why_resume_differs=None,
        is_of_scripts=False,
    ),
    graph=SimpleNamespace(num_nodes=3, graph=Chain(3)),
    layout=SimpleNamespace(numel=100),
    processes=[SimpleNamespace(ranks=(rank,)) for rank in range(3)],
    execution=SimpleNamespace(workers=0),
    home={0: 0, 1: 1, 2: 2},
    plan=SimpleNamespace(metrics=CLASSIFICATION),
)


def published(rank: int, round: int, evaluation: str = "here") -> Published:
    return Published(rank, round, 0.25 * rank, 100 * (rank + 1), 2.0 + rank, True, evaluation)


def evaluated(rank: int, round: int, accuracy: float = 0.5, loss: float | None = 1.0) -> Evaluated:
    report = Evaluated(rank, round, {"accuracy": accuracy, "loss": loss})
    return msgspec.json.decode(msgspec.json.encode(report), type=Evaluated)


@pytest.fixture
def evaluations(tmp_path) -> EvaluationLog:
    return EvaluationLog(tmp_path / "evaluations.jsonl")


def add(log: EvaluationLog, rank: int, round: int, **metrics) -> None:
    log.add(published(rank, round))
    log.add(evaluated(rank, round, **metrics))


def finished(rank: int, accuracy: float, loss: float | None) -> Finished:
    return Finished(rank, 10, f"{rank:064x}", 1000, 900, 12.0 + rank, {"accuracy": accuracy, "loss": loss})


def summary(*reports) -> dict:
    membership = MembershipTable(range(3), {})
    report_to(membership, *reports)
    return summarize(EXPERIMENT, membership, EvaluationLog(Path("none")), 255, 1.23456, 9.87654)


def documented(section: str) -> set[str]:
    """The names in the first column of the tables of a section."""
    text = DOCUMENT.split(f"\n## {section}\n")[1].split("\n## ")[0]
    return set(re.findall(r"^\| `(\w+)`", text, re.MULTILINE))


def test_every_field_of_every_file_is_documented_and_no_other() -> None:
    assert documented("`records/RANK.jsonl`") == set(RoundRecord.__struct_fields__)
    assert documented("`evaluations.jsonl`") == set(EvaluationRow.__struct_fields__)
    assert documented("`events.jsonl`") == set(Event.__struct_fields__)
    # What passive adversaries found, what failed beside the nodes, and the code are added at the end.
    assert documented("`summary.json`") == {*summary(), "attacks", "health", "exit_code"}


def test_every_kind_of_event_is_documented_and_no_other() -> None:
    text = DOCUMENT.split("| kind | what happened |\n")[1].split("\n\n")[0]
    source = "".join(path.read_text() for path in (Path(__file__).parents[2] / "decentnode").rglob("*.py"))
    used = set(re.findall(r"""\b_?(?:log|log_event|record|degrade)\(\s*"(\w+)",""", source)) | {"node_lost"}
    assert set(re.findall(r"^\| (\w+) \|", text, re.MULTILINE)) == used


def test_the_example_of_the_document_runs(tmp_path) -> None:
    example = re.search(r"```python\n(.*?)```", DOCUMENT, re.DOTALL).group(1)
    write_atomically(tmp_path / "summary.json", summary())
    (tmp_path / "evaluations.jsonl").write_text("")
    (tmp_path / "records").mkdir()
    records = Records(RecordFile(tmp_path / "records", [0]))
    records.write(RoundRecord(0, 0, exchange_seconds=0.5), ByteCounters())
    records.close()
    names: dict = {}
    exec(example.replace('"runs/quickstart"', repr(str(tmp_path))), names)
    assert names["summary"]["name"] == "trial"
    assert (names["accuracy"], names["seconds"]) == ({}, [0.5])


def test_a_record_has_the_bytes_of_its_own_round(tmp_path) -> None:
    records, counters = Records(RecordFile(tmp_path, [3])), ByteCounters()
    for round in range(3):
        counters.sent_payload += 10 * (round + 1)
        counters.received_header += 64
        records.write(RoundRecord(3, round, loss=0.5, late=[1]), counters)
    records.close()
    read = read_records(tmp_path / "00003.jsonl")
    assert [record.sent_payload for record in read] == [10, 20, 30]
    assert [record.received_header for record in read] == [64, 64, 64]
    assert [record.round for record in read] == [0, 1, 2]
    assert read[0].seconds <= read[1].seconds <= read[2].seconds
    assert read[0].late == [1]
    first = json.loads((tmp_path / "00003.jsonl").read_text().splitlines()[0])
    assert first.keys() == {"rank", "round", "seconds", "loss", "sent_payload", "received_header", "late"}


@given(cut=st.integers(1, 20))
def test_a_line_that_was_cut_off_is_left_out(tmp_path_factory, cut) -> None:
    path = tmp_path_factory.mktemp("records") / "00000.jsonl"
    line = msgspec.json.encode(RoundRecord(0, 0)) + b"\n"
    path.write_bytes(line + line[:-cut])
    assert read_records(path) == read_records(str(path)) == [RoundRecord(0, 0)]


finite = st.floats(allow_nan=False, allow_infinity=False)


@given(accuracy=st.dictionaries(st.integers(0, 5000), finite), distance=st.none() | finite)
def test_an_evaluation_reads_back_as_it_was_written(tmp_path_factory, accuracy, distance) -> None:
    path = tmp_path_factory.mktemp("run") / "evaluations.jsonl"
    row = EvaluationRow(3, 1.5, {"accuracy": accuracy}, {}, {}, distance)
    path.write_bytes(msgspec.json.encode(row) + b"\n")
    assert read_evaluations(path) == [row]


def test_evaluations_wait_for_all_that_are_expected(tmp_path, evaluations) -> None:
    add(evaluations, 1, 4)
    assert evaluations.complete({0: 3, 1: 3}, observed=False) == []
    add(evaluations, 0, 4)
    assert evaluations.complete({0: 3, 1: 3}, observed=True) == []
    evaluations.observations[4] = Observation(4, 2, 0.125, {"accuracy": 0.75, "loss": 0.5})
    rows = evaluations.complete({0: 3, 1: 3}, observed=True)
    expected = EvaluationRow(
        round=4, seconds=2.5, metrics={"accuracy": {0: 0.5, 1: 0.5}, "loss": {0: 1.0, 1: 1.0}},
        train_loss={0: 0.0, 1: 0.25}, bytes_sent={0: 100, 1: 200}, consensus_distance=0.125,
        average_model={"accuracy": 0.75, "loss": 0.5},
    )  # fmt: skip
    assert rows == [expected] == read_evaluations(tmp_path / "evaluations.jsonl")
    assert evaluations.complete({0: 3, 1: 3}, observed=True) == []


def test_what_some_models_are_together_is_not_written_as_that_of_all(evaluations) -> None:
    for round, nodes in enumerate((3, 2)):
        for rank in range(3):
            add(evaluations, rank, round)
        evaluations.observations[round] = Observation(round, nodes, 0.5, {"accuracy": 0.75, "loss": 1.5})
    whole, part = evaluations.complete(dict.fromkeys(range(3), -1), observed=True)
    assert (whole.consensus_distance, whole.of_average("accuracy")) == (0.5, 0.75)
    assert (part.consensus_distance, part.average_model, part.ranks) == (None, None, [0, 1, 2])


def test_a_row_waits_for_evaluations_in_the_background_and_rows_keep_their_order(tmp_path) -> None:
    log = EvaluationLog(tmp_path / "evaluations.jsonl")
    for round in (4, 9):
        for rank, evaluation in enumerate(("background", "background", "none")):
            log.add(published(rank, round, evaluation))
    for report in (evaluated(0, 4), evaluated(0, 9), evaluated(1, 9)):
        log.add(report)
    # The nodes are further, and that of round 5 is still awaited.
    assert log.complete({0: 12, 1: 12, 2: 12}, observed=False) == []
    log.add(evaluated(1, 4, accuracy=0.25))
    first, second = log.complete({0: 12, 1: 12, 2: 12}, observed=False)
    assert (first.round, first.metrics["accuracy"], first.bytes_sent.keys()) == (
        4,
        {0: 0.5, 1: 0.25},
        {0, 1, 2},
    )
    assert (second.round, second.ranks) == (9, [0, 1])


def test_evaluations_that_failed_or_were_lost_are_left_out(tmp_path) -> None:
    log = EvaluationLog(tmp_path / "evaluations.jsonl")
    for rank in range(3):
        log.add(published(rank, 4, "background"))
    log.add(evaluated(0, 4))
    log.add(Evaluated(1, 4, {}))
    assert log.complete({}, observed=False) == []
    (row,) = log.complete({}, observed=False, unanswered={2})
    assert (row.ranks, [*row.bytes_sent]) == ([0], [0])
    log.add(published(0, 9, "background"))
    assert log.complete({}, observed=False, unanswered={0}) == []


def test_a_row_is_on_the_disk_when_it_is_there(tmp_path, monkeypatch) -> None:
    path, synced = tmp_path / "evaluations.jsonl", []
    monkeypatch.setattr("decentnode.core.line_file.os.fdatasync", lambda fd: synced.append(path.read_bytes()))
    evaluations = EvaluationLog(path)
    add(evaluations, 0, 4)
    evaluations.complete({0: 3}, observed=False)
    evaluations.complete({0: 5}, observed=False)
    assert synced == [path.read_bytes()] and synced[0].count(b"\n") == 1


def test_a_row_waits_for_nobody_who_has_gone_on_without_testing(evaluations) -> None:
    """A node that was started again, or was behind, goes on where its peers are."""
    add(evaluations, 0, 14)
    assert evaluations.complete({0: 14, 2: 14}, observed=False) == []
    assert [row.round for row in evaluations.complete({0: 14, 2: 15}, observed=False)] == [14]


def test_what_comes_after_its_row_makes_no_second_one(tmp_path, evaluations) -> None:
    for rank in (0, 2):
        add(evaluations, rank, 14)
        evaluations.complete({}, observed=False)
    assert [row.ranks for row in evaluations.rows.values()] == [[0]]
    resumed = EvaluationLog(tmp_path / "evaluations.jsonl")
    resumed.read()
    add(resumed, 2, 14)
    assert resumed.complete({}, observed=False) == []


def test_rows_of_another_machine_are_written_once_and_end_the_wait_for_reports(tmp_path, evaluations) -> None:
    """The coordinator writes them; a machine that comes late gets all of them."""
    add(evaluations, 0, 4)
    assert evaluations.complete({}, observed=False)
    add(evaluations, 0, 9)
    rows = [EvaluationRow(round, 1.0, {}, {}, {}) for round in (4, 9, 14)]
    assert evaluations.adopt(rows) == rows[1:]
    assert evaluations.adopt(rows) == []
    add(evaluations, 2, 14)
    assert not evaluations.reports and not evaluations.metrics
    assert evaluations.complete({}, observed=False) == []
    assert [row.round for row in read_evaluations(tmp_path / "evaluations.jsonl")] == [4, 9, 14]


def test_the_summary_has_the_models_of_the_highest_round(evaluations) -> None:
    """The row that was completed last does not matter."""
    for round, distance in ((39, 0.25), (14, 0.5)):
        add(evaluations, 0, round)
        average = {"accuracy": distance, "loss": 2 * distance}
        evaluations.observations[round] = Observation(round, 1, distance, average)
        evaluations.complete({0: round}, observed=True)
    assert [*evaluations.rows] == [39, 14]
    summarized = summarize(EXPERIMENT, MembershipTable(range(3), {}), evaluations, 255, 1.0, 2.0)
    assert summarized["consensus_distance"] == 0.25
    assert summarized["average_model"] == {"accuracy": 0.25, "loss": 0.5}


def test_a_loss_that_is_not_finite_is_written_as_null_and_read_back(tmp_path, evaluations) -> None:
    add(evaluations, 0, 0, loss=inf)
    evaluations.complete({0: 0}, observed=False)
    assert read_evaluations(tmp_path / "evaluations.jsonl")[0].metrics["loss"] == {0: None}


def test_a_summary_counts_what_became_of_the_nodes(tmp_path) -> None:
    total = summary(
        finished(0, 0.8, 0.5), finished(2, 0.6, 1.5), Failed(1, "a defect"),
        PeerMissing(0, 3, 1, "gone"), PeerMissing(0, 5, 2, "silent"),
    )  # fmt: skip
    assert total["run_id"] == "00000000000000ff"
    assert (total["finished_nodes"], total["lost_nodes"]) == (2, {"1": "a defect"})
    assert total["lost_logs"] == {"1": "logs/00001.log"}
    assert total["broken_edges"] == [[0, 2, 5]]
    assert total["components"] == [[0], [2]]
    assert (total["bytes_sent"], total["bytes_received"]) == (2000, 1800)
    assert (total["startup_seconds"], total["wall_seconds"]) == (1.235, 9.877)
    accuracy = total["test"]["accuracy"]
    assert accuracy == pytest.approx({"mean": 0.7, "std": 0.1, "min": 0.6, "max": 0.8})
    assert total["peak_memory_mb_per_node"]["max"] == 14.0 and total["peak_memory_mb"] == 12.0 + 14.0
    assert total["average_model"] is None
    write_atomically(tmp_path / "summary.json", total)
    assert read_object(tmp_path / "summary.json") == total
    assert [path.name for path in tmp_path.iterdir()] == ["summary.json"]


def test_memory_of_nodes_that_share_a_process_counts_once(monkeypatch) -> None:
    monkeypatch.setattr(EXPERIMENT, "home", {0: 0, 1: 0, 2: 1})
    reports = [finished(rank, 0.8, 0.5) for rank in range(3)]
    assert summary(*reports)["peak_memory_mb"] == 13.0 + 14.0
    assert summary()["peak_memory_mb"] is None


def test_what_was_refused_is_summed_up_by_reason() -> None:
    first = msgspec.structs.replace(finished(0, 0.8, 0.5), refused={"magic": 2, "rank": 1})
    second = msgspec.structs.replace(finished(1, 0.8, 0.5), refused={"magic": 3})
    assert summary(first, second)["refused_messages"] == {"magic": 5, "rank": 1}
    assert summary(finished(0, 0.8, 0.5))["refused_messages"] == {}


def test_one_diverged_node_is_not_averaged_away() -> None:
    summarized = summary(finished(0, 0.8, 0.5), finished(1, 0.1, None))
    assert summarized["test"]["loss"] is None
    assert summarized["test"]["accuracy"]["min"] == 0.1


def test_a_spread_is_that_of_the_population() -> None:
    assert spread(dict(enumerate([1.0, 2.0, 3.0, 6.0]))) == {
        "mean": 3.0,
        "std": sqrt(3.5),
        "min": 1.0,
        "max": 6.0,
    }
    assert spread({}) is None


def test_the_hash_of_all_models_depends_on_rank_and_content() -> None:
    expected = hashlib.sha256(b"0:aa\n2:bb\n").hexdigest()
    assert model_hash({2: "bb", 0: "aa"}) == expected
    assert model_hash({0: "bb", 2: "aa"}) != expected
    assert model_hash({0: "aa", 1: "bb"}) != expected


def test_numbers_that_are_not_finite_become_null(tmp_path) -> None:
    write_atomically(tmp_path / "x.json", {"schema": 3, "distance": nan})
    assert read_object(tmp_path / "x.json")["distance"] is None


@pytest.mark.parametrize("line", [b'{"name":"\xff"}', b"[" * 5000], ids=["UTF-8", "nested"])
@pytest.mark.parametrize("read", [read_object, read_events])
def test_a_damaged_file_is_one_line(tmp_path, read, line) -> None:
    path = tmp_path / "x.json"
    path.write_bytes(line.replace(b"name", b"kind") + b"\n")
    with pytest.raises(BadInput, match=rf"^{path}[^\n]*$"):
        read(path)


@pytest.fixture
def trial(tmp_path, monkeypatch) -> Experiment:
    monkeypatch.chdir(tmp_path)
    Path("trial.yaml").write_text(CONFIG)
    return Experiment.from_yaml("trial.yaml")


def test_a_directory_that_another_start_has_just_made_is_left_to_it(trial, monkeypatch) -> None:
    names = iter([Path("runs/a"), Path("runs/a"), Path("runs/b")])
    monkeypatch.setattr("decentnode.launcher.state.run_directory.unused_directory", lambda name: next(names))
    assert make_run_directory(trial) == Path("runs/a").absolute()
    before = sorted(Path("runs/a").rglob("*"))
    assert make_run_directory(trial) == Path("runs/b").absolute()
    assert sorted(Path("runs/a").rglob("*")) == before


def test_a_directory_with_a_name_must_be_empty(trial) -> None:
    named = Experiment.from_yaml("trial.yaml", ["run_dir=named"])
    Path("named").mkdir()
    make_run_directory(named)
    with pytest.raises(BadInput, match="named is not empty; name another one"):
        make_run_directory(named)


def test_a_directory_of_a_start_that_was_stopped_before_its_run_began_is_used_again(trial) -> None:
    named = Experiment.from_yaml("trial.yaml", ["run_dir=named"])
    summary = make_run_directory(named) / "summary.json"
    summary.touch()
    assert make_run_directory(named, or_resume=True) == Path("named").absolute() and not summary.exists()
    Path("named/run.json").touch()
    with pytest.raises(BadInput, match="named is not empty; name another one"):
        make_run_directory(named, or_resume=True)


def test_machines_that_share_a_folder_write_to_parts_of_it(trial) -> None:
    listed = "mapping.machines=[{address: 127.0.0.1, nodes: 2}, {address: 127.0.0.2, nodes: 1}]"
    options = [listed, "run_dir=named"]
    shared = Experiment.from_yaml("trial.yaml", options)
    assert [make_run_directory(shared, machine) for machine in (1, 0)] == [
        Path("named").absolute(), Path("named/machine-0").absolute()
    ]  # fmt: skip
    # Each finds its own again; a second start of either machine does not, and neither does another run.
    assert [part_of(Path("named"), None, [f"machine={machine}"]) for machine in (1, 0)] == [
        Path("named"), Path("named/machine-0")
    ]  # fmt: skip
    with pytest.raises(BadInput, match=r"several machines have an address of this host.*machine=K"):
        part_of(Path("named"), None)
    other = Experiment.from_yaml("trial.yaml", [*options, "seed=7"])
    for experiment, machine, taken in ((shared, 0, "machine-0"), (shared, 1, "named"), (other, 0, "named")):
        with pytest.raises(BadInput, match=f"{taken} is not empty"):
            make_run_directory(experiment, machine)
    shutil.rmtree("named/machine-0")
    Path("named/summary.json").touch()
    with pytest.raises(BadInput, match="named is not empty"):
        make_run_directory(shared, 0)


def test_a_link_that_leads_nowhere_takes_a_name(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(
        "decentnode.launcher.state.run_directory.time", SimpleNamespace(strftime=lambda _: "now")
    )
    Path("runs").mkdir()
    Path("runs/trial-now").symlink_to("nowhere")
    assert unused_directory("trial") == Path("runs/trial-now-2")


def test_a_run_directory_without_a_name_is_a_new_one(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    clock = SimpleNamespace(strftime=lambda _: "20300102-030405")
    monkeypatch.setattr("decentnode.launcher.state.run_directory.time", clock)
    for expected in ("trial-20300102-030405", "trial-20300102-030405-2", "trial-20300102-030405-3"):
        path = unused_directory("trial")
        assert path == Path("runs") / expected
        path.mkdir(parents=True)
