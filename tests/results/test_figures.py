"""Curves to their closed forms, and pictures that show them."""

import subprocess
import sys
from math import isnan
from pathlib import Path

import msgspec
import numpy as np
import pytest
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.image import imread
from safetensors.numpy import save_file

from decentnode.core.timeouts import Timeouts
from decentnode.errors import BadInput
from decentnode.formats.metrics import ACCURACY, LOSS
from decentnode.formats.model_files import COORDINATES, path_of
from decentnode.formats.partition_table import PartitionTable
from decentnode.formats.reader import SCHEMA, EvaluationRow
from decentnode.formats.records import write_atomically
from decentnode.launcher.state.run_directory import RunLock
from decentnode.results import curves
from decentnode.results.figures import plots as figures
from decentnode.results.figures import plots_privacy
from decentnode.results.figures.style import drawing
from decentnode.results.run_figures import make_figures

SINGLE = {
    "accuracy_rounds", "accuracy_bytes", "accuracy_seconds", "loss_rounds", "loss_bytes", "loss_seconds",
    "consensus_distance", "accuracy_percentiles", "loss_percentiles",
}  # fmt: skip
PERCENTILES = {"accuracy_percentiles", "loss_percentiles"}


def row(round: int, *accuracy: float, **fields) -> EvaluationRow:
    ranks = range(len(accuracy))
    return EvaluationRow(
        round=round, seconds=1.5 * round, train_loss={},
        metrics={
            "accuracy": dict(zip(ranks, accuracy, strict=True)), "loss": {rank: 1.0 + rank for rank in ranks}
        },
        bytes_sent={rank: 4_000_000 for rank in ranks}, **fields,
    )  # fmt: skip


def make_run(path: Path, *rows: EvaluationRow, name: str = "trial") -> Path:
    path.mkdir(parents=True)
    (path / "evaluations.jsonl").write_bytes(b"".join(msgspec.json.encode(each) + b"\n" for each in rows))
    write_atomically(path / "summary.json", {"schema": SCHEMA, "name": name})
    write_atomically(path / "partition.json", PartitionTable([3, 3], [[1, 2], [3, 0]]).content)
    return path


@pytest.fixture
def run(tmp_path) -> Path:
    return make_run(
        tmp_path / "a",
        row(9, 0.5, 0.7, consensus_distance=0.5, average_model={"accuracy": 0.8, "loss": 0.25}),
        row(19, 0.6, 1.0, consensus_distance=0.05, average_model={"accuracy": 0.9, "loss": 0.125}),
    )


def test_a_spread_is_mean_deviation_and_ends_in_percent(run) -> None:
    spread = curves.spread_of(curves.read_runs([run])[0].rows, ACCURACY)
    assert spread.mean == pytest.approx([60, 80])
    assert spread.std == pytest.approx([10, 20])
    assert (spread.least, spread.most) == (pytest.approx([50, 60]), pytest.approx([70, 100]))
    assert spread.average == pytest.approx([80, 90])


def test_one_loss_that_is_not_finite_leaves_a_gap() -> None:
    diverged = row(1, 0.1, 0.2)
    diverged.metrics["loss"][1] = None
    spread = curves.spread_of([row(0, 0.5, 0.5), diverged], LOSS)
    assert spread.mean[0] == 1.5
    assert isnan(spread.mean[1])
    assert isnan(spread.most[1])


def test_bytes_are_per_node_in_a_unit_that_suits() -> None:
    rows = [row(0, 0.5, 0.5)]
    axis = curves.axis_of([curves.RunCurves("", rows, [])], "bytes")
    assert (axis.label, axis.values(rows)) == ("MB sent per node", [4.0])
    silent = EvaluationRow(0, 0.0, {"accuracy": {0: 0.5}}, {}, {0: 0})
    assert curves.axis_of([curves.RunCurves("", [silent], [])], "bytes").label == "bytes sent per node"


def test_runs_of_one_name_are_distinguished_by_their_folders(tmp_path) -> None:
    paths = [make_run(tmp_path / folder / "out", row(0, 0.5)) for folder in ("x", "y")]
    assert [run.name for run in curves.read_runs(paths)] == ["x/out", "y/out"]
    other = make_run(tmp_path / "z", row(0, 0.5), name="other")
    assert [run.name for run in curves.read_runs([paths[0], other])] == ["trial", "other"]


def test_a_panel_shows_mean_bands_and_average_model(run) -> None:
    with drawing():
        axes = Figure().add_subplot()
        figures.panels_of(curves.read_runs([run]))["accuracy_rounds"](axes)
    mean, average = axes.lines
    assert list(mean.get_xdata()) == [10, 20]
    assert mean.get_ydata() == pytest.approx([60, 80])
    assert average.get_ydata() == pytest.approx([80, 90])
    lightest, dark = (band.get_paths()[0].vertices[:, 1] for band in axes.collections)
    assert (lightest.min(), lightest.max()) == pytest.approx((50, 100))
    assert (dark.min(), dark.max()) == pytest.approx((50, 100))
    assert axes.get_title(loc="left") == "Test accuracy against rounds"


