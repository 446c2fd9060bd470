"""Runs as a study sees them: states, variants, tables, differences."""

import fcntl
import json
from math import isnan
from pathlib import Path
from typing import get_args

import msgspec
import pytest
import yaml

from decentnode.config.type_check import parameters_of
from decentnode.core.registry import COMMUNICATIONS, GRAPHS, MAPPINGS, TRAININGS
from decentnode.errors import BadInput
from decentnode.formats.metrics import ACCURACY, CLASSIFICATION, LOSS
from decentnode.formats.reader import SCHEMA, EvaluationRow
from decentnode.formats.records import write_atomically
from decentnode.mapping.base import Address, ListenAddress, Machine
from decentnode.options import Port
from decentnode.results import Run, Study
from decentnode.results.compare import compare
from decentnode.results.curves import read_runs
from decentnode.results.run import RunEntry
from decentnode.results.study import PLACES, STUDY_FILE, read_variants
from decentnode.results.study_curves import figures_of, study_curves
from decentnode.studies.report.tables import cost_lines, main_table, narrow


def make_run(
    path: Path, accuracies: list[tuple[float, float]], seed: int = 0, sharing: str = "gossip",
    sent: int = 1000, done: bool = True, entry: RunEntry | None = None, metrics=CLASSIFICATION,
    network: str = "",
) -> Path:  # fmt: skip
    """A run of two nodes with an evaluation of both after every tenth round, a second apart."""
    path.mkdir(parents=True)
    settings = {
        "name": "trial",
        "seed": seed,
        "run_dir": str(path),
        "sharing": {"name": sharing},
        "rounds": 30,
    }
    if network:
        settings["communication"] = {"name": "simulated", "latency": network}
    (path / "config.yaml").write_text(yaml.safe_dump(settings))
    rows = [
        EvaluationRow(
            10 * i + 9, 1.0 + i, {"accuracy": dict(enumerate(both)), "loss": {0: 0.5, 1: None}}, {0: 0.25},
            {0: sent * (i + 1), 1: 3 * sent * (i + 1)}, 0.125,
        )
        for i, both in enumerate(accuracies)
    ]  # fmt: skip
    (path / "evaluations.jsonl").write_bytes(b"".join(msgspec.json.encode(row) + b"\n" for row in rows))
    described = [msgspec.to_builtins(metric) for metric in metrics]
    write_atomically(path / "run.json", {"schema": SCHEMA, "metrics": described})
    if done:
        ended = {"schema": SCHEMA, "name": "trial", "nodes": 2, "finished_nodes": 2}
        write_atomically(path / "summary.json", ended)
    if entry is not None:
        entry.save(path)
    return path


def recorded(variant: str, seed: int, alone: bool = True) -> RunEntry:
    return RunEntry("trial", variant, {"scheme": variant}, seed, alone, 3.0, 2.0, 0)


def test_a_run_is_a_tidy_table(tmp_path):
    run = Run(make_run(tmp_path / "a", [(0.5, 0.7), (0.8, 0.9)], seed=3))
    assert (run.name, run.seed, run.state, run.headline.name) == ("trial", 3, "finished", "accuracy")
    assert run.curve() == pytest.approx([60.0, 85.0]) and isnan(run.curve(LOSS)[0])
    assert (run.rounds, run.bytes_per_node, run.seconds) == ([10, 20], [2000.0, 4000.0], [1.0, 2.0])
    frame = run.evaluations
    assert frame.shape == (4, 11) and frame["wall_seconds"].isna().all()
    last = frame.iloc[-1]
    assert (last["rank"], last["round"], last["accuracy"], last["bytes_sent"]) == (1, 20, 0.9, 6000)
    assert isnan(last["loss"]) and isnan(last["train_loss"]) and frame["train_loss"][0] == 0.25


