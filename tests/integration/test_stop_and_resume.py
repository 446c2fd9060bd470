"""Runs that are stopped or killed and go on end as one that never was: models, records, bytes."""

import hashlib
import json
import os
import platform
import re
import shutil
import signal
import sys
import time
from itertools import pairwise

import pytest

from decentnode.cli import app as cli
from decentnode.formats.reader import read_object
from decentnode.formats.records import read_records
from decentnode.launcher.recovery.verify import verify
from tests.integration.running import Run, wait_until

ROUNDS = 100
CONFIG = f"""
name: resumed
rounds: {ROUNDS}
graph: {{name: ring, nodes: 4}}
dataset: {{name: synthetic, nodes: 4, samples_per_node: 40, features: 8, classes: 3}}
model: {{name: mlp, hidden: [8]}}
training:
  optimizer: {{name: Adam, lr: 0.01}}
  scheduler: {{name: CosineAnnealingLR, T_max: {ROUNDS}}}
  batch_size: 8
  epochs_per_round: 0.7
sharing: {{name: 'faulty:Paced', pace: 0.0, transforms: [{{name: top_k, fraction: 0.4, by: change}}, auto]}}
communication: zeromq
evaluation: {{every: 25}}
"""
TIMES = (
    "seconds", "train_seconds", "exchange_seconds", "mix_seconds", "evaluate_seconds", "memory_mb", "refused",
)  # fmt: skip
"""What depends on time; messages that a busy machine sends once more are among it."""
SAME = ("model_hash", "bytes_sent", "bytes_received", "test")
TOGETHER = ("consensus_distance", "average_model")
"""Machines add their sums in an order of their own."""
PACED = "sharing.pace=0.01"
"""Of what is to be stopped or killed amid its rounds; models do not depend on it."""
TIMEOUT = 100
"""Seconds for what takes a few on a machine that is not busy."""
TCP = "communication={name: zeromq, local: tcp, base_port: 30310}"
TWO = "communication={name: zeromq, nodes_per_process: 2}"


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    path = tmp_path_factory.mktemp("resumed") / "resumed.yaml"
    path.write_text(CONFIG)
    return path


@pytest.fixture(scope="module")
def straight(config):
    run = Run(config.parent / "straight", config=config)
    assert run.wait() == 0, run.text
    return run


def lines(path):
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    rows = [{name: value for name, value in row.items() if name not in TIMES} for row in rows]
    return sorted(rows, key=lambda row: row["round"])


def assert_same(runs, straight):
    """`runs`: one for each machine."""
    for run in runs:
        assert {name: run.summary[name] for name in SAME} == {name: straight.summary[name] for name in SAME}
        resumed_rows, expected = (lines(each.run_dir / "evaluations.jsonl") for each in (run, straight))
        for name in TOGETHER:
            for ours, theirs in zip(resumed_rows, expected, strict=True):
                assert ours.pop(name) == pytest.approx(theirs.pop(name), rel=1e-6)
        assert resumed_rows == expected
    resumed_rows = {path.name: lines(path) for run in runs for path in (run.run_dir / "records").iterdir()}
    assert resumed_rows == {path.name: lines(path) for path in (straight.run_dir / "records").iterdir()}
    assert [verify(run.run_dir) for run in runs] == [[] for _ in runs]


def resume(runs, seconds=TIMEOUT):
    """Goes on with a run on each of its machines, and waits for the end."""
    resumed = [Run(run.run_dir, verb="resume") for run in runs]
    return [run.wait(seconds) for run in resumed], resumed


