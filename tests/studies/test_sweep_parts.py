"""The parts of a sweep, without any run: directories, plan, admission, screen, ports, shared samples."""

import io
import json
import os
import socket
from dataclasses import replace
from math import nan
from pathlib import Path

import msgspec
import pytest
from rich.console import Console

from decentnode.config import loader as config
from decentnode.errors import BadInput
from decentnode.formats.reader import SCHEMA
from decentnode.graph.random_graphs import Regular
from decentnode.launcher.dataset_cache import DatasetCache
from decentnode.launcher.processes.launcher_process import RunProgress
from decentnode.launcher.recovery.fingerprint import difference, fingerprint
from decentnode.node.experiment import Experiment
from decentnode.node.plugin_sources import PluginSources
from decentnode.results.run import RunEntry, read_entry
from decentnode.results.study import Study, graphs_and_seeds
from decentnode.studies.expansion import planned_runs
from decentnode.studies.study_file import read_study
from decentnode.studies.sweep.admission import Admission
from decentnode.studies.sweep.directories import RunDirectory, RunStatus, refuse_changes
from decentnode.studies.sweep.forecast import Forecast, forecasts
from decentnode.studies.sweep.forked_run import (
    RunOutcome,
    free_ports,
    idle_seconds,
    ports_of,
    with_ports,
)
from decentnode.studies.sweep.plan import SweepPlan
from decentnode.studies.sweep.screen import RunningRow, SweepStanding, panel

ROOT = Path(__file__).parents[2]
GB = 1 << 30


@pytest.fixture
def study(tmp_path):
    (tmp_path / "ring.edges").write_text("3\n0 1\n1 2\n2 0\n")
    text = f"""
base: {ROOT}/configs/quickstart.yaml
set: {{rounds: 4, graph: ring.edges}}
axes: {{sharing: [gossip, push_sum]}}
out: {tmp_path / "out"}
"""
    (tmp_path / "s.yaml").write_text(text)
    return read_study(tmp_path / "s.yaml")


def make(planned, settings=None, finished=3, **state):
    """The directory of a run that has ended."""
    directory = RunDirectory(planned)
    directory.path.mkdir(parents=True)
    settings = settings or planned.settings
    (directory.path / "config.yaml").write_text(config.dump(settings))
    content = {
        "schema": SCHEMA, "run_id": "0" * 16, "settings": fingerprint(settings, settings.graph.make()),
        "code": [msgspec.to_builtins(PluginSources(settings).version)],
    }  # fmt: skip
    (directory.path / "run.json").write_text(json.dumps(content | state))
    summary = {
        "schema": SCHEMA, "finished_nodes": finished, "stopped_nodes": 0, "nodes": 3, "bytes_sent": 2_000,
        "startup_seconds": 0.5, "wall_seconds": 1.5, "peak_memory_mb": 30.0,
    }  # fmt: skip
    (directory.path / "summary.json").write_text(json.dumps(summary))
    return directory


def test_what_is_done_and_what_is_to_do(study):
    first, second = planned_runs(study)
    assert RunDirectory(first).status is RunStatus.NEW
    done, broken = make(first), make(second, finished=2)
    assert (done.status, broken.status) == (RunStatus.DONE, RunStatus.BROKEN)
    refuse_changes([done], False)
    for rank in range(3):
        assert broken.status is RunStatus.BROKEN, "a node that was lost has no state to continue from"
        checkpoint = broken.path / "checkpoints" / f"{rank:05d}" / "00000001.json"
        checkpoint.parent.mkdir(parents=True)
        checkpoint.write_text("{}")
    assert broken.status is RunStatus.RESUMABLE
    broken.log.write_text("log\n")
    broken.move_aside("interrupted", broken.take())
    assert broken.status is RunStatus.NEW
    assert sorted(path.name for path in broken.path.parent.iterdir()) == [
        "seed-0.interrupted-1", "seed-0.interrupted-1.log"
    ]  # fmt: skip
    (done.path / "config.yaml").unlink()
    assert done.status is RunStatus.BROKEN, "a report would not find it"


def test_results_of_other_settings_are_refused_by_the_key(study):
    first, second = planned_runs(study)
    other = replace(second.settings, rounds=5)
    changed = make(second, other)
    with pytest.raises(BadInput) as refused:
        refuse_changes([make(first), changed], True)
    assert str(refused.value) == (
        f"{changed.path}: was made with other settings: rounds was 5, not 4; restore them, or name another "
        "directory (out=...)"
    )


def test_a_graph_file_with_other_edges_makes_other_settings(study, tmp_path):
    done = make(planned_runs(study)[0])
    (tmp_path / "ring.edges").write_text("3\n0 1\n1 2\n")
    with pytest.raises(BadInput, match="the content of a file that graph or"):
        refuse_changes([done], False)