def test_a_single_evaluation_is_drawn_as_bars_with_a_tick(tmp_path) -> None:
    only = make_run(tmp_path / "only", row(9, 0.5, 0.7, average_model={"accuracy": 0.8}))
    with drawing():
        axes = Figure().add_subplot()
        figures.panels_of(curves.read_runs([only]))["accuracy_rounds"](axes)
    assert [line.get_marker() for line in axes.lines] == ["o", "_"]
    widest, _ = (bar.get_segments()[0][:, 1].tolist() for bar in axes.collections)
    assert widest == pytest.approx([50, 70])


def test_several_runs_share_their_panels(run, tmp_path) -> None:
    # No consensus distance and no average model, as on a machine other than 0.
    bare = make_run(tmp_path / "b", row(4, 0.25, 0.5), name="bare")
    runs = curves.read_runs([run, bare])
    panels = figures.panels_of(runs)
    assert set(panels) == SINGLE - PERCENTILES | {"accuracy_nodes"}
    axes = Figure().add_subplot()
    panels["accuracy_nodes"](axes)
    assert list(axes.lines[1].get_ydata()) == [25, 50]
    legend = figures.overview(runs, panels).legends[0]
    names = [text.get_text() for text in legend.get_texts()]
    assert names == ["trial", "bare", "± standard deviation", "lowest to highest", "average model"]


def legend(picture) -> list[str]:
    return [text.get_text() for entry in picture.legends for text in entry.get_texts()]


def test_a_legend_names_what_its_picture_shows_and_nothing_else(run, tmp_path) -> None:
    runs = curves.read_runs([run])
    panels = figures.panels_of(runs)
    bands = ["± standard deviation", "lowest to highest"]
    assert legend(figures.single(runs, panels["loss_rounds"])) == [
        "mean of the nodes", *bands, "average model"
    ]  # fmt: skip
    assert [legend(figures.single(runs, panels[name])) for name in ("consensus_distance", "labels")] == [
        [], []
    ]  # fmt: skip
    # A single node has no spread; of this run neither distance nor average model are known.
    bare = make_run(tmp_path / "b", row(4, 0.25), name="bare")
    both = curves.read_runs([run, bare])
    panels = figures.panels_of(both)
    assert legend(figures.single(both, panels["accuracy_nodes"])) == ["trial", "bare"]
    assert legend(figures.single(both, panels["consensus_distance"])) == ["trial"]
    alone = both[1:]
    assert legend(figures.single(alone, figures.panels_of(alone)["loss_rounds"])) == ["mean of the nodes"]


def test_a_mean_of_some_nodes_is_called_so(tmp_path) -> None:
    """Before the last evaluation a server alone is tested, or a sample of the nodes."""
    served = make_run(tmp_path / "served", row(0, 0.25), row(1, 0.5), row(2, 0.5, 0.75, 1.0))
    runs = curves.read_runs([served])
    names = legend(figures.single(runs, figures.panels_of(runs)["accuracy_rounds"]))
    assert names[0] == "mean of 1 of the 3 nodes; the last point: of all"


def test_a_distance_of_0_leaves_its_picture_below(tmp_path) -> None:
    """All rounds are drawn, though a logarithmic axis has no place for it."""
    rows = [row(r, 0.5, consensus_distance=distance) for r, distance in enumerate((0.1, 0.01, 0.0))]
    runs = curves.read_runs([make_run(tmp_path / "x", *rows)])
    axes = Figure().add_subplot()
    figures.panels_of(runs)["consensus_distance"](axes)
    assert list(axes.lines[0].get_xdata()) == [1, 2, 3]
    assert axes.get_ylim()[0] > 0.001 and axes.get_xlim()[1] > 3


def test_no_deviation_reaches_beyond_the_lowest_and_the_highest(tmp_path) -> None:
    skewed = [row(round, *[0.9] * 7, 0.1) for round in (9, 19)]
    runs = curves.read_runs([make_run(tmp_path / "skewed", *skewed)])
    axes = Figure().add_subplot()
    figures.panels_of(runs)["accuracy_rounds"](axes)
    lightest, dark = (band.get_paths()[0].vertices[:, 1] for band in axes.collections)
    assert (lightest.min(), lightest.max()) == pytest.approx((10, 90))
    assert (dark.min(), dark.max()) == pytest.approx((80 - 100 * 0.7**0.5 / 10**0.5, 90))


@pytest.mark.parametrize("count", [2, 7, 8, 40])
def test_every_run_has_a_color_of_its_own(count) -> None:
    runs = [curves.RunCurves(str(i), [row(0, 0.5)], []) for i in range(count)]
    assert len({to_hex(style.color) for style in figures.styled(runs)}) == count