@pytest.mark.parametrize(
    ("communication", "signum"),
    [
        (TWO, signal.SIGINT),
        (TCP, signal.SIGKILL),
    ],
    ids=["several-per-process-stopped", "tcp-killed"],
)
def test_a_run_continues_bit_for_bit(tmp_path, config, straight, communication, signum):
    every = 0 if signum != signal.SIGKILL else 9
    run = Run(tmp_path / "run", [PACED, communication, f"checkpoint.every={every}"], config=config)
    run.wait_for_round(30, TIMEOUT)
    # Ctrl-C reaches all processes of a terminal.
    os.killpg(run.process.pid, signum) if signum is signal.SIGINT else os.kill(run.process.pid, signum)
    expected = {signal.SIGTERM: 143, signal.SIGINT: 130}.get(signum, -signum)
    assert run.wait(TIMEOUT) == expected, run.text
    if signum != signal.SIGKILL:
        assert run.summary["stopped_nodes"] == 4
        assert run.summary["resumable_round"] >= 30
        assert f"decentnode resume {run.run_dir}" in run.text
    codes, resumed = resume([run])
    assert codes == [0], resumed[0].text
    assert "continues after round" in resumed[0].text
    assert_same(resumed, straight)
    assert read_object(run.run_dir / "run.json")["threads"] == resumed[0].summary["threads"]
    whole = read_records(run.run_dir / "records" / "00000.jsonl")
    assert all(one.seconds < other.seconds for one, other in pairwise(whole))
    assert resumed[0].summary["wall_seconds"] >= whole[-1].seconds - 0.1
    again = Run(run.run_dir, verb="resume")
    assert again.wait() == 2
    assert f"has finished all its {ROUNDS} rounds" in again.text and again.text.count("\n") == 1


def test_a_command_that_is_repeated_ends_as_the_run_that_never_was_stopped(tmp_path, config, straight):
    words = ["--continue", "sharing.pace=0.05", TWO, "checkpoint.every=9"]

    def again(*more):
        return Run(tmp_path / "run", [*words, *more], config=config)

    # Killed before its first checkpoint, then amid its rounds.
    for round in (3, 30):
        run = again()
        run.wait_for_round(round, TIMEOUT)
        if round == 30:
            assert "begins again: no round was saved by all nodes" in run.text
            refused = again()
            assert refused.wait(TIMEOUT) == 2
            assert ": this run is in progress (process " in refused.text
        os.kill(run.process.pid, signal.SIGKILL)
        assert run.wait(TIMEOUT) == -signal.SIGKILL, run.text
    last = again()
    assert last.wait(TIMEOUT) == 0, last.text
    assert "continues after round" in last.text
    assert_same([last], straight)
    for more, code, line in [
        ([], 0, f"this run has finished all its {ROUNDS} rounds; nothing is left to do"),
        (
            ["seed=2"],
            2,
            "seed cannot change from 1 to 2, because it would be another run; "
            "take another run_dir or DECENTNODE_JOB",
        ),
    ]:
        repeated = again(*more)
        assert repeated.wait(TIMEOUT) == code
        assert repeated.text.endswith(f"{line}\n") and repeated.text.count("\n") == 1


def test_a_run_that_has_lost_nodes_keeps_its_results_when_its_command_is_repeated(tmp_path, config):
    """Also where more rounds are asked for, and it has to begin again."""
    words = ["--continue", "sharing={name: 'faulty:RaisesAt', rank: 2}", "rounds=20", "evaluation.every=10"]
    first = Run(tmp_path / "run", words, config=config)
    assert first.wait(TIMEOUT) == 3, first.text
    files = {p: p.read_bytes() for p in first.run_dir.rglob("*") if p.is_file() and p.name != "lock"}
    repeated = Run(tmp_path / "run", words, config=config)
    assert repeated.wait(TIMEOUT) == 3
    line = "has ended with 1 of 4 nodes lost; nothing is left to do; to repeat it, name another run_dir\n"
    assert repeated.text.endswith(line) and repeated.text.count("\n") == 1
    assert {p: p.read_bytes() for p in files} == files
    more = Run(tmp_path / "run", [*words, "rounds=30"], config=config)
    assert more.wait(TIMEOUT) == 3, more.text
    aside = first.run_dir / "earlier-1"
    assert f"begins again: no round was saved by all nodes; the results so far are in {aside}\n" in more.text
    for name in ("summary.json", "evaluations.jsonl", "records/00000.jsonl"):
        assert (aside / name).read_bytes() == files[first.run_dir / name]
    assert len(more.records(0)) == 30


