"""A study's file: what it may say, and one line for each thing that is wrong."""

import io
from pathlib import Path

import msgspec
import pytest

from decentnode.core.atomic_files import write_durably
from decentnode.errors import BadInput
from decentnode.formats.run import RUNNING
from decentnode.launcher.dataset_cache import DatasetCache
from decentnode.results.run import Run, RunEntry, read_entry
from decentnode.studies.axes import label_of, spread_out
from decentnode.studies.expansion import planned_runs
from decentnode.studies.study_file import read_study
from decentnode.studies.sweep.directories import RunDirectory, RunStatus
from decentnode.studies.sweep.plan import SweepPlan
from decentnode.studies.sweep.screen import SweepLines
from decentnode.studies.sweep.sweep import Sweep
from tests.corpus.table import fits, rows

ROOT = Path(__file__).parents[2]
BASE = f"base: {ROOT}/configs/quickstart.yaml\n"
LR = "training.optimizer.lr"


@pytest.fixture
def study(tmp_path, monkeypatch):
    """Reads a study of these lines, in a folder of its own."""
    monkeypatch.chdir(tmp_path)

    def read(text: str, *overrides: str):
        (tmp_path / "s.yaml").write_text(BASE + text)
        return read_study("s.yaml", overrides)

    return read


def test_the_shipped_study_is_small_and_understood():
    plan = planned_runs(read_study(ROOT / "configs" / "studies" / "quick.yaml"))
    names = ["gossip", "choco", "exact_diffusion"]
    assert [run.name for run in plan] == [f"{name}/seed-{seed}" for seed in (0, 1) for name in names]
    assert [run.settings.sharing.name for run in plan[:3]] == names
    assert {(run.settings.rounds, run.settings.evaluation.figures) for run in plan} == {(10, False)}
    assert plan[3].settings.run_dir == str(Path("runs/quick/gossip/seed-1").absolute())