@pytest.mark.parametrize(
    ("code", "what"),
    [
        ([], "it has no record of its code"),
        ([{"round": 0, "digest": "", "files": {}, "package": "another"}], "decentnode itself"),
        ([{"round": 0, "digest": "", "files": {"mine.py": "0"}}], "mine.py, decentnode itself"),
    ],
)
def test_results_of_another_code_are_refused_unless_that_is_accepted(study, code, what):
    done = make(planned_runs(study)[0], code=code)
    with pytest.raises(BadInput) as refused:
        refuse_changes([done], False)
    assert str(refused.value) == (
        f"{done.path}: was made with other code: {what}; name another directory (out=...), or continue "
        "with --accept-code-change"
    )
    refuse_changes([done], True)


def test_names_places_and_ports_are_no_settings_of_a_run(study):
    settings = planned_runs(study)[0].settings
    moved = with_ports(replace(settings, name="x", run_dir="y", machine=0), {"base_port": 40_000})
    graph = settings.graph.make()
    assert fingerprint(settings, graph) == fingerprint(moved, graph) and not difference(settings, moved)
    assert fingerprint(settings, graph) != fingerprint(replace(settings, device="auto"), graph)
    assert difference(settings, replace(settings, seed=8)) == "seed was 0, not 8"


def test_limits_of_time_are_settings_of_a_run_where_virtual_time_decides_by_them():
    virtual = ["communication=simulated", "training.pace={step_seconds: 0.05}"]
    for options, matters in (
        (["faults=[crash]"], False),
        (virtual, False),
        ([*virtual, "faults=[{name: crash, at: 1}]"], True),
    ):
        short, long = (
            config.load("quickstart", [*options, f"failures.grace={seconds}"]) for seconds in (1, 9)
        )
        graph = short.graph.make()
        assert (fingerprint(short, graph) != fingerprint(long, graph)) is matters
        assert difference(short, long) == ("failures.grace was 1.0, not 9.0" if matters else "")


def test_the_plan_shows_what_is_done_and_what_the_rest_will_take(study):
    first, second = planned_runs(study)
    done, new = make(first), RunDirectory(second)
    statuses = {one.planned.name: one.status for one in (done, new)}
    by_variant = forecasts([second], DatasetCache())
    plan = SweepPlan(study, [done, new], statuses, by_variant)
    lines = list(plan.lines())
    assert lines[0] == "s: 2 variants, 1 seed: 2 runs, 1 done"
    assert lines[2].split() == ["gossip", "x", "2.0", "s", "2.0", "kB", "31.5", "MB"]
    assert lines[3].split()[:2] == ["push_sum", "."]
    # Three nodes send a model and a weight to two neighbors each, in four rounds, with headers of 64 bytes.
    assert by_variant["push_sum"].sent_bytes == pytest.approx(3 * 2 * 4 * (4810 * 4 + 64), rel=0.01)
    assert 0 < by_variant["push_sum"].seconds < 60 and by_variant["push_sum"].nodes == 3
    assert plan.waiting == [new]
    assert "where a variant has finished runs, their mean; otherwise time from" in "\n".join(lines)


def test_the_plan_says_whether_each_seed_has_another_graph(tmp_path):
    drawn = "{graph: {name: regular, nodes: 8, degree: 3}}"
    text = f"""
base: {ROOT}/configs/quickstart.yaml
axes: {{of: {{file: {{}}, drawn: {drawn}, fixed: {drawn.replace("}}", ", seed: 4}}")}}}}}
seeds: [1, 2]
out: {tmp_path / "out"}
"""
    (tmp_path / "s.yaml").write_text(text)
    study = read_study(tmp_path / "s.yaml")
    planned = planned_runs(study)
    graphs = {run.name: run.settings.graph.make() for run in planned}
    assert graphs["drawn/seed-1"] == Regular(8, 3, seed=1) and graphs["drawn/seed-2"] == Regular(8, 3, seed=2)
    assert graphs["fixed/seed-1"] == graphs["fixed/seed-2"] == Regular(8, 3, seed=4)
    directories = [RunDirectory(run) for run in planned]
    statuses = {directory.planned.name: directory.status for directory in directories}
    consequence = "another one for each seed in drawn; the same for all seeds in file, fixed"
    assert f"  graph: {consequence}" in [*SweepPlan(study, directories, statuses, {}).lines()]
    for run in planned:
        make(run)
    variants = Study(study.out).variants
    assert sorted(variant.graph_varies for variant in variants) == [False, False, True]
    assert graphs_and_seeds({"a": True, "b": True}) == "another one for each seed"