@pytest.fixture(scope="module")
def whole(config):
    """A run that has ended, with checkpoints of its last round and of one before."""
    more = ["records.models.every=25", "adversaries=[{name: record, ranks: [1], every: 1}]"]
    inproc = ["communication=inproc", "checkpoint.every=25"]
    run = Run(config.parent / "whole", [*inproc, *more], config=config)
    assert run.wait(TIMEOUT) == 0, run.text
    return run


@pytest.mark.parametrize("row", [False, True], ids=["before-its-row", "before-its-summary"])
def test_a_run_that_was_killed_after_its_last_checkpoints_ends_whole(tmp_path, whole, straight, row):
    """`row`: whether the last evaluation was written."""
    folder = tmp_path / "run"
    shutil.copytree(whole.run_dir, folder)
    (folder / "summary.json").unlink()
    if not row:
        path = folder / "evaluations.jsonl"
        path.write_text("".join(path.read_text().splitlines(keepends=True)[:-1]))
    resumed = Run(folder, verb="resume")
    assert resumed.wait(TIMEOUT) == 0, resumed.text
    assert f"continues after round {ROUNDS}\n" in resumed.text
    assert_same([resumed], straight)


def cut(path, lines):
    """Keeps so many lines of a file, from its end if they are negative."""
    content = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(content[lines:] if lines < 0 else content[:lines]))


def edit(path, pattern, new):
    content, count = re.subn(pattern, new, path.read_text())
    assert count
    path.write_text(content)


RECORDS, ROWS = "records/00002.jsonl", "evaluations.jsonl"
DAMAGES = {
    "shorter records": (
        lambda run: cut(run / RECORDS, 90),
        r"no record of rank 2 in round 100, after which it was saved \(its last one is of round 90\)",
        r"no line of rank 2 in rounds 91, 92, 93, 94, 95 and 5 others, in which it has sent payloads",
        "rank 2 ends at round 90, and has finished round 100",
    ),
    "no records": (
        lambda run: (run / RECORDS).unlink(),
        r"no record of rank 2 in round 75, after which it was saved \(there is none\)",
        r"no record of rank 2 in round 100, after which it was saved \(there is none\)",
        "records: has none of rank 2",
    ),
    "a last record that is torn": (
        lambda run: (run / RECORDS).write_bytes((run / RECORDS).read_bytes()[:-9]),
        r"no record of rank 2 in round 100", "no line of rank 2 in round 100,", "rank 2 ends at round 99",
    ),
    "no first record": (lambda run: cut(run / RECORDS, -99), "no line of rank 2 in round 1, in which"),
    "records of another rank": (
        lambda run: shutil.copy(run / "records" / "00001.jsonl", run / RECORDS),
        "no record of rank 2 in round 75", "no record of rank 2 in round 100",
        "more than one line of rank 1 in rounds 1, 2, 3, 4, 5 and 95 others", "records: has none of rank 2",
    ),
    "records of another run": (
        lambda run: edit(run / RECORDS, r'("round":99,.*?"loss":)[^,]+', r"\g<1>7.5"),
        "rank 2 has the loss 7.5 in round 100, and .* in its checkpoint: they are of different runs",
    ),
    "fewer rows": (
        lambda run: cut(run / ROWS, 2),
        "no line of rounds 75 and 100, after which nodes were tested", "another consensus_distance",
        "another average_model",
    ),
    "no rows": (lambda run: (run / ROWS).unlink(), "no line of rounds 25, 50, 75 and 100, after which"),
    "rows twice": (
        lambda run: (run / ROWS).write_bytes(2 * (run / ROWS).read_bytes()), "more than one line of rounds 25"
    ),
    "rows of another run": (
        lambda run: edit(run / ROWS, r'"train_loss":{[^}]*}', '"train_loss":{"0":9,"1":9,"2":9,"3":9}'),
        "has other losses or metrics than the records in rounds 25, 50, 75 and 100",
    ),
    "rows that are no rows": (lambda run: edit(run / ROWS, '"round":24', '"round":""'), ":1: not written"),
    "a model that is gone": (
        lambda run: (run / "models/00003/00000024.safetensors").unlink(), "00003: has no model of round 25"
    ),
    "no models": (lambda run: shutil.rmtree(run / "models"), "models: has no models, although"),
    "a shorter transcript": (lambda run: cut(run / "transcript/00001.jsonl", 9), "ends before round 99"),
    "no transcript": (lambda run: shutil.rmtree(run / "transcript"), "ends before round 99"),
    "fewer bytes of the transcript": (
        lambda run: os.truncate(run / "transcript/00001.bin", 9), "lacks bytes that 00001.jsonl refers to"
    ),
    "no events": (lambda run: (run / "events.jsonl").unlink(), "does not say that the run began"),
    "fewer events": (lambda run: cut(run / "events.jsonl", 1), "does not say how the run ended"),
    "events that are none": (
        lambda run: edit(run / "events.jsonl", "seconds", "x"), "jsonl:1: not", "jsonl:2: not"
    ),
    "no run.json": (lambda run: (run / "run.json").unlink(), "run.json: is missing"),
    "no partition": (lambda run: (run / "partition.json").unlink(), "partition.json: is missing"),
    "the summary of another run": (
        lambda run: edit(run / "summary.json", '"run_id": "', '"run_id": "f'), "is of another run, f"
    ),
    "another summary": (
        lambda run: edit(run / "summary.json", '"model_hash": "', '"model_hash": "f'),
        "another model_hash than the models of the last checkpoints",
    ),
    "checkpoints of another rank": (
        lambda run: shutil.copytree(run / "checkpoints/00001", run / "checkpoints/00002", dirs_exist_ok=True),
        "is of rank 1, round 74", "is of rank 1, round 99",
    ),
    "no checkpoints": (
        lambda run: shutil.rmtree(run / "checkpoints"), "has none of the checkpoints that summary.json counts"
    ),
    "a summary of another form": (
        lambda run: edit(run / "summary.json", '"rounds": [0-9]+', '"rounds": "all"'), "json: not .*'rounds'"
    ),
    # Nothing is wrong with that.
    "an earlier folder of checkpoints": (lambda run: (run / "checkpoints/00001.old").mkdir(),),
}  # fmt: skip


