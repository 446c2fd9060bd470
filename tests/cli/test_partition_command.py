"""The table and the picture of a partition, for few ranks and many, with labels and without."""

import json

import pytest

from decentnode.cli.partition import MOST_ROWS, lines, report
from decentnode.config import loader as config
from decentnode.errors import BadInput
from decentnode.formats.partition_table import PartitionTable, label_distance, read_partition
from decentnode.results.figures.plots import draw_partition
from decentnode.studies.report.pictures import partition_picture
from tests.results.test_figures import make_run, row

CONFIG = """
rounds: 1
graph: {name: ring, nodes: 4}
dataset: {name: digits, partition: {name: shards, labels_per_node: 3}, validation: {source: test, size: 60}}
model: mlp
training: {optimizer: {name: SGD, lr: 0.1}, steps_per_round: 1}
"""


def test_the_distance_of_labels_is_a_closed_form():
    assert label_distance([[5, 5], [50, 50]]) == 0
    assert label_distance([[8, 0], [0, 8], [0, 0]]) == pytest.approx(0.5)
    n = 7
    assert label_distance([[int(i == j) for j in range(n)] for i in range(n)]) == pytest.approx(1 - 1 / n)
    assert label_distance([[3, 1], [1, 3]]) == pytest.approx(0.25)


def test_four_ranks_are_shown_with_a_column_for_each_label(tmp_path):
    (tmp_path / "x.yaml").write_text(CONFIG)
    settings = config.load(tmp_path / "x.yaml")
    figure = tmp_path / "x.svg"
    shown = [*report(settings, as_json=False, figure=figure)]
    assert shown[0].split() == ["rank", "samples", "labels", "label", "0", *map(str, range(1, 10))]
    assert [line.split()[:1] for line in shown[1:5]] == [["0"], ["1"], ["2"], ["3"]]
    assert all(line.split()[2] == "3" for line in shown[1:5])
    text = "\n".join(shown)
    assert "partition          shards, 4 of 4 ranks train" in text
    assert "labels             10, on average 3.0 of them at a rank" in text
    assert "in all             1,437 training, 60 validation and 300 test samples" in text
    assert figure.read_text().startswith("<?xml")
    (table,) = map(json.loads, report(settings, as_json=True, figure=None))
    assert sum(table["samples_per_rank"]) == table["figures"]["samples"] == 1437
    assert table["figures"]["mean_labels"] == 3 and table["partition"] == "shards"
    with pytest.raises(BadInput, match=r"--draw: x.gif: must end in .png, .svg or .pdf"):
        next(report(settings, False, type(figure)("x.gif")))


@pytest.mark.parametrize(
    ("ranks", "labels"), [(96, 62), (1000, 0), (1000, 100)], ids=["femnist", "ratings", "many"]
)
def test_many_ranks_and_labels_stay_readable(ranks, labels, tmp_path):
    held = [[(3 * rank + label) % 5 for label in range(labels)] for rank in range(ranks)] if labels else []
    sizes = [sum(row) for row in held] or [*range(1, ranks + 1)]
    table = PartitionTable(sizes, held, [2] * ranks)
    shown = [*lines(table, "natural")]
    assert len(shown) <= MOST_ROWS + 12 and max(map(len, shown)) <= 100
    assert (f"... and {ranks - MOST_ROWS} ranks more; --json and --draw have all" in shown) == (ranks > 100)
    assert any(line.startswith("labels ") for line in shown) == bool(labels)
    if labels == 62:
        assert shown[1].endswith("".join(" -+#@"[label % 5] for label in range(62)).rstrip())
    draw_partition(table, tmp_path / "x.png")
    assert (tmp_path / "x.png").read_bytes().startswith(b"\x89PNG")


def test_a_report_of_runs_shows_what_the_command_shows(tmp_path):
    run = make_run(tmp_path / "a", row(0, 0.5, 0.6))
    (run / "config.yaml").write_text("name: a\n")
    from decentnode.results import Run

    assert read_partition(run).labels == [[1, 2], [3, 0]]
    assert partition_picture(Run(run)).description.endswith("of 2 nodes, from 3 to 3 each, by 2 labels.")
    for table in (PartitionTable([3, 4]), PartitionTable([3, 4], [[1, 2], [4, 0]], [1, 2])):
        (run / "partition.json").write_text(json.dumps(table.content))
        again = read_partition(run)
        assert (again.samples, [*again.labels], [*again.groups]) == (
            [3, 4], [*table.labels], [*table.groups]
        )  # fmt: skip
    (run / "partition.json").write_text(json.dumps(PartitionTable([3, 4]).content))
    assert partition_picture(Run(run)).description.endswith("of 2 nodes, from 3 to 4 each.")
