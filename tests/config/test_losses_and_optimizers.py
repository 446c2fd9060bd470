"""Options of losses and optimizers: lists are tensors, and with what no model learns is refused."""

import numpy as np
import pytest
import torch
from torch import nn

from decentnode.config.loader import understand
from decentnode.config.python_source import document_of
from decentnode.errors import BadInput, ConfigError
from decentnode.node import dry_round
from decentnode.node.experiment import Experiment
from decentnode.training.tasks import MetricSpec, Task

SAMPLES, LABELS = torch.rand(40, 4), torch.arange(40) % 3


def settings_of(**changes):
    torch.manual_seed(1)
    values = {
        "name": "small",
        "rounds": 2,
        "graph": {"name": "ring", "nodes": 3},
        "dataset": ((SAMPLES, LABELS), (SAMPLES, LABELS)),
        "model": nn.Linear(4, 3),
        "training": {"optimizer": {"name": "SGD", "lr": 0.5}, "batch_size": 4, "steps_per_round": 4},
        "communication": "inproc",
    }
    return understand(document_of(values | changes))


class Doubled(nn.CrossEntropyLoss):
    """A loss from outside."""

    def __init__(self, weight: torch.Tensor | None = None, rates: tuple[float, ...] = ()) -> None:
        super().__init__(weight)
        self.rates = rates


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
@pytest.mark.parametrize(
    "loss",
    [
        {"name": "CrossEntropyLoss", "weight": [1, 2.5, 0]},
        {"name": nn.CrossEntropyLoss, "weight": np.array([1, 2.5, 0])},
        {"name": "MultiMarginLoss", "weight": [1, 2.5, 0]},
        {"name": "BCEWithLogitsLoss", "pos_weight": [1, 2.5, 0]},
        {"name": Doubled, "weight": [1, 2.5, 0], "rates": [1.0, 2.0]},
    ],
    ids=str,
)
def test_a_list_of_weights_is_a_tensor(loss, dtype):
    settings = settings_of(**{"training.loss": loss, "training.dtype": dtype})
    made = settings.training.loss.make()
    weights = made.pos_weight if "pos_weight" in loss else made.weight
    assert torch.equal(weights, torch.tensor([1, 2.5, 0])) and getattr(made, "rates", (1.0, 2.0)) == (
        1.0,
        2.0,
    )
    Experiment.from_settings(settings)


def test_the_mean_by_weights_is_that_of_one_batch_for_any_size_of_minibatches():
    loss = {"name": "CrossEntropyLoss", "weight": [1, 5, 0.5]}
    one = settings_of(**{"training.loss": loss, "training.batch_size": 12, "training.dtype": "float64"})
    several = settings_of(**{"training.loss": loss, "training.accumulate": 3, "training.dtype": "float64"})
    gradients = []
    for settings in (one, several):
        experiment = Experiment.from_settings(settings)
        objective = settings.training.objective(experiment.network, channels_last=False)
        rows = torch.arange(12).split(settings.training.batch_size)
        batches = [experiment.samples.dataset.train.batch(part) for part in rows]
        shares = objective.shares(batches)
        total = sum(share * objective(batch)[1] for batch, share in shares)
        gradients.append(torch.autograd.grad(total, experiment.network.weight)[0])
    assert torch.allclose(gradients[0], gradients[1], rtol=1e-12)


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        (
            "training.loss",
            {"name": "CrossEntropyLoss", "weight": [1, 2]},
            "either for all 3 classes or no classes",
        ),
        (
            "training.loss",
            {"name": "CrossEntropyLoss", "weight": [1, "a", 2]},
            "loss.weight: must be finite numbers",
        ),
        (
            "training.loss",
            {"name": "NLLLoss", "weight": [1, -1, 2]},
            "loss.weight: must be finite numbers from 0",
        ),
        ("training.loss", {"name": "NLLLoss", "weight": [0, 0, 0]}, "not all 0"),
        ("training.optimizer", {"name": "SGD", "momentum": 9e8}, "momentum is 9e+08; it must be at most 1"),
        (
            "training.optimizer",
            {"name": "SGD", "momentum": float("nan")},
            "momentum is nan; it must be finite",
        ),
        ("training.optimizer", {"name": "SGD", "lr": float("inf")}, "lr is inf; it must be finite"),
        ("training.optimizer", {"name": "SGD", "lr": 1e9}, "lr is 1e+09; it must be at most 1e+06"),
        ("training.optimizer", {"name": "AdamW", "lr": 1, "weight_decay": 9e8}, "lr * weight_decay is 9e+08"),
        ("training.optimizer", {"name": "RMSprop", "alpha": 2.0}, "alpha is 2; it must be at most 1"),
        ("training.optimizer", {"name": "Adam", "eps": 9e8}, "eps is 9e+08; it must be at most 1000"),
        ("training.optimizer", {"name": "Adam", "capturable": True}, "no step on a CPU: If capturable=True"),
        ("training.optimizer", {"name": "Adam", "differentiable": True}, "no step on a CPU"),
        (
            "sharing",
            {"name": "gossip", "outer": {"name": "SGD", "lr": 0.7, "momentum": 9e8}},
            "sharing.outer: SGD: momentum is 9e+08",
        ),
    ],
)
def test_what_no_model_learns_with_is_refused(key, value, words):
    with pytest.raises(BadInput) as error:
        Experiment.from_settings(settings_of(**{key: value}))
    assert words in str(error.value) and len(str(error.value).splitlines()) == 1