def test_files_that_do_not_belong_together_are_named(tmp_path, whole):
    assert verify(whole.run_dir) == []
    for name, (damage, *expected) in DAMAGES.items():
        folder = tmp_path / name.replace(" ", "-")
        shutil.copytree(whole.run_dir, folder)
        damage(folder)
        before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
        problems = verify(folder)
        assert len(problems) == len(expected), (name, problems)
        for problem, words in zip(problems, expected, strict=True):
            assert problem.startswith(f"{folder}/") and re.search(words, problem), (name, problem, words)
        assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before


def test_a_run_whose_code_was_edited_continues_only_where_that_is_accepted(tmp_path, config):
    """Both versions are kept, with their hashes."""
    scheme = "from decentnode.sharing.gossip import Gossip\n\n\nclass Mine(Gossip):\n    beta = {}\n"
    (tmp_path / "phd.py").write_text(scheme.format(1))
    overrides = ["sharing=phd:Mine", "communication=inproc", "rounds=10", "checkpoint.every=10"]
    run = Run(tmp_path / "run", overrides, config=config)
    assert run.wait(TIMEOUT) == 0, run.text
    (tmp_path / "phd.py").write_text(scheme.format(2))
    resumed = Run(run.run_dir, ["rounds=20"], verb="resume")
    assert resumed.wait(TIMEOUT) == 2
    assert f"{run.run_dir}: the code is not that of this run: phd.py; restore it from" in resumed.text
    assert resumed.text.count("\n") == 1
    state = json.loads((run.run_dir / "run.json").read_text())
    state["code"][0] |= {"package": "0" * 64, "environment": {"python": "3.0", "another": "1"}}
    (run.run_dir / "run.json").write_text(json.dumps(state))
    accepted = Run(run.run_dir, ["rounds=20", "--accept-code-change"], verb="resume")
    assert accepted.wait(TIMEOUT) == 0, accepted.text
    changes = f"phd.py, decentnode itself, python {platform.python_version()} (was 3.0)"
    assert f"continues after round 10; changed since: {changes}\n" in accepted.text
    assert f"  code changed       from round 11 on: {changes}\n" in accepted.text
    assert json.loads((run.run_dir / "summary.json").read_text())["code_changes"] == {"10": changes}
    versions = json.loads((run.run_dir / "run.json").read_text())["code"]
    assert [version["round"] for version in versions] == [0, 10]
    for beta, version in enumerate(versions, 1):
        copy = run.run_dir / "code" / version["digest"][:12] / "phd.py"
        assert copy.read_text() == scheme.format(beta)
        assert version["files"] == {"phd.py": hashlib.sha256(copy.read_bytes()).hexdigest()}


