"""What the nodes of a run release before the first step: drawn once, kept with the run, and spent once."""

import json

import numpy as np
import pytest
import torch

import decentnode
from decentnode.config import loader
from decentnode.datasets.base import GIVEN, NORMALIZATION
from decentnode.datasets.normalizer import Normalizer
from decentnode.errors import BadInput
from decentnode.launcher.report.final_lines import _privacy
from decentnode.node.experiment import Experiment
from decentnode.node.privacy.network_accountant import account
from decentnode.node.privacy.plans import pipeline_of
from decentnode.training.privacy.accountants import ACCOUNTANTS, Spending
from tests.support.in_process import Nodes

WHAT = "mean and deviation of inputs"
CONFIG = """\
graph: {name: ring, nodes: 3}
dataset: {name: digits, train_size: 1200, test_size: 10}
model: logistic_regression
training:
  optimizer: {name: SGD, lr: 0.1}
  steps_per_round: 2
  privacy: {name: dp_sgd, clip: 1.0, noise: 2.0, delta: 1.0e-4, pipeline: {noise: 8, bounds: [0, 16]}}
communication: inproc
rounds: 4
evaluation: {every: 0}
"""
TABLE = "dataset={name: table, path: rows.csv, standardize: %s}"
SEEDED = "training.privacy.generator=seeded"


def settings_of(folder, *overrides):
    (folder / "x.yaml").write_text(CONFIG)
    (folder / "rows.csv").write_text(
        "age,dose,kind,label\n"
        + "".join(f"{20 + i % 9},{i % 5},{'ab'[i % 2]},{i // 3 % 2}\n" for i in range(3000))
    )
    return loader.load(folder / "x.yaml", overrides)


def experiment(folder, *overrides, run_dir=None):
    return Experiment.from_settings(settings_of(folder, *overrides), run_dir=run_dir)


def statistics(tried):
    train = tried.samples.dataset.train
    return train.mean, train.std


def test_all_nodes_normalize_by_what_they_have_released_together(tmp_path):
    tried, exact = experiment(tmp_path), experiment(tmp_path, "training.privacy.pipeline=null")
    for released, true in zip(statistics(tried), statistics(exact), strict=True):
        assert released.dtype == true.dtype and released.shape == true.shape
        assert released.item() == pytest.approx(true.item(), rel=0.15) and released.item() != true.item()
    dataset = tried.samples.dataset
    assert torch.equal(dataset.test.mean, dataset.train.mean) and dataset.fitted == ()
    again, secure = ([statistics(experiment(tmp_path, *given)) for _ in range(2)] for given in ([SEEDED], []))
    assert again[0] == again[1] and secure[0] != secure[1]


def test_it_is_spent_once_whatever_becomes_of_a_node(tmp_path):
    """A node that is restarted before its first round, and one that is resumed, have one release."""
    tried = experiment(tmp_path)
    before, steps = Spending(1.0, 8.0, 1), Spending(tried.privacy[0].rate, 2.0, 8)
    assert tried.privacy[0].epsilon == ACCOUNTANTS["rdp"].epsilon([before, steps], 1e-4)
    nodes = Nodes(tried, tmp_path / "first").begin()
    assert [node.training.private.history for node in nodes.nodes] == [[before]] * 3
    assert [node.training.private.doubts for node in nodes.nodes] == [()] * 3
    saved = nodes.run(0, 2).saved()
    resumed = Nodes(tried, tmp_path / "second").load(saved)
    assert [node.training.private.history[0] for node in resumed.nodes] == [before] * 3
    assert resumed.run(2, 4).nodes[0].training.private.epsilon == tried.privacy[0].epsilon
    found = account(tried.settings)
    assert found.local == [tried.privacy[0].epsilon] * 3 and found.doubts == ()
    assert min(found.central) > tried.samples.released.release.epsilon
    assert experiment(tmp_path, "training.privacy.epsilon=0.6").settings.rounds < 4


def test_each_node_by_itself(tmp_path):
    pipeline = "training.privacy.pipeline.bounds={age: [0, 100], dose: [0, 10]}"
    overrides = [TABLE % "node", "dataset.columns={kind: {kind: category, values: [a, b]}}"]
    tried = experiment(tmp_path, *overrides, pipeline)
    exact = experiment(tmp_path, *overrides, "training.privacy.pipeline=null").samples
    means = torch.stack([normalizer.mean for normalizer in tried.samples.normalizers])
    assert len(means[:, :2].unique()) == 6 and (means[:, 2:] == 0).all(), "categories stay 0 or 1"
    samples = exact.dataset.train
    for part, found in zip(exact.parts, tried.samples.normalizers, strict=True):
        true = Normalizer.fitted(samples, part, exact.dataset.standardized)
        assert found.mean.numpy() == pytest.approx(true.mean.numpy(), rel=0.2)
        assert (found.std[2:] == 1).all() and (found.std[:2] < 25).all()
    rows = pipeline_of(tried.graph.graph, tried.samples)
    assert [(row["what"], row["how"]) for row in rows] == [
        ("the values of kind (dataset.columns)", "public"), (WHAT, "noise")
    ]  # fmt: skip
    assert rows[1]["epsilon"] == ACCOUNTANTS["rdp"].epsilon([Spending(1.0, 8.0, 1)], 1e-4)


