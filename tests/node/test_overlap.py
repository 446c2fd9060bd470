"""Exchanging while training, and training before the exchange: both against their matrix form in float64."""

import pytest
import torch
import yaml
from torch import nn

from decentnode.config import loader as config
from decentnode.core.registry import SHARINGS
from decentnode.errors import BadInput, ConfigError
from decentnode.launcher.recovery.resume import refuse_changes
from decentnode.node.experiment import Experiment
from decentnode.node.local_update import AdaptThenCombine, AdaptWhileCommunicating
from tests.node.test_resume import CONFIG, GRAPHS, OPTIONS, TRANSFORMS, check_resume
from tests.support.in_process import Nodes

QUADRATIC = """
rounds: 100
graph: {graph}
dataset: {{name: quadratic, nodes: 8, dimension: 3, b: normal, partition: natural}}
model: quadratic
training:
  optimizer: {{name: SGD, lr: 0.1, momentum: 0.5}}
  scheduler: {{name: StepLR, step_size: 4, gamma: 0.5}}
  loss: NLLLoss
  batch_size: 1
  steps_per_round: {steps}
sharing: {sharing}
communication: {{name: inproc, overlap: {overlap}}}
evaluation: {{every: 0}}
"""
OVERLAPPING = [name for name, scheme in SHARINGS.classes().items() if scheme.promises.overlaps]


def quadratic(tmp_path, overlap, steps=1, graph="ring, nodes: 8", sharing="gossip"):
    path = tmp_path / "overlap.yaml"
    path.write_text(
        QUADRATIC.format(graph=f"{{name: {graph}}}", steps=steps, sharing=sharing, overlap=overlap)
    )
    return Experiment.from_yaml(path)


