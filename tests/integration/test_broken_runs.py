"""A few runs that are broken on purpose; all of them are in eval/reliability (docs/reliability_tests.md)."""

import json
import re
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.integration.running import Run

SCRIPTS = Path(__file__).parents[2] / "eval" / "reliability"


@pytest.fixture(scope="module", autouse=True)
def scripts():
    """Lets the scripts import each other, as they do when they are started."""
    sys.path.insert(0, str(SCRIPTS))
    yield
    sys.path.remove(str(SCRIPTS))


@pytest.fixture(scope="module")
def plain(scripts):
    """The run that nothing disturbs."""
    from _runs import Trial, run

    return run(Trial("plain", ("evaluation.every=4",)))


CELLS = [
    ("crash", "send", "gossip"),
    ("crash", "mix", "gradient_tracking"),
    ("duplicate", "receive", "secure_aggregation"),
    ("corrupt", "train", "gossip"),
]


def test_cells_of_the_matrix():
    """But for how long a round takes: other tests run beside these."""
    import _judge
    import matrix
    from _runs import run_all

    schemes = sorted({scheme for _, _, scheme in CELLS})
    rounds = ["--rounds", "12", "--last", "7"]
    options = matrix.parse(["--stop", "0.5", *rounds, "--jobs", "2", "--schemes", *schemes])
    references, columns = matrix.undisturbed(options), matrix.all_faults(options)
    cells = {cell.name: cell for cell in (matrix.Cell(*cell) for cell in CELLS)}
    trials = [matrix.trial(cell, columns[cell.fault], options) for cell in cells.values()]
    seen = 0
    for outcome in run_all(trials, options.jobs):
        cell = cells[outcome.trial.name]
        expected = replace(matrix.expectation(cell, references[cell.scheme], options), longest=60.0)
        wrongs = _judge.wrongs(outcome, expected)
        assert wrongs == [], f"{outcome.trial.reproducer}\n{outcome.text}"
        assert outcome.injected, cell.name
        seen += 1
    assert seen == len(CELLS)


def test_a_quarter_of_the_nodes_is_killed(tmp_path):
    import kill

    size = kill.Size(nodes=12, degree=4, killed=3, rounds=20)
    figures = kill.figures(size, seed=1, folder=tmp_path)
    assert figures.wrong == []
    assert figures.finished == 9


def test_the_same_faults_leave_the_same_models():
    """A slow node takes ten times what it took on this machine; none is given up for that."""
    from _runs import Trial, faults, run_all

    entries = [
        {"name": "more_faults:Duplicate", "probability": 0.2},
        {"name": "slow", "ranks": [1, 4], "rounds": [3, 9], "probability": 0.5},
        {"name": "crash", "ranks": 3, "rounds": 7, "activity": "begin"},
    ]
    overrides = ("failures.deadline=60", faults(*entries))
    first, again = run_all([Trial(name, overrides, limit=180.0) for name in ("first", "again")], jobs=2)
    assert {lost for _, lost in lost_edges(first)} == {lost for _, lost in lost_edges(again)} == {3}
    assert first.summary["model_hash"] == again.summary["model_hash"]
    history = [
        {(r.rank, r.round, r.fault) for _, r in run.injected if r.fault != "Duplicate"}
        for run in (first, again)
    ]
    assert history[0] == history[1] != set()


def lost_edges(outcome) -> set[tuple[int, int]]:
    """The ranks that went on without another one, each with that one."""
    return {(rank, peer) for rank, records in outcome.records.items() for r in records for peer in r.lost}


def test_a_wrong_model_would_be_found(plain):
    """The judge judges: a model that is off, one that is no number, a run that left something."""
    from dataclasses import replace

    import _judge
    from _runs import Trial, faults, run

    struck = run(Trial("struck", (faults({"name": "crash", "ranks": 3, "rounds": 5}),)))
    graph = load_graph()
    expected = _judge.Expectation(plain, graph, True, frozenset({"crash"}), longest=60.0)
    assert _judge.wrongs(struck, expected) == []
    for wrong in (np.full(16, np.nan), np.full(16, 100.0)):
        odd = replace(struck, models=struck.models | {5: wrong})
        assert [wrong.split(":")[0] for wrong in _judge.wrongs(odd, expected)] == ["model"]
    other = replace(plain, summary=plain.summary | {"model_hash": "other"})
    assert "model: not that of the undisturbed run" in " ".join(_judge.wrongs(other, expected))
    assert _judge.wrongs(replace(struck, leftovers=("process 1",)), expected) == ["leftovers: process 1"]
    assert _judge.wrongs(replace(struck, code=0), expected)[0].startswith("exit: 0 although")
    assert _judge.wrongs(replace(struck, code=None), expected)[0].startswith("hang")
    struck.records[5][20].lost = [peer := next(peer for peer in graph.sources(5, 20) if peer != 3)]
    assert _judge.one_sided(struck, graph)[min(5, peer), max(5, peer)] == [20]