@pytest.mark.slow
def test_one_run_is_drawn_with_its_labels_in_a_process_of_its_own(run) -> None:
    pictures = make_figures(run)
    assert pictures.problem == ""
    overview, *others = pictures.paths
    assert overview == run / "overview.png"
    assert {path.stem for path in others} == SINGLE | {"labels"}
    height, width = imread(overview).shape[:2]
    assert width > height > 1000
    shown = imread(others[0])
    assert len({tuple(pixel) for pixel in shown[::7, ::7].reshape(-1, shown.shape[2])}) > 4


def test_a_drawing_process_says_why_it_could_not_draw(tmp_path) -> None:
    failed = make_figures(tmp_path / "nowhere")
    assert failed.paths == []
    assert failed.problem.startswith(f"{tmp_path}/nowhere: not the directory of a run")


def test_drawing_that_takes_too_long_is_ended(run, monkeypatch) -> None:
    monkeypatch.setattr(Timeouts, "drawing", 0.01)
    words = f"drawing took longer than 0 s and was ended; decentnode plot {run} draws them"
    assert make_figures(run).problem == words


def test_drawing_that_a_signal_ends_names_the_command_that_draws(run, monkeypatch, tmp_path) -> None:
    """As Slurm's signal at the limit of time, which reaches all processes of a job."""
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\nkill -TERM $$\n")
    python.chmod(0o755)
    monkeypatch.setattr("sys.executable", str(python))
    words = f"drawing was ended: killed by signal 15; decentnode plot {run} draws them"
    assert make_figures(run).problem == words


def test_percentiles_of_the_nodes_go_from_the_worst_to_the_best(run) -> None:
    (curve,) = curves.read_runs([run])
    worst, middle, best = map(pytest.approx, curves.percentiles_of(curve.rows, ACCURACY, (0, 50, 100)))
    assert (worst, middle, best) == ([50, 60], [50, 60], [70, 100])
    assert [line[0] for line in curves.percentiles_of(curve.rows, LOSS, (0, 100))] == [2.0, 1.0]
    for metric in (ACCURACY, LOSS):
        axes = figures.named_figure(curve, f"{metric.name}_percentiles").axes[0]
        assert [line.get_label() for line in axes.lines] == [f"{p} %" for p in figures.PERCENTS]
        lines = curves.percentiles_of(curve.rows, metric, figures.PERCENTS)
        assert [list(line.get_ydata()) for line in axes.lines] == [pytest.approx(line) for line in lines]
    with pytest.raises(BadInput, match=r"^trial: has no figure 'nodes' \(it has accuracy_rounds, "):
        figures.named_figure(curve, "nodes")


def test_how_often_coordinates_were_sent_is_drawn_sorted_and_in_order(run) -> None:
    counts = {0: [0, 4, 10, 10], 1: [0, 0, 10, 20]}
    for rank, rounds in counts.items():
        path = path_of(run, rank, 19, COORDINATES)
        path.parent.mkdir(parents=True)
        save_file({name: np.array(rounds, np.int32) for name in ("rounds", "latest")}, path)
    runs = curves.read_runs([run])
    assert {"coordinates", "coordinates_in_order"} < figures.panels_of(runs).keys()
    axes = figures.named_figure(runs[0], "coordinates").axes[0]
    y = axes.lines[0].get_ydata()
    assert (y[0], y[-1]) == (0, 75) and (np.diff(y) >= 0).all()
    axes = figures.named_figure(runs[0], "coordinates_in_order").axes[0]
    assert list(axes.lines[0].get_xdata()) == [0.5, 1.5, 2.5, 3.5]
    assert list(axes.lines[0].get_ydata()) == [0, 10, 50, 75]
    pictures = figures.plot([run, run], run / "both")
    assert "coordinates.png" in {path.name for path in pictures}


def test_a_run_in_progress_is_drawn_as_far_as_it_is_and_before_evaluations_by_its_training_losses(
    run,
) -> None:
    def title() -> str:
        (curves_of_run,) = curves.read_runs([run])
        return figures.overview([curves_of_run], figures.panels_of([curves_of_run])).get_suptitle()

    (run / "summary.json").unlink()
    (run / "config.yaml").write_text("rounds: 4000\n")
    killed = "a: 2 nodes, round 20, test accuracy 80.00 % (60.00 to 100.00)"
    assert title() == killed
    lock = RunLock(run)
    assert title() == killed.replace("round 20", "round 20 of 4,000, in progress")
    (run / "evaluations.jsonl").unlink()
    (run / "records").mkdir()
    for rank in range(2):
        # Rank 1 is a round behind, and one round had no local steps.
        lines = [
            {"rank": rank, "round": r, "seconds": r + 1, "sent_payload": 10, "sent_header": 2}
            | ({} if r == 1 else {"loss": 1.0 + rank - r / 8})
            for r in range(5 - rank)
        ]
        path = run / "records" / f"{rank:05d}.jsonl"
        path.write_bytes(b"".join(msgspec.json.encode(line) + b"\n" for line in lines))
    assert title() == "a: 2 nodes, round 4 of 4,000, in progress, training loss 1.1250 (0.6250 to 1.6250)"
    (read,) = curves.read_runs([run])
    axes = figures.named_figure(read, "train_loss_bytes").axes[0]
    assert axes.lines[0].get_xdata().tolist() == [12, 36, 48]
    assert axes.lines[0].get_ydata().tolist() == [1.5, 1.25, 1.125]
    lock.release()


