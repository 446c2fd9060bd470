"""Plans of private steps, and rounds that no budget allows."""

from dataclasses import replace

import pytest

from decentnode.datasets.base import NORMALIZATION
from decentnode.errors import BadInput
from decentnode.launcher.report.final_lines import _privacy
from decentnode.node.experiment import Experiment
from decentnode.node.privacy.network_accountant import account
from decentnode.node.privacy.notices import notices_of
from tests.support.in_process import Nodes

BEFORE = "computed from training samples before the steps, without noise"
CONFIG = """\
graph: {name: ring, nodes: 3}
dataset: {name: digits, train_size: 120, test_size: 10, partition: {name: iid}}
model: logistic_regression
training:
  optimizer: {name: SGD, lr: 0.1}
  batch_size: 8
  steps_per_round: [2, 2, 4]
  privacy: {name: dp_sgd, clip: 1.0, noise: 2.0, delta: 1.0e-3, epsilon: 2.0}
communication: inproc
rounds: 40
evaluation: {every: 0}
"""


def experiment(folder, *overrides):
    (folder / "x.yaml").write_text(CONFIG)
    return Experiment.from_yaml(folder / "x.yaml", overrides)


def test_a_run_ends_when_the_budgets_of_all_nodes_are_spent(tmp_path):
    tried = experiment(tmp_path)
    first, other, busy = tried.privacy
    assert first is other and first.rate == 0.2 and first.steps == 80 and busy.steps == 160
    assert tried.settings.rounds == first.rounds < 40 and tried.planned_rounds == 40
    assert busy.rounds in (first.rounds // 2, first.rounds // 2 + 1)
    assert experiment(tmp_path, "training.privacy.on_spent=warn").settings.rounds == 40
    assert experiment(tmp_path, "training.privacy.epsilon=100").settings.rounds == 40


def test_steps_that_no_plan_knows_are_refused(tmp_path):
    with pytest.raises(BadInput, match="seconds_per_round: dp_sgd plans its steps"):
        experiment(tmp_path, "training.steps_per_round=null", "training.seconds_per_round=1")
    settings = experiment(tmp_path).settings
    time_model = replace(settings.time_model, name="asynchronous")
    with pytest.raises(BadInput, match="planned by rounds, which time_model: asynchronous has not"):
        Experiment.from_settings(replace(settings, time_model=time_model))


def test_buffers_are_not_sent_beside_a_private_model(tmp_path):
    (tmp_path / "buffered.py").write_text(
        "from torch import nn, zeros\n\n\nclass Net(nn.Module):\n    def __init__(self):\n"
        "        super().__init__()\n        self.layer = nn.Linear(64, 10)\n"
        "        self.register_buffer('seen', zeros(3))\n\n    def forward(self, x):\n"
        "        return self.layer(x.flatten(1))\n"
    )
    with pytest.raises(BadInput, match="mix_buffers: buffers are sent without noise"):
        experiment(tmp_path, "model='buffered:Net'", "training.mix_buffers=true")


@pytest.mark.parametrize(
    ("overrides", "reason"),
    [
        (["dataset.mean=4.9", "dataset.std=6"], None),
        ([], NORMALIZATION),
        (["dataset.mean=4.9", "dataset.std=6", "graph={name: d_cliques, nodes: 3, clique_size: 3}"],
         "the graph, by the labels of each node"),
        (["dataset={name: table, path: rows.csv}"],
         NORMALIZATION),
        (["dataset={name: table, path: rows.csv, mean: [30, 1], std: [9, 2]}"], None),
        (["dataset={name: table, path: rows.csv, standardize: node}"], NORMALIZATION),
        (["dataset={name: table, path: rows.csv, standardize: none, columns: {dose: category}}"],
         "the values of dose (list them in dataset.columns)"),
        (["dataset={name: table, path: rows.csv, columns: {dose: {kind: category, values: [0, 1, 2, 3]}, "
          "age: {mean: 30, std: 9}}}"], None),
        (["dataset={name: amazon, sample: true, words: vocabulary}", "model='words:Net'"],
         "the vocabulary (set dataset.words: hash)"),
        (["dataset={name: amazon, sample: true}", "model='words:Net'"], None),
    ],
)  # fmt: skip
def test_what_was_computed_from_samples_before_the_steps_leaves_no_claim(tmp_path, overrides, reason):
    """Else a row of one node moves the models of all, at the same epsilon."""
    (tmp_path / "rows.csv").write_text(
        "age,dose,label\n" + "".join(f"{20 + i % 9},{i % 4},{i % 2}\n" for i in range(90))
    )
    (tmp_path / "words.py").write_text(
        "from torch import nn\n\n\nclass Net(nn.Module):\n    def __init__(self):\n"
        "        super().__init__()\n        self.words = nn.Embedding(10001, 5)\n\n"
        "    def forward(self, x):\n        return self.words(x).mean(1)\n"
    )
    tried = experiment(tmp_path, *overrides)
    reasons = [] if reason is None else [f"{BEFORE}: {reason}"]
    assert notices_of(tried) == [f"training.privacy: no claim of epsilon: {line}" for line in reasons]
    nodes = Nodes(tried, tmp_path / "run")
    for node in nodes.nodes:
        assert [*node.training.private.doubts] == reasons
        assert (node.training.private.claimed is None) == bool(reasons)
    assert [*account(tried.settings).doubts] == reasons


def test_the_last_lines_say_what_was_spent():
    privacy = {
        "delta": 1e-5, "accountant": "rdp", "planned_rounds": 9, "epsilon": {"0": 1.5, "1": 1.75},
        "no_claim": {"it was lost before it could say": [2]},
    }  # fmt: skip
    lines = list(_privacy({"privacy": privacy, "finished_nodes": 2, "nodes": 3, "rounds": 4}))
    assert lines == [
        ("privacy", "each of 2 nodes has spent epsilon 1.5000 to 1.7500 at delta 1e-05 by accountant rdp"),
        ("", "ended before round 5 of 9: all budgets are spent"),
        ("", "no claim for rank 2: it was lost before it could say"),
    ]
    assert list(_privacy({"privacy": None, "finished_nodes": 2})) == []
