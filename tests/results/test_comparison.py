"""Runs side by side: figures to their closed forms, in one table."""

import pytest

from decentnode.errors import BadInput
from decentnode.formats.metrics import LOSS
from decentnode.formats.reader import EvaluationRow
from decentnode.results import curves
from decentnode.results.compare import compare
from decentnode.results.curves import RunCurves
from decentnode.results.figures import style
from tests.results.test_figures import make_run


def row(round, accuracy, sent, seconds, loss=0.5):
    ranks = range(len(accuracy))
    return EvaluationRow(
        round=round, seconds=seconds, train_loss={}, bytes_sent=dict.fromkeys(ranks, sent),
        metrics={
            "accuracy": dict(zip(ranks, accuracy, strict=True)), "loss": dict.fromkeys(ranks, loss)
        },
    )  # fmt: skip


SLOW = [row(9, (0.5, 0.7), 10**6, 10.0), row(19, (0.8, 0.9), 2 * 10**6, 20.0)]
QUICK = [row(9, (0.8, 0.8), 3 * 10**6, 4.0), row(39, (0.91, 0.91), 12 * 10**6, 240.0, loss=0.25)]


def cells(runs, target=None):
    heading, names, *lines = compare(runs, target)
    assert len({len(line) for line in (heading, names, *lines)}) == 1
    return heading.strip(), [line.split() for line in lines]


def test_the_last_evaluation_and_the_first_that_reaches_what_all_reach():
    heading, (slow, quick) = cells([RunCurves("slow", SLOW, []), RunCurves("quick", QUICK, [])])
    assert heading.strip("-") == "to 85 %"
    assert " ".join(slow) == "slow 2 20 85.00 80.00 90.00 +0.00 0.5000 2.0 MB 20.0 s 20 2.0 MB 20.0 s"
    cost = "12.0 MB 4 min 00 s"
    assert " ".join(quick) == f"quick 2 40 91.00 91.00 91.00 +6.00 0.2500 {cost} 40 {cost}"


def test_a_target_of_ones_own_that_one_run_never_reaches():
    heading, (slow, quick) = cells([RunCurves("slow", SLOW, []), RunCurves("quick", QUICK, [])], target=90)
    assert heading.strip("-") == "to 90 %"
    assert " ".join(slow).endswith(" - - not reached in 20.0 s") and " ".join(quick).endswith(
        "40 12.0 MB 4 min 00 s"
    )


def test_a_target_that_the_first_evaluation_exceeds_is_an_upper_bound():
    heading, (slow, quick) = cells([RunCurves("slow", SLOW, []), RunCurves("quick", QUICK, [])], target=75.3)
    assert heading.strip("-") == "to 75.3 %"
    assert " ".join(slow).endswith(" 20 2.0 MB 20.0 s")
    assert " ".join(quick).endswith(" <= 10 <= 3.0 MB <= 4.0 s")
    every_round = [row(0, (0.8, 0.8), 10**6, 1.0), *QUICK]
    (_, (quick,)) = cells([RunCurves("quick", every_round, [])], target=75.3)
    assert " ".join(quick).endswith(" 1 1.0 MB 1.0 s"), "there is no earlier round"


def test_a_run_that_is_judged_by_its_loss_is_better_when_it_is_lower():
    low, high = (
        [
            EvaluationRow(9, 1.0, {"loss": {0: first}}, {}, {0: 9}),
            EvaluationRow(19, 2.0, {"loss": {0: last}}, {}, {0: 18}),
        ]
        for first, last in ((3.0, 1.23456), (4.0, 2.5))
    )
    heading, (low, high) = cells(
        [RunCurves("low", low, [], metrics=[LOSS]), RunCurves("high", high, [], metrics=[LOSS])]
    )
    assert heading.strip("-") == "to 2.5"
    assert low[3:7] == ["1.235", "1.235", "1.235", "+0"] and low[-5:] == ["20", "18", "B", "2.0", "s"]
    assert high[3] == "2.5" and high[6] == "+1.265"


def test_runs_that_are_judged_by_different_metrics_are_refused(tmp_path):
    paths = [make_run(tmp_path / name, *SLOW, name=name) for name in "ab"]
    (paths[1] / "run.json").write_text(
        '{"schema": 3, "metrics": [{"name": "loss", "higher_is_better": false}]}'
    )
    with pytest.raises(BadInput) as caught:
        curves.read_runs(paths)
    assert str(caught.value) == (
        "these runs are judged by different metrics, so they do not compare: a by accuracy, b by loss"
    )


@pytest.mark.slow
def test_one_command_shows_the_table_and_draws(tmp_path, call, monkeypatch):
    monkeypatch.setattr(style, "DPI", 30)
    runs = [make_run(tmp_path / name, *rows, name=name) for name, rows in (("a", SLOW), ("b", QUICK))]
    code, output, _ = call("compare", *runs, "--out", tmp_path / "out")
    assert code == 0
    assert "+6.00" in output and str(tmp_path / "out" / "figures" / "accuracy_bytes.png") in output
    assert (tmp_path / "out" / "overview.png").stat().st_size > 1_000


def test_runs_on_different_data_sets_are_reported_in_one_line(tmp_path, call):
    paths = [make_run(tmp_path / name, *SLOW, name=name) for name in "abc"]
    sections = [
        "{name: digits, train_size: 100, test_size: null, partition: {name: iid}}",
        "{name: digits, train_size: 100, test_size: null, partition: {name: dirichlet, alpha: 0.1}}",
        "{name: idx, variant: mnist, path: /x, train_size: 100, test_size: null, partition: {name: iid}}",
    ]
    for path, section in zip(paths, sections, strict=True):
        (path / "config.yaml").write_text(f"dataset: {section}\n")
    runs = curves.read_runs(paths)
    assert len(list(compare(runs[:2]))) == 4
    first, *table = compare(runs)
    assert first == (
        "These runs are on different data sets, so their metrics do not compare: "
        "a, b on digits; c on idx (variant: mnist)"
    )
    assert len(table) == 5
    (paths[1] / "config.yaml").write_text(f"dataset: {sections[0].replace('100', '50')}\n")
    code, output, _ = call("compare", *paths[:2], "--no-draw")
    assert code == 0
    assert output.splitlines()[0].endswith(": a on digits (train_size: 100); b on digits (train_size: 50)")
