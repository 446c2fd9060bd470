"""What the nodes of a run release before the first step: drawn once, kept with the run, and spent once."""

import json

import numpy as np
import pytest
import torch

import decentnode
from decentnode.config import loader
from decentnode.datasets.base import GIVEN, NORMALIZATION, LoadedDataset, Samples
from decentnode.datasets.normalizer import Normalizer
from decentnode.errors import BadInput
from decentnode.launcher.report.final_lines import _privacy
from decentnode.node.experiment import Experiment
from decentnode.node.privacy.network_accountant import account
from decentnode.node.privacy.plans import pipeline_of
from decentnode.node.privacy.release import Released
from decentnode.training.privacy.accountants import ACCOUNTANTS, Spending
from decentnode.training.privacy.pipeline import Release
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
    kinds = ["ab"[i % 2] if i % 500 else "c" for i in range(3000)]
    rows = [f"{20 + i % 9},{i % 5},{kind},{i // 3 % 2}" for i, kind in enumerate(kinds)]
    (folder / "rows.csv").write_text("\n".join(["age,dose,kind,label", *rows]))
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
    assert tried.samples.released.values(dataset) == {
        "inputs": [], "mean": [dataset.train.mean.item()], "deviation": [dataset.train.std.item()]
    }  # fmt: skip
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
    overrides = [TABLE % "node", "dataset.columns={kind: {kind: category, values: [a, b, c]}}"]
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


def test_a_dataset_may_have_one_number_for_all_inputs():
    drawn = torch.Generator().manual_seed(2)
    inputs = torch.rand(4000, 2, 3, generator=drawn) * torch.tensor([[4.0], [8.0]])
    samples = Samples(inputs, torch.zeros(4000).long(), mean=torch.tensor(3.0), std=torch.ones(2, 1))
    dataset = LoadedDataset(samples, samples, 2, (2, 3), fitted=("the vocabulary", NORMALIZATION))
    release = Release(1.0, None, (0.0, 8.0), is_secret=False)
    parts = [torch.arange(3000), torch.arange(3000, 4000), torch.arange(0)]
    found = Released.drawn(release, dataset, parts, 1).applied(dataset)
    assert found.fitted == ("the vocabulary",) and found.train.mean.shape == found.train.std.shape == (2, 1)
    assert found.test.mean.flatten().tolist() == pytest.approx([2, 4], abs=0.05)
    assert found.test.std.flatten().tolist() == pytest.approx([4 / 12**0.5, 8 / 12**0.5], rel=0.03)


def test_rare_categories_are_not_released(tmp_path):
    """Each of the nodes has one or two rows of category c; a row of it has no input, as one of test rows."""
    pipeline = "training.privacy.pipeline={noise: 8, delta_share: 0.2}"
    tried = experiment(tmp_path, TABLE % "none", pipeline)
    dataset = tried.samples.dataset
    assert dataset.names == ("age", "dose", "kind=a", "kind=b") and dataset.shape == (4,)
    for part in (dataset.train, dataset.test):
        assert part.inputs.shape[1:] == part.mean.shape == part.std.shape == (4,)
        assert (part.inputs[:, 2:].sum(1) == 0).sum() > 0
    spent = [Spending(1.0, 8.0, 1), Spending(tried.privacy[0].rate, 2.0, 8)]
    epsilon = ACCOUNTANTS["rdp"].epsilon(spent, 0.8e-4)
    assert account(tried.settings).local == [tried.privacy[0].epsilon] * 3 == [epsilon] * 3
    with pytest.raises(BadInput, match="--delta must be above that of categories, 2e-05"):
        account(tried.settings, 1e-5)
    nodes = Nodes(tried, tmp_path / "run")
    assert [node.training.private.doubts for node in nodes.nodes] == [()] * 3
    assert nodes.nodes[0].training.private.epsilon == tried.samples.released.release.epsilon
    rows = pipeline_of(tried.graph.graph, tried.samples)
    assert [row["what"] for row in rows if row["how"] == "noise"] == ["the values of kind"]
    with pytest.raises(BadInput, match="no category is frequent enough"):
        much = pipeline.replace("noise: 8", "noise: 1000")
        experiment(tmp_path, TABLE % "none", "dataset.features=[kind]", much)