@pytest.mark.parametrize("name", ["digits", "fashion"])
def test_the_larger_studies_have_eight_schemes_on_two_partitions(name):
    plan = planned_runs(read_study(ROOT / "configs" / "studies" / f"{name}.yaml"))
    assert len(plan) == 2 * 8 * 5 and len({run.variant.name for run in plan}) == 16
    assert {run.settings.communication.name for run in plan} == {"inproc"}
    # The table interpolates between evaluations.
    assert all(run.settings.rounds // run.settings.evaluation.every >= 7 for run in plan)


def test_axes_are_crossed_in_their_order(study):
    planned = study(f"axes:\n  {LR}: [0.1, 0.05]\n  sharing: [gossip, {{name: gossip, weights: uniform}}]\n")
    names = ["lr-0.1_gossip", "lr-0.1_gossip-uniform", "lr-0.05_gossip", "lr-0.05_gossip-uniform"]
    assert [variant.name for variant in planned.variants] == names


def test_zipped_axes_go_together_and_conditions_leave_combinations_out(study):
    axes = f"axes:\n  rounds: [5, 10]\n  {LR}: [0.1, 0.2]\n  training.batch_size: [8, 16]\n"
    planned = study(f"{axes}zip: [[rounds, {LR}]]\nexclude: [{{rounds: 5, training.batch_size: [8]}}]\n")
    assert [variant.name for variant in planned.variants] == [
        "rounds-5_lr-0.1_batch_size-16", "rounds-10_lr-0.2_batch_size-8", "rounds-10_lr-0.2_batch_size-16"
    ]  # fmt: skip


def test_named_variants_change_several_keys(study):
    axes = "axes:\n  kind:\n    plain: {}\n    big: {rounds: 7, model.hidden: [128]}\n"
    planned = study(f"set: {{rounds: 3}}\n{axes}seeds: [4]\n")
    plain, big = planned_runs(planned)
    assert (plain.name, plain.settings.rounds, plain.settings.seed) == ("plain/seed-4", 3, 4)
    assert (big.settings.rounds, big.settings.model.options["hidden"]) == (7, (128,))


def test_without_axes_there_is_one_variant_and_words_of_the_command_line_count(study):
    planned = study("seeds: 2\n", "seeds=[3]", "set.rounds=9", f"set.{LR}=0.5", "out=elsewhere")
    (run,) = planned_runs(planned)
    assert (run.name, run.settings.rounds) == ("base/seed-3", 9)
    assert run.settings.training.optimizer.options["lr"] == 0.5
    with pytest.raises(BadInput, match=r"command line: set\.roundz: unknown key; did you mean 'rounds'"):
        planned_runs(study("", "set.roundz=9"))
    words = r"^command line: rounds: a key of the configuration; .* below set \(command line: set.rounds="
    with pytest.raises(BadInput, match=words):
        study("", "rounds=9")
    assert planned.out == Path("elsewhere").absolute()


def test_paths_are_found_beside_the_study_and_beside_the_base(study, tmp_path):
    (tmp_path / "mine.edges").write_text("2\n0 1\n")
    planned = study("axes: {graph: [mine.edges, ../graphs/ring_16.edges]}\n")
    assert [run.name for run in planned_runs(planned)] == ["mine/seed-0", "ring_16/seed-0"]


def test_runs_draw_figures_where_the_study_says_so(study):
    assert planned_runs(study("set: {evaluation: {figures: true}}\n"))[0].settings.evaluation.figures


def test_the_copy_means_the_same_in_another_folder(study, tmp_path):
    planned = study(f"set: {{rounds: 3}}\naxes: {{{LR}: [0.1]}}\nout: here\n")
    (tmp_path / "below").mkdir()
    write_durably(tmp_path / "below" / "study.yaml", [planned.copy.encode()])
    again = read_study(tmp_path / "below" / "study.yaml")
    assert (again.name, again.out, again.base) == (planned.name, planned.out, planned.base)
    names = [[run.name for run in planned_runs(plan)] for plan in (planned, again)]
    assert names[0] == names[1] == ["lr-0.1/seed-0"]


@pytest.mark.parametrize(
    ("ends", "values"),
    [
        ((1, 7, 2, None, False), [1, 3, 5, 7]),
        ((0.1, 0.5, 0.1, None, False), [0.1, 0.2, 0.3, 0.4, 0.5]),
        ((3, 1, -1, None, False), [3, 2, 1]),
        ((0, 1, None, 3, False), [0.0, 0.5, 1.0]),
        ((1, 100, None, 3, True), [1, 10, 100]),
        ((0.001, 0.1, None, 3, True), [0.001, 0.01, 0.1]),
        ((5, 5, 1, None, False), [5]),
    ],
)
def test_ranges_have_both_ends(ends, values):
    numbers = spread_out(*ends)
    assert numbers == values
    assert [type(value) for value in numbers] == [type(value) for value in values]


@pytest.mark.parametrize(
    ("key", "value", "label"),
    [
        (LR, 0.05, "lr-0.05"),
        ("sharing", "gossip", "gossip"),
        ("sharing", {"name": "choco", "gamma": 0.2}, "choco-gamma-0.2"),
        ("sharing.transforms", [{"name": "top_k", "fraction": 0.1}, "auto"], "top_k-fraction-0.1+auto"),
        ("sharing.transforms", [], "transforms-none"),
        ("graph", "../graphs/ring_16.edges", "ring_16"),
        ("model", "nets:Mine", "Mine"),
        ("communication.overlap", True, "overlap-true"),
        ("records.models", None, "models-none"),
    ],
)
def test_labels_are_short_and_safe(key, value, label):
    assert label_of(key, value) == label


def test_a_long_label_is_cut_and_stays_unique():
    labels = {label_of("x", f"{'a' * 50}{i}") for i in range(3)}
    assert len(labels) == 3 and max(map(len, labels)) <= 40


BAD = r"""
axs: {}\n | 2 axs | unknown key; did you mean 'axes'?
axes:\n  training.optimizer.lrr: [0.1]\n
    | 3 training.optimizer.lrr | unknown option of SGD; did you mean 'lr'?
axes:\n  rounds: 5\n
    | 3 axes.rounds | must be a list of values, a range {from: 1, to: 9, step: 2}, or named variants ... not 5
axes:\n  rounds: []\n
    | 3 axes.rounds | must be a list of values, a range {from: 1, to: 9, step: 2}, or named variants {name:
    + {key: value}}, not an empty one
axes:\n  training.optimizer.lr:\n    - 0.1\n    - fast\n
    | 5 training.optimizer.lr | must be a number, not 'fast' (variant fast)
set:\n  rounds: none\n | 3 rounds | must be a whole number > 0, not 'none'
set:\n  'a b': 1\n | 3 a b | this is no key; a key is a word, or words with dots: training.optimizer.lr
set:\n  rounds.more: 1\n | 3 rounds | must be a whole number > 0, not a mapping
axes:\n  sharing: [gossip, relay_sum]\n
    | 3 sharing | relay_sum needs a graph that is a tree, such as chain, star or binary_tree; this one is ...
axes:\n  kind:\n    a: {}\n    b: {rounds: 40}\n
    | 2 axes | the variants 'a' and 'b' have the same settings; leave one out
axes:\n  rounds: [5, 5]\n | 3 axes.rounds | two values have the label 'rounds-5'; make them named variants
axes:\n  rounds: [5]\n  kind: {a: {rounds: 3}}\n | 4 axes.kind | rounds is changed by the axis 'rounds', too
axes:\n  rounds: {from: 1, to: 5}\n | 3 axes.rounds | a range has from, to, and one of step and count
axes:\n  rounds: {from: 1, step: 5}\n | 3 axes.rounds.to | missing; it must be a number
axes:\n  rounds: {frm: 1, too: 5, stp: 2}\n
    | 3 axes.rounds.frm | unknown key; did you mean 'from'?
    | 3 axes.rounds.too | unknown key; did you mean 'to'?
    | 3 axes.rounds.stp | unknown key; did you mean 'step'?
axes:\n  rounds: {zebra: 5}\n | 3 axes.rounds | must be a list of values, a range {from: 1, ... not a mapping
axes:\n  rounds: {from: 1, to: 5, step: -1}\n | 3 axes.rounds | a step of -1 does not lead from 1 to 5
axes:\n  rounds: {from: 0, to: 5, count: 3, log: true}\n
    | 3 axes.rounds | a range with log has a count, and from and to above 0
axes:\n  rounds: [5, 6]\n  training.optimizer.lr: [0.1]\nzip: [[rounds, training.optimizer.lr]]\n
    | 5 zip[0] | axes that go together have equally many values; rounds has 2, training.optimizer.lr has 1
axes:\n  rounds: [5, 6]\nzip: [[rounds, round]]\n | 4 zip[0] | unknown axis 'round'; did you mean 'rounds'?
axes:\n  rounds: [5, 6]\nexclude: [{round: 5}]\n | 4 exclude[0].round | unknown axis; did you mean 'rounds'?
axes:\n  rounds: [5, 6]\nexclude: [{rounds: 7}]\n
    | 4 exclude[0].rounds | unknown value 7 (known: rounds-5, rounds-6)
axes:\n  rounds: [5]\nexclude: [{rounds: 5}]\n | 4 exclude | leaves no combination
seeds: 0\n | 2 seeds | must be a whole number > 0 or a list of whole numbers >= 0, not 0
seeds: [1, 1]\n | 2 seeds | must be different whole numbers, one or more
set:\n  seed: 3\n | 3 set.seed | the sweep sets seed; use seeds: [...] of the study
jobs: all\n | 2 jobs | must be 'auto' or a whole number > 0, not 'all'
axes:\n  rounds: {to: 5, step: 1}\n | 3 axes.rounds.from | missing; it must be a number
axes:\n  rounds: {from: 3, to: 3, count: 2}\n
    | 3 axes.rounds | a range with a count has two different ends, not twice 3
axes:\n  training.optimizer.lr: {from: -1.0e+308, to: 1.0e+308, count: 3}\n
    | 3 axes.training.optimizer.lr | a range whose ends are too far apart; the values between are not finite
axes:\n  training.optimizer.lr: {from: 0, to: 1, step: 1.0e-300}\n
    | 3 axes.training.optimizer.lr | a range of more than 10,000 values; name fewer
axes:\n  kind:\n    a:\n    b: {rounds: 3}\n
    | 4 axes.kind.a | a named variant is a mapping from keys to values, {} for none, not null
axes:\n  training.optimizer.lr: [0.1]\n  training.optimizer: [{name: SGD, lr: 1}]\n
    | 4 axes.training.optimizer | training.optimizer replaces training.optimizer.lr of the axis
    + 'training.optimizer.lr'; put this axis before that one
axes: {rounds: [5, 6]}\nexclude: [{}]\n
    | 3 exclude[0] | names no axis; write a condition such as {rounds: 5}, or leave it out
axes: {rounds: [5, 6]}\nexclude: [{rounds: []}]\n
    | 3 exclude[0].rounds | an empty list; name a value of the axis, or several
exclude: [{rounds: 5}]\n | 2 exclude[0].rounds | the study has no axes
seeds: 100000000000\n | 2 seeds | 100,000,000,000 runs before exclude; a study has at most 100,000
axes:\n  training.optimizer.lr: {from: 0, to: 1, count: 1000}\n  rounds: {from: 1, to: 1000, step: 1}\n
    | 2 axes | 1,000,000 runs before exclude; a study has at most 100,000
axes: {kind: {A: {rounds: 3}, a: {rounds: 4}}}\n
    | 2 axes | the variants 'A' and 'a' differ in case alone, which some disks ignore
axes: {kind: {study.yaml: {rounds: 3}}}\n
    | 2 axes | a variant cannot be named 'study.yaml'; the sweep writes that file
out: {root}/pyproject.toml/runs\n | 2 out | {root}/pyproject.toml is a file; name a directory (out=...)
out: ~nobody-at-all/x\n | 2 out | no usable path: '~nobody-at-all/x': there is no such user
axes: {kind: {'a/b': {}}}\n
    | 2 axes.kind.a/b | a label is made of letters, digits, '_', '-', '+' and '.', at most 60
"""
"""What follows the line of the base, and what follows `s.yaml:`; the table is read as those of the corpus."""


@pytest.mark.parametrize("row", list(rows(BAD)), ids=lambda row: row.id)
def test_bad_input_is_refused_in_words(study, row):
    with pytest.raises(BadInput) as refused:
        planned_runs(study(row.new.replace("{root}", str(ROOT))))
    expected = [f"s.yaml:{line}".replace("{root}", str(ROOT)) for line in row.lines]
    assert len(refused.value.lines) == len(expected)
    assert all(map(fits, expected, refused.value.lines))


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("base: quik.yaml", "s.yaml:1 base: no such file: {here}/quik.yaml; did you mean 'quick.yaml'?"),
        ("base: quick.yaml", "{here}/quick.yaml:2: not valid YAML: ..."),
        ("base: s.yaml", "s.yaml:1 base: {here}/s.yaml is a study, too; name a configuration"),
        ("seeds: 2", "s.yaml:1 base: missing; it must be a path"),
    ],
)
def test_a_base_that_is_missing_or_broken_is_reported(tmp_path, monkeypatch, call, text, line):
    monkeypatch.chdir(tmp_path)
    Path("quick.yaml").write_text("rounds: [\n")
    Path("s.yaml").write_text(f"{text}\n")
    code, _, message = call("sweep", "s.yaml")
    assert code == 2 and fits(line.replace("{here}", str(tmp_path)) + "\n", message)