def test_times_of_a_simulated_study_are_virtual_and_say_until_when(tmp_path):
    """Two networks and two schemes: a column of the figure for each network, in seconds and in bytes."""
    for network in ("near", "far"):
        for scheme, ends in (("gossip", (0.8, 0.9)), ("choco", (0.6, 0.7))):
            for seed, end in enumerate(ends):
                entry = RunEntry(
                    "s", f"{network}_{scheme}", {"network": network, "scheme": scheme}, seed, False
                )
                values = [(0.5, 0.5), (end, end)]
                path = tmp_path / "s" / f"{network}_{scheme}" / f"seed-{seed}"
                make_run(path, values, seed=seed, sharing=scheme, entry=entry, network=network)
    (tmp_path / "s" / STUDY_FILE).write_text("target: 75\n")
    study = Study(tmp_path / "s")
    # Runs at the same time take the same virtual time.
    assert study.is_simulated and study.time_doubt == "" and study.target == 75.0
    texts = {
        variant.name: [study.cost_to_target(variant, name, 75.0).text for name in ("seconds", "bytes")]
        for variant in study.variants
    }
    # Crossed between evaluations at 1 and 2 s: (75 - 50) / 30 and / 40 after the first.
    assert texts["near_gossip"][0].startswith("1.7 s ± 1.3 s")
    assert texts["near_choco"] == ["not reached in 2.0 s", "not reached in 4.0 kB"]
    assert study.cost_to_target(study.variants[0], "seconds", 65.0).text == "not reached by 1 of 2 in 2.0 s"
    figure = study.plot_costs()
    assert [axes.get_title(loc="left") for axes in figure.axes] == ["far", "near", "", ""]
    assert [axes.get_xlabel() for axes in figure.axes] == [
        "simulated seconds", "simulated seconds", "kB sent per node", "kB sent per node",
    ]  # fmt: skip
    legend = [text.get_text() for text in figure.legends[0].get_texts()]
    assert legend == ["choco", "gossip", "target 75"]
    assert study.plot(x="seconds").axes[0].get_xlabel() == "simulated seconds"
    assert "simulated time" in study._repr_html_() and "simulated time" in study.runs[0]._repr_html_()
    assert [*study.table()["simulated"]] == [True] * 4
    real = make_run(tmp_path / "real", [(0.5, 0.5), (0.9, 0.9)])
    mixed = Study(study.runs[0], real)
    assert "do not compare" in mixed.plot(x="seconds").axes[0].get_xlabel()
    assert "do not compare" in mixed._repr_html_()
    first, *_ = compare(read_runs([study.runs[0].directory, real]), 75)
    assert first.startswith("Times of some runs are simulated")
    heading = next(line for line in compare(read_runs([study.runs[0].directory]), 75) if "points" in line)
    assert heading.count("simulated time") == 2
    table = main_table(study, 75.0)
    assert table.headings[-2:] == ["bytes to 75 %", "simulated time to 75 %"]
    assert "simulated time to 75 %" in narrow(table).headings
    assert [*cost_lines(study, 75.0)][1].split()[:2] == ["far_choco", "2"]
    assert study_curves(study.variants, study.headline, "seconds").axis.label == "simulated seconds"


