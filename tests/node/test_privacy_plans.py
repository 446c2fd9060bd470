"""Plans of private steps, and rounds that no budget allows."""

from dataclasses import replace

import pytest

from decentnode.errors import BadInput
from decentnode.launcher.report.final_lines import _privacy
from decentnode.node.experiment import Experiment

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