@pytest.mark.parametrize("empty", ["", 0, False, []])
@pytest.mark.parametrize(
    "key", ["sharing", "graph", "task", "mapping", "training.loss", "training.optimizer", "training"]
)
def test_an_empty_name_is_not_that_of_the_default(key, empty):
    with pytest.raises(ConfigError, match=r"name: must be a name, not .*; name one of: "):
        settings_of(**{f"{key}.name": empty})
    if key in ("sharing", "task", "training"):
        assert settings_of(**{f"{key}.name": None})


class OneScore(nn.Linear):
    """One logit, whose sign is the class."""

    def __init__(self):
        super().__init__(4, 1)


class Squeezed(OneScore):
    def forward(self, x):
        return super().forward(x).squeeze(1)


@pytest.mark.parametrize("model", [OneScore, Squeezed])
def test_one_logit_for_two_classes_is_refused_with_what_would_be_right(model):
    samples = (SAMPLES, LABELS % 2)
    changes = {"dataset": (samples, samples), "model": model(), "training.loss": "BCEWithLogitsLoss"}
    with pytest.raises(BadInput, match="; one for each label is task: binary"):
        Experiment.from_settings(settings_of(**changes))
    Experiment.from_settings(settings_of(**changes | {"model": nn.Linear(4, 2)}))


def test_a_network_from_python_takes_adapters():
    network = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 3))
    experiment = Experiment.from_settings(settings_of(model={"name": network, "adapters": {"rank": 2}}))
    assert [entry.name[:: len(entry.name) - 1] for entry in experiment.layout.entries] == [
        "0A",
        "0B",
        "1A",
        "1B",
    ]
    with pytest.raises(ConfigError, match="did you mean 'adapters'"):
        settings_of(model={"name": network, "adaptors": {"rank": 2}})


class SetsAttributes(Task):
    def metrics(self, num_classes):
        self.classes = num_classes
        return (MetricSpec("near", True, True), MetricSpec("loss", False))

    def sums(self, outputs, labels):
        return {"near": (outputs.argmax(1) == labels % self.classes).sum()}

    def values(self, sums, count):
        return {"near": sums["near"] / count, "loss": sums["loss"] / count}


def test_what_metrics_sets_on_a_task_is_not_in_its_other_objects():
    (defect,) = dry_round.defects(Experiment.from_settings(settings_of(task=SetsAttributes)))
    assert "SetsAttributes has no 'classes'" in defect and "set it in __post_init__" in defect