def two_machines(base):
    machines = "[{address: 127.0.0.1, nodes: 2}, {address: 127.0.0.2, nodes: 2}]"
    mapping = f"mapping={{machines: {machines}, rendezvous_port: {base}}}"
    return [mapping, f"communication={{name: zeromq, base_port: {base + 1}}}"]


SLOW = 20
"""The round in which rank 2 takes 7 times 0.3 s. Rank 0, no neighbor, gets into the next one meanwhile."""
SLOWLY = ["rounds=40", "training.batch_size=4", f"sharing={{name: 'faulty:Slow', only: 2, round: {SLOW}}}"]


def stop_amid_the_slow_round(runs):
    """The exit codes; stopped when rank 0 has just done that round."""
    runs[0].wait_for_round(SLOW, TIMEOUT)
    time.sleep(0.3)
    runs[0].process.send_signal(signal.SIGTERM)
    return [run.wait(TIMEOUT) for run in runs]


def test_a_run_without_checkpoints_has_the_time_for_a_slow_round(tmp_path, config):
    run = Run(tmp_path / "run", SLOWLY, config=config)
    assert stop_amid_the_slow_round([run]) == [143], run.text
    assert (run.summary["stopped_nodes"], run.summary["resumable_round"]) == (4, SLOW + 1), run.text
    assert "Nodes that hang are killed" in run.text and "did not finish in time" not in run.text
    assert resume([run])[0] == [0]


def test_nodes_of_other_machines_are_waited_for_that_do_a_slow_round(tmp_path, config):
    runs = [
        Run(tmp_path / f"machine{m}", [*two_machines(30380), f"machine={m}", *SLOWLY], config=config)
        for m in range(2)
    ]
    assert stop_amid_the_slow_round(runs) == [143, 143], runs[0].text + runs[1].text
    assert [run.summary["resumable_round"] for run in runs] == [SLOW + 1] * 2, runs[0].text + runs[1].text


def test_nodes_that_need_longer_than_the_stop_deadline_are_killed_and_a_line_says_what_that_costs(
    tmp_path, config
):
    limits = ["checkpoint.every=1", "failures.stop_deadline=0.8"]
    run = Run(tmp_path / "run", [*SLOWLY, *limits], config=config)
    assert stop_amid_the_slow_round([run]) == [143], run.text
    assert f"that did not finish in time; resume continues at round {SLOW + 1}\n" in run.text, run.text
    assert "Nodes that need more than 0.8 s are killed" in run.text
    assert run.summary["resumable_round"] == SLOW - 1
    assert f"decentnode resume {run.run_dir} (from round {SLOW + 1})" in run.text


@pytest.mark.parametrize("asked", [1])
def test_a_signal_to_one_machine_stops_all_after_the_same_round(tmp_path, config, straight, asked):
    base = 30320 + 20 * asked
    runs = [
        Run(tmp_path / f"machine{m}", [PACED, *two_machines(base), f"machine={m}"], config=config)
        for m in range(2)
    ]
    runs[0].wait_for_round(30, TIMEOUT)
    os.kill(runs[asked].process.pid, signal.SIGTERM)
    assert [run.wait(TIMEOUT) for run in runs] == [143, 143], runs[0].text + runs[1].text
    assert runs[0].summary["resumable_round"] >= 30
    assert [run.summary["stopped_nodes"] for run in runs] == [4, 4]
    codes, resumed = resume(runs)
    assert codes == [0, 0], resumed[0].text + resumed[1].text
    assert resumed[0].summary["run_id"] == resumed[1].summary["run_id"] == runs[0].summary["run_id"]
    assert_same(resumed, straight)