def test_a_forecast_refuses_what_cannot_start(study):
    run = planned_runs(study)[0]
    options = {**run.settings.dataset.options, "train_size": 10**6}
    wrong = replace(
        run, settings=replace(run.settings, dataset=replace(run.settings.dataset, options=options))
    )
    with pytest.raises(BadInput, match=r"dataset.train_size: 1000000 samples .* \(variant gossip\)"):
        forecasts([wrong], DatasetCache())


def test_runs_share_samples_unless_they_depend_on_the_seed(study):
    first, second = (run.settings for run in planned_runs(study))
    cache = DatasetCache()
    whole = cache.of(first)
    assert cache.of(replace(second, seed=9)) is whole
    alone, shared = Experiment.from_settings(first), Experiment.from_settings(first, whole)
    assert alone.samples.digest == shared.samples.digest
    synthetic = config.load(ROOT / "configs" / "quadratic.yaml")
    assert cache.of(synthetic) is not cache.of(replace(synthetic, seed=9))
    cache.keep([first])
    assert cache.of(second) is whole and len(cache._datasets) == 1


def test_as_many_runs_go_as_processors_and_memory_carry(monkeypatch):
    free = [8 * GB]
    monkeypatch.setattr("decentnode.studies.sweep.admission.available_bytes", lambda: free[0])
    small, large = Forecast(4, 4, 100, memory_bytes=GB), Forecast(4, 4, 200, memory_bytes=4.0 * GB)
    auto = Admission("auto")
    auto.cores = 2
    assert auto.admits(small, []) and not auto.admits(small, [small])
    auto.note(small, RunOutcome(0, wall_seconds=1.0, cpu_seconds=1.0, idle_seconds=1.0), GB / 2)
    assert auto.admits(small, [small]) and not auto.admits(small, [small, small])
    crowded = Admission("auto")
    crowded.cores = 2
    crowded.note(small, RunOutcome(0, wall_seconds=1.0, cpu_seconds=0.2, idle_seconds=0.0), GB / 2)
    assert crowded.load(small).cores == 2 and not crowded.admits(small, [small])
    fixed = Admission(3)
    assert fixed.admits(small, [])
    assert fixed.admits(large, [small]) and not fixed.admits(large, [large])
    free[0] = GB
    assert not fixed.admits(large, [small]) and fixed.admits(large, [])
    assert not fixed.admits(small, [small] * 3)


def test_runs_at_the_same_time_have_ports_of_their_own(study):
    settings = planned_runs(study)[0].settings
    assert free_ports(settings, set()) == {}
    options = {**settings.communication.options, "local": "tcp", "base_port": 30_540}
    tcp = replace(settings, communication=replace(settings.communication, options=options))
    assert free_ports(tcp, set()) == {"base_port": 30_540}
    taken = ports_of(tcp, {"base_port": 30_540})
    assert taken == {30_540, 30_541, 30_542}
    assert free_ports(tcp, taken) == {"base_port": 30_543}
    with socket.create_server(("127.0.0.1", 30_544)):
        assert free_ports(tcp, taken) == {"base_port": 30_546}


def test_the_panel_shows_all_runs():
    rows = [RunningRow("gossip/seed-1", 40, 12.0, 4.0, 3.0), RunningRow("choco/seed-1", 40, 0.0, 0.0, 0.5)]
    standing = SweepStanding("quick", 6, 2, 1, 1, 65.0, 130.0, rows)
    output = io.StringIO()
    Console(file=output, width=110).print(panel(standing))
    text = output.getvalue()
    for part in (
        "2 of 6 done",
        "2 running",
        "1 waiting",
        "1 failed",
        "round 12 of 40",
        "4 a second",
        "starting",
    ):
        assert part in text
    assert "1:05, about 2:10 left" in text
    assert replace(standing, seconds_left=nan).time == "1:05"


def test_idle_time_is_that_of_our_processors():
    before = idle_seconds()
    assert 0 < before <= idle_seconds()


def test_progress_and_entries_come_back_as_they_were(tmp_path):
    progress = RunProgress()
    progress.put(5.0, 2.5, planned=7, virtual=60.0, wall=3.0)
    taken_over = RunProgress(os.dup(progress.fd))
    assert progress.get() == taken_over.get() == (5.0, 2.5, 7, 60.0, 3.0)
    taken_over.close()
    progress.close()
    entry = RunEntry("s", "v", {"a": "b"}, 3, True, 1.5, 2.5, 0)
    entry.save(tmp_path)
    assert read_entry(tmp_path) == entry
    assert read_entry(tmp_path / "nowhere") is None