def test_the_command_refuses_before_anything_starts(study, tmp_path, call):
    study("out: full\naxes: {rounds: [3, 4]}\n")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine").write_text("")
    full = f"out: {tmp_path}/full is not empty and no study; name another one (out=...)\n"
    assert call("sweep", "s.yaml") == (2, "", full)
    words = "--only round-3/seed-0: unknown run; did you mean 'rounds-3/seed-0'?\n"
    assert call("sweep", "s.yaml", "--only", "round-3/seed-0") == (2, "", words)
    known = "(known: dask, local, ray, slurm, submitit)"
    words = f"command line: on: unknown executor 'slrm'; did you mean 'slurm'? {known}\n"
    assert call("sweep", "s.yaml", "--on", "slrm") == (2, "", words)


def test_runs_of_two_tasks_on_one_machine_did_not_have_it_alone(tmp_path, study, monkeypatch):
    """A task of an array knows its own run: the others' entries tell, and what they say is corrected."""
    planned = study("axes: {rounds: [3, 4, 5, 6, 7]}\nout: here\n")
    directories = [RunDirectory(run) for run in planned_runs(planned)]
    own, *others = [RunEntry("s", run.variant.name, {}, 0) for run in planned_runs(planned)]
    own = msgspec.structs.replace(own, boot="a", began=100.0, wall_seconds=10.0)
    # One before, one on another machine, one meanwhile, and one that a killed sweep has left.
    times = [("a", 80.0, 15.0), ("b", 100.0, 10.0), ("a", 105.0, 2.0), ("a", 90.0, None)]
    for entry, directory, (boot, began, seconds) in zip(others, directories[1:], times, strict=True):
        directory.path.mkdir(parents=True)
        (directory.path / "config.yaml").touch()
        entry = msgspec.structs.replace(entry, boot=boot, began=began, wall_seconds=seconds, alone=True)
        entry.save(directory.path)
    paths = [directory.path for directory in directories[1:]]

    def sweep(others):
        plan = SweepPlan(planned, directories[:1], {directories[0].planned.name: RunStatus.NEW}, forecasts={})
        return Sweep(plan, DatasetCache(), SweepLines(io.StringIO()), command="", others=others)

    assert not sweep([*paths[:2], paths[3]])._shared_with_others(own)
    assert sweep(paths)._shared_with_others(own)
    assert [read_entry(path).alone for path in paths] == [True, True, False, True]
    monkeypatch.setattr(Run, "state", RUNNING)
    assert sweep(paths[3:])._shared_with_others(own)
