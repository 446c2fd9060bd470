"""The quadratic family: every figure of it has a closed form."""

import pytest
import torch
from pydantic import TypeAdapter, ValidationError
from torch import nn

from decentnode.config import loader as config
from decentnode.datasets import Quadratic
from decentnode.errors import BadInput
from decentnode.models.base import check_scores, initial_model
from decentnode.models.quadratic import Quadratic as QuadraticModel
from decentnode.node.experiment import Experiment
from decentnode.training.evaluation import evaluate
from decentnode.training.objective import Objective
from decentnode.training.tasks import Classification
from tests.integration.running import ROOT, Run
from tests.support.scheme_cases import OPTIMUM8, q8_gradient

CONFIG = ROOT / "configs" / "quadratic.yaml"


def module_for(dataset, start=0.0):
    return initial_model(QuadraticModel(start), dataset.shape, dataset.num_classes, seed=1)


def gradient_of(module, samples, index):
    """The loss of one node's sample and its gradient in x."""
    module.zero_grad()
    _, loss = Objective(module, nn.NLLLoss(), Classification())(samples.batch(torch.tensor([index])))
    loss.backward()
    return loss.item(), module.x.grad


@pytest.mark.parametrize("x", [-1.5, 0.0, 3.25])
def test_by_default_it_is_the_canonical_problem(x):
    loaded = Quadratic().load(0)
    module = module_for(loaded, x)
    for i in range(8):
        loss, gradient = gradient_of(module, loaded.train, i)
        assert loss == (1 + i % 2) / 2 * (x - i) ** 2
        assert gradient.double() == q8_gradient(i, torch.tensor([x], dtype=torch.float64))


def test_at_the_optimum_the_mean_of_all_is_47_twelfths():
    loaded = Quadratic().load(0)
    objective = Objective(module_for(loaded, OPTIMUM8), nn.NLLLoss(), Classification())
    scores = evaluate(objective, loaded.test)
    assert (scores["accuracy"], scores["loss"]) == (1.0, pytest.approx(47 / 12, rel=1e-6))


def test_in_several_dimensions_it_is_the_squared_distance():
    loaded = Quadratic(nodes=3, dimension=4, a=(0.5,), b="normal").load(7)
    module = module_for(loaded, 1.0)
    b = loaded.train.batch(torch.tensor([2])).fields[0][0, 1]
    loss, gradient = gradient_of(module, loaded.train, 2)
    assert loss == pytest.approx((0.25 * (1 - b).square().sum()).item())
    assert torch.allclose(gradient, 0.5 * (1 - b))
    assert not torch.equal(Quadratic(nodes=3, b="normal").load(8).train.inputs[:, 1, 0].float(), b[:3])


def test_numbers_are_repeated():
    inputs = Quadratic(nodes=5, a=(1.0, 2.0, 3.0), b=(-1.0, 4.0)).load(0).train.inputs
    assert inputs[:, :, 0].T.tolist() == [[1, 2, 3, 1, 2], [-1, 4, -1, 4, -1]]


@pytest.mark.parametrize("options", [{"a": []}, {"a": [0.0]}, {"b": []}, {"b": "ranks"}, {"dimension": 0}])
def test_options_that_give_no_problem_are_refused(options):
    with pytest.raises(ValidationError):
        TypeAdapter(Quadratic).validate_python(options)


@pytest.mark.parametrize(("shape", "classes"), [((1, 8, 8), 10), ((3, 2), 1), ((2, 1), 10)])
def test_samples_of_other_datasets_are_refused(shape, classes):
    with pytest.raises(
        BadInput, match="model: quadratic takes the samples of dataset quadratic, and no other"
    ):
        QuadraticModel().build(shape, classes)


def test_the_model_passes_the_check_of_all_models():
    loaded = Quadratic(dimension=3).load(0)
    check_scores(module_for(loaded), loaded.train.zeros(2), loaded.num_classes)


def test_rank_i_gets_function_i():
    experiment = Experiment.from_settings(config.load(CONFIG))
    assert [part.tolist() for part in experiment.samples.parts] == [[i] for i in range(8)]


@pytest.mark.slow
def test_the_shipped_configuration_ends_at_the_optimum(tmp_path):
    tracking = Run(tmp_path / "tracking", config=CONFIG)
    assert tracking.wait() == 0, tracking.text
    assert tracking.summary["test"]["loss"]["mean"] == pytest.approx(47 / 12, abs=1e-5)
    assert tracking.summary["consensus_distance"] <= 1e-5