class Oracle:
    """All models as rows of X in float64, by the equations of `docs/sharing.md`."""

    def __init__(self, experiment):
        inputs = experiment.samples.dataset.train.inputs.double()
        self.a, self.b = inputs[:, 0], inputs[:, 1]
        self.X = torch.zeros_like(self.b)
        self.momentum = torch.zeros_like(self.b)
        self.experiment = experiment

    def trained(self, X, round):
        lr = 0.1 * 0.5 ** (round // 4)
        for _ in range(self.experiment.settings.training.steps_per_round):
            self.momentum = 0.5 * self.momentum + self.a * (X - self.b)
            X = X - lr * self.momentum
        return X

    def weights(self, round):
        graph, n = self.experiment.graph, len(self.X)
        views = [graph.view(i, round) for i in range(n)]
        return torch.tensor([[views[i].weights.get(j, 0.0) for j in range(n)] for i in range(n)]).double()

    def run(self, rounds, mixed=lambda W, X: W @ X):
        for round in range(rounds):
            W, trained = self.weights(round), self.trained(self.X, round)
            if self.experiment.settings.communication.overlap:
                self.X = mixed(W, self.X) + trained - self.X
            else:
                self.X = mixed(W, trained)
        return self.X


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("steps", [1, 3])
@pytest.mark.parametrize("graph", ["ring, nodes: 8", "exponential, nodes: 8"])
def test_gossip_is_its_matrix_form(tmp_path, overlap, steps, graph):
    experiment = quadratic(tmp_path, str(overlap).lower(), steps, graph)
    models = Nodes(experiment, tmp_path / "nodes").begin().run(0, 12).models.double()
    assert torch.allclose(models, Oracle(experiment).run(12), rtol=0, atol=3e-6)


def test_the_two_orders_are_distinguished(tmp_path):
    """Where the oracle for one would do for the other, the test above would show nothing."""
    models = [Oracle(quadratic(tmp_path, overlap)).run(12) for overlap in ("false", "true")]
    assert (models[0] - models[1]).abs().max() > 0.01


@pytest.mark.parametrize("overlap", [False, True])
def test_choco_that_sends_everything_is_its_matrix_form(tmp_path, overlap):
    experiment = quadratic(tmp_path, str(overlap).lower(), sharing="{name: choco, gamma: 0.6}")
    models = Nodes(experiment, tmp_path / "nodes").begin().run(0, 12).models.double()
    expected = Oracle(experiment).run(12, lambda W, X: X + 0.6 * (W @ X - X))
    assert torch.allclose(models, expected, rtol=0, atol=3e-6)


def test_alone_it_changes_nothing_but_the_rounding(tmp_path):
    models = [
        Nodes(quadratic(tmp_path, overlap, 3, sharing="none"), tmp_path / overlap).begin().run(0, 12).models
        for overlap in ("false", "true")
    ]
    assert torch.allclose(models[0], models[1], rtol=0, atol=3e-6)


@pytest.mark.parametrize("name", OVERLAPPING)
def test_a_run_that_continues_is_bit_for_bit_the_one_that_did_not_stop(tmp_path, name):
    path = tmp_path / "resume.yaml"
    path.write_text(
        CONFIG.format(
            sharing=name, graph=GRAPHS.get(name, "chain"), momentum=", momentum: 0.9",
            options=f", {OPTIONS[name]}" if name in OPTIONS else "",
            transforms=TRANSFORMS.get(name, ""), ranks="0, 1, 2",
        )
    )  # fmt: skip
    overrides = ["communication={name: inproc, overlap: true}", "training.mix_buffers=true"]
    check_resume(Experiment.from_yaml(path, overrides), tmp_path)


@pytest.mark.parametrize(
    "name", sorted({n for n, cls in SHARINGS.classes().items() if not cls.asynchronous} - set(OVERLAPPING))
)
def test_schemes_that_need_trained_models_are_refused(tmp_path, name):
    with pytest.raises(ConfigError, match=f"communication.overlap: {name} needs the models as the local"):
        quadratic(tmp_path, "true", sharing=f"{{name: {name}, {OPTIONS[name]}}}" if name in OPTIONS else name)


def test_a_scheme_that_acts_inside_the_local_steps_does_not_overlap():
    options = {name: yaml.safe_load(f"{{{OPTIONS.get(name, '')}}}") for name in OVERLAPPING}
    schemes = {name: SHARINGS.find(name)(**options[name]) for name in OVERLAPPING}
    assert [name for name, scheme in schemes.items() if scheme.adjust_gradient is not None] == []


def test_a_run_that_continues_keeps_its_order(tmp_path):
    settings = [quadratic(tmp_path, overlap).settings for overlap in ("true", "false")]
    with pytest.raises(BadInput, match=r"communication.overlap cannot change from true to false"):
        refuse_changes(*settings)
    assert config.resolved(settings[0])["communication"] == {"name": "inproc", "overlap": True}


class Normalizing(nn.Sequential):
    """A network whose running statistics are mixed."""

    def __init__(self):
        super().__init__(nn.Linear(6, 5), nn.BatchNorm1d(5, momentum=0.9), nn.Linear(5, 4))


def test_running_variances_stay_positive_and_their_changes_count_by_the_own_weight(tmp_path):
    """Of many steps each forgets what was mixed, so that adding the whole change would leave nothing."""
    path = tmp_path / "buffers.yaml"
    path.write_text(
        CONFIG.format(
            sharing="gossip", graph="chain", momentum="", transforms="", options="", ranks="0, 1, 2"
        )
    )
    changes = ["communication={name: inproc, overlap: true}", "training.mix_buffers=true"]
    changes += ["model=tests.node.test_overlap:Normalizing", "training.epochs_per_round=4"]
    nodes = Nodes(Experiment.from_yaml(path, changes), tmp_path / "nodes").begin()
    for round in range(6):
        nodes.run(round, round + 1)
        for node in nodes.nodes:
            assert (node.training.module[1].running_var > 0).all()


def test_the_neighbors_memory_is_left_alone_while_a_node_trains(tmp_path):
    nodes = Nodes(quadratic(tmp_path, "true"), tmp_path / "nodes").begin()
    seen = []
    for node in nodes.nodes:
        assert isinstance(node.adaptation, AdaptWhileCommunicating)
        vector, train = node.training.vector, node.training.train

        async def watched(round, vector=vector, train=train):
            before = vector.values.clone(), vector.spare.clone()
            report = await train(round)
            seen.append(torch.equal(vector.values, before[0]) and torch.equal(vector.spare, before[1]))
            assert not torch.equal(vector.trained, vector.values)
            return report

        node.training.train = watched
    nodes.run(0, 3)
    assert seen == [True] * 24


def test_by_default_nothing_comes_in_between(tmp_path):
    nodes = Nodes(quadratic(tmp_path, "false"), tmp_path / "nodes").begin().run(0, 2).nodes
    assert {type(node.adaptation) for node in nodes} == {AdaptThenCombine}
    assert all(node.training.vector.trained is node.training.vector.values for node in nodes)
