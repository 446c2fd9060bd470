"""Runs side by side: figures to their closed forms, in one table."""

import pytest

from decentnode import cli
from decentnode.comparison import compare
from decentnode.curves import Run
from decentnode.run_files import EvaluationRow
from tests.unit.test_figures import make_run


def row(round, accuracy, sent, seconds, loss=0.5):
    ranks = range(len(accuracy))
    return EvaluationRow(
        round=round, seconds=seconds, accuracy=dict(zip(ranks, accuracy, strict=True)),
        test_loss=dict.fromkeys(ranks, loss), train_loss={}, bytes_sent=dict.fromkeys(ranks, sent),
    )  # fmt: skip


SLOW = [row(9, (0.5, 0.7), 10**6, 10.0), row(19, (0.8, 0.9), 2 * 10**6, 20.0)]
QUICK = [row(9, (0.8, 0.8), 3 * 10**6, 4.0), row(39, (0.91, 0.91), 12 * 10**6, 240.0, loss=0.25)]


def cells(runs, target=None):
    heading, names, *lines = compare(runs, target)
    assert len({len(line) for line in (heading, names, *lines)}) == 1
    return heading.strip(), [line.split() for line in lines]


def test_the_last_evaluation_and_the_first_that_reaches_what_all_reach():
    heading, (slow, quick) = cells([Run("slow", SLOW, []), Run("quick", QUICK, [])])
    assert heading.strip("-") == "to 85 %"
    assert " ".join(slow) == "slow 2 20 85.00 80.00 90.00 +0.00 0.5000 2.0 MB 20.0 s 20 2.0 MB 20.0 s"
    cost = "12.0 MB 4 min 00 s"
    assert " ".join(quick) == f"quick 2 40 91.00 91.00 91.00 +6.00 0.2500 {cost} 40 {cost}"


def test_a_target_of_ones_own_that_one_run_never_reaches():
    heading, (slow, quick) = cells([Run("slow", SLOW, []), Run("quick", QUICK, [])], target=90)
    assert heading.strip("-") == "to 90 %"
    assert slow[-3:] == ["-", "-", "-"] and " ".join(quick).endswith("40 12.0 MB 4 min 00 s")


def test_one_command_shows_the_table_and_draws(tmp_path, capsys):
    runs = [str(make_run(tmp_path / name, *rows, name=name)) for name, rows in (("a", SLOW), ("b", QUICK))]
    with pytest.raises(SystemExit) as ended:
        cli.main(["compare", *runs, "--out", str(tmp_path / "out")])
    said = capsys.readouterr().out
    assert not ended.value.code
    assert "+6.00" in said and str(tmp_path / "out" / "figures" / "accuracy_bytes.png") in said
    assert (tmp_path / "out" / "overview.png").stat().st_size > 10_000


def test_a_directory_of_no_run_is_one_line(tmp_path, capsys):
    with pytest.raises(SystemExit) as ended:
        cli.main(["compare", str(tmp_path)])
    assert ended.value.code == 2 and capsys.readouterr().err.count("\n") == 1