def load_graph():
    from _runs import TINY

    from decentnode.config.loader import load

    return load(TINY).graph.make()


@pytest.mark.parametrize("transport", ["inproc", "{name: zeromq, nodes_per_process: 8}"])
@pytest.mark.parametrize("every", [5, 0], ids=["from their checkpoints", "anew"])
def test_nodes_that_all_share_a_process_continue_together_and_end_with_the_very_same_models(
    plain, transport, every
):
    """There is nobody else to be asked; all of them do again what one of them lacks."""
    from _runs import Trial, faults, run

    struck = run(Trial("struck", (
        "failures={deadline: 30, restart: {attempts: 1}}", f"communication={transport}",
        "evaluation.every=4", f"checkpoint.every={every}",
        faults({"name": "crash", "ranks": 3, "rounds": 14, "activity": "train"}),
    )))  # fmt: skip
    assert struck.code == 0, struck.text
    assert struck.summary["restarted_nodes"] == {str(rank): 1 for rank in range(8)}
    assert struck.summary["model_hash"] == plain.summary["model_hash"]
    rounds = {rank: [record.round for record in records] for rank, records in struck.records.items()}
    assert rounds == {rank: list(range(30)) for rank in range(8)}
    assert [row["round"] for row in struck.evaluations] == [row["round"] for row in plain.evaluations]
    assert struck.leftovers == ()


def test_a_link_that_loses_messages_one_way_moves_the_sum_of_all_models_once(tmp_path):
    """Rank 3 gives up rank 2, which has mixed its model by then (docs/reliability_lost_edges.md)."""
    struck = 8
    run = Run(tmp_path / "run", [
        "sharing.name=faulty:LogsModels", "graph={name: ring, nodes: 8}", "rounds=20",
        "training.scheduler={name: MultiStepLR, milestones: [4], gamma: 0.0}",
        f"faults=[{{name: drop, ranks: 3, peers: 2, rounds: [{struck}, {struck + 3}]}}]",
        "failures.deadline=3",
    ], SCRIPTS / "tiny.yaml")  # fmt: skip
    run.wait()
    logs = [(run.run_dir / "logs" / f"{rank:05d}.log").read_text() for rank in range(8)]
    told = [re.findall(r"^mixed in \d+: (.*)$", log, re.MULTILINE) for log in logs]
    models = np.array([list(map(json.loads, lines)) for lines in told])
    before, after = models[:, :, 0].sum(0), models[:, :, 1].sum(0)
    jumps = after - before
    expected = (models[3, struck, 0] - models[2, struck, 0]) / 3
    assert np.abs(expected).max() > 1e-3
    assert np.allclose(jumps[struck], expected, rtol=0, atol=2e-6)
    assert np.abs(np.delete(jumps, struck, 0)).max() < 2e-6
    assert f"round {struck + 1}: continuing without rank 2" in logs[3]


def test_sums_stay_while_a_graph_is_partitioned_and_while_messages_are_late():
    """Two of the cells of conservation.py: edges that are dropped and come back, and none that is."""
    import conservation
    from _runs import run_all

    cells = [
        conservation.Cell("zip_dl", "partition", "memory"),
        conservation.Cell("gradient_tracking", "pause", "memory"),
    ]
    by_name = {cell.trial.name: cell for cell in cells}
    for outcome in run_all([cell.trial for cell in cells], jobs=2):
        verdict = conservation.judge(by_name[outcome.trial.name], outcome)
        assert verdict.wrong == [], f"{outcome.trial.reproducer}\n{outcome.text}"
        assert verdict.unexplained < 1e-12


def test_a_node_that_rejoins_lacks_no_record_that_a_full_disk_has_delayed():
    from _runs import Trial, faults, run

    restart = "failures={deadline: 30, grace: 1, restart: {attempts: 1}}"
    struck = run(Trial("struck", (restart, "checkpoint.every=1", "rounds=60", faults(
        {"name": "more_faults:Hang", "seconds": 0.05, "activity": "begin"},
        {"name": "more_faults:FullDisk", "ranks": 1, "rounds": 4},
        {"name": "crash", "ranks": 1, "rounds": 5, "activity": "begin"},
    ))))  # fmt: skip
    assert struck.code == 0, struck.text
    assert struck.summary["restarted_nodes"] == {"1": 1}
    recorded = [record.round for record in struck.records[1]]
    assert recorded[:5] == list(range(5)) and recorded[-1] == 59