def test_the_best_evaluation_is_chosen_by_validation_where_there_is_some(tmp_path):
    accuracies = [(0.5, 0.5), (0.8, 0.8), (0.7, 0.7), (0.6, 0.6)]
    assert Run(make_run(tmp_path / "without", accuracies)).best == pytest.approx(80.0)
    path = make_run(tmp_path / "a", accuracies, metrics=[*CLASSIFICATION, ACCURACY.of_validation])
    rows = [json.loads(line) for line in (path / "evaluations.jsonl").read_text().splitlines()]
    for row, value in zip(rows, (0.1, 0.2, 0.9, 0.9), strict=True):
        row["metrics"]["validation_accuracy"] = {"0": value, "1": value}
    (path / "evaluations.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert Run(path).judged_by.words == "validation accuracy"
    assert Run(path).best == Study(path).measures()["best"](Run(path)) == pytest.approx(70.0)
    described = main_table(Study(path), 50.0)
    assert "Best: at the evaluation with the best accuracy on the validation samples." in described.notes
    drawn = next(c for c in figures_of(Study(path).variants) if c.name == "validation_accuracy_rounds")
    assert next(iter(drawn.bands.values()))[0].mean == pytest.approx([10, 20, 90, 90])
    assert drawn.label == "validation accuracy (%)"
    assert isnan(Run(make_run(tmp_path / "b", [])).best)


def test_a_run_in_progress_holds_its_lock(tmp_path):
    path = make_run(tmp_path / "a", [(0.5, 0.7)], done=False)
    assert Run(path).state == "incomplete"
    with (path / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert Run(path).state == "running"
    assert Run(path).state == "incomplete"


def test_what_the_first_evaluation_exceeds_is_an_upper_bound_in_the_report(tmp_path):
    for name, first in (("late", 0.5), ("early", 0.8)):
        make_run(tmp_path / name, [(first, first), (0.9, 0.9)], sharing=name, entry=recorded(name, 1))
    study, note = Study(tmp_path), "<=: a run is beyond 70 % at its first evaluation, so at most this."
    described = main_table(study, 70.0)
    cells = {cells[0].text: [cell.text for cell in cells[-2:]] for cells in described.rows}
    assert (
        cells == {"early": ["<= 2.0 kB", "<= 1.0 s"], "late": ["3.0 kB", "1.5 s"]} and note in described.notes
    )
    assert dict(zip(study.table(70.0)["variant"], study.table(70.0)["target_is_bound"], strict=True)) == {
        "early": True, "late": False
    }  # fmt: skip
    assert note not in main_table(study, 85.0).notes


def test_variants_of_a_sweep_are_compared_at_equal_bytes_and_at_a_target(tmp_path):
    for seed, gain in enumerate((0.0, 0.02, 0.04)):
        for variant, sent, last in (("choco", 1000, 0.8), ("gossip", 4000, 0.9)):
            make_run(
                tmp_path / variant / f"seed-{seed}", [(0.5, 0.5), (last + gain, last + gain)], seed, variant,
                sent, entry=recorded(variant, seed, alone=variant == "choco"),
            )  # fmt: skip
    make_run(tmp_path / "choco" / "seed-3", [(0.1, 0.1)], 3, "choco", done=False)
    make_run(tmp_path / "choco" / "seed-0.failed-1", [(0.1, 0.1)], 0, "choco")
    study = Study(tmp_path)
    assert [(variant.name, len(variant.runs), len(variant.finished)) for variant in study.variants] == [
        ("choco", 4, 3), ("gossip", 3, 3),
    ]  # fmt: skip
    assert study.equal_bytes == 4000.0, "choco's two nodes send 2000 bytes on average in ten rounds"
    table = study.table().set_index("variant")
    assert table.loc["choco", "end"] == pytest.approx(82.0)
    assert table.loc["choco", "end_half"] == pytest.approx(4.302652729911275 * 2 / 3**0.5)
    assert table.loc["gossip", "scheme"] == "gossip" and list(table["alone"]) == [True, False]
    # Gossip has sent 8000 bytes at its first evaluation, so nothing is known of it at 4000.
    assert table.loc["choco", "at_equal_bytes"] == pytest.approx(82.0)
    assert isnan(table.loc["gossip", "at_equal_bytes"])
    assert study.default_target == pytest.approx(80.0), "the worst run's best"
    make_run(tmp_path / "none" / "seed-0", [(0.1, 0.1), (0.3, 0.3)], 0, "none", 0, entry=recorded("none", 0))
    other_study = Study(tmp_path)
    assert other_study.equal_bytes == 4000.0, "who sends nothing sets no limit"
    assert other_study.table().set_index("variant").loc["none", "at_equal_bytes"] == pytest.approx(30.0)
    cheap = study.table(target=65.0).set_index("variant")
    assert cheap.loc["gossip", "seconds_to_target"] == pytest.approx(1 + (15 / 40 + 15 / 42 + 15 / 44) / 3)
    (tmp_path / "study.yaml").write_text("base: x.yaml\ntarget: 75\n")
    assert Study(tmp_path).default_target == 75.0
    (comparison,) = study.comparisons()
    assert (comparison.first, comparison.second) == ("choco", "gossip")
    assert comparison.difference.mean == pytest.approx(-10.0) and comparison.adjusted_t < 1e-9
    frame = study.evaluations
    assert len(frame) == 26 and set(frame["variant"]) == {"choco", "gossip"}


def test_runs_of_their_own_are_grouped_by_what_differs(tmp_path):
    paths = [
        make_run(tmp_path / name, [(0.5, 0.5)], seed, sharing)
        for name, seed, sharing in (("a", 0, "gossip"), ("b", 1, "gossip"), ("c", 0, "choco"))
    ]
    study = Study(*paths)
    assert [(variant.name, variant.axes, len(variant.runs)) for variant in study.variants] == [
        ("gossip", {"sharing.name": "gossip"}, 2), ("choco", {"sharing.name": "choco"}, 1),
    ]  # fmt: skip


def test_ports_and_places_make_no_variant_but_an_axis_of_a_sweep_does(tmp_path):
    """As jobs of Slurm have them: another port and other hosts for each run, and a machine that wrote it."""
    for seed in range(3):
        path = make_run(tmp_path / f"seed-{seed}", [(0.5, 0.5)], seed)
        settings = yaml.safe_load((path / "config.yaml").read_text()) | {
            "machine": seed % 2,
            "mapping": {
                "name": "linear", "rendezvous_port": 29500 + seed,
                "machines": [{"address": f"n{seed}", "nodes": 2}, {"address": f"m{seed}", "nodes": 2}],
            },
            "communication": {"name": "zeromq", "base_port": 29600 + seed},
            "graph": {"name": "peer_sampler", "port": 30900 + seed, "address": f"n{seed}"},
        }  # fmt: skip
        if seed == 2:
            settings["mapping"]["machines"][1]["nodes"] = 3
        (path / "config.yaml").write_text(yaml.safe_dump(settings))
    both, larger = Study(tmp_path).variants
    assert [len(both.runs), len(larger.runs)] == [2, 1]
    assert [*both.axes] == ["mapping.machines"] and "n0" not in both.name and "nodes" in both.name
    for name, run in zip(("near", "far"), both.runs, strict=True):
        recorded(name, run.seed).save(run.directory)
    assert [variant.name for variant in Study(*(run.directory for run in both.runs)).variants] == [
        "near", "far"
    ]  # fmt: skip


def test_every_option_of_our_plugins_that_is_a_port_or_an_address_makes_no_variant():
    hints, registries = {Port, Address, ListenAddress}, (COMMUNICATIONS, GRAPHS, MAPPINGS, TRAININGS)
    places = {
        name
        for cls in (Machine, *(cls for registry in registries for cls in registry.classes().values()))
        for name, (hint, _) in parameters_of(cls).items()
        if not hints.isdisjoint((hint, *get_args(hint)))
    }
    assert {"rendezvous_port", "base_port", "address"} <= places <= {*PLACES}


def test_compare_puts_seeds_of_a_variant_together(tmp_path, call):
    for seed, value in ((0, 0.8), (1, 0.9)):
        for name in ("choco", "gossip"):
            make_run(tmp_path / name / f"seed-{seed}", [(0.5, 0.5), (value, value + 0.04)], seed, name)
    code, output, _ = call("compare", tmp_path, "--out", tmp_path / "out")
    rows = output.splitlines()
    assert code == 0 and (tmp_path / "out" / "overview.png").exists()
    assert rows[2].split()[:8] == ["choco", "(2", "seeds)", "4", "20", "87.00", "80.00", "94.00"]
    both = [run.rows[-1] for run in read_variants([tmp_path / "choco" / f"seed-{seed}" for seed in (0, 1)])]
    assert [row.ranks for row in both] == [[0, 1], [0, 1]], "one variant alone: its seeds side by side"
    again = read_variants([tmp_path / "choco" / "seed-0"] * 2)
    assert len(again) == 2
    named_twice = Study(tmp_path, tmp_path / "choco" / "seed-0", tmp_path / "gossip" / ".." / "gossip")
    assert [len(variant.runs) for variant in named_twice.variants] == [2, 2], "each counts once"
    assert named_twice.runs[0].directory == tmp_path / "choco" / "seed-0"


def test_what_is_no_study_is_reported_in_one_line(tmp_path):
    with pytest.raises(
        BadInput, match=r"not the directory of a run \(it has no config.yaml\), nor of a study"
    ):
        Study(tmp_path)
    with pytest.raises(BadInput, match=r"not the directory of a run \(it has no config.yaml\)"):
        Run(tmp_path)
