"""Evaluation against one big batch; the average model; the loss that is measured."""

import copy
import math

import pytest
import torch
from torch import nn

from decentnode.core.vector import ModuleTensors, ParameterLayout, Vector
from decentnode.datasets.base import Samples
from decentnode.errors import DatasetError
from decentnode.models import Mlp, ResNet18, initial_model
from decentnode.node.experiment import Experiment, average_model_test
from decentnode.training.evaluation import evaluate, load_flat
from decentnode.training.objective import Objective
from decentnode.training.tasks import Classification
from tests.training.test_training import dropout_net, toy_samples


def judged(module, loss=None, channels_last=False):
    return Objective(module, loss or nn.CrossEntropyLoss(), Classification(), channels_last)


def batch_norm_net(seed):
    return initial_model(ResNet18("batch", width=2), (1, 8, 8), 3, seed)


@pytest.mark.parametrize("batch_size", [1, 3, 10, 64])
@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_evaluation_equals_one_big_batch_in_evaluation_mode(batch_size, reduction):
    module, samples = dropout_net(), toy_samples()
    module[0].eval()
    beats = list[None]()
    loss = nn.CrossEntropyLoss(reduction=reduction)
    scores = evaluate(judged(module, loss), samples, batch_size, beat=lambda: beats.append(None))
    assert len(beats) == -(-len(samples) // batch_size)
    assert [part.training for part in module.modules()] == [True, False, True, True]
    output = module.eval()(samples.inputs)
    expected = nn.functional.cross_entropy(output, samples.labels).item()
    assert scores["accuracy"] == (output.argmax(1) == samples.labels).double().mean().item()
    assert scores["loss"] == pytest.approx(expected, rel=1e-5)


def test_evaluation_changes_nothing():
    module = batch_norm_net(seed=1).train()
    before = copy.deepcopy(module.state_dict())
    evaluate(judged(module, channels_last=True), toy_samples(10, (1, 8, 8)))
    after = module.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert module.training and all(p.grad is None for p in module.parameters())


def test_accuracy_counts_the_highest_score():
    samples = Samples(torch.eye(4), torch.tensor([0, 1, 2, 0]))
    scores = evaluate(judged(nn.Sequential(nn.Linear(4, 4)).apply(as_identity)), samples)
    right, wrong = -math.log(math.e / (math.e + 3)), -math.log(1 / (math.e + 3))
    assert scores == {"accuracy": 0.75, "loss": pytest.approx((3 * right + wrong) / 4)}


def as_identity(part):
    if isinstance(part, nn.Linear):
        part.weight.data = torch.eye(4)
        part.bias.data.zero_()


def test_nothing_to_evaluate_on_is_an_error():
    with pytest.raises(DatasetError, match=r"^there are no samples to evaluate on; the test set is empty$"):
        evaluate(judged(Mlp((6,)).build((4,), 3)), toy_samples(0))


@pytest.mark.parametrize("channels_last", [False, True])
def test_a_flat_vector_such_as_the_average_model_goes_into_another_module(channels_last):
    source, target = batch_norm_net(seed=1), batch_norm_net(seed=2)
    layout = ParameterLayout.of(source, mix_buffers=True, channels_last=channels_last)
    vector = Vector(ModuleTensors(source, layout), (torch.empty(layout.numel), torch.empty(layout.numel)))
    source(torch.randn(4, 1, 8, 8))
    load_flat(target, layout, vector.values)
    samples = torch.randn(4, 1, 8, 8)
    assert torch.allclose(source.eval()(samples), target.eval()(samples), atol=1e-5)
    assert vector.values.data_ptr() not in {p.data_ptr() for p in target.parameters()}


@pytest.mark.parametrize("loss", [nn.MSELoss(), nn.BCEWithLogitsLoss(), nn.L1Loss(reduction="sum")])
def test_losses_per_score_get_one_hot_labels(loss):
    samples = toy_samples()
    scores, value = judged(Mlp((6,)).build((4,), 3), loss)(samples.batch(torch.arange(len(samples))))
    assert torch.equal(value, loss(scores, torch.eye(3)[samples.labels]))


CONFIG = """
name: trial
rounds: 2
graph: {name: ring, nodes: 3}
dataset: digits
model: {name: resnet18, norm: batch, width: 2}
training: {optimizer: {name: SGD, lr: 0.1}, batch_size: 4, steps_per_round: 1}
sharing: gossip
"""


@pytest.mark.parametrize(
    ("overrides", "is_model"),
    [
        ([], False),
        (["training.mix_buffers=true"], True),
        (["model={name: resnet18, norm: group, groups: 2, width: 2}"], True),
    ],
)
def test_a_mean_of_parameters_without_their_statistics_is_not_tested(tmp_path, overrides, is_model):
    path = tmp_path / "trial.yaml"
    path.write_text(CONFIG)
    experiment = Experiment.from_yaml(path, overrides)
    test = average_model_test(experiment)
    assert (test is not None) == is_model
    if test is not None:
        assert 0 <= test(torch.zeros(experiment.layout.numel), 0)["accuracy"] <= 1