def test_a_check_says_that_its_release_is_in_no_budget(tmp_path, call):
    """Nothing says how many categories there are: one may be of a single sample."""
    settings_of(tmp_path)
    table = [TABLE.replace("rows.csv", str(tmp_path / "rows.csv")) % "none", "communication=inproc"]
    validate = ["validate", tmp_path / "x.yaml", *table]
    code, _, lines = call(*validate, "training.privacy.pipeline={noise: 8, delta_share: 0.2}")
    assert code == 0
    assert [line.split(": ")[1].split(";")[0] for line in lines.splitlines() if ".pipeline: " in line] == [
        "2 frequent categories released",
        "these lines tell of the samples, and of a release for this check alone, which no budget counts",
    ]
    assert {*tmp_path.iterdir()} == {tmp_path / "x.yaml", tmp_path / "rows.csv"}
    assert "no budget" not in call(*validate, "training.privacy.pipeline=null")[2]


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
    pipeline = {"noise": 8, "bounds": {"age": [0, 100], "dose": [0, 10]}, "delta_share": 0.2}
    privacy = {"name": "dp_sgd", "clip": 1.0, "noise": 2.0, "delta": 1e-4, "pipeline": pipeline}
    table = {"name": "table", "path": str(tmp_path / "rows.csv")}
    decentnode.run(
        tmp_path / "x.yaml", run_dir=str(run), progress=False, dataset=table, training={"privacy": privacy}
    )
    summary = json.loads((run / "summary.json").read_text())
    (row,), spent = summary["privacy"]["pipeline"], summary["privacy"]["epsilon"]
    assert row["what"] == f"{WHAT}, the values of kind" and row["how"] == "noise"
    assert row["epsilon"] < spent["0"] and summary["privacy"]["no_claim"] == {}
    assert summary["privacy"]["released"].keys() == {"inputs", "mean", "deviation", "categories"}
    assert summary["privacy"]["released"]["inputs"] == ["age", "dose"]
    assert summary["privacy"]["released"]["categories"] == ["kind=a", "kind=b"]
    line = f"before the steps: {row['what']}: noise, by itself epsilon {row['epsilon']:.4f}"
    assert ("", line) in list(_privacy(summary))
    decentnode.resume(run, rounds=6, progress=False)
    history = json.loads((run / "privacy/00000.jsonl").read_text().splitlines()[-1])["history"]
    assert [count for *_, count in history] == [1, 12], "six rounds, and one release"
    settings = loader.load(run / "config.yaml")
    first, again = (Experiment.from_settings(settings, run_dir=run) for _ in range(2))
    for found, kind in zip(statistics(first), ("mean", "deviation"), strict=True):
        assert summary["privacy"]["released"][kind] == found[:2].tolist()
    for one, other in zip(statistics(first), statistics(again), strict=True):
        assert torch.equal(one, other)
    assert not torch.equal(statistics(first)[0], statistics(Experiment.from_settings(settings))[0])
    kept = json.loads((run / "privacy/pipeline.json").read_text())
    assert np.array_equal(first.samples.released.sums, kept["sums"])
    for broken, message in (
        (kept | {"sums": kept["sums"][1:]}, r"has sums of shape \(2, 5\), not \(3, 5\)"),
        (kept | {"sums": "none"}, "has no sums with noise"),
        (None, "missing, and another release would spend again; restore it, or begin a new run"),
    ):
        if broken is None:
            (run / "privacy/pipeline.json").unlink()
        else:
            (run / "privacy/pipeline.json").write_text(json.dumps(broken))
        with pytest.raises(BadInput, match=message):
            Experiment.from_settings(settings, run_dir=run)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["dataset.mean=4.9", "dataset.std=6"], "there is nothing to release"),
        (["dataset={name: synthetic}"], "there is nothing to release"),
        (["training.privacy.pipeline.delta_share=0.1"], "the dataset computes no categories"),
        ([TABLE % "none", "training.privacy.pipeline.delta_share=0.1"], "the dataset normalizes no inputs"),
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