def test_a_finished_run_continues_with_more_rounds_as_if_it_had_had_them_from_the_start(
    tmp_path, config, straight
):
    """On two machines. A signal while it still waits for one of them leaves its summary as it was."""
    folder = tmp_path / "machine0"
    runs = [
        Run(
            tmp_path / f"machine{m}",
            [*two_machines(30360), f"machine={m}", f"rounds={ROUNDS // 2}"],
            config=config,
        )
        for m in range(2)
    ]
    assert [run.wait(TIMEOUT) for run in runs] == [0, 0]
    before = (folder / "summary.json").read_bytes()
    assert json.loads(before)["checkpoint_bytes"] == sum(
        path.stat().st_size for path in (folder / "checkpoints").glob("*/*")
    )
    assert f"decentnode resume {folder} rounds=N (" in runs[0].text
    again = Run(folder, [f"rounds={ROUNDS}"], verb="resume")
    wait_until(lambda: (folder / "live.json").exists(), 60, lambda: again.story)
    time.sleep(0.3)
    os.kill(again.process.pid, signal.SIGTERM)
    assert again.wait(TIMEOUT) == 143
    assert (folder / "summary.json").read_bytes() == before
    whole = [Run(run.run_dir, [f"rounds={ROUNDS}"], verb="resume") for run in runs]
    assert [run.wait(TIMEOUT) for run in whole] == [0, 0], whole[0].text + whole[1].text
    assert f"continues after round {ROUNDS // 2}\n" in whole[0].text
    assert_same(whole, straight)


@pytest.fixture
def one_line(tmp_path):
    """Gives the exit code and the single line of `resume`, in a fork: the lock dies with it."""
    out, err = tmp_path / "out.txt", tmp_path / "err.txt"

    def call(*words):
        pid = os.fork()
        if pid == 0:
            for stream, path in ((1, out), (2, err)):
                os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), stream)
            sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w")
            try:
                cli.main(["resume", *map(str, words)])
            except SystemExit as ended:
                sys.stderr.flush()
                os._exit(int(ended.code))
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        assert out.read_text() == "" and err.read_text().count("\n") == 1, out.read_text() + err.read_text()
        return code, err.read_text()

    return call


def test_what_cannot_continue_is_refused_in_one_line(tmp_path, config, one_line):
    assert one_line(tmp_path)[0] == 2
    run = Run(tmp_path / "run", [PACED, "checkpoint.every=5", "rounds=100000"], config=config)
    run.wait_for_round(20, TIMEOUT)
    code, line = one_line(run.run_dir)
    assert code == 2 and "this run is in progress" in line
    os.kill(run.process.pid, signal.SIGKILL)
    run.wait()
    code, line = one_line(run.run_dir, "training.optimizer.lr=0.5")
    assert code == 2
    assert "training.optimizer.lr cannot change from 0.01 to 0.5" in line
    code, line = one_line(run.run_dir, "rounds=10")
    assert code == 2 and "rounds can only grow; this run has 100000, not 10 (for instance" in line
    for path in (run.run_dir / "checkpoints" / "00002").glob("*.safetensors"):
        path.write_bytes(path.read_bytes()[:-1])
    code, line = one_line(run.run_dir)
    assert code == 2 and "rank 2 has no checkpoint to resume from" in line and ".safetensors: has" in line


def test_a_corrupt_checkpoint_costs_one_interval(tmp_path, config, straight):
    run = Run(tmp_path / "run", [PACED, "checkpoint.every=5"], config=config)
    run.wait_for_round(30, TIMEOUT)
    os.kill(run.process.pid, signal.SIGKILL)
    run.wait()
    # The manifest comes last: without it, a checkpoint was on its way, and is none.
    newest = sorted((run.run_dir / "checkpoints" / "00001").glob("*.json"))[-1].with_suffix(".safetensors")
    content = bytearray(newest.read_bytes())
    content[-1] ^= 1
    newest.write_bytes(content)
    codes, resumed = resume([run])
    assert codes == [0], resumed[0].text
    assert f"{newest}: was changed since it was written" in resumed[0].text
    assert_same(resumed, straight)
