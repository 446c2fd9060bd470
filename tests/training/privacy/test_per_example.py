"""Clipped sums of every shipped model against a loop over samples, and what falls back to one."""

import pytest
import torch
from torch import nn

from decentnode.core.registry import MODELS
from decentnode.core.vector import ModuleTensors, ParameterLayout, Vector
from decentnode.datasets.base import Batch
from decentnode.models import model_of
from decentnode.training.objective import Objective
from decentnode.training.privacy.per_example import ClippedSum
from decentnode.training.tasks import Classification, NextToken, Rating, Translation

LENGTH, WORDS = 7, 11
IMAGE = (3, 32, 32)
SMALL = {  # options, shape of the samples, classes
    "celeba_cnn": ({"channels": 4}, IMAGE, 10),
    "cifar_cnn": ({}, IMAGE, 10),
    "cnn": ({"channels": (2, 3), "hidden": 5}, IMAGE, 10),
    "gpt2": ({"layers": 1, "heads": 2, "width": 8, "dropout": 0.0}, (LENGTH,), WORDS),
    "lenet": ({}, (3, 8, 8), 10),
    "logistic_regression": ({}, IMAGE, 10),
    "lstm": ({"embedding": 4, "hidden": 5}, (LENGTH,), WORDS),
    "matrix_factorization": ({"users": 9, "items": 8, "factors": 3}, (2,), 1),
    "mlp": ({}, IMAGE, 10),
    "quadratic": ({}, (2, 6), 1),
    "reddit_lstm": ({"embedding": 4, "hidden": 5, "features": 3}, (LENGTH,), WORDS),
    "resnet18": ({"width": 4, "groups": 2}, IMAGE, 10),
    "resnet50": ({"norm": "group", "width": 4, "groups": 2}, IMAGE, 10),
    "resnet8": ({"norm": "group", "width": 4, "groups": 2}, IMAGE, 10),
    "shakespeare_lstm": ({"embedding": 4, "hidden": 5}, (LENGTH,), WORDS),
    "transformer": (
        {"layers": 1, "heads": 2, "width": 8, "hidden": 6, "dropout": 0.0, "padding": 0}, (2, LENGTH), WORDS,
    ),
    "vgg11": ({"width": 2, "hidden": (), "pooled": 1, "dropout": 0.0}, IMAGE, 10),
    "vit": ({"patch": 16, "layers": 1, "heads": 2, "width": 8}, IMAGE, 10),
}  # fmt: skip
EACH_TOKEN = ("gpt2", "lstm", "transformer")
CLIP = 0.5


def batch_of(name, shape, classes, count=6):
    if name == "quadratic":
        return Batch((torch.rand(count, *shape),), torch.zeros(count, dtype=torch.int64))
    if name == "matrix_factorization":
        return Batch((torch.randint(8, (count, 2)),), torch.rand(count))
    inputs = torch.randn(count, *shape) if len(shape) == 3 else torch.randint(classes, (count, *shape))
    labels = torch.randint(classes, (count, LENGTH) if name in EACH_TOKEN else (count,))
    if name in EACH_TOKEN:
        labels[0, 2:], labels[1] = -100, -100
    return Batch((inputs,), labels)


def losses(name):
    if name == "quadratic":
        return nn.NLLLoss(), Classification()
    if name == "matrix_factorization":
        return nn.MSELoss(), Rating()
    tasks = {"gpt2": NextToken(), "transformer": Translation()}
    return nn.CrossEntropyLoss(), tasks.get(name, Classification())


def prepared(network, loss, task):
    network = network.double()
    layout = ParameterLayout.of(network, dtype=torch.float64)
    Vector(
        ModuleTensors(network, layout),
        tuple(torch.empty(layout.numel, dtype=torch.float64) for _ in range(2)),
    )
    return Objective(network.train(), loss, task), layout


def looped(objective, layout, batch, clip):
    """The definition, with a backward pass for each sample."""
    total = torch.zeros(layout.numel, dtype=torch.float64)
    named = dict(objective.module.named_parameters())
    for index in range(len(batch)):
        sample = Batch(tuple(f[index : index + 1] for f in batch.fields), batch.labels[index : index + 1])
        if sample.labels.dim() > 1 and (sample.labels == -100).all():
            continue
        for parameter in named.values():
            parameter.grad = None
        objective(sample)[1].backward()
        zero = torch.zeros(())
        parts = [named[e.name].grad if named[e.name].grad is not None else zero for e in layout.entries]
        gradients = zip(layout.entries, parts, strict=True)
        flat = torch.cat([part.expand(entry.shape).reshape(-1) for entry, part in gradients])
        total += flat * min(1.0, clip / max(float(flat.norm()), 1e-30))
    return total


def test_long_texts_in_an_lstm_are_computed_one_after_the_other():
    network = model_of(MODELS.find("lstm"), SMALL["lstm"][0]).build((40,), WORDS)
    objective, layout = prepared(network, *losses("lstm"))
    batch = Batch((torch.randint(WORDS, (3, 40)),), torch.randint(WORDS, (3, 40)))
    sums, gradient = ClippedSum(objective, layout), torch.zeros(layout.numel, dtype=torch.float64)
    sums.add(batch, CLIP, gradient)
    assert (gradient - looped(objective, layout, batch, CLIP)).abs().max() < 1e-9
    assert sums._is_long(batch) and not sums._is_long(Batch((batch.fields[0][:, :9],), batch.labels))


class ReadsItself(nn.Module):
    """What no vmap allows: a number of the data decides in Python."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x):
        return self.layer(x) * (2.0 if x.sum().item() > 0 else 1.0)


def test_a_model_that_vmap_refuses_is_computed_in_a_loop():
    torch.manual_seed(0)
    objective, layout = prepared(ReadsItself(), nn.CrossEntropyLoss(), Classification())
    batch = Batch((torch.randn(6, 4).double(),), torch.randint(3, (6,)))
    sums, gradient = ClippedSum(objective, layout), torch.zeros(layout.numel, dtype=torch.float64)
    sums.add(batch, CLIP, gradient)
    assert "item" in sums.why_loop
    assert (gradient - looped(objective, layout, batch, CLIP)).abs().max() < 1e-9


def test_every_model_is_here():
    assert set(SMALL) == set(MODELS.classes())


@pytest.mark.parametrize("name", SMALL)
def test_clipped_sums_equal_a_loop(name):
    torch.manual_seed(3)
    options, shape, classes = SMALL[name]
    objective, layout = prepared(model_of(MODELS.find(name), options).build(shape, classes), *losses(name))
    batch = batch_of(name, shape, classes)
    batch = Batch(tuple(f.double() if f.is_floating_point() else f for f in batch.fields), batch.labels)
    if batch.labels.is_floating_point():
        batch = Batch(batch.fields, batch.labels.double())
    sums, gradient = ClippedSum(objective, layout), torch.zeros(layout.numel, dtype=torch.float64)
    sums.add(batch, CLIP, gradient)
    wanted = looped(objective, layout, batch, CLIP)
    assert sums.why_loop == ""
    assert wanted.norm() > 1e-3 and (gradient - wanted).abs().max() < 1e-9