def test_the_table_names_what_ends_the_claim(tmp_path):
    pipeline = "training.privacy.pipeline.bounds={age: [0, 100], dose: [0, 10]}"
    tried = experiment(tmp_path, TABLE % "all", pipeline)
    found = [(row["what"], row["how"]) for row in pipeline_of(tried.graph.graph, tried.samples)]
    text = "the values of kind (list them in dataset.columns)"
    assert found == [(WHAT, "noise"), (text, "ends the claim")]
    given = experiment(tmp_path, "training.privacy.pipeline=null", "dataset.mean=4.9", "dataset.std=6")
    assert pipeline_of(given.graph.graph, given.samples) == [
        {"what": GIVEN, "how": "public", "epsilon": None}
    ]
    without = experiment(tmp_path, "training.privacy.pipeline=null")
    (row,) = pipeline_of(without.graph.graph, without.samples)
    assert row == {"what": NORMALIZATION, "how": "ends the claim", "epsilon": None}


def test_a_run_says_it_and_a_resumed_one_takes_what_it_has_released(tmp_path):
    run = tmp_path / "run"
    settings_of(tmp_path)
    decentnode.run(tmp_path / "x.yaml", run_dir=str(run), progress=False)
    summary = json.loads((run / "summary.json").read_text())
    (row,) = summary["privacy"]["pipeline"]
    assert (
        row["what"] == WHAT and row["how"] == "noise" and row["epsilon"] < summary["privacy"]["epsilon"]["0"]
    )
    line = f"before the steps: {WHAT}: noise, by itself epsilon {row['epsilon']:.4f}"
    assert ("", line) in list(_privacy(summary))
    decentnode.resume(run, rounds=6, progress=False)
    history = json.loads((run / "privacy/00000.jsonl").read_text().splitlines()[-1])["history"]
    assert [count for *_, count in history] == [1, 12], "six rounds, and one release"
    first, again = (experiment(tmp_path, run_dir=run) for _ in range(2))
    assert statistics(first) == statistics(again) != statistics(experiment(tmp_path))
    kept = json.loads((run / "privacy/pipeline.json").read_text())
    assert np.array_equal(first.samples.released.sums, kept["sums"])
    for broken, message in (
        (kept | {"sums": kept["sums"][1:]}, r"has sums of shape \(2, 3\), not \(3, 3\)"),
        (kept | {"sums": "none"}, "has no sums with noise"),
        (None, "missing, and another release would spend again; restore it, or begin a new run"),
    ):
        if broken is None:
            (run / "privacy/pipeline.json").unlink()
        else:
            (run / "privacy/pipeline.json").write_text(json.dumps(broken))
        with pytest.raises(BadInput, match=message):
            experiment(tmp_path, run_dir=run)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["dataset.mean=4.9", "dataset.std=6"], "there is nothing to release"),
        (["dataset={name: synthetic}"], "there is nothing to release"),
        (["training.privacy.pipeline.bounds={a: [0, 1]}"], "inputs have no names; give one pair"),
        ([TABLE % "all", "training.privacy.pipeline.bounds=null"],
         "missing for age, dose; give the least and the greatest value, known without the samples"),
        ([TABLE % "all", "training.privacy.pipeline.bounds={age: [0, 9]}"], "lacks dose, which the dataset"),
        ([TABLE % "all", "training.privacy.pipeline.bounds={age: [0, 9], dose: [0, 1], kind: [0, 1]}"],
         "'kind' is no feature that the dataset normalizes"),
        (["communication=zeromq",
          "mapping.machines=[{address: 127.0.0.1, nodes: 2}, {address: 127.0.0.2, nodes: 1}]"],
         "its noise is drawn by one machine"),
    ],
)  # fmt: skip
def test_what_does_not_fit_the_samples_is_refused(tmp_path, overrides, message):
    with pytest.raises(BadInput, match=r"training\.privacy\.pipeline.*" + message):
        experiment(tmp_path, *overrides)