def test_drawing_loads_no_torch() -> None:
    script = "import sys, decentnode.results.figures.plots; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def test_of_many_nodes_a_panel_shows_quantiles(tmp_path) -> None:
    """And says over how many of them; a diverged node counts as the worst, and leaves no gap."""
    accuracy = [i / 100 for i in range(101)]
    rows = [row(round, *accuracy) for round in (9, 19)]
    for each in rows:
        each.metrics["loss"] = {rank: 0.01 * (rank + 1) for rank in range(101)} | {0: None}
        each.bytes_sent = {rank: 1 for rank in range(1250)}
    run = make_run(tmp_path / "many", *rows)
    write_atomically(run / "partition.json", PartitionTable([3, 3] * 700, [[0, 3], [2, 1]] * 700).content)
    runs = curves.read_runs([run])
    panels = figures.panels_of(runs)
    shown = {}
    for name in ("accuracy_rounds", "loss_rounds", "labels"):
        shown[name] = axes = Figure().add_subplot()
        panels[name](axes)
    lines, bands = shown["accuracy_rounds"].lines, shown["accuracy_rounds"].collections
    assert [line.get_ydata().tolist() for line in lines] == [[50, 50], pytest.approx([50, 50])]
    ends = [band.get_paths()[0].vertices[:, 1] for band in bands]
    assert [(band.min(), band.max()) for band in ends] == [(5, 95), (25, 75)]
    median = shown["loss_rounds"].lines[0].get_ydata()
    assert median == pytest.approx([0.52] * 2)
    assert legend(figures.single(runs, panels["accuracy_rounds"])) == [
        "median of 101 of 1,250 nodes", "mean", "25 to 75 % of the nodes", "5 to 95 %"
    ]  # fmt: skip
    overview = figures.overview(runs, panels)
    assert overview.get_suptitle().startswith("trial: 101 of 1,250 nodes, round 20, test accuracy 50.00 %")
    # Groups of nodes that are alike: the mean over neighboring ranks would be the same everywhere.
    labels = shown["labels"].images[0].get_array()
    assert len(labels) == figures.ROWS_OF_MORE and [*labels[0]] == [2, 1] and [*labels[-1]] == [0, 3]


def test_of_many_nodes_a_cell_of_a_heat_map_is_the_largest_of_its_block(monkeypatch) -> None:
    monkeypatch.setattr(plots_privacy, "MOST_CELLS", 2)
    table = np.array([[0, 1, 2], [3, 9, 0], [1, np.inf, 5.0]])
    assert plots_privacy.block_maxima(table).tolist() == [[9, 2], [np.inf, 5]]
    assert plots_privacy.block_maxima(table[:, :1]).tolist() == [[3], [1]]
    picture = plots_privacy.heat_map("many", {"one": table, "colluders": table[:, :1]})
    assert "the most epsilon of a block of 2 ranks (white: nothing)" in {
        axes.get_ylabel() for axes in picture.axes
    }


@pytest.mark.parametrize(("least", "most", "wanted"), [(7.8, 8, ""), (0.3, 6, "0.5"), (1, 4e3, "1000")])
def test_figures_of_privacy_have_plain_numbers_on_logarithmic_scales(least, most, wanted) -> None:
    points = {"a": (least, 0.1, 90.0, 1.0), "b": (most, 0.1, 95.0, 1.0)}
    panel = plots_privacy.Panel("proof", "epsilon", True, points, front=["a"])
    for figure in (
        plots_privacy.heat_map("pairs", {"proven": np.array([[least, most]] * 2)}),
        plots_privacy.frontier_figure("study", "accuracy", [[panel]]),
    ):
        figure.draw_without_rendering()
        axes = figure.axes[-1]
        axis = axes.xaxis if axes.get_xlabel() == "epsilon" else axes.yaxis
        texts = [label.get_text() for label in axis.get_ticklabels(which="both")]
        assert len([*filter(None, texts)]) >= 2
        assert not [text for text in texts if "$" in text]
        assert {wanted} <= {*texts, ""}
